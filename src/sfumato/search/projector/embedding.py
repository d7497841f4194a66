# SPDX-License-Identifier: Apache-2.0
"""Embeddings of subspaces as points (Basri, Hassner and Zelnik-Manor, TPAMI 2011), and indexes of such points.

h(A) is the upper triangle of a symmetric A with the diagonal divided by sqrt 2, so that <h(A), h(B)> = tr(AB) / 2. All
constants are exact; every function says which. An embedding has n (n + 1) / 2 numbers per subspace; ``Sketch`` makes a
shorter form. The least distance of two affine subspaces is not of this form: there is no embedding for it.

The kd-tree is scipy's cKDTree. Scipy's own search does not say how many points it compared, so this one searches the
same tree by the same rule: a node is skipped if it is farther than the best so far divided by 1 + eps.
"""

import importlib
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats64 = NDArray[np.float64]

# --- the kd-tree of the published baseline, searched best first with a tolerance; counts the points it compares


PUBLISHED_EPS = 10.0
"""The tolerance of both papers: the answer may be 11 times as far as the nearest."""
PUBLISHED_LEAF = 1
"""Points in a leaf of the ANN library, by default."""


class FlatTree(NamedTuple):
    """A kd-tree as arrays: ``axis`` (-1 for a leaf), ``split``, ``lesser`` and ``greater`` children of each node.

    Of a leaf ``order[start:end]`` are the rows in it; ``low`` and ``high`` (n,) bound all points.
    """

    axis: NDArray[np.int64]
    split: NDArray[np.float64]
    lesser: NDArray[np.int64]
    greater: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    order: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def grow(points: NDArray[Any], leaf: int = PUBLISHED_LEAF) -> FlatTree:
    """Build the tree of points (N, n), N at least 1, with scipy."""
    from scipy.spatial import cKDTree

    built = cKDTree(points, leafsize=leaf, balanced_tree=False)
    rows: list[tuple[float, ...]] = []
    waiting = [(built.tree, -1, 0)]
    while waiting:
        node, parent, side = waiting.pop()
        number = len(rows)
        rows.append((node.split_dim, node.split, -1, -1, node.start_idx, node.end_idx))
        if parent >= 0:
            changed = list(rows[parent])
            changed[2 + side] = number
            rows[parent] = tuple(changed)
        if node.split_dim >= 0:
            waiting += [(node.greater, number, 1), (node.lesser, number, 0)]
    columns = np.array(rows, float).T
    axis, lesser, greater, start, end = (columns[i].astype(np.int64) for i in (0, 2, 3, 4, 5))
    return FlatTree(
        axis, columns[1], lesser, greater, start, end, built.indices.astype(np.int64), built.mins, built.maxes
    )


