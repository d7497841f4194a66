# SPDX-License-Identifier: Apache-2.0
"""Find what may be among the nearest of each row, compiled: bounds first, then brackets.

A pair whose byte says that it is too far is left alone; of the others the full panels give a bracket of the squared
distance. What may still be among the nearest is handed on to be decided in float64 (see ``decide``). Imported only by
``fast``.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.kernels.bounds import LARGEST, bracket
from sfumato.subspace.kernels.byte_bounds import SCAN_WIDTH, at_most, bit_count, lower, lowest_bit
from sfumato.subspace.kernels.pairs import exact, work_size
from sfumato.subspace.kernels.simd import LANES, borrowed, fetch, pair_dots

AHEAD = 3
"""So many pairs before a row is needed, it is asked for."""

LINE = 32
"""16-bit integers in a cache line."""

ROWS_AHEAD = 8
"""So many rows before their bytes are scanned, they are asked for."""


class Side(NamedTuple):
    """One side: ``fine`` (N, m + 1, 16 steps) int16 flat, the ``norms`` (N,) of its origins.

    ``ones`` is as long as a panel has rows besides the origin: m, or n - m in the dual form.
    """

    fine: Any
    norms: Any
    ones: Any


class Rules(NamedTuple):
    """What holds for a whole search: ``scales`` of the fine panels, ``step`` of the bytes, its ``limit``.

    ``floor``: squared distances up to this may count as 0, and are all of interest.
    """

    scales: Any
    step: Any
    limit: Any
    floor: Any


class Scratch(NamedTuple):
    """Room for one thread. ``own``, ``other``, ``low``: pairs to be decided, ``counts[0]`` of them; ``counts[1]`` pairs
    were bracketed."""

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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
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


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _cut(limit: Any, step: Any) -> Any:
    """Return the largest byte whose pairs may be within a squared distance."""
    return np.uint8(limit / step) if limit < LARGEST * step else np.uint8(LARGEST)


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _note(kept: Any, row: Any, value: Any) -> None:
    """Keep the least values of a row in order."""
    at = kept.shape[1] - 1
    if value >= kept[row, at]:
        return
    while at > 0 and value < kept[row, at - 1]:
        kept[row, at] = kept[row, at - 1]
        at -= 1
    kept[row, at] = value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _collect(bytes_: Any, at: Any, count: Any, cut: Any, skipped: Any, todo: Any, room: Scratch) -> Any:
    """Put into todo which of ``count`` bytes from ``at`` are at most ``cut``, but for the first ``skipped`` seeds."""
    found, passed = 0, 0
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
                todo[found] = other
                found += 1
    return found


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _promising(bytes_: Any, at: Any, count: Any, wanted: Any, room: Scratch) -> Any:
    """Return a byte that at least ``wanted`` of ``count`` bytes do not exceed."""
    room.cuts[:] = 255
    for first in range(0, count - SCAN_WIDTH + 1, SCAN_WIDTH):
        lower(bytes_, at + first, room.cuts)
    level = np.uint8(255)
    for k in range(SCAN_WIDTH):
        level = min(level, room.cuts[k])
    for rest in range(count // SCAN_WIDTH * SCAN_WIDTH, count):
        level = min(level, bytes_[at + rest])
    while wanted > 1 and level < LARGEST:
        found = 0
        room.cuts[:] = level
        for first in range(0, count, SCAN_WIDTH):
            mask = at_most(bytes_, at + first, room.cuts)
            if count - first < SCAN_WIDTH:
                mask &= (np.uint64(1) << np.uint64(count - first)) - np.uint64(1)
            found += bit_count(mask)
        if found >= wanted:
            break
        level += np.uint8(1)
    return level


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _put(sides: Any, i: Any, j: Any, lane: Any, room: Scratch) -> None:
    """Make a pair of rows of side 0 and 1 one of the eight to be bracketed."""
    side0, side1 = sides
    stride0, stride1 = len(side0.fine) // len(side0.norms), len(side1.fine) // len(side1.norms)
    steps = stride0 // ((len(side0.ones) + 1) * 2 * LANES)
    pair_dots(side0.fine, i * stride0, side1.fine, j * stride1, steps, side0.ones, side1.ones, room.sums, lane)
    room.offsets[lane] = side0.norms[i] + side1.norms[j]
    room.rows[lane], room.columns[lane] = i, j


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _hand_on(own: Any, other: Any, low: Any, room: Scratch) -> None:
    """Note a pair for ``decide``."""
    at = room.counts[0]
    room.own[at], room.other[at], room.low[at] = own, other, low
    room.counts[0] = at + 1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _examine(
    sides: Any, rules: Rules, row: Any, first: Any, todo: Any, count: Any, limit: Any, line: Any, tops: Any, upper: Any,
    room: Scratch,
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
                _note(upper, other, high)
            if low <= limit:
                _hand_on(row, room.columns[lane], low, room)
                _note(tops, 0, high)
                limit = max(min(limit, np.float64(tops[0, keep - 1])), rules.floor)
    return limit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sweep_rows(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, stride: Any, best: Any, upper: Any, room: Scratch
) -> None:
    """Hand on what may be among the nearest of rows [start, stop) of side 0 in columns [start, stop) of side 1.

    ``bytes_`` uint8 flat, a row every ``stride``, are raised where a pair was looked at; ``best`` (N0, keep) the
    squared distances of the nearest so far; ``upper`` (columns, keep of side 1) receives upper bounds for the columns.
    """
    tops = np.empty((1, best.shape[1]), np.float32)
    _sweep_rows(sides, rules, rows, columns, bytes_, stride, best, upper, tops, room)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _sweep_rows(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, stride: Any, best: Any, upper: Any, tops: Any,
    room: Scratch,
) -> None:  # fmt: skip
    sides, bytes_, upper, tops, room = borrowed((sides, bytes_, upper, tops, room))
    count, keep, first = columns[1] - columns[0], best.shape[1], columns[0]
    for row in range(rows[0], rows[1]):
        at, limit, seeded, start = (row - rows[0]) * stride, max(best[row, keep - 1], rules.floor), 0, room.counts[0]
        line = bytes_[at : at + count]
        tops[:] = np.inf
        for again in range(2):
            if again:
                found = _collect(bytes_, at, count, _cut(limit, rules.step), seeded, room.todo, room)
                limit = _examine(sides, rules, row, first, room.todo, found, limit, line, tops, upper, room)
            elif limit >= rules.limit:  # nothing is known yet: begin with what looks nearest
                level = _promising(bytes_, at, count, min(keep, count), room)
                seeded = _collect(bytes_, at, count, level, 0, room.seeds, room)
                limit = _examine(sides, rules, row, first, room.seeds, seeded, limit, line, tops, upper, room)
        kept = start
        for at in range(start, room.counts[0]):
            if room.low[at] <= limit:
                room.other[kept], room.low[kept] = room.other[at], room.low[at]
                room.own[kept] = row
                kept += 1
        room.counts[0] = kept


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sweep_columns(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, at: Any, stride: Any, best: Any, known: Any,
    room: Scratch,
) -> None:  # fmt: skip
    """Hand on what may be among the nearest of columns [start, stop) of side 1 in rows [start, stop) of side 0.

    Their bytes begin at bytes_[at], a row every ``stride``; ``known`` (N1,) squared distances that bound the farthest
    wanted of each column from above. Rows pass once, so that each is fetched for all columns that want it; before that,
    the pairs that look nearest of each column.
    """
    width = columns[1] - columns[0]
    blocks = -(-width // SCAN_WIDTH)
    limits, tops = np.empty(width), np.full((width, best.shape[1]), np.inf, np.float32)
    levels = np.zeros((3, blocks, SCAN_WIDTH), np.uint8)
    _sweep_columns(sides, rules, rows, columns, bytes_, at, stride, best, known, limits, tops, levels, room)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _sweep_columns(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, at: Any, stride: Any, best: Any, known: Any,
    limits: Any, tops: Any, levels: Any, room: Scratch,
) -> None:  # fmt: skip
    sides, bytes_, limits, tops, levels, room = borrowed((sides, bytes_, limits, tops, levels, room))
    width, first, keep, blocks = columns[1] - columns[0], columns[0], best.shape[1], levels.shape[1]
    wanted = np.zeros(blocks, np.uint64)
    cuts, least, nothing = levels[0], levels[1], levels[2]
    least[:] = 255
    for row in range(rows[1] - rows[0]):
        for block in range(blocks):
            lower(bytes_, at + row * stride + block * SCAN_WIDTH, least[block])
    for c in range(width):
        limits[c] = max(min(best[first + c, keep - 1], known[first + c]), rules.floor)
        if keep > 1 and limits[c] >= rules.limit:
            for row in range(rows[1] - rows[0]):
                room.line[row] = bytes_[at + row * stride + c]
            wish = min(keep, rows[1] - rows[0])
            level = _promising(room.line, 0, rows[1] - rows[0], wish, room)
            least[c // SCAN_WIDTH, c % SCAN_WIDTH] = min(level, _cut(limits[c], rules.step))
        if least[c // SCAN_WIDTH, c % SCAN_WIDTH] <= _cut(limits[c], rules.step):
            wanted[c // SCAN_WIDTH] |= np.uint64(1) << np.uint64(c % SCAN_WIDTH)
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
                    mask = wanted[block] & at_most(bytes_, place, over[block])
                    if again:
                        mask &= ~at_most(bytes_, place, under[block])
                while mask:
                    _put(sides, row, first + block * SCAN_WIDTH + lowest_bit(mask), lanes, room)
                    mask &= mask - np.uint64(1)
                    lanes += 1
                    if lanes == LANES:
                        _settle(sides, rules, lanes, first, limits, cuts, tops, room)
                        lanes = 0
            if row == rows[1] and lanes:
                _settle(sides, rules, lanes, first, limits, cuts, tops, room)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _settle(sides: Any, rules: Rules, lanes: Any, first: Any, limits: Any, cuts: Any, tops: Any, room: Scratch) -> None:
    """Bracket up to eight pairs and hand on those that may be among the nearest of their columns."""
    bracket(room.sums, room.offsets, rules.scales, sides[0].ones, sides[1].ones, room.lows, room.highs)
    room.counts[1] += lanes
    for lane in range(lanes):
        c, low = room.columns[lane] - first, room.lows[lane]
        if low <= limits[c]:
            _hand_on(first + c, room.rows[lane], low, room)
            _note(tops, c, room.highs[lane])
            limits[c] = max(min(limits[c], np.float64(tops[c, tops.shape[1] - 1])), rules.floor)
            cuts[c // SCAN_WIDTH, c % SCAN_WIDTH] = _cut(limits[c], rules.step)


# ----------------------------------------------------------------
# The last word on a pair: evaluate in float64, as the reference defines it, and keep the nearest; compiled
# Only values computed here are compared and kept, so the result of a search does not depend on how good its bounds
# were.
# Imported only by ``fast``.


FLOAT_LINE = 16
"""float32 in a cache line."""


class Rows(NamedTuple):
    """``origin`` (N, n) and ``basis`` (N, m, n) of one side, float32, flat and read-only, and their ``dim`` m.

    ``zeros`` (N,) float64: squared distances up to this are what float32 rounding of an origin leaves of 0.
    """

    origin: Any
    basis: Any
    zeros: Any
    dim: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def decide(
    rows0: Rows, rows1: Rows, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any, best: Any,
    where: Any,
) -> Any:  # fmt: skip
    """Put ``count`` pairs of ``own`` and ``other`` rows among the nearest of their own; return how many were evaluated.

    ``low`` are squared distances they cannot be below. ``best``, ``where`` (N, keep) stay in order; of equal distances
    the lower number comes first. ``flipped``: own rows are those of side 1.
    """
    work = np.empty(work_size(rows0.dim, rows1.dim, n))
    return _decide(rows0, rows1, n, flipped, own, other, low, count, best, where, work)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _decide(
    rows0: Rows, rows1: Rows, n: Any, flipped: Any, own: Any, other: Any, low: Any, count: Any, best: Any, where: Any,
    work: Any,
) -> Any:  # fmt: skip
    rows0, rows1, best, where, work = borrowed((rows0, rows1, best, where, work))
    last, evaluated = best.shape[1] - 1, 0
    for k in range(count):
        if k + 1 < count:
            _ask_for(rows1 if flipped else rows0, own[k + 1], n)
            _ask_for(rows0 if flipped else rows1, other[k + 1], n)
        mine, its = np.int64(own[k]), np.int64(other[k])
        limit = best[mine, last]
        i, j = (its, mine) if flipped else (mine, its)
        zero = max(rows0.zeros[i], rows1.zeros[j])
        if low[k] > max(limit, zero) or (limit == 0 and where[mine, last] >= 0 and its > where[mine, last]):
            continue
        value = exact(rows0.origin, rows0.basis, i, rows0.dim, rows1.origin, rows1.basis, j, rows1.dim, n, work)
        evaluated += 1
        value = 0.0 if value <= zero else value
        _insert(best, where, mine, value, its)
    return evaluated


@njit(nogil=True, inline="always")  # type: ignore[untyped-decorator]
def _ask_for(rows: Rows, row: Any, n: Any) -> None:
    """Have a row brought nearer."""
    for at in range(0, n, FLOAT_LINE):
        fetch(rows.origin, row * n + at)
    for at in range(0, rows.dim * n, FLOAT_LINE):
        fetch(rows.basis, row * rows.dim * n + at)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(best: Any, where: Any, row: Any, value: Any, other: Any) -> None:
    """Put a value among the nearest of a row, unless it is farther than all of them."""
    at = best.shape[1] - 1
    if value > best[row, at] or (value == best[row, at] and where[row, at] >= 0 and other > where[row, at]):
        return
    while at > 0:
        before, number = best[row, at - 1], where[row, at - 1]
        if value > before or (value == before and 0 <= number < other):
            break
        best[row, at], where[row, at] = before, number
        at -= 1
    best[row, at], where[row, at] = value, other
