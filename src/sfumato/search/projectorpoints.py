# SPDX-License-Identifier: Apache-2.0
"""Entries and queries as points of one Euclidean space, so that any index of points can search subspaces.

Linear subspaces (metric "angle") are centred projectors, exact or sketched. Affine ones (metric "distance") are the
quadratic forms of their squared distance, in coordinates about the centre of the database; for point queries the
nearest point is then the nearest subspace. For subspace queries the least distance has no such form: what is compared
is the projector on the query's span in homogeneous coordinates, a guess that exact re-ranking must mend.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.search.homogeneous import Chart, without
from sfumato.search.projectorembedding import affine_forms, half_vector, length_of, projectors
from sfumato.search.projectorsketch import Sketch, equalised

Floats = NDArray[np.float32]

VALUES_AT_ONCE = 4_000_000
TINY = 1e-20


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ProjectorPoints:
    """How subspaces become points.

    ``chart`` is None for linear subspaces. ``sketch`` is None for exact embeddings. ``mean`` (r,) is taken off the
    entries, which changes no order of inner products and leaves a sketch less to be wrong about; ``largest`` is the
    squared length that all entries are given by one more coordinate. ``traceless``: linear subspaces lose their part
    along h(I), as published; it is the same for all of one dimension, and would count where dimensions are mixed.
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
        """How many numbers a point has."""
        return len(self.mean) + 1

    def entries(self, origin: Floats, basis: Floats) -> Floats:
        """Return the points (N, length) of entries, all of the same length."""
        step = max(1, VALUES_AT_ONCE // (self.ambient_dim + 1) ** 2)
        parts = [
            equalised(self._heads(origin[at : at + step], basis[at : at + step]) - self.mean, self.largest)[0]
            for at in range(0, len(origin), step)
        ]
        return np.concatenate([np.zeros((0, self.length), np.float32), *parts])

    def queries(self, origin: Floats, basis: Floats) -> Floats:
        """Return the points (Q, length) of queries, as long as the entries: which is nearest does not depend on it."""
        step = max(1, VALUES_AT_ONCE // (self.ambient_dim + 1) ** 2)
        rows = [self._asked(origin[at : at + step], basis[at : at + step]) for at in range(0, len(origin), step)]
        stacked = np.concatenate([np.zeros((0, self.length - 1), np.float32), *rows])
        lengths = np.sqrt(np.einsum("ni,ni->n", stacked, stacked))[:, None]
        stacked *= math.sqrt(self.largest or 1.0) / np.maximum(lengths, TINY)
        return np.pad(stacked, ((0, 0), (0, 1)))

    def _heads(self, origin: Floats, basis: Floats) -> Floats:
        """Return h(S S') - (d / n) h(I) for linear subspaces, h(I - G) for affine ones."""
        if self.chart is None:
            return self._span(basis)
        place = (without(origin - self.chart.centre, basis) / self.chart.scale).astype(np.float32)
        if self.sketch is not None:
            return self.sketch.of_forms(place, basis)
        forms = np.eye(self.ambient_dim + 1) - affine_forms(place, basis)
        return half_vector(forms).astype(np.float32)

    def _asked(self, origin: Floats, basis: Floats) -> Floats:
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
            found: Floats = (half_vector(projectors(basis)) - share * half_vector(np.eye(n)[None])).astype(np.float32)
            return found
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
        """Return what is no array."""
        scale = None if self.chart is None else self.chart.scale
        return {"largest": self.largest, "scale": scale, "traceless": self.traceless}

    @staticmethod
    def restore(
        arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any], n: int, *, affine: bool
    ) -> "ProjectorPoints":
        """Return what a file holds; FileError where the arrays do not fit each other."""
        size = n + affine
        chart = Chart(arrays["centre"], float(settings["scale"])) if affine else None
        sketch = Sketch(arrays["first"], arrays["second"]) if "first" in arrays else None
        mean, largest = arrays["mean"], float(settings["largest"])
        wanted: dict[str, tuple[int, ...]] = {"mean": (length_of(size) if sketch is None else len(sketch.first),)}
        wanted |= {"centre": (n,)} if affine else {}
        wanted |= {} if sketch is None else dict.fromkeys(("first", "second"), (len(sketch.first), size))
        for name, shape in wanted.items():
            array, kind = arrays[name], np.float64 if name == "centre" else np.float32
            if array.shape != shape or array.dtype != kind or not np.isfinite(array).all():
                raise FileError(f"{name} is not what an index of projectors holds")
        if not (math.isfinite(largest) and largest >= 0):
            raise FileError("the length of the embedded entries is damaged")
        return ProjectorPoints(n, chart, sketch, mean, largest, bool(settings["traceless"]))

    def __repr__(self) -> str:
        return f"ProjectorPoints({self.length} numbers, {'exact' if self.sketch is None else 'sketched'})"
