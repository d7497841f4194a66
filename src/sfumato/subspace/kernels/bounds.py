# SPDX-License-Identifier: Apache-2.0
"""Lower bounds of squared distances, compiled: a byte for each pair of a block, or a bracket for each of eight pairs.

Turns inner products of panels of 16-bit integers (see ``panels``) into distances. What rounding in the panels may have
added is subtracted, so no bound is too high.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from sfumato.subspace.kernels.simd import (
    BLOCK,
    INT64,
    LANES,
    Lanes,
    group_dots,
    load_floats,
    load_ints,
    pointers,
    repeat,
)

SINGULAR = 0.1
"""If the least eigenvalue of S may be below this, rounding may outweigh the bound, and the bound is 0."""

LARGEST = 254.0
"""The byte for a squared distance of this many steps or more."""

THREE_GROUPS = (0,) * (BLOCK - 1)
"""Three groups of eight points are multiplied as if they were stacked on each other."""

LEVEL1_BYTES = 16384
"""The part of a panel that stays in the fastest cache while rows pass by."""


def squared_distance(
    offset: Lanes, pq: Lanes, a: list[Lanes], b: list[Lanes], cross: list[list[Lanes]], sign: Lanes
) -> tuple[Lanes, Lanes | None, Lanes | None]:
    """Return the squared distance, the squared length of S^-1 u and a lower bound of the least eigenvalue of S.

    d^2 = |p|^2 + |q|^2 - 2 p.q - |b|^2 - u' S^-1 u with a = B'q, b = C'p, M = B'C, u = a + M b, S = I - M M': the
    closest points of Eq. 5, eliminated by hand; ``offset`` is |p|^2 + |q|^2. In the dual form of points against
    subspaces (Eq. 10) the rows C span the complement, |p|^2 is left out and |b|^2 is added: ``sign``.
    """
    if len(a) > len(b):  # the smaller system
        a, b, cross = b, a, [list(column) for column in zip(*cross, strict=True)]
    squared = offset - pq * 2.0
    for value in b:
        squared = squared + sign * value * value
    if not a:
        return squared, None, None
    u = [_dot(row, b, start) for row, start in zip(cross, a, strict=True)]
    solved, least = _solve_two(cross, u) if len(a) <= 2 else _solve_many(cross, u)
    return squared - _dot(u, solved), _dot(solved, solved), least


def _solve_two(cross: list[list[Lanes]], u: list[Lanes]) -> tuple[list[Lanes], Lanes]:
    """Return S^-1 u and the determinant of S = I - M M' of one or two rows, in closed form.

    Eigenvalues of S are at most 1, so that none is below the determinant.
    """
    first = _dot(cross[0], cross[0]) * -1.0 + 1.0
    if len(u) == 1:
        return [u[0] / first.greatest(1e-3)], first
    mixed, second = _dot(cross[0], cross[1]), _dot(cross[1], cross[1]) * -1.0 + 1.0
    determinant = first * second - mixed * mixed
    inverse = determinant.greatest(1e-3).inverse()
    return [(second * u[0] + mixed * u[1]) * inverse, (first * u[1] + mixed * u[0]) * inverse], determinant


def _solve_many(cross: list[list[Lanes]], u: list[Lanes]) -> tuple[list[Lanes], Lanes]:
    """Return the same for more rows, by the factors L D L' of S; pivots are kept away from 0.

    The least eigenvalue is at least the determinant divided by the product of the others. That product is at most 1,
    and at most the power m - 1 of their mean. A mean below 0.8 counts as 0.8: a pivot kept away from 0 may be wrong.
    """
    lower: list[list[Lanes]] = []
    pivots: list[Lanes] = []
    inverses: list[Lanes] = []
    solved = list(u)
    for r, row in enumerate(cross):
        scaled: list[Lanes] = []  # L D, row r
        for c in range(r):
            entry = _dot(row, cross[c]) * -1.0
            for t in range(c):
                entry = entry - scaled[t] * lower[c][t]
            scaled.append(entry)
        line = [entry * inverses[c] for c, entry in enumerate(scaled)]
        pivot = _dot(row, row) * -1.0 + 1.0
        for t in range(r):
            pivot = pivot - scaled[t] * line[t]
            solved[r] = solved[r] - line[t] * solved[t]
        lower.append(line)
        pivots.append(pivot.greatest(1e-3))
        inverses.append(pivots[r].inverse())
    solved = [value * inverse for value, inverse in zip(solved, inverses, strict=True)]
    for r in reversed(range(len(u))):
        for t in range(r + 1, len(u)):
            solved[r] = solved[r] - lower[t][r] * solved[t]
    least, trace = pivots[0], _dot(cross[0], cross[0])
    for row in cross[1:]:
        trace = _dot(row, row, trace)
    others = ((trace * -1.0 + float(len(u))) * (1 / (len(u) - 1))).least(1.0).greatest(0.8)
    spare = others.inverse()
    for pivot in pivots[1:]:
        least = least * pivot * spare
    return solved, least


def _dot(x: list[Lanes], y: list[Lanes], start: Lanes | None = None) -> Lanes:
    total = start
    for left, right in zip(x, y, strict=True):
        total = left * right if total is None else total + left * right
    assert total is not None
    return total


def _from_sums(
    builder: Any, data: Any, at: Any, width: Any, m0: int, m1: int, offset: Lanes, scales: list[Lanes]
) -> Any:
    """Return the squared distance of eight pairs, less what rounding may have added, and that amount.

    The sums of a stacked row begin ``width`` times eight after those of the row before.
    """
    both, left, right, cross, sign, fixed, growing = scales

    def product(row: int, column: int) -> Lanes:
        first = builder.add(at, builder.mul(width, INT64(row * LANES)))
        return load_ints(builder, data, builder.add(first, INT64(column * LANES)))

    squared, length, least = squared_distance(
        offset,
        product(0, 0) * both,
        [product(r + 1, 0) * right for r in range(m0)],
        [product(0, s + 1) * left for s in range(m1)],
        [[product(r + 1, s + 1) * cross for s in range(m1)] for r in range(m0)],
        sign,
    )
    if length is None or least is None:
        return squared - fixed, fixed
    margin = fixed + growing * length
    return least.where_above(SINGULAR, 0.0)(squared - margin), least.where_above(SINGULAR, 1e30)(margin)


@intrinsic
def _store_bytes(
    _context: Any, sums: Any, at: Any, width: Any, pp: Any, qq: Any, qq_at: Any, scales: Any, steps: Any, ones0: Any,
    ones1: Any, out: Any, out_at: Any,
) -> Any:  # fmt: skip
    """Turn the sums of one row and eight columns into eight bytes at out[out_at]."""
    m0, m1 = len(ones0), len(ones1)
    size = types.int64
    signature = types.void(sums, size, size, pp, qq, size, scales, steps, ones0, ones1, out, size)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        data, qq_data, bytes_data = pointers(context, builder, concrete, args, (0, 4, 10))
        spread = [repeat(builder, builder.extract_value(args[6], k)) for k in range(7)]
        offset = repeat(builder, args[3]) + load_floats(builder, qq_data, args[5])
        squared, _ = _from_sums(builder, data, args[1], args[2], m0, m1, offset, spread)
        (squared * repeat(builder, args[7])).greatest(0.0).least(LARGEST).store_bytes(bytes_data, args[11])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def bracket(_context: Any, sums: Any, offsets: Any, scales: Any, ones0: Any, ones1: Any, low: Any, high: Any) -> Any:
    """Turn the sums of eight pairs into squared distances they cannot be below, or above: low, high (8,) float32."""
    m0, m1 = len(ones0), len(ones1)
    signature = types.void(sums, offsets, scales, ones0, ones1, low, high)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        data, offset_data, low_data, high_data = pointers(context, builder, concrete, args, (0, 1, 5, 6))
        spread = [repeat(builder, builder.extract_value(args[2], k)) for k in range(7)]
        offset = load_floats(builder, offset_data, INT64(0))
        squared, margin = _from_sums(builder, data, INT64(0), INT64(m1 + 1), m0, m1, offset, spread)
        squared.greatest(0.0).store(low_data, INT64(0))
        (squared + margin * 2.0).store(high_data, INT64(0))
        return context.get_dummy_value()

    return signature, generate


@njit(nogil=True, cache=True, boundscheck=False)
def fill(
    a: Any, pp: Any, b: Any, qq: Any, rows: Any, groups: Any, scales: Any, steps: Any, ones0: Any, ones1: Any,
    out: Any, stride: Any,
) -> None:  # fmt: skip
    """Fill out (rows, stride) uint8 flat with bounds of the rows [start, stop) of a against groups of columns of b.

    A byte says how many steps (``steps`` of them are 1) the squared distance is at least. ``a`` (N0, m0 + 1, pairs)
    int32 flat, N0 padded to a multiple of three; ``b`` as ``panels.column_layout`` makes it, of whole groups; ``pp``
    (N0,) and ``qq`` (N1,) float32.
    """
    stack0, stack1 = len(ones0) + 1, len(ones1) + 1
    pairs, group_rows = a.shape[0] // (pp.shape[0] * stack0), max(stack1, BLOCK if stack1 == 1 else 0)
    width, columns = pairs * group_rows * LANES, LANES * group_rows // stack1
    sums = np.empty(BLOCK * stack0 * group_rows * LANES, np.int32)
    at_once = max(1, LEVEL1_BYTES // (4 * width))
    for first in range(groups[0], groups[1], at_once):
        for row in range(rows[0], rows[1], BLOCK):
            for group in range(first, min(first + at_once, groups[1])):
                for r in range(stack0):
                    place, here = (row * stack0 + BLOCK * r) * pairs, BLOCK * r * group_rows * LANES
                    if stack1 == 1:
                        group_dots(a, place, pairs, b, group * width, THREE_GROUPS, sums, here)
                    else:
                        group_dots(a, place, pairs, b, group * width, ones1, sums, here)
                for k in range(min(BLOCK, rows[1] - row)):
                    for c in range(group_rows // stack1):
                        column = group * columns + c * LANES
                        _store_bytes(
                            sums, (k * stack0 * group_rows + c) * LANES, group_rows, pp[row + k], qq, column, scales,
                            steps, ones0, ones1, out, (row + k - rows[0]) * stride + column - groups[0] * columns,
                        )  # fmt: skip
