# SPDX-License-Identifier: Apache-2.0
"""Patches around keypoints, upright in the keypoint's own frame, and their description by a network.

A patch is the square of half side ``patch_scale * sigma`` around a keypoint, turned by its angle and sampled to 32 x 32
from an image pyramid, by kornia. What lies outside the picture repeats its border. Needs the extra ``learn``.
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import need
from sfumato.features.networks import PATCH_SIDE, PATCHES_AT_ONCE, PatchNetwork

_one_at_a_time = threading.Lock()
"""torch works on every core already: threads that describe together would only get into each other's way."""


def describe_patches(
    grey: NDArray[np.uint8], keypoints: NDArray[np.float32], network: PatchNetwork, patch_scale: float
) -> NDArray[np.float64]:
    """Return the rows (N, 128), not yet of unit norm, of the patches around keypoints (N, 4) of a picture (H, W)."""
    rows = np.zeros((len(keypoints), 128))
    with _one_at_a_time:
        start = 0
        for patches in patch_batches(grey, keypoints, patch_scale):
            rows[start : start + len(patches)] = network.describe(patches)
            start += len(patches)
    return rows


def patch_batches(grey: NDArray[np.uint8], keypoints: NDArray[np.float32], patch_scale: float) -> Iterator[Any]:
    """Yield tensors (n, 1, 32, 32) float32, values 0 to 1, of the patches around keypoints, a few hundred at a time."""
    torch: Any = need("torch", extra="learn")
    feature: Any = need("kornia.feature", extra="learn")
    if len(keypoints) == 0:
        return
    picture = torch.from_numpy(np.array(grey, np.float32) / 255)[None, None]  # (1, 1, H, W)
    frames = _frames(torch, feature, keypoints, patch_scale)  # (1, N, 2, 3)
    for start in range(0, len(keypoints), PATCHES_AT_ONCE):
        some = frames[:, start : start + PATCHES_AT_ONCE]
        with torch.inference_mode():
            yield feature.extract_patches_from_pyramid(picture, some, PS=PATCH_SIDE)[0]


def _frames(torch: Any, feature: Any, keypoints: NDArray[np.float32], patch_scale: float) -> Any:
    """Return kornia's local affine frames (1, N, 2, 3) of keypoints.

    Its scale is half the side of a patch, its angle turns the other way than OpenCV's, and the centre of the first
    pixel is (0, 0), as here.
    """
    table = torch.from_numpy(np.array(keypoints, np.float32))  # (N, 4)
    half_side = patch_scale * table[:, 2]
    return feature.laf_from_center_scale_ori(
        table[None, :, :2], half_side.view(1, -1, 1, 1), -table[:, 3].view(1, -1, 1)
    )
