# SPDX-License-Identifier: Apache-2.0
"""Vector instructions for compiled loops: eight float32, sixteen int16 or 64 bytes at once.

Numba has no vectors of its own, so these intrinsics write LLVM's intermediate representation: each Python call on a
``builder`` adds one instruction to the function that numba is compiling. docs/explanation/exact_search.md explains how.
Imported by compiled kernels only.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
FLOAT, INT8, INT32, INT64 = ir.FloatType(), ir.IntType(8), ir.IntType(32), ir.IntType(64)
FLOATS, INTS, BYTES = (ir.VectorType(kind, LANES) for kind in (FLOAT, INT32, INT8))
FAST = ("fast",)


class Lanes:
    """Eight float32 in a register of the function being built."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def _apply(self, operation: str, other: "Lanes | float") -> "Lanes":
        right = other.value if isinstance(other, Lanes) else ir.Constant(FLOATS, [float(other)] * LANES)
        return Lanes(self.builder, getattr(self.builder, operation)(self.value, right, flags=FAST))

    def __add__(self, other: "Lanes | float") -> "Lanes":
        return self._apply("fadd", other)

    def __sub__(self, other: "Lanes | float") -> "Lanes":
        return self._apply("fsub", other)

    def __mul__(self, other: "Lanes | float") -> "Lanes":
        return self._apply("fmul", other)

    def __truediv__(self, other: "Lanes | float") -> "Lanes":
        return self._apply("fdiv", other)

    def inverse(self) -> "Lanes":
        """Return 1 divided by the numbers."""
        return Lanes(self.builder, ir.Constant(FLOATS, [1.0] * LANES)) / self

    def least(self, other: "Lanes | float") -> "Lanes":
        """Return the smaller of the two, number by number."""
        return self._choose("<", other)

    def greatest(self, other: "Lanes | float") -> "Lanes":
        """Return the greater of the two, number by number; of a number and NaN, the other."""
        return self._choose(">", other)

    def _choose(self, relation: str, other: "Lanes | float") -> "Lanes":
        right = other.value if isinstance(other, Lanes) else ir.Constant(FLOATS, [float(other)] * LANES)
        holds = self.builder.fcmp_ordered(relation, self.value, right)
        return Lanes(self.builder, self.builder.select(holds, self.value, right))

    def where_above(self, limit: float, otherwise: float) -> Any:
        """Return a function that keeps numbers where this is above ``limit`` and puts ``otherwise`` elsewhere."""
        mask = self.builder.fcmp_ordered(">", self.value, ir.Constant(FLOATS, [limit] * LANES))
        rest = ir.Constant(FLOATS, [otherwise] * LANES)
        return lambda numbers: Lanes(self.builder, self.builder.select(mask, numbers.value, rest))

    def store(self, data: Any, at: Any) -> None:
        """Write the numbers as eight float32 at data[at]."""
        self.builder.store(self.value, self.builder.bitcast(self.builder.gep(data, [at]), FLOATS.as_pointer()), align=4)

    def store_bytes(self, data: Any, at: Any) -> None:
        """Write the numbers, rounded towards 0, as eight bytes at data[at]."""
        narrow = self.builder.trunc(self.builder.fptosi(self.value, INTS), BYTES)
        place = self.builder.bitcast(self.builder.gep(data, [at]), BYTES.as_pointer())
        self.builder.store(narrow, place, align=1)


def load_floats(builder: Any, data: Any, at: Any) -> Lanes:
    """Read eight float32 at data[at]."""
    place = builder.bitcast(builder.gep(data, [at]), FLOATS.as_pointer())
    return Lanes(builder, builder.load(place, align=4))


def load_ints(builder: Any, data: Any, at: Any) -> Lanes:
    """Read eight int32 at data[at] as numbers."""
    place = builder.bitcast(builder.gep(data, [at]), INTS.as_pointer())
    return Lanes(builder, builder.sitofp(builder.load(place, align=4), FLOATS))


def repeat(builder: Any, number: Any) -> Lanes:
    """Repeat a float32 of the function being built in all lanes."""
    undefined = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, number, INT32(0))
    return Lanes(builder, builder.shuffle_vector(first, undefined, ir.Constant(INTS, [0] * LANES)))


# --- inner products of 16-bit integers

# LLVM turns products of neighbouring 16-bit integers and their sum into one instruction (``vpmaddwd`` on x86): twice
# the products of a float32 fused multiply-add. The length of a tuple argument ``ones`` is the dimension m. It is part
# of the type, so numba compiles a function for each m, and the sums stay in registers.

BLOCK = 3
"""Rows, and columns, worked on at once: nine sums fit the registers of every machine."""

INT16 = ir.IntType(16)
SHORTS = ir.VectorType(INT16, 2 * LANES)
WIDE = ir.VectorType(INT32, 2 * LANES)


