# SPDX-License-Identifier: Apache-2.0
"""Verdict on a recipe, from records alone: what every attack got, and what matching it keeps.

Reads the records of the evaluations ``leakage`` and ``homography`` and of the ``reference``. What an attack is, and
whether it counts, each record says itself (``AttackFacts``).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sfumato.errors import InputError
from sfumato.report.words import (
    LEVELS,
    NONE,
    NOTHING_RAN,
    NOTHING_RELEASED,
    OPEN,
    RECOVERED,
    RELEASED,
    SEALED_UNTESTED,
    UNTRAINED,
    Level,
    codes_words,
    level_of,
    percent,
    reference_words,
    untested_words,
)
from sfumato.types.record import ENOUGH_CODES, AttackFacts, AttackRole, Record

BOTH_CONCEALED = ("p-to-p", "s-to-s")
"""Distances with nothing clear on either side."""

# --- attacks


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What one attack got of one recipe: means over the photos and seeds, by the names of the scores."""

    attack: AttackFacts
    knows: tuple[str, ...]
    scores: Mapping[str, float] = field(hash=False)
    photos: int = 0

    @property
    def name(self) -> str:
        """The attack, with its inverter where that is not the usual one."""
        return self.attack.title

    @property
    def about(self) -> str:
        """What the attacker does and has, in words."""
        return self.attack.about if self.counts else f"{self.attack.about} (shown, not counted)"

    @property
    def counts(self) -> bool:
        """Whether it takes part in the worst case; the ends of the scale, of which raw is measured, do for raw."""
        return self.attack.counts or self.is_scale

    @property
    def is_scale(self) -> bool:
        """Whether it is one of the two ends that leakage is measured between."""
        return self.attack.role is AttackRole.SCALE

    @property
    def leakage(self) -> float | None:
        """0 for about a grey picture, 1 for what is painted of clear features."""
        return self.scores.get("leakage")

    @property
    def codes(self) -> int:
        """How many features it was given, of all photos together."""
        return round(self.scores.get("features", 0.0) * self.photos)

    @property
    def needs(self) -> int:
        """How much the attacker must have; a second release of the same photo is the rarest."""
        return len(self.knows) + 2 * ("releases" in self.knows)


