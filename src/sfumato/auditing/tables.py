# SPDX-License-Identifier: Apache-2.0
"""Tables of records, a row for runs that differ in the seed alone, with mean and deviation; and line plots."""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import InputError
from sfumato.files.atomic import write_file
from sfumato.types.record import Record, Value

if TYPE_CHECKING:
    from rich.table import Table as RichTable


CONCEALMENT = frozenset({"recipe", "distance", "matching", "decoys", "draws", "parts", "part_count"})
"""Parameters that tell how something was concealed, and matched for that, and so differ from those of raw ones."""


@dataclass(frozen=True, slots=True)
class SeedGroup:
    """Records of one task on the same data with the same parameters: they differ in the seed alone."""

    params: Mapping[str, Value]
    records: tuple[Record, ...]

    def values(self, score: str) -> list[float]:
        """Return a score of every record that has it."""
        return [one.value for record in self.records for one in record.scores if one.name == score]

    def mean(self, score: str) -> float | None:
        """Return the mean over the seeds; None where no record has the score."""
        values = self.values(score)
        return statistics.fmean(values) if values else None

    def deviation(self, score: str) -> float | None:
        """Return the standard deviation over the seeds; None for fewer than two."""
        values = self.values(score)
        return statistics.stdev(values) if len(values) > 1 else None


