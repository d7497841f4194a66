# SPDX-License-Identifier: Apache-2.0
"""The last word on a pair: evaluate in float64, as the reference defines it, and keep the nearest; compiled.

Only values computed here are compared and kept, so the result of a search does not depend on how good its bounds were.
Imported only by ``fast``.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.borrowed import borrowed
from sfumato.subspace.dots import fetch
from sfumato.subspace.pairs import exact, work_size

LINE = 16
"""float32 in a cache line."""


class Rows(NamedTuple):
    """``origin`` (N, n) and ``basis`` (N, m, n) of one side, float32, flat and read-only, and their ``dim`` m.

    ``zeros`` (N,) float64: squared distances up to this are what float32 rounding of an origin leaves of 0.
    """

    origin: Any
    basis: Any
    zeros: Any
    dim: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def decide(
    rows0: Rows, rows1: Rows, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any, best: Any,
    where: Any,
) -> Any:  # fmt: skip
    """Put ``count`` pairs of ``own`` and ``other`` rows among the nearest of their own; return how many were evaluated.

    ``low`` are squared distances they can not be below. ``best``, ``where`` (N, keep) stay in order; of equal distances
    the lower number comes first. ``flipped``: own rows are those of side 1.
    """
    work = np.empty(work_size(rows0.dim, rows1.dim, n))
    return _decide(rows0, rows1, n, flipped, own, other, low, count, best, where, work)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _decide(
    rows0: Rows, rows1: Rows, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any, best: Any, where: Any,
    work: Any,
) -> Any:  # fmt: skip
    rows0, rows1, best, where, work = borrowed((rows0, rows1, best, where, work))
    last, evaluated = best.shape[1] - 1, 0
    for k in range(count):
        if k + 1 < count:
            _ask_for(rows1 if flipped else rows0, own[k + 1], n)
            _ask_for(rows0 if flipped else rows1, other[k + 1], n)
        mine, its = np.int64(own[k]), np.int64(other[k])
        limit = best[mine, last]
        i, j = (its, mine) if flipped else (mine, its)
        zero = max(rows0.zeros[i], rows1.zeros[j])
        if low[k] > max(limit, zero) or (limit == 0 and where[mine, last] >= 0 and its > where[mine, last]):
            continue
        value = exact(rows0.origin, rows0.basis, i, rows0.dim, rows1.origin, rows1.basis, j, rows1.dim, n, work)
        evaluated += 1
        value = 0.0 if value <= zero else value
        _insert(best, where, mine, value, its)
    return evaluated


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _ask_for(rows: Rows, row: Any, n: Any) -> None:
    """Have a row brought nearer."""
    for at in range(0, n, LINE):
        fetch(rows.origin, row * n + at)
    for at in range(0, rows.dim * n, LINE):
        fetch(rows.basis, row * rows.dim * n + at)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(best: Any, where: Any, row: Any, value: Any, other: Any) -> None:
    """Put a value among the nearest of a row, unless it is farther than all of them."""
    at = best.shape[1] - 1
    if value > best[row, at] or (value == best[row, at] and where[row, at] >= 0 and other > where[row, at]):
        return
    while at > 0:
        before, number = best[row, at - 1], where[row, at - 1]
        if value > before or (value == before and 0 <= number < other):
            break
        best[row, at], where[row, at] = before, number
        at -= 1
    best[row, at], where[row, at] = value, other
