# SPDX-License-Identifier: Apache-2.0
"""Checks of arrays and settings: shape, type and finiteness, once; the result is read-only.

Misspelt settings suggest the nearest name, and all wrong values are reported at once.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest


def frozen_array(
    value: Any, name: str, shape: Sequence[int | None], dtype: type[np.generic] = np.float32
) -> NDArray[Any]:
    """Return ``value`` as a C-contiguous, read-only, finite array.

    ``shape`` holds a number where the length is fixed and None where it is free. The caller's array is copied
    unless it is already read-only, so that nobody can change a checked value from outside.

    Raises InputError naming the array, the expected shape and type and the actual ones; never the values.
    """
    expected = "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as cause:
        raise InputError(f"{name}: expected numbers of shape {expected}, got rows of different lengths") from cause
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected numbers of shape {expected}, got dtype {array.dtype}")
    if array.ndim != len(shape) or any(w is not None and w != g for w, g in zip(shape, array.shape, strict=True)):
        raise InputError(f"{name}: expected shape {expected}, got {array.shape}")
    if np.dtype(dtype).kind in "iu" and array.size:
        limits = np.iinfo(dtype)  # type: ignore[type-var]
        if array.dtype.kind not in "iu" or array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"{name}: expected integers from {limits.min} to {limits.max}, got dtype {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(array, dtype=dtype)
    if result.dtype.kind == "f":
        finite = np.isfinite(result)
        if not finite.all():
            rows = np.unique(np.argwhere(~finite)[:, 0]) if result.ndim else np.zeros(1, int)
            raise InputError(
                f"{name}: {rows.size} of {len(result) if result.ndim else 1} rows are not finite "
                f"in {result.dtype} (NaN, infinite or too large), the first is row {rows[0]}"
            )
    if np.may_share_memory(result, array) and not _is_frozen(array):
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
        width, height = (int(operator.index(length)) for length in size)  # of truth values too
    except (TypeError, ValueError) as cause:
        raise InputError("image_size: expected two integers, width and height, or None") from cause
    if not (0 < width < 2**31 and 0 < height < 2**31):
        raise InputError(f"image_size: expected a positive width and height, got ({width}, {height})")
    return width, height


def checked_focal(focal: Any) -> float | None:
    """Return a focal length in pixels as a positive number, or None."""
    if focal is None:
        return None
    if isinstance(focal, bool | np.bool_) or not isinstance(focal, int | float | np.integer | np.floating):
        raise InputError(f"focal_px: expected a number of pixels or None, got {type(focal).__name__}")
    if not 0 < focal < 2**31:
        raise InputError(f"focal_px: expected a positive number of pixels, got {focal!r:.40}")
    return float(focal)


def whole_number(value: Any, name: str) -> int:
    """Return an integer, numpy's among them, as a plain one; truth values and fractions are an InputError."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(f"{name}: expected an integer, got {type(value).__name__}")


# --- settings


@dataclass(frozen=True, slots=True)
class Range:
    """The values a number may take, both ends included; ``whole`` asks for an integer."""

    low: float
    high: float
    whole: bool = False


def refuse_unknown(settings: type, names: Iterable[str]) -> None:
    """Raise InputError naming every name that the dataclass ``settings`` does not have."""
    known = [field.name for field in fields(settings)]
    unknown = [name for name in names if name not in known]
    if unknown:
        words = ", ".join(f"{name!r:.80}{suggest(name, known)}" for name in unknown)
        raise InputError(f"{settings.__name__} has no setting {words}; there are {', '.join(known)}")


def settle_numbers(settings: Any, ranges: Mapping[str, Range]) -> list[str]:
    """Turn the named settings of a frozen dataclass into plain int and float; return all problems."""
    problems = []
    for name, allowed in ranges.items():
        value: Any = getattr(settings, name)
        kind = "a whole number" if allowed.whole else "a number"
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or (allowed.whole and value != value // 1):
            problems.append(f"{name} must be {kind}, got {value!r:.80}")
        elif not allowed.low <= value <= allowed.high:  # also refuses NaN
            problems.append(f"{name} must be from {allowed.low:g} to {allowed.high:g}, got {value!r:.80}")
        else:
            object.__setattr__(settings, name, int(value) if allowed.whole else float(value))
    return problems
