# SPDX-License-Identifier: Apache-2.0
"""A density of clear descriptors, fitted to public ones: a mixture of Gaussians, and what it is along a subspace.

Cut by a subspace each Gaussian is a Gaussian of m dimensions, so that density and modes cost next to nothing once the
cuts are made. Knows arrays and subspaces, no attack.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.sphere import least_quadratic
from sfumato.errors import InputError
from sfumato.types.concealed import Subspaces

Array = NDArray[np.float64]

COMPONENTS = 128
ROWS_A_COMPONENT = 250
"""The least descriptors a component stands for: with fewer its covariance says nothing."""

BORROWED = 20
"""How many descriptors' worth of the common covariance every component borrows."""

FLOOR = 1e-4
"""The least variance, of unit-norm descriptors."""

ROUNDS = 6
"""Steps uphill."""

HALVINGS = 30
"""Of the search for a point on a sphere, which is a start, or one of several steps."""

WITHIN_SHARE = 0.3
"""What of the common covariance a component is expected to have."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Mixture:
    """K Gaussians: ``means`` (K, n), ``precisions`` (K, n, n), ``levels`` (K,) log weight and normalisation."""

    means: Array
    precisions: Array
    levels: Array

    def __len__(self) -> int:
        return len(self.means)

    def __repr__(self) -> str:
        return f"Mixture({len(self)} components in R^{self.means.shape[1]})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Cuts:
    """A mixture along N subspaces, as functions of coefficients c: levels - (c' H c - 2 g' c + e) / 2.

    ``curvature`` H (N, K, m, m), ``toward`` g (N, K, m), ``levels`` (N, K) with e / 2 taken off.
    """

    curvature: Array
    toward: Array
    levels: Array

    def log_densities(self, coefficients: Array) -> Array:
        """Return the logarithm of each component (N, T, K) at coefficients (N, T, m)."""
        bent = np.einsum("ntk,ncks,nts->ntc", coefficients, self.curvature, coefficients, optimize=True)
        pulled = np.einsum("ntk,nck->ntc", coefficients, self.toward)
        values: Array = self.levels[:, None] + pulled - bent / 2
        return values

    def log_density(self, coefficients: Array) -> Array:
        """Return the logarithm of the density (N, T) at coefficients (N, T, m)."""
        values = self.log_densities(coefficients)
        highest = values.max(axis=2)
        density: Array = highest + np.log(np.exp(values - highest[:, :, None]).sum(axis=2))
        return density

    def modes(self, lengths: Array | None, count: int, apart: float) -> Array:
        """Return coefficients (N, 2 count, m) of likely points: the modes of single components, and uphill of them.

        ``lengths`` (N,) are those of c where the density is wanted on a sphere. Uphill is by expectation and
        maximisation: each step is the best point for the components as they share in the last one. Where a higher mode
        swallows a start, the start is still there.
        """
        rows, components, m = self.toward.shape
        flat = None if lengths is None else np.repeat(lengths, components)
        found = least_quadratic(self.curvature.reshape(-1, m, m), self.toward.reshape(-1, m), flat, HALVINGS)
        found = found.reshape(rows, components, m)
        bent = np.einsum("nck,ncks,ncs->nc", found, self.curvature, found, optimize=True)
        heights = self.levels + np.einsum("nck,nck->nc", found, self.toward) - bent / 2
        starts, _ = distinct(found, heights, count, apart)
        found = starts
        flat = None if lengths is None else np.repeat(lengths, count)
        for _ in range(ROUNDS):
            values = self.log_densities(found)
            shares = np.exp(values - values.max(axis=2, keepdims=True))
            shares /= shares.sum(axis=2, keepdims=True)
            curvature = np.einsum("ntc,ncks->ntks", shares, self.curvature).reshape(-1, m, m)
            toward = np.einsum("ntc,nck->ntk", shares, self.toward).reshape(-1, m)
            found = least_quadratic(curvature, toward, flat, HALVINGS).reshape(rows, count, m)
        return np.concatenate([found, starts], axis=1)


def distinct(points: Array, heights: Array, count: int, apart: float) -> tuple[Array, Array]:
    """Return of points (N, T, m) the ``count`` highest, none near a higher one, and their heights.

    Where there are fewer, the height of the others is minus infinity.
    """
    rows, left = np.arange(len(points)), heights.copy()
    chosen, values = [], []
    for _ in range(count):
        best = left.argmax(axis=1)
        chosen.append(points[rows, best])
        values.append(left[rows, best])
        left = np.where(np.linalg.norm(points - chosen[-1][:, None], axis=2) < apart, -np.inf, left)
    return np.stack(chosen, axis=1), np.stack(values, axis=1)


def fit_mixture(descriptors: NDArray[np.floating], components: int = COMPONENTS, seed: int = 0) -> Mixture:
    """Fit a mixture to descriptors (V, n): k-means, then the covariance of every cluster, drawn to the common one."""
    rows = np.ascontiguousarray(descriptors, np.float32)
    if len(rows) < 2:
        raise InputError(f"public: a density needs many public descriptors, there are {len(rows)}")
    import faiss

    count = int(np.clip(len(rows) // ROWS_A_COMPONENT, 1, components))
    clusters = faiss.Kmeans(
        rows.shape[1], count, niter=10, seed=seed + 1, min_points_per_centroid=1, max_points_per_centroid=len(rows)
    )
    clusters.train(rows)
    owner = clusters.index.search(rows, 1)[1][:, 0]
    common = np.cov(rows.T.astype(np.float64))
    floor = FLOOR * np.einsum("vi,vi->v", rows, rows).mean() * np.eye(rows.shape[1])
    means, precisions, levels = [], [], []
    for number in range(count):
        members = rows[owner == number].astype(np.float64)
        if len(members):
            mean = members.mean(axis=0)
            spread = (members - mean).T @ (members - mean) + BORROWED * WITHIN_SHARE * common
            precision = np.linalg.inv(spread / (len(members) + BORROWED) + floor)
            means.append(mean)
            precisions.append(precision)
            levels.append(np.log(len(members) / len(rows)) + np.linalg.slogdet(precision)[1] / 2)
    return Mixture(np.array(means), np.array(precisions), np.array(levels))


def cut(mixture: Mixture, subspaces: Subspaces) -> Cuts:
    """Return the mixture along each subspace."""
    (count, m), components = subspaces.basis.shape[:2], len(mixture)
    origin, basis = subspaces.origin.astype(np.float64), subspaces.basis.astype(np.float64)
    curvature, toward = np.empty((count, components, m, m)), np.empty((count, components, m))
    levels = np.empty((count, components))
    for number, (mean, precision, level) in enumerate(_components(mixture)):
        offset = mean - origin
        weighed = basis.reshape(-1, basis.shape[2]) @ precision
        weighed = weighed.reshape(basis.shape)
        curvature[:, number] = np.matmul(weighed, basis.transpose(0, 2, 1))
        toward[:, number] = np.einsum("nki,ni->nk", weighed, offset)
        levels[:, number] = level - np.einsum("ni,ni->n", offset @ precision, offset) / 2
    return Cuts(curvature, toward, levels)


def _components(mixture: Mixture) -> Iterator[tuple[Array, Array, float]]:
    for mean, precision, level in zip(mixture.means, mixture.precisions, mixture.levels, strict=True):
        yield mean, precision, float(level)
