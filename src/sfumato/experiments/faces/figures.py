# SPDX-License-Identifier: Apache-2.0
"""Figures about faces: verification curves, bars of attribute attacks, one against the other, and protection.

No line or bar is distinguished by colour alone.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sfumato.auditing.runner import load_records
from sfumato.auditing.tables import COLOURS, MARKERS, STYLES, SeedGroup, group_by_seed, save_figure
from sfumato.errors import InputError
from sfumato.experiments.faces.attributes import SCORES
from sfumato.experiments.faces.protection import KEY_EACH, local_linkability, performance_pairs
from sfumato.experiments.faces.verification import (
    accept_intervals,
    read_distances,
    read_prediction,
    receiver_curve,
    resampled_curves,
)
from sfumato.experiments.patches.evaluate import HATCHES
from sfumato.types.record import Record

BARS = {title: name for title, name in SCORES.items() if name not in ("majority", "leakage")}


def draw_verification(records: Sequence[Record], output: Path, stem: Path) -> tuple[Path, ...]:
    """Draw the curves of verification records, of one seed, whose distances are still below ``output``."""
    lines = [
        (f"{record.params['recipe']} {record.params['distance']}", *pairs)
        for record in records
        if record.seed in (None, records[-1].seed) and (pairs := read_distances(record, output)) is not None
    ]
    return draw_curves(lines, stem, "Face verification") if lines else ()


def draw_balance_below(output: Path) -> tuple[Path, ...]:
    """Draw accuracy against leakage if ``output`` holds records of both for one recipe."""
    if not all((output / name).is_dir() for name in ("faces", "attributes")):
        return ()
    verified, attacked = (load_records(output / name) for name in ("faces", "attributes"))
    recipes = {record.params["recipe"] for record in verified if record.scores}
    if not any(record.params["recipe"] in recipes and record.scores for record in attacked):
        return ()
    return draw_balance(balance_points(verified, attacked), output / "faces-balance", "Verification against leakage")


def draw_curves(
    distances: Sequence[tuple[str, ArrayLike, ArrayLike]], stem: str | Path, title: str = ""
) -> tuple[Path, Path]:
    """Draw true accepts over false accepts, a line for each (label, distances, same); the rate below is logarithmic.

    Labels that share their first word, the recipe, share a colour; their lines differ in style.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not distances:
        raise InputError("figure: there are no distances to draw")
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(6.4, 4.8), layout="constrained")
        axes: Any = figure.subplots()
        of_recipe = Counter[str]()
        for label, values, same in distances:
            curve, recipe = receiver_curve(values, same), label.split(" ")[0]
            of_recipe[recipe] += 1
            number = list(of_recipe).index(recipe)
            style = STYLES[(of_recipe[recipe] - 1 + number // len(COLOURS)) % len(STYLES)]
            rates = np.maximum(curve.false_accept, 0.5 / curve.impostors)
            axes.step(rates, curve.true_accept, style, where="post", color=COLOURS[number % len(COLOURS)], label=label)
        axes.set_xscale("log")
        axes.set_xlabel("false-accept rate")
        axes.set_ylabel("true-accept rate")
        axes.set_ylim(0, 1.01)
        axes.grid(color="#e8e8e8")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        if title:
            axes.set_title(title, fontsize=10)
        return save_figure(figure, stem)


def draw_attributes(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw one panel per attribute: bars of every attack on every recipe, and a line for the majority (Figure 4).

    Raises InputError where no record has a figure.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    groups = [group for group in group_by_seed(records) if group.values("leakage")]
    if not groups:
        raise InputError("figure: no record has the results of attacks")
    attributes = list(dict.fromkeys(str(group.params["attribute"]) for group in groups))
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 5.2 * len(attributes), 4.2), layout="constrained")
        panels = figure.subplots(1, len(attributes), squeeze=False, sharey=True)[0]
        for axes, attribute in zip(panels, attributes, strict=True):
            own = [group for group in groups if group.params["attribute"] == attribute]
            _draw_bars(axes, own)
            axes.set_title(attribute, fontsize=10)
        panels[0].set_ylabel("share of faces guessed rightly")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        if title:
            figure.suptitle(title, fontsize=11)
        return save_figure(figure, stem)


def _draw_bars(axes: Any, groups: Sequence[SeedGroup]) -> None:
    width = 0.8 / len(BARS)
    for number, (title, score) in enumerate(BARS.items()):
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(groups))]
        heights = [group.mean(score) or 0.0 for group in groups]
        spread = [group.deviation(score) or 0.0 for group in groups]
        look = {"color": COLOURS[1 + number], "hatch": HATCHES[number], "edgecolor": "#ffffff", "linewidth": 0.4}
        axes.bar(places, heights, width, yerr=spread if any(spread) else None, label=title, **look)
    chance = float(np.mean([group.mean("majority") or 0.0 for group in groups]))
    axes.axhline(chance, color="#000000", linewidth=1.2, label="majority")
    axes.set_xticks(range(len(groups)), [_attacked_name(group) for group in groups], rotation=35, ha="right")
    axes.set_ylim(0, 1)
    axes.grid(axis="y", color="#e8e8e8")
    axes.set_axisbelow(True)


