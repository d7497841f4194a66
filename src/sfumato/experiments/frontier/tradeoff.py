# SPDX-License-Identifier: Apache-2.0
"""Use against leakage, one point a recipe (Figure 8b of NinjaDesc): what matching keeps, and what attackers get.

Joins records that other evaluations made. Use is the matching accuracy of homography pairs as a share of raw's; leakage
is the most that any attack shows of the picture, on the scale of ``leakage.py``. An oracle knows the answer: what it
gets is told in the table and does not count.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.auditing.leakage import SCALE, counts
from sfumato.auditing.matching import score_name
from sfumato.auditing.subjects import POINTS
from sfumato.auditing.tables import COLOURS, MARKERS, Cell, Group, Table, group_by_seed, save_figure
from sfumato.errors import InputError
from sfumato.types.record import Record

BOTH_CONCEALED = (POINTS, "s-to-s")
"""Distances with nothing clear on either side: points of an encoder, or two subspaces."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A recipe: ``accuracy`` at 3 px and ``correct`` matches of a pair, and the ``leakage`` by attack."""

    recipe: str
    accuracy: float
    correct: float
    leakage: Mapping[str, float]

    @property
    def worst(self) -> tuple[float, str]:
        """The most that an attack gets, and its name; nothing but the clear descriptors themselves for raw."""
        counted = {name: value for name, value in self.leakage.items() if counts(name)}
        if not counted:
            return (1.0, "clear") if self.recipe == "raw" else (float("nan"), "none was run")
        name = max(counted, key=lambda one: counted[one])
        return counted[name], name


def weigh(use: Iterable[Record], leakage: Iterable[Record]) -> list[Standing]:
    """Join matching accuracy and leakage by recipe, in the order of the former.

    Raises InputError if no recipe was measured in both ways.
    """
    matched, attacked = list(use), list(leakage)
    leaks: dict[str, dict[str, float]] = {}
    for group in group_by_seed(attacked):
        attack, value = str(group.params.get("attack")), group.mean("leakage")
        if value is not None and attack not in SCALE:
            leaks.setdefault(_recipe(group), {})[_title(group)] = value
    bare = leaks.pop("raw", {})  # what keypoints alone show, and every recipe with them
    leaks = {recipe: {**found, **bare} for recipe, found in leaks.items()}
    standings = []
    for group in group_by_seed(matched):
        accuracy = group.mean(score_name("accuracy 3 px", "overall"))
        correct = group.mean(score_name("correct 3 px", "overall"))
        recipe = _recipe(group)
        if group.params.get("distance") not in BOTH_CONCEALED or accuracy is None or correct is None:
            continue
        if recipe in leaks or recipe == "raw":
            standings.append(Standing(recipe, accuracy, correct, leaks.get(recipe, {})))
    if not any(one.leakage for one in standings):
        dropped = list(dict.fromkeys(line for record in (*matched, *attacked) for line in record.dropped))
        said = f"; left out: {'; '.join(dropped[:5])}" if dropped else ""
        raise InputError(f"tradeoff: no recipe has both a matching accuracy and a leakage{said}")
    return standings


def tradeoff_table(standings: Sequence[Standing]) -> Table:
    """Return one row a recipe: use, the worst attack, and what every attack gets."""
    raw = next((one for one in standings if one.recipe == "raw"), None)
    attacks = list(dict.fromkeys(name for one in standings for name in one.leakage))
    rows = []
    for one in standings:
        shares = (None, None) if raw is None else (_share(one.accuracy, raw.accuracy), _share(one.correct, raw.correct))
        leaked, by = one.worst
        use = (Cell(one.recipe), Cell(one.accuracy), Cell(shares[0]), Cell(shares[1]))
        rows.append((*use, Cell(leaked), Cell(by), *(Cell(one.leakage.get(name)) for name in attacks)))
    columns = ("recipe", "accuracy 3 px", "accuracy / raw", "correct / raw", "worst leakage", "by", *attacks)
    return Table(columns, tuple(rows))


def draw_tradeoff(standings: Sequence[Standing], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw use over leakage, a point for the worst attack of each recipe and a thin line to what the others get.

    Best is the corner at the upper left. Returns the two files, PNG and SVG.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes: Any = figure.subplots()
        for number, one in enumerate(standings):
            colour, (leaked, by) = COLOURS[number % len(COLOURS)], one.worst
            least = min((value for name, value in one.leakage.items() if counts(name)), default=leaked)
            axes.plot([least, leaked], [one.accuracy] * 2, color=colour, linewidth=0.8)
            label = f"{re.sub('@[0-9a-f]+', '', one.recipe)} ({by})"
            axes.plot([leaked], [one.accuracy], MARKERS[number % len(MARKERS)], color=colour, label=label)
        axes.set_xlabel("leakage: 0 a mean descriptor, 1 clear ones (worst attack; thin line: down to the least)")
        axes.set_ylabel("mean matching accuracy at 3 px")
        axes.grid(color="#e8e8e8")
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        if title:
            axes.set_title(title, fontsize=10)
        return save_figure(figure, stem)


def _recipe(group: Group) -> str:
    return str(group.params.get("recipe"))


def _title(group: Group) -> str:
    attack, inverter = str(group.params.get("attack")), group.params.get("inverter")
    return attack if inverter in (None, "patch") else f"{attack}, {inverter}"


def _share(value: float, whole: float) -> float | None:
    return value / whole if whole else None
