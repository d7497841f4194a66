# SPDX-License-Identifier: Apache-2.0
"""The one door for arrays: shape, type and finiteness are checked here, once, and the result is read-only."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError


def frozen_array(
    value: Any, name: str, shape: Sequence[int | None], dtype: type[np.generic] = np.float32
) -> NDArray[Any]:
    """Return ``value`` as a C-contiguous, read-only, finite array.

    ``shape`` holds a number where the length is fixed and None where it is free. The caller's array is copied
    unless it is already read-only, so that nobody can change a checked value from outside.

    Raises InputError naming the array, what was expected and what came; never the values.
    """
    wanted = "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
    try:
        given = np.asarray(value)
    except (TypeError, ValueError) as cause:
        raise InputError(f"{name}: expected numbers of shape {wanted}, got rows of different lengths") from cause
    if given.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected numbers of shape {wanted}, got dtype {given.dtype}")
    if given.ndim != len(shape) or any(w is not None and w != g for w, g in zip(shape, given.shape, strict=True)):
        raise InputError(f"{name}: expected shape {wanted}, got {given.shape}")
    if np.dtype(dtype).kind in "iu" and given.size:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        if given.dtype.kind not in "iu" or given.min() < limits.min or given.max() > limits.max:
            raise InputError(f"{name}: expected integers from {limits.min} to {limits.max}, got dtype {given.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(given, dtype=dtype)
    if result.dtype.kind == "f":
        finite = np.isfinite(result)
        if not finite.all():
            rows = np.unique(np.argwhere(~finite)[:, 0]) if result.ndim else np.zeros(1, int)
            raise InputError(
                f"{name}: {rows.size} of {len(result) if result.ndim else 1} rows are not finite "
                f"in {result.dtype} (NaN, infinite or too large), the first is row {rows[0]}"
            )
    if np.may_share_memory(result, given) and not _is_frozen(given):
        result = result.copy()
    result.setflags(write=False)
    return result


def _is_frozen(array: NDArray[Any]) -> bool:
    """Tell whether neither the array nor anything it is a view of can be written to."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes)


def checked_size(size: Any) -> tuple[int, int] | None:
    """Return (width, height) as two positive integers, or None."""
    if size is None:
        return None
    try:
        width, height = (operator.index(length) for length in size)
    except (TypeError, ValueError) as cause:
        raise InputError("image_size: expected two integers, width and height, or None") from cause
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise InputError(f"image_size: expected a positive width and height, got ({width}, {height})")
    return width, height


def whole_number(value: Any, name: str) -> int:
    """Return an integer, numpy's among them, as a plain one; truth values and fractions are an InputError."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(f"{name}: expected an integer, got {type(value).__name__}")
