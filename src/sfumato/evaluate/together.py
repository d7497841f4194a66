# SPDX-License-Identifier: Apache-2.0
"""What evaluations share that run many tasks of one sample each: in turn, found again, summed up figure by figure.

Knows tasks; not what they measure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import predict, run
from sfumato.evaluate.task import Figures, Task
from sfumato.types.record import Record, Score


def run_together(
    tasks: Sequence[Task],
    folder: str | Path,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Run tasks one after the other; return their records, which are also kept below ``folder``.

    What was measured before is not measured again, unless ``overwrite`` forgets it. Raises FileError if the folder can
    not be written.
    """
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    for task in progress(tasks):
        predict(task, folder)
    return [run(task, folder) for task in tasks]


def figure_by_figure(counted: str) -> Callable[[Mapping[str, Figures]], list[Score]]:
    """Return a summary that makes every figure a score, but ``counted``, which says of how many samples they are."""

    def summarise(figures: Mapping[str, Figures]) -> list[Score]:
        return [
            Score(name, value, samples=int(row[counted]))
            for row in figures.values()
            for name, value in row.items()
            if name != counted
        ]

    return summarise
