# SPDX-License-Identifier: Apache-2.0
"""Descriptor pairs from the tracks of a COLMAP model: observations of one mapped point in several photos.

Needs the photos as well as the model, so it is for their owner: the descriptors are clear. A model holds only the
places of keypoints; scale and direction come from the features that are found again at these places in the photos.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams, extract, extractor_of
from sfumato.geometry.model import Model, read_model
from sfumato.images.folders import is_inside, need_folder
from sfumato.images.read import read_image
from sfumato.training.pairs import DescriptorPairs, pair_rows
from sfumato.types.clear import Features
from sfumato.types.progress import Progress, identity

NEAR_PX = 1.0
"""Largest distance of a feature from the keypoint of the model, in pixels."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Observations:
    """Features that see mapped points: ``points`` (M,) landmarks, ``images`` (M,) rows of the model's names,
    ``keypoints`` (M, 4) and ``descriptors`` (M, n), clear."""

    points: NDArray[np.int64]
    images: NDArray[np.int32]
    keypoints: NDArray[np.float32]
    descriptors: NDArray[np.float32]

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
    observations = observe(model, images, params, progress=progress)
    first, second = pair_rows(observations.points, observations.images)
    if not len(first):
        raise InputError(f"{model}: no mapped point is found again in two of its photos: are these its photos?")
    return DescriptorPairs(
        observations.descriptors[first],
        observations.descriptors[second],
        observations.points[first],
        observations.images[first],
        extractor_of(params or LocalParams()),
    )


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
    params, colmap_model, folder = params or LocalParams(), read_model(model), Path(images)
    need_folder(folder, "the photos of the model")
    missing = [name for name in colmap_model.names if not is_inside(name) or not (folder / name).is_file()]
    if missing:
        raise FileError(f"{folder}: {len(missing)} photos of the model are not in it, the first is {missing[0]!r:.80}")
    columns = []
    for number, name in enumerate(progress(colmap_model.names)):
        features = extract(read_image(folder / name, name), params)
        landmarks, rows = rows_at(colmap_model, name, features)
        numbers = np.full(len(rows), number, np.int32)
        columns.append((landmarks, numbers, features.keypoints[rows], features.descriptors[rows]))
    if not columns:
        raise InputError(f"{model}: the model has no image")
    return Observations(*(np.concatenate(column) for column in zip(*columns, strict=True)))


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
    landmarks, rows = sight.landmarks[near], rows[near].astype(np.int64)
    _, once = np.unique(landmarks, return_index=True)
    return landmarks[once], rows[once]
