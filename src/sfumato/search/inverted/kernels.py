# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of the kind "inverted": scanning codes, settling what is left exactly.

Imported only where numba is wanted. Arrays are flat. Positions are unsigned inside the loops, as in
``sfumato.subspace.kernels.exact``.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.inverted.byte_products import FINE_STEPS, byte_dot
from sfumato.search.inverted.codes import HEAD, MOST_DIRECTIONS
from sfumato.subspace.kernels.exact import exact, work_size
from sfumato.subspace.kernels.simd import fetch
from sfumato.subspace.reference import INDEPENDENT

AHEAD = 12
"""A code is fetched this many entries before its turn."""

LEAST_PIVOT = 0.02
"""The least pivot: directions that two subspaces nearly share on a few axes tell nothing there."""

LARGEST, SMALLEST = 16383, 1e-30
"""The integer that stands for the largest coordinate of a query, and the least length that is not 0."""


# --- cells


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def nearest_cells(products: Any, norms: Any, stack: Any, keep: Any, in_order: Any, out: Any) -> None:
    """Fill ``out`` (N, keep) with the cells nearest to each subspace; nearest first if ``in_order``.

    ``products`` (N * stack, K): of each origin and direction with each centre; ``norms`` (K,) squared norms of centres.
    """
    cells = len(norms)
    line = np.empty(cells, np.float32)
    keys = np.empty(keep, np.float32)
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
                sift_down(keys, values, 0, keep, line[c], np.int32(c))
        if in_order:
            values[:] = values[np.argsort(keys)]


@njit(nogil=True, cache=True)
def fill_lists(cells: Any, free: Any, members: Any) -> None:
    """Write each entry into the lists of its ``cells`` (N, T); ``free`` (K,): the first free place of each list."""
    for row in range(len(cells)):
        for t in range(cells.shape[1]):
            cell = cells[row, t]
            members[free[cell]] = row
            free[cell] += 1


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def order_cells(stack: Any, centred: Any, norms: Any, likely: Any, out: Any) -> None:
    """Fill ``out`` (Q, wanted) with those of the cells ``likely`` (Q, T) nearest to each subspace, nearest first.

    ``stack`` (Q, m + 1, n): offsets and directions; ``centred`` (K, n) and ``norms`` (K,): centres seen from the mean.
    """
    count, n = out.shape[1], centred.shape[1]
    squared = np.empty(likely.shape[1], np.float32)
    for i in range(len(out)):
        for place in range(likely.shape[1]):
            cell = likely[i, place]
            squared_distance = norms[cell]
            for r in range(stack.shape[1]):
                along = np.float32(0)
                for t in range(n):
                    along += stack[i, r, t] * centred[cell, t]
                squared_distance -= np.float32(2) * along if r == 0 else along * along
            squared[place] = squared_distance
        order = np.argsort(squared)
        for place in range(count):
            out[i, place] = likely[i, order[place]]


# --- codes of queries


@njit(nogil=True, cache=True)
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
                    _remove_along(work[row], work[before])
            _normalise(work[row], INDEPENDENT)
        for _ in range(2):
            for before in range(1, stack):
                _remove_along(work[0], work[before])
        norms[i] = np.sum(work[0] * work[0])
        _round_rows(work[:1], rows[i, :1], scales[i, :1])
        _round_rows(work[1:], rows[i, 1:], scales[i, 1:])


@njit(nogil=True, cache=True)
def _remove_along(row: Any, other: Any) -> None:
    along = 0.0
    for t in range(len(row)):
        along += row[t] * other[t]
    for t in range(len(row)):
        row[t] -= along * other[t]


@njit(nogil=True, cache=True)
def _normalise(row: Any, least: Any) -> None:
    length = np.sqrt(np.sum(row * row))
    for t in range(len(row)):
        row[t] = row[t] / length if length > least else 0.0


@njit(nogil=True, cache=True)
def _round_rows(values: Any, rows: Any, scale: Any) -> None:
    largest = SMALLEST
    for row in range(len(values)):
        for t in range(values.shape[1]):
            largest = max(largest, abs(values[row, t]))
    scale[0] = largest / LARGEST
    for row in range(len(values)):
        for t in range(values.shape[1]):
            rows[row, t] = np.int16(np.rint(values[row, t] / scale[0]))


# --- scans of codes


@njit(nogil=True, cache=True)
def _dot(codes: Any, at: Any, query: Any, query_at: Any) -> Any:
    return np.float32(byte_dot(codes, np.int64(at), query, np.int64(query_at), FINE_STEPS))


