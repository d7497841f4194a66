# SPDX-License-Identifier: Apache-2.0
"""Inner products of rows of 32 bytes with rows of 32 16-bit integers: the arithmetic under the codes.

Given to LLVM directly, as in ``sfumato.subspace.dots``: compilers leave such short sums in scalar form. Imported only
by the compiled scan.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sfumato.search.codes import HEAD

LANES = 8
INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
BYTES, SHORTS, WIDE, INTS = (
    ir.VectorType(kind, count)
    for kind, count in ((INT8, 2 * LANES), (INT16, 2 * LANES), (INT32, 2 * LANES), (INT32, LANES))
)


@intrinsic  # type: ignore[untyped-decorator]
def byte_dot(_context: Any, codes: Any, at: Any, query: Any, query_at: Any) -> Any:
    """Return the int32 product of codes[at : at + 32] int8 with query[query_at : query_at + 32] int16."""
    signature = types.int32(codes, types.int64, query, types.int64)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        bytes_data, shorts_data = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        total = ir.Constant(INTS, [0] * LANES)
        for first in range(0, HEAD, 2 * LANES):
            narrow = _load(builder, bytes_data, builder.add(args[1], INT64(first)), BYTES, 1)
            wide = _load(builder, shorts_data, builder.add(args[3], INT64(first)), SHORTS, 2)
            total = builder.add(total, _multiply(builder, builder.sext(narrow, SHORTS), wide))
        return _sum(builder, total)

    return signature, generate


def _load(builder: Any, data: Any, at: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), kind.as_pointer()), align=align)


def _multiply(builder: Any, left: Any, right: Any) -> Any:
    """Multiply 16-bit integers and add neighbours, in the form that LLVM recognises as one instruction."""
    products = builder.mul(builder.sext(left, WIDE), builder.sext(right, WIDE))
    nothing = ir.Constant(WIDE, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(products, nothing, ir.Constant(INTS, list(range(first, 2 * LANES, 2))))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _sum(builder: Any, values: Any) -> Any:
    """Add up the eight numbers of a register, halves on halves."""
    half = LANES // 2
    while half:
        order = [(lane + half) % LANES for lane in range(LANES)]
        moved = builder.shuffle_vector(values, ir.Constant(INTS, ir.Undefined), ir.Constant(INTS, order))
        values, half = builder.add(values, moved), half // 2
    return builder.extract_element(values, INT32(0))
