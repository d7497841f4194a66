# SPDX-License-Identifier: Apache-2.0
"""How often the person of a query is found: hashing against projectors, at equal numbers of candidates examined.

Section 5.2 and Figure 4 of the hashing paper. A sample is a split of the images; a record a method with a number of
candidates. Exact search, and the projector's own nearest without comparing anything, are shown beside them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import InputError
from sfumato.evaluate.facesubspaces import FaceProtocol, Faces, split_faces
from sfumato.evaluate.figures import Frame, Line, Panel, draw_lines
from sfumato.evaluate.results import Results
from sfumato.evaluate.runner import predict, run
from sfumato.evaluate.searchmethods import LINEAR, Method, choose_methods
from sfumato.evaluate.tables import Table, group_by_seed, make_table
from sfumato.evaluate.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.search.index import Index
from sfumato.types.concealed import Subspaces
from sfumato.types.record import Record, Score, Value

METHODS = tuple(name for name in LINEAR if name != "projector kd-tree eps 0")
"""A kd-tree without tolerance finds what the flat search finds, slowly."""

CANDIDATES = (1, 5, 10, 20)
"""How many people are compared exactly; 1 leaves the choice to the hash or the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceSearchProtocol:
    """``methods`` by name, each with every number of ``candidates``; ``splits`` drawn from ``seed``."""

    methods: tuple[str, ...] = METHODS
    candidates: tuple[int, ...] = CANDIDATES
    splits: int = 20
    seed: int = 0
    faces: FaceProtocol = FaceProtocol()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        choose_methods(self.methods, LINEAR)
        if self.splits < 1 or not self.candidates or min(self.candidates) < 1:
            raise InputError("splits, candidates: expected 1 or more")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class FaceSearcher:
    """One method with one number of candidates (None for exact search).

    ``held`` keeps the queries and the index of the last split, for the next number of candidates.
    """

    method: Method
    candidates: int | None
    faces: Faces
    protocol: FaceSearchProtocol
    held: dict[tuple[str, str], tuple[Index, list[Subspaces]]]

    def index(self, sample: Sample) -> tuple[Index, list[Subspaces]]:
        """Return the index of a split and its queries."""
        key = self.method.name, sample.key
        if key not in self.held:
            number = int(sample.key.removeprefix("split "))
            rng = np.random.default_rng((self.protocol.seed, number))
            entries, queries = split_faces(self.faces, self.protocol.faces, rng)
            self.held.clear()
            self.held[key] = self.method.build(entries, "angle", seed=number), queries
        return self.held[key]

    def predict(self, sample: Sample) -> Prediction:
        """Return for each query dimension and person whether the person is found, and what it took."""
        index, queries = self.index(sample)
        effort = None if self.candidates is None else min(1.0, (self.candidates - 0.5) / self.faces.people)
        found, counts = [], []
        for asked in queries:
            _, ids, stats = index.search_counted(asked, 1, effort)
            found.append(ids[:, 0] == np.arange(len(asked)))
            counts.append((stats.looked_at, stats.evaluated, stats.empty))
        return {"found": np.array(found), "counts": np.array(counts) / self.faces.people}

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return the share of people found for each query dimension, and entries looked at and compared a query."""
        dims = self.protocol.faces.query_dims
        rates = {success_name(dim): float(row.mean()) for dim, row in zip(dims, prediction["found"], strict=True)}
        looked, evaluated, empty = prediction["counts"].mean(axis=0)
        return {**rates, "looked at": looked, "compared": evaluated, "empty": empty}

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return the means over the splits, and the deviation of the success over all dimensions."""
        if not figures:
            return []
        rows = list(figures.values())
        means = [Score(name, float(np.mean([row[name] for row in rows])), samples=len(rows)) for name in rows[0]]
        names = [success_name(dim) for dim in self.protocol.faces.query_dims]
        overall = [float(np.mean([row[name] for name in names])) for row in rows]
        deviation = float(np.std(overall, ddof=1)) if len(rows) > 1 else 0.0
        return [Score("success", float(np.mean(overall)), samples=len(rows)), Score("deviation", deviation), *means]

    def task(self, samples: Sequence[Sample]) -> Task:
        """Return the task of this method."""
        shape = self.protocol.faces
        params: dict[str, Value] = {
            "images": shape.images,
            "dim": shape.dim,
            "query_dims": ",".join(map(str, shape.query_dims)),
        }
        return Task(
            name="search-faces",
            samples=samples,
            predict=self.predict,
            score=self.score,
            summarise=self.summarise,
            params={**self.method.described, "candidates": self.candidates, **params},
            seed=self.protocol.seed,
        )


def success_name(dim: int) -> str:
    """Return the name of the score for queries of a dimension."""
    return f"success, d = {dim}"


def evaluate_faces(
    faces: Faces,
    folder: str | Path,
    protocol: FaceSearchProtocol | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every method with every number of candidates; return a record for each, also kept below ``folder``.

    Raises InputError where a person has too few images or a name is unknown, FileError if nothing can be written.
    """
    protocol = protocol or FaceSearchProtocol()
    split_faces(faces, protocol.faces, np.random.default_rng(0))  # too few images are told before anything is measured
    digest = digest_data(faces.pixels, faces.subject)
    samples = [Sample(f"split {number}", digest) for number in range(protocol.splits)]
    held: dict[tuple[str, str], tuple[Index, list[Subspaces]]] = {}
    searchers = [
        FaceSearcher(method, count, faces, protocol, held)
        for method in choose_methods(protocol.methods, LINEAR)
        for count in ((None,) if method.is_exact else protocol.candidates)
    ]
    tasks = [searcher.task(samples) for searcher in searchers]
    if overwrite:
        for task in tasks:
            Results(folder, task).forget(task.samples)
    for sample, task in progress([(sample, task) for sample in samples for task in tasks]):
        predict(task, folder, [sample])
    return [run(task, folder) for task in tasks]


def table_of(records: Iterable[Record]) -> Table:
    """Return the share of people found by each method, overall and for each query dimension."""
    groups = group_by_seed(records)
    names = dict.fromkeys(score.name for group in groups for record in group.records for score in record.scores)
    dims = {name.removeprefix("success, "): name for name in names if name.startswith("success, ")}
    counts = {"compared": "compared", "looked at": "looked at"}
    scores = {"success": "success", "deviation": "deviation", **dims, **counts}
    return make_table(groups, ("method", "candidates"), scores)


def draw_success(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw success over the query dimension like Figure 4 of the paper, a panel for each number of candidates."""
    groups = [group for group in group_by_seed(records) if group.values("success")]
    exact = [group for group in groups if group.params["candidates"] is None]
    panels = []
    for count in sorted({int(str(g.params["candidates"])) for g in groups if g.params["candidates"] is not None}):
        lines = []
        for group in [*exact, *(group for group in groups if group.params["candidates"] == count)]:
            dims = [int(dim) for dim in str(group.params["query_dims"]).split(",")]
            values = [group.mean(success_name(dim)) or 0.0 for dim in dims]
            lines.append(Line(series=str(group.params["method"]), x=dims, y=values))
        panels.append(Panel(f"{count} candidates" if count > 1 else "1 candidate", tuple(lines)))
    frame = Frame(title=title, x_label="dimension of the query", y_label="share of people found")
    return draw_lines(stem, panels or [Panel("exact", ())], frame)
