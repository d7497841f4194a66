# SPDX-License-Identifier: Apache-2.0
"""One writer of line plots: panels side by side, one colour and marker a series, one line style a variant.

Knows numbers and labels; not what was measured. Colours are those of Okabe and Ito, told apart by nearly everyone; no
series is told by its colour alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.errors import InputError
from sfumato.whole import write_file

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of one series in one variant; ``low`` and ``high`` shade what lies between, where they are given."""

    series: str
    variant: str = ""
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        given = [len(values) for values in (self.x, self.y, self.low, self.high) if values is not None]
        if len(set(given)) > 1:
            raise InputError(f"line {self.series}: x, y, low and high must be equally long, got {given}")


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot and its title."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all panels of a figure share. ``variants`` fixes which variant has which line style, solid first."""

    title: str = ""
    x_label: str = ""
    y_label: str = ""
    y_limits: tuple[float, float] | None = (0.0, 1.0)
    variants: tuple[str, ...] = field(default=())


def draw_lines(stem: str | Path, panels: Sequence[Panel], frame: Frame) -> tuple[Path, Path]:
    """Draw panels side by side to ``<stem>.png`` and ``<stem>.svg``; the same lines give the same SVG.

    Raises InputError where there is no panel, FileError if a file can not be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not panels:
        raise InputError("figure: there is no panel to draw")
    everything = [line for panel in panels for line in panel.lines]
    series = list(dict.fromkeys(line.series for line in everything))
    variants = list(dict.fromkeys([*frame.variants, *(line.variant for line in everything)]))
    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 9}):
        figure = Figure(figsize=(1.2 + 3.3 * len(panels), 4.3), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels, strict=True):
            for line in panel.lines:
                _draw(axes, line, series.index(line.series), variants.index(line.variant))
            axes.set_title(panel.title, fontsize=10)
            axes.set_xlabel(frame.x_label)
            axes.grid(color="#e8e8e8")
            axes.set_axisbelow(True)
            if frame.y_limits is not None:
                axes.set_ylim(*frame.y_limits)
        figure.axes[0].set_ylabel(frame.y_label)
        used = {line.variant for line in everything if line.variant}
        _legend(figure, series, [(name, number) for number, name in enumerate(variants) if name in used])
        if frame.title:
            figure.suptitle(frame.title, fontsize=11)
        return save_figure(figure, stem)


def save_figure(figure: Any, stem: str | Path) -> tuple[Path, Path]:
    """Write a figure to ``<stem>.png`` and ``<stem>.svg``, the latter without a date; return both files."""
    target = Path(stem)
    paths = target.with_name(f"{target.name}.png"), target.with_name(f"{target.name}.svg")
    write_file(paths[0], lambda file: figure.savefig(file, format="png", dpi=150), with_folder=True)
    write_file(paths[1], lambda file: figure.savefig(file, format="svg", metadata={"Date": None}), with_folder=True)
    return paths


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}


def _draw(axes: Any, line: Line, series: int, variant: int) -> None:
    look = _look(series)
    axes.plot(line.x, line.y, linestyle=STYLES[variant % len(STYLES)], linewidth=1.4, **look)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)


def _legend(figure: Any, series: Sequence[str], variants: Sequence[tuple[str, int]]) -> None:
    """Explain colours by series, and line styles by variant, below the panels."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, **_look(number)) for number, name in enumerate(series)]
    handles += [
        Line2D([], [], color="#444444", ls=STYLES[number % len(STYLES)], label=name) for name, number in variants
    ]
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        fitting = int(72 * figure.get_figwidth() / (6 * longest + 45))  # points: a letter is about 6 wide
        columns = max(1, min(6, len(handles), fitting))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
