# SPDX-License-Identifier: Apache-2.0
"""Find the nearest of each row among many, compiled: bounds first, then brackets, then the definition.

A pair whose byte says that it is too far is left alone; of the others the full panels give a bracket of the squared
distance; what may still be among the nearest is evaluated in float64 as the reference defines it, and only those values
are compared and kept. So the result does not depend on how good the bounds were. Imported only by ``fast``.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from sfumato.subspace.bounds import LARGEST, bracket
from sfumato.subspace.bytescan import WIDTH, at_most, bit_count, lower, lowest_bit
from sfumato.subspace.dots import fetch, pair_dots
from sfumato.subspace.lanes import LANES
from sfumato.subspace.pairs import exact


AHEAD = 3
"""So many pairs before a row is needed, it is asked for."""

LINE = 32
"""16-bit integers in a cache line."""


class Side(NamedTuple):
    """One side: ``origin``, ``basis`` float32 flat; ``fine`` (N, rows + 1, 16 steps) int16 flat, its ``norms`` (N,).

    ``ones`` is as long as a panel has rows besides the origin: the dimension ``dim``, or n - dim in the dual form.
    """

    origin: Any
    basis: Any
    fine: Any
    norms: Any
    ones: Any
    dim: Any


class Rules(NamedTuple):
    """What holds for a whole search: ``scales`` of the fine panels, ``step`` of the bytes, squares up to ``zero`` are 0,
    and nothing beyond ``limit`` is wanted."""

    scales: Any
    step: Any
    zero: Any
    limit: Any


class Scratch(NamedTuple):
    """Room for one thread."""

    line: Any
    todo: Any
    seeds: Any
    sums: Any
    offsets: Any
    low: Any
    high: Any
    chosen: Any
    outside: Any
    cuts: Any
    counts: Any


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def scratch(width: Any, dim0: Any, dim1: Any, m0: Any, m1: Any, n: Any) -> Any:
    """Return room for rows of ``width`` pairs; ``counts`` will say how many pairs were bracketed, and decided."""
    return Scratch(
        np.empty(width + WIDTH, np.uint8),
        np.empty(width, np.int64),
        np.empty(width, np.int64),
        np.zeros((m0 + 1) * (m1 + 1) * LANES, np.int32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.float32),
        np.zeros(LANES, np.int64),
        np.empty((min(dim0, dim1) + 1) * n),
        np.empty(WIDTH, np.uint8),
        np.zeros(2, np.int64),
    )


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _insert(best: Any, where: Any, row: Any, value: Any, other: Any) -> None:
    """Put a value among the nearest of a row, which stay in order; of equal values the lower number comes first."""
    at = best.shape[1] - 1
    if value > best[row, at] or (value == best[row, at] and where[row, at] >= 0 and other > where[row, at]):
        return
    while at > 0 and (value < best[row, at - 1] or (value == best[row, at - 1] and other < where[row, at - 1])):
        best[row, at], where[row, at] = best[row, at - 1], where[row, at - 1]
        at -= 1
    best[row, at], where[row, at] = value, other


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _note_upper(upper: Any, column: Any, value: Any) -> None:
    """Keep the least upper bounds of a column in order."""
    at = upper.shape[1] - 1
    if at < 0 or value >= upper[column, at]:
        return
    while at > 0 and value < upper[column, at - 1]:
        upper[column, at] = upper[column, at - 1]
        at -= 1
    upper[column, at] = value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _cut(limit: Any, step: Any) -> Any:
    """Return the largest byte whose pairs may be within a squared distance."""
    return np.uint8(limit / step) if limit < LARGEST * step else np.uint8(LARGEST)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _fetch_row(sides: Any, flipped: Any, other: Any, stride0: Any, stride1: Any) -> None:
    """Have the fine panel of a row to come brought into the cache."""
    if flipped:
        for at in range(other * stride0, (other + 1) * stride0, LINE):
            fetch(sides[0].fine, at)
    else:
        for at in range(other * stride1, (other + 1) * stride1, LINE):
            fetch(sides[1].fine, at)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _examine(
    sides: Any, flipped: Any, rules: Rules, row: Any, first: Any, todo: Any, count: Any, limit: Any, line: Any,
    best: Any, where: Any, upper: Any, room: Scratch,
) -> Any:  # fmt: skip
    """Look at the pairs of a row with ``todo`` others, eight at a time; return the squared distance still of interest."""
    side0, side1 = sides
    m0, m1, n = side0.dim, side1.dim, len(side0.origin) // len(side0.norms)
    stride0, stride1 = len(side0.fine) // len(side0.norms), len(side1.fine) // len(side1.norms)
    steps = stride0 // ((len(side0.ones) + 1) * 2 * LANES)
    at = 0
    while at < count and limit > 0:
        lanes, cut = 0, _cut(limit, rules.step)
        while at < count and lanes < LANES:
            other = todo[at]
            at += 1
            if line[other] > cut:
                continue
            if at + AHEAD < count:
                _fetch_row(sides, flipped, first + todo[at + AHEAD], stride0, stride1)
            i, j = (first + other, row) if flipped else (row, first + other)
            pair_dots(side0.fine, i * stride0, side1.fine, j * stride1, steps, side0.ones, side1.ones, room.sums, lanes)
            room.offsets[lanes] = side0.norms[i] + side1.norms[j]
            room.chosen[lanes] = other
            lanes += 1
        bracket(room.sums, room.offsets, rules.scales, side0.ones, side1.ones, room.low, room.high)
        room.counts[0] += lanes
        for lane in range(lanes):
            other, high = room.chosen[lane], room.high[lane]
            line[other] = max(line[other], np.uint8(min(room.low[lane] / rules.step, np.float32(LARGEST))))
            if room.low[lane] <= limit and limit > 0:
                i, j = (first + other, row) if flipped else (row, first + other)
                value = exact(side0.origin, side0.basis, i, m0, side1.origin, side1.basis, j, m1, n, room.outside)
                value = 0.0 if value <= rules.zero else value
                room.counts[1] += 1
                if value <= limit:
                    _insert(best, where, row, value, first + other)
                    limit = min(limit, best[row, best.shape[1] - 1])
            if upper.shape[1]:
                _note_upper(upper, other, high)
    return limit


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _mask(bytes_: Any, at: Any, count: Any, cuts: Any) -> Any:
    """Return a mask of which of the next 64 bytes, or ``count`` if those are fewer, are at most their cuts."""
    mask = at_most(bytes_, at, cuts)
    return mask if count >= WIDTH else mask & ((np.uint64(1) << np.uint64(count)) - np.uint64(1))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _collect(bytes_: Any, at: Any, count: Any, cut: Any, skip: Any, skipped: Any, todo: Any, room: Scratch) -> Any:
    """Put into todo which of ``count`` bytes from ``at`` are at most ``cut``, but for the first ``skipped`` of skip."""
    found, passed = 0, 0
    room.cuts[:] = cut
    for first in range(0, count, WIDTH):
        mask = _mask(bytes_, at + first, count - first, room.cuts)
        while mask:
            other = first + lowest_bit(mask)
            mask &= mask - np.uint64(1)
            while passed < skipped and skip[passed] < other:
                passed += 1
            if passed >= skipped or skip[passed] != other:
                todo[found] = other
                found += 1
    return found


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _promising(bytes_: Any, at: Any, count: Any, wanted: Any, room: Scratch) -> Any:
    """Return a byte that at least ``wanted`` of ``count`` bytes do not exceed."""
    room.cuts[:] = 255
    for first in range(0, count - WIDTH + 1, WIDTH):
        lower(bytes_, at + first, room.cuts)
    level = np.int64(room.cuts.min())
    for rest in range(count // WIDTH * WIDTH, count):
        level = min(level, np.int64(bytes_[at + rest]))
    while level < LARGEST and wanted > 1:
        found = 0
        room.cuts[:] = level
        for first in range(0, count, WIDTH):
            found += bit_count(_mask(bytes_, at + first, count - first, room.cuts))
        if found >= wanted:
            break
        level += 1
    return level


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _row(
    sides: Any, flipped: Any, rules: Rules, row: Any, first: Any, bytes_: Any, at: Any, count: Any, limit: Any,
    best: Any, where: Any, upper: Any, room: Scratch,
) -> None:  # fmt: skip
    """Update the nearest of a row, whose ``count`` bounds begin at bytes_[at]."""
    line, seeded = bytes_[at : at + count], 0
    if limit >= rules.limit:  # nothing is known yet: begin with what looks nearest
        level = _promising(bytes_, at, count, min(best.shape[1], count), room)
        seeded = _collect(bytes_, at, count, level, room.seeds, 0, room.seeds, room)
        limit = _examine(sides, flipped, rules, row, first, room.seeds, seeded, limit, line, best, where, upper, room)
    if limit > 0:
        found = _collect(bytes_, at, count, _cut(limit, rules.step), room.seeds, seeded, room.todo, room)
        _examine(sides, flipped, rules, row, first, room.todo, found, limit, line, best, where, upper, room)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sweep_rows(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, stride: Any, best: Any, where: Any, upper: Any,
    room: Scratch,
) -> None:  # fmt: skip
    """Update the nearest of rows [start, stop) of side 0 with columns [start, stop) of side 1.

    ``bytes_`` uint8 flat, a row every ``stride``, are raised where a pair was looked at; ``best``, ``where`` (N0, keep)
    the nearest so far; ``upper`` (columns, keep of side 1) receives upper bounds for the columns.
    """
    for row in range(rows[0], rows[1]):
        limit, at = best[row, best.shape[1] - 1], (row - rows[0]) * stride
        count = columns[1] - columns[0]
        _row(sides, False, rules, row, columns[0], bytes_, at, count, limit, best, where, upper, room)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sweep_columns(
    sides: Any, rules: Rules, rows: Any, columns: Any, bytes_: Any, at: Any, stride: Any, best: Any, where: Any,
    known: Any, room: Scratch,
) -> None:  # fmt: skip
    """Update the nearest of up to 64 columns [start, stop) of side 1 with rows [start, stop) of side 0.

    Their bytes begin at bytes_[at], a row every ``stride``; ``known`` (N1,) squared distances that bound the farthest
    wanted of each column from above.
    """
    count, width = rows[1] - rows[0], columns[1] - columns[0]
    limits, cuts, found = np.empty(width), np.zeros(WIDTH, np.uint8), np.zeros(width, np.int64)
    todo, nothing = np.empty((width, count), np.int32), np.empty((count, 0), np.float32)
    for c in range(width):
        limits[c] = min(best[columns[0] + c, best.shape[1] - 1], known[columns[0] + c])
        cuts[c] = 0 if limits[c] >= rules.limit else _cut(limits[c], rules.step)
    for row in range(count):
        mask = _mask(bytes_, at + row * stride, width, cuts)
        while mask:
            c = lowest_bit(mask)
            mask &= mask - np.uint64(1)
            todo[c, found[c]] = row
            found[c] += 1
    for c in range(width):
        column, line = columns[0] + c, room.line
        if limits[c] >= rules.limit:
            for row in range(count):
                line[row] = bytes_[at + row * stride + c]
            _row(sides, True, rules, column, rows[0], line, 0, count, limits[c], best, where, nothing, room)
            continue
        for k in range(found[c]):
            room.todo[k] = todo[c, k]
            line[todo[c, k]] = bytes_[at + todo[c, k] * stride + c]
        _examine(
            sides, True, rules, column, rows[0], room.todo, found[c], limits[c], line, best, where, nothing, room
        )
