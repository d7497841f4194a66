# SPDX-License-Identifier: Apache-2.0
"""Bars of the patch tasks: a panel a task, a cluster a level or subset, a bar a recipe and distance.

Knows records; bars are told apart by colour and hatching.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sfumato.errors import InputError
from sfumato.evaluate.figures import COLOURS, save_figure
from sfumato.evaluate.patches import TASKS
from sfumato.evaluate.tables import Group, group_by_seed
from sfumato.types.record import Record

HATCHES = ("", "//", "..", "xx", "--", "\\\\", "++", "oo")


def draw_bars(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw every task with its levels, the mean last, to ``<stem>.png`` and ``<stem>.svg``; a line spans all seeds.

    Raises InputError where no record has a figure, FileError if a file can not be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    groups = [group for group in group_by_seed(records) if group.values("fpr95")]
    if not groups:
        raise InputError("figure: no record tells how patches are told apart")
    tasks = {title: name for title, name in TASKS.items() if any(group.values(name) for group in groups)}
    samples = _samples(groups)
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 3.0 * len(tasks), 4.0), layout="constrained")
        for axes, (name, score) in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks.items(), strict=True):
            for number, group in enumerate(groups):
                _draw(axes, group, [*(f"{score}, {key}" for key in samples), score], number, len(groups))
            axes.set_xticks(range(len(samples) + 1), [*samples, "mean"])
            axes.set_title(f"{name} ({'less' if score == 'fpr95' else 'more'} is better)", fontsize=9)
            axes.set_ylim(0, 1)
            axes.grid(axis="y", color="#e8e8e8")
            axes.set_axisbelow(True)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(groups)), frameon=False)
        if title:
            figure.suptitle(title, fontsize=11)
        return save_figure(figure, stem)


def _samples(groups: list[Group]) -> list[str]:
    """Return the levels or subsets, in the order of the records."""
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    return [name.removeprefix("fpr95, ") for name in names if name.startswith("fpr95, ")]


def _draw(axes: Any, group: Group, scores: list[str], number: int, count: int) -> None:
    """Draw the bars of one recipe and distance, beside those of the others."""
    width = 0.8 / count
    values = [group.values(name) for name in scores]
    heights = [sum(some) / len(some) if some else 0.0 for some in values]
    places = [place - 0.4 + width * (number + 0.5) for place in range(len(scores))]
    recipe, distance = group.params.get("recipe"), group.params.get("distance")
    look = {"color": COLOURS[number % len(COLOURS)], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "#ffffff"}
    axes.bar(places, heights, width, label=f"{re.sub('@[0-9a-f]+', '', str(recipe))} {distance}", linewidth=0.4, **look)
    for place, some in zip(places, values, strict=True):
        if len(some) > 1:
            axes.plot([place, place], [min(some), max(some)], color="#444444", linewidth=1)
