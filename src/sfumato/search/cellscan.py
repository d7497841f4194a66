# SPDX-License-Identifier: Apache-2.0
"""The compiled loops about cells: which are nearest, and the lists of what is filed under them.

Imported only where numba is wanted.
"""

from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sift_down(keys: Any, values: Any, first: Any, count: Any, key: Any, value: Any) -> None:
    """Replace the greatest of a heap of ``count`` at ``first``."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= count:
            break
        if child + 1 < count and keys[first + child + 1] > keys[first + child]:
            child += 1
        if keys[first + child] <= key:
            break
        keys[first + hole], values[first + hole] = keys[first + child], values[first + child]
        hole = child
    keys[first + hole], values[first + hole] = key, value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def nearest_cells(products: Any, norms: Any, stack: Any, wanted: Any, in_order: Any, out: Any) -> None:
    """Fill ``out`` (N, wanted) with the cells nearest to each subspace; nearest first where that is asked for.

    ``products`` (N * stack, K): of each origin and direction with each centre; ``norms`` (K,) squared norms of centres.
    """
    cells = len(norms)
    line = np.empty(cells, np.float32)
    keys = np.empty(wanted, np.float32)
    for row in range(len(out)):
        for c in range(np.uintp(cells)):
            line[c] = norms[c] - np.float32(2) * products[row * stack, c]
        for r in range(1, stack):
            for c in range(np.uintp(cells)):
                line[c] -= products[row * stack + r, c] * products[row * stack + r, c]
        values = out[row]
        keys[:] = np.inf
        for c in range(cells):
            if line[c] < keys[0]:
                sift_down(keys, values, 0, wanted, line[c], np.int32(c))
        if in_order:
            values[:] = values[np.argsort(keys)]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def fill_lists(cells: Any, free: Any, members: Any) -> None:
    """Write each entry into the lists of its ``cells`` (N, T); ``free`` (K,): the first free place of each list."""
    for row in range(len(cells)):
        for t in range(cells.shape[1]):
            cell = cells[row, t]
            members[free[cell]] = row
            free[cell] += 1


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def order_cells(stack: Any, centred: Any, norms: Any, likely: Any, out: Any) -> None:
    """Fill ``out`` (Q, wanted) with those of the cells ``likely`` (Q, T) nearest to each subspace, nearest first.

    ``stack`` (Q, m + 1, n): offsets and directions; ``centred`` (K, n) and ``norms`` (K,): centres seen from the mean.
    """
    wanted, n = out.shape[1], centred.shape[1]
    squared = np.empty(likely.shape[1], np.float32)
    for i in range(len(out)):
        for place in range(likely.shape[1]):
            cell = likely[i, place]
            found = norms[cell]
            for r in range(stack.shape[1]):
                along = np.float32(0)
                for t in range(n):
                    along += stack[i, r, t] * centred[cell, t]
                found -= np.float32(2) * along if r == 0 else along * along
            squared[place] = found
        order = np.argsort(squared)
        for place in range(wanted):
            out[i, place] = likely[i, order[place]]
