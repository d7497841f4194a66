# SPDX-License-Identifier: Apache-2.0
"""The compiled loops of the kind "inverted": scanning codes, settling what is left exactly.

Imported only where numba is wanted. Arrays are flat. Positions are unsigned inside the loops, as in
``sfumato.subspace.pairs``.
"""

from typing import Any

import numpy as np
from numba import njit

from sfumato.search.bytedots import FINE_STEPS, byte_dot
from sfumato.search.cellscan import sift_down
from sfumato.search.codes import HEAD, MOST_DIRECTIONS
from sfumato.subspace.dots import fetch
from sfumato.subspace.pairs import exact, work_size

AHEAD = 12
"""How many entries before its turn a code is asked for."""

LEAST_PIVOT = 0.02
"""Directions that two subspaces nearly share on a few axes settle nothing there: their pivot counts as this."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _dot(codes: Any, at: Any, query: Any, query_at: Any) -> Any:
    return np.float32(byte_dot(codes, np.int64(at), query, np.int64(query_at), FINE_STEPS))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _low_angle(
    codes: Any, at: Any, meta: Any, meta_at: Any, m: Any, query: Any, query_at: Any, scale: Any, m0: Any
) -> Any:
    """Return less the sum of the squared cosines, on the axes of the code, of two linear subspaces."""
    low, factor = np.float32(0.0), scale * meta[meta_at + 2]
    for r in range(m):
        for c in range(m0):
            part = _dot(codes, at + (r + 1) * HEAD, query, query_at + (c + 1) * HEAD) * factor
            low -= part * part
    return low


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def scan(
    part: Any, alive: Any, query: Any, scales: Any, m0: Any, probes: Any, linear: Any, seen: Any, lows: Any, rows: Any
) -> Any:
    """Fill ``lows`` and ``rows`` (Q, R) with the entries of the probed lists that look nearest to subspaces.

    ``part`` as ``Filed.compiled`` returns it. ``query`` (Q, m0 + 1, HEAD) int16 flat, ``scales`` (Q, 2), ``probes``
    (Q, P), ``seen`` a bit for each entry, all 0, and 0 again afterwards. Heaps, the greatest first; row -1 where there
    are fewer than R. Returns how many were looked at.
    """
    offsets, members, _, (codes, meta, stride), m = part
    count, looked = rows.shape[1], 0
    room = np.empty((m + 1, MOST_DIRECTIONS + 1 + m), np.float32)
    for i in range(len(probes)):
        query_at = i * (m0 + 1) * HEAD
        bounds, kept = lows[i], rows[i]
        for p in range(probes.shape[1]):
            cell = probes[i, p]
            for at in range(offsets[cell], offsets[cell + 1]):
                if at + AHEAD < offsets[cell + 1]:
                    later = np.int64(members[np.uintp(at + AHEAD)]) * stride
                    fetch(codes, later)
                    fetch(codes, later + 64)
                row = np.int64(members[np.uintp(at)])
                word, bit = np.uintp(row >> 6), np.uint64(1) << np.uint64(row & 63)
                if seen[word] & bit:
                    continue
                seen[word] |= bit
                looked += 1
                place = row * stride
                if linear:
                    low = _low_angle(codes, place + 12, meta, place >> 2, m, query, query_at, scales[i, 1], m0)
                else:
                    low = low_subspace(
                        codes, place + 12, meta, place >> 2, m, query, query_at, scales, i, m0, room
                    )  # fmt: skip
                if low < bounds[0] and alive[row]:
                    sift_down(bounds, kept, 0, count, low, np.int32(row))
        seen[:] = 0
    return looked


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def settle(
    queries: Any, entries: Any, n: Any, lows: Any, rows: Any, shift: Any, slack: Any, zeros: Any, best: Any, where: Any
) -> Any:
    """Compare the candidates of ``scan`` exactly, the likeliest first, until no other can be among the k nearest.

    ``queries``, ``entries``: origin and basis flat, and m. ``shift`` (Q,): what ``lows`` lack of squared distances;
    ``slack``: how far they may be too great. Fills ``best`` (Q, k) with squared distances, ``where`` with rows.
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
