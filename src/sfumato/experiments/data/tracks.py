# SPDX-License-Identifier: Apache-2.0
"""What photos show of one mapped point: descriptor pairs and labelled patches from the tracks of a COLMAP model.

Needs the photos as well as the model, so it is for their owner: descriptors and patches are clear. A model holds only
where keypoints are; scale and direction come from the features that are found again at these places in the photos.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.features.results import Progress, identity
from sfumato.geometry.model import Model, read_model
from sfumato.images.folders import is_inside, need_folder
from sfumato.images.read import read_image, to_grey
from sfumato.training.pairs import DescriptorPairs, pair_rows
from sfumato.training.patch_sets import PatchSet
from sfumato.training.views import cut_affine, keypoint_frames
from sfumato.types.clear import Features, Image

NEAR_PX = 1.0
"""How far a feature that is found again may be from the keypoint of the model, in pixels."""
SIDE, REACH = 65, 6.0
"""Patches of so many pixels, each the square of half side 6 sigma: as ``images.views`` makes them."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Observations:
    """Features that see mapped points: ``points`` (M,) landmarks, ``images`` (M,) rows of the model's names,
    ``keypoints`` (M, 4), ``descriptors`` (M, n) clear, and ``patches`` (M, 65, 65)."""

    points: NDArray[np.int64]
    images: NDArray[np.int32]
    keypoints: NDArray[np.float32]
    descriptors: NDArray[np.float32]
    patches: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"Observations({len(self)} of {len(np.unique(self.points))} points, clear)"


def pairs_from_tracks(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str],
    params: LocalParams | None = None,
    *,
    progress: Progress = identity,
) -> DescriptorPairs:
    """Return the descriptors of the same mapped point in two photos: its first observation with each other one.

    ``model`` is the folder of a COLMAP model, ``images`` that of its photos. A group is the photo of the first
    observation.

    Raises FileError for a model or photos that are missing or damaged, InputError if no point is seen twice.
    """
    seen = observe(model, images, params, progress=progress)
    first, second = pair_rows(seen.points, seen.images)
    if not len(first):
        raise InputError(f"{model}: no mapped point is found again in two of its photos: are these its photos?")
    chosen = extractor_of(params or LocalParams())
    return DescriptorPairs(
        seen.descriptors[first], seen.descriptors[second], seen.points[first], seen.images[first], chosen
    )


def patches_from_tracks(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str],
    params: LocalParams | None = None,
    *,
    progress: Progress = identity,
) -> PatchSet:
    """Return the patches of mapped points that two or more photos show.

    A group is the photo of a point's first observation, which is view 0; the others are the numbers of their photos,
    from 1 on. Raises as ``pairs_from_tracks``.
    """
    seen = observe(model, images, params, progress=progress)
    first, second = pair_rows(seen.points, seen.images)
    if not len(first):
        raise InputError(f"{model}: no mapped point is found again in two of its photos: are these its photos?")
    own = np.unique(first)
    rows = np.concatenate([own, second])
    groups = np.concatenate([seen.images[own], seen.images[first]])
    views = np.concatenate([np.zeros(len(own), np.int32), seen.images[second] + 1])
    return PatchSet(seen.patches[rows], seen.points[rows], groups, views)


def observe(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str],
    params: LocalParams | None = None,
    *,
    progress: Progress = identity,
) -> Observations:
    """Find the features at the keypoints of a model that see a mapped point, photo by photo.

    Of several features within a pixel the strongest of the nearest is taken; keypoints without any are left out.
    """
    chosen, known, folder = params or LocalParams(), read_model(model), Path(images)
    need_folder(folder, "the photos of the model")
    wrong = [name for name in known.names if not is_inside(name) or not (folder / name).is_file()]
    if wrong:
        raise FileError(f"{folder}: {len(wrong)} photos of the model are not in it, the first is {wrong[0]!r:.80}")
    found = []
    for number, name in enumerate(progress(known.names)):
        image = read_image(folder / name, name)
        features = extract(image, chosen)
        landmarks, rows = rows_at(known, name, features)
        patches = _patches(image, features.keypoints[rows])
        numbers = np.full(len(rows), number, np.int32)
        found.append((landmarks, numbers, features.keypoints[rows], features.descriptors[rows], patches))
    if not found:
        raise InputError(f"{model}: the model has no image")
    return Observations(*(np.concatenate(column) for column in zip(*found, strict=True)))


def rows_at(model: Model, name: str, features: Features) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return landmarks (M,) that an image of the model sees, and the rows (M,) of the features at their keypoints."""
    from scipy.spatial import cKDTree

    sight = model.sight(name)
    if not len(sight) or not len(features):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    distances, rows = cKDTree(features.keypoints[:, :2]).query(sight.places, distance_upper_bound=NEAR_PX)
    near = np.isfinite(distances)
    if len(features) == model.count(name):  # the model's own keypoints, perhaps several at one place
        own = np.asarray(sight.keypoints)
        same = np.abs(features.keypoints[own, :2] - sight.places).max(axis=1) <= NEAR_PX
        rows, near = np.where(same, own, rows), near | same
    landmarks, kept = sight.landmarks[near], rows[near].astype(np.int64)
    _, once = np.unique(landmarks, return_index=True)
    return landmarks[once], kept[once]


def _patches(image: Image, keypoints: NDArray[np.float32]) -> NDArray[np.uint8]:
    exact = keypoints.astype(np.float64)
    return cut_affine(to_grey(image), exact[:, :2], keypoint_frames(exact, REACH), SIDE)
