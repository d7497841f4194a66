# SPDX-License-Identifier: Apache-2.0
"""Distances of probes to concealed templates, of bits or of subspaces, and thresholds.

Never imports the clear types: points are arrays. A small distance speaks for the same person. A threshold is measured
on distances of strangers, for a false-accept rate.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError, suggest
from sfumato.matching.mutual import Side, check_pair, side_of, warn_if_void
from sfumato.types.concealed import Bits, ConcealedTemplates
from sfumato.types.recipe import Recipe

BITS, POINT, SUBSPACE = "bits", "p-to-s", "s-to-s"
COMPARISONS = (BITS, POINT, SUBSPACE)
"""bits: both are sealed, and the distance is the share of bits that differ. p-to-s: the probe is clear and stays on the
device. s-to-s: both are lifted (section 4.2.1 of the paper)."""


def checked_comparison(name: str) -> str:
    """Return the name of a comparison; raise InputError for an unknown one, with the nearest name."""
    if name not in COMPARISONS:
        raise InputError(
            f"distance {name!r:.80} is unknown{suggest(str(name), COMPARISONS)}: {' or '.join(COMPARISONS)}"
        )
    return name


def comparison_of(probes: Any) -> str:
    """Return the comparison of a probe: bits if it is sealed, s-to-s if it is lifted."""
    side = side_of_templates(probes, "probes")
    if isinstance(side.code, Bits):
        return BITS
    return SUBSPACE if side.dim else POINT


def distances(probes: Any, templates: Any) -> NDArray[np.float64]:
    """Return the distances (P, N) of P probes to N templates.

    Probes are points (P, n), which stay on the device, or concealed templates; a distance is the least one of a point
    of the probe to a point of the template (Eq. 1 and 2), and of sealed ones the share of bits that differ.
    """
    count0, count1 = _count(probes), _count(templates)
    rows = np.indices((count0, count1)).reshape(2, -1)
    return pair_distances(probes, templates, rows[0], rows[1]).reshape(count0, count1)


def pair_distances(probes: Any, templates: Any, rows0: ArrayLike, rows1: ArrayLike) -> NDArray[np.float64]:
    """Return the distances (K,) of the probes ``rows0`` (K,) to the templates ``rows1`` (K,), pair by pair.

    >>> import numpy as np
    >>> pair_distances(np.eye(2), np.zeros((1, 2)), [0, 1], [0, 0])
    array([1., 1.])
    """
    side0, side1 = side_of_templates(probes, "probes"), side_of_templates(templates, "templates")
    check_pair(side0, side1)
    warn_if_void(side0, side1)
    first, second = _checked_rows(rows0, len(side0)), _checked_rows(rows1, len(side1))
    if len(first) != len(second):
        raise InputError(f"pairs: {len(first)} probes and {len(second)} templates")
    if not len(first):
        return np.zeros(0)
    if isinstance(side0.code, Bits) and isinstance(side1.code, Bits):
        different = np.bitwise_count(side0.code.packed[first] ^ side1.code.packed[second])
        shares: NDArray[np.float64] = different.sum(axis=1, dtype=np.int64) / side0.ambient_dim
        return shares
    from sfumato.subspace.fast import load_kernels

    load_kernels()
    from sfumato.subspace.kernels.exact import exact_pairs

    squared = exact_pairs(
        side0.subspaces.origin,
        side0.subspaces.basis,
        side1.subspaces.origin,
        side1.subspaces.basis,
        first,
        second,
    )
    result: NDArray[np.float64] = np.sqrt(np.maximum(squared, 0))
    return result


def side_of_templates(value: Any, name: str) -> Side:
    """Return templates, subspaces or points as a side of a comparison."""
    if isinstance(value, ConcealedTemplates):
        return Side(value.code, value.extractor, value.recipe)
    return side_of(value, name)


def _count(value: Any) -> int:
    return len(side_of_templates(value, "side"))


def _checked_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"pairs: expected a list of row numbers, got {array.dtype} {array.shape}")
    if array.size and (array.min() < 0 or array.max() >= count):
        raise InputError(f"pairs: rows go from 0 to {count - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


# --- thresholds

MEETING = 1e-5
"""Subspaces nearer than this meet: the rest is rounding."""

LEAST_FALSE_ACCEPTS = 10
"""This many impostors must be accepted at a rate, or the rate is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Accept up to ``distance``. ``wanted_rate``, ``measured_rate``: share of impostors accepted, asked and measured.

    ``comparison`` is bits, p-to-s or s-to-s; ``impostor_pairs`` and ``people`` are the data behind it. For bits the
    impostors have the key of the person; without it they are accepted by ``by_chance`` only.
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
        if self.comparison == BITS and self.distance >= 0.5:
            raise InputError(f"threshold: for bits it must be below 0.5, where coin throws are, got {self.distance:g}")

    def accepts(self, distance: float) -> bool:
        """Tell whether a probe at this distance is accepted."""
        return distance <= self.distance

    def by_chance(self, bits: int) -> float:
        """Return how likely this many coin throws, which another key gives, are accepted."""
        from scipy.stats import binom

        return float(binom.cdf(math.floor(self.distance * bits + 1e-9), bits, 0.5))

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Threshold":
        """Read the values of ``to_dict``; raise InputError for anything else."""
        if not isinstance(values, Mapping) or set(values) != {field.name for field in fields(cls)}:
            raise InputError("a threshold of this file is incomplete")
        return cls(**values)


