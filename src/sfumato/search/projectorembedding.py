# SPDX-License-Identifier: Apache-2.0
"""Subspaces as points whose distances tell those of the subspaces (Basri, Hassner and Zelnik-Manor, TPAMI 2011).

h(A) is the upper triangle of a symmetric A with the diagonal divided by sqrt 2, so that <h(A), h(B)> = tr(AB) / 2. All
constants are exact; every function says which. Knows arrays in float64; memory is n (n + 1) / 2 numbers a subspace
(``projectorsketch`` has a shorter form). The least distance of two affine subspaces is not of this form: for those
there is no embedding here.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def length_of(n: int) -> int:
    """Return how many numbers h(A) has for a symmetric (n, n) matrix."""
    return n * (n + 1) // 2


def half_vector(matrices: NDArray[Any]) -> Floats:
    """Return h(A) (N, n (n + 1) / 2) of symmetric matrices (N, n, n)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    found: Floats = np.asarray(matrices, float)[..., rows, columns]
    found[..., rows == columns] /= math.sqrt(2)
    return found


def projectors(basis: NDArray[Any]) -> Floats:
    """Return the orthogonal projectors (N, n, n) on the spans of orthonormal rows (N, d, n)."""
    rows = np.asarray(basis, float)
    found: Floats = np.matmul(rows.transpose(0, 2, 1), rows)
    return found


def embed_linear(basis: NDArray[Any]) -> Floats:
    """Return u = -h(I - S S') for linear subspaces, bases (N, d, n)."""
    return half_vector(projectors(basis) - np.eye(basis.shape[2]))


def embed_linear_query(basis: NDArray[Any]) -> Floats:
    """Return v = h(Q Q') for linear queries, orthonormal rows (N, d, n); a point x is the single row x, of any length.

    For a point ||u - v||^2 = dist^2(x, S) + (n - d_S + ||x||^4) / 2. For subspaces ||u - v||^2 = sum sin^2(theta_i) +
    (n - d_S + d_Q) / 2, over min(d_S, d_Q) angles, plus d_Q - d_S where the query is the larger.
    """
    return half_vector(projectors(basis))


def embed_centred(basis: NDArray[Any]) -> Floats:
    """Return u^ = u + ((n - d) / n) h(I): orthogonal to h(I), and of one length for all subspaces of dimension d."""
    _, dim, n = basis.shape
    found: Floats = embed_linear(basis) + (n - dim) / n * half_vector(np.eye(n)[None])
    return found


def embed_centred_query(points: NDArray[Any], dim: int) -> Floats:
    """Return beta v^ for points (N, n) other than 0 and a database of dimension d.

    v^ = h(xx') - (||x||^2 / n) h(I), beta = sqrt(d (n - d) / (n - 1)) / ||x||^2. The embedded points are as long as the
    entries, and ||u^ - beta v^||^2 = beta dist^2(x, S) + d (n - d) / n - ((n - d) / n) sqrt(d (n - d) / (n - 1)).
    """
    rows = np.asarray(points, float)
    n = rows.shape[1]
    squared = np.einsum("ni,ni->n", rows, rows)[:, None]
    beta = math.sqrt(dim * (n - dim) / (n - 1)) / squared
    found: Floats = beta * (
        half_vector(rows[:, :, None] * rows[:, None, :]) - squared / n * half_vector(np.eye(n)[None])
    )
    return found


def affine_forms(origin: NDArray[Any], basis: NDArray[Any]) -> Floats:
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


def form_squared_length(origin: NDArray[Any], dim: int) -> Floats:
    """Return ||h(G)||^2 = tr(G^2) / 2 = (n - m + 2 ||p||^2 + ||p||^4) / 2 of affine subspaces."""
    p = np.asarray(origin, float)
    squared = np.einsum("ni,ni->n", p, p)
    result: Floats = (p.shape[1] - dim + 2 * squared + squared**2) / 2
    return result


def embed_affine(origin: NDArray[Any], basis: NDArray[Any], largest: float) -> Floats:
    """Return u = [-h(G), sqrt(R^2 - ||h(G)||^2)]; ``largest`` R^2 is the greatest ||h(G)||^2 of the database."""
    heads = -half_vector(affine_forms(origin, basis))
    last = np.sqrt(np.maximum(largest - form_squared_length(origin, basis.shape[1]), 0))
    return np.concatenate([heads, last[:, None]], axis=1)


def embed_affine_query(points: NDArray[Any]) -> Floats:
    """Return v = [h((x, 1)(x, 1)'), 0] for points (N, n): ||u - v||^2 = dist^2(x, D) + R^2 + (||x||^2 + 1)^2 / 2."""
    rows = np.pad(np.asarray(points, float), ((0, 0), (0, 1)), constant_values=1.0)
    return np.pad(half_vector(rows[:, :, None] * rows[:, None, :]), ((0, 0), (0, 1)))
