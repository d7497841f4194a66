# SPDX-License-Identifier: Apache-2.0
"""Intersection attacks: further releases, matched partners and tracks of one descriptor.

Two independent liftings of one descriptor have it, and in general nothing else, in common. Liftings of nearly the same
descriptor do not meet, but the point of the attacked subspace nearest to all others is close to its descriptor, and
closer still where the norm is known. Matches reveal one partner per feature, a map all observations of a point: the
limitation that section 5 of the embedding paper states. The stationary scene comes back, what passed by does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions, Knowledge, Recovery, fallback
from sfumato.attacks.liftings.neighbours import recover_nearest_projected
from sfumato.attacks.liftings.sphere import known_radius, least_quadratic, nearest_on_sphere, place, reach
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Array = NDArray[np.float64]

ROUNDS = 8
"""How often companions are weighed anew by how far they are from where the others meet."""

EXACT = 1e-5
"""Distances below this are rounding: companions that near are all equally good."""

SHARED = 1e-10
"""Squared sine of an angle below which two directions count as shared: float32 turns one by 1e-7."""

AT_ONCE = 2**22
"""How many numbers of companions are held in float64."""

DOUBTFUL = 0.1
"""An expected error at which a guess is doubtful."""

OUTSIDE = 0.05
"""The most a guess counts of a feature that no other image shows."""

SHARED_BY_TRACKS = 1e-5
"""Curvature below which a direction counts as shared by all views: float32 leaves 1e-7 of it."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pull:
    """Squared distances of M companions as functions of coefficients c in their subspaces: c' H c - 2 g' c + e, each.

    That is the squared distance of the point with these coefficients to the companion. ``curvature`` H (M, m, m),
    ``toward`` g (M, m), ``offset`` e (M,), ``rows`` (M,).
    """

    curvature: Array
    toward: Array
    offset: Array
    rows: NDArray[np.int32]

    def summed(self, weights: Array, count: int) -> tuple[Array, Array]:
        """Return the weighted sums of H and g for each of ``count`` rows."""
        curvature = sum_by_row(weights[:, None, None] * self.curvature, self.rows, count)
        return curvature, sum_by_row(weights[:, None] * self.toward, self.rows, count)

    def squared_distances(self, coefficients: Array) -> Array:
        """Return the squared distance (M,) of each companion to the point of its row."""
        own = coefficients[self.rows]
        linear = np.einsum("mk,mk->m", self.toward, own)
        squared = np.einsum("mk,mkl,ml->m", own, self.curvature, own) - 2 * linear + self.offset
        positive: Array = np.maximum(squared, 0.0)
        return positive


