# SPDX-License-Identifier: Apache-2.0
"""Clusters: without the decoy database, public descriptors near a subspace gather around the points that are real.

A subspace with k decoys holds k + 1 real-looking points. The public descriptors nearest to it, projected on it, are
gathered in as many groups. Which group is the clear descriptor's is decided by the rest of the image: decoys of one
image come from one part of the database and recur, and k-means centres lie in the middle of many descriptors, so the
group with the least company among the other features' groups is the clear one's. (The opposite rule, that features of
one photo resemble one another, picks the decoy in three rows of four.) Knows public descriptors, no decoy.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.held import AHEAD, nearest_held
from sfumato.attack.knowledge import Knowledge, Recovered
from sfumato.attack.sphere import known_radius, nearest_on_sphere
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Array = NDArray[np.float64]

NEIGHBOURS = 60
"""So many public descriptors are gathered for a subspace."""

ROUNDS = 8
WITNESSES = 5
"""The company of a group are the nearest groups of so many other features of the image."""


def recover_clusters(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Gather the public neighbours of each subspace in groups, and take the one least like the rest of the image."""
    if knowledge.public is None:
        raise InputError("the clusters attack needs public descriptors")
    lifting = features.recipe.lifting
    groups = 1 + (lifting.decoy_count if lifting is not None else 0)
    subspaces = features.subspaces
    centres, sizes = group_neighbours(subspaces, knowledge.public, groups)
    radius = known_radius(features, knowledge)
    points = np.stack([nearest_on_sphere(subspaces, centres[:, g], radius) for g in range(groups)], axis=1)
    score = np.where(sizes > 0, -company(points), np.inf)
    best = score.argmin(axis=1)
    rows = np.arange(len(features))
    chosen = points[rows, best]
    rest = score.copy()
    rest[rows, best] = np.inf
    with np.errstate(invalid="ignore"):
        lead = np.nan_to_num(rest.min(axis=1) - score[rows, best], nan=0.0, posinf=1.0)
    confidence = np.clip(0.5 * (1 - np.exp(-8 * np.maximum(lead, 0))), 0, 1)
    return Recovered(chosen.astype(np.float32), confidence.astype(np.float32))


def group_neighbours(subspaces: Subspaces, public: NDArray[np.float32], groups: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the centres (N, groups, n) of the public neighbours projected on each subspace, and how many are in each.

    Lloyd's iterations in the coordinates of the subspace; the first centre is the nearest neighbour, each next one
    the neighbour farthest from all centres before it, weighed by nearness to the subspace.
    """
    distances, rows = nearest_held(subspaces, public, NEIGHBOURS, ahead=AHEAD)
    count, several = rows.shape
    basis = subspaces.basis.astype(np.float64)
    inside = np.empty((count, several, subspaces.dim))
    for start in range(0, count, 256):
        block = slice(start, start + 256)
        inside[block] = np.einsum("nvi,nki->nvk", public[rows[block]] - subspaces.origin[block, None], basis[block])
    weights = np.exp(-0.5 * ((distances.astype(np.float64) - distances[:, :1]) / 0.1) ** 2)
    centres = _spread_starts(inside, weights, groups)
    for _ in range(ROUNDS):
        member = _nearest_centre(inside, centres)
        for g in range(groups):
            share = weights * (member == g)
            total = share.sum(axis=1, keepdims=True)
            centres[:, g] = np.where(
                total > 0, np.einsum("nv,nvk->nk", share, inside) / np.where(total > 0, total, 1), centres[:, g]
            )
    member = _nearest_centre(inside, centres)
    sizes = np.stack([(member == g).sum(axis=1) for g in range(groups)], axis=1)
    return subspaces.origin[:, None] + np.einsum("ngk,nki->ngi", centres, basis), sizes


def company(points: Array) -> Array:
    """Return for groups (N, g, n) the mean distance to the nearest group of the ``WITNESSES`` most similar features."""
    count, groups, n = points.shape
    result = np.zeros((count, groups))
    if count < 2:
        return result
    flat = np.ascontiguousarray(points.reshape(-1, n), np.float32)
    squares = np.einsum("ki,ki->k", flat, flat)
    witnesses = min(WITNESSES, count - 1)
    step = max(1, 2**22 // len(flat))
    for start in range(0, count, step):
        some = flat[start * groups : (start + step) * groups]
        squared = np.maximum(squares[None] + np.einsum("ki,ki->k", some, some)[:, None] - 2 * some @ flat.T, 0)
        by_feature = squared.reshape(len(some), count, groups).min(axis=2)
        own = start + np.arange(len(some)) // groups
        by_feature[np.arange(len(some)), own] = np.inf
        nearest = np.sqrt(np.partition(by_feature, witnesses - 1, axis=1)[:, :witnesses])
        result[start : start + step] = nearest.mean(axis=1).reshape(-1, groups)
    return result


def _spread_starts(inside: Array, weights: Array, groups: int) -> Array:
    count, _, m = inside.shape
    centres = np.empty((count, groups, m))
    centres[:, 0] = inside[:, 0]
    for g in range(1, groups):
        gaps = np.linalg.norm(inside[:, :, None] - centres[:, None, :g], axis=3).min(axis=2)
        centres[:, g] = inside[np.arange(count), (gaps * weights).argmax(axis=1)]
    return centres


def _nearest_centre(inside: Array, centres: Array) -> NDArray[np.int64]:
    member: NDArray[np.int64] = np.linalg.norm(inside[:, :, None] - centres[:, None], axis=3).argmin(axis=2)
    return member
