# SPDX-License-Identifier: Apache-2.0
"""Search of lifted descriptors by all kinds of indexes: recall against queries per second, as in ann-benchmarks.

The database is one view of points, lifted; queries are another view of them, clear or lifted. Recall is measured
against exact search; ``truth`` is how often the very point is found, which exact search does not always do either. A
record is a method at an effort. Speed is measured in processor time of one core: other programs do not count. Clear
descriptors stay in memory.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.runner import run_tasks
from sfumato.auditing.subjects import choose_decoys, choose_subjects, conceal_repeatably
from sfumato.auditing.tables import PlotFrame, PlotLine, PlotPanel, Table, draw_lines, group_by_seed, make_table
from sfumato.auditing.task import Figures, Prediction, Sample, Task, digest_data
from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.experiments.search.methods import AFFINE, Method, choose_methods
from sfumato.images.samples import sample_paths
from sfumato.search.index import Index
from sfumato.training.pairs import DescriptorPairs, PairParams, is_pair_file, load_pairs, pairs_from_photos, read_pairs
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score

K = 10
QUERIES = ("points", "subspaces")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorProtocol:
    """``entries`` of the pairs in the database (None: all), ``queries`` of them, ``alone`` of these one at a time.

    ``efforts``: None means those of each method.
    """

    methods: tuple[str, ...] = tuple(AFFINE)
    efforts: tuple[float, ...] | None = None
    recipe: str = "sub-hybrid-2"
    kind_of_queries: str = "points"
    entries: int | None = None
    queries: int = 1000
    alone: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        choose_methods(self.methods, AFFINE)
        if self.kind_of_queries not in QUERIES:
            raise InputError(f"queries: expected one of {', '.join(QUERIES)}, got {self.kind_of_queries!r:.80}")
        if self.queries < 1 or self.alone < 0 or (self.entries is not None and self.entries < 1):
            raise InputError("entries, queries: expected 1 or more")
        if self.efforts is not None and not all(0 <= effort <= 1 for effort in self.efforts or (2,)):
            raise InputError(f"efforts: expected numbers from 0 to 1, got {self.efforts}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SearchData:
    """A lifted database, queries, the entry that each query is another view of, and exact answers, once known.

    ``public`` (M, n): the decoys of the lifting, which anyone may know.
    """

    entries: Subspaces
    queries: Any
    truth: NDArray[np.int64]
    public: NDArray[np.float32] | None = None
    answers: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def exact(self) -> NDArray[np.float32]:
        """Return the distances (Q, K) of the nearest entries of each query."""
        if not self.answers:
            self.answers["distances"] = AFFINE["exact"].build(self.entries, "distance").search(self.queries, K)[0]
        return self.answers["distances"]


def read_search_pairs(data: Path | None) -> DescriptorPairs:
    """Return pairs of any kind from a file, SIFT of photos or patches otherwise, of sample photos without ``data``."""
    if data is None:
        return pairs_from_photos(list(sample_paths().values()), PairParams())
    return load_pairs(data) if is_pair_file(data) else read_pairs(data)


def make_data(pairs: DescriptorPairs, protocol: DescriptorProtocol, decoys: Decoys | None = None) -> SearchData:
    """Lift one side of pairs, and choose queries from the other, evenly.

    Without ``decoys`` SIFT and RootSIFT get the bundled ones. Of a point seen several times the first pair counts.
    """
    subject = choose_subjects([protocol.recipe], ["p-to-s"], [protocol.seed], pairs.extractor.name)[0]
    decoys = choose_decoys([subject], pairs.extractor, decoys)
    first = np.sort(np.unique(pairs.points, return_index=True)[1])[: protocol.entries]
    rows = first[np.linspace(0, len(first) - 1, min(protocol.queries, len(first))).astype(np.int64)]

    def lift(descriptors: NDArray[np.float32], seed: int) -> Subspaces:
        features = Features(np.zeros((len(descriptors), 4), np.float32), descriptors, pairs.extractor)
        return conceal_repeatably(features, Recipe.of(subject.recipe), decoys, seed=seed).subspaces

    points = pairs.second[rows]
    queries = points if protocol.kind_of_queries == "points" else lift(points, protocol.seed + 1)
    public = None if decoys is None else decoys.descriptors
    return SearchData(lift(pairs.first[first], protocol.seed), queries, np.searchsorted(first, rows), public)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DescriptorSearcher:
    """One method at one effort (None: its own). ``cache`` keeps the last index, for the next effort."""

    method: Method
    effort: float | None
    data: SearchData
    protocol: DescriptorProtocol
    cache: dict[str, tuple[Index, float]]

    def index(self) -> tuple[Index, float]:
        """Return the index and the processor seconds it took to build."""
        if self.method.name not in self.cache:
            self.cache.clear()
            start = time.process_time()
            index = self.method.build(self.data.entries, "distance", self.protocol.seed, self.data.public)
            self.cache[self.method.name] = index, time.process_time() - start
        return self.cache[self.method.name]

    def predict(self, sample: Sample) -> Prediction:
        """Return distances of answers, hits of the point itself, and times of all queries at once and one by one."""
        index, building = self.index()
        queries, few = self.data.queries, self.data.queries[: max(1, self.protocol.alone)]
        for warm_up in (few, few[:1]):  # what is compiled or prepared at the first search, of many or one, is not timed
            index.search(warm_up, K, self.effort)
        start, clock = time.perf_counter(), time.process_time()
        distances, ids, stats = index.search_counted(queries, K, self.effort)
        times = [time.process_time() - clock, time.perf_counter() - start]
        clock = time.process_time()
        for number in range(self.protocol.alone):
            index.search(
                few[number % len(few)][None] if isinstance(few, np.ndarray) else few[number % len(few)], K, self.effort
            )
        times += [time.process_time() - clock, building]
        return {
            "distances": distances,
            "exact": self.data.exact(),
            "truth": (ids == self.data.truth[:, None]),
            "times": np.array(times),
            "counts": np.array([stats.looked_at, stats.evaluated, stats.empty, index.nbytes]),
        }

    def score(self, sample: Sample, prediction: Prediction) -> Figures:
        """Return recalls, the share of points found, queries per second, and work per query."""
        distances, exact = prediction["distances"], prediction["exact"]
        limits = exact * (1 + 1e-5) + 1e-6  # an equal distance is an equal answer
        batch, wall, alone, building = prediction["times"].tolist()
        looked, compared, empty, size = prediction["counts"].tolist()
        count, total = len(distances), len(self.data.entries)
        return {
            "recall@1": float(np.mean(distances[:, 0] <= limits[:, 0])),
            "recall@10": float(np.mean((distances <= limits[:, -1:]) & np.isfinite(distances))),
            "truth@1": float(prediction["truth"][:, 0].mean()),
            "queries a second": count / max(batch, 1e-6),
            "queries a second, wall": count / max(wall, 1e-6),
            "queries a second, alone": self.protocol.alone / max(alone, 1e-6),
            "looked at": looked / count / total,
            "compared": compared / count / total,
            "empty": empty / count,
            "build seconds": building,
            "bytes an entry": size / total,
        }

    def summarise(self, figures: Mapping[str, Figures]) -> list[Score]:
        """Return the figures of the one sample."""
        return [
            Score(name, value, samples=len(self.data.truth)) for row in figures.values() for name, value in row.items()
        ]

    def task(self, sample: Sample) -> Task:
        """Return the task of this method at this effort."""
        query = {"recipe": self.protocol.recipe, "queries": self.protocol.kind_of_queries}
        sizes = {"entries": len(self.data.entries), "asked": len(self.data.truth)}
        return Task(
            name="search-descriptors",
            samples=[sample],
            predict=self.predict,
            score=self.score,
            summarise=self.summarise,
            params={**self.method.described, "effort": self.effort, **query, **sizes},
            seed=self.protocol.seed,
        )


def evaluate_descriptors(
    pairs: DescriptorPairs,
    folder: str | Path,
    protocol: DescriptorProtocol | None = None,
    decoys: Decoys | None = None,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    overwrite: bool = False,
) -> list[Record]:
    """Measure every method at every effort; return a record for each, also kept below ``folder``."""
    protocol = protocol or DescriptorProtocol()
    data = make_data(pairs, protocol, decoys)
    sample = Sample(f"{len(data.entries)} entries", digest_data(data.entries.origin, data.truth))
    cache: dict[str, tuple[Index, float]] = {}
    tasks = [
        DescriptorSearcher(method, effort, data, protocol, cache).task(sample)
        for method in choose_methods(protocol.methods, AFFINE)
        for effort in ((None,) if method.is_exact else protocol.efforts or method.efforts)
    ]
    return run_tasks(tasks, folder, progress=progress, overwrite=overwrite)


def descriptor_search_table(records: Iterable[Record]) -> Table:
    """Return recall, speed and work of every method and effort."""
    names = ("recall@1", "recall@10", "truth@1", "queries a second", "queries a second, alone", "looked at", "compared",
             "build seconds", "bytes an entry")  # fmt: skip
    return make_table(group_by_seed(records), ("method", "effort", "entries"), {name: name for name in names})


def draw_recall(records: Iterable[Record], stem: str | Path, title: str = "") -> tuple[Path, Path]:
    """Draw queries per second, as powers of ten, over recall@1 and recall@10: up and to the right is better."""
    groups = [group for group in group_by_seed(records) if group.values("recall@1")]
    panels = []
    for score, speed in (
        ("recall@1", "queries a second"),
        ("recall@10", "queries a second"),
        ("recall@1", "queries a second, alone"),
    ):
        lines = []
        for method in dict.fromkeys(str(group.params["method"]) for group in groups):
            mine = [group for group in groups if group.params["method"] == method]
            points = sorted((group.mean(score) or 0.0, np.log10(group.mean(speed) or 1.0)) for group in mine)
            lines.append(PlotLine(series=method, x=[x for x, _ in points], y=[float(y) for _, y in points]))
        name = "one query at a time" if speed.endswith("alone") else "all queries at once"
        panels.append(PlotPanel(f"{score}, {name}", tuple(lines)))
    frame = PlotFrame(title=title, x_label="recall", y_label="log10 of queries a second and core", y_limits=None)
    return draw_lines(stem, panels, frame)
