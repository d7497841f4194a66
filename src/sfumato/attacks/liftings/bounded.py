# SPDX-License-Identifier: Apache-2.0
"""Bounded outputs: of the points of unit norm in a subspace, the one whose largest coordinate is least.

A network that ends in a tanh saturates: many coordinates are near the bound, so that, scaled to unit norm, the clear
descriptor has an unusually small maximum norm. Any mixture with random or other directions has a larger one. In planes
the circle of unit norm is scanned; beyond, many starts descend on the sphere.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery, fallback
from sfumato.attacks.liftings.decoys import used_decoys
from sfumato.attacks.liftings.sphere import known_radius, place, reach
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Array = NDArray[np.float64]

ROOM = 8
"""Valleys kept for a subspace."""

STARTS = 12
"""Random starts a dimension, beyond planes."""

APART = 0.2
"""Points of one subspace nearer than this are the same guess."""


def recover_bounded(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Return the point of least maximum norm of each subspace on the sphere; known decoys are passed over."""
    guess = fallback(features.subspaces)
    radius = known_radius(features, knowledge) or 1.0
    descriptors, confidence = guess.descriptors.copy(), guess.confidence.copy()
    meets = reach(features.subspaces, radius) > 0
    if features.subspaces.dim == 0 or not meets.any():
        return guess
    for start in range(0, len(features), 256):
        block = slice(start, start + 256)
        subspaces = features.subspaces[block]
        coefficients, values = local_minima(subspaces, reach(subspaces, radius))
        if knowledge.decoys is not None and len(knowledge.decoys):
            values = values + 10 * _near_decoys(features, block, coefficients, knowledge.decoys)
        points, sure = _choose(subspaces, coefficients, values)
        keep = meets[block]
        descriptors[block][keep], confidence[block][keep] = points[keep], sure[keep]
    return Recovery(descriptors, confidence)


def local_minima(subspaces: Subspaces, lengths: Array) -> tuple[Array, Array]:
    """Return coefficients (N, T, m) of the given lengths (N,) at local minima of the maximum norm, and that norm.

    Where there are fewer than T, the norm of the others is infinite.
    """

    from sfumato.attacks.liftings.kernels import least_in_planes, least_on_spheres

    origin, basis = (rows.astype(np.float64, order="C") for rows in (subspaces.origin, subspaces.basis))
    if subspaces.dim == 2:
        minima: tuple[Array, Array] = least_in_planes(origin, basis, lengths, ROOM)
        return minima
    starts = np.random.default_rng(0).normal(size=(STARTS * subspaces.dim, subspaces.dim))
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    minima = least_on_spheres(origin, basis, lengths, starts, ROOM)
    return minima


def _near_decoys(
    features: ConcealedFeatures, block: slice, coefficients: Array, database: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Tell which guesses (N, T) are decoys that the database holds."""
    part = ConcealedFeatures(features.keypoints[block], features.subspaces[block], features.recipe, features.extractor)
    rows, inside = used_decoys(part, database)
    basis = part.subspaces.basis.astype(np.float64)
    at = np.einsum("nki,nui->nuk", basis, database[rows] - part.subspaces.origin[:, None])
    gaps = np.linalg.norm(coefficients[:, :, None] - at[:, None], axis=3)
    near: NDArray[np.bool_] = ((gaps < APART) & inside[:, None]).any(axis=2)
    return near


def _choose(subspaces: Subspaces, coefficients: Array, values: Array) -> tuple[NDArray[np.float32], Array]:
    """Return the point of least value (N, n), and how much lower than the next different one it is, from 0 to 1."""
    rows, best = np.arange(len(values)), values.argmin(axis=1)
    best_coefficients = coefficients[rows, best]
    others = np.linalg.norm(coefficients - best_coefficients[:, None], axis=2) > APART
    second = np.where(others, values, np.inf).min(axis=1)
    least = values[rows, best]
    lead = np.minimum(second / np.maximum(least, 1e-12) - 1, 10.0)
    return place(subspaces, best_coefficients).astype(np.float32), 1 - np.exp(-lead / 0.1)
