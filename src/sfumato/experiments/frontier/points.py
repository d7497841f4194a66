# SPDX-License-Identifier: Apache-2.0
"""Points of the frontier: use against the worst of all attacks, one point per recipe, as table and figure.

Joins what other evaluations measured. The attacker knows the recipe, the decoys, the encoder, public descriptors, all
releases and all matches, and trains networks on the very recipe; he does not know the secret, the seed or the
descriptors. Attacks that do not count, such as oracles, are shown beside the worst case. Releases that are derived from
a device key repeat themselves: a second one adds nothing, and the attack by intersection does not count.

An attacker that is missing is named: what was not tried is not private.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.attacks.registry import AttackId
from sfumato.auditing.matching import score_name
from sfumato.auditing.reference import (
    LEAST_ACCURACY,
    LEAST_CORRECT,
    MOST_LEAKAGE,
    MOST_RECOVERED,
    NOBODY,
    FrontierPoint,
    non_dominated,
)
from sfumato.auditing.tables import COLOURS, MARKERS, Cell, SeedGroup, Table, group_by_seed, save_figure
from sfumato.errors import InputError
from sfumato.experiments.frontier.tradeoff import BOTH_CONCEALED
from sfumato.types.recipe import Recipe
from sfumato.types.record import AttackRole, Record

CLEAR = "clear"
WITHIN = ("within 0.1", "within 0.3")
NETWORKS = ("decoder of", "inverter of")
"""Beginnings of missing attackers that would be trained on a recipe."""

SCENE_FIGURES = {
    "registered": "registered images",
    "position error [m]": "median position error",
    "rotation error [deg]": "median rotation error",
}
"""Figures of the map of a scene, by title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRecords:
    """Records of a frontier: matching of pairs, maps by scene, leakage of photos, and what matches revealed.

    ``missing``: the attackers that were not available, by the identity of a recipe.
    """

    pairs: Sequence[Record]
    scenes: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    leakage: Sequence[Record] = ()
    matched: Sequence[Record] = ()
    missing: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttackFigures:
    """Figures of one attack: leakage, and the shares recovered within some distances in the clear space and in the one
    that was lifted; None or nothing where it gives none."""

    attack: AttackId
    leakage: float | None
    clear: Mapping[str, float] = field(default_factory=dict)
    lifted: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs_release(self) -> bool:
        """Whether it needs a second, independent release."""
        return "releases" in self.attack.first_needs

    @property
    def needs_matches(self) -> bool:
        """Whether it needs matches."""
        return bool({"partners", "tracks"} & set(self.attack.first_needs))

    def figure(self, name: str) -> float | None:
        """Return the leakage, or the share within a distance: of a space that is named, or the larger of both."""
        if name == "leakage":
            return self.leakage
        space, _, distance = name.rpartition("within")
        spaces = {"clear": [self.clear], "lifted": [self.lifted]}.get(space.strip(), [self.clear, self.lifted])
        return max((one[f"within{distance}"] for one in spaces if f"within{distance}" in one), default=None)


def locate(records: FrontierRecords, *, keyed: bool = False) -> list[FrontierPoint]:
    """Return a point for every recipe whose matching was measured, in their order.

    ``keyed``: releases are derived from a device key, so that intersection does not count.

    Raises InputError if raw was not measured, on which all shares rest.
    """
    use = _use(records.pairs)
    raw = use.get("raw")
    if raw is None or not all(raw[1:]):
        raise InputError("the frontier has shares of raw: measure pairs of raw that have correct matches")
    points = []
    for identity, (recipe, accuracy, correct) in use.items():
        attacks = attacks_on(identity, records)
        figures = {"accuracy 3 px": accuracy, "correct 3 px": correct, **_scene_figures(identity, records)}
        points.append(_point(recipe, (accuracy / raw[1], correct / raw[2]), attacks, figures, records, keyed))
    return points


def attacks_on(identity: str, records: FrontierRecords) -> list[AttackFigures]:
    """Return all attacks on a recipe, by single photos and by matches."""
    attacks = []
    for group in group_by_seed([*records.leakage, *records.matched]):
        attack = AttackId.of(group.params)
        if _identity(group) != identity or attack.role is AttackRole.SCALE:
            continue
        clear, lifted = (_shares(group, space) for space in ("", "lifted "))
        encoded = Recipe.of(str(group.params.get("recipe"))).has_encoder
        attacks.append(AttackFigures(attack, group.mean("leakage"), clear, lifted if encoded else clear))
    return attacks


def worst(attacks: Iterable[AttackFigures], figure: str) -> tuple[float, str] | None:
    """Return the most that an attack reaches of a figure, and which attack; None where none gives that figure.

    A figure is "leakage", or a distance with the space: "within 0.1", "clear within 0.1", "lifted within 0.1".
    """
    values = [(value, one) for one in attacks if (value := one.figure(figure)) is not None]
    if not values:
        return None
    most, by = max(values, key=lambda pair: (pair[0], pair[1].figure(WITHIN[-1]) or 0.0))
    return most, by.attack.title


