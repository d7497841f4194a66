# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on eight numbers at once, written like ordinary arithmetic, turned into LLVM's vector instructions.

Only for code generators inside numba intrinsics: every operation adds an instruction to the function being built.
"""

from typing import Any

from llvmlite import ir

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
        chosen = self.builder.select(self.builder.fcmp_ordered(relation, self.value, right), self.value, right)
        return Lanes(self.builder, chosen)

    def where_above(self, limit: float, otherwise: float) -> Any:
        """Return a function that keeps numbers where this is above ``limit`` and puts ``otherwise`` elsewhere."""
        mask = self.builder.fcmp_ordered(">", self.value, ir.Constant(FLOATS, [limit] * LANES))
        rest = ir.Constant(FLOATS, [otherwise] * LANES)
        return lambda kept: Lanes(self.builder, self.builder.select(mask, kept.value, rest))

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
