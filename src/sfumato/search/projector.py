# SPDX-License-Identifier: Apache-2.0
"""The kind "projector": subspaces as points (Basri, Hassner and Zelnik-Manor), searched by faiss or as published.

The nearest points are compared exactly with the query. As published is a kd-tree with eps = 10 and nothing compared
beyond its one answer. The faiss methods are those people would use today.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.search.entries import Entries
from sfumato.search.homogeneous import Chart
from sfumato.search.index import Candidates, Index
from sfumato.search.kdtree import PUBLISHED_EPS, PUBLISHED_LEAF
from sfumato.search.pointindex import METHODS, FaissPoints, TreePoints
from sfumato.search.projectorembedding import length_of
from sfumato.search.projectorpoints import ProjectorPoints
from sfumato.search.projectorsketch import Sketch
from sfumato.search.queries import Block
from sfumato.types.arrays import whole_number

SAMPLE = 2_000
ROWS_AT_ONCE = 20_000
QUERIES_AT_ONCE = 4_096
EXACT_BYTES = 2**28
"""Exact embeddings take at most so much memory, unless they are asked for."""
STREAM = 0x5CE7
"""Sets sketches apart from whatever else was drawn from the same seed."""
SHORT = 1_024
"""Numbers of a sketch where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorParams:
    """``method``: "flat", "hnsw", "ivf", or "kdtree" with ``eps`` and ``leaf``.

    ``sketch``: numbers of a sketched embedding, 0 for the exact one, None for whichever fits. ``candidates``: entries
    compared exactly for a query unless an effort says otherwise. ``lists`` and ``probes`` are those of IVF (None: 4
    times the root of the number of entries, and a sixteenth of them).
    """

    method: str = "flat"
    sketch: int | None = None
    candidates: int = 200
    eps: float = PUBLISHED_EPS
    leaf: int = PUBLISHED_LEAF
    lists: int | None = None
    probes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            close = suggest(str(self.method), METHODS)
            raise InputError(f"method: expected one of {', '.join(METHODS)}, got {self.method!r:.80}{close}")
        limits = {"candidates": (1, 2**31 - 1), "leaf": (1, 2**31 - 1), "seed": (0, 2**63 - 1)}
        optional = {"sketch": (0, 1_000_000), "lists": (1, 10_000_000), "probes": (1, 10_000_000)}
        limits |= {name: limit for name, limit in optional.items() if getattr(self, name) is not None}
        for name, (low, high) in limits.items():
            if not low <= whole_number(getattr(self, name), name) <= high:
                raise InputError(f"{name}: expected {low} to {high}, got {getattr(self, name)}")
        if not (isinstance(self.eps, int | float) and math.isfinite(self.eps) and self.eps >= 0):
            raise InputError(f"eps: expected 0 or more, got {self.eps!r:.80}")

    @staticmethod
    def published(**changes: Any) -> "ProjectorParams":
        """Return what both papers ran: a kd-tree with eps = 10 that gives one answer, on exact embeddings."""
        return ProjectorParams(**{"method": "kdtree", "sketch": 0, "candidates": 1, **changes})


class ProjectorIndex(Index):
    """An index of embedded projectors. Effort is the share of the entries that are compared exactly for a query."""

    kind = "projector"
    params_type = ProjectorParams

    def __init__(self, entries: Entries, metric: str, params: ProjectorParams, embedding: ProjectorPoints) -> None:
        super().__init__(entries, metric, params)
        self.embedding = embedding
        self.points = self._no_points()

    def _no_points(self) -> FaissPoints | TreePoints:
        params, length = self.params, self.embedding.length
        if params.method == "kdtree":
            return TreePoints(params.eps, params.leaf, length)
        lists = params.lists or max(1, 4 * math.isqrt(self.entries.total))
        return FaissPoints(params.method, length, lists, params.probes or max(1, lists // 16))

    @classmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "ProjectorIndex":
        """Fit the embedding to a sample of the entries, and embed all of them."""
        step = max(1, entries.total // SAMPLE)
        parts = [(part.origin[::step], part.basis[::step]) for part in entries.segments]
        chart = None
        if metric == "distance":
            largest = max(parts, key=lambda part: len(part[0]), default=None)
            chart = Chart(np.zeros(entries.dim), 1.0) if largest is None else Chart.of(*largest)
        size = entries.dim + (chart is not None)
        wanted = params.sketch
        if wanted is None:
            wanted = 0 if 4 * length_of(size) * entries.total <= EXACT_BYTES else SHORT
        sketch = Sketch.draw(wanted, size, np.random.default_rng((params.seed, STREAM))) if wanted else None
        centred = params.method != "kdtree"
        index = cls(entries, metric, params, ProjectorPoints.fit(parts, entries.dim, chart, sketch, centred=centred))
        index.added(range(entries.total))
        return index

    def added(self, rows: range) -> None:
        """Embed new rows; the first ones all at once, for what is learned from them."""
        embedded = []
        for part in self.entries.segments:
            first, last = max(part.start, rows.start), min(part.stop, rows.stop)
            for start in range(first, last, ROWS_AT_ONCE):
                inside = slice(start - part.start, min(start + ROWS_AT_ONCE, last) - part.start)
                embedded.append(self.embedding.entries(part.origin[inside], part.basis[inside]))
        if embedded:
            self.points.add(np.concatenate(embedded))

    def undone(self) -> None:
        """Index the points of the entries anew, without those that were not added after all."""
        held = self.points.points()[: self.entries.total]
        self.points = self._no_points()
        if len(held):
            self.points.add(held)

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the entries whose points are nearest to those of the queries."""
        asked = self.params.candidates if effort is None else math.ceil(effort * len(self))
        count = min(max(1, asked, k if effort is None and self.params.method != "kdtree" else 1), len(self))
        rows, looked_at = np.empty((len(block), count), np.int64), 0
        for start in range(0, len(block), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            queries = self.embedding.queries(block.origin[part], block.basis[part])
            rows[part], looked = self.points.find(queries, count, self.entries.alive)
            looked_at += looked
        return Candidates(np.nonzero(rows >= 0)[0], rows[rows >= 0], looked_at)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the embedding and the embedded entries."""
        return {"points": self.points.points(), **self.embedding.arrays()}

    def settings(self) -> dict[str, Any]:
        """Return what is no array of the embedding."""
        return self.embedding.settings()

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "ProjectorIndex":
        """Return the index of a file, its points indexed anew; FileError where its arrays do not fit the entries."""
        embedding = ProjectorPoints.restore(arrays, settings, entries.dim, affine=metric == "distance")
        points = arrays["points"]
        if points.shape != (entries.total, embedding.length) or points.dtype != np.float32:
            raise FileError("the embedded entries have another shape than they must")
        if not np.isfinite(points).all():
            raise FileError("the embedded entries are damaged")
        index = cls(entries, metric, params, embedding)
        if len(points):
            index.points.add(np.ascontiguousarray(points))
        return index