def frontier_table(points: Sequence[FrontierPoint], *, short: bool = False) -> Table:
    """Return one row per recipe: use, worst cases with their attacks, who is missing, and all figures unless short."""
    further = [] if short else list(dict.fromkeys(name for point in points for name in point.figures))
    columns = (
        "recipe", "accuracy / raw", "correct / raw", "leakage", "leakage by", "within 0.1", "within 0.3",
        "recovered by", "reaches the aims", "missing attackers", *further,
    )  # fmt: skip
    rows = [
        (
            Cell(point.recipe), Cell(point.accuracy_share), Cell(point.correct_share), Cell(point.leakage),
            Cell(point.leakage_by), Cell(point.recovered_01), Cell(point.recovered_03), Cell(point.recovered_by),
            Cell(verdict(point)), Cell(", ".join(point.missing) or None),
            *(Cell(point.figures.get(name)) for name in further),
        )
        for point in points
    ]  # fmt: skip
    return Table(columns, tuple(rows))


def verdict(point: FrontierPoint) -> str:
    """Return in a word or two whether a recipe is what it should be; not known where only missing attackers tell."""
    safe = point.leakage <= MOST_LEAKAGE and point.recovered_01 < MOST_RECOVERED
    if safe and point.missing:
        return "not known"
    parts = [name for name, good in (("use", point.keeps_use), ("privacy", point.is_private)) if good]
    return " and ".join(parts) or "no"


def _point(
    recipe: str,
    shares: tuple[float, float],
    attacks: Sequence[AttackFigures],
    figures: Mapping[str, float],
    records: FrontierRecords,
    keyed: bool,
) -> FrontierPoint:
    counted = [one for one in attacks if one.attack.counts and not (keyed and one.needs_release)]
    nothing = (1.0, CLEAR) if recipe == "raw" else (0.0, NOBODY)
    leakage = worst(counted, "leakage") or nothing
    near, nearby = (worst(counted, name) or nothing for name in WITHIN)
    missing = list(records.missing.get(Recipe.of(recipe).identity, ()))
    if recipe != "raw":
        missing += [f"all that {verb}" for verb, one in (("paint", leakage), ("recover", near)) if one == nothing]
    return FrontierPoint(
        recipe=recipe,
        accuracy_share=shares[0],
        correct_share=shares[1],
        leakage=leakage[0],
        leakage_by=leakage[1],
        recovered_01=near[0],
        recovered_03=nearby[0],
        recovered_by=near[1],
        trained=not any(name.startswith((*NETWORKS, "all that")) for name in missing),
        missing=tuple(missing),
        figures={**figures, **_further_figures(attacks, counted)},
    )


def _further_figures(attacks: Sequence[AttackFigures], counted: Sequence[AttackFigures]) -> dict[str, float]:
    """Return what stands beside the worst cases: by space, by knowledge, and what oracles get."""
    once = [one for one in counted if not one.needs_release]
    twice = [one for one in attacks if one.needs_release]
    matches, oracles = [one for one in attacks if one.needs_matches], [one for one in attacks if not one.attack.counts]
    figures = {
        "leakage, one release": worst(once, "leakage"),
        "leakage, two releases": worst(twice, "leakage"),
        "leakage, oracle": worst(oracles, "leakage"),
    }
    for name in WITHIN:
        figures |= {
            f"{name}, clear space": worst(counted, f"clear {name}"),
            f"{name}, lifted space": worst(counted, f"lifted {name}"),
            f"{name}, one release": worst(once, name),
            f"{name}, two releases": worst(twice, name),
            f"{name}, matches": worst(matches, name),
            f"{name}, oracle": worst(oracles, name),
        }
    return {name: one[0] for name, one in figures.items() if one is not None}


def _use(records: Iterable[Record]) -> dict[str, tuple[str, float, float]]:
    """Return recipe, accuracy and correct matches by the identity of the recipe, where nothing clear is compared."""
    use: dict[str, tuple[str, float, float]] = {}
    for group in group_by_seed(records):
        accuracy, correct = (group.mean(score_name(f"{name} 3 px", "overall")) for name in ("accuracy", "correct"))
        if group.params.get("distance") in BOTH_CONCEALED and accuracy is not None and correct is not None:
            use[_identity(group)] = str(group.params.get("recipe")), accuracy, correct
    return use


def _scene_figures(identity: str, records: FrontierRecords) -> dict[str, float]:
    figures = {}
    for scene, maps in records.scenes.items():
        for group in group_by_seed(maps):
            for title, name in SCENE_FIGURES.items():
                value = group.mean(name)
                if _identity(group) == identity and value is not None:
                    figures[f"{title}, {scene}"] = value
    return figures


def _shares(group: SeedGroup, space: str) -> dict[str, float]:
    """Return the shares recovered within some distances in one space."""
    return {name: value for name in WITHIN if (value := group.mean(f"{space}{name}")) is not None}


