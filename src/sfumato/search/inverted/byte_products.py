# SPDX-License-Identifier: Apache-2.0
"""Inner products of codes, rows of 16 or 32 bytes, with as many 16-bit integers; compiled.

Written as vector instructions, as in ``sfumato.subspace.kernels.simd``: compilers leave such short sums in scalar form.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sfumato.search.inverted.codes import COARSE, HEAD
from sfumato.subspace.kernels.simd import INT64, INTS, LANES, SHORTS, multiply_pairs, pointers, sum_lanes

BYTES = ir.VectorType(ir.IntType(8), 2 * LANES)

COARSE_STEPS, FINE_STEPS = ((1,) * (width // (2 * LANES)) for width in (COARSE, HEAD))
"""Tuples with one entry per register that a row fills: their length is part of the type."""


@intrinsic
def byte_dot(_context: Any, codes: Any, at: Any, query: Any, query_at: Any, steps: Any) -> Any:
    """Return the int32 product of a row of int8 from codes[at] with one of int16 from query[query_at]."""
    signature, count = types.int32(codes, types.int64, query, types.int64, steps), len(steps)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        bytes_data, shorts_data = pointers(context, builder, concrete, args, (0, 2))
        code = _code_row(builder, bytes_data, args[1], 0, count)
        return sum_lanes(builder, _product(builder, code, _query_row(builder, shorts_data, args[3], 0, count)))

    return signature, generate


@intrinsic
def group_dots(
    _context: Any, codes: Any, places: Any, lane: Any, ones1: Any, query: Any, query_at: Any, ones0: Any, steps: Any,
    out: Any,
) -> Any:  # fmt: skip
    """Multiply all m1 + 1 rows of eight codes with all m0 + 1 rows of a query, from query[query_at].

    The rows of the codes begin at codes[places[lane]] to codes[places[lane + 7]]. ``ones1`` and ``ones0`` are tuples as
    long as m1 and m0. Fills ``out`` int32, (m1 + 1, m0 + 1,
    len(places)), of the last axis the eight from ``lane`` on.
    """
    size, stack0, stack1, count = types.int64, len(ones0) + 1, len(ones1) + 1, len(steps)
    signature = types.void(codes, places, size, ones1, query, size, ones0, steps, out)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        arrays = {k: context.make_array(concrete.args[k])(context, builder, args[k]) for k in (0, 1, 4, 8)}
        width = builder.extract_value(arrays[1].shape, 0)
        starts = [builder.load(builder.gep(arrays[1].data, [builder.add(args[2], INT64(k))])) for k in range(LANES)]
        for number in range(stack1):
            rows = [_code_row(builder, arrays[0].data, start, number, count) for start in starts]
            for column in range(stack0):
                factors = _query_row(builder, arrays[4].data, args[5], column, count)
                sums = _sum_eight(builder, [_product(builder, row, factors) for row in rows])
                place = builder.add(builder.mul(width, INT64(number * stack0 + column)), args[2])
                place = builder.gep(arrays[8].data, [place])
                builder.store(sums, builder.bitcast(place, INTS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


def _sum_eight(builder: Any, values: list[Any]) -> Any:
    """Return one register with the sums of eight registers: add neighbours twice, then halves."""
    for _ in range(2):
        values = [_add_neighbours(builder, *values[k : k + 2]) for k in range(0, len(values), 2)]
    low, high = (
        builder.shuffle_vector(*values, ir.Constant(INTS, [*range(first, first + 4), *range(first + 8, first + 12)]))
        for first in (0, 4)
    )
    return builder.add(low, high)


def _add_neighbours(builder: Any, left: Any, right: Any) -> Any:
    """Add neighbours of two registers, within each half of a register, where moving costs least."""
    even = [0, 2, 8, 10, 4, 6, 12, 14]
    first, second = (
        builder.shuffle_vector(left, right, ir.Constant(INTS, [lane + odd for lane in even])) for odd in (0, 1)
    )
    return builder.add(first, second)


def _product(builder: Any, code: list[Any], row: list[Any]) -> Any:
    """Return the products of two rows, added up to the eight numbers of one register."""
    total = multiply_pairs(builder, code[0], row[0])
    for left, right in zip(code[1:], row[1:], strict=True):
        total = builder.add(total, multiply_pairs(builder, left, right))
    return total


def _code_row(builder: Any, data: Any, at: Any, number: int, steps: int) -> list[Any]:
    return [builder.sext(part, SHORTS) for part in _row(builder, data, at, number, steps, BYTES, 1)]


def _query_row(builder: Any, data: Any, at: Any, number: int, steps: int) -> list[Any]:
    return _row(builder, data, at, number, steps, SHORTS, 2)


def _row(builder: Any, data: Any, at: Any, number: int, steps: int, kind: Any, align: int) -> list[Any]:
    """Return row ``number`` from data[at], a register for each of its ``steps``."""
    places = [builder.add(at, INT64((number * steps + step) * 2 * LANES)) for step in range(steps)]
    return [_load(builder, data, place, kind, align) for place in places]


def _load(builder: Any, data: Any, at: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()), align=align)
