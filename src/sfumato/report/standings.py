# SPDX-License-Identifier: Apache-2.0
"""Where recipes stand, from records alone: what every attack got of each, and what matching it keeps.

Reads the records of the evaluations ``leakage`` and ``homography`` and of the ``reference`` by their names. Knows no
picture and no page.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sfumato.errors import InputError
from sfumato.report.attacked import Attacked, attacks_on, means_of, reference_on
from sfumato.report.words import (
    ALIGNMENT,
    ENOUGH_CODES,
    FAILED,
    KEY_HOLDER,
    LEVELS,
    NONE,
    NOTHING_RAN,
    OPEN,
    RECOVERED,
    TRAINED,
    Level,
    few_codes_words,
    leak_words,
    level_of,
    sealed_words,
    untested_words,
)
from sfumato.types.record import Record

BOTH_CONCEALED = ("p-to-p", "s-to-s")
NEAR = 0.05
"""Attacks this near to the strongest show about the same picture."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A recipe: its attacks, and what matching kept, in itself and as shares of raw.

    ``reference`` is what the authors measured of it with many photos under one key; of sealed recipes only.
    """

    recipe: str
    attacks: tuple[Attacked, ...]
    matching: Mapping[str, float] = field(hash=False)
    is_default: bool = False
    reference: Attacked | None = None

    @property
    def name(self) -> str:
        """The recipe without the checksums of its encoders."""
        return re.sub("@[0-9a-f]+", "", self.recipe)

    @property
    def is_clear(self) -> bool:
        """Whether nothing was concealed."""
        return self.recipe == "raw"

    @property
    def is_sealed(self) -> bool:
        """Whether it takes a key to conceal: then nobody without it can train a network on single codes of that key."""
        return self.recipe.split("+")[-1].startswith("sealed-")

    @property
    def worst(self) -> Attacked | None:
        """The attack that counts and shows most of the picture; of equal ones that which needs least."""
        counted = [one for one in self.attacks if one.counts and one.leakage is not None]
        return max(counted, key=lambda one: (round(one.leakage or 0.0, 3), -one.needs), default=None)

    @property
    def knowing_less(self) -> Attacked | None:
        """Of the attacks that show about as much as the worst, the one that needs least; None if that is the worst."""
        worst = self.worst
        if worst is None or worst.leakage is None:
            return None
        near = [one for one in self.attacks if one.counts and (one.leakage or -9.0) >= worst.leakage - NEAR]
        least = min(near, key=lambda one: one.needs)
        return least if least.needs < worst.needs else None

    @property
    def leakage_here(self) -> float | None:
        """The most that an attack of this run showed of the picture; of raw all."""
        return 1.0 if self.is_clear else None if self.worst is None else self.worst.leakage

    @property
    def leakage(self) -> float | None:
        """What the verdict rests on: the larger of this run's leakage and the reference's; None for none."""
        known = [self.leakage_here, None if self.reference is None else self.reference.leakage]
        return max((one for one in known if one is not None), default=None)

    @property
    def rests_on_reference(self) -> bool:
        """Whether the reference, and not this run, decided the leakage."""
        here = self.leakage_here
        return self.leakage is not None and (here is None or self.leakage > here)

    def recovered(self, within: str = "within 0.1") -> float | None:
        """Return the largest share of descriptors that an attack recovered within a distance; of raw all.

        Points of an encoder's space that were recovered from a lifting after it are told in the table and do not count
        here: the encoder alone would release them as they are.
        """
        counted = [*(one for one in self.attacks if one.counts), *([self.reference] if self.reference else [])]
        found = [one.scores[within] for one in counted if within in one.scores]
        return 1.0 if self.is_clear else max(found, default=None)

    @property
    def has_enough(self) -> bool:
        """Whether the strongest kind of attack was tried: a trained network, or an alignment of enough codes."""
        if not self.is_sealed:
            return bool(self._names & set(TRAINED))
        return self.reference is not None or self.codes >= ENOUGH_CODES

    @property
    def codes(self) -> int:
        """How many codes of one key an alignment had."""
        return max((one.codes for one in self.attacks if one.name.split(",")[0].endswith(ALIGNMENT)), default=0)

    @property
    def level(self) -> Level:
        """The verdict."""
        return NONE if self.is_clear else level_of(self.leakage, self.recovered(), trained=self.has_enough)

    @property
    def says(self) -> str:
        """The verdict in a sentence or two: about the picture, or about the descriptors where they decided it."""
        level, leakage = self.level, self.leakage
        if self.is_clear:
            return level.says
        if leakage is None:
            return NOTHING_RAN
        if level not in (OPEN, level_of(leakage, 0.0, trained=True)):
            return RECOVERED
        first = FAILED if leakage <= 0 else level.says
        if level is not OPEN:
            return first
        if self.is_sealed:
            return f"{first if leakage <= 0 else LEVELS[0].says} {few_codes_words(self.codes)}"
        return f"{FAILED} None of them was trained against it: this is no evidence." if leakage <= 0 else first

    @property
    def rests_on(self) -> str:
        """Which of two figures decided, this run's or the reference's; empty where there is one only."""
        if self.reference is None:
            return ""
        measured = f"{self.reference.photos:,} photos" if self.reference.photos else "many photos"
        there = f"measured by the authors with {measured} under one key"
        mine = f"your {self.worst.photos} photo{'s' * (self.worst.photos != 1)} alone" if self.worst else "your photos"
        here = f"gave {leak_words(self.leakage_here)}" if self.worst else "were too few to measure anything"
        if self.rests_on_reference:
            return f"The verdict rests on {leak_words(self.leakage)}, {there}; {mine} {here}."
        return f"The verdict rests on this audit: {mine} {here}; {leak_words(self.reference.leakage)} was {there}."

    @property
    def untested(self) -> str:
        """What might do better and was not tried."""
        if self.is_sealed:
            with_key = [one.leakage for one in self.attacks if one.name.startswith(KEY_HOLDER)]
            return sealed_words(self._names, with_key[0] if with_key else None)
        return "" if self.is_clear else untested_words(self._names)

    @property
    def _names(self) -> set[str]:
        return {one.name.split(",")[0] for one in self.attacks}


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
        Standing(
            recipe=one,
            attacks=attacks_on(one, measured),
            matching=with_shares(matching_of(one, measured), raw),
            is_default=one == default,
            reference=reference_on(one, records),
        )
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
    means = means_of(group) if group else {}
    return {name: means[f"{name}, overall"] for name in wanted if f"{name}, overall" in means}


def with_shares(own: Mapping[str, float], raw: Mapping[str, float]) -> dict[str, float]:
    """Return scores of matching with their shares of those of raw."""
    shares = {f"{name} / raw": own[name] / raw[name] for name in own if raw.get(name)}
    return {**own, **shares}
