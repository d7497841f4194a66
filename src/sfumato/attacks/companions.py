# SPDX-License-Identifier: Apache-2.0
"""Companions of concealed features: a second release, matches, or tracks of a COLMAP model.

All of it is what a server has: keypoints, matches, tracks and archives, never a clear descriptor.
"""

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Companions
from sfumato.errors import InputError
from sfumato.geometry.model import Model, read_model, refuse_other_keypoints
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.scene import Matches

Archive = Mapping[str, ConcealedFeatures]

SAME_KEYPOINT_PX = 0.01
SAME_ANGLE = 0.1


def companions_from_archive(features: ConcealedFeatures, other: ConcealedFeatures) -> Companions:
    """Return the companions that the same image of a second archive gives: rows with the same keypoint.

    Where the rows differ in order or number, they are paired by position, scale and angle of the keypoints.
    """
    _refuse_other_space(features.subspaces, other.subspaces)
    if np.array_equal(features.keypoints, other.keypoints):
        rows: NDArray[np.intp] = np.arange(len(features))
        return Companions(rows=rows.astype(np.int32), subspaces=other.subspaces)
    rows, others = _same_keypoints(features.keypoints, other.keypoints)
    return Companions(rows=rows.astype(np.int32), subspaces=other.subspaces[others])


def companions_from_matches(
    name: str, matches: Mapping[tuple[str, str], Matches], archive: Archive, *, nearest_only: bool = False
) -> Companions:
    """Return the companions of the image ``name`` in all images it was matched with.

    With ``nearest_only`` each row keeps the partner at the least distance, as ``Knowledge.partners`` wants it.
    """
    rows, subspaces, distances = [], [], []
    for first, second in matches:
        if name in (first, second) and first != second:
            pair = matches[first, second]
            side = 0 if name == first else 1
            other = archive[second if name == first else first]
            rows.append(pair.indices[:, side])
            subspaces.append(other.subspaces[pair.indices[:, 1 - side]])
            distances.append(pair.distances)
    if not rows:
        return no_companions(archive[name])
    all_rows, joined = np.concatenate(rows), _join(subspaces)
    if nearest_only:
        order = np.lexsort((np.concatenate(distances), all_rows))
        nearest = order[np.r_[True, np.diff(all_rows[order]) > 0]] if len(order) else order
        all_rows, joined = all_rows[nearest], joined[nearest]
    return Companions(rows=all_rows.astype(np.int32), subspaces=joined)


def companions_from_model(name: str, model: Model | str | os.PathLike[str], archive: Archive) -> Companions:
    """Return the other observations of every track of a COLMAP model that the image ``name`` has part in.

    ``model`` may be its folder, ``archive`` is what it was made from: point2D row i is feature row i.

    Raises InputError for an image that is not in the model, or has other keypoints there.
    """
    views = model if isinstance(model, Model) else read_model(model)
    if name not in views:
        raise InputError(f"image {name!r:.80} is not in the model, which has {len(views.names)} images")
    features = archive[name]
    refuse_other_keypoints(name, views, features.keypoints)
    sight = views.sight(name)
    row_of: NDArray[np.int64] = np.full(len(views.landmarks), -1, np.int64)
    row_of[sight.landmarks] = sight.keypoints
    rows, subspaces = [], []
    for other in views.names:
        view = views.sight(other)
        shared = (row_of[view.landmarks] >= 0) & (other != name)
        if shared.any():
            refuse_other_keypoints(other, views, archive[other].keypoints)
            rows.append(row_of[view.landmarks[shared]])
            subspaces.append(archive[other].subspaces[view.keypoints[shared]])
    if not rows:
        return no_companions(features)
    return Companions(rows=np.concatenate(rows).astype(np.int32), subspaces=_join(subspaces))


def no_companions(features: ConcealedFeatures) -> Companions:
    """Return companions of no row."""
    return Companions(rows=np.zeros(0, np.int32), subspaces=features.subspaces[:0])


def _same_keypoints(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of equal keypoints (x, y, scale, angle) of both sides; one that stands twice counts once."""
    units = np.array([SAME_KEYPOINT_PX, SAME_KEYPOINT_PX, SAME_KEYPOINT_PX, SAME_ANGLE])
    row_of: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(np.rint(second / units).astype(np.int64).tolist()):
        row_of.setdefault(tuple(key), row)
    keys = [tuple(key) for key in np.rint(first / units).astype(np.int64).tolist()]
    rows = [row for row, key in enumerate(keys) if key in row_of]
    return np.array(rows, np.intp), np.array([row_of[keys[row]] for row in rows], np.intp)


def _join(parts: list[Subspaces]) -> Subspaces:
    dims = {(part.dim, part.ambient_dim) for part in parts}
    if len(dims) > 1:
        raise InputError(f"companions of different dimensions cannot be joined: {sorted(dims)}")
    return Subspaces(np.concatenate([part.origin for part in parts]), np.concatenate([part.basis for part in parts]))


def _refuse_other_space(first: Subspaces, second: Subspaces) -> None:
    if first.ambient_dim != second.ambient_dim:
        raise InputError(
            f"the releases have {first.ambient_dim} and {second.ambient_dim} dimensions: not the same descriptors"
        )
