# SPDX-License-Identifier: Apache-2.0
"""Reference frontier: points in a file, and what the authors measured of sealed recipes.

A point says what a recipe keeps of matching and the worst that any attack does to it; ``sfumato evaluate frontier``
measures them, and some come with the package. The attack on sealed features depends on how many of one key it has. A
server has them all, an audit only those of a few photos, so its own figures are too good: the points of sealed recipes
are handed to it as records.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from types import MappingProxyType
from typing import Any

from sfumato.attacks.registry import AttackId
from sfumato.concealment.seal import without_key
from sfumato.errors import FileError, InputError
from sfumato.files.atomic import read_text, write_text
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score, Value

FORMAT, VERSION = "sfumato frontier", 1
NOBODY = "nothing"
"""Stands for the attack where none gave a figure."""
LARGEST_BYTES = 16 << 20

MOST_LEAKAGE, MOST_RECOVERED = 0.1, 0.01
LEAST_ACCURACY, LEAST_CORRECT = 0.9, 0.83
"""Aims. What a recipe should reach: leakage and descriptors recovered within 0.1 at most, shares of raw at least."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """A recipe on the frontier.

    ``accuracy_share`` and ``correct_share``: matching accuracy at 3 px and correct matches of a pair, as shares of
    raw's. ``leakage``: the most that any attack shows of the pictures, 0 for one mean descriptor, 1 for clear ones.
    ``recovered_01`` and ``recovered_03``: the largest shares of descriptors that an attack recovers within 0.1 and 0.3,
    and ``recovered_by`` the attack that does so within 0.1. ``trained``: whether an inverter and a decoder that were
    trained on this very recipe were among the attackers; ``missing`` names attackers that were not. ``figures`` are
    all others, by name.

    Raises InputError naming all that is wrong at once.
    """

    recipe: str
    accuracy_share: float
    correct_share: float
    leakage: float
    leakage_by: str
    recovered_01: float
    recovered_03: float
    recovered_by: str
    trained: bool
    missing: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        problems = [f"{name} must be a text" for name in TEXTS if not _is_text(getattr(self, name))]
        problems += [f"{name} must be a finite number" for name in NUMBERS if not _is_number(getattr(self, name))]
        shares = {name: getattr(self, name) for name in ("recovered_01", "recovered_03")}
        problems += [f"{name} is a share, 0 to 1" for name, v in shares.items() if _is_number(v) and not 0 <= v <= 1]
        trained, missing, figures = _untrusted(self.trained), _untrusted(self.missing), _untrusted(self.figures)
        if not isinstance(trained, bool):
            problems.append("trained must be true or false")
        if not isinstance(missing, list | tuple) or not all(map(_is_text, missing)):
            problems.append("missing must be a list of texts")
        if not isinstance(figures, Mapping) or not all(_is_text(k) and _is_number(v) for k, v in figures.items()):
            problems.append("figures must be finite numbers by name")
        if problems:
            raise InputError(f"point of a frontier: {'; '.join(problems)}")
        object.__setattr__(self, "missing", tuple(self.missing))
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))

    @property
    def name(self) -> str:
        """The recipe without the checksums of its encoders, for people."""
        return re.sub("@[0-9a-f]+", "", self.recipe)

    @property
    def keeps_use(self) -> bool:
        """Whether accuracy and correct matches are what they should be."""
        return self.accuracy_share >= LEAST_ACCURACY and self.correct_share >= LEAST_CORRECT

    @property
    def is_private(self) -> bool:
        """Whether leakage and recovery are what they should be, against attackers of which none is missing."""
        safe = self.leakage <= MOST_LEAKAGE and self.recovered_01 < MOST_RECOVERED
        return safe and self.trained and not self.missing


TEXTS = ("recipe", "leakage_by", "recovered_by")
NUMBERS = ("accuracy_share", "correct_share", "leakage", "recovered_01", "recovered_03")


def non_dominated(points: Iterable[FrontierPoint]) -> list[FrontierPoint]:
    """Return the points that no other beats in accuracy and leakage at once, the least leaking first.

    A point that lacks attackers beats nobody: it may only look good.
    """
    known = list(points)
    judged = [one for one in known if one.trained and not one.missing]
    kept = [one for one in known if not any(_dominates(other, one) for other in judged)]
    return sorted(kept, key=lambda one: (one.leakage, -one.accuracy_share))


def read_frontier(path: str | os.PathLike[str]) -> list[FrontierPoint]:
    """Return the points of a file made by ``write_frontier``.

    Raises FileError if it is missing, damaged or something else.
    """
    return _parse(read_text(path, largest=LARGEST_BYTES), str(path))


def reference_frontier() -> list[FrontierPoint]:
    """Return the points that come with the package."""
    place = resources.files("sfumato.auditing") / "data" / "frontier.json"
    return _parse(place.read_text(encoding="utf-8"), "the frontier of the package")


def write_frontier(
    path: str | os.PathLike[str], points: Sequence[FrontierPoint], made: Mapping[str, Value] | None = None
) -> None:
    """Write points to a file that appears whole; ``made`` tells how they were measured, in plain values.

    Raises FileError if it cannot be written.
    """
    rows = [_plain(point) for point in points]
    content = {"format": FORMAT, "version": VERSION, "made": dict(made or {}), "points": rows}
    write_text(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n", with_folder=True)


def _parse(text: str, name: str) -> list[FrontierPoint]:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise FileError(f"{name}: damaged, or no frontier: sfumato evaluate frontier makes one") from cause
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("points"), list):
        raise FileError(f"{name}: this is no frontier: sfumato evaluate frontier makes one")
    if content.get("version") != VERSION:
        raise FileError(f"{name}: a frontier of version {content.get('version')!r:.20}, this package reads {VERSION}")
    points = []
    for number, row in enumerate(content["points"], 1):
        try:
            points.append(FrontierPoint(**row))
        except (TypeError, InputError) as cause:
            raise FileError(f"{name}: point {number}: {cause}") from cause
    if len({point.recipe for point in points}) < len(points):
        raise FileError(f"{name}: it has two points of one recipe")
    return points


def _plain(point: FrontierPoint) -> dict[str, Any]:
    """Return a point as plain values."""
    return {one.name: getattr(point, one.name) for one in fields(point)} | {"figures": dict(point.figures)}


def _dominates(one: FrontierPoint, other: FrontierPoint) -> bool:
    no_worse = one.leakage <= other.leakage and one.accuracy_share >= other.accuracy_share
    return no_worse and (one.leakage < other.leakage or one.accuracy_share > other.accuracy_share)


def _untrusted(value: Any) -> Any:
    """Return a value whose type may be another than a file's reader was promised."""
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


