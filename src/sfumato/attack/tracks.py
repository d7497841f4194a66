# SPDX-License-Identifier: Apache-2.0
"""What a map reveals: all observations of a mapped point are liftings of nearly the same descriptor.

The limitation the embedding paper states in its section 5: the stationary scene comes back, what passed by does not.
Knows companions, wherever they come from (companions.py).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.intersection import meet
from sfumato.attack.knowledge import Knowledge, Recovered
from sfumato.attack.neighbours import recover_nearest_projected
from sfumato.attack.sphere import known_radius, nearest_on_sphere
from sfumato.types.concealed import ConcealedFeatures, Subspaces

OUTSIDE = 0.05
"""The most a guess counts of a feature that no other image shows."""

SHARED = 1e-5
"""Curvature below which a direction counts as shared by all views: float32 leaves 1e-7 of it."""


def recover_tracks(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
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
    return Recovered(descriptors, confidence)


def scene_points(views: Iterable[Subspaces], radius: float | None = None) -> NDArray[np.float64]:
    """Return the least-squares point (N, n) of several subspaces each: row i of every view is the same scene point.

    The point minimises the sum of squared distances to all views: (k I - sum B'B) x = sum p, solved in the span of
    the bases, where it is small. Directions that all views share stay at 0. Scaled to norm ``radius`` if given.
    """
    known = list(views)
    count = len(known)
    total = np.sum([view.origin.astype(np.float64) for view in known], axis=0)
    bases = np.concatenate([view.basis.astype(np.float64) for view in known], axis=1)  # (N, k m, n)
    gram = np.matmul(bases, bases.transpose(0, 2, 1))
    values, vectors = np.linalg.eigh(count * np.eye(gram.shape[1]) - gram)
    inverse = np.where(values > SHARED, 1 / np.maximum(values, SHARED), 0.0)
    along = np.einsum("nki,ni->nk", bases, total)
    solved = np.einsum("nab,nb->na", vectors, inverse * np.einsum("nab,na->nb", vectors, along))
    points: NDArray[np.float64] = (total + np.einsum("nk,nki->ni", solved, bases)) / count
    if radius is not None:
        lengths = np.linalg.norm(points, axis=1, keepdims=True)
        points *= radius / np.where(lengths > 0, lengths, 1)
    return points
