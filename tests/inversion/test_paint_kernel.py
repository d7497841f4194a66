# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.inversion.paint import REACH
from sfumato.inversion.paint_kernel import splat


def plain(patches, keypoints, strength, window, height, width):
    """The same sums, pixel by pixel, as the docstring says them."""
    sums, side = np.zeros((height, width, 5)), patches.shape[1]

    def sample(patch, u, v):
        u, v = np.clip(u, 0, side - 1.001), np.clip(v, 0, side - 1.001)
        i, j = int(v), int(u)
        a, b = v - i, u - j
        corners = patch[i : i + 2, j : j + 2].astype(float)
        return np.array([1 - a, a]) @ corners @ np.array([1 - b, b])

    for patch, (x, y, sigma, degrees), strong in zip(patches, keypoints.astype(float), strength, strict=True):
        step, angle = 2 * REACH * sigma / side, np.deg2rad(degrees)
        right, down = np.array([np.cos(angle), -np.sin(angle)]) / step, np.array([np.sin(angle), np.cos(angle)]) / step
        for row in range(height):
            for column in range(width):
                dx, dy = column - x, row - y
                if dx * dx + dy * dy > (REACH * sigma) ** 2:
                    continue
                at = dx * right + dy * down + (side - 1) / 2
                here = sample(patch, *at)
                over, below = sample(patch, *(at + right)) - here, sample(patch, *(at + down)) - here
                weight = strong * np.exp(-(dx * dx + dy * dy) / (2 * (window * sigma) ** 2))
                sums[row, column] += weight * np.array([1, over, below, over**2 + below**2, np.log(sigma)])
    return sums


@pytest.mark.parametrize("place", [(10.3, 8.7), (0.0, 0.0), (-3.0, 15.2), (200.0, 5.0)])
def test_sums_are_those_of_the_plain_loop(place):
    rng = np.random.default_rng(0)
    keypoints = np.array([[*place, 1.3, 33.0], [place[0] + 2, place[1], 2.1, 290.0]], np.float32)
    patches = rng.normal(0, 1, (2, 24, 24)).astype(np.float32)
    strength = np.array([1.0, 0.25], np.float32)
    sums = np.zeros((18, 22, 5), np.float32)
    splat(patches, keypoints, strength, 2.5, sums)
    np.testing.assert_allclose(sums, plain(patches, keypoints, strength, 2.5, 18, 22), atol=2e-3)