DESCRIPTOR = "sift"
"""The descriptor the reference frontier was measured with."""


def references_for(recipes: Iterable[str]) -> list[Record]:
    """Return one record for each sealed recipe that the reference frontier has, by whatever key it was measured."""
    known = {
        _keyless_name(one.recipe): one
        for one in reference_frontier()
        if one.leakage_by != NOBODY and Recipe.of(one.recipe).is_sealed
    }
    sealed = [name for name in dict.fromkeys(recipes) if "sealed-" in name]
    return [_record(name, known[_keyless_name(name)]) for name in sealed if _keyless_name(name) in known]


def _keyless_name(recipe: str) -> str:
    """Return a sealed recipe without the name of its key, with its bandwidth; those of its encoders stay.

    >>> _keyless_name("sealed-512:0.3@330fa2794d6c")
    'sealed-512:0.3'
    """
    return str(without_key(Recipe.of(recipe)))


def _record(recipe: str, point: FrontierPoint) -> Record:
    """Return a point of the frontier as a record of the recipe as the audit calls it."""
    photos, facts = _photos(point), AttackId.of({"attack": point.leakage_by}).facts
    return Record(
        task="reference",
        scores=(
            Score("leakage", point.leakage, "", photos),
            Score("within 0.1", point.recovered_01, "", photos),
            Score("within 0.3", point.recovered_03, "", photos),
        ),
        params={"recipe": recipe, "attack": point.leakage_by, "descriptor": DESCRIPTOR, **facts.params},
    )


def _photos(point: FrontierPoint) -> int:
    """Return the number of photos a point was measured on; 0 where the file does not say."""
    count: Any = point.figures.get("photos")
    if count is None:
        place = resources.files("sfumato.auditing") / "data" / "frontier.json"
        made: Any = json.loads(place.read_text(encoding="utf-8")).get("made")
        count = made.get("photos") if isinstance(made, dict) else None
    return int(count) if isinstance(count, int | float) and count > 0 else 0
