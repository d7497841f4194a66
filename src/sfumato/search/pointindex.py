# SPDX-License-Identifier: Apache-2.0
"""Indexes of points that a projector index stands on: faiss flat, HNSW and IVF, and the published kd-tree.

Knows points (N, r) float32 and rows. A faiss index is never written as such: its points are, and it is built anew from
them, for nobody can check a foreign graph or list for malice.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.search.kdtree import FlatTree, grow, nearest

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

METHODS = ("flat", "hnsw", "ivf", "kdtree")
LINKS = 32
TRAINED_ON = 64
"""Points for each list that IVF learns its centroids from."""


@dataclass(slots=True, repr=False, eq=False)
class FaissPoints:
    """Points in a faiss index: "flat", "hnsw" or "ivf" with ``lists`` of which ``probes`` are searched."""

    method: str
    length: int
    lists: int
    probes: int
    index: Any = None

    def add(self, points: Floats) -> None:
        """Append points; the first ones also decide the lists."""
        import faiss

        if self.index is None:
            if self.method == "flat":
                self.index = faiss.IndexFlatL2(self.length)
            elif self.method == "hnsw":
                self.index = faiss.IndexHNSWFlat(self.length, LINKS)
            else:
                lists = max(1, min(self.lists, len(points)))
                self.index = faiss.IndexIVFFlat(faiss.IndexFlatL2(self.length), self.length, lists)
                self.index.cp.min_points_per_centroid = 1
                self.index.cp.max_points_per_centroid = TRAINED_ON
                self.index.train(points)
                self.index.make_direct_map()
        self.index.add(np.ascontiguousarray(points))

    def find(self, queries: Floats, count: int, alive: NDArray[np.bool_]) -> tuple[Ints, int]:
        """Return the rows (Q, count) nearest to each query, -1 for none, and how many points were looked at."""
        faiss: Any = importlib.import_module("faiss")  # its stubs do not know search parameters
        selector = None if alive.all() else faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
        if self.method == "flat":
            settings, stats = faiss.SearchParameters(sel=selector), None
        elif self.method == "hnsw":
            settings, stats = (
                faiss.SearchParametersHNSW(efSearch=max(64, 2 * count), sel=selector),
                faiss.cvar.hnsw_stats,
            )
        else:
            settings, stats = faiss.SearchParametersIVF(nprobe=self.probes, sel=selector), faiss.cvar.indexIVF_stats
        if stats is not None:
            stats.reset()
        rows = self.index.search(np.ascontiguousarray(queries), count, params=settings)[1]
        looked_at = len(queries) * int(alive.sum()) if stats is None else int(stats.ndis)
        return rows, looked_at

    def points(self) -> Floats:
        """Return all points (N, length) in the order they were added."""
        if self.index is None:
            return np.zeros((0, self.length), np.float32)
        found: Floats = self.index.reconstruct_n(0, self.index.ntotal)
        return found


@dataclass(slots=True, repr=False, eq=False)
class TreePoints:
    """Points in the kd-tree of the published baseline; it is grown anew when entries come or go."""

    eps: float
    leaf: int
    length: int
    held: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    grown: tuple[Any, FlatTree, Ints] | None = None

    def add(self, points: Floats) -> None:
        """Append points."""
        self.held = np.concatenate([self.held.reshape(-1, self.length), points])
        self.grown = None

    def find(self, queries: Floats, count: int, alive: NDArray[np.bool_]) -> tuple[Ints, int]:
        """Return the rows (Q, count) found, -1 for none, and how many points were looked at."""
        rows = np.flatnonzero(alive)
        if self.grown is None or len(self.grown[2]) != len(rows):
            self.grown = None, grow(self.held[rows], self.leaf), rows
        _, tree, rows = self.grown
        found, looked = nearest(tree, self.held[rows], queries, count, self.eps)
        return np.where(found >= 0, rows[found], -1), int(looked.sum())

    def points(self) -> Floats:
        """Return all points (N, length) in the order they were added."""
        return self.held.reshape(-1, self.length)
