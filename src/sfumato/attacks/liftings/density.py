# SPDX-License-Identifier: Apache-2.0
"""Density attack: the point along its subspace where a clear descriptor is most likely.

Public descriptors of other photos give a density of descriptors; its modes along a subspace, on the sphere where there
is one, are the clear descriptor and the decoys. A known database strips the decoys. Without it the attacker clusters
his own public descriptors as the database was made: what looks more like a centroid than like a descriptor is a decoy.
Where decoys are generated he generates some from the database himself, and does the same.
Constraints such as non-negativity are not used: it also breaks descriptors compressed by principal components.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery
from sfumato.attacks.liftings.decoys import used_decoys
from sfumato.attacks.liftings.sphere import known_radius, least_quadratic, place, reach
from sfumato.concealment.decoy_clusters import build_decoys
from sfumato.concealment.decoys import Decoys, full_pool
from sfumato.concealment.draw_decoys import bytes_each, generate
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures, Subspaces

# --- a density of clear descriptors, fitted to public ones: a mixture of Gaussians, and what it is along a subspace
#
# Cut by a subspace each Gaussian is a Gaussian of m dimensions, so that density and modes cost next to nothing once
# the cuts are made.


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
        points = least_quadratic(self.curvature.reshape(-1, m, m), self.toward.reshape(-1, m), flat, HALVINGS)
        points = points.reshape(rows, components, m)
        bent = np.einsum("nck,ncks,ncs->nc", points, self.curvature, points, optimize=True)
        heights = self.levels + np.einsum("nck,nck->nc", points, self.toward) - bent / 2
        starts, _ = distinct(points, heights, count, apart)
        points = starts
        flat = None if lengths is None else np.repeat(lengths, count)
        for _ in range(ROUNDS):
            values = self.log_densities(points)
            shares = np.exp(values - values.max(axis=2, keepdims=True))
            shares /= shares.sum(axis=2, keepdims=True)
            curvature = np.einsum("ntc,ncks->ntks", shares, self.curvature).reshape(-1, m, m)
            toward = np.einsum("ntc,nck->ntk", shares, self.toward).reshape(-1, m)
            points = least_quadratic(curvature, toward, flat, HALVINGS).reshape(rows, count, m)
        return np.concatenate([points, starts], axis=1)


def distinct(points: Array, heights: Array, count: int, apart: float) -> tuple[Array, Array]:
    """Return of points (N, T, m) the ``count`` highest, none near a higher one, and their heights.

    Where there are fewer, the height of the others is minus infinity.
    """
    rows, left = np.arange(len(points)), heights.copy()
    picked, values = [], []
    for _ in range(count):
        best = left.argmax(axis=1)
        picked.append(points[rows, best])
        values.append(left[rows, best])
        left = np.where(np.linalg.norm(points - picked[-1][:, None], axis=2) < apart, -np.inf, left)
    return np.stack(picked, axis=1), np.stack(values, axis=1)


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


MODES = 8
"""Starting points of a row that are followed uphill."""

APART = 0.3
"""Points of unit norm nearer than this are the same mode; a mode this near to a decoy is the decoy."""

CENTROID_SHARE, MOST_CENTROIDS, LEAST_CENTROIDS = 16, 2048, 64
"""Of how many public descriptors the attacker makes one centroid, and how many at most and at least."""

AT_ONCE = 2**22
"""How many numbers the cuts of a block of rows hold."""

LAST = 1e6
"""More than any difference of log densities."""

SURE = 10.0
"""A difference of log densities at which a choice is likely right; mixtures are surer than they should be."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Densities:
    """What the attacker made of public descriptors: their density, that of centroids of them, and their size."""

    descriptors: Mixture
    centroids: Mixture | None
    size: float

    def __repr__(self) -> str:
        return f"Densities({self.descriptors!r}, {'with' if self.centroids else 'without'} centroids)"


