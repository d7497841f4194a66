# SPDX-License-Identifier: Apache-2.0
"""What attacks got of a recipe, from records alone: in this run, and in the reference that comes with the package.

Reads the records ``leakage`` and ``reference`` by their names. Knows no verdict and no page.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sfumato.report.words import KEYPOINTS, UNCOUNTED
from sfumato.types.record import Record, Value

SCALE = ("clear", "floor")


@dataclass(frozen=True, slots=True)
class Attacked:
    """What one attack got of one recipe: means over the photos and seeds, by the names of the scores."""

    name: str
    knows: tuple[str, ...]
    scores: Mapping[str, float] = field(hash=False)
    photos: int = 0

    @property
    def plain(self) -> str:
        """The attack, without the inverter that painted what it gave."""
        return self.name.partition(", ")[0]

    @property
    def network(self) -> str:
        """The inverter, where it was not the usual one."""
        return self.name.partition(", ")[2]

    @property
    def is_bare(self) -> bool:
        """Whether it sees keypoints alone, which are the same under every recipe."""
        return self.plain == KEYPOINTS

    @property
    def counts(self) -> bool:
        """Whether a real attacker could do it: an oracle knows the answer, and a holder of the key has the key."""
        return not self.name.startswith(UNCOUNTED)

    @property
    def leakage(self) -> float | None:
        """0 for what is painted of keypoints with one mean descriptor, 1 for what clear descriptors show."""
        return self.scores.get("leakage")

    @property
    def codes(self) -> int:
        """How many features it was given, of all photos together."""
        return round(self.scores.get("features", 0.0) * self.photos)

    @property
    def needs(self) -> int:
        """How much the attacker must have; a second release of the same photo is the rarest."""
        return len(self.knows) + 2 * ("releases" in self.knows)


def attacks_on(recipe: str, records: Iterable[Record]) -> tuple[Attacked, ...]:
    """Return what every attack got of a recipe, the strongest first; of raw the picture of clear features is one."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        attack = str(record.params.get("attack"))
        is_meant = record.task == "leakage" and record.params.get("recipe") == recipe and record.scores
        if is_meant and (attack not in SCALE or recipe == "raw"):
            groups.setdefault(title_of(attack, record.params.get("inverter")), []).append(record)
    found = [Attacked(name, _knows(group[0]), means_of(group), _photos(group)) for name, group in groups.items()]
    return tuple(sorted(found, key=lambda one: (not one.counts, -(one.leakage or 0.0))))


def reference_on(recipe: str, records: Iterable[Record]) -> Attacked | None:
    """Return what the strongest attack got of a recipe in the reference, of more photos than most runs have."""
    for record in records:
        if record.task == "reference" and record.params.get("recipe") == recipe and record.scores:
            return Attacked(str(record.params.get("attack")), _knows(record), means_of([record]), _photos([record]))
    return None


def bare_leakage(records: Iterable[Record]) -> float | None:
    """Return the most that keypoints alone show of the photos, under whatever recipe that was measured."""
    found = [one for one in records if one.task == "leakage" and one.params.get("attack") == KEYPOINTS]
    return max((score.value for one in found for score in one.scores if score.name == "leakage"), default=None)


def title_of(attack: str, inverter: Value) -> str:
    """Return the name of an attack, with its inverter where that is not the usual one."""
    return attack if inverter in (None, "patch") else f"{attack}, {inverter}"


def means_of(records: Sequence[Record]) -> dict[str, float]:
    """Return the mean of each score over records."""
    values: dict[str, list[float]] = {}
    for record in records:
        for score in record.scores:
            values.setdefault(score.name, []).append(score.value)
    return {name: fmean(some) for name, some in values.items()}


def _photos(records: Sequence[Record]) -> int:
    return max((score.samples for record in records for score in record.scores), default=0)


def _knows(record: Record) -> tuple[str, ...]:
    return tuple(word.strip() for word in str(record.params.get("knows") or "").split(",") if word.strip())
