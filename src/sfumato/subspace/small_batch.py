# SPDX-License-Identifier: Apache-2.0
"""The subspaces nearest to a few points, exactly: one pass over subspaces kept in bytes, then float64 for what is left.

Knows arrays only. The bytes give a bracket of every squared distance; what its lower end leaves in question is
evaluated as ``reference`` defines it, so that the result is that of ``fast.search``, to the last digit.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.fast import exact_distances, indistinct, load_kernels, prepare, thread_count
from sfumato.subspace.prepared import Prepared

MOST_POINTS, MOST_WANTED, FEWEST_SUBSPACES = 32, 64, 4096
"""Beyond these ``fast.search`` takes no longer, or not much."""

LARGEST_DIM = 16
"""Larger subspaces would take minutes to compile for."""

SIZES = 1e-3, 1e3
"""Coordinates of another size are left to ``fast.search``, which scales them."""

LARGEST_BYTE, LARGEST_SHORT = 127, 8191
LONGEST = 2**31 // (LARGEST_BYTE * LARGEST_SHORT)
"""Sums of so many products stay below 2^31."""

AT_ONCE, STEP = 3, 16
"""Points, and coordinates, that the kernel multiplies at once."""


class FewSearch:
    """Subspaces kept in bytes beside what was prepared, to be asked for the nearest of a few points."""

    def __init__(self, references: Prepared) -> None:
        self.references = references
        self._made: Any = None

    def serves(self, points: NDArray[Any], k: int) -> bool:
        """Tell whether a question is one for this search: few points, few wanted, many subspaces, ordinary numbers."""
        many = self.references
        sizes = [float(np.abs(points).max(initial=0.0)), many.largest()]
        return (
            0 < len(points) <= MOST_POINTS
            and k <= MOST_WANTED
            and len(many) >= FEWEST_SUBSPACES
            and many.dim <= LARGEST_DIM
            and many.origin.shape[1] <= LONGEST
            and all(SIZES[0] <= size <= SIZES[1] for size in sizes)
        )

    def nearest(
        self, points: NDArray[np.float32], k: int, threads: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
        """Return squared distances and rows (P, k) of the k subspaces nearest to points (P, n), nearest first, and how
        many pairs were evaluated in float64.

        Of equal distances the lower row comes first.
        """
        lows, tops = self._bracket(points, k, thread_count(threads))
        side, many = prepare(points, np.zeros((len(points), 0, points.shape[1]), np.float32)), self.references
        exact = exact_distances(side, many)
        zeros = max(float(indistinct(one, other).max()) for one, other in ((side, many), (many, side)))
        squared, rows, evaluated = np.empty((len(points), k)), np.empty((len(points), k), np.int64), 0
        for row, low in enumerate(lows):  # a float32 may have been rounded up
            found = np.flatnonzero(low <= np.nextafter(np.float32(max(tops[row, k - 1], zeros)), np.float32(np.inf)))
            values = exact(np.full(len(found), row), found)
            order = np.lexsort((found, values))[:k]
            squared[row], rows[row] = values[order], found[order]
            evaluated += len(found)
        return squared, rows, evaluated

    def _bracket(self, points: NDArray[np.float32], k: int, threads: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return lower ends (P, N) of all squared distances, and the k least upper ends (P, k)."""
        load_kernels()
        from sfumato.subspace.kernels.byte_bounds import Bytes, Points, bracket_bytes

        centre, values, facts = self._bytes()
        count, steps = len(self.references), values.shape[2] // STEP
        some = (0,) * min(len(points), AT_ONCE)
        padded = np.zeros((-(-len(points) // len(some)) * len(some), values.shape[2]))
        padded[: len(points), : len(centre)] = points.astype(np.float64) - centre
        asked = Points(*_as_shorts(padded))
        lows = np.empty((len(padded), count), np.float32)
        cuts = np.linspace(0, count, threads + 1).astype(int)
        tops = np.full((threads, len(padded), k), np.inf)

        def work(number: int) -> None:
            ends, ones = (cuts[number], cuts[number + 1]), (0,) * (values.shape[1] - 1)
            bracket_bytes(asked, Bytes(values.reshape(-1), facts), ends, steps, some, ones, lows, tops[number])

        if threads == 1:
            work(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
        return lows[: len(points)], np.sort(np.concatenate(list(tops), axis=1), axis=1)[: len(points), :k]

    def _bytes(self) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]]:
        if self._made is None:
            self._made = as_bytes(self.references)
        made: tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]] = self._made
        return made


def as_bytes(side: Prepared) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.float32]]:
    """Return a centre (n,), and of subspaces seen from it the rows in bytes (N, m + 1, 16 steps) and their facts.

    The facts (N, m + 1, 4) are those of ``bytebounds.Bytes``; a loss is rounded up.
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
