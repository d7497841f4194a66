# SPDX-License-Identifier: Apache-2.0
"""Writer of match files that loses nothing finished: to a journal first, to HDF5 at the end and at once.

Never imports the clear types; what is written are rows and distances.
"""

import json
import logging
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sfumato.errors import ArchiveError, FileError, InputError, SfumatoError
from sfumato.files.atomic import Sink, explain_errors, replace_file
from sfumato.matching.archive_images import ArchiveImages
from sfumato.matching.journal import Journal, PairRecord, parts_of, refuse_inputs, refuse_irreplaceable
from sfumato.matching.match_file import (
    DISTANCES,
    MATCHES,
    SCORES,
    MatchFile,
    Provenance,
    group_name,
    parameters_of,
    provenance_texts,
    scores_of,
)
from sfumato.matching.mutual import MatchParams, default_ratio
from sfumato.matching.pairs import Pair, PairSet
from sfumato.store.archive import Archive
from sfumato.types.scene import Matches

OVERHEAD = 2048
"""Bytes of HDF5 around the arrays of a pair, at most."""
MARGIN = 2**20

log = logging.getLogger(__name__)


class MatchWriter:
    """Writes matches of pairs of images of an archive, inside a ``with`` block.

    Pairs go to ``<path>.part``; leaving the block writes ``path`` at once, with the pairs it held before. If the block
    ends with an error or Ctrl-C, or the process is killed, ``path`` is untouched and the next writer goes on. ``done``
    holds the pairs that are there already, in either order. One writer at a time. A file that was made with other
    parameters or from other images is refused unless ``overwrite``, which replaces match files and nothing else. The
    archive, and the files of ``inputs`` by what they are, are never written to.
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
        self.done = PairSet()
        self._target = Path(os.path.realpath(path))
        self._part, self._new = parts_of(self._target)
        self.images, self.params = ArchiveImages(archive), _with_ratio(params or MatchParams(), archive)
        self._parameters = parameters_of(self.params)
        self._overwrite = overwrite
        self._journal: Journal | None = None
        self._base: MatchFile | None = None
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {}
        self._table: dict[str, tuple[int, str]] = {}
        self._recipes: set[str] = set()
        self._spelling: dict[str, str] = {}
        self._rows, self._addresses, self._size = array("i"), array("q"), 0

    def __enter__(self) -> "MatchWriter":
        if not self._target.parent.is_dir():
            raise FileError(f"cannot write {self.path}: there is no folder {self._target.parent}; create it")
        if self._target.exists() and not self._target.is_file():
            raise FileError(f"cannot write {self.path}: it exists and is not a file; choose another path")
        if self._overwrite:
            refuse_irreplaceable(self.path, self._target)
        fresh = not os.path.lexists(self._part)
        self._journal, self.done = Journal(self._part), PairSet()
        try:
            replaces = self._begin(self._journal)
            if replaces:
                refuse_irreplaceable(self.path, self._target)
            elif self._target.exists():
                self._base = MatchFile(self._target)
                self._check_base(self._base)
                self.done = self._intact_pairs(self._base)
            self._salvage(self._journal)
            self.done = PairSet(self._known_pairs())
        except BaseException:
            if fresh:
                self._journal.remove()
            self._close()
            raise
        return self

    def expect(self, names: Iterable[str]) -> None:
        """Refuse, before any work is done, image names that one file cannot hold."""
        for name in names:
            self._spell(name)

    def add(self, pair: Pair, matches: Matches) -> None:
        """Write the matches of two images. When this returns, a kill no longer loses them."""
        journal = self._open_journal()
        facts = self.images.facts(pair[0]), self.images.facts(pair[1])
        entry = PairRecord(pair, (facts[0].count, facts[1].count), (facts[0].checksum, facts[1].checksum), matches)
        entry.check_rows()
        self.expect(pair)
        self._remember(journal.append(entry), entry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        journal = self._open_journal()
        try:
            if kind is None and self._addresses:
                self._finish(journal)
            if kind is None or not self._addresses:
                journal.remove()
            else:
                with suppress(OSError):  # the error that ends the block is the one to tell
                    journal.sync()
                log.info("%s keeps the %d pairs matched so far", journal.path, len(self._addresses))
        finally:
            self._close()

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
        for name in base.provenance.images:
            self._spell(name)

    def _check_parameters(self, path: Path, parameters: Any) -> None:
        if parameters.get("ratio", 0) is None:  # files of earlier versions, without a ratio test
            parameters = {**parameters, "ratio": 1.0}
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

    def _begin(self, journal: Journal) -> bool:
        """Begin a journal, or check the one of an interrupted run; tell whether it replaces what is at the path."""
        if not journal.purpose or self._overwrite:
            journal.begin(json.dumps({"parameters": self._parameters, "overwrite": self._overwrite}, sort_keys=True))
        try:
            purpose = json.loads(journal.purpose)
            self._check_parameters(journal.path, purpose["parameters"])
            return purpose["overwrite"] is True
        except (TypeError, ValueError, AttributeError, LookupError, RecursionError) as cause:
            raise FileError(f"{journal.path} is damaged: delete it, or --overwrite to start over") from cause

    def _salvage(self, journal: Journal) -> None:
        """Take over the pairs of an interrupted run; what the images cannot have is matched again."""
        impossible: list[Pair] = []
        for address, entry in journal.salvage():
            for name, checksum in zip(entry.names, entry.checksums, strict=True):
                if name not in self.images.archive or self._is_other(name, checksum):
                    raise FileError(
                        f"{journal.path} was started with other features: image {name!r:.80} is not the one in "
                        f"{self.images.archive.path}; delete it, or --overwrite to start over"
                    )
            try:
                self._refuse_impossible(entry)
                self.expect(entry.names)
            except InputError:
                impossible.append(entry.names)
                continue
            if entry.names not in self.done:
                self._remember(address, entry)
        if impossible:
            _warn("%s holds matches that the images cannot have", journal.path, impossible)

    def _refuse_impossible(self, entry: PairRecord) -> None:
        """Refuse an entry with rows that its images do not have, or with other numbers of them."""
        entry.check_rows()
        most = self.images.archive.places[0].size // 16  # each has a keypoint of this many bytes
        for name, count in zip(entry.names, entry.counts, strict=True):
            try:
                possible = count == self.images.facts(name).count
            except SfumatoError:  # damaged since it was matched
                possible = count <= most
            if not possible:
                raise InputError(f"image {name!r:.80} has another number of features")

    def _intact_pairs(self, base: MatchFile) -> PairSet:
        intact = PairSet(base.intact_pairs())
        damaged = [pair for pair in base if pair not in intact]
        if damaged:
            _warn("%s is damaged in places", self.path, damaged)
        return intact

    def _known_pairs(self) -> Iterator[Pair]:
        if self._base is not None:
            yield from (pair for pair in self._base if pair in self.done)
        names = list(self._numbers)
        for i, j in zip(self._rows[::2], self._rows[1::2], strict=True):
            yield names[i], names[j]

    def _spell(self, name: str) -> None:
        other = self._spelling.setdefault(group_name(name), name)
        if other != name:
            raise InputError(
                f"hloc's files spell {other!r:.80} and {name!r:.80} alike, with - for /: rename one of these images"
            )

    def _remember(self, address: int, entry: PairRecord) -> None:
        for name, count, checksum in zip(entry.names, entry.counts, entry.checksums, strict=True):
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                self._table[name] = count, checksum
                with suppress(SfumatoError):  # damaged since it was matched
                    self._recipes.add(self.images.facts(name).recipe)
            self._rows.append(self._numbers[name])
        self._addresses.append(address)
        self._size += OVERHEAD + 6 * entry.counts[0] + 4 * len(entry.matches)

    def _finish(self, journal: Journal) -> None:
        new, count = self._new, len(self._addresses)
        advice = f"{count} {'pairs are' if count != 1 else 'pair is'} kept in {journal.path}; free space and run again"
        try:
            with explain_errors(f"cannot write {self.path}", advice):
                journal.sync()
                self._need_space()
                new.unlink(missing_ok=True)  # left by a kill, or a link to somewhere else
                if self._base is not None:
                    shutil.copyfile(self._target, new)
                self._write_groups(new, journal)
                if self._base is None:
                    refuse_irreplaceable(self.path, self._target)
                replace_file(new, self._target)
        except BaseException:
            with suppress(FileNotFoundError):
                new.unlink()
            raise

    def _need_space(self) -> None:
        size = self._size + (self._target.stat().st_size if self._base is not None else 0)
        free = shutil.disk_usage(self._target.parent).free
        if free < size + MARGIN:
            raise InputError(f"the disk is full: up to {size + MARGIN} bytes are needed and {free} are free")

    def _write_groups(self, path: Path, journal: Journal) -> None:
        """Add the pairs of the journal in the order of their names, so that the file does not tell who was first."""
        import h5py

        names = list(self._numbers)
        ranks = np.empty(len(names), np.int64)
        ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        rows = ranks[np.asarray(self._rows, np.int64).reshape(-1, 2)]
        low, high = rows.min(axis=1), rows.max(axis=1)
        order = np.lexsort((rows[:, 0] != low, high, low))
        repeated = np.append(False, (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0))
        adds = self._base is not None
        with Sink(path, keep=adds) as sink, h5py.File(sink, "r+" if adds else "w", libver="latest") as file:
            for key, text in provenance_texts(self._provenance()).items():
                file.attrs[key] = np.bytes_(text.encode("ascii"))
            for place in order[~repeated]:
                _write_pair(file, journal.read(self._addresses[place]))
                if sink.error:
                    break

    def _provenance(self) -> Provenance:
        before = (
            self._base.provenance if self._base is not None and self._base.provenance else Provenance(self._parameters)
        )
        recipes = self._recipes | set(before.recipes)
        return Provenance(self._parameters, {**before.images, **self._table}, tuple(recipes))

    def _open_journal(self) -> Journal:
        if self._journal is None:
            raise FileError(f"the writer of {self.path} is not open; use it in a with block")
        return self._journal

    def _close(self) -> None:
        if self._base is not None:
            self._base.close()
        if self._journal is not None:
            self._journal.close()
        self._journal = self._base = None
        self._clear()


def _write_pair(file: Any, entry: PairRecord) -> None:
    order = np.argsort(entry.matches.indices[:, 0], kind="stable")
    first, second = entry.matches.indices[order].T
    distances = entry.matches.distances[order]
    rows = np.full(entry.counts[0], -1, np.int32)
    rows[first] = second
    scores = np.zeros(entry.counts[0], np.float16)
    scores[first] = scores_of(distances)
    outer, inner = map(group_name, entry.names)
    for place in ((outer, inner), (inner, outer)):  # damaged, or it would not have been matched again
        if place[0] in file and place[1] in file[place[0]]:
            del file[place[0]][place[1]]
    group = file.require_group(outer).create_group(inner)
    group.create_dataset(MATCHES, data=rows)
    group.create_dataset(SCORES, data=scores)
    group.create_dataset(DISTANCES, data=distances)


def _differ(key: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return (key in first) != (key in second) or first.get(key) != second.get(key)


def _warn(what: str, path: Path, pairs: list[Pair]) -> None:
    first, second = pairs[0]
    more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    log.warning(what + ": %r %r%s; they count as not matched yet", path, first[:80], second[:80], more)


def _with_ratio(params: MatchParams, archive: Archive) -> MatchParams:
    """Return the params with the ratio that an archive's recipe has by default: the file says what was done."""
    if params.ratio is not None:
        return params
    for name in archive:
        with suppress(ArchiveError):  # a damaged image is reported when it is matched
            return replace(params, ratio=default_ratio(archive.header(name).recipe))
    return replace(params, ratio=1.0)
