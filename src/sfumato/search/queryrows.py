# SPDX-License-Identifier: Apache-2.0
"""The compiled preparation of queries: canonical on the axes of the codes, as 16-bit integers.

For one query numpy takes longer to begin than to end. Imported only where numba is wanted.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.subspace.reference import INDEPENDENT

LARGEST, SMALLEST = 16383, 1e-30


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def encode_rows(heads: Any, rows: Any, scales: Any, norms: Any) -> None:
    """Fill ``rows`` (Q, m + 1, w) int16, ``scales`` (Q, 2), ``norms`` (Q,) from ``heads`` (Q, m + 1, at least w).

    Directions are made orthonormal, zero where they span fewer dimensions; the origin orthogonal to them.
    """
    count, stack, width = rows.shape
    work = np.empty((stack, width))
    for i in range(count):
        for row in range(stack):
            for t in range(width):
                work[row, t] = heads[i, row, t]
        for row in range(1, stack):
            _normalise(work[row], SMALLEST)
            for _ in range(2):
                for before in range(1, row):
                    _take_away(work[row], work[before])
            _normalise(work[row], INDEPENDENT)
        for _ in range(2):
            for before in range(1, stack):
                _take_away(work[0], work[before])
        norms[i] = np.sum(work[0] * work[0])
        _round_rows(work[:1], rows[i, :1], scales[i, :1])
        _round_rows(work[1:], rows[i, 1:], scales[i, 1:])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _take_away(row: Any, other: Any) -> None:
    along = 0.0
    for t in range(len(row)):
        along += row[t] * other[t]
    for t in range(len(row)):
        row[t] -= along * other[t]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _normalise(row: Any, least: Any) -> None:
    length = np.sqrt(np.sum(row * row))
    for t in range(len(row)):
        row[t] = row[t] / length if length > least else 0.0


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _round_rows(values: Any, rows: Any, scale: Any) -> None:
    largest = SMALLEST
    for row in range(len(values)):
        for t in range(values.shape[1]):
            largest = max(largest, abs(values[row, t]))
    scale[0] = largest / LARGEST
    for row in range(len(values)):
        for t in range(values.shape[1]):
            rows[row, t] = np.int16(np.rint(values[row, t] / scale[0]))
