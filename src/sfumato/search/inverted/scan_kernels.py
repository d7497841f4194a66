# SPDX-License-Identifier: Apache-2.0
"""Compiled scans of inverted lists: for points all entries of few lists, for subspaces the entries with most votes.

Coarse codes of the entries come first, fine codes of the best of them second: a coarse code of a plane is one cache
line, half the memory and half the products of a fine one. Planes, the usual entries, are bounded eight at a time.

Every cell that a subspace probes votes for the entries in its list. Two subspaces through neighbouring points share
many cells; others share few. A vote costs one byte in a table that stays in the cache, a bound costs a code from
memory: many cells vote, and only entries with many votes are bounded.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS, byte_dot, group_dots
from sfumato.search.inverted.codes import HEAD, MOST_DIRECTIONS
from sfumato.search.inverted.kernels import AHEAD, LEAST_PIVOT, low_subspace, sift_down
from sfumato.subspace.kernels.simd import SCAN_WIDTH, at_most, fetch, lowest_bit

BOUND_SAMPLE = 1024
"""About this many bounds are sorted to find the cut between low and high ones."""

POINT, PLANE = (), (1, 1)
"""Tuples as long as the dimension: their length is part of the type, so kernels are compiled for it."""

BLOCK = 64
"""This many entries are bounded at once, while the next are fetched."""

VOTE_SAMPLE = 8192
"""The votes of about this many entries give the number of votes that counts as many."""

MOST_VOTES = 255


# --- bounds of planes, and scans for points


@njit(nogil=True, cache=True, error_model="numpy")
def bound_planes(codes: Any, queries: Any, i: Any, ones0: Any, rows: Any, steps: Any, near: Any) -> None:
    """Fill ``near`` with the bounds of the planes ``rows`` to query i, a POINT or PLANE, by their codes.

    The squared distance on the axes of the code, less that of the query to 0. ``codes`` coarse or fine as
    ``InvertedLists.compiled`` returns them, with their ``steps``; ``queries``: rows (Q, m0 + 1, width) int16 flat and
    scales (Q, 2).
    """
    data, meta, stride = codes
    query, scales = queries
    count = len(rows)
    query_at = np.int64(i * (len(ones0) + 1) * 16 * len(steps))
    places, facts = np.empty(BLOCK, np.int64), np.empty((3, BLOCK), np.float32)
    sums = np.empty((3 * (len(ones0) + 1), BLOCK), np.int32)
    for start in range(0, count, BLOCK):
        for lane in range(BLOCK):
            if start + BLOCK + lane < count:
                later = np.int64(rows[np.uintp(start + BLOCK + lane)]) * stride
                fetch(data, later)
                if len(steps) > 1:
                    fetch(data, later + 64)
            at = np.int64(rows[np.uintp(min(start + lane, count - 1))]) * stride
            places[lane] = at + 12
            for k in range(3):
                facts[k, lane] = meta[np.uintp((at >> 2) + k)]
        for lane in range(0, BLOCK, 8):
            group_dots(data, places, lane, PLANE, query, query_at, ones0, steps, sums)
        stop = min(BLOCK, count - start)
        if len(ones0) == 0:
            _from_point(sums, facts, scales[i, 0], near[start : start + stop])
        else:
            _from_plane(sums, facts, scales[i, 0], scales[i, 1], near[start : start + stop])


@njit(nogil=True, cache=True, error_model="numpy")
def _from_point(sums: Any, facts: Any, scale: Any, near: Any) -> None:
    for lane in range(np.uintp(len(near))):
        factor = scale * facts[2, lane]
        along = np.float32(sums[0, lane]) * (np.float32(2) * scale * facts[1, lane])
        first, second = np.float32(sums[1, lane]) * factor, np.float32(sums[2, lane]) * factor
        near[lane] = facts[0, lane] - along - first * first - second * second


@njit(nogil=True, cache=True, error_model="numpy")
def _from_plane(sums: Any, facts: Any, origin_scale: Any, basis_scale: Any, near: Any) -> None:
    """Apply the formula of two subspaces with M = B C', S = I - M M', solved by hand for two directions each."""
    unit, least = np.float32(1), np.float32(LEAST_PIVOT)
    for lane in range(np.uintp(len(near))):
        straight, crossed, mixed = (
            facts[1, lane] * basis_scale,
            origin_scale * facts[2, lane],
            basis_scale * facts[2, lane],
        )
        b1, b2 = np.float32(sums[1, lane]) * straight, np.float32(sums[2, lane]) * straight
        m11, m12 = np.float32(sums[4, lane]) * mixed, np.float32(sums[5, lane]) * mixed
        m21, m22 = np.float32(sums[7, lane]) * mixed, np.float32(sums[8, lane]) * mixed
        u1 = np.float32(sums[3, lane]) * crossed + m11 * b1 + m12 * b2
        u2 = np.float32(sums[6, lane]) * crossed + m21 * b1 + m22 * b2
        pivot1 = max(unit - m11 * m11 - m12 * m12, least)
        factor = -(m11 * m21 + m12 * m22) / pivot1
        pivot2 = max(unit - m21 * m21 - m22 * m22 - factor * factor * pivot1, least)
        u2 -= factor * u1
        along = np.float32(sums[0, lane]) * (np.float32(2) * origin_scale * facts[1, lane])
        near[lane] = facts[0, lane] - along - b1 * b1 - b2 * b2 - u1 * u1 / pivot1 - u2 * u2 / pivot2


@njit(nogil=True, cache=True)
def low_point(codes: Any, at: Any, meta: Any, m: Any, query: Any, query_at: Any, scale: Any, steps: Any) -> Any:
    """Return the squared distance, on the axes of the code at codes[at], of a point to an entry.

    Less that of the point to 0, which is the same for all entries.
    """
    meta_at, width, rows = at >> 2, 16 * len(steps), at + 12
    along = np.float32(byte_dot(codes, rows, query, query_at, steps))
    low = meta[meta_at] - np.float32(2) * along * scale * meta[meta_at + 1]
    factor = scale * meta[meta_at + 2]
    for r in range(m):
        part = np.float32(byte_dot(codes, rows + (r + 1) * width, query, query_at, steps)) * factor
        low -= part * part
    return low


@njit(nogil=True, cache=True)
def take_lowest(lows: Any, rows: Any, count: Any, keep: Any) -> Any:
    """Move about ``keep`` rows with the lowest of ``count`` bounds to the front, and return how many.

    A sample gives the cut: a heap of this size would cost more than the bounds.
    """
    if count <= keep:
        return count
    step = max(1, count // BOUND_SAMPLE)
    sample = lows[:count:step].copy()
    sample.sort()
    cut = sample[min(len(sample) - 1, keep // step)]
    front = 0
    for place in range(np.uintp(count)):
        if lows[place] <= cut:
            rows[np.uintp(front)] = rows[place]
            front += 1
    return front


@njit(nogil=True, cache=True)
def distinct_rows(offsets: Any, members: Any, cells: Any, alive: Any, marks: Any, rows: Any) -> Any:
    """Fill ``rows`` with the entries in the lists of ``cells`` (P,), each once, and return how many.

    ``marks``: a bit for each entry, all 0, and 0 again afterwards.
    """
    count = 0
    for p in range(len(cells)):
        for at in range(np.uintp(offsets[cells[p]]), np.uintp(offsets[cells[p] + 1])):
            row = np.int64(members[at])
            word, bit = np.uintp(row >> 6), np.uint64(1) << np.uint64(row & 63)
            rows[np.uintp(count)] = row
            count += (marks[word] & bit) == 0 and alive[row] != 0
            marks[word] |= bit
    marks[:] = 0
    return count


@njit(nogil=True, cache=True)
def scan_points(
    part: Any, alive: Any, fine: Any, coarse: Any, probes: Any, marks: Any, room: Any, keep: Any, lows: Any, rows: Any
) -> Any:
    """Fill ``lows`` and ``rows`` (Q, R) with the entries of the probed lists that look nearest to points.

    ``part`` as ``InvertedLists.compiled`` returns it. ``fine`` and ``coarse``: rows (Q, width) int16 flat and scales
    (Q, 2). ``probes`` (Q, P); ``marks`` a bit for each entry, all 0, and 0 again afterwards; ``room``: float32 and
    int32 for the most entries of any query, and one more. ``keep``: about how many the coarse codes pass on. Heaps, the
    greatest first; row -1 if there are fewer than R. Returns how many entries were bounded.
    """
    near, candidates = room
    bounded = 0
    for i in range(len(probes)):
        count = distinct_rows(part[0], part[1], probes[i], alive, marks, candidates)
        bounded += count
        if count > keep:
            bound_entries(part[2], part[4], coarse, i, candidates[:count], COARSE_STEPS, near)
            count = take_lowest(near, candidates, count, keep)
        bound_entries(part[3], part[4], fine, i, candidates[:count], FINE_STEPS, near)
        for place in range(count):
            if near[place] < lows[i, 0]:
                sift_down(lows[i], rows[i], 0, rows.shape[1], near[place], candidates[place])
    return bounded


@njit(nogil=True, cache=True)
def bound_entries(codes: Any, m: Any, queries: Any, i: Any, rows: Any, steps: Any, near: Any) -> None:
    """Fill ``near`` with the bounds of the entries ``rows`` to point i, by their codes of ``steps`` registers."""
    if m == 2:
        bound_planes(codes, queries, i, POINT, rows, steps, near)
        return
    data, meta, stride = codes
    query, scales = queries
    for place in range(len(rows)):
        if place + AHEAD < len(rows):
            fetch(data, np.int64(rows[np.uintp(place + AHEAD)]) * stride)
        at = np.int64(rows[np.uintp(place)]) * stride
        near[np.uintp(place)] = low_point(data, at, meta, m, query, i * 16 * len(steps), scales[i, 0], steps)


# --- votes, and scans for subspaces


@njit(nogil=True, cache=True)
def count_votes(offsets: Any, members: Any, cells: Any, weights: Any, votes: Any) -> Any:
    """Add the weight of each cell (P,) to the votes of the entries in its list; return how many were cast."""
    cast = np.int64(0)
    for p in range(len(cells)):
        first, stop, weight = np.uintp(offsets[cells[p]]), np.uintp(offsets[cells[p] + 1]), weights[p]
        for at in range(first, stop):
            votes[np.uintp(members[at])] += weight
        cast += np.int64(stop) - np.int64(first)
    return cast


@njit(nogil=True, cache=True)
def least_votes(votes: Any, count: Any, keep: Any) -> Any:
    """Return how many votes an entry must have, so that about ``keep`` of ``count`` have them: at least 1."""
    step = max(1, count // VOTE_SAMPLE)
    having = np.zeros(MOST_VOTES + 1, np.int64)
    for row in range(0, count, step):
        having[votes[row]] += step
    least, above = MOST_VOTES, 0
    while least > 1:
        above += having[least]
        if above > keep:
            return least if above == having[least] else least + 1  # the best are taken even if they are too many
        least -= 1
    return 1


@njit(nogil=True, cache=True)
def rows_with_votes(votes: Any, count: Any, least: Any, rows: Any) -> Any:
    """Fill ``rows`` with those that have at least ``least`` votes, ascending, and return how many."""
    cuts = np.full(SCAN_WIDTH, np.uint8(least - 1), np.uint8)
    listed = 0
    for first in range(0, count, SCAN_WIDTH):
        mask = ~at_most(votes, first, cuts)
        while mask:
            rows[np.uintp(listed)] = first + lowest_bit(mask)
            listed += 1
            mask &= mask - np.uint64(1)
    return listed


@njit(nogil=True, cache=True)
def scan_voted(
    part: Any, alive: Any, fine: Any, coarse: Any, m0: Any, probes: Any, weights: Any, share: Any, room: Any,
    keep: Any, lows: Any, rows: Any,
) -> Any:  # fmt: skip
    """Fill ``lows`` and ``rows`` (Q, R) like ``scan_points``, for subspaces that the probed cells vote for.

    ``fine`` and ``coarse``: rows (Q, m0 + 1, width) int16 flat and scales (Q, 2). ``weights`` (P,) uint8, 255 in all at
    most; ``share``: bounds per vote cast. ``room``: votes (N + 64,) uint8, all 0, and 0 again
    afterwards, rows (N,) int32 and bounds (N,) float32. ``keep``: about how many planes the coarse codes pass on.
    """
    offsets, members, coarse_codes, fine_codes, m = part
    votes, candidates, near = room
    total, bounded = len(candidates), 0
    for i in range(len(probes)):
        cast = count_votes(offsets, members, probes[i], weights, votes)
        candidate_count = rows_with_votes(votes, total, least_votes(votes, total, np.int64(share * cast)), candidates)
        votes[:] = 0
        bounded += candidate_count
        if m0 == 2 and m == 2:
            if candidate_count > keep:
                bound_planes(coarse_codes, coarse, i, PLANE, candidates[:candidate_count], COARSE_STEPS, near)
                candidate_count = take_lowest(near, candidates, candidate_count, keep)
            bound_planes(fine_codes, fine, i, PLANE, candidates[:candidate_count], FINE_STEPS, near)
        else:
            bound_subspaces(fine_codes, m, fine, m0, i, candidates[:candidate_count], near)
        for place in range(candidate_count):
            if near[place] < lows[i, 0] and alive[candidates[place]]:
                sift_down(lows[i], rows[i], 0, rows.shape[1], near[place], candidates[place])
    return bounded


@njit(nogil=True, cache=True)
def bound_subspaces(codes: Any, m: Any, fine: Any, m0: Any, i: Any, rows: Any, near: Any) -> None:
    """Fill ``near`` with the bounds of the entries ``rows`` of any dimension to query i, by their fine codes."""
    data, meta, stride = codes
    query, scales = fine
    work = np.empty((m + 1, MOST_DIRECTIONS + 1 + m), np.float32)
    for place in range(len(rows)):
        if place + AHEAD < len(rows):
            later = np.int64(rows[np.uintp(place + AHEAD)]) * stride
            fetch(data, later)
            fetch(data, later + 64)
        at = np.int64(rows[np.uintp(place)]) * stride
        query_at = i * (m0 + 1) * HEAD
        near[np.uintp(place)] = low_subspace(
            data, at + 12, meta, at >> 2, m, query, query_at, scales, i, m0, work
        )  # fmt: skip
