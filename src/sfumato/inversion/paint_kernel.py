# SPDX-License-Identifier: Apache-2.0
"""Compiled kernel that adds rendered patches to sums; imported only when a picture is painted."""

import math
from typing import Any

import numpy as np
from numba import njit

from sfumato.inversion.paint import REACH


@njit(cache=True, fastmath=True, nogil=True)  # type: ignore[untyped-decorator]
def splat(patches: Any, keypoints: Any, strength: Any, window: float, sums: Any) -> None:
    """Add patches to sums (H, W, 5): weight, weighted differences to the right and down, their squares, log sigma.

    ``patches`` (N, S, S) in the frame of their ``keypoints`` (N, 4); ``strength`` (N,) multiplies the Gaussian weight,
    whose deviation is ``window`` sigmas.
    """
    height, width = sums.shape[0], sums.shape[1]
    here, below = np.empty(width + 1, np.float32), np.empty(width + 1, np.float32)
    for k in range(patches.shape[0]):
        x, y, sigma = keypoints[k, 0], keypoints[k, 1], keypoints[k, 2]
        reach = np.float32(REACH) * sigma
        left, right = max(0, math.ceil(x - reach)), min(width - 1, math.floor(x + reach))
        top, bottom = max(0, math.ceil(y - reach)), min(height - 1, math.floor(y + reach))
        narrow = np.float32(-0.5) / (np.float32(window) * sigma) ** 2
        depth = np.float32(math.log(sigma))
        if top <= bottom and left <= right:
            _render(patches[k], keypoints[k], left, right, top, below)
        for row in range(top, bottom + 1):
            here, below = below, here
            _render(patches[k], keypoints[k], left, right, row + 1, below)
            dy = row - y
            half = math.sqrt(max(reach * reach - dy * dy, np.float32(0)))
            for column in range(max(left, math.ceil(x - half)), min(right, math.floor(x + half)) + 1):
                dx = column - x
                over = here[column + 1] - here[column]
                down = below[column] - here[column]
                weight = strength[k] * np.float32(math.exp(narrow * (dx * dx + dy * dy)))
                sums[row, column, 0] += weight
                sums[row, column, 1] += weight * over
                sums[row, column, 2] += weight * down
                sums[row, column, 3] += weight * (over * over + down * down)
                sums[row, column, 4] += weight * depth


@njit(cache=True, fastmath=True, nogil=True)  # type: ignore[untyped-decorator]
def _render(patch: Any, keypoint: Any, left: int, right: int, row: int, line: Any) -> None:
    """Fill line[left : right + 2] with a patch along a row of the picture, linear between pixels of the patch."""
    side = patch.shape[0]
    angle = keypoint[3] * np.float32(math.pi / 180)
    step = np.float32(2 * REACH) * keypoint[2] / side
    cosine, sine = np.float32(math.cos(angle)) / step, np.float32(math.sin(angle)) / step
    middle, last = np.float32((side - 1) / 2), np.float32(side - 1.001)
    dy = np.float32(row) - keypoint[1]
    for column in range(left, right + 2):
        dx = np.float32(column) - keypoint[0]
        u = min(max(cosine * dx + sine * dy + middle, np.float32(0)), last)  # beyond its border, its border
        v = min(max(cosine * dy - sine * dx + middle, np.float32(0)), last)
        i, j = int(v), int(u)
        a, b = v - np.float32(i), u - np.float32(j)
        upper = patch[i, j] + (patch[i, j + 1] - patch[i, j]) * b
        lower = patch[i + 1, j] + (patch[i + 1, j + 1] - patch[i + 1, j]) * b
        line[column] = upper + (lower - upper) * a
