# SPDX-License-Identifier: Apache-2.0
"""Keypoints taken through a homography, and which keypoints of two pictures are the same under it.

Knows keypoints in the convention of ``sfumato.types.clear`` and matrices; no pixel and no descriptor.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.images.homography import warp_points
from sfumato.images.settings import Range, refuse_unknown, settle_numbers

Array = NDArray[np.float64]

ROWS_AT_ONCE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far two keypoints may differ and be the same, in the second picture.

    ``position_px`` in pixels; ``scale`` a factor, either way; ``rotation`` in degrees, either way.
    """

    position_px: float = 2.5
    scale: float = 1.5
    rotation: float = 20.0

    def __new__(cls, **settings: object) -> "Tolerance":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {"position_px": Range(1e-3, 1000), "scale": Range(1, 16), "rotation": Range(0, 180)}
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


def jacobians(homography: ArrayLike, points: ArrayLike) -> Array:
    """Return how a homography moves the surroundings of points (N, 2): matrices (N, 2, 2); NaN on its horizon."""
    matrix, places = np.asarray(homography, np.float64), np.asarray(points, np.float64)
    moved = warp_points(matrix, places)
    w = places @ matrix[2, :2] + matrix[2, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = (matrix[None, :2, :2] - moved[:, :, None] * matrix[2, None, :2]) / w[:, None, None]
    return found


def warp_keypoints(homography: ArrayLike, keypoints: ArrayLike) -> Array:
    """Take keypoints (N, 4) through a homography: place, scale and direction, to first order.

    Sigma grows by the square root of the area, the angle is that of the moved direction. What lies on the horizon or
    beyond it (third coordinate 0 or less) is NaN.

    >>> warp_keypoints([[0, -2, 0], [2, 0, 0], [0, 0, 1]], [[1, 0, 3, 10]]).round(6)
    array([[  0.,   2.,   6., 100.]])
    """
    given = np.asarray(keypoints, np.float64).reshape(-1, 4)
    matrix = np.asarray(homography, np.float64)
    places = warp_points(matrix, given[:, :2])
    local = jacobians(matrix, given[:, :2])
    turned = np.deg2rad(given[:, 3])
    direction = np.einsum("nij,nj->ni", local, np.stack([np.cos(turned), np.sin(turned)], axis=1))
    with np.errstate(invalid="ignore"):
        sigma = given[:, 2] * np.sqrt(np.abs(np.linalg.det(local)))
        angle = np.rad2deg(np.arctan2(direction[:, 1], direction[:, 0])) % 360
        unseen = ~(given[:, :2] @ matrix[2, :2] + matrix[2, 2] > 0)
    warped = np.column_stack([places, sigma, angle])
    warped[unseen | ~np.isfinite(warped).all(axis=1)] = np.nan
    return warped


def same_keypoints(
    first: ArrayLike, second: ArrayLike, homography: ArrayLike, tolerance: Tolerance | None = None
) -> NDArray[np.int64]:
    """Return rows (M, 2) of keypoints (N, 4) of two pictures that are the same point, each row at most once.

    ``homography`` takes the first picture to the second. Of several within the tolerance the nearest is taken, if it
    is so both ways; sorted by the first row.
    """
    allowed = tolerance or Tolerance()
    expected, found = warp_keypoints(homography, first), np.asarray(second, np.float64).reshape(-1, 4)
    pairs = [np.zeros((0, 2), np.int64)]
    for start in range(0, len(expected), ROWS_AT_ONCE):
        some = expected[start : start + ROWS_AT_ONCE]
        squared = (some[:, None, 0] - found[None, :, 0]) ** 2 + (some[:, None, 1] - found[None, :, 1]) ** 2
        near = np.argwhere(squared <= allowed.position_px**2)  # NaN is near nothing
        pairs.append(np.add(near, np.array([start, 0], np.int64)))
    candidates = np.concatenate(pairs)
    cost = _differences(expected[candidates[:, 0]], found[candidates[:, 1]], allowed)
    good = np.flatnonzero((cost <= 1).all(axis=1))
    order = good[np.argsort(cost[good].sum(axis=1), kind="stable")]
    sorted_pairs = candidates[order]
    best0 = np.isin(np.arange(len(order)), np.unique(sorted_pairs[:, 0], return_index=True)[1])
    best1 = np.isin(np.arange(len(order)), np.unique(sorted_pairs[:, 1], return_index=True)[1])
    chosen: NDArray[np.int64] = sorted_pairs[best0 & best1]
    return chosen[np.argsort(chosen[:, 0])]


def _differences(expected: Array, found: Array, allowed: Tolerance) -> Array:
    """Return the differences of keypoints (M, 4) in place, scale and direction (M, 3), 1 what is just allowed."""
    place = np.hypot(expected[:, 0] - found[:, 0], expected[:, 1] - found[:, 1]) / allowed.position_px
    octaves = np.abs(np.log2(np.maximum(expected[:, 2], 1e-12) / np.maximum(found[:, 2], 1e-12)))
    turn = np.abs((expected[:, 3] - found[:, 3] + 180) % 360 - 180)
    smallest = 1e-12
    return np.column_stack(
        [place, octaves / max(np.log2(allowed.scale), smallest), turn / max(allowed.rotation, smallest)]
    )
