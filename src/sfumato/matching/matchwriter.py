# SPDX-License-Identifier: Apache-2.0
"""Write a match file so that nothing finished is lost: to a journal first, to HDF5 at the end and at once.

Never imports the clear types; what is written are rows and distances.
"""

import json
import logging
import os
import shutil
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.matching.images import ArchiveImages
from sfumato.matching.journal import Entry, Journal, explained
from sfumato.matching.match import MatchParams
from sfumato.matching.matchfile import (
    DISTANCES,
    MATCHES,
    SCORES,
    MatchFile,
    Purpose,
    group_name,
    parameters_of,
    purpose_texts,
    scores_of,
)
from sfumato.matching.pairs import Pair, PairSet
from sfumato.matching.sink import Sink
from sfumato.store import Archive
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
    parameters or from other images is refused unless ``overwrite``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        archive: Archive,
        params: MatchParams | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.done = PairSet()
        self._target = Path(os.path.realpath(path))
        self._images = ArchiveImages(archive)
        self._parameters = parameters_of(params or MatchParams())
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
            raise FileError(f"can not write {self.path}: there is no folder {self._target.parent}; create it")
        if self._target.exists() and not self._target.is_file():
            raise FileError(f"can not write {self.path}: it exists and is not a file; choose another path")
        fresh = not os.path.lexists(self._part)
        self._journal = Journal(self._part)
        try:
            replaces = self._begin(self._journal)
            if self._target.exists() and not replaces:
                self._base = MatchFile(self._target)
                self._check_base(self._base)
            self._salvage(self._journal)
            self.done = PairSet(self._known_pairs())
        except BaseException:
            if fresh:
                self._journal.remove()
            self._close()
            raise
        return self

    @property
    def _part(self) -> Path:
        return self._target.with_name(self._target.name + ".part")

    def expect(self, names: Iterable[str]) -> None:
        """Refuse, before any work is done, image names that one file can not hold."""
        for name in names:
            self._spell(name)

    def add(self, pair: Pair, matches: Matches) -> None:
        """Write the matches of two images. When this returns, a kill no longer loses them."""
        journal = self._opened()
        facts = self._images.facts(pair[0]), self._images.facts(pair[1])
        counts, rows = (facts[0].count, facts[1].count), matches.indices
        if len(matches) and (rows.max(axis=0) >= counts).any():
            raise InputError(f"matches of {pair[0]!r:.80} and {pair[1]!r:.80} name rows that the images do not have")
        if len(np.unique(rows[:, 0])) != len(rows):
            raise InputError(f"matches of {pair[0]!r:.80} and {pair[1]!r:.80} name a row of the first image twice")
        self.expect(pair)
        entry = Entry(pair, counts, (facts[0].checksum, facts[1].checksum), matches)
        self._remember(journal.append(entry), entry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        journal = self._opened()
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
        if base.purpose is None:
            raise FileError(f"{self.path} was not written by Sfumato: choose another file, or --overwrite")
        self._check_parameters(self.path, base.purpose.parameters)
        other = [name for name, (_, checksum) in base.purpose.images.items() if self._is_other(name, checksum)]
        if other:
            raise FileError(
                f"{self.path} holds matches of other features: {len(other)} of its images, such as {other[0]!r:.80}, "
                f"are not the ones in {self._images.archive.path}; choose another file, or --overwrite to start anew"
            )
        for name in base.purpose.images:
            self._spell(name)

    def _check_parameters(self, path: Path, found: Any) -> None:
        if dict(found) != self._parameters:
            keys = [key for key in self._parameters if found.get(key) != self._parameters[key]]
            then, now = (", ".join(f"{key} {side.get(key)}" for key in keys) for side in (found, self._parameters))
            raise FileError(
                f"{path} was begun with {then}, not {now}: choose another file, or --overwrite to start anew"
            )

    def _is_other(self, name: str, checksum: str) -> bool:
        if name not in self._images.archive:
            return False  # it was taken out of the archive; its matches are as good as before
        try:
            return self._images.facts(name).checksum != checksum
        except SfumatoError:
            return False  # damaged: nothing new will be matched with it

    def _begin(self, journal: Journal) -> bool:
        """Begin a journal, or check the one of an interrupted run; tell whether it replaces what is at the path."""
        if not journal.purpose or self._overwrite:
            journal.begin(json.dumps({"parameters": self._parameters, "overwrite": self._overwrite}, sort_keys=True))
        try:
            found = json.loads(journal.purpose)
            self._check_parameters(journal.path, found["parameters"])
            return bool(found["overwrite"])
        except (TypeError, ValueError, AttributeError, LookupError) as cause:
            raise FileError(f"{journal.path} is damaged: delete it, or --overwrite to start anew") from cause

    def _salvage(self, journal: Journal) -> None:
        """Take over the pairs of an interrupted run."""
        for address, entry in journal.salvage():
            for name, checksum in zip(entry.names, entry.checksums, strict=True):
                if name not in self._images.archive or self._is_other(name, checksum):
                    raise FileError(
                        f"{journal.path} was begun with other features: image {name!r:.80} is not the one in "
                        f"{self._images.archive.path}; delete it, or --overwrite to start anew"
                    )
            if self._base is None or entry.names not in self._base:
                self.expect(entry.names)
                self._remember(address, entry)

    def _known_pairs(self) -> Iterator[Pair]:
        if self._base is not None:
            yield from self._base
        names = list(self._numbers)
        for i, j in zip(self._rows[::2], self._rows[1::2], strict=True):
            yield names[i], names[j]

    def _spell(self, name: str) -> None:
        other = self._spelling.setdefault(group_name(name), name)
        if other != name:
            raise InputError(
                f"hloc's files spell {other!r:.80} and {name!r:.80} alike, with - for /: rename one of these images"
            )

    def _remember(self, address: int, entry: Entry) -> None:
        for name, count, checksum in zip(entry.names, entry.counts, entry.checksums, strict=True):
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                self._table[name] = count, checksum
                with suppress(SfumatoError):  # damaged since it was matched
                    self._recipes.add(self._images.facts(name).recipe)
            self._rows.append(self._numbers[name])
        self._addresses.append(address)
        self._size += OVERHEAD + 6 * entry.counts[0] + 4 * len(entry.matches)

    def _finish(self, journal: Journal) -> None:
        new = self._target.with_name(self._target.name + ".new.part")
        advice = f"{len(self._addresses)} pairs are kept in {journal.path}; free space and run again"
        try:
            with explained(f"can not write {self.path}", advice):
                journal.sync()
                self._need_space()
                if self._base is not None:
                    shutil.copyfile(self._target, new)
                self._write_groups(new, journal)
                os.replace(new, self._target)
                with suppress(OSError):  # some file systems can not synchronise a folder
                    _sync(self._target.parent)
        except BaseException:
            with suppress(FileNotFoundError):
                new.unlink()
            raise

    def _need_space(self) -> None:
        size = self._size + (self._target.stat().st_size if self._base is not None else 0)
        free = shutil.disk_usage(self._target.parent).free
        if free < size + MARGIN:
            raise InputError(f"the disk is full: up to {size} bytes are needed and {free} are free")

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
            for key, text in purpose_texts(self._purpose()).items():
                file.attrs[key] = np.bytes_(text.encode("ascii"))
            for place in order[~repeated]:
                _write_pair(file, journal.read(self._addresses[place]))
                if sink.error:
                    break

    def _purpose(self) -> Purpose:
        before = self._base.purpose if self._base is not None and self._base.purpose else Purpose(self._parameters)
        recipes = self._recipes | set(before.recipes)
        return Purpose(self._parameters, {**before.images, **self._table}, tuple(recipes))

    def _opened(self) -> Journal:
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


def _write_pair(file: Any, entry: Entry) -> None:
    order = np.argsort(entry.matches.indices[:, 0], kind="stable")
    first, second = entry.matches.indices[order].T
    distances = entry.matches.distances[order]
    rows = np.full(entry.counts[0], -1, np.int32)
    rows[first] = second
    scores = np.zeros(entry.counts[0], np.float16)
    scores[first] = scores_of(distances)
    outer, inner = map(group_name, entry.names)
    group = file.require_group(outer).create_group(inner)
    group.create_dataset(MATCHES, data=rows)
    group.create_dataset(SCORES, data=scores)
    group.create_dataset(DISTANCES, data=distances)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
