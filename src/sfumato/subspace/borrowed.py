# SPDX-License-Identifier: Apache-2.0
"""Arrays lent to compiled loops without counting references.

Numba counts a reference, atomically, for every array of every tuple handed to a function: in a loop over pairs, on
counters that all threads share, that costs more than the arithmetic. What was lent is not counted. Imported only by the
compiled kernels.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(_context: Any, lent: Any) -> Any:
    """Return an array, or a tuple of arrays and numbers, that does not keep its memory alive.

    Only for arguments of the function that borrows: its caller holds them until it returns.
    """

    def generate(context: Any, builder: Any, _found: Any, args: Any) -> Any:
        return _without_owner(context, builder, lent, args[0])

    return lent(lent), generate


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
