# SPDX-License-Identifier: Apache-2.0
"""Bring a face to the place a network expects it: five points, one similarity, one picture of 112 x 112.

Knows pixels and points; neither detectors nor networks.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array

SIDE = 112
PLACES = np.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])
"""Where ArcFace networks expect the eyes, the tip of the nose and the corners of the mouth (x, y), in 112 x 112; the
first of each pair is the one further left in the picture."""


def similarity(points: ArrayLike, places: ArrayLike = PLACES) -> NDArray[np.float64]:
    """Return the (2, 3) turn, scale and shift that brings points (K, 2) nearest to their places (Umeyama 1991).

    Raises InputError where all points are one.
    """
    source = frozen_array(points, "points", (None, 2), np.float64)
    target = frozen_array(places, "places", (len(source), 2), np.float64)
    mean0, mean1 = source.mean(axis=0), target.mean(axis=0)
    centred0, centred1 = source - mean0, target - mean1
    spread = float((centred0**2).sum())
    if not spread > 1e-12:
        raise InputError("the points of this face are all in one place")
    left, stretch, right = np.linalg.svd(centred1.T @ centred0)
    mirrored = np.sign(np.linalg.det(left @ right)) or 1.0
    signs = np.array([1.0, mirrored])  # a face is turned, never mirrored
    linear = (left * signs) @ right * (float(stretch @ signs) / spread)
    return np.concatenate([linear, (mean1 - linear @ mean0)[:, None]], axis=1)


def align(pixels: NDArray[np.uint8], points: ArrayLike) -> NDArray[np.uint8]:
    """Return the face (112, 112, 3) of a picture (H, W, 3), its five points (5, 2) brought to their places."""
    import cv2

    turned: NDArray[np.uint8] = cv2.warpAffine(
        pixels, similarity(points), (SIDE, SIDE), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT
    )
    return turned


def sharpness(face: NDArray[np.uint8]) -> float:
    """Return the variance of the Laplacian of an aligned face: small where it is blurred."""
    import cv2

    return float(cv2.Laplacian(cv2.cvtColor(face, cv2.COLOR_RGB2GRAY), cv2.CV_64F).var())


def roll(points: ArrayLike) -> float:
    """Return the angle of the line through the eyes, in degrees, 0 for an upright face."""
    left, right = np.asarray(points, np.float64)[:2]
    return float(np.degrees(np.arctan2(right[1] - left[1], right[0] - left[0])))
