# SPDX-License-Identifier: Apache-2.0
"""Index of the kind "projector": subspaces as points (Basri, Hassner and Zelnik-Manor), searched by faiss or a kd-tree.

The nearest points are compared exactly with the query. Published was a kd-tree with eps = 10 and one answer, which is
returned as it is. The faiss methods are what one would use today.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.search.entries import Block, Entries
from sfumato.search.exact import has_lines
from sfumato.search.grassmann.index import COMPARISON, Chart, residual
from sfumato.search.index import Candidates, Index
from sfumato.search.projector.embedding import (
    METHODS,
    PUBLISHED_EPS,
    PUBLISHED_LEAF,
    FaissPoints,
    Sketch,
    TreePoints,
    affine_forms,
    equalise,
    half_vector,
    length_of,
    projectors,
)
from sfumato.types.arrays import whole_number

Floats = NDArray[np.float32]

VALUES_AT_ONCE = 4_000_000
TINY = 1e-20


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ProjectorPoints:
    """Map of subspaces to points of one Euclidean space, so any index of points can search them.

    Linear subspaces (metric "angle") become centred projectors, exact or sketched; affine ones (metric "distance") the
    quadratic forms of their squared distance, about the centre of the database. For point queries the nearest point is
    then the nearest subspace. For subspace queries the least distance has no such form: the projector on the query's
    span in homogeneous coordinates is compared, and exact ranks must correct it.

    ``chart`` is None for linear subspaces. ``sketch`` is None for exact embeddings. ``mean`` (r,) is subtracted from
    entries, which changes no order of inner products and makes the errors of a sketch smaller; ``largest`` is the
    squared length that one more coordinate gives to all entries. ``traceless``: linear subspaces lose their part along
    h(I), as published; it is the same for all of one dimension, and would count if dimensions are mixed.
    """

    ambient_dim: int
    chart: Chart | None
    sketch: Sketch | None
    mean: Floats
    largest: float
    traceless: bool = True

    @staticmethod
    def fit(
        parts: list[tuple[Floats, Floats]], n: int, chart: Chart | None, sketch: Sketch | None, *, centred: bool
    ) -> "ProjectorPoints":
        """Fit mean and length to a sample of entries, origins (N, n), bases (N, m, n); no mean if not ``centred``."""
        size = n + (chart is not None)
        length = length_of(size) if sketch is None else len(sketch.first)
        traceless = not centred or len({part[1].shape[1] for part in parts}) < 2
        blank = ProjectorPoints(n, chart, sketch, np.zeros(length, np.float32), 0.0, traceless)
        rows = [blank._heads(*part) for part in parts if len(part[0])]
        if not rows:
            return blank
        stacked = np.concatenate(rows)
        mean = stacked.mean(axis=0) if centred else blank.mean
        stacked -= mean
        largest = float(np.einsum("ni,ni->n", stacked, stacked).max())
        return ProjectorPoints(n, chart, sketch, mean, largest, traceless)

    @property
    def length(self) -> int:
        """The number of coordinates of a point."""
        return len(self.mean) + 1

    def entries(self, origin: Floats, basis: Floats) -> Floats:
        """Return the points (N, length) of entries, all of the same length."""
        step = max(1, VALUES_AT_ONCE // (self.ambient_dim + 1) ** 2)
        parts = [
            equalise(self._heads(origin[at : at + step], basis[at : at + step]) - self.mean, self.largest)[0]
            for at in range(0, len(origin), step)
        ]
        return np.concatenate([np.zeros((0, self.length), np.float32), *parts])

    def queries(self, origin: Floats, basis: Floats) -> Floats:
        """Return the points (Q, length) of queries, as long as the entries: which is nearest does not depend on it."""
        step = max(1, VALUES_AT_ONCE // (self.ambient_dim + 1) ** 2)
        rows = [self._query_heads(origin[at : at + step], basis[at : at + step]) for at in range(0, len(origin), step)]
        stacked = np.concatenate([np.zeros((0, self.length - 1), np.float32), *rows])
        lengths = np.sqrt(np.einsum("ni,ni->n", stacked, stacked))[:, None]
        stacked *= math.sqrt(self.largest or 1.0) / np.maximum(lengths, TINY)
        return np.pad(stacked, ((0, 0), (0, 1)))

    def _heads(self, origin: Floats, basis: Floats) -> Floats:
        """Return h(S S') - (d / n) h(I) for linear subspaces, h(I - G) for affine ones."""
        if self.chart is None:
            return self._span(basis)
        place = (residual(origin - self.chart.centre, basis) / self.chart.scale).astype(np.float32)
        if self.sketch is not None:
            return self.sketch.of_forms(place, basis)
        forms = np.eye(self.ambient_dim + 1) - affine_forms(place, basis)
        return half_vector(forms).astype(np.float32)

    def _query_heads(self, origin: Floats, basis: Floats) -> Floats:
        if self.chart is None:
            return self._span(basis)
        scaled = Chart(self.chart.centre / self.chart.scale, 1.0)
        lifted = scaled.lift((origin / self.chart.scale).astype(np.float32), basis)
        return self._span(lifted)

    def _span(self, basis: Floats) -> Floats:
        """Return h(S S') of spans; less their part along h(I) it is the centred embedding of Basri et al."""
        _, dim, n = basis.shape
        share = dim / n if self.chart is None and self.traceless else 0.0
        if self.sketch is None:
            heads: Floats = (half_vector(projectors(basis)) - share * half_vector(np.eye(n)[None])).astype(np.float32)
            return heads
        identity = np.einsum("ri,ri->r", self.sketch.first, self.sketch.second)
        result: Floats = self.sketch.of_spans(basis) - np.float32(share) * identity
        return result

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        named: dict[str, NDArray[Any]] = {"mean": self.mean}
        if self.chart is not None:
            named["centre"] = self.chart.centre
        if self.sketch is not None:
            named |= {"first": self.sketch.first, "second": self.sketch.second}
        return named

    def settings(self) -> dict[str, Any]:
        """Return the values that are not arrays."""
        scale = None if self.chart is None else self.chart.scale
        return {"largest": self.largest, "scale": scale, "traceless": self.traceless}

    @staticmethod
    def restore(
        arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any], n: int, *, affine: bool
    ) -> "ProjectorPoints":
        """Return the map that a file holds; FileError if its arrays do not fit each other."""
        size = n + affine
        chart = Chart(arrays["centre"], float(settings["scale"])) if affine else None
        sketch = Sketch(arrays["first"], arrays["second"]) if "first" in arrays else None
        mean, largest = arrays["mean"], float(settings["largest"])
        shapes: dict[str, tuple[int, ...]] = {"mean": (length_of(size) if sketch is None else len(sketch.first),)}
        shapes |= {"centre": (n,)} if affine else {}
        shapes |= {} if sketch is None else dict.fromkeys(("first", "second"), (len(sketch.first), size))
        for name, shape in shapes.items():
            array, kind = arrays[name], np.float64 if name == "centre" else np.float32
            if array.shape != shape or array.dtype != kind or not np.isfinite(array).all():
                raise FileError(f"{name}: wrong shape, type or values for an index of projectors")
        if not (math.isfinite(largest) and largest >= 0):
            raise FileError("the length of the embedded entries is damaged")
        return ProjectorPoints(n, chart, sketch, mean, largest, bool(settings["traceless"]))

    def __repr__(self) -> str:
        return f"ProjectorPoints({self.length} numbers, {'exact' if self.sketch is None else 'sketched'})"


