# SPDX-License-Identifier: Apache-2.0
"""Inverters of any kind by their file, and the pictures they reconstruct from features, clear or concealed.

The concealing function is an argument. Patch inverters run in numpy; UNet and UResNet need the extra ``learn``.
"""

import os
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.features.local import LocalParams, extract
from sfumato.files.tensors import load_checkpoint
from sfumato.images.read import read_image
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.images import KIND as IMAGE_KIND
from sfumato.inversion.images import ImageInverter, invert_image, load_image_inverter
from sfumato.inversion.metrics import picture_scores, summary
from sfumato.inversion.patches import (
    Inverter,
    check_fits,
    floor_input,
    invert_rows,
    load_inverter,
    network_folder,
)
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Points
from sfumato.types.progress import Progress, identity
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]
AnyInverter = Inverter | ImageInverter
Concealer = Callable[[Features], ConcealedFeatures]
"""Conceals features, with new draws at every call."""

BUNDLED = "keypoints-sift.safetensors"
AT_POSITIONS = "cells-sift.safetensors"
KEYPOINT_HIDDEN = 64
"""Units of the patch network of an inverter of keypoints alone: all it learns is a patch for each size."""


# --- the inverter of keypoints alone: what every recipe that keeps keypoints shows
#
# It takes one number for each feature, which is always 0.


def load_keypoint_inverter(path: str | os.PathLike[str] | None = None) -> Inverter:
    """Read an inverter of keypoints alone; without a path, the bundled one for SIFT."""
    if path is None:
        return load_inverter(network_folder() / BUNDLED)
    return load_inverter(path)


def empty_rows(count: int) -> NDArray[np.float32]:
    """Return rows (count, 1) of zeros: the inputs of an inverter of keypoints alone."""
    return np.zeros((count, 1), np.float32)


def without_descriptors(features: Features) -> ConcealedFeatures:
    """Return features with their keypoints and no descriptor."""
    points = Points(empty_rows(len(features)))
    return ConcealedFeatures(features.keypoints, points, Recipe.of("raw"), features.extractor, features.image_size)


# --- inverters of any kind


def open_inverter(path: str | os.PathLike[str] | None = None, *, has_frames: bool = True) -> AnyInverter:
    """Read an inverter of any architecture, whichever a file holds; without a path, a bundled one for clear SIFT.

    ``has_frames``: whether the bundled one may use sizes and angles of keypoints, or has positions only.

    Raises FileError for a file that is missing, damaged, hostile, or something else.
    """
    if path is None and has_frames:
        return load_inverter()
    if path is None:
        return load_image_inverter(network_folder() / AT_POSITIONS)
    if load_checkpoint(path)[1].get("kind") == IMAGE_KIND:
        return load_image_inverter(path)
    return load_inverter(path)


def run_inverter(inverter: AnyInverter, keypoints: ArrayLike, inputs: ArrayLike, size: tuple[int, int]) -> Floats:
    """Return the picture (H, W, 3) float32, 0 to 1, of rows ``inputs`` at keypoints (N, 4), by any inverter."""
    if isinstance(inverter, ImageInverter):
        return invert_image(inverter, keypoints, inputs, size)
    return invert_rows(inverter, keypoints, inputs, size)


def invert(
    features: Features | ConcealedFeatures,
    inverter: AnyInverter | str | os.PathLike[str] | None = None,
    *,
    size: tuple[int, int] | None = None,
) -> Floats:
    """Reconstruct the picture (H, W, 3) float32, 0 to 1, from the features of a photo, without the photo.

    Without ``inverter``, a value or a file of ``sfumato train inverter``, the bundled one for clear SIFT. One that was
    trained for a recipe takes features concealed with this recipe. ``size`` (width, height) is that of the features.

    Raises InputError for features of another kind than the inverter takes, and for features without a size.

    >>> import sfumato
    >>> from sfumato.images import sample_image
    >>> invert(sfumato.extract(sample_image("coffee").pixels, max_features=200)).shape
    (400, 600, 3)
    """
    if not isinstance(features, Features | ConcealedFeatures):
        raise InputError(
            f"invert takes features, not {type(features).__name__}; for a photo: sfumato.invert(sfumato.extract(photo))"
        )
    opened = inverter if isinstance(inverter, Inverter | ImageInverter) else open_inverter(inverter)
    width_height = size or features.image_size
    if width_height is None:
        raise InputError("these features do not know the size of their picture: give size=(width, height)")
    if isinstance(features, Features):
        return run_inverter(opened, features.keypoints, inputs_of(opened, features), width_height)
    check_fits(opened, features.extractor.name)
    if opened.is_blind:
        rows = empty_rows(len(features))
    elif opened.frame is None or Recipe.of(opened.recipe).kind != features.recipe.kind:
        raise InputError(f"this inverter is for {opened.recipe}, these features were made with {features.recipe}")
    else:
        rows = canonical_input(features.subspaces, opened.frame)
    return run_inverter(opened, features.keypoints, rows, width_height)


def inputs_of(inverter: AnyInverter, features: Features, concealer: Concealer | None = None) -> Floats:
    """Return the inputs (N, input_dim) of an inverter for the features of a photo: clear, or as they are released.

    Raises InputError if it is for another kind of descriptor, or for a recipe and no concealer is given.
    """
    check_fits(inverter, features.extractor.name)
    if inverter.is_blind:
        return empty_rows(len(features))
    if Recipe.of(inverter.recipe).is_clear:
        return features.descriptors
    if concealer is None or inverter.frame is None:
        raise InputError(f"this inverter is for features concealed with {inverter.recipe}: conceal them first")
    return canonical_input(concealer(features).subspaces, inverter.frame)


def score_inverter(
    inverter: Inverter,
    photos: Sequence[str | os.PathLike[str]],
    params: LocalParams,
    *,
    concealer: Concealer | None = None,
    progress: Progress = identity,
) -> dict[str, float]:
    """Score an inverter on photos it was not trained with: mean and deviation of each score, and the floor.

    The floor is the same inverter given the same keypoints and one constant row, ``floor_input``.
    """
    scores, floors = [], []
    for path in progress(photos):
        image = read_image(path)
        features = extract(image, params)
        inputs = inputs_of(inverter, features, concealer)
        scores.append(picture_scores(run_inverter(inverter, features.keypoints, inputs, image.size), image.pixels))
        constant = np.broadcast_to(floor_input(inverter), inputs.shape)
        floors.append(picture_scores(run_inverter(inverter, features.keypoints, constant, image.size), image.pixels))
    means = {name: round(value, 5) for name, value in summary(scores).items() if np.isfinite(value)}
    return means | {f"floor_{name}": round(summary(floors)[name], 5) for name in ("ssim", "psnr", "mae")}
