# SPDX-License-Identifier: Apache-2.0
"""Records as one table: runs that differ in the seed alone are a row, with mean and deviation over the seeds.

Knows records; not what their scores mean.
"""

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato.types.record import Record, Value

if TYPE_CHECKING:
    from rich.table import Table as RichTable


CONCEALMENT = frozenset({"recipe", "distance", "matching", "decoys", "draws", "parts", "part_count"})
"""Parameters that tell how something was concealed, and matched for that, and so differ from those of raw ones."""


@dataclass(frozen=True, slots=True)
class Group:
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


def group_by_seed(records: Iterable[Record]) -> list[Group]:
    """Return groups of records that differ in the seed alone, in the order of their first records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([record.task, record.data, dict(record.params)], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return [Group(members[0].params, tuple(members)) for members in groups.values()]


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

    def to_rich(self, title: str = "") -> "RichTable":
        """Return the table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=title or None, box=SIMPLE_HEAD)
        for i, column in enumerate(self.columns):
            number = any(isinstance(row[i].value, int | float) for row in self.rows)
            shown.add_column(Text(column), justify="right" if number else "left")
        for row in self.rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        return shown


def make_table(
    groups: Sequence[Group],
    params: Sequence[str],
    scores: Mapping[str, str],
    *,
    ratios: Mapping[str, str] | None = None,
    baseline: Callable[[Group], Group | None] = lambda group: None,
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


def raw_of(groups: Sequence[Group]) -> Callable[[Group], Group | None]:
    """Return a function that finds the group of raw descriptors measured on the same data in the same way, if any."""

    def setting(group: Group) -> tuple[str, str, dict[str, Value]]:
        record = group.records[0]
        return record.task, record.data, {name: v for name, v in group.params.items() if name not in CONCEALMENT}

    raw = [(setting(group), group) for group in groups if group.params.get("recipe") == "raw"]
    return lambda group: next((one for known, one in raw if known == setting(group)), None)


def _short(value: float, digits: int) -> str:
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def _ratio(group: Group, baseline: Group | None, score: str) -> float | None:
    own, base = group.mean(score), None if baseline is None else baseline.mean(score)
    return None if own is None or not base else own / base


def _twice(title: str, spread: bool) -> tuple[str, ...]:
    return (title, f"{title} deviation") if spread else (title,)