def group_by_seed(records: Iterable[Record]) -> list[SeedGroup]:
    """Return groups of records that differ in the seed alone, in the order of their first records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([record.task, record.data, dict(record.params)], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return [SeedGroup(members[0].params, tuple(members)) for members in groups.values()]


@dataclass(frozen=True, slots=True)
class Cell:
    """A text, or a figure with its deviation; nothing where both are None."""

    value: Value
    deviation: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return ""
        shown = _short(self.value, 4) if isinstance(self.value, float) else str(self.value)
        return shown if self.deviation is None else f"{shown} ± {_short(self.deviation, 2)}"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns with their titles, and rows of as many cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_markdown(self) -> str:
        """Return the table as markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *(tuple(map(str, row)) for row in self.rows)]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)

    def to_csv(self) -> str:
        """Return the table as comma-separated values in full precision; deviations have columns of their own."""
        spread = [any(row[i].deviation is not None for row in self.rows) for i in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([t for title, s in zip(self.columns, spread, strict=True) for t in _twice(title, s)])
        for row in self.rows:
            cells = [(cell.value, cell.deviation)[: 1 + s] for cell, s in zip(row, spread, strict=True)]
            writer.writerow(["" if value is None else value for cell in cells for value in cell])
        return text.getvalue()

    def without(self, *titles: str) -> "Table":
        """Return the table without these columns."""
        return self._choose([i for i, title in enumerate(self.columns) if title not in titles])

    def without_single_seeds(self) -> "Table":
        """Return the table without the column that counts seeds, if no row has several."""
        if "seeds" not in self.columns:
            return self
        counts = [row[self.columns.index("seeds")].value for row in self.rows]
        return self.without("seeds") if all(count in (None, 1) for count in counts) else self

    def rename(self, names: Mapping[str, str]) -> "Table":
        """Return the table with other texts in its cells."""
        rows = tuple(
            tuple(
                Cell(names[cell.value]) if isinstance(cell.value, str) and cell.value in names else cell for cell in row
            )
            for row in self.rows
        )
        return Table(self.columns, rows)

    def fold(self) -> "Table":
        """Return the table without its first column: each of its texts stands in a row of its own, above its rows."""
        rows: list[tuple[Cell, ...]] = []
        last = None
        for first, second, *others in self.rows:
            if str(first) != last:
                last = str(first)
                rows.append((Cell(last), *(Cell(None) for _ in others)))
            rows.append((Cell(f"  {second}"), *others))
        return Table(self.columns[1:], tuple(rows))

    def split(self, keys: int, width: int = 80) -> "list[Table]":
        """Return tables that fit into ``width`` letters, with all rows, each with the first ``keys`` columns."""
        widths = [
            2 + max(len(text) for text in (*_title_lines(title), *(str(row[i]) for row in self.rows)))
            for i, title in enumerate(self.columns)
        ]
        parts: list[list[int]] = [[]]
        for i in range(keys, len(self.columns)):
            if parts[-1] and sum(widths[j] for j in (*range(keys), *parts[-1], i)) >= width:
                parts.append([])
            parts[-1].append(i)
        return [self._choose([*range(keys), *part]) for part in parts]

    def _choose(self, numbers: Sequence[int]) -> "Table":
        rows = tuple(tuple(row[i] for i in numbers) for row in self.rows)
        return Table(tuple(self.columns[i] for i in numbers), rows)

    def to_rich(self, title: str = "") -> "RichTable":
        """Return the table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, column in enumerate(self.columns):
            number = any(isinstance(row[i].value, int | float) for row in self.rows)
            shown.add_column(Text("\n".join(_title_lines(column))), justify="right" if number else "left")
        for row in self.rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        return shown


def make_table(
    groups: Sequence[SeedGroup],
    params: Sequence[str],
    scores: Mapping[str, str],
    *,
    ratios: Mapping[str, str] | None = None,
    baseline: Callable[[SeedGroup], SeedGroup | None] = lambda group: None,
) -> Table:
    """Return one row a group: its parameters, how many seeds, and mean scores; ``scores`` maps titles to their names.

    ``ratios`` are scores divided by those of the group that ``baseline`` names for a group, left empty where there is
    none or it is 0. Where samples were dropped, the last column says how many, of all seeds.
    """
    asked = ratios or {}
    losses = [sum(len(record.dropped) for record in group.records) for group in groups]
    columns = (*params, "seeds", *scores, *asked, *(("dropped",) if any(losses) else ()))
    rows = []
    for group, lost in zip(groups, losses, strict=True):
        seeds = sum(record.seed is not None for record in group.records)
        texts = [Cell(group.params.get(name)) for name in params]
        figures = [Cell(group.mean(name), group.deviation(name)) for name in scores.values()]
        compared = [Cell(_ratio(group, baseline(group), name)) for name in asked.values()]
        rows.append((*texts, Cell(seeds or None), *figures, *compared, *((Cell(lost),) if any(losses) else ())))
    return Table(columns, tuple(rows))


def raw_of(groups: Sequence[SeedGroup]) -> Callable[[SeedGroup], SeedGroup | None]:
    """Return a function that finds the group of raw descriptors measured on the same data in the same way, if any."""

    def setting(group: SeedGroup) -> tuple[str, str, dict[str, Value]]:
        record = group.records[0]
        return record.task, record.data, {name: v for name, v in group.params.items() if name not in CONCEALMENT}

    raw = [(setting(group), group) for group in groups if group.params.get("recipe") == "raw"]
    return lambda group: next((one for known, one in raw if known == setting(group)), None)


def _short(value: float, digits: int) -> str:
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _ratio(group: SeedGroup, baseline: SeedGroup | None, score: str) -> float | None:
    own, base = group.mean(score), None if baseline is None else baseline.mean(score)
    return None if own is None or not base else own / base


def _title_lines(title: str) -> list[str]:
    """Return a title in lines, so that a column is not wider than its figures: what it is, its unit or divisor.

    >>> _title_lines("points / COLMAP"), _title_lines("position [m]")
    (['points', '/ COLMAP'], ['position', '[m]'])
    """
    return title.replace(" / ", "\n/ ").replace(" [", "\n[").split("\n")


def _twice(title: str, spread: bool) -> tuple[str, ...]:
    return (title, f"{title} deviation") if spread else (title,)


# --- line plots: panels side by side, one colour and marker per series, one line style per variant
#
# Colours are those of Okabe and Ito, which nearly everyone can distinguish; markers distinguish the series too.


COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p")
STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
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
class PlotPanel:
    """One plot and its title."""

    title: str
    lines: tuple[PlotLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotFrame:
    """What all panels of a figure share. ``variants`` fixes which variant has which line style, solid first."""

    title: str = ""
    x_label: str = ""
    y_label: str = ""
    y_limits: tuple[float, float] | None = (0.0, 1.0)
    variants: tuple[str, ...] = field(default=())


def draw_lines(stem: str | Path, panels: Sequence[PlotPanel], frame: PlotFrame) -> tuple[Path, Path]:
    """Draw panels side by side to ``<stem>.png`` and ``<stem>.svg``; the same lines give the same SVG.

    Raises InputError where there is no panel, FileError if a file cannot be written.
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


def _draw(axes: Any, line: PlotLine, series: int, variant: int) -> None:
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