def _attacked_name(group: SeedGroup) -> str:
    """Return the recipe, and for sealed ones whether the attacker has the key."""
    attacker = group.params.get("attacker")
    return f"{group.params['recipe']}\n{attacker}" if attacker else str(group.params["recipe"])


@dataclass(frozen=True, slots=True)
class Balance:
    """A recipe with its verification accuracy and the success of attacks on one attribute."""

    recipe: str
    distance: str
    attribute: str
    accuracy: float
    neighbours: float
    leakage: float
    majority: float


def balance_points(verified: Iterable[Record], attacked: Iterable[Record]) -> list[Balance]:
    """Join verification and attribute records by recipe; raises InputError if no recipe is in both."""
    leaks = [group for group in group_by_seed(attacked) if group.values("leakage")]
    points = [
        Balance(
            recipe=_attacked_name(leak).replace("\n", " "),
            distance=str(group.params["distance"]),
            attribute=str(leak.params["attribute"]),
            accuracy=group.mean("accuracy") or 0.0,
            neighbours=leak.mean("neighbours relabelled") or 0.0,
            leakage=leak.mean("leakage") or 0.0,
            majority=leak.mean("majority") or 0.0,
        )
        for group in group_by_seed(verified)
        if group.values("accuracy")
        for leak in leaks
        if leak.params["recipe"] == group.params["recipe"]
    ]
    if not points:
        raise InputError("figure: no recipe was both verified and attacked")
    return points


def draw_balance(points: Sequence[Balance], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw accuracy against leakage: for each recipe a mark at the strongest attack, and a thin line to the paper's.

    Best is the corner at the upper left. One panel per attribute; the line across is the majority. Filled marks are
    point-to-subspace (and raw), empty ones subspace-to-subspace. Recipes stand in the order of their best accuracy.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    best: dict[str, float] = {}
    for point in points:
        best[point.recipe] = max(best.get(point.recipe, 0.0), point.accuracy)
    points = sorted(points, key=lambda one: (one.recipe != "raw", -best[one.recipe], one.recipe, one.distance))
    attributes = sorted({point.attribute for point in points})
    recipes = list(dict.fromkeys(point.recipe for point in points))
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 4.6 * len(attributes), 4.8), layout="constrained")
        panels = figure.subplots(1, len(attributes), squeeze=False, sharey=True)[0]
        for axes, attribute in zip(panels, attributes, strict=True):
            for point in points:
                if point.attribute == attribute:
                    _mark(axes, point, recipes.index(point.recipe))
            chance = float(np.mean([point.majority for point in points if point.attribute == attribute]))
            axes.axvline(chance, color="#000000", lw=1)
            axes.annotate(
                "always guessing the majority", (chance, 0.2), (4, 0), ("data", "axes fraction"),
                textcoords="offset points", rotation=90, fontsize=7, va="bottom",
            )  # fmt: skip
            axes.set_title(f"{attribute}: best is the upper left", fontsize=10)
            axes.set_xlabel("share guessed rightly: bar 10 neighbours, mark the strongest attack")
            axes.grid(color="#e8e8e8")
        panels[0].set_ylabel("verification accuracy")
        shown = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4, frameon=False)
        if title:
            figure.suptitle(title, fontsize=11)
        return save_figure(figure, stem)


