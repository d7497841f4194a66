# SPDX-License-Identifier: Apache-2.0
"""The last word on a pair: evaluate in float64, as the reference defines it, and keep the nearest; compiled.

Only values computed here are compared and kept, so the result of a search does not depend on how good its bounds were.
Imported only by ``fast``.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.pairs import exact, work_size


class Rows(NamedTuple):
    """``origin`` (N, n) and ``basis`` (N, m, n) of one side, float32, flat and read-only, and their ``dim`` m."""

    origin: Any
    basis: Any
    dim: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def decide(
    rows0: Rows, rows1: Rows, n: Any, flipped: Any, zero: Any, own: Any, other: Any, low: Any, count: Any, best: Any,
    where: Any,
) -> Any:  # fmt: skip
    """Put ``count`` pairs of ``own`` and ``other`` rows among the nearest of their own; return how many were evaluated.

    ``low`` are squared distances they can not be below; squares of at most ``zero`` count as 0. ``best``, ``where`` (N,
    keep) stay in order; of equal distances the lower number comes first. ``flipped``: own rows are those of side 1.
    """
    work, last, evaluated = np.empty(work_size(rows0.dim, rows1.dim, n)), best.shape[1] - 1, 0
    for k in range(count):
        mine, its = np.int64(own[k]), np.int64(other[k])
        limit = best[mine, last]
        if low[k] > limit or (limit == 0 and where[mine, last] >= 0 and its > where[mine, last]):
            continue
        i, j = (its, mine) if flipped else (mine, its)
        value = exact(rows0.origin, rows0.basis, i, rows0.dim, rows1.origin, rows1.basis, j, rows1.dim, n, work)
        evaluated += 1
        _insert(best, where, mine, 0.0 if value <= zero else value, its)
    return evaluated


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(best: Any, where: Any, row: Any, value: Any, other: Any) -> None:
    """Put a value among the nearest of a row, unless it is farther than all of them."""
    at = best.shape[1] - 1
    if value > best[row, at] or (value == best[row, at] and where[row, at] >= 0 and other > where[row, at]):
        return
    while at > 0 and (value < best[row, at - 1] or (value == best[row, at - 1] and other < where[row, at - 1])):
        best[row, at], where[row, at] = best[row, at - 1], where[row, at - 1]
        at -= 1
    best[row, at], where[row, at] = value, other
