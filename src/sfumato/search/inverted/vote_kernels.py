# SPDX-License-Identifier: Apache-2.0
"""Compiled scan by votes: every cell that a query probes votes for the entries in its list.

Two subspaces through neighbouring points share many cells; others share few. A vote costs one byte in a table that
stays in the cache, a bound costs a code from memory: many cells vote, and only entries with many votes are bounded.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS
from sfumato.search.inverted.codes import HEAD, MOST_DIRECTIONS
from sfumato.search.inverted.kernels import AHEAD, low_subspace, sift_down
from sfumato.search.inverted.point_kernels import PLANE, bound_planes, take_lowest
from sfumato.subspace.kernels.simd import SCAN_WIDTH, at_most, fetch, lowest_bit

SAMPLE = 8192
"""The votes of about this many entries give the number of votes that counts as many."""

MOST_VOTES = 255


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
    step = max(1, count // SAMPLE)
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