def pointers(context: Any, builder: Any, signature: Any, args: Any, numbers: tuple[int, ...]) -> list[Any]:
    """Return where the data of these array arguments of an intrinsic begins."""
    return [context.make_array(signature.args[k])(context, builder, args[k]).data for k in numbers]


@intrinsic
def group_dots(
    _context: Any, a: Any, a_at: Any, pairs: Any, b: Any, b_at: Any, ones1: Any, sums: Any, sums_at: Any
) -> Any:
    """Multiply three stacked rows of ``a`` with all m1 + 1 stacked rows of a group of eight columns of ``b``.

    All int32, a number being two adjacent int16: ``a`` rows of ``pairs`` numbers from a[a_at]; ``b`` from b[b_at]: for
    each pair of coordinates, for each stacked row, that pair of each of the eight columns. Fills ``sums`` from
    sums[sums_at], (3, m1 + 1, 8).
    """
    stack, size = len(ones1) + 1, types.int64
    signature = types.void(a, size, size, b, size, ones1, sums, size)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        a_data, b_data, out = pointers(context, builder, concrete, args, (0, 3, 6))
        rows = [builder.gep(a_data, [builder.add(args[1], builder.mul(args[2], INT64(row)))]) for row in range(BLOCK)]
        for first in range(0, stack, BLOCK):
            columns = range(first, min(first + BLOCK, stack))
            here = [builder.gep(b_data, [builder.add(args[4], INT64(LANES * column))]) for column in columns]
            totals = sum_loop(
                builder,
                [lambda at, row=row: _broadcast(builder, builder.load(builder.gep(row, [at]))) for row in rows],
                [lambda at, place=place: load_shorts(builder, place, at, LANES * stack) for place in here],
                args[2],
            )
            for row, line in enumerate(totals):
                for column, value in zip(columns, line, strict=True):
                    place = builder.gep(out, [builder.add(args[7], INT64((row * stack + column) * LANES))])
                    builder.store(value, builder.bitcast(place, INTS.as_pointer()), align=4)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def pair_dots(
    _context: Any, a: Any, a_at: Any, b: Any, b_at: Any, steps: Any, ones0: Any, ones1: Any, sums: Any, lane: Any
) -> Any:
    """Multiply all stacked rows of one subspace with all of another, both int16 rows of 16 ``steps`` coordinates.

    Fills ``sums`` int32 (m0 + 1, m1 + 1, 8), of the eight only number ``lane``.
    """
    stack0, stack1, size = len(ones0) + 1, len(ones1) + 1, types.int64
    signature = types.void(a, size, b, size, size, ones0, ones1, sums, size)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        a_data, b_data, out = pointers(context, builder, concrete, args, (0, 2, 7))
        width = builder.mul(args[4], INT64(2 * LANES))

        def loader(data: Any, first: Any, row: int) -> Callable[[Any], Any]:
            place = builder.gep(data, [builder.add(first, builder.mul(width, INT64(row)))])
            return lambda at: load_shorts(builder, place, at, 2 * LANES)

        for first0 in range(0, stack0, BLOCK):
            for first1 in range(0, stack1, BLOCK):
                rows, columns = (
                    range(first, min(first + BLOCK, stack)) for first, stack in ((first0, stack0), (first1, stack1))
                )
                left = [loader(a_data, args[1], row) for row in rows]
                right = [loader(b_data, args[3], column) for column in columns]
                for row, line in zip(rows, sum_loop(builder, left, right, args[4]), strict=True):
                    for column, value in zip(columns, line, strict=True):
                        place = builder.gep(out, [builder.add(args[8], INT64((row * stack1 + column) * LANES))])
                        builder.store(sum_lanes(builder, value), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def fetch(_context: Any, values: Any, at: Any) -> Any:
    """Ask for the cache line at values[at], if there is such a place, to be brought nearer while other work goes on."""
    signature = types.void(values, types.int64)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        (data,) = pointers(context, builder, concrete, args, (0,))
        place = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, INT32, INT32, INT32])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(ask, [place, INT32(0), INT32(3), INT32(1)])
        return context.get_dummy_value()

    return signature, generate


def sum_loop(builder: Any, left: list[Callable[..., Any]], right: list[Callable[..., Any]], count: Any) -> Any:
    """Write a loop that loads ``left`` and ``right`` and adds up their products; return the sums, a list a row."""
    before = builder.basic_block
    body, after = builder.append_basic_block("dots"), builder.append_basic_block("dots.done")
    builder.branch(body)
    builder.position_at_end(body)
    at = builder.phi(INT64)
    sums = [[builder.phi(INTS) for _ in right] for _ in left]
    columns = [load(at) for load in right]
    added = []
    for load, line in zip(left, sums, strict=True):
        row = load(at)
        added.append(
            [
                builder.add(total, multiply_pairs(builder, row, column))
                for total, column in zip(line, columns, strict=True)
            ]
        )
    following = builder.add(at, INT64(1))
    at.add_incoming(INT64(0), before)
    at.add_incoming(following, body)
    for line, new in zip(sums, added, strict=True):
        for total, value in zip(line, new, strict=True):
            total.add_incoming(ir.Constant(INTS, [0] * LANES), before)
            total.add_incoming(value, body)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)
    return added


