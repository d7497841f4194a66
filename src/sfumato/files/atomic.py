# SPDX-License-Identifier: Apache-2.0
"""Atomic writes of files and folders, and locks: one writer at a time.

A file is written beside its place and then moved there: after Ctrl-C, a kill or a full disk the old file is still
there, or none. Locks end with the process that holds them. They are made here and not by ``filelock``, because they
refuse links and pipes in their place, and go on with a warning on file systems without locks.
"""

import hashlib
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError

log = logging.getLogger(__name__)


@contextmanager
def new_file(
    path: str | os.PathLike[str], *, with_folder: bool = False, private: bool = False
) -> Iterator[tuple[BinaryIO, Path]]:
    """Give an empty file that takes the place ``path`` when the block ends, and is removed if it ends with an error.

    The only place where unfinished files are made: under a name that nobody can foresee, never through a link, and
    readable by its owner alone until it is finished. Then it has the access rights of the file it replaces; a new file
    has the usual ones, or with ``private`` those of its owner only. A link at ``path`` that this user made is followed:
    its target is replaced. The block gets the open file, and its path for libraries that open it themselves. What
    killed processes left unfinished beside it is removed first: it may hold what the file was to protect.

    Raises FileError if it cannot be written, if something other than a file is in its place, or a link of another user.
    """
    refuse_planted(path)
    target = Path(os.path.realpath(path))
    part = hidden_part(target)
    clear_parts(target)
    try:
        if with_folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode_of(target)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        is_open = mode is None and not private  # only the system knows which access rights are usual
        with os.fdopen(os.open(part, flags, 0o666 if is_open else 0o600), "r+b") as file:
            try:
                usual = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                os.fchmod(file.fileno(), 0o600)
                _is_locked(file.fileno())  # the lock tells others that it is not left over
                yield file, part
                file.flush()
                _finish(part, usual if mode is None else mode)
                replace_file(part, target)
            except BaseException:
                with suppress(FileNotFoundError):
                    part.unlink()
                raise
    except OSError as cause:
        if isinstance(cause, SfumatoError):
            raise
        raise FileError(
            f"{path}: cannot be written: {cause.strerror or cause}; choose another path or free space"
        ) from cause


def clear_parts(path: str | os.PathLike[str]) -> None:
    """Remove the unfinished files that killed processes left beside a file; those in the making stay."""
    target = Path(os.path.realpath(path))
    start, now = part_start(target), time.time()
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            token = entry.name.removeprefix(start).removesuffix(".part")
            if entry.name != f"{start}{token}.part" or len(token) != 16 or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError):
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
                try:
                    if now - os.fstat(descriptor).st_mtime > YOUNG_SECONDS and not _is_locked(descriptor):
                        os.unlink(entry.path)
                finally:
                    os.close(descriptor)


YOUNG_SECONDS = 60.0
"""A file so young may belong to a process that has not locked it yet."""


LONGEST_START = 200
"""Bytes of a name that stand in the name of an unfinished file; names have at most 255, with all that follows."""


def hidden_part(target: Path) -> Path:
    """Return a new place for an unfinished file, beside the place it is made for, that nobody can foresee."""
    return target.with_name(f"{part_start(target)}{secrets.token_hex(8)}.part")


def part_start(target: Path) -> str:
    """Return how the names of the unfinished files for a place begin; a long name is cut, and has its digest in it."""
    name = os.fsencode(target.name)
    if len(name) > LONGEST_START:
        digest = hashlib.blake2b(name, digest_size=8).hexdigest().encode()
        name = name[: LONGEST_START - len(digest)] + digest
    return f".{os.fsdecode(name)}."


