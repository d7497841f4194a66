# SPDX-License-Identifier: Apache-2.0
"""Candidates for the nearest of each row, compiled: bounds first, then brackets.

A pair whose byte says that it is too far is skipped. For the others the full panels give a bracket of the squared
distance. What may still be among the nearest goes to ``exact.decide``, which evaluates it in float64.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.kernels.bounds import LARGEST, bracket
from sfumato.subspace.kernels.exact import keep_least
from sfumato.subspace.kernels.simd import (
    LANES,
    SCAN_WIDTH,
    at_most,
    bit_count,
    borrow,
    fetch,
    lower,
    lowest_bit,
    pair_dots,
)

AHEAD = 3
"""A row is fetched this many pairs before it is needed."""

LINE = 32
"""16-bit integers in a cache line."""

ROWS_AHEAD = 8
"""The bytes of a row are fetched this many rows before they are scanned."""


class PanelSide(NamedTuple):
    """One side of a search: ``fine`` (N, m + 1, 16 steps) int16 flat, the ``norms`` (N,) of its origins.

    ``ones`` is as long as a panel has rows besides the origin: m, or n - m in the dual form.
    """

    fine: Any
    norms: Any
    ones: Any


class SearchRules(NamedTuple):
    """Constants of a search: ``scales`` of the fine panels, ``step`` of the bytes, its ``limit``.

    ``floor``: squared distances up to this may count as 0, and are all of interest.
    """

    scales: Any
    step: Any
    limit: Any
    floor: Any


class Scratch(NamedTuple):
    """Scratch arrays of one thread: ``own``, ``other``, ``low`` are the ``counts[0]`` candidates so far.

    ``counts[1]`` pairs were bracketed.
    """

    own: Any
    other: Any
    low: Any
    counts: Any
    line: Any
    todo: Any
    seeds: Any
    cuts: Any
    sums: Any
    offsets: Any
    lows: Any
    highs: Any
    rows: Any
    columns: Any


@njit(nogil=True, cache=True)
def scratch(width: Any, candidates: Any, stacked: Any) -> Any:
    """Return room for rows of ``width`` pairs, ``candidates`` at a time, and ``stacked`` products of a pair."""
    return Scratch(
        np.empty(candidates, np.int32),
        np.empty(candidates, np.int32),
        np.empty(candidates, np.float32),
        np.zeros(2, np.int64),
        np.empty(width + SCAN_WIDTH, np.uint8),
        np.empty(width, np.int32),
        np.empty(width, np.int32),
        np.empty(SCAN_WIDTH, np.uint8),
        np.zeros(stacked * LANES, np.int32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.int32),
        np.zeros(LANES, np.int32),
    )


@njit(nogil=True, inline="always")
def _cut(limit: Any, step: Any) -> Any:
    """Return the largest byte whose pairs may be within a squared distance."""
    return np.uint8(limit / step) if limit < LARGEST * step else np.uint8(LARGEST)


@njit(nogil=True, cache=True)
def _collect(bytes_: Any, at: Any, count: Any, cut: Any, skipped: Any, todo: Any, room: Scratch) -> Any:
    """List in todo which of ``count`` bytes from ``at`` are at most ``cut``, except the first ``skipped`` seeds."""
    listed, passed = 0, 0
    room.cuts[:] = cut
    for first in range(0, count, SCAN_WIDTH):
        mask = at_most(bytes_, at + first, room.cuts)
        if count - first < SCAN_WIDTH:
            mask &= (np.uint64(1) << np.uint64(count - first)) - np.uint64(1)
        while mask:
            other = first + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            while passed < skipped and room.seeds[passed] < other:
                passed += 1
            if passed >= skipped or room.seeds[passed] != other:
                todo[listed] = other
                listed += 1
    return listed


@njit(nogil=True, cache=True)
def _promising_level(bytes_: Any, at: Any, count: Any, keep: Any, room: Scratch) -> Any:
    """Return a byte that at least ``keep`` of ``count`` bytes do not exceed."""
    room.cuts[:] = 255
    for first in range(0, count - SCAN_WIDTH + 1, SCAN_WIDTH):
        lower(bytes_, at + first, room.cuts)
    level = np.uint8(255)
    for k in range(SCAN_WIDTH):
        level = min(level, room.cuts[k])
    for rest in range(count // SCAN_WIDTH * SCAN_WIDTH, count):
        level = min(level, bytes_[at + rest])
    while keep > 1 and level < LARGEST:
        below = 0
        room.cuts[:] = level
        for first in range(0, count, SCAN_WIDTH):
            mask = at_most(bytes_, at + first, room.cuts)
            if count - first < SCAN_WIDTH:
                mask &= (np.uint64(1) << np.uint64(count - first)) - np.uint64(1)
            below += bit_count(mask)
        if below >= keep:
            break
        level += np.uint8(1)
    return level


@njit(nogil=True, inline="always")
def _put(sides: Any, i: Any, j: Any, lane: Any, room: Scratch) -> None:
    """Make a pair of rows of side 0 and 1 one of the eight to be bracketed."""
    side0, side1 = sides
    stride0, stride1 = len(side0.fine) // len(side0.norms), len(side1.fine) // len(side1.norms)
    steps = stride0 // ((len(side0.ones) + 1) * 2 * LANES)
    pair_dots(side0.fine, i * stride0, side1.fine, j * stride1, steps, side0.ones, side1.ones, room.sums, lane)
    room.offsets[lane] = side0.norms[i] + side1.norms[j]
    room.rows[lane], room.columns[lane] = i, j


@njit(nogil=True, inline="always")
def _add_candidate(own: Any, other: Any, low: Any, room: Scratch) -> None:
    """Add a pair to the candidates."""
    at = room.counts[0]
    room.own[at], room.other[at], room.low[at] = own, other, low
    room.counts[0] = at + 1


@njit(nogil=True, cache=True)
def _examine(
    sides: Any, rules: SearchRules, row: Any, first: Any, todo: Any, count: Any, limit: Any, line: Any, tops: Any,
    upper: Any, room: Scratch,
) -> Any:  # fmt: skip
    """Bracket the pairs of a row of side 0 with ``todo`` columns; return the squared distance still of interest.

    ``line`` are the bytes of the row, raised by what is learnt; ``tops`` (1, keep) the least upper ends of the row.
    """
    at, keep, stride = 0, tops.shape[1], len(sides[1].fine) // len(sides[1].norms)
    while at < count:
        lanes, cut = 0, _cut(limit, rules.step)
        while at < count and lanes < LANES:
            if at + AHEAD < count:
                for place in range((first + todo[at + AHEAD]) * stride, (first + todo[at + AHEAD] + 1) * stride, LINE):
                    fetch(sides[1].fine, place)
            if line[todo[at]] <= cut:
                _put(sides, row, first + todo[at], lanes, room)
                lanes += 1
            at += 1
        bracket(room.sums, room.offsets, rules.scales, sides[0].ones, sides[1].ones, room.lows, room.highs)
        room.counts[1] += lanes
        for lane in range(lanes):
            low, high, other = room.lows[lane], room.highs[lane], room.columns[lane] - first
            line[other] = max(line[other], np.uint8(min(low / rules.step, np.float32(LARGEST))))
            if upper.shape[1]:
                keep_least(upper, other, high)
            if low <= limit:
                _add_candidate(row, room.columns[lane], low, room)
                keep_least(tops, 0, high)
                limit = max(min(limit, np.float64(tops[0, keep - 1])), rules.floor)
    return limit


def sweep_rows(
    sides: Any,
    rules: SearchRules,
    rows: Any,
    columns: Any,
    bytes_: Any,
    stride: Any,
    best: Any,
    upper: Any,
    room: Scratch,
) -> None:
    """List candidates for the nearest of rows [start, stop) of side 0 in columns [start, stop) of side 1.

    ``bytes_`` uint8 flat, a row every ``stride``, are raised where a pair was bracketed; ``best`` (N0, keep) the
    squared distances of the nearest so far; ``upper`` (columns, keep of side 1) receives upper bounds for the columns.
    """
    tops = np.empty((1, best.shape[1]), np.float32)
    _sweep_rows(sides, rules, rows, columns, bytes_, stride, best, upper, tops, room)


@njit(nogil=True, cache=True)
def _sweep_rows(
    sides: Any, rules: SearchRules, rows: Any, columns: Any, bytes_: Any, stride: Any, best: Any, upper: Any, tops: Any,
    room: Scratch,
) -> None:  # fmt: skip
    sides, bytes_, upper, tops, room = borrow((sides, bytes_, upper, tops, room))
    count, keep, first = columns[1] - columns[0], best.shape[1], columns[0]
    for row in range(rows[0], rows[1]):
        at, limit, seeded, start = (row - rows[0]) * stride, max(best[row, keep - 1], rules.floor), 0, room.counts[0]
        line = bytes_[at : at + count]
        tops[:] = np.inf
        for again in range(2):
            if again:
                listed = _collect(bytes_, at, count, _cut(limit, rules.step), np.int64(seeded), room.todo, room)
                limit = _examine(sides, rules, row, first, room.todo, listed, limit, line, tops, upper, room)
            elif limit >= rules.limit:  # nothing is known yet: begin with what looks nearest
                level = _promising_level(bytes_, at, count, min(keep, count), room)
                seeded = _collect(bytes_, at, count, np.uint8(level), np.int64(0), room.seeds, room)
                limit = _examine(sides, rules, row, first, room.seeds, seeded, limit, line, tops, upper, room)
        end = start
        for at in range(start, room.counts[0]):
            if room.low[at] <= limit:
                room.other[end], room.low[end] = room.other[at], room.low[at]
                room.own[end] = row
                end += 1
        room.counts[0] = end


def sweep_columns(
    sides: Any, rules: SearchRules, rows: Any, columns: Any, bytes_: Any, at: Any, stride: Any, best: Any,
    ceilings: Any, room: Scratch,
) -> None:  # fmt: skip
    """List candidates for the nearest of columns [start, stop) of side 1 in rows [start, stop) of side 0.

    Their bytes begin at bytes_[at], a row every ``stride``; ``ceilings`` (N1,) squared distances that the last
    neighbour of each column does not exceed. Rows pass once, so each is fetched for all columns that need it; before
    that, the pairs that look nearest of each column.
    """
    width = columns[1] - columns[0]
    blocks = -(-width // SCAN_WIDTH)
    limits, tops = np.empty(width), np.full((width, best.shape[1]), np.inf, np.float32)
    levels = np.zeros((3, blocks, SCAN_WIDTH), np.uint8)
    _sweep_columns(sides, rules, rows, columns, bytes_, at, stride, best, ceilings, limits, tops, levels, room)


@njit(nogil=True, cache=True)
def _sweep_columns(
    sides: Any, rules: SearchRules, rows: Any, columns: Any, bytes_: Any, at: Any, stride: Any, best: Any,
    ceilings: Any, limits: Any, tops: Any, levels: Any, room: Scratch,
) -> None:  # fmt: skip
    sides, bytes_, limits, tops, levels, room = borrow((sides, bytes_, limits, tops, levels, room))
    width, first, keep, blocks = columns[1] - columns[0], columns[0], best.shape[1], levels.shape[1]
    active = np.zeros(blocks, np.uint64)
    cuts, least, nothing = levels[0], levels[1], levels[2]
    least[:] = 255
    for row in range(rows[1] - rows[0]):
        for block in range(blocks):
            lower(bytes_, at + row * stride + block * SCAN_WIDTH, least[block])
    for c in range(width):
        limits[c] = max(min(best[first + c, keep - 1], ceilings[first + c]), rules.floor)
        if keep > 1 and limits[c] >= rules.limit:
            for row in range(rows[1] - rows[0]):
                room.line[row] = bytes_[at + row * stride + c]
            height = rows[1] - rows[0]
            level = _promising_level(room.line, np.int64(0), height, min(keep, height), room)
            least[c // SCAN_WIDTH, c % SCAN_WIDTH] = min(level, _cut(limits[c], rules.step))
        if least[c // SCAN_WIDTH, c % SCAN_WIDTH] <= _cut(limits[c], rules.step):
            active[c // SCAN_WIDTH] |= np.uint64(1) << np.uint64(c % SCAN_WIDTH)
    large = len(sides[0].fine) // len(sides[0].norms)
    for again in range(2):
        for c in range(width):
            cuts[c // SCAN_WIDTH, c % SCAN_WIDTH] = _cut(limits[c], rules.step)
        over, under = (cuts, least) if again else (least, nothing)
        lanes = 0
        for row in range(rows[0], rows[1] + 1):
            if again and row + 1 < rows[1]:
                for place in range((row + 1) * large, (row + 2) * large, LINE):
                    fetch(sides[0].fine, place)
            for block in range(blocks):
                place, mask = at + (row - rows[0]) * stride + block * SCAN_WIDTH, np.uint64(0)
                fetch(bytes_, place + ROWS_AHEAD * stride)
                if row < rows[1]:
                    mask = active[block] & at_most(bytes_, place, over[block])
                    if again:
                        mask &= ~at_most(bytes_, place, under[block])
                while mask:
                    _put(sides, row, first + block * SCAN_WIDTH + lowest_bit(mask), lanes, room)
                    mask &= mask - np.uint64(1)
                    lanes += 1
                    if lanes == LANES:
                        _settle(sides, rules, np.int64(lanes), first, limits, cuts, tops, room)
                        lanes = 0
            if row == rows[1] and lanes:
                _settle(sides, rules, np.int64(lanes), first, limits, cuts, tops, room)


@njit(nogil=True, cache=True)
def _settle(
    sides: Any, rules: SearchRules, lanes: Any, first: Any, limits: Any, cuts: Any, tops: Any, room: Scratch
) -> None:
    """Bracket up to eight pairs and list those that may be among the nearest of their columns."""
    bracket(room.sums, room.offsets, rules.scales, sides[0].ones, sides[1].ones, room.lows, room.highs)
    room.counts[1] += lanes
    for lane in range(lanes):
        c, low = room.columns[lane] - first, room.lows[lane]
        if low <= limits[c]:
            _add_candidate(first + c, room.rows[lane], low, room)
            keep_least(tops, c, room.highs[lane])
            limits[c] = max(min(limits[c], np.float64(tops[c, tops.shape[1] - 1])), rules.floor)
            cuts[c // SCAN_WIDTH, c % SCAN_WIDTH] = _cut(limits[c], rules.step)