NUMBER = 0.05
"""Nanoseconds of one core for a number of an embedded entry, in a flat scan of a batch."""

SAMPLE = 2_000
ROWS_AT_ONCE = 20_000
QUERIES_AT_ONCE = 4_096
EXACT_BYTES = 2**28
"""The most memory of exact embeddings, if ``sketch`` is not set."""
STREAM = 0x5CE7
"""Separates sketches from other draws of the same seed."""
SHORT = 1_024
"""Numbers of a sketch, if ``sketch`` is not set."""


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
        """Return the parameters of both papers: a kd-tree with eps = 10 and one answer, on exact embeddings."""
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
        length = params.sketch
        if length is None:
            length = 0 if 4 * length_of(size) * entries.total <= EXACT_BYTES else SHORT
        sketch = Sketch.draw(length, size, np.random.default_rng((params.seed, STREAM))) if length else None
        centred = params.method != "kdtree"
        index = cls(entries, metric, params, ProjectorPoints.fit(parts, entries.dim, chart, sketch, centred=centred))
        index.on_add(range(entries.total))
        return index

    def on_add(self, rows: range) -> None:
        """Embed new rows; the first ones all at once, for what is learned from them."""
        embedded = []
        for part in self.entries.segments:
            first, last = max(part.start, rows.start), min(part.stop, rows.stop)
            for start in range(first, last, ROWS_AT_ONCE):
                inside = slice(start - part.start, min(start + ROWS_AT_ONCE, last) - part.start)
                embedded.append(self.embedding.entries(part.origin[inside], part.basis[inside]))
        if embedded:
            self.points.add(np.concatenate(embedded))

    def on_undo(self) -> None:
        """Index the points of the entries again, without those that were not added after all."""
        points = self.points.points()[: self.entries.total]
        self.points = self._no_points()
        if len(points):
            self.points.add(points)

    def cap(self, k: int, effort: float | None) -> int:
        """Return how many entries are compared exactly for a query; at least 1."""
        limit = self.params.candidates if effort is None else math.ceil(effort * len(self))
        return min(max(1, limit, k if effort is None and self.params.method != "kdtree" else 1), len(self))

    def cost(self, block: Block, k: int, effort: float | None) -> float:
        """Return the nanoseconds of a query: of a flat scan for every number of every point, and for comparisons."""
        is_simple = self.metric == "distance" or has_lines(self.entries, block)
        scanned = len(self) * self.embedding.length if self.params.method == "flat" else 0
        return NUMBER * scanned + COMPARISON[is_simple] * self.cap(k, effort)

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the entries whose points are nearest to those of the queries."""
        count = self.cap(k, effort)
        rows, looked_at = np.empty((len(block), count), np.int64), 0
        for start in range(0, len(block), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            queries = self.embedding.queries(block.origin[part], block.basis[part])
            rows[part], visits = self.points.find(queries, count, self.entries.alive)
            looked_at += visits
        return Candidates(np.nonzero(rows >= 0)[0], rows[rows >= 0], looked_at)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the embedding and the embedded entries."""
        return {"points": self.points.points(), **self.embedding.arrays()}

    def settings(self) -> dict[str, Any]:
        """Return the values of the embedding that are not arrays."""
        return self.embedding.settings()

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "ProjectorIndex":
        """Return the index of a file, its points indexed again; FileError if its arrays do not fit the entries."""
        embedding = ProjectorPoints.restore(arrays, settings, entries.dim, affine=metric == "distance")
        points = arrays["points"]
        if points.shape != (entries.total, embedding.length) or points.dtype != np.float32:
            raise FileError("the embedded entries have the wrong shape")
        if not np.isfinite(points).all():
            raise FileError("the embedded entries are damaged")
        index = cls(entries, metric, params, embedding)
        if len(points):
            index.points.add(np.ascontiguousarray(points))
        return index