@njit(nogil=True, cache=True)
def low_subspace(
    codes: Any, at: Any, meta: Any, meta_at: Any, m: Any, query: Any, query_at: Any, scales: Any, i: Any, m0: Any,
    room: Any,
) -> Any:  # fmt: skip
    """Return the squared distance, on the axes of the code, of a query of dimension m0 to an entry.

    Less that of the query to 0. The formula of two subspaces with M = B C', S = I - M M'.
    """
    origin_scale, basis_scale = scales[i, 0], scales[i, 1]
    low = meta[meta_at] - np.float32(2) * _dot(codes, at, query, query_at) * origin_scale * meta[meta_at + 1]
    for c in range(m0):
        b = _dot(codes, at, query, query_at + (c + 1) * HEAD) * basis_scale * meta[meta_at + 1]
        room[0, c] = b
        low -= b * b
    for r in range(m):
        place = at + (r + 1) * HEAD
        u = _dot(codes, place, query, query_at) * origin_scale * meta[meta_at + 2]
        for c in range(m0):
            value = _dot(codes, place, query, query_at + (c + 1) * HEAD) * basis_scale * meta[meta_at + 2]
            room[1 + r, c] = value
            u += value * room[0, c]
        room[1 + r, MOST_DIRECTIONS] = u
    for r in range(m):  # forward substitution with the Cholesky factors of S
        u = room[1 + r, MOST_DIRECTIONS]
        for s in range(r + 1):
            total = np.float32(1.0) if s == r else np.float32(0.0)
            for c in range(m0):
                total -= room[1 + r, c] * room[1 + s, c]
            for t in range(s):
                total -= room[1 + r, MOST_DIRECTIONS + 1 + t] * room[1 + s, MOST_DIRECTIONS + 1 + t]
            if s < r:
                factor = total / room[1 + s, MOST_DIRECTIONS + 1 + s]
                room[1 + r, MOST_DIRECTIONS + 1 + s] = factor
                u -= factor * room[1 + s, MOST_DIRECTIONS]
            else:
                pivot = np.sqrt(max(total, np.float32(LEAST_PIVOT)))
                room[1 + r, MOST_DIRECTIONS + 1 + r] = pivot
                u /= pivot
        room[1 + r, MOST_DIRECTIONS] = u
        low -= u * u
    return low


@njit(nogil=True, cache=True)
def _low_angle(
    codes: Any, at: Any, meta: Any, meta_at: Any, m: Any, query: Any, query_at: Any, scale: Any, m0: Any
) -> Any:
    """Return minus the sum of the squared cosines, on the axes of the code, of two linear subspaces."""
    low, factor = np.float32(0.0), scale * meta[meta_at + 2]
    for r in range(m):
        for c in range(m0):
            part = _dot(codes, at + (r + 1) * HEAD, query, query_at + (c + 1) * HEAD) * factor
            low -= part * part
    return low


@njit(nogil=True, cache=True)
def scan(
    part: Any, alive: Any, query: Any, scales: Any, m0: Any, probes: Any, linear: Any, marks: Any, lows: Any, rows: Any
) -> Any:
    """Fill ``lows`` and ``rows`` (Q, R) with the entries of the probed lists that look nearest to subspaces.

    ``part`` as ``InvertedLists.compiled`` returns it. ``query`` (Q, m0 + 1, HEAD) int16 flat, ``scales`` (Q, 2),
    ``probes`` (Q, P), ``marks`` a bit for each entry, all 0, and 0 again afterwards. Heaps, the greatest first; row -1
    if there are fewer than R. Returns how many entries were bounded.
    """
    offsets, members, _, (codes, meta, stride), m = part
    count, bounded = rows.shape[1], 0
    room = np.empty((m + 1, MOST_DIRECTIONS + 1 + m), np.float32)
    for i in range(len(probes)):
        query_at = i * (m0 + 1) * HEAD
        bounds, nearest = lows[i], rows[i]
        for p in range(probes.shape[1]):
            cell = probes[i, p]
            for at in range(offsets[cell], offsets[cell + 1]):
                if at + AHEAD < offsets[cell + 1]:
                    later = np.int64(members[np.uintp(at + AHEAD)]) * stride
                    fetch(codes, later)
                    fetch(codes, later + 64)
                row = np.int64(members[np.uintp(at)])
                word, bit = np.uintp(row >> 6), np.uint64(1) << np.uint64(row & 63)
                if marks[word] & bit:
                    continue
                marks[word] |= bit
                bounded += 1
                place = row * stride
                if linear:
                    low = _low_angle(codes, place + 12, meta, place >> 2, m, query, query_at, scales[i, 1], m0)
                else:
                    low = low_subspace(
                        codes, place + 12, meta, place >> 2, m, query, query_at, scales, i, m0, room
                    )  # fmt: skip
                if low < bounds[0] and alive[row]:
                    sift_down(bounds, nearest, 0, count, low, np.int32(row))
        marks[:] = 0
    return bounded


@njit(nogil=True, cache=True)
def settle(
    queries: Any, entries: Any, n: Any, lows: Any, rows: Any, shift: Any, slack: Any, zeros: Any, best: Any, where: Any
) -> Any:
    """Compare the candidates of ``scan`` exactly, the likeliest first, until no other can be among the k nearest.

    ``queries``, ``entries``: origin and basis flat, and m. ``shift`` (Q,): squared distances less ``lows``;
    ``slack``: by how much they may be too large. Fills ``best`` (Q, k) with squared distances, ``where`` with rows.
    """
    origin0, basis0, m0 = queries
    origin1, basis1, m1 = entries
    work = np.empty(work_size(m0, m1, n))
    k, evaluated = best.shape[1], 0
    for i in range(len(rows)):
        order = np.argsort(lows[i])
        for at in order:
            row = np.int64(rows[i, at])
            if row < 0 or lows[i, at] + shift[i] > best[i, k - 1] * (1 + slack) + slack * shift[i]:
                break
            squared = exact(origin0, basis0, i, m0, origin1, basis1, row, m1, n, work)
            evaluated += 1
            length = 0.0
            for t in range(np.uintp(n)):
                value = np.float64(origin1[np.uintp(row * n) + t])
                length += value * value
            if squared <= max(zeros[i, 0], zeros[i, 1] * length):
                squared = 0.0
            place = k - 1
            if squared > best[i, place] or (squared == best[i, place] and row >= where[i, place]):
                continue
            while place > 0 and (
                squared < best[i, place - 1] or (squared == best[i, place - 1] and row < where[i, place - 1])
            ):
                best[i, place], where[i, place] = best[i, place - 1], where[i, place - 1]
                place -= 1
            best[i, place], where[i, place] = squared, row
    return evaluated
