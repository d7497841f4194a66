# SPDX-License-Identifier: Apache-2.0
"""Compiled best-first search of a kd-tree with an error bound."""

import heapq
from typing import Any

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _offer(squared: Any, row: Any, best: Any, rows: Any) -> None:
    """Put a row among the best, which are in order."""
    place = len(best) - 1
    if squared >= best[place]:
        return
    while place > 0 and best[place - 1] > squared:
        best[place], rows[place] = best[place - 1], rows[place - 1]
        place -= 1
    best[place], rows[place] = squared, row


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _squared_distance(point: Any, query: Any) -> Any:
    total = 0.0
    for t in range(len(point)):
        gap = query[t] - point[t]
        total += gap * gap
    return total


@njit(nogil=True, cache=True)
def _gap(turns: Any, turn: Any, axis: Any, sides: Any) -> Any:
    """Return the squared gap between a query and a node along an axis: of the last turn along it, or of all points."""
    while turn >= 0:
        along, squared, before = turns[turn]
        if along == axis:
            return squared
        turn = before
    return sides[axis]


@njit(nogil=True, cache=True)
def search_tree(
    axis: Any, split: Any, lesser: Any, greater: Any, start: Any, end: Any, order: Any, low: Any, high: Any,
    points: Any, queries: Any, eps: Any, rows: Any, visits: Any,
) -> None:  # fmt: skip
    """Fill the nearest ``rows`` (Q, k) and the number of points compared, ``visits`` (Q,).

    A node's distance is that of its half space from its parent's, summed over axes as scipy does.
    """
    shrink = 1.0 / (1.0 + eps) ** 2
    n = len(low)
    sides = np.zeros(n)
    for q in range(len(queries)):
        best = np.full(rows.shape[1], np.inf)
        far = 0.0
        for t in range(n):
            gap = max(low[t] - queries[q, t], queries[q, t] - high[t], 0.0)
            sides[t] = gap * gap
            far += gap * gap
        waiting = [(far, 0, -1)]
        turns = [(np.int64(-1), 0.0, np.int64(-1))]  # axis, squared gap along it, the turn before
        turns.pop()
        while len(waiting) > 0:
            distance, node, turn = heapq.heappop(waiting)
            if distance > best[-1] * shrink:
                break
            while axis[node] >= 0:  # go down to the near leaf; remember the far sides
                t = axis[node]
                offset = queries[q, t] - split[node]
                near, other = (lesser[node], greater[node]) if offset < 0 else (greater[node], lesser[node])
                before = _gap(turns, turn, t, sides)
                beyond = distance - before + max(offset * offset, before)
                if beyond <= best[-1] * shrink:
                    turns.append((t, max(offset * offset, before), np.int64(turn)))
                    heapq.heappush(waiting, (beyond, other, len(turns) - 1))
                node = near
            for at in range(start[node], end[node]):
                visits[q] += 1
                _offer(_squared_distance(points[order[at]], queries[q]), order[at], best, rows[q])
