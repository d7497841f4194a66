# SPDX-License-Identifier: Apache-2.0
"""Index of subspaces or bits, as every kind shares it: ids, exact re-ranking, counting, adding, removing and saving.

A kind supplies candidates, and what finding them costs: whatever it proposes is compared exactly, so that distances are
always true ones. What it fails to propose is not found: an answer may be incomplete, or empty. Where comparing with
every entry costs less, as in large batches, that is done instead.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.matching.mutual import MOST_ANSWERS
from sfumato.search.entries import Block, Entries, SubspaceBlocks, check_effort, check_k, read_blocks

if TYPE_CHECKING:
    from sfumato.search.exact import ExactIndex

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SearchStats:
    """Counts of a search: entries ``looked_at`` by bound, key or code, ``evaluated`` exactly; ``empty`` answers."""

    queries: int = 0
    looked_at: int = 0
    evaluated: int = 0
    empty: int = 0

    def __add__(self, other: "SearchStats") -> "SearchStats":
        return SearchStats(
            self.queries + other.queries,
            self.looked_at + other.looked_at,
            self.evaluated + other.evaluated,
            self.empty + other.empty,
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Candidates:
    """Pairs worth comparing: query ``i`` (P,) of a block with ``rows`` (P,); ``looked_at`` entries to find them.

    Pairs may come in any order and more than once, and may name removed entries.
    """

    i: Ints
    rows: Ints
    looked_at: int


class Index(ABC):
    """Subspaces of R^n, searched for the nearest of points or subspaces of any dimension; or bits, searched for bits.

    Distances are true ones in the ``metric`` of the index, to float32. Searches may run at the same time; adding and
    removing may not.
    """

    kind: ClassVar[str]
    params_type: ClassVar[type]
    takes_subspaces: ClassVar[bool] = True
    takes_bits: ClassVar[bool] = False
    uses_exact = True
    """Whether batches for which the exact scan costs less are left to it. Unset it to measure a kind alone."""

    def __init__(self, entries: Entries, metric: str, params: Any) -> None:
        self.entries, self.metric, self.params = entries, metric, params
        self._exact: ExactIndex | None = None

    @property
    def dim(self) -> int:
        """The dimension n of the space the entries live in, or their number of bits."""
        return self.entries.dim

    @property
    def exact(self) -> "ExactIndex":
        """The exact scan of the same entries, which is prepared when it is first used."""
        from sfumato.search.exact import ExactIndex, ExactParams

        exact = self._exact  # a search under way keeps what it began with
        if exact is None:
            params = ExactParams(threads=getattr(self.params, "threads", None))
            exact = self._exact = ExactIndex(self.entries, self.metric, params)
        return exact

    @property
    def nbytes(self) -> int:
        """The bytes of the index beside the subspaces or codes, 9 per entry for ids and removals included."""
        return sum(array.nbytes for array in self.arrays().values()) + 9 * self.entries.total

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        if self.entries.is_bits:
            return f"{type(self).__name__}({len(self)} entries of {self.dim} bits)"
        return f"{type(self).__name__}({len(self)} entries in R^{self.dim}, metric {self.metric})"

    def search(
        self, queries: Any, k: int = 10, effort: float | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distances (Q, k) and ids (Q, k) of the nearest entries found, nearest first.

        ``queries``: points (Q, n), Subspaces, ConcealedFeatures, or a list of these of any dimensions; Bits, where the
        entries are. ``effort``: how much work to do at most, from 0 to 1; None means the default of the kind. Where
        the exact scan costs less, as in large batches, it answers instead. Missing answers are inf and -1: there are
        fewer entries than k, or the kind found fewer, possibly none.

        Raises InputError for queries of another space, and for zero vectors where the metric is angle.
        """
        distances, ids, _ = self.search_counted(queries, k, effort)
        return distances, ids

    def search_counted(
        self, queries: Any, k: int = 10, effort: float | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], SearchStats]:
        """Return what ``search`` does, and what it took."""
        blocks, k = self._read(queries), check_k(k)
        effort = check_effort(effort)
        present = min(k, max(1, len(self)))
        if k > present and blocks.count * k > MOST_ANSWERS:
            raise InputError(
                f"k: {k} answers for {blocks.count} queries are more than memory should hold, and the index has "
                f"{len(self)} entries; ask for {present} at most"
            )
        distances = np.full((blocks.count, k), np.inf, np.float32)
        ids = np.full((blocks.count, k), -1, np.int64)
        looked_at = evaluated = 0
        for block in blocks.blocks:
            if len(block) and len(self):
                searcher = self.exact if self.uses_exact and self._is_costly(block, present, effort) else self
                nearest, rows, counts = searcher.search_block(block, present, effort)
                distances[block.places, :present] = nearest
                ids[block.places, :present] = self.entries.ids_of(rows)
                looked_at, evaluated = looked_at + counts[0], evaluated + counts[1]
        empty = int((ids[:, 0] < 0).sum())
        return distances, ids, SearchStats(blocks.count, looked_at, evaluated, empty)

    def candidates(self, queries: Any, effort: float | None = None) -> list[Ints]:
        """Return for each query the ids that would be compared exactly, ascending."""
        blocks, effort = self._read(queries), check_effort(effort)
        result = [np.zeros(0, np.int64)] * blocks.count
        for block in blocks.blocks:
            if len(block) and len(self):
                i, rows = self._valid(self.propose(block, 1, effort))
                ids, cuts = self.entries.ids_of(rows), np.searchsorted(i, np.arange(1, len(block)))
                for place, part in zip(block.places, np.split(ids, cuts), strict=True):
                    result[place] = np.sort(part)
        return result

    def add(self, subspaces: Any, ids: ArrayLike | None = None) -> Ints:
        """Add entries and return their ids, in the order given; by default the next numbers.

        Raises InputError for another space and for ids that are there already. After an error, an interrupt or where
        memory ends, nothing is added.
        """
        blocks = read_blocks(subspaces, "subspaces", self.metric)
        before, own = self.entries.state(), dict(vars(self))
        self._exact = None  # segments may be merged
        try:
            new, rows = self.entries.add(blocks, ids)
            self.on_add(rows)
        except BaseException:
            self.entries.go_back(before)
            vars(self).update(own)
            self.on_undo()
            raise
        return new

    def remove(self, ids: ArrayLike) -> int:
        """Take out entries by their ids and return how many were there."""
        rows = self.entries.remove(ids)
        self._exact = None
        self.on_remove(rows)
        return len(rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one file, whole or not at all; ``sfumato.search.load`` reads it."""
        from sfumato.search.factory import write_index

        write_index(path, self)

    def _read(self, queries: Any) -> SubspaceBlocks:
        blocks = read_blocks(queries, "queries", self.metric)
        if (blocks.dim, blocks.is_bits) != (self.dim, self.entries.is_bits):
            raise InputError(f"queries: the index holds {self.entries.space}, these are {blocks.space}")
        if self.entries.source is not None:
            self.entries.source.check(blocks.source)
        return blocks

    def _is_costly(self, block: Block, k: int, effort: float | None) -> bool:
        """Tell whether the kind would need longer than the exact scan, by measured costs."""
        from sfumato.search.exact import scan_cost

        return self.cost(block, k, effort) > scan_cost(self.entries, block, self.metric)

    def _valid(self, proposed: Candidates) -> tuple[Ints, Ints]:
        """Return pairs sorted by query and row, each once, without removed entries."""
        keep = self.entries.alive[proposed.rows]
        key = np.unique(proposed.i[keep].astype(np.int64) * self.entries.total + proposed.rows[keep])
        return key // self.entries.total, key % self.entries.total

    def search_block(
        self, block: Block, k: int, effort: float | None
    ) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Return distances and rows (Q, k) for one block of queries, and the entries looked at and evaluated.

        A kind that knows better than to compare all its candidates replaces this.
        """
        proposed = self.propose(block, k, effort)
        i, rows = self._valid(proposed)
        distances = self.entries.distances(self.metric, block, i, rows)
        best, where = best_of_each(i, rows, distances, len(block), k)
        return best, where, (proposed.looked_at, len(i))

    # --- what a kind supplies

    @classmethod
    @abstractmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "Index":
        """Return an index of entries; ``params`` is of ``params_type``."""

    @abstractmethod
    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the pairs of queries and rows that are worth comparing exactly."""

    def cost(self, block: Block, k: int, effort: float | None) -> float:
        """Return about how many nanoseconds of one core a query of a block takes; 0: the exact scan is never asked."""
        return 0.0

    def on_add(self, rows: range) -> None:  # noqa: B027 (most kinds have nothing to note)
        """Take note of entries that were added."""

    def on_undo(self) -> None:  # noqa: B027
        """Forget entries that were not added after all; attributes are by then what they were."""

    def on_remove(self, rows: Ints) -> None:  # noqa: B027
        """Take note of entries that were removed."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what the kind holds beside the entries, as named arrays for a file."""
        return {}

    def saved_params(self) -> dict[str, Any]:
        """Return the params as values that JSON knows."""
        return asdict(self.params)

    def settings(self) -> dict[str, Any]:
        """Return what is not an array and not in the params, as values that JSON knows."""
        return {}

    @classmethod
    @abstractmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "Index":
        """Return the index that ``arrays`` and ``settings`` describe; FileError where they do not fit the entries."""


def best_of_each(
    i: Ints, rows: Ints, distances: NDArray[np.float64], count: int, k: int
) -> tuple[NDArray[np.float64], Ints]:
    """Return the k nearest (count, k) of each query, of equals the lower row first; inf and -1 where there are fewer.

    ``i`` must be ascending.
    """
    best, where = np.full((count, k), np.inf), np.full((count, k), -1, np.int64)
    order = np.lexsort((rows, distances, i))
    i, first = i[order], np.searchsorted(i, np.arange(count))
    rank = np.arange(len(i)) - first[i]
    near = rank < k
    best[i[near], rank[near]] = distances[order][near]
    where[i[near], rank[near]] = rows[order][near]
    return best, where
