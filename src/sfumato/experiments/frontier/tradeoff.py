# SPDX-License-Identifier: Apache-2.0
"""Trade-off of use and leakage, one point per recipe (Figure 8b of NinjaDesc).

Joins records that other evaluations made. Use is the matching accuracy of homography pairs as a share of raw's; leakage
is the most that any attack shows of the picture, on the scale of the leakage evaluation. Attacks that do not count,
such as oracles, stand in the table only.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.attacks.registry import AttackId
from sfumato.auditing.leakage import LeakageJob, evaluate_leakage
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography, score_name
from sfumato.auditing.subjects import POINTS
from sfumato.auditing.tables import COLOURS, MARKERS, Cell, SeedGroup, Table, group_by_seed, save_figure
from sfumato.errors import InputError
from sfumato.images.homography import HomographySequence
from sfumato.types.record import AttackRole, Record

BOTH_CONCEALED = (POINTS, "s-to-s")
"""Distances with nothing clear on either side: points of an encoder, or two subspaces."""


@dataclass(frozen=True, slots=True)
class TradeoffPoint:
    """Trade-off of a recipe: ``accuracy`` at 3 px and ``correct`` matches per pair, and the ``leakage`` by attack."""

    recipe: str
    accuracy: float
    correct: float
    leakage: Mapping[AttackId, float]

    @property
    def worst(self) -> tuple[float, str]:
        """The most that an attack gets, and its title; for raw the clear descriptors themselves."""
        counted = self.counted
        if not counted:
            return (1.0, "clear") if self.recipe == "raw" else (float("nan"), "none was run")
        attack = max(counted, key=lambda one: counted[one])
        return counted[attack], attack.title

    @property
    def counted(self) -> dict[AttackId, float]:
        """The leakage by attacks that count."""
        return {attack: value for attack, value in self.leakage.items() if attack.counts}


def evaluate_tradeoff(
    sequences: Sequence[HomographySequence],
    protocol: HomographyProtocol,
    job: LeakageJob,
    stem: Path,
    *,
    workers: int | None = None,
    bar: Callable[[str], Callable[[Sequence[Any]], Iterable[Any]]] = lambda title: iter,
    overwrite: bool = False,
) -> tuple[list[TradeoffPoint], list[Record], tuple[Path, Path]]:
    """Measure matching and leakage of the same recipes beside ``stem``, and draw them, named after it.

    Returns the points, all records and the files of the figure.
    """
    folder, decoys = stem.parent, job.toolbox.open_decoys()
    use = evaluate_homography(sequences, folder, protocol, decoys, progress=bar("matching"), overwrite=overwrite)
    leakage = evaluate_leakage(job.plan(), folder, workers=workers, progress=bar("attacking"), overwrite=overwrite)
    points = weigh(use, leakage)
    figures = draw_tradeoff(points, stem, f"Use against leakage, {job.protocol.local.descriptor}")
    return points, [*use, *leakage], figures


def weigh(use: Iterable[Record], leakage: Iterable[Record]) -> list[TradeoffPoint]:
    """Join matching accuracy and leakage by recipe, in the order of the former.

    Raises InputError if no recipe was measured in both ways.
    """
    matched, attacked = list(use), list(leakage)
    leaks: dict[str, dict[AttackId, float]] = {}
    for group in group_by_seed(attacked):
        attack, value = AttackId.of(group.params), group.mean("leakage")
        if value is not None and attack.role is not AttackRole.SCALE:
            leaks.setdefault(_recipe(group), {})[attack] = value
    points = []
    for group in group_by_seed(matched):
        accuracy = group.mean(score_name("accuracy 3 px", "overall"))
        correct = group.mean(score_name("correct 3 px", "overall"))
        recipe = _recipe(group)
        if group.params.get("distance") not in BOTH_CONCEALED or accuracy is None or correct is None:
            continue
        if recipe in leaks or recipe == "raw":
            points.append(TradeoffPoint(recipe, accuracy, correct, leaks.get(recipe, {})))
    if not any(one.leakage for one in points):
        dropped = list(dict.fromkeys(line for record in (*matched, *attacked) for line in record.dropped))
        reasons = f"; left out: {'; '.join(dropped[:5])}" if dropped else ""
        raise InputError(f"tradeoff: no recipe has both a matching accuracy and a leakage{reasons}")
    return points


def tradeoff_table(points: Sequence[TradeoffPoint]) -> Table:
    """Return one row per recipe: use, the worst attack, and what every attack gets."""
    raw = next((one for one in points if one.recipe == "raw"), None)
    attacks = list(dict.fromkeys(attack for one in points for attack in one.leakage))
    rows = []
    for one in points:
        shares = (None, None) if raw is None else (_share(one.accuracy, raw.accuracy), _share(one.correct, raw.correct))
        leaked, by = one.worst
        use = (Cell(one.recipe), Cell(one.accuracy), Cell(shares[0]), Cell(shares[1]))
        rows.append((*use, Cell(leaked), Cell(by), *(Cell(one.leakage.get(attack)) for attack in attacks)))
    columns = (
        "recipe",
        "accuracy 3 px",
        "accuracy / raw",
        "correct / raw",
        "worst leakage",
        "by",
        *(one.title for one in attacks),
    )
    return Table(columns, tuple(rows))


def draw_tradeoff(points: Sequence[TradeoffPoint], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw use over leakage, a point for the worst attack of each recipe and a thin line to what the others get.

    Best is the corner at the upper left. Returns the two files, PNG and SVG.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(6.4, 4.6), layout="constrained")
        axes: Any = figure.subplots()
        for number, one in enumerate(points):
            colour, (leaked, by) = COLOURS[number % len(COLOURS)], one.worst
            least = min(one.counted.values(), default=leaked)
            axes.plot([least, leaked], [one.accuracy] * 2, color=colour, linewidth=0.8)
            label = f"{re.sub('@[0-9a-f]+', '', one.recipe)} ({by})"
            axes.plot([leaked], [one.accuracy], MARKERS[number % len(MARKERS)], color=colour, label=label)
        axes.set_xlabel("leakage, worst attack (0 = mean descriptor, 1 = clear ones); thin line: down to the least")
        axes.set_ylabel("mean matching accuracy at 3 px")
        axes.grid(color="#e8e8e8")
        axes.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        if title:
            axes.set_title(title, fontsize=10)
        return save_figure(figure, stem)


def _recipe(group: SeedGroup) -> str:
    return str(group.params.get("recipe"))


def _share(value: float, raw: float) -> float | None:
    return value / raw if raw else None
