# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of searching by votes: every cell a query probes votes for the entries filed under it.

Two subspaces through neighbouring points share many cells; others share few. A vote costs a byte in a table that stays
in the cache, a bound a code from memory: so many cells vote, and only entries with many votes are bounded. Imported
only where numba is wanted.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.bytedots import byte_dots
from sfumato.search.codes import HEAD, MOST_DIRECTIONS
from sfumato.search.invertedscan import AHEAD, LEAST_PIVOT, low_subspace, sift_down
from sfumato.subspace.bytescan import WIDTH, at_most, lowest_bit
from sfumato.subspace.dots import fetch

PLANE = (1, 1)
"""A plane has two directions: bounds of planes are computed by code made for them."""

SAMPLE = 8192
"""About so many entries are asked for their votes to find out how many votes are many."""

MOST_VOTES = 255


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def count_votes(offsets: Any, members: Any, cells: Any, weights: Any, votes: Any) -> Any:
    """Add the weight of each cell (P,) to the votes of the entries in its list; return how many were cast."""
    cast = np.int64(0)
    for p in range(len(cells)):
        first, stop, weight = np.uintp(offsets[cells[p]]), np.uintp(offsets[cells[p] + 1]), weights[p]
        for at in range(first, stop):
            votes[np.uintp(members[at])] += weight
        cast += np.int64(stop) - np.int64(first)
    return cast


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def low_planes(sums: Any, meta: Any, at: Any, origin_scale: Any, basis_scale: Any) -> Any:
    """Return what ``low_subspace`` does for two planes, from the products (3, 3) of their rows."""
    scale0, scale1 = meta[at + 1], meta[at + 2]
    b1, b2 = sums[1] * (basis_scale * scale0), sums[2] * (basis_scale * scale0)
    mixed, crossed = basis_scale * scale1, origin_scale * scale1
    m11, m12, m21, m22 = sums[4] * mixed, sums[5] * mixed, sums[7] * mixed, sums[8] * mixed
    u1 = sums[3] * crossed + m11 * b1 + m12 * b2
    u2 = sums[6] * crossed + m21 * b1 + m22 * b2
    pivot1 = max(np.float32(1) - m11 * m11 - m12 * m12, np.float32(LEAST_PIVOT))
    factor = -(m11 * m21 + m12 * m22) / pivot1
    pivot2 = max(np.float32(1) - m21 * m21 - m22 * m22 - factor * factor * pivot1, np.float32(LEAST_PIVOT))
    u2 -= factor * u1
    along = np.float32(2) * sums[0] * (origin_scale * scale0)
    return meta[at] - along - b1 * b1 - b2 * b2 - u1 * u1 / pivot1 - u2 * u2 / pivot2


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def chosen_rows(votes: Any, count: Any, least: Any, rows: Any) -> Any:
    """Fill ``rows`` with those that have at least so many votes, ascending, and return how many."""
    cuts = np.full(WIDTH, np.uint8(least - 1), np.uint8)
    found = 0
    for first in range(0, count, WIDTH):
        mask = ~at_most(votes, first, cuts)
        while mask:
            rows[np.uintp(found)] = first + lowest_bit(mask)
            found += 1
            mask &= mask - np.uint64(1)
    return found


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def scan_voted(
    part: Any, alive: Any, query: Any, scales: Any, m0: Any, probes: Any, weights: Any, share: Any, room: Any,
    lows: Any, rows: Any,
) -> Any:  # fmt: skip
    """Fill ``lows`` and ``rows`` (Q, R) like ``invertedscan.scan``, for subspaces that the probed cells vote for.

    ``weights`` (P,) uint8, 255 in all at most; ``share``: how many of the votes cast may be bounds. ``room``: votes
    (N + 64,) uint8, all 0, and 0 again afterwards, and rows (N,) int32.
    """
    offsets, members, codes, meta, stride, m = part
    votes, chosen = room
    total, count, looked = len(chosen), rows.shape[1], 0
    sums = np.zeros(16, np.int32)
    work = np.empty((m + 1, MOST_DIRECTIONS + 1 + m), np.float32)
    planes = m0 == 2 and m == 2
    for i in range(len(probes)):
        cast = count_votes(offsets, members, probes[i], weights, votes)
        found = chosen_rows(votes, total, least_votes(votes, total, np.int64(share * cast)), chosen)
        votes[:] = 0
        looked += found
        query_at, bounds, kept = i * (m0 + 1) * HEAD, lows[i], rows[i]
        for place in range(found):
            if place + AHEAD < found:
                later = np.int64(chosen[np.uintp(place + AHEAD)]) * stride
                fetch(codes, later)
                fetch(codes, later + 64)
            row = np.int64(chosen[np.uintp(place)])
            at = row * stride
            if planes:
                byte_dots(codes, at + 12, PLANE, query, np.int64(query_at), PLANE, sums, 0)
                low = low_planes(sums, meta, at >> 2, scales[i, 0], scales[i, 1])
            else:
                low = low_subspace(codes, at + 12, meta, at >> 2, m, query, query_at, scales, i, m0, work)
            if low < bounds[0] and alive[row]:
                sift_down(bounds, kept, 0, count, low, np.int32(row))
    return looked
