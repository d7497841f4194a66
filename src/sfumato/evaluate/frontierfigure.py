# SPDX-License-Identifier: Apache-2.0
"""The frontier drawn: use over the worst leakage, a marker a recipe. Knows points, not how they were measured.

The corner of what a recipe should reach is shaded. A full marker recovers little and keeps its correct matches, a half
one does one of the two, an empty one neither; a crossed one lacks attackers, and says nothing yet. No recipe is told by
its colour alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfumato.evaluate.figures import COLOURS, MARKERS, save_figure
from sfumato.evaluate.frontierfile import (
    LEAST_ACCURACY,
    LEAST_CORRECT,
    MOST_LEAKAGE,
    MOST_RECOVERED,
    FrontierPoint,
    non_dominated,
)

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
        axes.set_xlabel("worst leakage of any attack: 0 a mean descriptor, 1 clear descriptors")
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
    told = {
        2: f"under {MOST_RECOVERED:.0%} recovered, {LEAST_CORRECT:.0%} of correct kept",
        1: "one of the two",
        0: "neither",
    }
    handles += [
        Line2D([], [], label=told[n], fillstyle=FILLS[n], markerfacecoloralt="white", **grey) for n in (2, 1, 0)
    ]
    handles.append(
        Line2D([], [], label="attackers missing: leaks at least this", color="#000000", marker="x", linestyle="none")
    )
    if any(_once(point) is not None for point in points):
        handles.append(Line2D([], [], label="one release alone", color="#444444", marker="|", linewidth=0.8))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
