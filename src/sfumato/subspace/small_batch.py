# SPDX-License-Identifier: Apache-2.0
"""Exact search for a small batch of points: one pass over subspaces stored in bytes, then float64 for the candidates.

The bytes give a bracket of every squared distance. Candidates that the brackets do not exclude are evaluated in
float64, so the result equals that of ``fast.search`` to the last digit.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.fast import exact_distances, load_kernels, prepare, thread_count, zero_thresholds
from sfumato.subspace.subspace_set import SubspaceSet

MOST_POINTS, MOST_NEIGHBOURS, FEWEST_SUBSPACES = 32, 64, 4096
"""Outside these limits ``fast.search`` is about as fast."""

LARGEST_DIM = 16
"""Compiling for larger subspaces would take minutes."""

SIZES = 1e-3, 1e3
"""Coordinates outside this range are left to ``fast.search``, which scales them."""

LARGEST_BYTE, LARGEST_SHORT = 127, 8191
LONGEST = 2**31 // (LARGEST_BYTE * LARGEST_SHORT)
"""Sums of this many products stay below 2^31."""

AT_ONCE, STEP = 3, 16
"""Points, and coordinates, that the kernel multiplies at once."""


class SmallBatchSearch:
    """Search over one set of subspaces, stored in bytes on first use, for small batches of points."""

    def __init__(self, references: SubspaceSet) -> None:
        self.references = references
        self._cache: Any = None

    def serves(self, points: NDArray[Any], k: int) -> bool:
        """Return whether this search is the faster one: few points and neighbours, many subspaces, ordinary numbers."""
        references = self.references
        sizes = [float(np.abs(points).max(initial=0.0)), references.largest()]
        return (
            0 < len(points) <= MOST_POINTS
            and k <= MOST_NEIGHBOURS
            and len(references) >= FEWEST_SUBSPACES
            and references.dim <= LARGEST_DIM
            and references.origin.shape[1] <= LONGEST
            and all(SIZES[0] <= size <= SIZES[1] for size in sizes)
        )

    def nearest(
        self, points: NDArray[np.float32], k: int, threads: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Return squared distances and rows (P, k) of the k subspaces nearest to points (P, n), nearest first.

        Of equal distances the lower row comes first. Also returns how many pairs were evaluated in float64.
        """
        lows, tops = self._bracket(points, k, thread_count(threads))
        side = prepare(points, np.zeros((len(points), 0, points.shape[1]), np.float32))
        exact = exact_distances(side, self.references)
        pairs = (side, self.references), (self.references, side)
        zeros = max(float(zero_thresholds(*pair).max()) for pair in pairs)
        squared, rows, evaluated = np.empty((len(points), k)), np.empty((len(points), k), np.int64), 0
        for row, low in enumerate(lows):  # a float32 may have been rounded up
            reach = np.nextafter(np.float32(max(tops[row, k - 1], zeros)), np.float32(np.inf))
            candidates = np.flatnonzero(low <= reach)
            values = exact(np.full(len(candidates), row), candidates)
            order = np.lexsort((candidates, values))[:k]
            squared[row], rows[row] = values[order], candidates[order]
            evaluated += len(candidates)
        return squared, rows, evaluated

    def _bracket(self, points: NDArray[np.float32], k: int, threads: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return lower ends (P, N) of all squared distances, and the k least upper ends (P, k)."""
        load_kernels()
        from sfumato.subspace.kernels.byte_bounds import ByteSubspaces, ShortPoints, bracket_bytes

        centre, values, facts = self._bytes()
        count, steps = len(self.references), values.shape[2] // STEP
        batch = (0,) * min(len(points), AT_ONCE)
        padded = np.zeros((-(-len(points) // len(batch)) * len(batch), values.shape[2]))
        padded[: len(points), : len(centre)] = points.astype(np.float64) - centre
        shorts = ShortPoints(*_as_shorts(padded))
        lows = np.empty((len(padded), count), np.float32)
        cuts = np.linspace(0, count, threads + 1).astype(int)
        tops = np.full((threads, len(padded), k), np.inf)

        def work(number: int) -> None:
            ends, ones = (cuts[number], cuts[number + 1]), (0,) * (values.shape[1] - 1)
            bracket_bytes(
                shorts, ByteSubspaces(values.reshape(-1), facts), ends, steps, batch, ones, lows, tops[number]
            )

        if threads == 1:
            work(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
        return lows[: len(points)], np.sort(np.concatenate(list(tops), axis=1), axis=1)[: len(points), :k]

    def _bytes(self) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]]:
        if self._cache is None:
            self._cache = as_bytes(self.references)
        parts: tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]] = self._cache
        return parts


def as_bytes(side: SubspaceSet) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]]:
    """Return a centre (n,), the rows of subspaces about it in bytes (N, m + 1, 16 steps), and their facts.

    The facts (N, m + 1, 4) are those of ``ByteSubspaces``; a loss is rounded up.
    """
    load_kernels()
    from sfumato.subspace.kernels import byte_bounds

    count, n = side.origin.shape
    values = np.zeros((count, side.dim + 1, -(-n // STEP) * STEP), np.int8)
    facts = np.empty((count, side.dim + 1, 4), np.float32)
    centre = side.origin.mean(axis=0, dtype=np.float64)
    byte_bounds.round_rows(side.origin, side.basis, centre, values, facts)
    return centre, values, facts


def _as_shorts(points: NDArray[np.float64]) -> tuple[NDArray[Any], ...]:
    """Return points (P, n) as 16-bit integers, flat, with the step, the loss and the length of each (P,)."""
    step = np.maximum(np.abs(points).max(axis=1, initial=0.0) / LARGEST_SHORT, 1e-30)
    rounded = np.rint(points / step[:, None])
    loss = np.linalg.norm(points - rounded * step[:, None], axis=1) * (1 + 1e-9)
    return rounded.astype(np.int16).reshape(-1), step, loss, np.linalg.norm(points, axis=1)
