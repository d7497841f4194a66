# SPDX-License-Identifier: Apache-2.0
"""The distance of one pair of subspaces in float64, compiled: what the reference defines, to the last digits.

Imported only where numba is wanted. Positions are unsigned inside the loops: numba then asks of none whether it counts
from the end, and the loops become vector instructions.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from sfumato.subspace.reference import INDEPENDENT


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def _remove(vectors: Any, v_at: Any, rows: Any, r_at: Any, m: Any, n: Any) -> None:
    """Take from the n numbers at vectors[v_at] their part along m orthonormal rows, twice against rounding."""
    v0 = np.uintp(v_at)
    for _ in range(2):
        for r in range(m):
            along, r0 = 0.0, np.uintp(r_at + r * n)
            for t in range(np.uintp(n)):
                along += vectors[v0 + t] * rows[r0 + t]
            for t in range(np.uintp(n)):
                vectors[v0 + t] -= along * rows[r0 + t]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def _squared_length(vectors: Any, at: Any, n: Any) -> Any:
    total, v0 = 0.0, np.uintp(at)
    for t in range(np.uintp(n)):
        total += vectors[v0 + t] * vectors[v0 + t]
    return total


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _exact(
    origin0: Any, basis0: Any, i: Any, m0: Any, origin1: Any, basis1: Any, j: Any, m1: Any, n: Any, outside: Any
) -> Any:
    offset = m0 * n
    for t in range(n):
        outside[offset + t] = np.float64(origin1[j * n + t]) - np.float64(origin0[i * n + t])
    _remove(outside, offset, basis1, j * m1 * n, m1, n)
    for t in range(m0 * n):
        outside[t] = basis0[i * m0 * n + t]
    for r in range(m0):
        _remove(outside, r * n, basis1, j * m1 * n, m1, n)
    for done in range(m0):  # Gram-Schmidt, the longest that is left first
        best, longest = done, -1.0
        for r in range(done, m0):
            length = _squared_length(outside, r * n, n)
            if length > longest:
                best, longest = r, length
        if longest <= INDEPENDENT * INDEPENDENT:
            break
        scale = 1.0 / np.sqrt(longest)
        for t in range(n):
            unit = outside[best * n + t] * scale
            outside[best * n + t] = outside[done * n + t]
            outside[done * n + t] = unit
        _remove(outside, offset, outside, done * n, 1, n)
        for r in range(done + 1, m0):
            _remove(outside, r * n, outside, done * n, 1, n)
    return _squared_length(outside, offset, n)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def exact(
    origin0: Any, basis0: Any, i: Any, m0: Any, origin1: Any, basis1: Any, j: Any, m1: Any, n: Any, outside: Any
) -> Any:
    """Return the squared distance of a pair in float64, by the definition (Eq. 2); ``outside`` scratch (m + 1) n.

    What is left of the offset of the origins outside both bases. Directions of one within 1e-6 of the span of the
    other, and of each other there, count as shared. Arrays are flat: origins (N, n), bases (N, m, n).
    """
    if m0 > m1:  # the smaller basis is the one orthonormalised anew
        return _exact(origin1, basis1, j, m1, origin0, basis0, i, m0, n, outside)
    return _exact(origin0, basis0, i, m0, origin1, basis1, j, m1, n, outside)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _exact_list(
    origin0: Any, basis0: Any, m0: Any, origin1: Any, basis1: Any, m1: Any, n: Any, i: Any, j: Any, result: Any
) -> None:
    outside = np.empty((min(m0, m1) + 1) * n)
    for pair in range(len(i)):
        result[pair] = exact(origin0, basis0, i[pair], m0, origin1, basis1, j[pair], m1, n, outside)


def exact_pairs(
    origin0: NDArray[np.float32],
    basis0: NDArray[np.float32],
    origin1: NDArray[np.float32],
    basis1: NDArray[np.float32],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the squared distances of the pairs (i, j) of rows of two sides, in float64, by the definition."""
    result = np.empty(len(i))
    (m0, n), m1 = basis0.shape[1:], basis1.shape[1]
    flat = [np.ascontiguousarray(part).reshape(-1) for part in (origin0, basis0, origin1, basis1)]
    _exact_list(flat[0], flat[1], m0, flat[2], flat[3], m1, n, i, j, result)
    return result
