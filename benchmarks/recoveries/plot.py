# SPDX-License-Identifier: Apache-2.0
"""The drawing of the recovery benchmark: the oracle over K, and re-observation over the number of views."""

from pathlib import Path
from typing import Any

RECIPES = ("random-2", "sub-hybrid-2", "sub-hybrid-4")
TITLES = {"database": "oracle, V = the database of decoys", "public": "oracle, V = descriptors of other photos"}
Rows = list[dict[str, Any]]


def draw(path: Path, rows: Rows, sizes: dict[str, Any]) -> None:
    """Draw the figures to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for place, name in zip(axes, TITLES, strict=False):
        _oracle(place, [row for row in rows if (row["case"], row["what"]) == ("oracle", name)])
        place.set_title(f"{TITLES[name]} ({sizes[name]:,})", fontsize=10)
    _views(axes[2], [row for row in rows if row["case"] == "views"], sizes["noise_of_views"])
    figure.suptitle(f"{sizes['descriptor']}, {sizes['curve_features']:,} features of {sizes['data']}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _oracle(axes: Any, rows: Rows) -> None:
    for number, recipe in enumerate(RECIPES):
        own = [row for row in rows if row["recipe"] == recipe]
        steps = [row["steps"] for row in own]
        for key, style, more in (("mean", "-", ""), ("projected_mean", "--", ", projected")):
            values = [row[key] for row in own]
            axes.plot(steps, values, style, color=f"C{number}", label=recipe + more)
            axes.plot(steps, [values[-1]] * len(steps), ":", color=f"C{number}", lw=0.8)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("neighbours K the oracle chooses from")
    axes.set_ylabel("mean distance to the clear descriptor")
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=8, frameon=False)


def _views(axes: Any, rows: Rows, noise: float) -> None:
    for number, recipe in enumerate(RECIPES):
        for what, style in (("scene", "-"), ("own", "--")):
            own = [row for row in rows if (row["recipe"], row["what"]) == (recipe, what)]
            axes.plot(
                [row["steps"] for row in own], [row["median"] for row in own], style, color=f"C{number}",
                label=f"{recipe}, {'what the views share' if what == 'scene' else 'the first view'}",
            )  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("views, each lifted for itself")
    axes.set_ylabel("median distance to the clear descriptor")
    axes.set_title(f"re-observation with noise {noise}", fontsize=10)
    axes.grid(color="#eeeeee")
    axes.legend(fontsize=8, frameon=False)
