# SPDX-License-Identifier: Apache-2.0
"""Descriptors of patches that come as patches: those of UBC and HPatches, or generated ones.

SIFT of a patch is that of one keypoint at its centre with angle 0 and sigma a twelfth of the side. SIFT's 4 x 4 cells
of 3 sigma then tile the patch exactly, so a patch of half side 6 sigma gets nearly the descriptor its keypoint has in
the picture. Patches are first resized to 32 x 32 (sigma 2.67), and the border is repeated outwards. Networks see the
whole patch at 32 x 32. The result is clear.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need
from sfumato.features.local import LocalParams, prepare
from sfumato.features.networks import NETWORKS, PATCH_SIDE, PATCHES_AT_ONCE, PatchNetwork

Floats = NDArray[np.float32]

CELLS_ACROSS = 12
"""The side of a patch in sigmas: 4 cells of 3 sigma."""

MARGIN = 20
"""Pixels between a patch of 32 and its neighbour on a sheet; SIFT reaches 4 beyond the patch, its blur 8 more."""

LAYER = 2
"""The layer of OpenCV's first octave whose blur, 1.6 x 2^(2/3) = 2.54, is nearest to sigma."""

ACROSS = 32
"""Patches in a row of a sheet."""


def describe_cut_patches(patches: NDArray[np.uint8], params: LocalParams | None = None) -> Floats:
    """Describe patches (P, s, s) uint8: rows (P, 128) float32 of unit norm, 0 for a patch without contrast.

    Of ``params`` the descriptor, its weights and OpenCV's octave layers count; nothing is detected.

    Raises InputError for arrays of another shape; for networks as ``features.local.extract``.
    """
    params = params or LocalParams()
    pixels = np.asarray(patches)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1] != pixels.shape[2]:
        raise InputError(f"patches: expected uint8 of shape (P, s, s), got {pixels.dtype} {pixels.shape}")
    network = prepare(params)
    if len(pixels) == 0:
        return np.zeros((0, 128), np.float32)
    small = shrink(pixels)
    if network is not None:
        rows = _by_network(small, network)
    else:
        rows = np.concatenate([_by_sift(small[i : i + ACROSS * ACROSS]) for i in range(0, len(small), ACROSS**2)])
        rows = np.sqrt(rows) if params.descriptor == "rootsift" else rows
    rows[pixels.min(axis=(1, 2)) == pixels.max(axis=(1, 2))] = 0  # what blur brings from a neighbour does not count
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Floats = (rows / np.where(norms > 0, norms, 1)).astype(np.float32)
    return unit


def is_describable(descriptor: str) -> bool:
    """Tell whether patches can be described by this descriptor: SIFT, RootSIFT or a network."""
    return descriptor in ("sift", "rootsift", *NETWORKS)


def shrink(patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return patches (P, s, s) as (P, 32, 32): averaged where they shrink, interpolated where they grow."""
    import cv2

    if patches.shape[1] == PATCH_SIDE:
        return patches
    kind = cv2.INTER_AREA if patches.shape[1] > PATCH_SIDE else cv2.INTER_LINEAR
    size = (PATCH_SIDE, PATCH_SIDE)
    return np.stack([cv2.resize(patch, size, interpolation=kind) for patch in patches])


def _by_sift(small: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return SIFT histograms (N, 128) of patches (N, 32, 32), all laid out on one sheet."""
    import cv2

    step, down = PATCH_SIDE + 2 * MARGIN, -(-len(small) // ACROSS)
    padded = np.pad(small, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)), mode="edge")
    tiles = np.zeros((down * ACROSS, step, step), np.uint8)
    tiles[: len(small)] = padded
    sheet = tiles.reshape(down, ACROSS, step, step).transpose(0, 2, 1, 3).reshape(down * step, ACROSS * step)
    rows, columns = np.divmod(np.arange(len(small)), ACROSS)
    middle, sigma = (step - 1) / 2, PATCH_SIDE / CELLS_ACROSS
    points = [
        cv2.KeyPoint(float(column * step + middle), float(row * step + middle), 2 * sigma, 0.0, 1.0, LAYER << 8, number)
        for number, (row, column) in enumerate(zip(rows, columns, strict=True))
    ]
    keypoints, histograms = cv2.SIFT.create().compute(np.ascontiguousarray(sheet), points)
    described = np.zeros((len(small), 128))
    described[[point.class_id for point in keypoints]] = histograms
    return described


def _by_network(small: NDArray[np.uint8], network: PatchNetwork) -> NDArray[np.float64]:
    torch: Any = need("torch", extra="learn")
    rows = np.zeros((len(small), 128))
    for start in range(0, len(small), PATCHES_AT_ONCE):
        batch = np.asarray(small[start : start + PATCHES_AT_ONCE], np.float32) / 255
        rows[start : start + len(batch)] = network.describe(torch.from_numpy(batch)[:, None])  # (n, 1, 32, 32)
    return rows
