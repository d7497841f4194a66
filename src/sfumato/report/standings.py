# SPDX-License-Identifier: Apache-2.0
"""Where recipes stand, from records alone: what every attack got of each, and what matching it keeps.

Reads the records of the evaluations ``leakage`` and ``homography`` by their names. Knows no picture and no page.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sfumato.errors import InputError
from sfumato.report.words import (
    ALIGNMENT,
    NONE,
    OPEN,
    RECOVERED,
    TRAINED,
    UNCOUNTED,
    Level,
    level_of,
    untested_words,
)
from sfumato.types.record import Record, Value

BOTH_CONCEALED = ("p-to-p", "s-to-s")
SCALE = ("clear", "floor")
NEAR = 0.05
"""Attacks this near to the strongest show the same picture: of them the one that knows least is shown."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """What one attack got of one recipe: means over the photos and seeds, by the names of the scores."""

    name: str
    knows: tuple[str, ...]
    scores: Mapping[str, float] = field(hash=False)
    photos: int = 0

    @property
    def counts(self) -> bool:
        """Whether a real attacker could do it: an oracle knows the answer, and a holder of the key has the key."""
        return not self.name.startswith(UNCOUNTED)

    @property
    def leakage(self) -> float | None:
        """0 for what keypoints alone show, 1 for what clear descriptors show."""
        return self.scores.get("leakage")

    @property
    def needs(self) -> int:
        """How much the attacker must have; a second release of the same photo is the rarest."""
        return len(self.knows) + 2 * ("releases" in self.knows)


@dataclass(frozen=True, slots=True)
class Standing:
    """A recipe: its attacks, and what matching kept, in itself and as shares of raw."""

    recipe: str
    attacks: tuple[Attacked, ...]
    matching: Mapping[str, float] = field(hash=False)
    is_default: bool = False

    @property
    def name(self) -> str:
        """The recipe without the checksums of its encoders."""
        return re.sub("@[0-9a-f]+", "", self.recipe)

    @property
    def is_clear(self) -> bool:
        """Whether nothing was concealed."""
        return self.recipe == "raw"

    @property
    def worst(self) -> Attacked | None:
        """The attack that counts and shows most of the picture; of equal ones that which needs least."""
        counted = [one for one in self.attacks if one.counts and one.leakage is not None]
        return max(counted, key=lambda one: (round(one.leakage or 0.0, 3), -one.needs), default=None)

    @property
    def shown(self) -> Attacked | None:
        """Of the attacks that show about as much as the worst, the one that needs to know least."""
        worst = self.worst
        if worst is None or worst.leakage is None:
            return None
        near = [one for one in self.attacks if one.counts and (one.leakage or -9.0) >= worst.leakage - NEAR]
        return min(near, key=lambda one: one.needs)

    @property
    def leakage(self) -> float | None:
        """The most that an attack showed of the picture; of raw all."""
        return 1.0 if self.is_clear else None if self.worst is None else self.worst.leakage

    def recovered(self, within: str = "within 0.1") -> float | None:
        """Return the largest share of descriptors that an attack recovered within a distance; of raw all.

        Points of an encoder's space that were recovered from a lifting after it are told in the table and do not count
        here: the encoder alone would release them as they are.
        """
        found = [one.scores[within] for one in self.attacks if one.counts and within in one.scores]
        return 1.0 if self.is_clear else max(found, default=None)

    @property
    def level(self) -> Level:
        """The verdict."""
        names = {one.name.split(",")[0] for one in self.attacks}
        strongest = (ALIGNMENT,) if self.is_sealed else TRAINED
        return NONE if self.is_clear else level_of(
            self.leakage, self.recovered(), trained=bool(names & set(strongest))
        )  # fmt: skip

    @property
    def is_sealed(self) -> bool:
        """Whether it takes a key to conceal: then nobody without it can train a network on what is released."""
        return self.recipe.split("+")[-1].startswith("sealed-")

    @property
    def says(self) -> str:
        """The verdict in a sentence: about the picture, or, where they decided it, about the descriptors."""
        by_picture = level_of(self.leakage, 0.0, trained=True)
        told_by_picture = self.level in (NONE, OPEN, by_picture)
        return self.level.says if told_by_picture else RECOVERED

    @property
    def untested(self) -> str:
        """What might do better and was not tried."""
        names = {one.name.split(",")[0] for one in self.attacks}
        return "" if self.is_clear else untested_words(names, sealed=self.is_sealed)


def standings_of(records: Sequence[Record]) -> list[Standing]:
    """Join the records by recipe, those that leak most first.

    Raises InputError if there is nothing to report, or records of different descriptors, photos or settings are mixed.
    """
    measured = [one for one in records if one.task in ("leakage", "homography")]
    if not measured:
        raise InputError("report: no record of an audit, of evaluate leakage or of evaluate homography is among them")
    kinds = {str(one.params.get("descriptor")) for one in measured}
    if len(kinds) > 1:
        raise InputError(f"report: records of {' and '.join(sorted(kinds))} are mixed: make a page for each")
    refuse_mixed(measured)
    default = next((str(one.params.get("default")) for one in records if one.task == "audit"), "")
    recipes = list(dict.fromkeys(str(one.params.get("recipe")) for one in measured))
    raw = matching_of("raw", measured)
    found = [
        Standing(one, attacks_on(one, measured), with_shares(matching_of(one, measured), raw), one == default)
        for one in recipes
    ]
    return sorted(found, key=lambda one: (not one.is_clear, -(9.0 if one.leakage is None else one.leakage)))


def refuse_mixed(records: Iterable[Record]) -> None:
    """Raise InputError if two records of one thing differ in more than the seed: their mean would be of nothing."""
    known: dict[tuple[str, ...], str] = {}
    for record in records:
        told = record.params
        what = (record.task, *(str(told.get(name)) for name in ("recipe", "attack", "inverter", "distance")))
        how = json.dumps([record.data, dict(told)], sort_keys=True)
        if known.setdefault(what, how) != how:
            raise InputError(
                f"report: two records of {record.task}, {told.get('recipe')} are of different photos or settings: "
                f"measure them into folders of their own, and make a page for each"
            )


def attacks_on(recipe: str, records: Iterable[Record]) -> tuple[Attacked, ...]:
    """Return what every attack got of a recipe, the strongest first; of raw the picture of clear features is one."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        attack = str(record.params.get("attack"))
        is_meant = record.task == "leakage" and record.params.get("recipe") == recipe and record.scores
        if is_meant and (attack not in SCALE or recipe == "raw"):
            groups.setdefault(title_of(attack, record.params.get("inverter")), []).append(record)
    found = [Attacked(name, _knows(group[0]), _means(group), _photos(group)) for name, group in groups.items()]
    return tuple(sorted(found, key=lambda one: (not one.counts, -(one.leakage or 0.0))))


