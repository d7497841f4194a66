# SPDX-License-Identifier: Apache-2.0
"""What an index holds: subspaces in segments of one dimension m each, their ids, and which were removed.

A row is a number an entry keeps for life: 0 to ``total`` - 1 in the order of adding. Rows of removed entries stay, and
are passed over. Subspaces are held as given, not copied, or mapped from a file. Knows nothing about how they are found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError
from sfumato.search.metrics import pair_distances
from sfumato.search.queries import Block, Given, Source
from sfumato.subspace.prepared import read_only
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LARGEST_ID = 2**63 - 1
LARGEST = 2**31 - 1
"""Rows are kept in 32 bits by some kinds; larger databases go into shards."""

AT_ONCE = 65_536
SKEWED = 1e-3
"""Products of the rows of a basis may be so far from those of orthonormal ones; float32 leaves far less."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Segment:
    """Rows ``start`` and following: ``origin`` (N, n), ``basis`` (N, m, n) float32 in canonical form, ``ids`` (N,)."""

    start: int
    origin: Floats
    basis: Floats
    ids: Ints

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    @property
    def stop(self) -> int:
        """The first row after these."""
        return self.start + len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class Entries:
    """The entries of an index; ``dim`` is n, ``segments`` in the order of their rows, ``alive`` (total,) bool."""

    def __init__(self, dim: int, source: Source | None = None) -> None:
        self.dim, self.source = dim, source
        self.segments: list[Segment] = []
        self.alive: NDArray[np.bool_] = np.zeros(0, bool)
        self.next_id = 0
        self.names: list[str] = []
        """Images that entries are of, where they are: see ``sfumato.search.archives``."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.alive))

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(segment)} of dimension {segment.dim}" for segment in self.segments)
        return f"Entries({len(self)} in R^{self.dim}: {parts or 'none'})"

    @property
    def total(self) -> int:
        """How many rows there are, removed ones among them."""
        return len(self.alive)

    @property
    def nbytes(self) -> int:
        """How many bytes the subspaces themselves take."""
        return sum(segment.origin.nbytes + segment.basis.nbytes for segment in self.segments)

    def add(self, given: Given, ids: ArrayLike | None = None) -> tuple[Ints, range]:
        """Append subspaces; return their ids in the order given, and their rows. Nothing is changed by an error."""
        if given.dim != self.dim:
            raise InputError(f"the index holds subspaces of R^{self.dim}, these are of R^{given.dim}")
        if self.total + given.count > LARGEST:
            raise InputError(f"an index holds at most {LARGEST} entries: put more into shards")
        if self.source is not None:
            self.source.check(given.source)
        new = self._new_ids(given.count, ids)
        first = self.total
        for block in given.blocks:
            self._append(block, new[block.places])
        self.alive = np.concatenate([self.alive, np.ones(given.count, bool)])
        self.source = self.source or given.source
        self.next_id = max(self.next_id, int(new.max(initial=-1)) + 1)
        return new, range(first, self.total)

    def state(self) -> tuple[Any, ...]:
        """Return what ``go_back`` needs to undo what is added from now on."""
        return list(self.segments), self.alive, self.next_id, self.source

    def go_back(self, state: tuple[Any, ...]) -> None:
        """Undo what was added since ``state``."""
        self.segments, self.alive, self.next_id, self.source = state

    def _new_ids(self, count: int, ids: ArrayLike | None) -> Ints:
        if ids is None:
            if self.next_id + count > LARGEST_ID:
                raise InputError("ids: there are no numbers left after the largest id; give ids of your own")
            return np.arange(self.next_id, self.next_id + count, dtype=np.int64)
        new = frozen_array(ids, "ids", (count,), np.int64)
        if new.size and not 0 <= new.min() <= new.max() < LARGEST_ID:
            raise InputError(f"ids: expected numbers from 0 to {LARGEST_ID - 1}")
        twice = count - len(np.unique(new))
        if twice:
            raise InputError(f"ids: {twice} are given more than once; every entry needs an id of its own")
        known = sum(int(np.isin(part.ids[self.alive[part.start : part.stop]], new).sum()) for part in self.segments)
        if known:
            raise InputError(f"ids: {known} of {count} are in the index already; remove those entries first")
        return new

    def _append(self, block: Block, ids: Ints) -> None:
        """Append one block; small neighbours of the same dimension are merged, so that segments stay few."""
        if len(block) == 0:
            return
        start = self.segments[-1].stop if self.segments else 0
        new = Segment(start, read_only(block.origin), read_only(block.basis), ids)
        while self.segments and self.segments[-1].dim == new.dim and len(self.segments[-1]) <= 2 * len(new):
            last = self.segments.pop()
            new = Segment(
                last.start,
                read_only(np.concatenate([last.origin, new.origin])),
                read_only(np.concatenate([last.basis, new.basis])),
                np.concatenate([last.ids, new.ids]),
            )
        self.segments.append(new)

    def remove(self, ids: ArrayLike) -> Ints:
        """Take out entries by their ids; return their rows. Ids that are not there are passed over."""
        wanted = np.atleast_1d(np.asarray(ids))
        if wanted.size and wanted.dtype.kind not in "iu":
            raise InputError(f"ids: expected integers, got dtype {wanted.dtype}")
        found = [part.start + np.flatnonzero(np.isin(part.ids, wanted)) for part in self.segments]
        rows = np.concatenate([np.zeros(0, np.int64), *found])
        rows = np.asarray(rows[self.alive[rows]])
        self.alive = self.alive.copy()  # a search under way goes on with what it began with
        self.alive[rows] = False
        return rows

    def alive_ids(self) -> Ints:
        """Return the ids of the entries that were not removed, in the order of their rows."""
        return np.concatenate([np.zeros(0, np.int64), *(segment.ids for segment in self.segments)])[self.alive]

    def ids_of(self, rows: Ints) -> Ints:
        """Return the ids of rows; -1 for -1."""
        result = np.full(rows.shape, -1, np.int64)
        for segment in self.segments:
            mine = (rows >= segment.start) & (rows < segment.stop)
            result[mine] = segment.ids[rows[mine] - segment.start]
        return result

    def distances(self, metric: str, block: Block, i: Ints, rows: Ints) -> NDArray[np.float64]:
        """Return the exact distances of the queries ``i`` of a block to rows, pair by pair, in float64."""
        if len(self.segments) == 1:
            return self._of_segment(self.segments[0], metric, block, i, rows)
        result = np.empty(len(i))
        for segment in self.segments:
            mine = np.flatnonzero((rows >= segment.start) & (rows < segment.stop))
            if mine.size:
                result[mine] = self._of_segment(segment, metric, block, i[mine], rows[mine])
        return result

    def _of_segment(self, segment: Segment, metric: str, block: Block, i: Ints, rows: Ints) -> NDArray[np.float64]:
        sides = (block.origin, block.basis), (segment.origin, segment.basis)
        return pair_distances(metric, *sides, i, np.ascontiguousarray(rows - segment.start))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as named arrays, for a file."""
        named: dict[str, NDArray[Any]] = {"alive": self.alive.view(np.uint8)}
        for number, segment in enumerate(self.segments):
            named |= {
                f"origin {number}": segment.origin,
                f"basis {number}": segment.basis,
                f"ids {number}": segment.ids,
            }
        return named

    def settings(self) -> dict[str, Any]:
        """Return what is no array, for the header of a file."""
        source = None if self.source is None else [self.source.extractor.to_json(), self.source.space]
        return {"dim": self.dim, "segments": len(self.segments), "next_id": self.next_id, "source": source,
                "names": self.names}  # fmt: skip

    @staticmethod
    def restore(arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> "Entries":
        """Return entries from a file; FileError where the parts do not fit each other."""
        source, dim = settings["source"], int(settings["dim"])
        entries = Entries(dim, None if source is None else Source(Extractor.from_json(source[0]), str(source[1])))
        for number in range(int(settings["segments"])):
            origin, basis, ids = (arrays[f"{part} {number}"] for part in ("origin", "basis", "ids"))
            count, m = len(ids), basis.shape[1] if basis.ndim == 3 else -1
            kinds = [array.dtype.name for array in (origin, basis, ids)] == ["float32", "float32", "int64"]
            if not kinds or origin.shape != (count, dim) or basis.shape != (count, m, dim) or not 0 <= m <= dim:
                raise FileError(f"segment {number} has arrays of other shapes than it must")
            if ids.min(initial=0) < 0 or ids.max(initial=0) >= LARGEST_ID:
                raise FileError(f"segment {number} has ids that are none")
            start = entries.segments[-1].stop if entries.segments else 0
            entries.segments.append(Segment(start, read_only(origin), read_only(basis), ids))
        alive, total = arrays["alive"], entries.segments[-1].stop if entries.segments else 0
        if alive.shape != (total,) or alive.dtype != np.uint8 or total > LARGEST or alive.max(initial=0) > 1:
            raise FileError("the list of removed entries does not fit the entries")
        names = settings.get("names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FileError("the names of images are no names")
        entries.names = names
        entries.alive, entries.next_id = alive.view(bool), int(settings["next_id"])
        largest = max((int(segment.ids.max(initial=-1)) for segment in entries.segments), default=-1)
        if not largest < entries.next_id <= LARGEST_ID:
            raise FileError("the next id is not beyond those that are there")
        return entries

    def refuse_nonsense(self) -> None:
        """Raise FileError unless all numbers are finite, bases orthonormal and ids different: reads everything once."""
        for number, segment in enumerate(self.segments):
            for start in range(0, len(segment), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                origin, basis = segment.origin[part], segment.basis[part]
                products = np.matmul(basis, basis.transpose(0, 2, 1))
                if not (np.isfinite(origin).all() and np.abs(products - np.eye(segment.dim)).max(initial=0) < SKEWED):
                    raise FileError(f"segment {number} holds numbers that are no subspaces")
        ids = self.alive_ids()
        if len(np.unique(ids)) != len(ids):
            raise FileError("some ids stand for several entries")
