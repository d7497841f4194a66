# SPDX-License-Identifier: Apache-2.0
"""Decoy removal: who knows the decoy database finds the decoys that lie in a subspace, and looks elsewhere.

Decoys lie in the subspace exactly (section 3.2 of the embedding paper), up to the rounding of the archive; any other
entry of the database is far from it. Decoys that were generated lie near entries, and so do clear descriptors: there an
entry that comes nearer than most do to descriptors of other photos is taken for what a decoy was made of. What is left
is searched with a second public set, or with the database itself
where there is none. Never holds a matrix of all subspaces and all decoys.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.held import AHEAD, nearest_held
from sfumato.attack.knowledge import Knowledge, Recovered
from sfumato.attack.neighbours import certainty
from sfumato.attack.sphere import known_radius, nearest_on_sphere
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures, Subspaces, as_points

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


def recover_decoys(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Strip the decoys, then take the point of each subspace nearest to a public descriptor far from all of them."""
    if knowledge.decoys is None:
        raise InputError("decoy removal needs the decoy database")
    used, found = used_decoys(features, knowledge.decoys)
    public = knowledge.decoys if knowledge.public is None else knowledge.public
    radius = known_radius(features, knowledge)
    descriptors = np.empty(features.subspaces.origin.shape, np.float32)
    confidence = np.empty(len(features), np.float32)
    distances, rows = nearest_held(features.subspaces, public, CANDIDATES, ahead=AHEAD)
    for start in range(0, len(features), 512):
        block = slice(start, start + 512)
        entries = knowledge.decoys[used[block]].astype(np.float64)
        entries[~found[block]] = np.inf
        chosen = _pick(features.subspaces[block], public[rows[block]], entries)
        points = np.take_along_axis(public[rows[block]], chosen[:, None, None], axis=1)[:, 0]
        near = np.take_along_axis(distances[block], chosen[:, None], axis=1)[:, 0]
        descriptors[block] = nearest_on_sphere(features.subspaces[block], points, radius)
        confidence[block] = certainty(near)
    return Recovered(descriptors, confidence)


def used_decoys(
    features: ConcealedFeatures, database: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the entries (N, k) of a database (W, n) nearest to each subspace, and which of them lie in it, or near.

    k is the number of decoys the recipe uses, and at least 1. Near counts where the recipe says they are generated.
    """
    lifting = features.recipe.lifting
    count = max(1, lifting.decoy_count if lifting is not None else 0)
    distances, rows = nearest_held(features.subspaces, database, count)
    is_generated = lifting is not None and lifting.is_generated
    return rows, distances <= (NEARLY * usual_gap(database) if is_generated else INSIDE)


def usual_gap(database: NDArray[np.float32]) -> float:
    """Return how far entries of a database are from the next one, in the median of some."""
    some = database[:: max(1, len(database) // ENTRIES_ASKED)][:ENTRIES_ASKED]
    points = as_points(some)
    distances, _ = nearest_held(points, database, 2)
    return float(np.median(distances[:, -1]))


def share_found(features: ConcealedFeatures, database: NDArray[np.float32]) -> float:
    """Return the share of all decoys used that the database gives away exactly; NaN where none were used."""
    lifting = features.recipe.lifting
    if lifting is None or lifting.decoy_count == 0 or len(features) == 0:
        return float("nan")
    return float((nearest_held(features.subspaces, database, lifting.decoy_count)[0] <= INSIDE).mean())


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
    chosen: NDArray[np.int64] = np.where(far.any(axis=1), far.argmax(axis=1), to_decoys.argmax(axis=1))
    return chosen
