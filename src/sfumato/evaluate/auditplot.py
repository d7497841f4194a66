# SPDX-License-Identifier: Apache-2.0
"""Use against leakage as one picture for a page: the points of an audit, over those that were measured before.

Knows figures and names. What is wanted lies at the upper left: little leaks, and matching stays.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.evaluate.figures import COLOURS, MARKERS
from sfumato.types.record import Picture

MOST_LEAKAGE, LEAST_USE = 0.3, 0.9
"""The corner that recipes aim at."""
AIM = "the aim, of these\ntwo figures alone"
"""Recovered descriptors and right matches kept have aims of their own, which are not drawn."""


@dataclass(frozen=True, slots=True)
class Point:
    """A recipe: the worst leakage, and matching accuracy as a share of raw's."""

    recipe: str
    leakage: float
    use: float

    @property
    def name(self) -> str:
        """The recipe without checksums."""
        return re.sub("@[0-9a-f]+", "", self.recipe)


def draw_plot(points: Sequence[Point], reference: Sequence[Point] = ()) -> Picture:
    """Return the plot as an SVG file; the same points give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 11, "axes.spines.top": False}):
        figure = Figure(figsize=(5.6, 4.4), layout="constrained")
        axes: Any = figure.subplots()
        top = max([1.05, *(one.use + 0.03 for one in (*points, *reference))])
        low = min([0.7, *(one.use - 0.06 for one in points)])
        goal = Rectangle(
            (-0.1, LEAST_USE), MOST_LEAKAGE + 0.1, top - LEAST_USE, color="#009E73", alpha=0.10, linewidth=0
        )
        axes.add_patch(goal)
        height = free_height([*points, *reference], LEAST_USE + 0.03, top - 0.03)
        axes.text(-0.085, height, AIM, color="#00694d", va="center", ha="left", fontsize=9)
        seen = [one for one in reference if one.use >= low]
        axes.plot(
            [one.leakage for one in seen], [one.use for one in seen], "o", color="#b8b4aa", markersize=5, zorder=1
        )
        for number, one in enumerate(points):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot([one.leakage], [one.use], marker, color=colour, markersize=10, label=one.name)
        if points:
            axes.legend(loc="lower left", frameon=False)
        axes.set_xlim(-0.1, 1.1)
        axes.set_ylim(low, top)
        axes.set_xlabel("what leaks to the strongest attack (0 mean descriptor, 1 clear)")
        axes.set_ylabel("matching accuracy / clear features")
        axes.grid(color="#eceae4")
        axes.set_axisbelow(True)
        axes.spines["right"].set_visible(False)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return Picture(shows="plot", content=file.getvalue(), media="image/svg+xml")


def free_height(points: Sequence[Point], low: float, high: float) -> float:
    """Return the height within the aim at which words lie farthest from all points; the lowest where there are none."""
    used = [one.use for one in points if one.leakage < MOST_LEAKAGE]
    steps = [low + (high - low) * step / 20 for step in range(21)]
    return max(steps, key=lambda height: round(min((abs(height - one) for one in used), default=0.0), 6))
