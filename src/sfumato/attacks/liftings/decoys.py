# SPDX-License-Identifier: Apache-2.0
"""Decoy removal: with the decoy database an attacker finds the decoys that lie in a subspace, and looks elsewhere.

Decoys lie in the subspace exactly (section 3.2 of the embedding paper), up to the rounding of the archive; any other
entry of the database is far from it. Decoys that were generated lie near entries, and so do clear descriptors: there an
entry that comes nearer than most do to descriptors of other photos is taken for what a decoy was made of. What is left
is searched with a second public set, or with the database itself
where there is none. Never holds a matrix of all subspaces and all decoys.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Knowledge, Recovery
from sfumato.attacks.liftings.neighbours import AHEAD, cached_nearest, certainty
from sfumato.attacks.liftings.sphere import known_radius, nearest_on_sphere
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures, Points, Subspaces

INSIDE = 3e-3
"""An entry this near to a subspace lies in it: ten times what float16 leaves, a hundredth of chance."""

NEARLY = 0.6
"""Of generated decoys: an entry nearer to a subspace than this share of what entries are from others is suspicious."""

ENTRIES_ASKED = 256
"""So many entries are asked how far the next is, to tell what near means in a space."""

APART = 0.5
"""A guess nearer than this to a stripped decoy is taken for that decoy."""

CANDIDATES = 64
"""So many public descriptors nearest to a subspace are looked at."""


def recover_decoys(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Strip the decoys, then take the point of each subspace nearest to a public descriptor far from all of them."""
    if knowledge.decoys is None:
        raise InputError("decoy removal needs the decoy database")
    used, inside = used_decoys(features, knowledge.decoys)
    public = knowledge.decoys if knowledge.public is None else knowledge.public
    radius = known_radius(features, knowledge)
    descriptors = np.empty(features.subspaces.origin.shape, np.float32)
    confidence = np.empty(len(features), np.float32)
    distances, rows = cached_nearest(features.subspaces, public, CANDIDATES, ahead=AHEAD)
    for start in range(0, len(features), 512):
        block = slice(start, start + 512)
        entries = knowledge.decoys[used[block]].astype(np.float64)
        entries[~inside[block]] = np.inf
        picked = _pick(features.subspaces[block], public[rows[block]], entries)
        points = np.take_along_axis(public[rows[block]], picked[:, None, None], axis=1)[:, 0]
        near = np.take_along_axis(distances[block], picked[:, None], axis=1)[:, 0]
        descriptors[block] = nearest_on_sphere(features.subspaces[block], points, radius)
        confidence[block] = certainty(near)
    return Recovery(descriptors, confidence)


def used_decoys(
    features: ConcealedFeatures, database: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the entries (N, k) of a database (W, n) nearest to each subspace, and which of them lie in it, or near.

    k is the number of decoys the recipe uses, and at least 1. Near counts where the recipe says they are generated.
    """
    lifting = features.recipe.lifting
    count = max(1, lifting.decoy_count if lifting is not None else 0)
    distances, rows = cached_nearest(features.subspaces, database, count)
    is_generated = lifting is not None and lifting.is_generated
    return rows, distances <= (NEARLY * usual_gap(database) if is_generated else INSIDE)


def usual_gap(database: NDArray[np.float32]) -> float:
    """Return how far entries of a database are from the next one, in the median of some."""
    sample = database[:: max(1, len(database) // ENTRIES_ASKED)][:ENTRIES_ASKED]
    points = Points(sample)
    distances, _ = cached_nearest(points, database, 2)
    return float(np.median(distances[:, -1]))


def _decoy_share(features: ConcealedFeatures, database: NDArray[np.float32]) -> float:
    """Return the share of all decoys used that the database gives away exactly; NaN where none were used."""
    lifting = features.recipe.lifting
    if lifting is None or lifting.decoy_count == 0 or len(features) == 0:
        return float("nan")
    return float((cached_nearest(features.subspaces, database, lifting.decoy_count)[0] <= INSIDE).mean())


def _pick(subspaces: Subspaces, candidates: NDArray[np.float32], entries: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which candidate (N, K, n), nearest first, is the first whose projection is far from all ``entries``.

    ``entries`` (N, k, n) are infinite where there are none. Where all candidates are near to one, the farthest is
    taken.
    """
    basis, origin = subspaces.basis.astype(np.float64), subspaces.origin[:, None]
    found = np.isfinite(entries[:, :, 0])
    offsets = np.where(found[:, :, None], entries - origin, 0.0)
    inside = np.matmul(candidates - origin, basis.transpose(0, 2, 1))  # coordinates (N, K, m) of the projections
    decoys = np.matmul(offsets, basis.transpose(0, 2, 1))
    outside = np.maximum(np.square(offsets).sum(axis=2) - np.square(decoys).sum(axis=2), 0.0)
    squared = np.square(inside[:, :, None] - decoys[:, None]).sum(axis=3) + outside[:, None]
    to_decoys = np.sqrt(np.where(found[:, None], squared, np.inf)).min(axis=2)
    far = to_decoys > APART
    picked: NDArray[np.int64] = np.where(far.any(axis=1), far.argmax(axis=1), to_decoys.argmax(axis=1))
    return picked


# --- clusters: without the decoy database, public descriptors near a subspace gather around the points that are real
#
# A subspace with k decoys holds k + 1 real-looking points. The public descriptors nearest to it, projected on it, are
# gathered in as many groups. Which group is the clear descriptor's is decided by the rest of the image: decoys of one
# image come from one part of the database and recur, and k-means centres lie in the middle of many descriptors, so
# the group with the least company among the other features' groups is the clear one's. (The opposite rule, that
# features of one photo resemble one another, picks the decoy in three rows of four.)


Array = NDArray[np.float64]

NEIGHBOURS = 60
"""So many public descriptors are gathered for a subspace."""

ROUNDS = 8
WITNESSES = 5
"""The company of a group are the nearest groups of this many other features of the image."""


def recover_clusters(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
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
    picked = points[rows, best]
    rest = score.copy()
    rest[rows, best] = np.inf
    with np.errstate(invalid="ignore"):
        lead = np.nan_to_num(rest.min(axis=1) - score[rows, best], nan=0.0, posinf=1.0)
    confidence = np.clip(0.5 * (1 - np.exp(-8 * np.maximum(lead, 0))), 0, 1)
    return Recovery(picked.astype(np.float32), confidence.astype(np.float32))


def group_neighbours(subspaces: Subspaces, public: NDArray[np.float32], groups: int) -> tuple[Array, NDArray[np.int64]]:
    """Return the centres (N, groups, n) of the public neighbours projected on each subspace, and how many are in each.

    Lloyd's iterations in the coordinates of the subspace; the first centre is the nearest neighbour, each next one
    the neighbour farthest from all centres before it, weighed by nearness to the subspace.
    """
    distances, rows = cached_nearest(subspaces, public, NEIGHBOURS, ahead=AHEAD)
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
        block_points = flat[start * groups : (start + step) * groups]
        squared = np.maximum(
            squares[None] + np.einsum("ki,ki->k", block_points, block_points)[:, None] - 2 * block_points @ flat.T, 0
        )
        by_feature = squared.reshape(len(block_points), count, groups).min(axis=2)
        own = start + np.arange(len(block_points)) // groups
        by_feature[np.arange(len(block_points)), own] = np.inf
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