def recover_density(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the most likely point of each subspace that is no decoy."""
    public = knowledge.public
    if public is None:
        raise InputError("the density attack needs public descriptors")
    if features.subspaces.dim == 0:
        return Recovery(features.subspaces.origin, np.ones(len(features), np.float32))
    lifting = features.recipe.lifting
    decoys = lifting.decoy_count if lifting is not None else 0
    is_generated = lifting is not None and lifting.is_generated
    guesswork = decoys > 0 and (knowledge.decoys is None or is_generated)
    rivals = _HashedRows(knowledge.decoys) if is_generated and knowledge.decoys is not None else None
    densities = _learn(_HashedRows(public), guesswork, rivals)
    radius = known_radius(features, knowledge)
    used = None if knowledge.decoys is None or guesswork or not decoys else _stripped(features, knowledge.decoys)
    step = max(1, AT_ONCE // (COMPONENTS * max(1, features.subspaces.dim) ** 2 + 1))
    blocks, confidence = [], []
    for start in range(0, len(features), step):
        block = slice(start, start + step)
        known = None if used is None else used[block]
        points, sure = _search(features.subspaces[block], densities, radius, decoys if guesswork else 0, known)
        blocks.append(points)
        confidence.append(sure)
    return Recovery(np.concatenate(blocks).astype(np.float32), np.concatenate(confidence).astype(np.float32))


def learn_densities(
    public: NDArray[np.float32], *, centroids: bool, rivals: NDArray[np.float32] | None = None, seed: int = 0
) -> Densities:
    """Fit a density to public descriptors (V, n), and with ``centroids`` one to k-means centroids of them.

    Or to decoys generated from the entries of a database, ``rivals`` (W, n).
    """
    size = float(np.median(np.linalg.norm(public, axis=1)))
    of_centroids = None
    if rivals is not None:
        return Densities(fit_mixture(public), fit_mixture(generated_like(rivals, len(public), seed)), size)
    count = min(MOST_CENTROIDS, len(public) // CENTROID_SHARE)
    if centroids and count >= LEAST_CENTROIDS:
        sample = np.random.default_rng(seed).choice(len(public), count * CENTROID_SHARE, replace=False)
        of_centroids = fit_mixture(build_decoys(public[sample], count, seed=seed).descriptors)
    return Densities(fit_mixture(public), of_centroids, size)


def generated_like(entries: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    """Return decoys (count, n) generated from entries (W, n) as a device does it, but from a seed."""
    rng = np.random.default_rng(seed)
    drawn = np.frombuffer(rng.bytes(count * bytes_each(entries.shape[1])), np.uint8).reshape(count, -1)
    decoys = Decoys(entries)
    return generate(decoys, full_pool(decoys, count), np.arange(count), drawn)[:, 0]


def _stripped(features: ConcealedFeatures, database: NDArray[np.float32]) -> Array:
    """Return the entries (N, k, n) of a known database that each subspace holds; NaN where it holds fewer."""
    rows, inside = used_decoys(features, database)
    entries = database[rows].astype(np.float64)
    entries[~inside] = np.nan
    return entries


def _search(
    subspaces: Subspaces, densities: Densities, radius: float | None, rivals: int, used: Array | None
) -> tuple[Array, Array]:
    """Return the best points (N, n) and how sure they are; ``rivals`` decoys are to be told apart by their looks."""
    cuts, apart = cut(densities.descriptors, subspaces), APART * densities.size
    modes = cuts.modes(None if radius is None else reach(subspaces, radius), MODES, apart)  # (N, T, m)
    ranks = cuts.log_density(modes)
    ranks[:, MODES:] -= LAST  # starts count only where uphill of them there is nothing of their own
    if used is not None:
        ranks = np.where(_near_decoys(subspaces, modes, used, apart), -np.inf, ranks)
    picked, values = distinct(modes, ranks, rivals + 2, apart)
    if rivals and densities.centroids is not None:
        likeness = cuts.log_density(picked) - cut(densities.centroids, subspaces).log_density(picked)
        values = np.where(np.isfinite(values), likeness, -np.inf)
        values[:, rivals + 1 :] = -np.inf  # the clear descriptor is among the modes that there must be
    best = values.argmax(axis=1)
    rows = np.arange(len(subspaces))
    rest = values.copy()
    rest[rows, best] = -np.inf
    with np.errstate(invalid="ignore"):
        lead = values[rows, best] - rest.max(axis=1)
    sure = np.where(np.isfinite(values[rows, best]), 1 - np.exp(-np.nan_to_num(lead, posinf=1e3) / SURE), 0.0)
    return place(subspaces, picked[rows, best]), np.clip(sure, 0, 1)


def _near_decoys(subspaces: Subspaces, modes: Array, used: Array, apart: float) -> NDArray[np.bool_]:
    """Tell which modes (N, T) are decoys: coefficients of both are compared, the decoys lie in the subspaces."""
    offset = used - subspaces.origin[:, None]
    inside = np.einsum("nki,nui->nuk", subspaces.basis.astype(np.float64), offset)
    distances = np.linalg.norm(modes[:, :, None] - inside[:, None], axis=3)  # (N, T, decoys), NaN where none
    near: NDArray[np.bool_] = (distances < apart).any(axis=2)
    return near


class _HashedRows:
    """Public descriptors that are equal if their numbers are, so that what was learnt from them is kept."""

    def __init__(self, public: NDArray[np.float32]) -> None:
        self.public = public
        self._digest = hashlib.blake2b(np.ascontiguousarray(public).data, digest_size=16).digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashedRows) and other._digest == self._digest


@lru_cache(maxsize=2)
def _learn(sample: _HashedRows, centroids: bool, rivals: _HashedRows | None) -> Densities:
    return learn_densities(sample.public, centroids=centroids, rivals=None if rivals is None else rivals.public)
