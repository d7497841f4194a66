# SPDX-License-Identifier: Apache-2.0
"""Projector embeddings made short without ever making them long, for large n.

Symmetric A is seen through random pairs of vectors, z_j = g_j' A w_j: for independent Gaussian g and w the mean of
z_j(A) z_j(B) is tr(AB) = 2 <h(A), h(B)>. For A = S S' that is (S'g) . (S'w): linear in n, where h(A) is quadratic.
Knows bases and vectors; the error of an inner product falls with the square root of the number of pairs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Sketch:
    """Random vectors ``first`` and ``second`` (r, n) float32: what symmetric (n, n) matrices are seen through."""

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
        found = np.zeros((count, len(self.first)), np.float32)
        step = max(1, ROWS_AT_ONCE // max(1, 2 * dim * len(self.first)))
        for start in range(0, count, step):
            rows = np.asarray(basis[start : start + step], np.float32)
            flat = rows.reshape(-1, n)
            product = (flat @ self.first.T) * (flat @ self.second.T)
            found[start : start + step] = product.reshape(len(rows), dim, -1).sum(axis=1)
        return found

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
        found: NDArray[np.float32] = inside + along + corner
        return found

    def __repr__(self) -> str:
        return f"Sketch({len(self.first)} pairs in R^{self.first.shape[1]})"


def equalised(
    rows: NDArray[np.float32], largest: float | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Return rows (N, r) made equally long by one more number, (N, r + 1), those numbers, and their squared length.

    Queries get a 0 there: the nearest row is then the one of greatest inner product, whatever the lengths were. Rows
    longer than ``largest`` get 0, and count as a little farther than they are.
    """
    squared = np.einsum("ni,ni->n", rows, rows, dtype=np.float64)
    limit = float(squared.max(initial=0.0)) if largest is None else largest
    last = np.sqrt(np.maximum(limit - squared, 0)).astype(np.float32)
    return np.concatenate([rows, last[:, None]], axis=1), last, limit
