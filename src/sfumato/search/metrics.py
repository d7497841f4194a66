# SPDX-License-Identifier: Apache-2.0
"""What near means: the least distance of affine subspaces, or the principal angles of linear ones. In float64.

Knows arrays only. Equation numbers of "angle" are those of the Grassmannian hashing paper.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.subspace.fast import INDISTINCT, load_kernels
from sfumato.subspace.prepared import read_only

METRICS = {
    "distance": "the least distance of a point of one subspace to a point of the other; points are of dimension 0",
    "angle": "the root of the sum of the squared principal angles, in radians, of linear subspaces; points are lines",
}

AT_ONCE = 65_536
"""Pairs whose angles are computed at once."""

Floats = NDArray[np.float32]


def checked_metric(name: Any) -> str:
    """Return the name of a metric; InputError with a suggestion for an unknown one."""
    if not isinstance(name, str) or name not in METRICS:
        close = suggest(name, METRICS) if isinstance(name, str) else ""
        raise InputError(f"metric: expected one of {', '.join(METRICS)}, got {name!r:.80}{close}")
    return name


def pair_distances(
    metric: str,
    first: tuple[Floats, Floats],
    second: tuple[Floats, Floats],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the distances of pairs (i, j) of rows of two sides, each an origin (N, n) and a basis (N, m, n)."""
    if metric == "angle":
        result = np.empty(len(i))
        for start in range(0, len(i), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            result[part] = angles(first[1][i[part]], second[1][j[part]])
        return result
    return np.sqrt(squared_pairs(first, second, i, j))


def squared_pairs(
    first: tuple[Floats, Floats], second: tuple[Floats, Floats], i: NDArray[np.int64], j: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return squared least distances of pairs; what float32 rounding leaves of 0 counts as 0, as in matching."""
    if len(i) == 0:
        return np.zeros(0)
    load_kernels()
    from sfumato.subspace.pairs import exact_pairs

    sides = [read_only(part) for part in (*first, *second)]
    squared = exact_pairs(sides[0], sides[1], sides[2], sides[3], i, j)
    if first[1].shape[1] == second[1].shape[1] == 0:
        return squared
    lengths = (np.einsum("ni,ni->n", side[rows], side[rows], dtype=np.float64) for side, rows in
               ((first[0], i), (second[0], j)))  # fmt: skip
    return np.where(squared <= INDISTINCT**2 * np.maximum(*lengths), 0.0, squared)


def angles(basis0: Floats, basis1: Floats) -> NDArray[np.float64]:
    """Return dist_G (N,) of linear subspaces (N, m0, n) and (N, m1, n), pair by pair (Eq. 1 and 2).

    The angles are those of the smaller subspace, min(m0, m1) of them, from their cosines (the singular values of the
    products of the bases) and their sines (those of what is left of the smaller outside the larger): an angle near 0
    has no digits in its cosine.
    """
    small, large = (np.asarray(basis, np.float64) for basis in (basis0, basis1))
    if small.shape[1] > large.shape[1]:
        small, large = large, small
    if small.shape[1] == 0 or len(small) == 0:
        return np.zeros(len(small))
    products = np.matmul(small, large.transpose(0, 2, 1))
    left = small - np.matmul(products, large)
    if small.shape[1] == 1:
        cosine, sine = np.linalg.norm(products[:, 0], axis=1), np.linalg.norm(left[:, 0], axis=1)
        return np.asarray(np.arctan2(sine, cosine))
    cosines = np.linalg.svd(products, compute_uv=False)
    sines = np.linalg.svd(left, compute_uv=False)[:, ::-1]
    result: NDArray[np.float64] = np.sqrt((np.arctan2(sines, cosines) ** 2).sum(axis=1))
    return result
