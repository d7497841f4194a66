# SPDX-License-Identifier: Apache-2.0
"""Finished pairs on their way to a match file: locked, append-only, readable after a kill at any moment.

A journal is a mark, a record of what is being made, and a record a pair. A record is its length, the CRC-32 of its
payload, and the payload, all little-endian; nothing before the last record is ever changed. Knows no HDF5.
"""

import logging
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.atomic import open_locked
from sfumato.matching.match_file import FORMAT, MATCHES, SCORES
from sfumato.types.scene import Matches

MARK = b"sfumato-matches-part-1\n"
FRAME = struct.Struct("<II")
PAIR = struct.Struct("<HHIII64s64s")
LARGEST = 2**31
SYNC_SECONDS, SYNC_BYTES = 5.0, 64 * 2**20
"""Whichever comes first: what a power failure may cost at most. A kill costs nothing that was added."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
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
    def unpack(cls, payload: bytes) -> "Entry":
        """Read what ``pack`` wrote; anything else is an InputError."""
        try:
            first, second, count0, count1, found, sum0, sum1 = PAIR.unpack_from(payload)
            texts, numbers = PAIR.size + first, PAIR.size + first + second
            if len(payload) != numbers + 12 * found:
                raise InputError("a record has another length than it says")
            names = (_text(payload[PAIR.size : texts]), _text(payload[texts:numbers]))
            indices = np.frombuffer(payload, "<i4", 2 * found, numbers).reshape(found, 2)
            matches = Matches(indices, np.frombuffer(payload, "<f4", found, numbers + 8 * found))
            return cls(names, (count0, count1), (sum0.decode("ascii"), sum1.decode("ascii")), matches)
        except (struct.error, UnicodeError) as cause:
            raise InputError("a record is damaged") from cause


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class Journal:
    """An open and locked journal; ``purpose`` says what is being made, and is empty if nobody said so yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.purpose = ""
        self.end = 0
        self._synced, self._unsynced = time.monotonic(), 0
        with explained(f"cannot write {path}", "check the folder and its permissions"):
            self.fd = open_locked(path)
        try:
            with explained(f"cannot read {path}", "move it away"):
                self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        start = os.pread(self.fd, len(MARK), 0)
        if not MARK.startswith(start):
            raise FileError(f"{self.path} is in the way: it is not an unfinished match file; move it away")
        payload = self._payload(len(MARK))
        if payload is not None:
            self.purpose = payload.decode("utf-8", "replace")
            self.end = len(MARK) + FRAME.size + len(payload)

    def begin(self, purpose: str) -> None:
        """Forget what is in the file and say what is being made."""
        with explained(f"cannot write {self.path}", "free space and run again"):
            os.ftruncate(self.fd, 0)
            self._write(MARK + _framed(purpose.encode()), 0)
        self.purpose, self.end = purpose, len(MARK) + FRAME.size + len(purpose.encode())

    def salvage(self) -> Iterator[tuple[int, Entry]]:
        """Yield every intact record of an interrupted run with its address; cut off what is behind the last."""
        while (payload := self._payload(self.end)) is not None:
            try:
                entry = Entry.unpack(payload)
            except InputError:
                break
            address, self.end = self.end, self.end + FRAME.size + len(payload)
            yield address, entry
        size = os.fstat(self.fd).st_size
        if size > self.end:
            log.warning("%s: dropped %d bytes at its end that are no whole pair", self.path, size - self.end)
            with explained(f"cannot write {self.path}", "check its permissions"):
                os.ftruncate(self.fd, self.end)

    def append(self, entry: Entry) -> int:
        """Write a record and return its address. When this returns, a kill no longer loses it."""
        record = _framed(entry.pack())
        with explained(f"cannot write {self.path}", "the pairs before are in it; free space and run again"):
            try:
                self._write(record, self.end)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self.fd, self.end)
                raise
            self._unsynced += len(record)
            if self._unsynced > SYNC_BYTES or time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()
        address, self.end = self.end, self.end + len(record)
        return address

    def read(self, address: int) -> Entry:
        """Return the record at an address."""
        payload = self._payload(address)
        if payload is None:
            raise FileError(f"{self.path} was damaged while it was in use, at byte {address}: run again")
        return Entry.unpack(payload)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self.fd)
        self._synced, self._unsynced = time.monotonic(), 0

    def remove(self) -> None:
        """Delete the file."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _payload(self, address: int) -> bytes | None:
        """Return the payload of the record at an address, or None if no intact one is there."""
        frame = os.pread(self.fd, FRAME.size, address)
        if len(frame) < FRAME.size:
            return None
        length, checksum = FRAME.unpack(frame)
        if length > min(LARGEST, os.fstat(self.fd).st_size - address - FRAME.size):
            return None
        payload = os.pread(self.fd, length, address + FRAME.size)
        return payload if len(payload) == length and zlib.crc32(payload) == checksum else None

    def _write(self, data: bytes, address: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self.fd, view, address)
            view, address = view[written:], address + written


def _framed(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


@contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Turn every problem of a file into a FileError that says what, where, and what to do."""
    try:
        yield
    except InputError as cause:
        raise FileError(f"{what}: {cause}; {advice}") from cause
    except SfumatoError:
        raise
    except (OSError, RuntimeError) as cause:
        raise FileError(f"{what}: {getattr(cause, 'strerror', None) or cause}; {advice}") from cause


# ----------------------------------------------------------------
# Which files a match file may take the place of: match files, and nothing that somebody may still need
# Looks at what a file is, never at its name. Knows no archive and no features.


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
                raise FileError(f"cannot write to {output}: it is {what}, {given}; choose another output")


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
        raise FileError(f"cannot read {target}: {cause.strerror}; check its permissions") from cause
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
