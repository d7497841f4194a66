# SPDX-License-Identifier: Apache-2.0
"""The distance up to which a probe is accepted: chosen from data at a wanted false-accept rate, never from habit.

Knows distances of impostors, not faces.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfumato.errors import InputError
from sfumato.faces.compare import checked_comparison

MEETING = 1e-5
"""Subspaces nearer than this meet: what is left is rounding."""

LEAST_FALSE_ACCEPTS = 10
"""So many impostors must be accepted at the wanted rate, or the rate is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Accept up to ``distance``. ``wanted_rate``, ``measured_rate``: the share of impostors accepted, wanted and found.

    ``comparison`` is p-to-s or s-to-s; ``impostor_pairs`` and ``people`` say from how much data it was chosen.
    """

    comparison: str
    distance: float
    wanted_rate: float
    measured_rate: float
    impostor_pairs: int
    people: int

    def __post_init__(self) -> None:
        checked_comparison(self.comparison)
        for name in ("distance", "wanted_rate", "measured_rate"):
            value = getattr(self, name)
            if not isinstance(value, float) or not math.isfinite(value) or value < 0:
                raise InputError(f"threshold: {name} must be a finite number of 0 or more")
        for name in ("impostor_pairs", "people"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"threshold: {name} must be a whole number of 1 or more")
        if max(self.wanted_rate, self.measured_rate) > 1:
            raise InputError("threshold: rates go from 0 to 1")

    def accepts(self, distance: float) -> bool:
        """Tell whether a probe at this distance is accepted."""
        return distance <= self.distance

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Threshold":
        """Read what ``to_dict`` gave; anything else is an InputError."""
        if not isinstance(values, Mapping) or set(values) != {field.name for field in fields(cls)}:
            raise InputError("a threshold of this file is incomplete")
        return cls(**values)


def choose_threshold(impostors: ArrayLike, rate: float, *, comparison: str, people: int) -> Threshold:
    """Return the largest distance that accepts at most the share ``rate`` of impostor distances (K,).

    Raises InputError where there are too few impostors to tell: 10 must be accepted at that rate.

    >>> found = choose_threshold(range(1, 1001), 0.01, comparison="p-to-s", people=46)
    >>> round(found.distance), found.measured_rate
    (11, 0.01)
    """
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < 1:
        raise InputError(f"false-accept rate: expected a number above 0 and below 1, got {rate!r:.80}")
    found = np.sort(np.asarray(impostors, np.float64).ravel())
    if not np.isfinite(found).all():
        raise InputError("impostor distances must be finite")
    allowed = math.floor(rate * len(found) + 1e-9)
    if allowed < LEAST_FALSE_ACCEPTS:
        least = math.ceil(LEAST_FALSE_ACCEPTS / rate)
        raise InputError(
            f"a false-accept rate of {rate:g} needs {least} pairs of different people to be measured, there are "
            f"{len(found)}: give more faces, or allow a larger rate"
        )
    distance = max(float(np.nextafter(found[allowed], -np.inf)), 0.0)  # just below the first that must be refused
    measured = float(np.searchsorted(found, distance, "right") / len(found))
    if distance < MEETING:
        share = float(np.searchsorted(found, MEETING) / len(found))
        raise InputError(
            f"{share:.2%} of the impostors are at distance 0: no threshold accepts as few as {rate:g}. Templates that "
            f"share a decoy meet: use more decoys, fewer of them in each template, or a clear probe (p-to-s)"
        )
    return Threshold(
        comparison=comparison,
        distance=distance,
        wanted_rate=float(rate),
        measured_rate=measured,
        impostor_pairs=len(found),
        people=int(people),
    )
