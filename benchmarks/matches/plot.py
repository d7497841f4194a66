# SPDX-License-Identifier: Apache-2.0
"""The drawing of the matching benchmark: times of faiss case by case, and cost over the number of features."""

from pathlib import Path
from typing import Any

from matches.pairs import CASES

OURS, PEERS = ("#3674bd", "#bcd4ec"), ("#6e6e6e", "#cfcfcf")
"""Colours of the worst pair of images, and of the others."""

UNPRUNED, TORCH = "#c05a00", "#7a3f9d"
Rows = list[dict[str, Any]]


def draw(path: Path, rows: Rows, title: str) -> None:
    """Draw the figures to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    _cases(left, [row for row in rows if row["case"] != "growth"])
    _growth(right, [row for row in rows if row["case"] == "growth"])
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _cases(axes: Any, rows: Rows) -> None:
    """Draw three bars, one for each pair of images, for each case and each peer, and what is wanted."""
    kinds = [("clear", name) for name in dict.fromkeys(row["method"] for row in rows if row["case"] == "clear")]
    kinds += [(case.name, "ours") for case in CASES if any(row["case"] == case.name for row in rows)]
    values = {
        kind: [row["times_faiss"] for row in rows if (row["case"], row["method"]) == kind] for kind in kinds
    }  # in the order of the pairs
    for place, kind in enumerate(kinds):
        worst = max(values[kind])
        for number, value in enumerate(values[kind]):
            shade = (PEERS if kind[0] == "clear" else OURS)[value != worst]
            axes.barh(place + 0.26 * (number - 1), value, 0.23, color=shade, zorder=2)
        for method, marker, colour in (("ours unpruned", "D", UNPRUNED), ("ours by torch", "X", TORCH)):
            slow = [row["times_faiss"] for row in rows if (row["case"], row["method"]) == (kind[0], method)]
            axes.plot(slow[:1] and [max(slow)], [place] * bool(slow), marker, color=colour, markersize=6, zorder=4)
        at = place + 0.26 * (values[kind].index(worst) - 1)
        axes.annotate(
            f"{worst:.2f}", (worst, at), (-3, -0.5), textcoords="offset points", ha="right", va="center", fontsize=8,
            color="white", zorder=5,
        )  # fmt: skip
        case = next((case for case in CASES if case.name == kind[0]), None)
        for wanted, style in ((case and case.limit, "-"), (case and case.aim, (0, (1.5, 1)))):
            if wanted:
                axes.plot([wanted] * 2, [place - 0.44, place + 0.44], linestyle=style, color="black", lw=2, zorder=3)
    axes.axvline(1, color="#999999", lw=0.8, zorder=1)
    names = [name if case == "clear" else case.replace(", ", ",\n") for case, name in kinds]
    axes.set_yticks(range(len(kinds)), names, fontsize=9)
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_xscale("log")
    ticks = [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200]
    largest = 1.35 * max(row["times_faiss"] for row in rows)
    smallest = min(0.25, 0.8 * min(row["times_faiss"] for row in rows))
    axes.set_xlim(smallest, largest)
    axes.set_xticks([tick for tick in ticks if smallest <= tick <= largest], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color="#e8e8e8", zorder=0)
    axes.set_xlabel(
        "times faiss flat L2 on the clear descriptors, both directions (log scale; less is better);\nof three bars: "
        "a matching pair of images, an unrelated one, a matching one lifted from the same part of the decoys"
    )
    _legend(axes, torch=any(row["method"] == "ours by torch" for row in rows))


def _legend(axes: Any, *, torch: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=OURS[0], label="Sfumato, worst of three image pairs"),
        Patch(color=OURS[1], label="the other two"),
        Patch(color=PEERS[0], label="matchers of clear descriptors"),
        Line2D([], [], color="black", lw=2, label="at most"),
        Line2D([], [], color="black", lw=2, linestyle=(0, (1.5, 1)), label="aim"),
        Line2D([], [], color=UNPRUNED, marker="D", ls="", label="without pruning, worst pair"),
        Line2D([], [], color=TORCH, marker="X", ls="", label="torch on the processor, worst pair"),
    ]
    place = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.11), "ncols": 4}
    axes.legend(handles=handles if torch else handles[:-1], fontsize=8, frameon=False, **place)


def _growth(axes: Any, rows: Rows) -> None:
    """Draw nanoseconds a pair of features over their number."""
    lines = (("seconds", "Sfumato", OURS[0], "o-"), ("one_thread_seconds", "Sfumato, one thread", OURS[1], "o-"),
             ("faiss_seconds", "faiss, clear", PEERS[0], "s--"))  # fmt: skip
    for key, label, colour, style in lines:
        known = [(row["features"], row[key] / row["features"] ** 2 * 1e9) for row in rows if row[key]]
        if known:
            axes.plot(*zip(*known, strict=True), style, color=colour, label=label, markersize=5)
    counts = [row["features"] for row in rows]
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts], rotation=45, fontsize=8)
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.grid(color="#eeeeee")
    axes.set_xlabel("features of each image")
    axes.set_ylabel("nanoseconds for a pair of features")
    axes.set_title("growth: subspace-to-subspace m=2", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
