# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of searching by votes: every cell a query probes votes for the entries filed under it.

Two subspaces through neighbouring points share many cells; others share few. A vote costs a byte in a table that stays
in the cache, a bound a code from memory: so many cells vote, and only entries with many votes are bounded. Imported
only where numba is wanted.
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
"""About so many entries are asked for their votes to find out how many votes are many."""

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
def least_votes(votes: Any, count: Any, wanted: Any) -> Any:
    """Return how many votes an entry must have, so that about ``wanted`` of ``count`` have them: at least 1."""
    step = max(1, count // SAMPLE)
    having = np.zeros(MOST_VOTES + 1, np.int64)
    for row in range(0, count, step):
        having[votes[row]] += step
    least, above = MOST_VOTES, 0
    while least > 1:
        above += having[least]
        if above > wanted:
            return least if above == having[least] else least + 1  # the best are taken, though they be too many
        least -= 1
    return 1


@njit(nogil=True, cache=True)
def rows_with_votes(votes: Any, count: Any, least: Any, rows: Any) -> Any:
    """Fill ``rows`` with those that have at least so many votes, ascending, and return how many."""
    cuts = np.full(SCAN_WIDTH, np.uint8(least - 1), np.uint8)
    found = 0
    for first in range(0, count, SCAN_WIDTH):
        mask = ~at_most(votes, first, cuts)
        while mask:
            rows[np.uintp(found)] = first + lowest_bit(mask)
            found += 1
            mask &= mask - np.uint64(1)
    return found


@njit(nogil=True, cache=True)
def scan_voted(
    part: Any, alive: Any, fine: Any, coarse: Any, m0: Any, probes: Any, weights: Any, share: Any, room: Any,
    left: Any, lows: Any, rows: Any,
) -> Any:  # fmt: skip
    """Fill ``lows`` and ``rows`` (Q, R) like ``pointscan.scan_points``, for subspaces that the probed cells vote for.

    ``fine`` and ``coarse``: rows (Q, m0 + 1, width) int16 flat and scales (Q, 2). ``weights`` (P,) uint8, 255 in all at
    most; ``share``: how many of the votes cast may be bounds. ``room``: votes (N + 64,) uint8, all 0, and 0 again
    afterwards, rows (N,) int32 and bounds (N,) float32. ``left``: about how many planes the coarse codes leave.
    """
    offsets, members, coarse_codes, fine_codes, m = part
    votes, chosen, near = room
    total, looked = len(chosen), 0
    for i in range(len(probes)):
        cast = count_votes(offsets, members, probes[i], weights, votes)
        found = rows_with_votes(votes, total, least_votes(votes, total, np.int64(share * cast)), chosen)
        votes[:] = 0
        looked += found
        if m0 == 2 and m == 2:
            if found > left:
                bound_planes(coarse_codes, coarse, i, PLANE, chosen[:found], COARSE_STEPS, near)
                found = take_lowest(near, chosen, found, left)
            bound_planes(fine_codes, fine, i, PLANE, chosen[:found], FINE_STEPS, near)
        else:
            bound_subspaces(fine_codes, m, fine, m0, i, chosen[:found], near)
        for place in range(found):
            if near[place] < lows[i, 0] and alive[chosen[place]]:
                sift_down(lows[i], rows[i], 0, rows.shape[1], near[place], chosen[place])
    return looked


@njit(nogil=True, cache=True)
def bound_subspaces(codes: Any, m: Any, fine: Any, m0: Any, i: Any, chosen: Any, near: Any) -> None:
    """Do the same for subspaces of any dimensions, by their fine codes."""
    data, meta, stride = codes
    query, scales = fine
    work = np.empty((m + 1, MOST_DIRECTIONS + 1 + m), np.float32)
    for place in range(len(chosen)):
        if place + AHEAD < len(chosen):
            later = np.int64(chosen[np.uintp(place + AHEAD)]) * stride
            fetch(data, later)
            fetch(data, later + 64)
        at = np.int64(chosen[np.uintp(place)]) * stride
        query_at = i * (m0 + 1) * HEAD
        near[np.uintp(place)] = low_subspace(
            data, at + 12, meta, at >> 2, m, query, query_at, scales, i, m0, work
        )  # fmt: skip
