# SPDX-License-Identifier: Apache-2.0
"""Scanning bytes 64 at a time: which are at most a limit, and how small the least is.

Imported only by the compiled sweep. Arrays are flat and long enough for the 64 bytes read from any place asked for.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 64
INT8, INT64 = ir.IntType(8), ir.IntType(64)
BYTES, MASK = ir.VectorType(INT8, WIDTH), ir.VectorType(ir.IntType(1), WIDTH)


def _load(builder: Any, data: Any, at: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), BYTES.as_pointer()), align=1)


@intrinsic  # type: ignore[untyped-decorator]
def at_most(_context: Any, line: Any, at: Any, cuts: Any) -> Any:
    """Return a 64-bit mask of which bytes of line[at : at + 64] are at most cuts[0 : 64]."""
    signature = types.uint64(line, types.int64, cuts)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        data, limits = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        small = builder.icmp_unsigned("<=", _load(builder, data, args[1]), _load(builder, limits, INT64(0)))
        return builder.bitcast(small, INT64)

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def lower(_context: Any, line: Any, at: Any, least: Any) -> Any:
    """Lower each of least[0 : 64] to the byte of line[at : at + 64] where that is smaller."""
    signature = types.void(line, types.int64, least)

    def generate(context: Any, builder: Any, found: Any, args: Any) -> Any:
        data, kept = (context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 2))
        new, old = _load(builder, data, args[1]), _load(builder, kept, INT64(0))
        smaller = builder.select(builder.icmp_unsigned("<", new, old), new, old)
        builder.store(smaller, builder.bitcast(kept, BYTES.as_pointer()), align=1)
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
