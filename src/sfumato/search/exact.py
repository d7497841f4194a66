# SPDX-License-Identifier: Apache-2.0
"""The kind "exact": every entry is compared, by the pruned scan of matching, or for a few points by one pass over
entries kept in bytes; bits by counting those that differ. The line others must beat.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.hamming.search import BitSet, search_bits
from sfumato.search.entries import Block, Entries, Segment
from sfumato.search.index import Candidates, Index, best_of_each
from sfumato.subspace.fast import prepare, search, thread_count
from sfumato.subspace.small_batch import MOST_POINTS, SmallBatchSearch
from sfumato.subspace.subspace_set import Frame

Ints = NDArray[np.int64]

BLOCK = 1 << 22
"""Pairs whose angles are estimated at once."""

SLACK = 2e-3
"""How far an angle from cosines of float32 bases may be off near 0; beyond that it is far less."""


MANY_CODES = 256
"""From this many queries on, bits are searched as fast without a transposed copy of the entries."""

CALL, PAIR, PASS = {True: 5e5, False: 1e6}, {True: 1.7, False: 4.1}, {True: 60.0, False: 48.0}
"""Nanoseconds of one core: of a search, of a pair of query and entry, of an entry for all queries; of points or not."""

FEW_POINTS = 22.0
"""Nanoseconds of a pair where points are so few that one pass over bytes compares them all."""

ANGLE, ANGLE_CALL = {True: 45.0, False: 650.0}, 4e5
"""Nanoseconds of one core: of a pair whose angle is estimated, of lines or not, and of a search."""


def scan_cost(entries: Entries, block: Block, metric: str) -> float:
    """Return about how many nanoseconds of one core the exact scan of subspaces takes for a query of a block.

    Measured on 2,000 to 1,000,000 lifted SIFT (m = 2 in R^128), batches of 1 to 1,000: docs/results/search.md.
    """
    count, queries = len(entries), max(1, len(block))
    if metric == "angle":
        return count * ANGLE[has_lines(entries, block)] + ANGLE_CALL / queries
    is_point = block.dim == 0
    if is_point and queries <= MOST_POINTS:
        return count * FEW_POINTS + CALL[is_point] / queries
    return count * PAIR[is_point] + (CALL[is_point] + count * PASS[is_point]) / queries


def has_lines(entries: Entries, block: Block) -> bool:
    """Tell whether queries or entries have one principal angle only, which takes no singular values."""
    return min(block.dim, max((segment.dim for segment in entries.segments), default=0)) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactParams:
    """``threads``: None means all cores."""

    threads: int | None = None

    def __post_init__(self) -> None:
        thread_count(self.threads)


class ExactIndex(Index):
    """An index without approximation: the answer is right whatever the effort."""

    kind = "exact"
    params_type = ExactParams
    takes_bits = True

    def __init__(self, entries: Entries, metric: str, params: ExactParams) -> None:
        super().__init__(entries, metric, params)
        self._prepared: dict[int, tuple[SmallBatchSearch | BitSet, Ints]] = {}

    @classmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "ExactIndex":
        """Return an index of entries; nothing is computed before the first search."""
        return cls(entries, metric, params)

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "ExactIndex":
        """Return the index of entries from a file."""
        return cls(entries, metric, params)

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return every pair."""
        rows = np.flatnonzero(self.entries.alive)
        return Candidates(
            np.repeat(np.arange(len(block)), len(rows)), np.tile(rows, len(block)), len(block) * len(rows)
        )

    def search_block(
        self, block: Block, k: int, effort: float | None
    ) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Return the nearest of each query, exactly."""
        looked_at, evaluated = len(block) * len(self), 0
        parts = []
        for segment in self.entries.segments:
            answer = self._by_angle(segment, block, k) if self.metric == "angle" else self._scan(segment, block, k)
            parts.append(answer[:2])
            evaluated += answer[2]
        if len(parts) == 1:
            best, where = parts[0]
            missing = ((0, 0), (0, k - best.shape[1]))
            return (
                np.pad(best, missing, constant_values=np.inf),
                np.pad(where, missing, constant_values=-1),
                (looked_at, evaluated),
            )
        return *merge_answers(parts, k), (looked_at, evaluated)

    def on_add(self, rows: range) -> None:
        """Forget what was prepared: segments may have been merged."""
        self._prepared = {}

    def on_remove(self, rows: Ints) -> None:
        """Forget what was prepared with entries that are gone."""
        self._prepared = {}

    def _scan(self, segment: Segment, block: Block, k: int) -> tuple[NDArray[np.float64], Ints, int]:
        made = self._prepared  # a search under way keeps what it began with
        if segment.start not in made:
            made[segment.start] = self._prepare(segment)
        side, rows = made[segment.start]
        if isinstance(side, BitSet):
            if len(block) < MANY_CODES:
                _ = side.columns  # transposed once, for all searches
            found = search_bits(BitSet(block.origin), side, (k, 0), threads=self.params.threads)
            decided = len(block) * len(side)
        elif block.dim == 0 and side.serves(block.origin, k):
            squared, nearest, decided = side.nearest(block.origin, k, self.params.threads)
            return np.sqrt(squared), rows[nearest], decided
        else:
            found = search(prepare(block.origin, block.basis), side.references, (k, 0), threads=self.params.threads)
            decided = found.decided
        where = np.where(found.rows0 >= 0, rows[found.rows0] if len(rows) else -1, -1)
        return np.sqrt(found.squared0), where, decided

    def _prepare(self, segment: Segment) -> tuple[SmallBatchSearch | BitSet, Ints]:
        """Return the entries of a segment that were not removed, ready to be searched, and their rows."""
        rows = np.flatnonzero(self.entries.alive[segment.start : segment.stop])
        origin, basis = segment.origin, segment.basis
        if len(rows) < len(segment):
            origin, basis = origin[rows], basis[rows]
        if self.entries.is_bits:
            return BitSet(origin), rows + segment.start
        side = prepare(origin, basis)
        if len(rows):
            side.frame = Frame.of(origin)
        return SmallBatchSearch(side), rows + segment.start

    def _by_angle(self, segment: Segment, block: Block, k: int) -> tuple[NDArray[np.float64], Ints, int]:
        """Estimate all angles from cosines, and compute those that may be among the k smallest."""
        alive = np.flatnonzero(self.entries.alive[segment.start : segment.stop])
        pairs: list[tuple[Ints, Ints]] = []
        step = max(1, BLOCK // max(1, len(segment) * block.dim * segment.dim))
        if len(alive) == 0:
            return np.zeros((len(block), 0)), np.zeros((len(block), 0), np.int64), 0
        for start in range(0, len(block), step):
            rough = _rough_angles(block.basis[start : start + step], segment.basis)[:, alive]
            count = min(k, rough.shape[1])
            limits = np.partition(rough, count - 1, axis=1)[:, count - 1 : count]
            i, at = np.nonzero(rough <= limits + SLACK * np.sqrt(min(block.dim, segment.dim)))
            pairs.append((i + start, segment.start + alive[at]))
        i, rows = (np.concatenate(part) for part in zip(*pairs, strict=True))
        distances = self.entries.distances("angle", block, i, rows)
        return *best_of_each(i, rows, distances, len(block), k), len(i)


def _rough_angles(basis0: NDArray[np.float32], basis1: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return dist_G (N0, N1) of linear subspaces (N0, m0, n) and (N1, m1, n) from cosines alone."""
    m0, m1, n = basis0.shape[1], basis1.shape[1], basis0.shape[2]
    products = (basis0.reshape(-1, n).astype(np.float64) @ basis1.reshape(-1, n).T.astype(np.float64)).reshape(
        len(basis0), m0, len(basis1), m1
    )
    if min(m0, m1) == 1:
        cosines = np.sqrt(np.einsum("aibj,aibj->ab", products, products))[:, :, None]
    else:
        cosines = np.linalg.svd(products.transpose(0, 2, 1, 3), compute_uv=False)
    result: NDArray[np.float64] = np.sqrt((np.arccos(np.minimum(cosines, 1.0)) ** 2).sum(axis=2))
    return result


def merge_answers(parts: list[tuple[NDArray[np.float64], Ints]], k: int) -> tuple[NDArray[np.float64], Ints]:
    """Return the k nearest (Q, k) of several answers (Q, any), of equals the lower row first."""
    best, where = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    missing = max(0, k - best.shape[1])
    best = np.pad(best, ((0, 0), (0, missing)), constant_values=np.inf)
    where = np.pad(where, ((0, 0), (0, missing)), constant_values=-1)
    order = np.lexsort((where, best), axis=1)[:, :k]
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(where, order, axis=1)
