# SPDX-License-Identifier: Apache-2.0
"""Sphere that clear descriptors lie on, and where it cuts a subspace.

Nearly all descriptors are scaled to unit norm, which an attacker knows: of a plane only a circle is left. Knows norms
and quadratic forms, no attack.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Array = NDArray[np.float64]

UNIT_NORM = ("sift", "rootsift", "hardnet", "sosnet", "hynet", "tfeat", "hardtfeat", "superpoint", "ninja")
"""Descriptors, and encodings of them, that are scaled to unit norm."""

SAME_NORM = 1e-3
HALVINGS = 60


def known_radius(features: ConcealedFeatures, knowledge: Knowledge) -> float | None:
    """Return the norm all clear descriptors have, as far as the attacker can tell; None where they differ.

    Public descriptors or decoys show it; without them, the kind of descriptor says it.
    """
    for name in ("public", "decoys"):
        sample = getattr(knowledge, name)
        if sample is not None and len(sample):
            norms = np.sqrt(np.einsum("vi,vi->v", sample, sample))
            middle = float(np.median(norms))
            return middle if np.abs(norms - middle).max() <= SAME_NORM * middle else None
    return 1.0 if features.extractor.name.split("-")[0] in UNIT_NORM else None


def reach(subspaces: Subspaces, radius: float) -> Array:
    """Return the radius (N,) of the sphere's cut with each subspace, around its origin; 0 where they do not meet."""
    length = np.einsum("ni,ni->n", *[subspaces.origin.astype(np.float64)] * 2)
    cut: Array = np.sqrt(np.maximum(radius**2 - length, 0.0))
    return cut


def place(subspaces: Subspaces, coefficients: Array) -> Array:
    """Return the points (N, n) of subspaces with these coefficients (N, m)."""
    points: Array = subspaces.origin + np.einsum("nk,nki->ni", coefficients, subspaces.basis.astype(np.float64))
    return points


def nearest_on_sphere(subspaces: Subspaces, points: NDArray[np.floating], radius: float | None) -> Array:
    """Return the point (N, n) of each subspace, on the sphere if there is one, nearest to ``points`` (N, n)."""
    basis = subspaces.basis.astype(np.float64)
    along = np.einsum("nki,ni->nk", basis, points.astype(np.float64) - subspaces.origin)
    if radius is None:
        return place(subspaces, along)
    length = np.linalg.norm(along, axis=1)
    return place(subspaces, along * (reach(subspaces, radius) / np.where(length > 0, length, 1))[:, None])


def least_quadratic(curvature: Array, pull: Array, lengths: Array | None, halvings: int = HALVINGS) -> Array:
    """Minimise c' H c - 2 g' c over vectors c (N, m) of the given lengths (N,), or over all where there are none.

    ``curvature`` H (N, m, m), positive semidefinite; ``pull`` g (N, m). On a sphere the minimum is (H + t I)^-1 g for
    the one t above minus the least eigenvalue that gives the length: found by halving. Directions without curvature
    stay 0 where nothing fixes them.
    """
    eigenvalues, vectors = np.linalg.eigh(curvature)
    turned = np.einsum("nab,na->nb", vectors, pull)
    if lengths is None:
        solid = eigenvalues > 1e-12 * np.maximum(eigenvalues[:, -1:], 1e-300)
        solution = np.where(solid, turned / np.where(solid, eigenvalues, 1), 0.0)
    else:
        solution = _on_sphere(eigenvalues, turned, lengths, halvings)
    result: Array = np.einsum("nab,nb->na", vectors, solution)
    return result


def _on_sphere(eigenvalues: Array, pull: Array, lengths: Array, halvings: int) -> Array:
    least, pulled = eigenvalues[:, 0], np.linalg.norm(pull, axis=1)
    low = -least
    high = low + pulled / np.maximum(lengths, 1e-12) + 1e-300  # there the solution is no longer than wanted
    for _ in range(halvings):
        middle = (low + high) / 2
        shift = np.maximum(eigenvalues + middle[:, None], 1e-300)
        too_long = np.linalg.norm(pull / shift, axis=1) > lengths
        low, high = np.where(too_long, middle, low), np.where(too_long, high, middle)
    solution: Array = pull / np.maximum(eigenvalues + high[:, None], 1e-300)
    squared = np.einsum("nk,nk->n", solution, solution)
    short = squared < lengths**2 * (1 - 1e-6)  # nothing pulls along the first axis: the length alone says how far
    rest = np.maximum(lengths**2 - squared + solution[:, 0] ** 2, 0.0)
    solution[:, 0] = np.where(short, np.where(solution[:, 0] < 0, -1, 1) * np.sqrt(rest), solution[:, 0])
    reached = np.linalg.norm(solution, axis=1)
    solution *= (lengths / np.where(reached > 0, reached, 1))[:, None]
    return solution