def _mark(axes: Any, one: Balance, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    hollow = one.distance == "s-to-s"
    axes.plot([one.neighbours, one.leakage], [one.accuracy] * 2, color=colour, linewidth=0.8)
    axes.plot([one.neighbours], [one.accuracy], marker="|", markersize=9, color=colour)
    look = {"color": colour, "markerfacecolor": "none" if hollow else colour, "linestyle": "none"}
    axes.plot(
        [one.leakage],
        [one.accuracy],
        marker=MARKERS[number % len(MARKERS)],
        label=f"{one.recipe} {one.distance}",
        **look,
    )


BAR_COUNT = 40
PANELS_IN_ROW = 4


def draw_protection(records: Sequence[Record], output: Path, stem: Path) -> tuple[Path, ...]:
    """Draw what records of protection of one seed say of linking, a panel for each, and their verification curves.

    A panel has the histograms of scores of one and of two people, and the local linkability D(s) of Gomez-Barrero et
    al. (2018) over them. Curves have their intervals; the impostors of all have the key.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    known = [
        (record, arrays)
        for record in records
        if record.seed == records[0].seed and (arrays := read_prediction(record, output)) is not None
    ]
    if not known:
        return ()
    columns = min(PANELS_IN_ROW, len(known) + 1)
    lines = -(-(len(known) + 1) // columns)
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(0.8 + 3.7 * columns, 1.4 + 2.9 * lines), layout="constrained")
        cells = figure.subplots(lines, columns, squeeze=False).ravel()
        for number, (axes, (record, arrays)) in enumerate(zip(cells, known, strict=False)):
            _draw_scores(axes, record, arrays)
            if number % columns == 0:
                axes.set_ylabel("density")
        _draw_accepts(cells[len(known)], known)
        for axes in cells[len(known) + 1 :]:
            axes.axis("off")
        handles, labels = cells[0].get_legend_handles_labels()
        for other in (figure.axes[len(cells)], cells[len(known)]):  # the first line over bars, and the curves
            more = other.get_legend_handles_labels()
            handles, labels = handles + more[0], labels + more[1]
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle("Can templates of one person in two databases be linked?  0 = never, 1 = always", fontsize=12)
        return save_figure(figure, stem)


def _protected_name(record: Record) -> str:
    """Return the recipe, and for sealed ones whose keys they are."""
    keys = record.params.get("keys")
    return (
        f"{record.params['recipe']}, {'a key each' if keys == KEY_EACH else 'one key'}"
        if keys
        else str(record.params["recipe"])
    )


def _draw_scores(axes: Any, record: Record, arrays: Mapping[str, Any]) -> None:
    """Draw the histograms of a record, and the local linkability over them on an axis of its own colour."""
    mated, unmated = arrays["mated"].ravel(), arrays["unmated"].ravel()
    edges = np.linspace(min(mated.min(), unmated.min()), max(mated.max(), unmated.max()), BAR_COUNT + 1)
    axes.hist(unmated, edges, density=True, color=COLOURS[7], alpha=0.55, label="scores of two people")
    axes.hist(mated, edges, density=True, histtype="step", hatch="////", color=COLOURS[1], label="scores of one person")
    axes.margins(y=0.12)
    axes.set_yticks([])
    local, cuts = local_linkability(mated, unmated)
    right = axes.twinx()
    right.stairs(
        local, cuts, color=COLOURS[2], linewidth=1.6, baseline=None, label="linkability D of a score, right axis"
    )
    right.set_ylim(0, 1.05)
    right.tick_params(axis="y", colors=COLOURS[2])
    linkable = next(score.value for score in record.scores if score.name == "linkable")
    axes.set_title(f"{_protected_name(record)}: {linkable:.2f}", fontsize=10)
    axes.set_xlabel("share of different bits" if record.params.get("keys") else "distance")


def _draw_accepts(axes: Any, known: Sequence[tuple[Record, Mapping[str, Any]]]) -> None:
    """Draw true accepts over false accepts with their intervals, a line for each record."""
    for number, (record, arrays) in enumerate(known):
        distances, same, people = performance_pairs(arrays)
        curve = receiver_curve(distances, same)
        rates = np.geomspace(5 / curve.impostors, 1, 60)
        accepts = curve.true_accept[np.searchsorted(curve.false_accept, rates, side="right") - 1]
        low, high = accept_intervals(resampled_curves(distances, same, people), list(rates)).T
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        axes.plot(rates, accepts, style, color=colour, linewidth=1.5, label=_protected_name(record))
        axes.fill_between(rates, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel("false-accept rate, impostors have the key")
    axes.set_ylabel("true-accept rate")
    axes.set_ylim(0, 1.02)
    axes.grid(color="#e8e8e8")
    axes.set_title("Verification, with 95 % intervals", fontsize=10)