SURE_DEVIATIONS = 2
"""A threshold for bits must be this many standard deviations of coin throws below one half."""


def refuse_coin_throws(threshold: Threshold, recipe: Recipe) -> None:
    """Raise InputError for a threshold that accepts probes under other keys: bits that agree as coin throws do."""
    if threshold.comparison != BITS or not recipe.is_sealed:
        return
    largest = 0.5 - SURE_DEVIATIONS * 0.5 / math.sqrt(recipe.links[-1].dim or 1)
    if threshold.distance > largest:
        raise InputError(
            f"threshold: {threshold.distance:.3f} of the bits may differ, and for {recipe} at most {largest:.3f} may: "
            f"beyond that the bits of another key are accepted. Allow a smaller rate of strangers, or take more bits"
        )


def choose_threshold(impostors: ArrayLike, rate: float, *, comparison: str, people: int) -> Threshold:
    """Return the largest distance that accepts at most the share ``rate`` of impostor distances (K,).

    Raises InputError for too few impostors: 10 must be accepted at that rate.

    >>> threshold = choose_threshold(range(1, 1001), 0.01, comparison="p-to-s", people=46)
    >>> round(threshold.distance), threshold.measured_rate
    (11, 0.01)
    """
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < 1:
        raise InputError(f"false-accept rate: expected a number above 0 and below 1, got {rate!r:.80}")
    distances = np.sort(np.asarray(impostors, np.float64).ravel())
    if not np.isfinite(distances).all():
        raise InputError("impostor distances must be finite")
    allowed = math.floor(rate * len(distances) + 1e-9)
    if allowed < LEAST_FALSE_ACCEPTS:
        least = math.ceil(LEAST_FALSE_ACCEPTS / rate)
        raise InputError(
            f"a false-accept rate of {rate:g} needs {least} pairs of different people to be measured, there are "
            f"{len(distances)}: give more faces, or allow a larger rate"
        )
    distance = max(float(np.nextafter(distances[allowed], -np.inf)), 0.0)  # just below the first that must be refused
    measured = float(np.searchsorted(distances, distance, "right") / len(distances))
    if distance < MEETING:
        share = float(np.searchsorted(distances, MEETING) / len(distances))
        raise InputError(
            f"{share:.2%} of the impostors have distance 0: no threshold accepts as few as {rate:g}. Templates that "
            f"share a decoy meet: use more decoys, fewer of them in each template, or a clear probe (p-to-s)"
        )
    return Threshold(
        comparison=comparison,
        distance=distance,
        wanted_rate=float(rate),
        measured_rate=measured,
        impostor_pairs=len(distances),
        people=int(people),
    )


@dataclass(frozen=True, slots=True)
class UsualThreshold:
    """The share of different bits at which a seal tells people of a network apart, and the data behind it."""

    distance: float
    rate: float
    impostor_pairs: int
    people: int


USUAL_THRESHOLDS = {
    ("arcface", 512, 1.0): UsualThreshold(0.398, 1e-3, 200_000, 1_241),
    ("arcface", 1024, 1.0): UsualThreshold(0.410, 1e-3, 200_000, 1_241),
    ("arcface", 2048, 1.0): UsualThreshold(0.418, 1e-3, 200_000, 1_241),
    ("arcface", 4096, 1.0): UsualThreshold(0.421, 1e-3, 200_000, 1_241),
    ("dlib", 2048, 0.34): UsualThreshold(0.29, 1e-2, 1_482, 39),
}
"""By network, bits and bandwidth, for seals that were measured and no others: fewer bits or another bandwidth have
another threshold. ArcFace's w600k_mbf on LFW, folds 0 to 2; on folds 3 and 4 it accepts 0.0008 to 0.001 of strangers,
on UTKFace, which has all ages, 0.009 (benchmarks/faceseals.py). dlib's is a trial from few faces: the share at the
clear distance 0.39."""


def usual_threshold(recipe: Recipe, network: str) -> Threshold | None:
    """Return the usual threshold for bits of a network, for galleries without one of their own; None if there is none.

    >>> usual_threshold(Recipe.of("sealed-2048:1"), "arcface").measured_rate
    0.001
    >>> usual_threshold(Recipe.of("sealed-2048:0.6"), "arcface")
    """
    link = recipe.links[-1] if recipe.is_sealed else None
    kind = re.split(r"[^a-z0-9]", network.lower())[0]
    usual = None if link is None else USUAL_THRESHOLDS.get((kind, link.dim or 0, link.bandwidth or 0.0))
    if usual is None:
        return None
    return Threshold(
        comparison=BITS,
        distance=usual.distance,
        wanted_rate=usual.rate,
        measured_rate=usual.rate,
        impostor_pairs=usual.impostor_pairs,
        people=usual.people,
    )
