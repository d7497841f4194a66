# SPDX-License-Identifier: Apache-2.0
"""Inner products of rows of 32 bytes with rows of 32 16-bit integers: the arithmetic under the codes.

Given to LLVM directly, as in ``sfumato.subspace.dots``: compilers leave such short sums in scalar form. Imported only
by the compiled scans.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sfumato.search.codes import HEAD
from sfumato.subspace.dots import SHORTS, multiply_pairs, sum_lanes
from sfumato.subspace.lanes import INT64, INTS, LANES

BYTES = ir.VectorType(ir.IntType(8), 2 * LANES)
STEPS = range(0, HEAD, 2 * LANES)


@intrinsic  # type: ignore[untyped-decorator]
def byte_dot(_context: Any, codes: Any, at: Any, query: Any, query_at: Any) -> Any:
    """Return the int32 product of codes[at : at + 32] int8 with query[query_at : query_at + 32] int16."""
    signature = types.int32(codes, types.int64, query, types.int64)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        bytes_data, shorts_data = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        code, row = _code_row(builder, bytes_data, args[1], 0), _query_row(builder, shorts_data, args[3], 0)
        return sum_lanes(builder, _product(builder, code, row))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def byte_dots(
    _context: Any, codes: Any, at: Any, ones1: Any, query: Any, query_at: Any, ones0: Any, out: Any, out_at: Any
) -> Any:
    """Multiply all m1 + 1 rows of a code, from codes[at], with all m0 + 1 rows of a query, from query[query_at].

    ``ones1`` and ``ones0`` are tuples as long as m1 and m0: how many rows there are is known when this is compiled.
    Fills ``out`` int32 from out[out_at]: for each row of the code the products with each row of the query, and up to
    seven numbers that mean nothing.
    """
    size, stack0, stack1 = types.int64, len(ones0) + 1, len(ones1) + 1
    signature = types.void(codes, size, ones1, query, size, ones0, out, size)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        bytes_data, shorts_data, result = (
            context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 3, 6)
        )
        rows = [_query_row(builder, shorts_data, args[4], row) for row in range(stack0)]
        products = []
        for number in range(stack1):
            code = _code_row(builder, bytes_data, args[1], number)
            products += [_product(builder, code, row) for row in rows]
        for first in range(0, len(products), LANES):
            group = products[first : first + LANES]
            sums = sum_eight(builder, group + group[-1:] * (LANES - len(group)))
            place = builder.gep(result, [builder.add(args[7], INT64(first))])
            builder.store(sums, builder.bitcast(place, INTS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


def sum_eight(builder: Any, values: list[Any]) -> Any:
    """Return one register with the sums of eight: neighbours are added twice, then halves, a third of the work."""
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


def _code_row(builder: Any, data: Any, at: Any, number: int) -> list[Any]:
    parts = [_load(builder, data, builder.add(at, INT64(number * HEAD + first)), BYTES, 1) for first in STEPS]
    return [builder.sext(part, SHORTS) for part in parts]


def _query_row(builder: Any, data: Any, at: Any, number: int) -> list[Any]:
    return [_load(builder, data, builder.add(at, INT64(number * HEAD + first)), SHORTS, 2) for first in STEPS]


def _load(builder: Any, data: Any, at: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()), align=align)