def load_shorts(builder: Any, place: Any, at: Any, step: int) -> Any:
    """Read sixteen int16, ``at`` times ``step`` after a place."""
    here = builder.gep(place, [builder.mul(at, INT64(step))])
    return builder.load(builder.bitcast(here, SHORTS.as_pointer()), align=2)


def _broadcast(builder: Any, pair: Any) -> Any:
    """Repeat a pair of coordinates of a row for every column."""
    undefined = ir.Constant(INTS, ir.Undefined)
    first = builder.insert_element(undefined, pair, INT32(0))
    return builder.bitcast(builder.shuffle_vector(first, undefined, ir.Constant(INTS, [0] * LANES)), SHORTS)


def multiply_pairs(builder: Any, left: Any, right: Any) -> Any:
    """Multiply 16-bit integers and add neighbours, in the form that LLVM recognises as one instruction."""
    products = builder.mul(builder.sext(left, WIDE), builder.sext(right, WIDE))
    undefined = ir.Constant(WIDE, ir.Undefined)
    even, odd = (
        builder.shuffle_vector(products, undefined, ir.Constant(INTS, list(range(first, 2 * LANES, 2))))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def sum_lanes(builder: Any, values: Any) -> Any:
    """Add up the eight numbers of a register, halves on halves."""
    half = LANES // 2
    while half:
        order = [(lane + half) % LANES for lane in range(LANES)]
        moved = builder.shuffle_vector(values, ir.Constant(INTS, ir.Undefined), ir.Constant(INTS, order))
        values, half = builder.add(values, moved), half // 2
    return builder.extract_element(values, INT32(0))


# --- arrays without reference counts


@intrinsic
def borrow(_context: Any, arrays: Any) -> Any:
    """Return an array, or a tuple of arrays and numbers, that does not keep its memory alive.

    Numba counts a reference, atomically, for each array of each tuple passed to a function: in a loop over pairs, on
    counters that all threads share, this costs more than the arithmetic. Only for arguments of the calling function,
    whose own caller keeps them alive until it returns.
    """

    def generate(context: Any, builder: Any, _concrete: Any, args: Any) -> Any:
        return _without_owner(context, builder, arrays, args[0])

    return arrays(arrays), generate


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        array = context.make_array(kind)(context, builder, value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for k, part in enumerate(kind.types):
            inside = _without_owner(context, builder, part, builder.extract_value(value, k))
            value = builder.insert_value(value, inside, k)
    return value


# --- scans of bytes

SCAN_WIDTH = 64
"""Bytes compared at once: arrays must be readable for this many bytes from any position asked for."""

SCAN_BYTES = ir.VectorType(INT8, SCAN_WIDTH)


def _load_bytes(builder: Any, data: Any, at: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(data, [at]), SCAN_BYTES.as_pointer()), align=1)


@intrinsic
def at_most(_context: Any, line: Any, at: Any, cuts: Any) -> Any:
    """Return a 64-bit mask of which bytes of line[at : at + 64] are at most cuts[0 : 64]."""
    signature = types.uint64(line, types.int64, cuts)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        data, limits = pointers(context, builder, concrete, args, (0, 2))
        small = builder.icmp_unsigned("<=", _load_bytes(builder, data, args[1]), _load_bytes(builder, limits, INT64(0)))
        return builder.bitcast(small, INT64)

    return signature, generate


@intrinsic
def lower(_context: Any, line: Any, at: Any, least: Any) -> Any:
    """Lower each of least[0 : 64] to the byte of line[at : at + 64] where that is smaller."""
    signature = types.void(line, types.int64, least)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        data, lowest = pointers(context, builder, concrete, args, (0, 2))
        new, old = _load_bytes(builder, data, args[1]), _load_bytes(builder, lowest, INT64(0))
        smaller = builder.select(builder.icmp_unsigned("<", new, old), new, old)
        builder.store(smaller, builder.bitcast(lowest, SCAN_BYTES.as_pointer()), align=1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def lowest_bit(_context: Any, mask: Any) -> Any:
    """Return the number of the lowest bit set in a mask that has one."""
    signature = types.int64(types.uint64)

    def generate(_context: Any, builder: Any, _concrete: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return signature, generate


@intrinsic
def bit_count(_context: Any, mask: Any) -> Any:
    """Return how many bits of a mask are set."""
    signature = types.int64(types.uint64)

    def generate(_context: Any, builder: Any, _concrete: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return signature, generate