def nearest(
    tree: FlatTree, points: NDArray[Any], queries: NDArray[Any], k: int, eps: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows (Q, k), nearest first, -1 for none, and how many points each query compared (Q,)."""
    from sfumato.search.projector.kernels import search_tree

    rows = np.full((len(queries), k), -1, np.int64)
    visits = np.zeros(len(queries), np.int64)
    search_tree(*tree, np.asarray(points, float), np.asarray(queries, float), eps, rows, visits)
    return rows, visits


# --- embeddings


def length_of(n: int) -> int:
    """Return how many numbers h(A) has for a symmetric (n, n) matrix."""
    return n * (n + 1) // 2


def half_vector(matrices: NDArray[Any]) -> Floats64:
    """Return h(A) (N, n (n + 1) / 2) of symmetric matrices (N, n, n)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    halves: Floats64 = np.asarray(matrices, float)[..., rows, columns]
    halves[..., rows == columns] /= math.sqrt(2)
    return halves


def projectors(basis: NDArray[Any]) -> Floats64:
    """Return the orthogonal projectors (N, n, n) on the spans of orthonormal rows (N, d, n)."""
    rows = np.asarray(basis, float)
    squares: Floats64 = np.matmul(rows.transpose(0, 2, 1), rows)
    return squares


def embed_linear(basis: NDArray[Any]) -> Floats64:
    """Return u = -h(I - S S') for linear subspaces, bases (N, d, n)."""
    return half_vector(projectors(basis) - np.eye(basis.shape[2]))


def embed_linear_query(basis: NDArray[Any]) -> Floats64:
    """Return v = h(Q Q') for linear queries, orthonormal rows (N, d, n); a point x is the single row x, of any length.

    For a point ||u - v||^2 = dist^2(x, S) + (n - d_S + ||x||^4) / 2. For subspaces ||u - v||^2 = sum sin^2(theta_i) +
    (n - d_S + d_Q) / 2, over min(d_S, d_Q) angles, plus d_Q - d_S where the query is the larger.
    """
    return half_vector(projectors(basis))


def embed_centred(basis: NDArray[Any]) -> Floats64:
    """Return u^ = u + ((n - d) / n) h(I): orthogonal to h(I), and of one length for all subspaces of dimension d."""
    _, dim, n = basis.shape
    points: Floats64 = embed_linear(basis) + (n - dim) / n * half_vector(np.eye(n)[None])
    return points


def embed_centred_query(points: NDArray[Any], dim: int) -> Floats64:
    """Return beta v^ for points (N, n) other than 0 and a database of dimension d.

    v^ = h(xx') - (||x||^2 / n) h(I), beta = sqrt(d (n - d) / (n - 1)) / ||x||^2. The embedded points are as long as the
    entries, and ||u^ - beta v^||^2 = beta dist^2(x, S) + d (n - d) / n - ((n - d) / n) sqrt(d (n - d) / (n - 1)).
    """
    rows = np.asarray(points, float)
    n = rows.shape[1]
    squared = np.einsum("ni,ni->n", rows, rows)[:, None]
    beta = math.sqrt(dim * (n - dim) / (n - 1)) / squared
    embedded: Floats64 = beta * (
        half_vector(rows[:, :, None] * rows[:, None, :]) - squared / n * half_vector(np.eye(n)[None])
    )
    return embedded


def affine_forms(origin: NDArray[Any], basis: NDArray[Any]) -> Floats64:
    """Return G (N, n + 1, n + 1) with dist^2(x, D) = (x, 1)' G (x, 1) for affine subspaces in canonical form.

    With Z a basis of the complement G = [Z; -(Z'p)'] [Z; -(Z'p)']', which is [I - BB', -p; -p', p'p] as B'p = 0.
    """
    p, rows = np.asarray(origin, float), np.asarray(basis, float)
    count, n = p.shape
    forms = np.empty((count, n + 1, n + 1))
    forms[:, :n, :n] = np.eye(n) - projectors(rows)
    forms[:, :n, n] = forms[:, n, :n] = -p
    forms[:, n, n] = np.einsum("ni,ni->n", p, p)
    return forms


def form_squared_length(origin: NDArray[Any], dim: int) -> Floats64:
    """Return ||h(G)||^2 = tr(G^2) / 2 = (n - m + 2 ||p||^2 + ||p||^4) / 2 of affine subspaces."""
    p = np.asarray(origin, float)
    squared = np.einsum("ni,ni->n", p, p)
    result: Floats64 = (p.shape[1] - dim + 2 * squared + squared**2) / 2
    return result


def embed_affine(origin: NDArray[Any], basis: NDArray[Any], largest: float) -> Floats64:
    """Return u = [-h(G), sqrt(R^2 - ||h(G)||^2)]; ``largest`` R^2 is the greatest ||h(G)||^2 of the database."""
    heads = -half_vector(affine_forms(origin, basis))
    last = np.sqrt(np.maximum(largest - form_squared_length(origin, basis.shape[1]), 0))
    return np.concatenate([heads, last[:, None]], axis=1)


def embed_affine_query(points: NDArray[Any]) -> Floats64:
    """Return v = [h((x, 1)(x, 1)'), 0] for points (N, n): ||u - v||^2 = dist^2(x, D) + R^2 + (||x||^2 + 1)^2 / 2."""
    rows = np.pad(np.asarray(points, float), ((0, 0), (0, 1)), constant_values=1.0)
    return np.pad(half_vector(rows[:, :, None] * rows[:, None, :]), ((0, 0), (0, 1)))


# --- sketches: short embeddings for large n

ROWS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Sketch:
    """Random vectors ``first`` and ``second`` (r, n) float32 that make short embeddings of symmetric (n, n) matrices.

    z_j(A) = g_j' A w_j: for independent Gaussian g and w the mean of z_j(A) z_j(B) is tr(AB) = 2 <h(A), h(B)>, with an
    error that falls with the root of r. For A = S S' it is (S'g) . (S'w): linear in n, where h(A) is quadratic.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]

    @staticmethod
    def draw(length: int, ambient_dim: int, rng: np.random.Generator) -> "Sketch":
        """Draw ``length`` pairs; inner products of sketches then have the mean <h(A), h(B)>."""
        first, second = rng.normal(size=(2, length, ambient_dim)).astype(np.float32)
        return Sketch(first / np.float32((2 * length) ** 0.5), second)

    def of_spans(self, basis: NDArray[Any]) -> NDArray[np.float32]:
        """Return the sketches (N, r) of S S' for rows (N, d, n); of x x' for a single row x."""
        count, dim, n = basis.shape
        sketches = np.zeros((count, len(self.first)), np.float32)
        step = max(1, ROWS_AT_ONCE // max(1, 2 * dim * len(self.first)))
        for start in range(0, count, step):
            rows = np.asarray(basis[start : start + step], np.float32)
            flat = rows.reshape(-1, n)
            product = (flat @ self.first.T) * (flat @ self.second.T)
            sketches[start : start + step] = product.reshape(len(rows), dim, -1).sum(axis=1)
        return sketches

    def of_points(self, points: NDArray[Any]) -> NDArray[np.float32]:
        """Return the sketches (N, r) of (x, 1)(x, 1)' for points (N, n - 1)."""
        return self.of_spans(np.pad(np.asarray(points, np.float32), ((0, 0), (0, 1)), constant_values=1)[:, None])

    def of_forms(self, origin: NDArray[Any], basis: NDArray[Any]) -> NDArray[np.float32]:
        """Return the sketches (N, r) of -G, less that of -I: of [BB', p; p', 1 - p'p] for affine subspaces."""
        n = origin.shape[1]
        p = np.asarray(origin, np.float32)
        inside = Sketch(self.first[:, :n], self.second[:, :n]).of_spans(basis)
        along = (p @ self.first[:, :n].T) * self.second[:, n] + (p @ self.second[:, :n].T) * self.first[:, n]
        corner = (1 - np.einsum("ni,ni->n", p, p))[:, None] * (self.first[:, n] * self.second[:, n])
        sketches: NDArray[np.float32] = inside + along + corner
        return sketches

    def __repr__(self) -> str:
        return f"Sketch({len(self.first)} pairs in R^{self.first.shape[1]})"


def equalise(
    rows: NDArray[np.float32], largest: float | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Make rows (N, r) equally long by one more number: return (N, r + 1), those numbers, and the squared length.

    Queries get a 0 there: the nearest row is then the one of greatest inner product, whatever the lengths were. Rows
    longer than ``largest`` get 0 too, and count as a little farther than they are.
    """
    squared = np.einsum("ni,ni->n", rows, rows, dtype=np.float64)
    limit = float(squared.max(initial=0.0)) if largest is None else largest
    last = np.sqrt(np.maximum(limit - squared, 0)).astype(np.float32)
    return np.concatenate([rows, last[:, None]], axis=1), last, limit


# --- indexes of points

Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]

METHODS = ("flat", "hnsw", "ivf", "kdtree")
LINKS = 32
POINTS_PER_LIST = 64
"""Points per list from which IVF learns its centroids."""


@dataclass(slots=True, repr=False, eq=False)
class FaissPoints:
    """Points in a faiss index: "flat", "hnsw" or "ivf" with ``lists`` of which ``probes`` are searched.

    Files keep the points, not the faiss index: nobody can check a foreign graph or list for malice.
    """

    method: str
    length: int
    lists: int
    probes: int
    index: Any = None

    def add(self, points: Floats32) -> None:
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
                self.index.cp.max_points_per_centroid = POINTS_PER_LIST
                self.index.train(points)
                self.index.make_direct_map()
        self.index.add(np.ascontiguousarray(points))

    def find(self, queries: Floats32, count: int, alive: NDArray[np.bool_]) -> tuple[Ints, int]:
        """Return the rows (Q, count) nearest to each query, -1 for none, and how many points were compared."""
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

    def points(self) -> Floats32:
        """Return all points (N, length) in the order they were added."""
        if self.index is None:
            return np.zeros((0, self.length), np.float32)
        points: Floats32 = self.index.reconstruct_n(0, self.index.ntotal)
        return points


@dataclass(slots=True, repr=False, eq=False)
class TreePoints:
    """Points in the kd-tree of the published baseline; the tree is built again when entries come or go."""

    eps: float
    leaf: int
    length: int
    rows: Floats32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    tree: tuple[FlatTree, Ints] | None = None

    def add(self, points: Floats32) -> None:
        """Append points."""
        self.rows = np.concatenate([self.rows.reshape(-1, self.length), points])
        self.tree = None

    def find(self, queries: Floats32, count: int, alive: NDArray[np.bool_]) -> tuple[Ints, int]:
        """Return the rows (Q, count) nearest to each query, -1 for none, and how many points were compared."""
        numbers = np.flatnonzero(alive)
        if self.tree is None or len(self.tree[1]) != len(numbers):
            self.tree = grow(self.rows[numbers], self.leaf), numbers
        tree, numbers = self.tree
        places, visits = nearest(tree, self.rows[numbers], queries, count, self.eps)
        return np.where(places >= 0, numbers[places], -1), int(visits.sum())

    def points(self) -> Floats32:
        """Return all points (N, length) in the order they were added."""
        return self.rows.reshape(-1, self.length)
