# SPDX-License-Identifier: Apache-2.0
"""Journal of finished pairs on their way to a match file, and the rule which files a match file may replace.

A journal is locked, append-only and readable after a kill at any moment: a record of what is being made, and a record
per pair (``files.atomic.RecordFile``). What a match file may replace is decided by what a file holds, never by its
name.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.files.atomic import RecordFile
from sfumato.files.hdf5 import DAMAGE, SIGNATURE, find_group, open_hdf5
from sfumato.matching.match_file import FORMAT, MATCHES, SCORES
from sfumato.types.scene import Matches

MARK = b"sfumato-matches-part-1\n"
PAIR = struct.Struct("<HHIII64s64s")


@dataclass(frozen=True, slots=True, eq=False)
class PairRecord:
    """Matches of one pair, with the number of features and the checksum of each of the two images."""

    names: tuple[str, str]
    counts: tuple[int, int]
    checksums: tuple[str, str]
    matches: Matches

    def check_rows(self) -> None:
        """Refuse rows that the images do not have, and a row of the first image that is matched twice."""
        rows, pair = self.matches.indices, f"matches of {self.names[0]!r:.80} and {self.names[1]!r:.80}"
        if len(rows) and (rows.max(axis=0) >= self.counts).any():
            raise InputError(f"{pair} name rows that the images do not have")
        if len(np.unique(rows[:, 0])) != len(rows):
            raise InputError(f"{pair} name a row of the first image twice")

    def pack(self) -> bytes:
        """Return the payload of a record."""
        names = [name.encode("utf-8", "surrogateescape") for name in self.names]
        sums = [text.encode("ascii") for text in self.checksums]
        head = PAIR.pack(*map(len, names), *self.counts, len(self.matches), *sums)
        arrays = self.matches.indices.astype("<i4"), self.matches.distances.astype("<f4")
        return b"".join([head, *names, *(array.tobytes() for array in arrays)])

    @classmethod
    def unpack(cls, payload: bytes) -> "PairRecord":
        """Read what ``pack`` wrote; anything else is an InputError."""
        try:
            first, second, count0, count1, count, sum0, sum1 = PAIR.unpack_from(payload)
            texts, numbers = PAIR.size + first, PAIR.size + first + second
            if len(payload) != numbers + 12 * count:
                raise InputError("a record has another length than it says")
            names = (_text(payload[PAIR.size : texts]), _text(payload[texts:numbers]))
            indices = np.frombuffer(payload, "<i4", 2 * count, numbers).reshape(count, 2)
            matches = Matches(indices, np.frombuffer(payload, "<f4", count, numbers + 8 * count))
            return cls(names, (count0, count1), (sum0.decode("ascii"), sum1.decode("ascii")), matches)
        except (struct.error, UnicodeError) as cause:
            raise InputError("a record is damaged") from cause


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class Journal(RecordFile):
    """An open and locked journal of a match file; ``purpose`` says what is being made."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, MARK, "an unfinished match file")

    def salvage(self) -> Iterator[tuple[int, PairRecord]]:
        """Yield every intact record of an interrupted run with its address; cut off what is behind the last."""
        for address, payload in self.payloads():
            try:
                entry = PairRecord.unpack(payload)
            except InputError:
                break
            yield address, entry
        self.cut()

    def append(self, entry: PairRecord) -> int:
        """Write a record and return its address. When this returns, a kill no longer loses it."""
        return self.add(entry.pack())

    def read(self, address: int) -> PairRecord:
        """Return the record at an address."""
        payload = self.payload(address)
        if payload is None:
            raise FileError(f"{self.path} was damaged while it was in use, at byte {address}: run again")
        return PairRecord.unpack(payload)


# --- what a match file may replace: match files, and nothing that somebody may still need


OTHERS = b"sfumato-archive", b"sfumato-public-points"
WINDOW = 2**20


def parts_of(target: Path) -> tuple[Path, Path]:
    """Return the files beside a match file while it is made: the journal, and the file that will take its place."""
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".new.part")


def refuse_inputs(output: str | os.PathLike[str], inputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Refuse to write to a file that is read: ``inputs`` are files by what they are, None for one that is absent."""
    target = Path(os.path.realpath(output))
    for what, path in inputs.items():
        for place in (target, *parts_of(target)):
            if path is not None and _is_same(place, Path(path)):
                raise FileError(f"cannot write to {output}: it is {what}, {path}; choose another output")


def _is_same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # one of them is not there
        return False


def refuse_irreplaceable(path: Path, target: Path) -> None:
    """Refuse to replace what is no match file, ours or hloc's, whole or cut off. ``path`` is how its user calls it."""
    if not target.exists() or target.stat().st_size == 0:
        return
    kind = _kind(target)
    if kind:
        raise FileError(f"{path} is {kind}: only a match file is ever replaced; choose another output, or move it away")


def is_match_file(target: Path) -> bool:
    """Tell whether a file holds matches, ours or hloc's, whole or cut off."""
    return not _kind(target)


def _kind(target: Path) -> str:
    """Return what a file is, or an empty text for a match file."""
    try:
        with target.open("rb") as raw:
            if raw.read(len(SIGNATURE)) != SIGNATURE:
                return "no HDF5 file"
    except OSError as cause:
        raise FileError(f"cannot read {target}: {cause.strerror}; check its permissions") from cause
    try:
        with open_hdf5(target) as file:
            if "format" in file.attrs:
                name = file.attrs["format"]
                is_ours = name == FORMAT or (isinstance(name, bytes) and name == FORMAT.encode())
                return "" if is_ours else "another kind of file, not matches"
            return "" if _holds_pairs(file) else "another kind of HDF5 file, not matches"
    except DAMAGE:  # FileError is an OSError
        return "" if _was_match_file(target) else "a damaged HDF5 file that may not have been matches"


def _holds_pairs(file: Any) -> bool:
    """Tell whether everything in a file is a pair of hloc's; an empty file is one without pairs."""
    if not len(file):
        return not len(file.attrs)
    try:
        groups = [find_group(file, outer) for outer in file]
        return all(len(group) and all(MATCHES in find_group(group, inner) for inner in group) for group in groups)
    except InputError:
        return False


def _was_match_file(target: Path) -> bool:
    """Tell whether a file that HDF5 cannot open was a match file: by its journal, or by words only those hold."""
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
