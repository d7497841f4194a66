# SPDX-License-Identifier: Apache-2.0
"""What keypoints show without any descriptor: an inverter that was trained on places, sizes and angles alone.

Every recipe that keeps keypoints shows that much. A blind inverter takes one number for each feature, which is always
0. Knows features and how inverters are given them.
"""

import os
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from sfumato.learn.inverter import Inverter, load_inverter
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, as_points
from sfumato.types.recipe import Recipe

BUNDLED = "keypoints-sift.safetensors"
HIDDEN = 64
"""Units of the patch network of a blind inverter: all it learns is a patch for each size."""


def load_blind(path: str | os.PathLike[str] | None = None) -> Inverter:
    """Read a blind inverter; without a path, the bundled one for keypoints of SIFT."""
    if path is None:
        with resources.as_file(resources.files("sfumato.learn") / "data" / BUNDLED) as place:
            return load_inverter(place)
    return load_inverter(path)


def nothing_of(count: int) -> NDArray[np.float32]:
    """Return rows (count, 1) that tell nothing."""
    return np.zeros((count, 1), np.float32)


def without_descriptors(features: Features) -> ConcealedFeatures:
    """Return features as if nothing but their keypoints had been released."""
    points = as_points(nothing_of(len(features)))
    return ConcealedFeatures(features.keypoints, points, Recipe.of("raw"), features.extractor, features.image_size)
