# SPDX-License-Identifier: Apache-2.0
"""How settings are checked: misspelt names suggest the nearest, and all wrong values are told at once.

Knows dataclasses and numbers; what a setting means is said where it is declared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from sfumato.errors import InputError, suggest


@dataclass(frozen=True, slots=True)
class Range:
    """The values a number may take, both ends included; ``whole`` asks for an integer."""

    low: float
    high: float
    whole: bool = False


def refuse_unknown(settings: type, given: Iterable[str]) -> None:
    """Raise InputError naming every given name that the dataclass ``settings`` does not have."""
    known = [field.name for field in fields(settings)]
    unknown = [name for name in given if name not in known]
    if unknown:
        said = ", ".join(f"{name!r:.80}{suggest(name, known)}" for name in unknown)
        raise InputError(f"{settings.__name__} has no setting {said}; there are {', '.join(known)}")


def settle_numbers(settings: Any, ranges: Mapping[str, Range]) -> list[str]:
    """Turn the named settings of a frozen dataclass into plain int and float; return all that is wrong."""
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
