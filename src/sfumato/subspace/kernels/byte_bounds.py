# SPDX-License-Identifier: Apache-2.0
"""Brackets of the distances of a small batch of points to many subspaces stored in bytes, compiled, in one pass.

For a small batch, reading the subspaces from memory takes most of the time: one byte per coordinate is a quarter of
float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from sfumato.subspace.kernels.exact import keep_least
from sfumato.subspace.kernels.simd import (
    BLOCK,
    INT8,
    INT64,
    LANES,
    SHORTS,
    borrow,
    load_shorts,
    pointers,
    sum_lanes,
    sum_loop,
)

WIDTH = 2 * LANES
"""Coordinates multiplied at once."""

BYTES = ir.VectorType(INT8, WIDTH)

SLACK = 1e-5
"""Allowance for rounding to float32, as a share of the squared lengths that a squared distance is computed from: a
hundred times the error that occurs."""


class ShortPoints(NamedTuple):
    """Points as 16-bit integers: ``values`` (P, n) flat, and of each point the ``step`` between two integers, the
    ``loss`` by rounding, its ``length``, all (P,) float64."""

    values: Any
    step: Any
    loss: Any
    length: Any


class ByteSubspaces(NamedTuple):
    """Subspaces as bytes: ``values`` (N, m + 1, n) flat, the origin first; ``facts`` (N, m + 1, 4) float32.

    The facts of a row: the ``step`` between two integers, the ``loss`` by rounding, the length of the rounded row, and
    of an origin its squared length, of a direction its product with the origin.
    """

    values: Any
    facts: Any


@intrinsic
def byte_dots(
    _context: Any, points: Any, at: Any, batch: Any, values: Any, row: Any, steps: Any, ones: Any, sums: Any
) -> Any:
    """Multiply as many points as the tuple ``batch`` has entries with the m + 1 stacked rows of a subspace.

    ``points`` int16 from points[at], ``values`` int8 from values[row], in rows of 16 ``steps`` coordinates. Fills
    ``sums`` int32 (points, m + 1).
    """
    stack, size = len(ones) + 1, types.int64
    signature = types.void(points, size, batch, values, size, size, ones, sums)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        a_data, b_data, out = pointers(context, builder, concrete, args, (0, 3, 7))
        width = builder.mul(args[5], INT64(WIDTH))

        def point(number: int) -> Callable[[Any], Any]:
            place = builder.gep(a_data, [builder.add(args[1], builder.mul(width, INT64(number)))])
            return lambda step: load_shorts(builder, place, step, WIDTH)

        def stacked(number: int) -> Callable[[Any], Any]:
            place = builder.gep(b_data, [builder.add(args[4], builder.mul(width, INT64(number)))])

            def load(step: Any) -> Any:
                here = builder.bitcast(builder.gep(place, [builder.mul(step, INT64(WIDTH))]), BYTES.as_pointer())
                return builder.sext(builder.load(here, align=1), SHORTS)

            return load

        for first in range(0, stack, BLOCK):
            rows = range(first, min(first + BLOCK, stack))
            columns = [stacked(number) for number in rows]
            totals = sum_loop(builder, [point(number) for number in range(len(batch))], columns, args[5])
            for number, line in enumerate(totals):
                for column, value in zip(rows, line, strict=True):
                    builder.store(sum_lanes(builder, value), builder.gep(out, [INT64(number * stack + column)]))
        return context.get_dummy_value()

    return signature, generate


def bracket_bytes(
    points: ShortPoints, subspaces: ByteSubspaces, rows: Any, steps: Any, batch: Any, ones: Any, lows: Any, tops: Any
) -> None:
    """Bracket the squared distances of points to subspaces [start, stop).

    Fills ``lows`` (P, N) float32 with squared distances that a pair is not below, and ``tops`` (P, k) with the k least
    that pairs of each point are not above, in order. ``batch`` is a tuple with one entry per point multiplied at
    once; P is a multiple of its length.

    With x a point, u an origin and b the directions, |x - u|^2 - sum (b (x - u))^2 is the squared distance (Eq. 1). A
    product of x with a row r, computed of rounded ones, is off by at most |x| loss(r) + loss(x) |rounded r|.
    """
    sums = np.zeros(len(batch) * (len(ones) + 1), np.int32)
    _bracket_bytes(points, subspaces, rows, steps, batch, ones, lows, tops, sums)


@njit(nogil=True, cache=True)
def _bracket_bytes(
    points: ShortPoints, subspaces: ByteSubspaces, rows: Any, steps: Any, batch: Any, ones: Any, lows: Any, tops: Any,
    sums: Any,
) -> None:  # fmt: skip
    points, subspaces, lows, tops, sums = borrow((points, subspaces, lows, tops, sums))
    facts, stack, wide = subspaces.facts, len(ones) + 1, steps * WIDTH
    for j in range(rows[0], rows[1]):
        for first in range(0, lows.shape[0], len(batch)):
            byte_dots(points.values, first * wide, batch, subspaces.values, j * stack * wide, steps, ones, sums)
            for p in range(first, first + len(batch)):
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
                keep_least(tops, p, high)


@njit(nogil=True, cache=True)
def round_rows(origin: Any, basis: Any, centre: Any, values: Any, facts: Any) -> None:
    """Fill the ``values`` (N, m + 1, n) int8 and ``facts`` of subspaces, measured from the ``centre`` (n,)."""
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
                stored = rounded * step
                lost += (row[i] - stored) * (row[i] - stored)
                length += stored * stored
                product += row[i] * (origin[j, i] - centre[i])
            facts[j, k, 0], facts[j, k, 1] = step, np.sqrt(lost) * (1 + 1e-6)
            facts[j, k, 2], facts[j, k, 3] = np.sqrt(length) * (1 + 1e-6), product
