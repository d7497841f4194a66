# SPDX-License-Identifier: Apache-2.0
"""Text files with an image a line, as hloc and COLMAP keep cameras and poses: ``name word word ...``.

Knows lines and names; what the words mean is for ``cameras`` and ``poses`` to say.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from sfumato.errors import FileError, InputError
from sfumato.geometry.names import NAME_EARLIER, some, unlistable
from sfumato.whole import write_text

SHOWN = 8
LARGEST = 2**28
"""Bytes of a list; a million images take less."""

Value = TypeVar("Value")


def read_list(path: str | os.PathLike[str], what: str, parse: Callable[[list[str]], Value]) -> dict[str, Value]:
    """Read ``what`` of each image; empty lines and lines that begin with # are comments.

    ``parse`` takes the words after the name and raises InputError for wrong ones.

    Raises FileError naming every wrong line at once.
    """
    path, found, problems = Path(path), dict[str, Value](), []
    lines: dict[str, int] = {}
    for number, line in enumerate(_text(path, what).split("\n"), 1):
        name, *words = line.split() or ["#"]
        if name.startswith("#"):
            continue
        if name in lines:
            problems.append(f"line {number}: {name!r:.200} was named before, in line {lines[name]}")
            continue
        lines[name] = number
        try:
            found[name] = parse(words)
        except InputError as problem:
            problems.append(f"line {number}: {problem}")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise FileError(f"{path}: can not read the {what}: {'; '.join(problems[:SHOWN])}{more}")
    return found


def write_list(path: str | os.PathLike[str], rows: Mapping[str, Iterable[str]], comment: str = "") -> None:
    """Write an image a line, in the order given, under a comment if there is one; whole or not at all.

    Raises InputError for names that such a file can not hold, FileError if it can not be written.
    """
    wrong = unlistable(rows)
    if wrong:
        raise InputError(f"names with spaces, or that begin with #, can not be listed: {some(wrong)}; {NAME_EARLIER}")
    head = f"# {comment}\n" if comment else ""
    text = head + "".join(f"{' '.join([name, *row])}\n" for name, row in rows.items())
    write_text(path, text)


def numbers(words: Iterable[str], what: str) -> tuple[float, ...]:
    """Return words as numbers, or raise InputError naming the first that is none."""
    result = []
    for word in words:
        try:
            result.append(float(word))
        except ValueError as cause:
            raise InputError(f"{what}: {word!r:.40} is not a number") from cause
    return tuple(result)


def _text(path: Path, what: str) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise FileError(f"{path} has more than {LARGEST} bytes: this is no list of {what}")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise FileError(f"{path} is not a text in UTF-8: this is no list of {what}") from cause
    except FileError:
        raise
    except OSError as cause:
        raise FileError(f"{path}: can not read the {what} ({cause.strerror or cause}); check the path") from cause
