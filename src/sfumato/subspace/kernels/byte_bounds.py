# SPDX-License-Identifier: Apache-2.0
"""Brackets of the distances of a few points to many subspaces of one byte a coordinate, in one pass, compiled.

With few points a search takes as long as its subspaces take to arrive from memory: in bytes they are a quarter of what
they are in float32. Imported only by ``few``, when a search begins.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from sfumato.subspace.kernels.simd import BLOCK, INT8, INT64, LANES, SHORTS, _load, _sum_loop, borrowed, sum_lanes

WIDTH = 2 * LANES
"""Coordinates multiplied at once."""

BYTES = ir.VectorType(INT8, WIDTH)

SLACK = 1e-5
"""What rounding to float32 may do to a squared distance, as a share of the squared lengths it is computed from: a
hundred times what it does."""


class Points(NamedTuple):
    """Points as 16-bit integers: ``values`` (P, n) flat, and of each point the ``step`` between two integers, the
    ``loss`` by rounding, its ``length``, all (P,) float64."""

    values: Any
    step: Any
    loss: Any
    length: Any


class Bytes(NamedTuple):
    """Subspaces in bytes: ``values`` (N, m + 1, n) flat, the origin first; ``facts`` (N, m + 1, 4) float32.

    The facts of a row: the ``step`` between two integers, the ``loss`` by rounding, the length of the rounded row, and
    of an origin its squared length, of a direction its product with the origin.
    """

    values: Any
    facts: Any


@intrinsic  # type: ignore[untyped-decorator]
def byte_dots(
    _context: Any, points: Any, at: Any, some: Any, values: Any, row: Any, steps: Any, ones: Any, sums: Any
) -> Any:
    """Multiply as many points as ``some`` has entries with the m + 1 stacked rows of a subspace.

    ``points`` int16 from points[at], ``values`` int8 from values[row], in rows of 16 ``steps`` coordinates. Fills
    ``sums`` int32 (points, m + 1).
    """
    stack, size = len(ones) + 1, types.int64
    signature = types.void(points, size, some, values, size, size, ones, sums)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        a_data, b_data, out = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 3, 7))
        width = builder.mul(args[5], INT64(WIDTH))

        def point(number: int) -> Callable[[Any], Any]:
            place = builder.gep(a_data, [builder.add(args[1], builder.mul(width, INT64(number)))])
            return lambda step: _load(builder, place, step, WIDTH)

        def stacked(number: int) -> Callable[[Any], Any]:
            place = builder.gep(b_data, [builder.add(args[4], builder.mul(width, INT64(number)))])

            def load(step: Any) -> Any:
                here = builder.bitcast(builder.gep(place, [builder.mul(step, INT64(WIDTH))]), BYTES.as_pointer())
                return builder.sext(builder.load(here, align=1), SHORTS)

            return load

        for first in range(0, stack, BLOCK):
            rows = range(first, min(first + BLOCK, stack))
            columns = [stacked(number) for number in rows]
            totals = _sum_loop(builder, [point(number) for number in range(len(some))], columns, args[5])
            for number, line in enumerate(totals):
                for column, value in zip(rows, line, strict=True):
                    builder.store(sum_lanes(builder, value), builder.gep(out, [INT64(number * stack + column)]))
        return context.get_dummy_value()

    return signature, generate


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def bracket_bytes(
    points: Points, subspaces: Bytes, rows: Any, steps: Any, some: Any, ones: Any, lows: Any, tops: Any
) -> None:
    """Bracket the squared distances of points to subspaces [start, stop).

    Fills ``lows`` (P, N) float32 with squared distances that a pair is not below, and ``tops`` (P, k) with the k least
    that pairs of each point are not above, in order. ``some`` is a tuple as long as points are taken at once, of which
    P is a multiple.

    With x a point, u an origin and b the directions, |x - u|^2 - sum (b (x - u))^2 is the squared distance (Eq. 1). A
    product of x with a row r, computed of rounded ones, is off by at most |x| loss(r) + loss(x) |rounded r|.
    """
    sums = np.zeros(len(some) * (len(ones) + 1), np.int32)
    _bracket_bytes(points, subspaces, rows, steps, some, ones, lows, tops, sums)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _bracket_bytes(
    points: Points, subspaces: Bytes, rows: Any, steps: Any, some: Any, ones: Any, lows: Any, tops: Any, sums: Any
) -> None:
    points, subspaces, lows, tops, sums = borrowed((points, subspaces, lows, tops, sums))
    facts, stack, wide = subspaces.facts, len(ones) + 1, steps * WIDTH
    for j in range(rows[0], rows[1]):
        for first in range(0, lows.shape[0], len(some)):
            byte_dots(points.values, first * wide, some, subspaces.values, j * stack * wide, steps, ones, sums)
            for p in range(first, first + len(some)):
                at, length, step, loss = (p - first) * stack, points.length[p], points.step[p], points.loss[p]
                along = step * facts[j, 0, 0] * sums[at]
                off = length * facts[j, 0, 1] + loss * facts[j, 0, 2]
                near = length * length + facts[j, 0, 3]
                slack = SLACK * near
                low, high = near - 2 * (along + off) - slack, near - 2 * (along - off) + slack
                for k in range(1, stack):
                    part = abs(step * facts[j, k, 0] * sums[at + k] - facts[j, k, 3])
                    doubt = length * facts[j, k, 1] + loss * facts[j, k, 2]
                    low -= (part + doubt) * (part + doubt)
                    least = max(part - doubt, 0.0)
                    high -= least * least
                lows[p, j] = low
                _note(tops, p, high)


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
def round_rows(origin: Any, basis: Any, centre: Any, values: Any, facts: Any) -> None:
    """Fill the ``values`` (N, m + 1, n) int8 and ``facts`` of subspaces; origins are seen from the ``centre`` (n,)."""
    n, largest = len(centre), np.float64(127)
    row = np.empty(n)
    for j in range(len(origin)):
        for k in range(basis.shape[1] + 1):
            most = 0.0
            for i in range(n):
                row[i] = origin[j, i] - centre[i] if k == 0 else np.float64(basis[j, k - 1, i])
                most = max(most, abs(row[i]))
            step = np.float64(np.float32(max(most / largest * (1 + 1e-6), 1e-30)))
            lost, length, product = 0.0, 0.0, 0.0
            for i in range(n):
                rounded = np.rint(row[i] / step)
                values[j, k, i] = np.int8(rounded)
                seen = rounded * step
                lost += (row[i] - seen) * (row[i] - seen)
                length += seen * seen
                product += row[i] * (origin[j, i] - centre[i])
            facts[j, k, 0], facts[j, k, 1] = step, np.sqrt(lost) * (1 + 1e-6)
            facts[j, k, 2], facts[j, k, 3] = np.sqrt(length) * (1 + 1e-6), product


# ----------------------------------------------------------------
# Scanning bytes 64 at a time: which are at most a limit, and how small the least is
# Imported only by the compiled sweep. Arrays are flat and long enough for the 64 bytes read from any place asked for.


SCAN_WIDTH = 64
SCAN_BYTES, SCAN_MASK = ir.VectorType(INT8, SCAN_WIDTH), ir.VectorType(ir.IntType(1), SCAN_WIDTH)


def _load_bytes(builder: Any, data: Any, at: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), SCAN_BYTES.as_pointer()), align=1)


@intrinsic  # type: ignore[untyped-decorator]
def at_most(_context: Any, line: Any, at: Any, cuts: Any) -> Any:
    """Return a 64-bit mask of which bytes of line[at : at + 64] are at most cuts[0 : 64]."""
    signature = types.uint64(line, types.int64, cuts)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        data, limits = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        small = builder.icmp_unsigned("<=", _load_bytes(builder, data, args[1]), _load_bytes(builder, limits, INT64(0)))
        return builder.bitcast(small, INT64)

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def lower(_context: Any, line: Any, at: Any, least: Any) -> Any:
    """Lower each of least[0 : 64] to the byte of line[at : at + 64] where that is smaller."""
    signature = types.void(line, types.int64, least)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        data, kept = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        new, old = _load_bytes(builder, data, args[1]), _load_bytes(builder, kept, INT64(0))
        smaller = builder.select(builder.icmp_unsigned("<", new, old), new, old)
        builder.store(smaller, builder.bitcast(kept, SCAN_BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(_context: Any, mask: Any) -> Any:
    """Return the number of the lowest bit set in a mask that has one."""
    signature = types.int64(types.uint64)

    def generate(_context: Any, builder: Any, _found: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def bit_count(_context: Any, mask: Any) -> Any:
    """Return how many bits of a mask are set."""
    signature = types.int64(types.uint64)

    def generate(_context: Any, builder: Any, _found: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return signature, generate
