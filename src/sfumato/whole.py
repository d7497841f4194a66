# SPDX-License-Identifier: Apache-2.0
"""Files and folders that appear whole or not at all: written beside their place, then moved there.

Knows bytes and paths. After Ctrl-C, a kill or a full disk the old file is still there, or none.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from sfumato.errors import FileError


def write_file(
    path: str | os.PathLike[str], write: bytes | Callable[[BinaryIO], Any], *, with_folder: bool = False
) -> None:
    """Make or replace a file from bytes, or by a function that writes them; ``with_folder`` also makes its folder.

    A link is followed: what it leads to is replaced.

    Raises FileError if it can not be written.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        if with_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            try:
                file.write(write) if isinstance(write, bytes) else write(file)
                file.flush()
                os.fsync(file.fileno())
                with suppress(FileNotFoundError):  # who might read the old file may read the new one, and nobody else
                    temporary.chmod(stat.S_IMODE(target.stat().st_mode))
                os.replace(temporary, target)
            except BaseException:
                temporary.unlink()
                raise
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(
            f"{path}: can not be written: {cause.strerror or cause}; choose another path or free space"
        ) from cause


def write_text(path: str | os.PathLike[str], text: str, *, with_folder: bool = False) -> None:
    """Make or replace a text file; raises FileError if it can not be written."""
    write_file(path, text.encode("utf-8"), with_folder=with_folder)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder that takes the place ``path`` when the block ends, and is removed if it ends with an error.

    Raises FileError if something other than an empty folder is there, or the folder can not be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target} is already there: choose another folder")
        temporary.mkdir(parents=True)
        yield temporary
        os.replace(temporary, target)
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{target}: can not be written: {cause.strerror or cause}") from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