def attacks_on(recipe: str, records: Iterable[Record]) -> tuple[AttackResult, ...]:
    """Return what every attack got of a recipe, the strongest first; for raw the ends of the scale are among them."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        facts = AttackFacts.of(record.params)
        is_meant = record.task == "leakage" and record.params.get("recipe") == recipe and record.scores
        if is_meant and (facts.role is not AttackRole.SCALE or recipe == "raw"):
            groups.setdefault(facts.title, []).append(record)
    results = [_result(group) for group in groups.values()]
    return tuple(sorted(results, key=lambda one: (not one.counts, -(one.leakage or 0.0))))


def reference_on(recipe: str, records: Iterable[Record]) -> AttackResult | None:
    """Return what the strongest attack got of a recipe in the reference, of more photos than most runs have."""
    for record in records:
        if record.task == "reference" and record.params.get("recipe") == recipe and record.scores:
            return _result([record])
    return None


def means_of(records: Sequence[Record]) -> dict[str, float]:
    """Return the mean of each score over records."""
    values: dict[str, list[float]] = {}
    for record in records:
        for score in record.scores:
            values.setdefault(score.name, []).append(score.value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def _result(records: Sequence[Record]) -> AttackResult:
    params = records[0].params
    knows = tuple(word.strip() for word in str(params.get("knows") or "").split(",") if word.strip())
    photos = max((score.samples for record in records for score in record.scores), default=0)
    return AttackResult(AttackFacts.of(params), knows, means_of(records), photos)


# --- matching


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
    means, names = means_of(group), ("accuracy 3 px", "correct 3 px", "matches")
    is_whole = all(f"{name}, overall" in means for name in names)
    return {name: means[f"{name}, overall"] for name in names} if is_whole else {}


def with_shares(own: Mapping[str, float], raw: Mapping[str, float]) -> dict[str, float]:
    """Return scores of matching with their shares of those of raw."""
    shares = {f"{name} / raw": own[name] / raw[name] for name in own if raw.get(name)}
    return {**own, **shares}


# --- the verdict


@dataclass(frozen=True, slots=True)
class RecipeVerdict:
    """Verdict on a recipe: its attacks, and what matching kept, in itself and as shares of raw.

    ``reference``: what the authors measured of it with many photos under one key, for sealed recipes only.
    """

    recipe: str
    attacks: tuple[AttackResult, ...]
    matching: Mapping[str, float] = field(hash=False)
    is_default: bool = False
    reference: AttackResult | None = None

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
        """Whether concealing takes a key: nobody without it can train a network on single codes of that key."""
        return any(link.startswith("sealed-") for link in self.recipe.split("+"))

    @property
    def counted(self) -> list[AttackResult]:
        """The attacks that count, and of raw the ends of the scale."""
        return [one for one in self.attacks if one.counts]

    @property
    def uncounted(self) -> list[AttackResult]:
        """The attacks that are shown beside them: attackers who know the answer, or had a holder of the key help."""
        return [one for one in self.attacks if not one.counts]

    @property
    def worst(self) -> AttackResult | None:
        """The attack that counts and shows most of the picture; if equal, the one that needs least."""
        painted = [one for one in self.counted if one.leakage is not None]
        return max(painted, key=lambda one: (round(one.leakage or 0.0, 3), -one.needs), default=None)

    @property
    def outlines(self) -> float | None:
        """How nearly the outlines of the photo were painted, as a correlation; of raw nobody asks."""
        return None if self.outliner is None or self.is_clear else self.outliner.scores["outlines"]

    @property
    def released(self) -> float | None:
        """The share of positions that left the device; None where all do."""
        return next((one.scores["released"] for one in self.attacks if "released" in one.scores), None)

    @property
    def outliner(self) -> AttackResult | None:
        """The attack that painted outlines best."""
        painted = [one for one in self.counted if "outlines" in one.scores]
        return max(painted, key=lambda one: one.scores["outlines"], default=None)

    @property
    def telling(self) -> AttackResult | None:
        """The attack whose picture shows a person most: outlines, where the photo itself cannot be painted."""
        is_hidden = self.worst is not None and (self.worst.leakage or 0.0) <= LEVELS[0].leakage
        return self.outliner if is_hidden and self.outliner is not None else self.worst

    @property
    def leakage_here(self) -> float | None:
        """The most that an attack of this run showed of the picture; of raw all."""
        return 1.0 if self.is_clear else None if self.worst is None else self.worst.leakage

    @property
    def leakage(self) -> float | None:
        """What the verdict rests on: the larger of this run and the reference; None if nothing ran here."""
        return self.reference.leakage if self.reference and self.reference_is_larger else self.leakage_here

    @property
    def reference_is_larger(self) -> bool:
        """Whether the reference shows more than anything in this run."""
        here, there = self.leakage_here, None if self.reference is None else self.reference.leakage
        return here is not None and there is not None and there > here

    def recovered(self, within: str = "within 0.1") -> float | None:
        """Return the largest share of descriptors that an attack recovered within a distance; of raw all.

        Points of an encoder's space that were recovered from a lifting after it stand in the table and do not count
        here: the encoder alone would release them as they are.
        """
        reference = [self.reference] if self.reference and self.worst else []
        shares = [one.scores[within] for one in (*self.counted, *reference) if within in one.scores]
        return 1.0 if self.is_clear else max(shares, default=None)

    @property
    def has_enough(self) -> bool:
        """Whether the strongest kind of attack was tried: a network trained on it, for sealed codes on enough of them.

        What the authors measured with enough stands in for that where anything at all was measured here.
        """
        if self.is_sealed and self.reference is not None:
            return self.worst is not None
        is_trained = any(one.attack.trained for one in self.counted)
        return is_trained and (not self.is_sealed or self.codes >= ENOUGH_CODES)

    @property
    def codes(self) -> int:
        """How many codes of one key an alignment had."""
        roles = (AttackRole.ALIGNMENT, AttackRole.BOUND)
        return max((one.codes for one in self.attacks if one.attack.role in roles), default=0)

    @property
    def level(self) -> Level:
        """The verdict."""
        if self.is_clear:
            return NONE
        return level_of(self.leakage, self.recovered(), enough=self.has_enough, outlines=self.outlines)

    @property
    def says(self) -> str:
        """The verdict in a sentence: about the picture, or about the descriptors where they decided it."""
        if self.is_clear or self.leakage is None:
            return NONE.says if self.is_clear else NOTHING_RAN
        if self.level is OPEN:
            return codes_words(self.codes) if self.is_sealed and self.codes < ENOUGH_CODES else UNTRAINED
        of_picture = level_of(self.leakage, 0.0, enough=True, outlines=self.outlines)
        return self.level.says if self.level is of_picture else RECOVERED

    @property
    def shows(self) -> str:
        """What positions a server gets; empty where it gets all."""
        if self.released is None:
            return ""
        return RELEASED.format(share=percent(self.released)) if self.released else NOTHING_RELEASED

    @property
    def rests_on(self) -> str:
        """Which figure decided, this run's or the reference's; empty where there is one only."""
        if self.reference is None:
            return ""
        there = reference_words(self.reference.leakage, self.reference.photos)
        if self.worst is None:
            return f"{there}."
        photos = f"{self.worst.photos} photo{'s' * (self.worst.photos != 1)}"
        if self.reference_is_larger:
            return f"{there}: the verdict rests on that. The {photos} here gave {percent(self.leakage_here)}."
        return f"The verdict rests on the {photos} here: {percent(self.leakage_here)}. {there}."

    @property
    def untested(self) -> str:
        """What might do better and was not tried."""
        if self.is_clear:
            return ""
        return SEALED_UNTESTED if self.is_sealed else untested_words({one.attack.role for one in self.attacks})


def verdicts_of(records: Sequence[Record]) -> list[RecipeVerdict]:
    """Join the records by recipe: the default first, then from the least leaking to the most, raw last.

    Raises InputError if there is nothing to report, or records of different descriptors, photos or settings are mixed.
    """
    measured = [one for one in records if one.task in ("leakage", "homography")]
    if not measured:
        raise InputError("report: there is no record of an audit, of evaluate leakage or of evaluate homography")
    kinds = {str(one.params.get("descriptor")) for one in measured}
    if len(kinds) > 1:
        raise InputError(f"report: records of {' and '.join(sorted(kinds))} are mixed: make a page for each")
    refuse_mixed(measured)
    default = next((str(one.params.get("default")) for one in records if one.task == "audit"), "")
    recipes = list(dict.fromkeys(str(one.params.get("recipe")) for one in measured))
    raw = matching_of("raw", measured)
    verdicts = [
        RecipeVerdict(
            recipe=recipe,
            attacks=attacks_on(recipe, measured),
            matching=with_shares(matching_of(recipe, measured), raw),
            is_default=recipe == default,
            reference=reference_on(recipe, records),
        )
        for recipe in recipes
    ]
    return sorted(
        verdicts, key=lambda one: (one.is_clear, not one.is_default, 9.0 if one.leakage is None else one.leakage)
    )


def refuse_mixed(records: Iterable[Record]) -> None:
    """Raise InputError if two records of one thing differ in more than the seed: their mean would be of nothing."""
    settings: dict[tuple[str, ...], str] = {}
    for record in records:
        params = record.params
        subject = (record.task, *(str(params.get(name)) for name in ("recipe", "attack", "inverter", "distance")))
        setting = json.dumps([record.data, dict(params)], sort_keys=True)
        if settings.setdefault(subject, setting) != setting:
            raise InputError(
                f"report: two records of {record.task}, {params.get('recipe')} are of different photos or settings: "
                f"measure them into folders of their own, and make a page for each"
            )
