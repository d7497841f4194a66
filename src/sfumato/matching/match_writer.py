# SPDX-License-Identifier: Apache-2.0
"""Writer of match files that loses nothing finished: to SQLite first, to HDF5 at the end and at once.

Never imports the clear types; what is written are rows and distances.
"""

import hashlib
import heapq
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError
from sfumato.files import sqlite
from sfumato.files.atomic import clear_parts, file_lock
from sfumato.files.hdf5 import Arrays, new_hdf5
from sfumato.matching.archive_images import ArchiveImages
from sfumato.matching.match_file import (
    MatchFile,
    Provenance,
    bits_of,
    group_name,
    pair_arrays,
    parameters_of,
    part_of,
    refuse_inputs,
    refuse_irreplaceable,
    write_pairs,
)
from sfumato.matching.mutual import MatchParams, default_ratio
from sfumato.matching.pairs import Pair, PairSet
from sfumato.store.archive import Archive
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Matches

UNFINISHED = sqlite.FileKind(
    "an unfinished match file",
    0x53664D70,
    1,
    (
        "CREATE TABLE purpose (text TEXT NOT NULL) STRICT",
        "CREATE TABLE pair (name0 TEXT NOT NULL, name1 TEXT NOT NULL, count0 INTEGER NOT NULL, "
        "count1 INTEGER NOT NULL, checksum0 TEXT NOT NULL, checksum1 TEXT NOT NULL, digest TEXT NOT NULL, "
        "indices BLOB NOT NULL, distances BLOB NOT NULL) STRICT",
        "CREATE UNIQUE INDEX pair_names ON pair (min(name0, name1), max(name0, name1))",
    ),
    "delete it to match its pairs again, or move it away if it is not Sfumato's",
)
COMMIT_PAIRS, COMMIT_SECONDS = 100, 1.0
"""Whichever comes first: the finished pairs, and the work, that a kill may cost."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PairRecord:
    """Matches of one pair, with the number of features and the checksum of each of the two images."""

    names: Pair
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

    def row(self) -> tuple[Any, ...]:
        """Return the row of the table ``pair``."""
        blobs = self.matches.indices.astype("<i4").tobytes(), self.matches.distances.astype("<f4").tobytes()
        facts = (*self.names, *self.counts, *self.checksums)
        return (*facts, _digest(facts, blobs), *blobs)

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> "PairRecord":
        """Return what a row of the table ``pair`` holds; raises InputError if it is damaged."""
        facts, digest, blobs = row[:6], row[6], row[7:]
        if digest != _digest(facts, blobs) or len(blobs[0]) != 2 * len(blobs[1]):
            raise InputError("a pair is damaged")
        matches = Matches(np.frombuffer(blobs[0], "<i4").reshape(-1, 2), np.frombuffer(blobs[1], "<f4"))
        return cls(facts[:2], facts[2:4], facts[4:6], matches)


def _digest(facts: tuple[Any, ...], blobs: Iterable[bytes]) -> str:
    state = hashlib.blake2b(json.dumps(facts).encode("ascii"), digest_size=16, person=b"sfumato-part")
    for blob in blobs:
        state.update(blob)
    return state.hexdigest()


class MatchWriter:
    """Writes matches of pairs of images of an archive, inside a ``with`` block.

    Pairs go to ``<path>.part``; leaving the block writes ``path`` at once, with the pairs it held before. If the block
    ends with an error or Ctrl-C, or the process is killed, ``path`` is untouched and the next writer goes on; a kill
    costs the last second. ``done`` holds the pairs that are there already, in either order. One writer at a time. A
    file that was made with other parameters or from other images is refused unless ``overwrite``, which replaces match
    files and nothing else. The archive, and the files of ``inputs`` by what they are, are never written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        archive: Archive,
        params: MatchParams | None = None,
        *,
        overwrite: bool = False,
        inputs: Mapping[str, str | os.PathLike[str] | None] | None = None,
    ) -> None:
        self.path = Path(path)
        refuse_inputs(path, {"the archive": archive.path, **(inputs or {})})
        self._target = Path(os.path.realpath(path))
        self._part = part_of(self._target)
        self.images, self.params = ArchiveImages(archive), _with_ratio(params or MatchParams(), archive)
        self._parameters = parameters_of(self.params)
        self._replaces = overwrite
        self._is_open, self._files = False, ExitStack()
        self._clear()

    def _clear(self) -> None:
        self.done = PairSet()
        self._base: MatchFile | None = None
        self._base_pairs: list[Pair] = []
        self._state: sqlite.Database | None = None
        self._waiting: list[PairRecord] = []
        self._committed = -COMMIT_SECONDS
        self._table: dict[str, tuple[int, str]] = {}
        self._spelling: dict[str, str] = {}

    def __enter__(self) -> "MatchWriter":
        if not self._target.parent.is_dir():
            raise FileError(f"cannot write {self.path}: there is no folder {self._target.parent}; create it")
        if self._target.exists() and not self._target.is_file():
            raise FileError(f"cannot write {self.path}: it exists and is not a file; choose another path")
        if self._replaces:
            refuse_irreplaceable(self.path, self._target)
        with ExitStack() as files:
            files.enter_context(file_lock(self._target, wait=0))
            files.callback(self._clear)
            clear_parts(self._target)
            if os.path.lexists(self._part):
                self._state = files.enter_context(self._open_state())
                self._check_state(self._state)
            if self._replaces:
                refuse_irreplaceable(self.path, self._target)
            elif self._target.exists():
                self._base = files.enter_context(MatchFile(self._target))
                self._check_base(self._base)
            self._salvage()
            self._is_open, self._files = True, files.pop_all()
        return self

    def expect(self, names: Iterable[str]) -> None:
        """Refuse, before any work is done, image names that one file cannot hold."""
        for name in names:
            other = self._spelling.setdefault(group_name(name), name)
            if other != name:
                raise InputError(
                    f"hloc's files spell {other!r:.80} and {name!r:.80} alike, with - for /: rename one of these images"
                )

    def add(self, pair: Pair, matches: Matches) -> None:
        """Write the matches of two images; within a second a kill no longer loses them."""
        if not self._is_open:
            raise FileError(f"the writer of {self.path} is not open; use it in a with block")
        facts = self.images.facts(pair[0]), self.images.facts(pair[1])
        record = PairRecord(pair, (facts[0].count, facts[1].count), (facts[0].checksum, facts[1].checksum), matches)
        record.check_rows()
        self.expect(pair)
        self._waiting.append(record)
        if len(self._waiting) >= COMMIT_PAIRS or time.monotonic() - self._committed >= COMMIT_SECONDS:
            self._commit()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._files:
            self._is_open = False
            try:
                self._commit()
            except SfumatoError:
                if kind is None:
                    raise
                log.warning("%s: the last %d pairs cannot be kept", self._part, len(self._waiting))
            if self._state is None:
                return
            ((count,),) = self._state.rows("SELECT count(*) FROM pair")
            if kind is None and count:
                self._finish(count)
            if kind is None or not count:
                self._state.close()
                sqlite.remove(self._part)
            else:
                log.info("%s keeps the %d pairs matched so far", self._part, count)

    # --- the pairs of an unfinished run

    def _open_state(self) -> sqlite.Database:
        if self._part.is_symlink():
            raise FileError(f"{self._part} is a link; move it away")
        return sqlite.open_writer(self._part, UNFINISHED)

    def _check_state(self, state: sqlite.Database) -> None:
        """Begin anew if asked to; else refuse a run with other parameters, and go on with what it replaces."""
        purposes = state.rows("SELECT text FROM purpose")
        if self._replaces or not purposes:
            with state.transaction():
                for table in ("purpose", "pair"):
                    state.rows(f"DELETE FROM {table}")
                state.rows("INSERT INTO purpose VALUES (?)", (self._purpose(),))
            return
        try:
            purpose = json.loads(purposes[0][0])
            self._check_parameters(self._part, purpose["parameters"])
            self._replaces = purpose["overwrite"] is True
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as cause:
            raise FileError(f"{self._part} is damaged; {UNFINISHED.advice}") from cause

    def _purpose(self) -> str:
        return json.dumps({"parameters": self._parameters, "overwrite": self._replaces}, sort_keys=True)

    def _commit(self) -> None:
        """Write the waiting pairs to the file beside the output; make it if it is not there."""
        if not self._waiting:
            return
        if self._state is None:
            self._state = self._files.enter_context(self._open_state())
            self._check_state(self._state)
        with self._state.transaction():
            self._state.many(
                "INSERT OR IGNORE INTO pair VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [record.row() for record in self._waiting],
            )
        for record in self._waiting:
            self._table |= dict(zip(record.names, zip(record.counts, record.checksums, strict=True), strict=True))
        self._waiting, self._committed = [], time.monotonic()

    def _records(self, state: sqlite.Database) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the number and the row of each pair, in the order of the names."""
        numbers = state.rows("SELECT rowid FROM pair ORDER BY min(name0, name1), max(name0, name1)")
        for (number,) in numbers:
            yield from ((number, row) for row in state.rows("SELECT * FROM pair WHERE rowid = ?", (number,)))

    def _salvage(self) -> None:
        """Take over the pairs of an interrupted run; those that are damaged or impossible are matched again."""
        done, wrong, pairs = PairSet(self._base_pairs), list[int](), list[Pair]()
        for number, row in self._records(self._state) if self._state else ():
            try:
                record = PairRecord.of(row)
                self._refuse_other(record)
                self._refuse_impossible(record)
                self.expect(record.names)
            except InputError:
                wrong.append(number)
                continue
            if record.names in done:  # killed after the match file was written
                wrong.append(number)
                continue
            pairs.append(record.names)
            self._table |= dict(zip(record.names, zip(record.counts, record.checksums, strict=True), strict=True))
        if wrong and self._state:
            log.warning("%s: %d pairs in it are not used, and matched again if need be", self._part, len(wrong))
            with self._state.transaction():
                self._state.many("DELETE FROM pair WHERE rowid = ?", [(number,) for number in wrong])
        self.done = PairSet([*self._base_pairs, *pairs])

    def _refuse_other(self, record: PairRecord) -> None:
        for name, checksum in zip(record.names, record.checksums, strict=True):
            if name not in self.images.archive or self._is_other(name, checksum):
                raise FileError(
                    f"{self._part} was started with other features: image {name!r:.80} is not the one in "
                    f"{self.images.archive.path}; delete it, or --overwrite to start over"
                )

    def _refuse_impossible(self, record: PairRecord) -> None:
        """Refuse rows that the images do not have, and images that cannot be read any more."""
        record.check_rows()
        for name, count in zip(record.names, record.counts, strict=True):
            try:
                count_now = self.images.facts(name).count
            except ArchiveError as cause:
                raise InputError(f"image {name!r:.80} cannot be read") from cause
            if count != count_now:
                raise InputError(f"image {name!r:.80} has another number of features")

    # --- the match file that is there

    def _check_base(self, base: MatchFile) -> None:
        if base.provenance is None:
            raise FileError(f"{self.path} was not written by Sfumato: choose another file, or --overwrite")
        self._check_parameters(self.path, base.provenance.parameters)
        other = [name for name, (_, checksum) in base.provenance.images.items() if self._is_other(name, checksum)]
        if other:
            raise FileError(
                f"{self.path} holds matches of other features: {len(other)} of its images, such as {other[0]!r:.80}, "
                f"are not the ones in {self.images.archive.path}; choose another file, or --overwrite to start over"
            )
        self.expect(base.provenance.images)
        damaged = 0
        for pair in base.listed_pairs():
            try:
                base.arrays(pair)
                self._base_pairs.append(pair)
            except InputError:
                damaged += 1
        if damaged:
            log.warning("%s is damaged in places: %d of its pairs count as not matched yet", self.path, damaged)

    def _check_parameters(self, path: Path, parameters: Any) -> None:
        if dict(parameters) != self._parameters:
            sides = parameters, self._parameters
            keys = [key for key in {**self._parameters, **parameters} if _differ(key, *sides)]
            then, now = (
                ", ".join(f"{key:.80} {side[key]!s:.80}" if key in side else f"no {key:.80}" for key in keys)
                for side in sides
            )
            raise FileError(
                f"{path} was started with {then}, not {now}: choose another file, or --overwrite to start over"
            )

    def _is_other(self, name: str, checksum: str) -> bool:
        if name not in self.images.archive:
            return False  # it was taken out of the archive; its matches are as good as before
        try:
            return self.images.facts(name).checksum != checksum
        except SfumatoError:
            return False  # damaged: nothing new will be matched with it

    # --- the new match file

    def _finish(self, count: int) -> None:
        try:
            with new_hdf5(self._target) as file:
                write_pairs(file, self._provenance(), self._pairs())
                if self._base is None:
                    refuse_irreplaceable(self.path, self._target)  # it may have come meanwhile
        except FileError as cause:
            words = "pairs are" if count != 1 else "pair is"
            raise FileError(f"{cause}; {count} {words} kept in {self._part}: run again") from cause

    def _pairs(self) -> Iterator[tuple[Pair, Arrays]]:
        """Yield all pairs in the order of their names, so that the file does not tell who was first."""
        return heapq.merge(self._old_pairs(), self._new_pairs(), key=lambda one: sorted(one[0]))

    def _old_pairs(self) -> Iterator[tuple[Pair, Arrays]]:
        for pair in sorted(self._base_pairs, key=sorted):
            assert self._base is not None
            try:
                yield pair, self._base.arrays(pair)
            except InputError as cause:
                raise FileError(f"{self.path} was damaged while it was in use: {cause}; run again") from cause

    def _new_pairs(self) -> Iterator[tuple[Pair, Arrays]]:
        assert self._state is not None
        for _, row in self._records(self._state):
            try:
                record = PairRecord.of(row)
            except InputError as cause:
                raise FileError(f"{self._part} was damaged while it was in use: {cause}; run again") from cause
            bits = bits_of(Recipe.of(self.images.facts(record.names[0]).recipe))
            yield record.names, pair_arrays(record.matches, record.counts[0], bits)

    def _provenance(self) -> Provenance:
        before = self._base.provenance if self._base is not None else None
        images, recipes = (before.images, before.recipes) if before else ({}, ())
        new = {self.images.facts(name).recipe for name in self._table}
        return Provenance(self._parameters, {**images, **self._table}, tuple({*recipes, *new}))


def _differ(key: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return (key in first) != (key in second) or first.get(key) != second.get(key)


def _with_ratio(params: MatchParams, archive: Archive) -> MatchParams:
    """Return the params with the ratio that an archive's recipe has by default: the file says what was done."""
    if params.ratio is not None:
        return params
    for name in archive:
        with suppress(ArchiveError):  # a damaged image is reported when it is matched
            return replace(params, ratio=default_ratio(archive.header(name).recipe))
    return replace(params, ratio=1.0)