def recover_intersection(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the point where each subspace meets the further releases of its descriptor."""
    return meet(features.subspaces, knowledge.releases, known_radius(features, knowledge))


def meet(subspaces: Subspaces, companions: Companions | None, radius: float | None = None) -> Recovery:
    """Return the point of each subspace, of norm ``radius`` if given, with the least squared distances to companions.

    Companions far from where the others meet lose weight. Confidence falls with the error that distance and angle of
    the companions let expect. Rows without companions get what the subspace alone says.
    """
    alone = fallback(subspaces)
    if companions is None or len(companions) == 0 or subspaces.dim == 0:
        return alone if subspaces.dim else Recovery(subspaces.origin, np.ones(len(subspaces), np.float32))
    pull = pull_of(subspaces, companions)
    count, met = len(subspaces), np.unique(companions.rows)
    lengths = None if radius is None else reach(subspaces, radius)
    weights = np.ones(len(companions))
    for _ in range(ROUNDS if len(met) < len(companions) else 1):
        curvature, toward = pull.summed(weights, count)
        coefficients = least_quadratic(curvature, toward, lengths)
        squared = pull.squared_distances(coefficients)
        weights = _weigh(squared, companions.rows, count)
    guesses, confidence = alone.descriptors.copy(), np.zeros(count, np.float32)
    guesses[met] = place(subspaces, coefficients)[met]
    spread = _noise(squared, weights, companions.rows, subspaces)
    confidence[met] = _confidence(curvature[met], spread[met])
    return Recovery(guesses, confidence)


def pull_of(subspaces: Subspaces, companions: Companions) -> Pull:
    """Return what the companions say; H = R R' and g = R (q - p), R the basis less its part in the companion's."""
    m, total = subspaces.dim, len(companions)
    curvature, toward, offset = np.empty((total, m, m)), np.empty((total, m)), np.empty(total)
    step = max(1, AT_ONCE // (max(m, companions.subspaces.dim, 1) * subspaces.ambient_dim))
    for start in range(0, total, step):
        block = slice(start, min(start + step, total))
        rows = companions.rows[block]
        other = companions.subspaces.basis[block].astype(np.float64)
        apart = companions.subspaces.origin[block].astype(np.float64) - subspaces.origin[rows]
        outside = subspaces.basis[rows].astype(np.float64)
        for _ in range(2):  # the second pass removes what rounding left of the first
            outside = outside - np.matmul(np.matmul(outside, other.transpose(0, 2, 1)), other)
            apart = apart - np.einsum("mk,mki->mi", np.einsum("mki,mi->mk", other, apart), other)
        curvature[block] = np.matmul(outside, outside.transpose(0, 2, 1))
        toward[block] = np.einsum("mki,mi->mk", outside, apart)
        offset[block] = np.einsum("mi,mi->m", apart, apart)
    return Pull(curvature, toward, offset, companions.rows)


def sum_by_row(values: Array, rows: NDArray[np.int32], count: int) -> Array:
    """Return the sums (count, ...) of the values (M, ...) that belong to each row."""
    sums = np.zeros((count, *values.shape[1:]))
    if len(rows):
        order = np.argsort(rows, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(rows[order]) > 0])
        sums[rows[order[starts]]] = np.add.reduceat(values[order], starts, axis=0)
    return sums


def _weigh(squared: Array, rows: NDArray[np.int32], count: int) -> Array:
    """Return Cauchy weights of companions, in units of the median distance of their row."""
    scale = np.full(count, EXACT)
    order = np.lexsort((squared, rows))
    starts = np.flatnonzero(np.r_[True, np.diff(rows[order]) > 0])
    sizes = np.diff(np.r_[starts, len(rows)])
    middle = np.sqrt(squared[order[starts + (sizes - 1) // 2]])
    scale[rows[order[starts]]] = np.maximum(middle, EXACT)
    weights: Array = 1 / (1 + squared / scale[rows] ** 2)
    return weights


def _noise(squared: Array, weights: Array, rows: NDArray[np.int32], subspaces: Subspaces) -> Array:
    """Return the squared deviation (N,) a dimension that the distances of the companions show."""
    total, share = (sum_by_row(values, rows, len(subspaces)) for values in (weights * squared, weights))
    free = max(1, subspaces.ambient_dim - 2 * subspaces.dim)
    deviation: Array = total / np.where(share > 0, share, 1) / free
    return deviation


def _confidence(curvature: Array, noise: Array) -> NDArray[np.float32]:
    """Return how sure the meeting points are, from their expected error sqrt(noise tr H^-1)."""
    eigenvalues = np.linalg.eigvalsh(curvature)
    expected = np.sqrt((noise + EXACT**2) * (1 / np.maximum(eigenvalues, SHARED)).sum(axis=1))
    sure: NDArray[np.float32] = np.exp(-0.5 * (expected / DOUBTFUL) ** 2).astype(np.float32)
    return sure


# --- matches and maps


def recover_reveal(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the point of each subspace closest to its matched partner."""
    return meet(features.subspaces, knowledge.partners, known_radius(features, knowledge))


def recover_tracks(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the point of each subspace nearest to the other observations of its track.

    A feature outside any track keeps what one image alone gives: the point nearest to a public descriptor if some are
    known, with little confidence.
    """
    radius = known_radius(features, knowledge)
    met = meet(features.subspaces, knowledge.tracks, radius)
    if knowledge.public is None or len(knowledge.public) == 0:
        return met
    tracked = np.zeros(len(features), bool)
    if knowledge.tracks is not None:
        tracked[knowledge.tracks.rows] = True
    if tracked.all():
        return met
    alone = recover_nearest_projected(features, knowledge)
    descriptors, confidence = met.descriptors.copy(), met.confidence.copy()
    descriptors[~tracked] = nearest_on_sphere(features.subspaces, alone.descriptors, radius)[~tracked]
    confidence[~tracked] = OUTSIDE * alone.confidence[~tracked]
    return Recovery(descriptors, confidence)


def scene_points(views: Iterable[Subspaces], radius: float | None = None) -> NDArray[np.float64]:
    """Return the least-squares point (N, n) of several subspaces each: row i of every view is the same scene point.

    The point minimises the sum of squared distances to all views: (k I - sum B'B) x = sum p, solved in the span of
    the bases, where it is small. Directions that all views share stay at 0. Scaled to norm ``radius`` if given.
    """
    subspaces = list(views)
    count = len(subspaces)
    total = np.sum([view.origin.astype(np.float64) for view in subspaces], axis=0)
    bases = np.concatenate([view.basis.astype(np.float64) for view in subspaces], axis=1)  # (N, k m, n)
    gram = np.matmul(bases, bases.transpose(0, 2, 1))
    values, vectors = np.linalg.eigh(count * np.eye(gram.shape[1]) - gram)
    inverse = np.where(values > SHARED_BY_TRACKS, 1 / np.maximum(values, SHARED_BY_TRACKS), 0.0)
    along = np.einsum("nki,ni->nk", bases, total)
    solved = np.einsum("nab,nb->na", vectors, inverse * np.einsum("nab,na->nb", vectors, along))
    points: NDArray[np.float64] = (total + np.einsum("nk,nki->ni", solved, bases)) / count
    if radius is not None:
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        points *= radius / np.where(lengths > 0, lengths, 1)
    return points