def title_of(attack: str, inverter: Value) -> str:
    """Return the name of an attack, with its inverter where that is not the usual one."""
    return attack if inverter in (None, "patch") else f"{attack}, {inverter}"


def matching_of(recipe: str, records: Iterable[Record]) -> dict[str, float]:
    """Return the mean scores of matching a recipe with nothing clear on either side; empty where none was measured."""
    group = [
        record
        for record in records
        if record.task == "homography"
        and record.params.get("recipe") == recipe
        and record.params.get("distance") in BOTH_CONCEALED
        and record.scores
    ]
    wanted = ("accuracy 3 px", "correct 3 px", "matches")
    means = _means(group) if group else {}
    return {name: means[f"{name}, overall"] for name in wanted if f"{name}, overall" in means}


def with_shares(own: Mapping[str, float], raw: Mapping[str, float]) -> dict[str, float]:
    """Return scores of matching with their shares of those of raw."""
    shares = {f"{name} / raw": own[name] / raw[name] for name in own if raw.get(name)}
    return {**own, **shares}


def _means(records: Sequence[Record]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for record in records:
        for score in record.scores:
            values.setdefault(score.name, []).append(score.value)
    return {name: fmean(some) for name, some in values.items()}


def _photos(records: Sequence[Record]) -> int:
    return max((score.samples for record in records for score in record.scores), default=0)


def _knows(record: Record) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(record.params.get("knows") or "").split(",") if word.strip())
