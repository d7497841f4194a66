# SPDX-License-Identifier: Apache-2.0
"""Which files a match file may take the place of: match files, and nothing that somebody may still need.

Looks at what a file is, never at its name. Knows no archive and no features.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.errors import FileError
from sfumato.matching.journal import MARK
from sfumato.matching.matchfile import FORMAT, MATCHES, SCORES

SIGNATURE = b"\x89HDF\r\n\x1a\n"
OTHERS = b"sfumato-archive", b"sfumato-public-points"
WINDOW = 2**20


def parts_of(target: Path) -> tuple[Path, Path]:
    """Return the files beside a match file while it is made: the journal, and the file that will take its place."""
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".new.part")


def refuse_inputs(output: str | os.PathLike[str], inputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Refuse to write to a file that is read: ``inputs`` are files by what they are, None for one not given."""
    target = Path(os.path.realpath(output))
    for what, given in inputs.items():
        for place in (target, *parts_of(target)):
            if given is not None and _is_same(place, Path(given)):
                raise FileError(f"can not write to {output}: it is {what}, {given}; choose another output")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there
        return False


def refuse_irreplaceable(path: Path, target: Path) -> None:
    """Refuse to replace what is no match file, ours or hloc's, whole or cut off. ``path`` is how its user calls it."""
    if not target.exists() or target.stat().st_size == 0:
        return
    found = _kind(target)
    if found:
        raise FileError(
            f"{path} is {found}: only a match file is ever replaced; choose another output, or move it away"
        )


def is_match_file(target: Path) -> bool:
    """Tell whether a file holds matches, ours or hloc's, whole or cut off."""
    return not _kind(target)


def _kind(target: Path) -> str:
    """Return what a file is, or an empty text for a match file."""
    import h5py

    try:
        with target.open("rb") as raw:
            if raw.read(len(SIGNATURE)) != SIGNATURE:
                return "no HDF5 file"
    except OSError as cause:
        raise FileError(f"can not read {target}: {cause.strerror}; check its permissions") from cause
    try:
        with h5py.File(target, "r", locking="best-effort") as file:
            if "format" in file.attrs:
                found = file.attrs["format"]
                ours = found == FORMAT or (isinstance(found, bytes) and found == FORMAT.encode())
                return "" if ours else "another kind of file, not matches"
            return "" if _is_hlocs(file) else "another kind of HDF5 file, not matches"
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, SystemError):
        return "" if _was_match_file(target) else "a damaged HDF5 file that may not have been matches"


def _is_hlocs(file: Any) -> bool:
    """Tell whether everything in a file is a pair of hloc's; an empty file is one without pairs."""
    import h5py

    if not len(file):
        return not len(file.attrs)
    for outer in file:
        group = file.get(outer) if isinstance(file.get(outer, getlink=True), h5py.HardLink) else None
        if not isinstance(group, h5py.Group) or not len(group):
            return False
        for inner in group:
            pair = group.get(inner) if isinstance(group.get(inner, getlink=True), h5py.HardLink) else None
            if not isinstance(pair, h5py.Group) or MATCHES not in pair:
                return False
    return True


def _was_match_file(target: Path) -> bool:
    """Tell whether a file that HDF5 can not open was a match file: by its journal, or by words only those hold."""
    words = dict.fromkeys((FORMAT.encode(), MATCHES.encode(), SCORES.encode(), *OTHERS), False)
    with target.open("rb") as raw:
        before = b""
        while window := raw.read(WINDOW):
            for word in words:
                words[word] |= word in before + window
            before = window[-64:]
    if any(words[other] for other in OTHERS):
        return False
    journal = parts_of(target)[0]
    if words[FORMAT.encode()] or (words[MATCHES.encode()] and words[SCORES.encode()]):
        return True
    try:
        with journal.open("rb") as raw:
            return raw.read(len(MARK)) == MARK
    except OSError:
        return False