def _is_locked(descriptor: int) -> bool:
    """Lock a file, or tell that another process has done so; False too where the file system has no locks."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _finish(part: Path, mode: int) -> None:
    """Give a file its access rights, and wait until the disk has it; a library may have put another in its place."""
    descriptor = os.open(part, os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_planted(path: str | os.PathLike[str]) -> None:
    """Raise FileError for a link that another user made: it decides what would be overwritten."""
    if os.path.islink(path) and hasattr(os, "geteuid") and os.lstat(path).st_uid != os.geteuid():
        raise FileError(f"{path}: cannot be written: it is a link of another user; choose another path")


def _mode_of(target: Path) -> int | None:
    """Return the access rights of a file, or None if there is none; raise FileError for anything but a file."""
    try:
        status = os.lstat(target)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{target}: cannot be written: it is there and not a file; choose another path")
    return stat.S_IMODE(status.st_mode)


def write_file(
    path: str | os.PathLike[str],
    write: bytes | Callable[[BinaryIO], Any],
    *,
    with_folder: bool = False,
    private: bool = False,
) -> None:
    """Make or replace a file from bytes, or with a function that writes them; ``with_folder`` also makes its folder.

    ``private``: a new file is readable by its owner only.

    Raises FileError if it cannot be written.
    """
    with new_file(path, with_folder=with_folder, private=private) as (file, _):
        file.write(write) if isinstance(write, bytes) else write(file)


def check_output(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Check before long work that a file can be written: its folder exists, and it does not, unless ``overwrite``.

    Raises FileError.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise FileError(
            f"{target} is already there: choose another file, or overwrite it (--overwrite, overwrite=True)"
        )
    if not target.parent.is_dir():
        raise FileError(f"{target.parent} is not a folder: make it first")


def write_text(path: str | os.PathLike[str], text: str, *, with_folder: bool = False, private: bool = False) -> None:
    """Make or replace a text file; raises FileError if it cannot be written."""
    write_file(path, text.encode("utf-8"), with_folder=with_folder, private=private)


# --- reading: a pipe, a device or an endless file in the place of a file must not stop a program


ANY_SIZE = 2**63


@contextmanager
def open_file(path: str | os.PathLike[str], largest: int) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; refuse, without waiting, what is not a file, and one of more than ``largest``.

    Raises FileError if it is missing, cannot be read, is something else than a file, or too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))  # a pipe must not wait
    except FileNotFoundError as cause:
        raise FileError(f"{path}: no such file; check the path") from cause
    except (OSError, ValueError) as cause:
        reason = getattr(cause, "strerror", None) or cause
        raise FileError(f"{path}: cannot be read: {reason}; check the path") from cause
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileError(f"{path}: cannot be read: it is not a file; check the path")
        if status.st_size > largest:
            raise FileError(f"{path}: cannot be read: it has more than {largest} bytes; check the path")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    except OSError as cause:
        if isinstance(cause, SfumatoError):
            raise
        raise FileError(f"{path}: cannot be read: {cause.strerror or cause}; check the disk") from cause
    finally:
        os.close(descriptor)


def read_bytes(path: str | os.PathLike[str], largest: int) -> bytes:
    """Read a file of at most ``largest`` bytes; raises FileError as ``open_file`` does."""
    with open_file(path, largest) as file:
        return file.read()


LARGEST_TEXT = 2**28
"""Bytes of a text; a list of a million images takes less."""


@contextmanager
def open_text(
    path: str | os.PathLike[str], *, largest: int = LARGEST_TEXT, errors: str = "strict", newline: str | None = None
) -> Iterator[TextIO]:
    """Open a text in UTF-8, with or without a mark in front; ``errors`` and ``newline`` are those of ``open``.

    Raises FileError as ``open_file`` does, and if it is not a text.
    """
    with open_file(path, largest) as file:
        try:
            with TextIOWrapper(file, "utf-8-sig", errors, newline) as text:
                yield text
        except UnicodeDecodeError as cause:
            raise FileError(f"{path}: cannot be read: it is not a text in UTF-8; check the path") from cause


def read_text(path: str | os.PathLike[str], *, largest: int = LARGEST_TEXT) -> str:
    """Read a text in UTF-8; raises FileError as ``open_text`` does."""
    with open_text(path, largest=largest) as text:
        return text.read()


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give an empty folder that takes the place ``path`` when the block ends, and is removed if it ends with an error.

    Raises FileError if something other than an empty folder is there, or the folder cannot be written.
    """
    target = Path(path)
    temporary = hidden_part(target)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileError(f"{target} is already there: choose another folder")
        temporary.mkdir(parents=True)
        yield temporary
        os.replace(temporary, target)
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{target}: cannot be written: {cause.strerror or cause}") from cause
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_file(new: Path, target: Path) -> None:
    """Move a finished file to its place, at once, and wait until the disk knows."""
    os.replace(new, target)
    with suppress(OSError):  # some file systems cannot synchronise a folder
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- locks: for a file that is read, changed and replaced the lock is a file beside it

WAIT_SECONDS, PAUSE_SECONDS = 60.0, 0.02


@contextmanager
def file_lock(path: str | os.PathLike[str], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Keep other writers of a file away; wait for one that is at work, at most ``wait`` seconds.

    Raises FileError if another writer does not finish, or its folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    beside, deadline = target.with_name(f".{target.name}.lock"), time.monotonic() + wait
    while True:
        try:
            lock = open_locked(beside)
            break
        except ArchiveError as cause:
            if time.monotonic() > deadline:
                raise FileError(f"{target} is being changed by another process; try again when it is done") from cause
            time.sleep(PAUSE_SECONDS)
        except OSError as cause:
            raise FileError(f"{target}: cannot be written: {cause.strerror or cause}; check its folder") from cause
    try:
        yield
    finally:
        with suppress(OSError):
            beside.unlink()  # a waiting writer sees that it is gone, and begins anew
        os.close(lock)


def open_locked(path: Path) -> int:
    """Open or create a file and lock it; the lock ends with the process."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            _lock(fd, path)
            here = os.fstat(fd)
            if not stat.S_ISREG(here.st_mode):
                raise InputError("it is not a file")
            with suppress(FileNotFoundError):
                if os.path.samestat(here, os.stat(path, follow_symlinks=False)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # a writer that just finished moved the file away


def _lock(fd: int, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as cause:
        raise ArchiveError(f"{path} is being written by another writer; wait for it, or choose another path") from cause
    except OSError:
        log.warning("%s is on a file system without locks: nothing keeps a second writer away", path)
