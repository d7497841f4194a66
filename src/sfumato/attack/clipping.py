# SPDX-License-Identifier: Apache-2.0
"""Every corner of a plane cut by x >= 0 and by the ridges of max x, exactly, by clipping polygons; compiled.

The plane { p + B'c } is cut to the polygon where no coordinate is negative, and that in one cell for each coordinate
that is somewhere the largest. Corners of cells are all points where two zeros, a zero and a tie at the maximum, or
three coordinates tied at the maximum meet. Knows arrays only. Imported only by ``polytope``.
"""

from typing import Any

import numpy as np
from numba import njit

FARTHEST = 1.5
"""Half the side of the square that is cut: no point of unit norm is outside of it."""

ROOM = 160
"""No polygon cut from a square by 128 lines has more corners; with more coordinates the rest is left out."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def clip_rows(origin: Any, basis: Any, tolerance: Any, norm_tolerance: Any, with_ties: Any, room: Any) -> Any:
    """Return coordinates (N, room, 2) of the corners within ``norm_tolerance`` of unit squared norm, and their
    number (N,). ``tolerance`` relaxes every constraint."""
    count, _, n = basis.shape
    found, counts = np.zeros((count, room, 2)), np.zeros(count, np.int64)
    polygon, cell, other = np.empty((ROOM, 2)), np.empty((ROOM, 2)), np.empty((ROOM, 2))
    for row in range(count):
        p, b = origin[row], basis[row]
        missing = 1.0 - np.sum(p * p)
        polygon[0], polygon[1] = (-FARTHEST, -FARTHEST), (FARTHEST, -FARTHEST)
        polygon[2], polygon[3] = (FARTHEST, FARTHEST), (-FARTHEST, FARTHEST)
        size = 4
        for i in range(n):
            size = _clip(polygon, size, b[0, i], b[1, i], p[i] + tolerance, other)
        for k in range(size):
            counts[row] = _note(found[row], counts[row], polygon[k], missing, norm_tolerance)
        if not with_ties:
            continue
        for i in range(n):
            cell[:size] = polygon[:size]
            left = size
            for j in range(n):
                if j != i and left:
                    left = _clip(cell, left, b[0, i] - b[0, j], b[1, i] - b[1, j], p[i] - p[j] + tolerance, other)
            for k in range(left):
                counts[row] = _note(found[row], counts[row], cell[k], missing, norm_tolerance)
    return found, counts


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _clip(polygon: Any, size: Any, a0: Any, a1: Any, offset: Any, other: Any) -> Any:
    """Cut a convex polygon, in place, to where a . c + offset >= 0; return how many corners are left."""
    cuts = False
    for k in range(size):
        if a0 * polygon[k, 0] + a1 * polygon[k, 1] + offset < 0:
            cuts = True
    if not cuts:
        return size
    left = 0
    for k in range(size):
        here, there = polygon[k], polygon[(k + 1) % size]
        at_here = a0 * here[0] + a1 * here[1] + offset
        at_there = a0 * there[0] + a1 * there[1] + offset
        if at_here >= 0 and left < ROOM:
            other[left] = here
            left += 1
        if (at_here >= 0) != (at_there >= 0) and left < ROOM:
            share = at_here / (at_here - at_there)
            other[left] = here + share * (there - here)
            left += 1
    polygon[:left] = other[:left]
    return left


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _note(found: Any, count: Any, corner: Any, missing: Any, norm_tolerance: Any) -> Any:
    """Keep a corner of nearly unit norm that was not found before; return how many are kept."""
    if abs(corner[0] ** 2 + corner[1] ** 2 - missing) > norm_tolerance or count >= found.shape[0]:
        return count
    for k in range(count):
        if (found[k, 0] - corner[0]) ** 2 + (found[k, 1] - corner[1]) ** 2 < 1e-8:
            return count
    found[count] = corner
    return count + 1
