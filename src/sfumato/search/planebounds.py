# SPDX-License-Identifier: Apache-2.0
"""The compiled bounds of planes, the entries that matter most: eight at once, from points and from planes.

Products of bytes take less time than what follows on them, so that this is done for many entries in a register too.
Imported only where numba is wanted.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.bytedots import group_dots
from sfumato.search.invertedscan import LEAST_PIVOT
from sfumato.subspace.dots import fetch

POINT, PLANE = (), (1, 1)
"""A tuple as long as a dimension: what is computed is known when this is compiled."""

BLOCK = 64
"""So many entries are bounded at once, and the next so many asked for meanwhile."""


@njit(nogil=True, cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def bound_planes(codes: Any, queries: Any, i: Any, ones0: Any, chosen: Any, steps: Any, near: Any) -> None:
    """Fill ``near`` with the bounds of the planes ``chosen`` to query i, a POINT or PLANE, by their codes.

    The squared distance on the axes of the code, less that of the query to 0. ``codes`` coarse or fine as
    ``Filed.compiled`` returns them, with their ``steps``; ``queries``: rows (Q, m0 + 1, width) int16 flat and scales
    (Q, 2).
    """
    data, meta, stride = codes
    query, scales = queries
    count = len(chosen)
    query_at = np.int64(i * (len(ones0) + 1) * 16 * len(steps))
    places, known = np.empty(BLOCK, np.int64), np.empty((3, BLOCK), np.float32)
    sums = np.empty((3 * (len(ones0) + 1), BLOCK), np.int32)
    for start in range(0, count, BLOCK):
        for lane in range(BLOCK):
            if start + BLOCK + lane < count:
                later = np.int64(chosen[np.uintp(start + BLOCK + lane)]) * stride
                fetch(data, later)
                if len(steps) > 1:
                    fetch(data, later + 64)
            at = np.int64(chosen[np.uintp(min(start + lane, count - 1))]) * stride
            places[lane] = at + 12
            for k in range(3):
                known[k, lane] = meta[np.uintp((at >> 2) + k)]
        for lane in range(0, BLOCK, 8):
            group_dots(data, places, lane, PLANE, query, query_at, ones0, steps, sums)
        stop = min(BLOCK, count - start)
        if len(ones0) == 0:
            _from_point(sums, known, scales[i, 0], near[start : start + stop])
        else:
            _from_plane(sums, known, scales[i, 0], scales[i, 1], near[start : start + stop])


@njit(nogil=True, cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _from_point(sums: Any, known: Any, scale: Any, near: Any) -> None:
    for lane in range(np.uintp(len(near))):
        factor = scale * known[2, lane]
        along = np.float32(sums[0, lane]) * (np.float32(2) * scale * known[1, lane])
        first, second = np.float32(sums[1, lane]) * factor, np.float32(sums[2, lane]) * factor
        near[lane] = known[0, lane] - along - first * first - second * second


@njit(nogil=True, cache=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _from_plane(sums: Any, known: Any, origin_scale: Any, basis_scale: Any, near: Any) -> None:
    """The formula of two subspaces with M = B C', S = I - M M', solved by hand for two directions each."""
    one, least = np.float32(1), np.float32(LEAST_PIVOT)
    for lane in range(np.uintp(len(near))):
        straight, crossed, mixed = (
            known[1, lane] * basis_scale,
            origin_scale * known[2, lane],
            basis_scale * known[2, lane],
        )
        b1, b2 = np.float32(sums[1, lane]) * straight, np.float32(sums[2, lane]) * straight
        m11, m12 = np.float32(sums[4, lane]) * mixed, np.float32(sums[5, lane]) * mixed
        m21, m22 = np.float32(sums[7, lane]) * mixed, np.float32(sums[8, lane]) * mixed
        u1 = np.float32(sums[3, lane]) * crossed + m11 * b1 + m12 * b2
        u2 = np.float32(sums[6, lane]) * crossed + m21 * b1 + m22 * b2
        pivot1 = max(one - m11 * m11 - m12 * m12, least)
        factor = -(m11 * m21 + m12 * m22) / pivot1
        pivot2 = max(one - m21 * m21 - m22 * m22 - factor * factor * pivot1, least)
        u2 -= factor * u1
        along = np.float32(sums[0, lane]) * (np.float32(2) * origin_scale * known[1, lane])
        near[lane] = known[0, lane] - along - b1 * b1 - b2 * b2 - u1 * u1 / pivot1 - u2 * u2 / pivot2