def _identity(group: SeedGroup) -> str:
    return Recipe.of(str(group.params.get("recipe"))).identity


# --- the figure. The corner that recipes aim at is shaded. A full marker recovers little and keeps its correct matches,
# a half one does one of the two, an empty one neither; a crossed one lacks attackers, and says nothing yet.


FILLS: dict[int, Any] = {2: "full", 1: "left", 0: "none"}
"""How a marker is filled, by how many of the two it reaches."""


def draw_frontier(points: Sequence[FrontierPoint], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw all points, and a line through those that none beats; return the two files, PNG and SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(9.2, 5.8), layout="constrained")
        axes: Any = figure.subplots()
        _draw_aims(axes)
        best = [point for point in non_dominated(points) if not point.missing]
        axes.plot([p.leakage for p in best], [p.accuracy_share for p in best], color="#999999", linewidth=1, zorder=1)
        for number, point in enumerate(points):
            _draw_point(axes, point, number)
        axes.set_xlabel("worst leakage of any attack (0 = keypoints with a mean descriptor, 1 = clear descriptors)")
        axes.set_ylabel("matching accuracy at 3 px, share of raw")
        axes.set_xlim(min(-0.05, *(p.leakage - 0.05 for p in points)), max(1.1, *(p.leakage + 0.05 for p in points)))
        axes.set_ylim(max(0.0, min(0.8, *(p.accuracy_share - 0.05 for p in points))),
                      max(1.05, *(p.accuracy_share + 0.05 for p in points)))  # fmt: skip
        axes.grid(color="#e8e8e8")
        axes.set_axisbelow(True)
        axes.set_title(title, fontsize=10)
        _explain(figure, points)
        return save_figure(figure, stem)


def label_of(point: FrontierPoint) -> str:
    """Return the name of a recipe for people, with the attack that counts."""
    return f"{point.name} ({point.leakage_by}{'; some missing' if point.missing else ''})"


def _draw_aims(axes: Any) -> None:
    """Shade the corner where leakage and accuracy are what they should be."""
    axes.fill_between([-1, MOST_LEAKAGE], LEAST_ACCURACY, 2, color="#56B4E9", alpha=0.18, linewidth=0, zorder=0)
    edge = {"color": "#0072B2", "linewidth": 1, "linestyle": "--", "zorder": 1}
    axes.plot([-1, MOST_LEAKAGE, MOST_LEAKAGE], [LEAST_ACCURACY, LEAST_ACCURACY, 2], **edge)
    axes.annotate("aim", (0.0, LEAST_ACCURACY + 0.008), color="#0072B2")


def _draw_point(axes: Any, point: FrontierPoint, number: int) -> None:
    """Draw one recipe; a thin line leads to what a single release leaks, where that is less."""
    once, look = _once(point), _look(point, number)
    if once is not None:
        axes.plot([once, point.leakage], [point.accuracy_share] * 2, color=look["color"], linewidth=0.8, zorder=2)
        axes.plot([once], [point.accuracy_share], "|", color=look["color"], markersize=8, zorder=2)
    axes.plot([point.leakage], [point.accuracy_share], zorder=3, **look)
    if point.missing:
        axes.plot([point.leakage], [point.accuracy_share], "x", color="#000000", markersize=15, zorder=2.5)


def _once(point: FrontierPoint) -> float | None:
    """Return what one release leaks, where that is visibly less than all of them."""
    once = point.figures.get("leakage, one release")
    return None if once is None or once > point.leakage - 0.005 else once


def _look(point: FrontierPoint, number: int) -> dict[str, Any]:
    reached = (point.recovered_01 < MOST_RECOVERED) + (point.correct_share >= LEAST_CORRECT)
    colour = COLOURS[number % len(COLOURS)]
    return {
        "color": colour, "marker": MARKERS[number % len(MARKERS)], "markersize": 8, "fillstyle": FILLS[reached],
        "markerfacecoloralt": "white", "linestyle": "none",
    }  # fmt: skip


def _explain(figure: Any, points: Sequence[FrontierPoint]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=label_of(point), **_look(point, i)) for i, point in enumerate(points)]
    grey: dict[str, Any] = {"color": "#444444", "marker": "o", "markersize": 8, "linestyle": "none"}
    labels = {
        2: f"under {MOST_RECOVERED:.0%} recovered, {LEAST_CORRECT:.0%} of correct kept",
        1: "one of the two",
        0: "neither",
    }
    handles += [
        Line2D([], [], label=labels[n], fillstyle=FILLS[n], markerfacecoloralt="white", **grey) for n in (2, 1, 0)
    ]
    handles.append(
        Line2D([], [], label="attackers missing: leaks at least this", color="#000000", marker="x", linestyle="none")
    )
    if any(_once(point) is not None for point in points):
        handles.append(Line2D([], [], label="one release alone", color="#444444", marker="|", linewidth=0.8))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
