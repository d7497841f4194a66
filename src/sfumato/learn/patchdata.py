# SPDX-License-Identifier: Apache-2.0
"""Pairs to learn from: what describes a keypoint, and the patch of the photo it describes.

Knows clear photos and clear descriptors, which only training may. A patch is the square of half side 6 sigma around a
keypoint, turned by its angle, sampled to 24 x 24 from an image pyramid. SIFT forgets brightness and contrast, so a
patch is stored without them, and its contrast beside it.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.features.local import LocalParams, extract
from sfumato.features.results import Progress, identity
from sfumato.images.read import read_image, to_grey
from sfumato.learn.paint import PATCH_SIDE, REACH
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]

LEAST_CONTRAST = 1e-3
"""Deviations below this, of values from 0 to 1, count as this: a patch from 8 bits can not have less."""

KEYPOINTS_AT_ONCE = 1000
"""OpenCV's maps have at most 32,767 rows."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pairs:
    """M pairs, photo after photo, from the strongest feature of each.

    ``descriptors`` (M, n) and ``keypoints`` (M, 4) float32; ``patches`` (M, 576) float16 of mean 0 and deviation 1
    within the picture, NaN outside of it; ``contrasts`` (M,) float32, log deviations; ``photos`` (M,) int32, the
    numbers of their photos. ``digest`` tells which photos those were, ``extractor`` what described them.
    """

    descriptors: Floats
    keypoints: Floats
    patches: NDArray[np.float16]
    contrasts: Floats
    photos: NDArray[np.int32]
    digest: str
    extractor: Extractor

    def __len__(self) -> int:
        return len(self.photos)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} of {self.descriptors.shape[1]} numbers, {self.extractor.name})"

    def of_photo(self, number: int, most: int) -> slice:
        """Return the rows of the strongest features of a photo, at most so many."""
        first, end = np.searchsorted(self.photos, [number, number + 1])
        return slice(int(first), min(int(end), int(first) + most))


def cut_patches(grey: Floats, keypoints: Floats, side: int = PATCH_SIDE) -> Floats:
    """Cut patches (N, side, side) from a picture (H, W); NaN where a patch reaches out of the picture."""
    import cv2

    found = np.empty((len(keypoints), side, side), np.float32)
    steps = 2 * REACH * keypoints[:, 2] / side
    levels = np.clip(np.rint(np.log2(np.maximum(steps, 1e-6))), 0, 8).astype(int)
    picture = np.ascontiguousarray(grey, np.float32)
    grid = (np.arange(side, dtype=np.float32) - (side - 1) / 2)[None, :]
    for level in range(int(levels.max(initial=0)) + 1):
        if level:
            picture = cv2.pyrDown(picture)  # pixel (x, y) is what was around (2x, 2y)
        for rows in np.array_split(at := np.flatnonzero(levels == level), len(at) // KEYPOINTS_AT_ONCE + 1):
            if not len(rows):
                continue
            x, y, _, angle = (keypoints[rows].T / np.array([2**level, 2**level, 1, 1], np.float32)[:, None])[:, :, None]
            step = (steps[rows] / 2**level)[:, None]
            cosine, sine = step * np.cos(np.deg2rad(angle)), step * np.sin(np.deg2rad(angle))
            u, v = grid[:, None, :], grid[:, :, None]  # right and down in the frame of the keypoint
            across = x[:, :, None] + cosine[:, :, None] * u - sine[:, :, None] * v
            along = y[:, :, None] + sine[:, :, None] * u + cosine[:, :, None] * v
            flat = across.reshape(-1, side).astype(np.float32), along.reshape(-1, side).astype(np.float32)
            cut = cv2.remap(picture, *flat, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE).reshape(across.shape)
            inside = (across >= 0) & (across <= picture.shape[1] - 1) & (along >= 0) & (along <= picture.shape[0] - 1)
            found[rows] = np.where(inside, cut, np.nan)
    return found


def normalise(patches: Floats) -> tuple[NDArray[np.float16], Floats]:
    """Return patches (N, s, s) without brightness and contrast, (N, s * s), and log contrasts (N,)."""
    flat = patches.reshape(len(patches), PATCH_SIDE**2)
    known = np.isfinite(flat)
    count = np.maximum(known.sum(axis=1), 1)
    means = np.where(known, flat, 0).sum(axis=1) / count
    centred = flat - means[:, None]
    deviations = np.sqrt((np.where(known, centred, 0) ** 2).sum(axis=1) / count)
    contrasts = np.maximum(deviations, LEAST_CONTRAST)
    return (centred / contrasts[:, None]).astype(np.float16), np.log(contrasts).astype(np.float32)


def gather_pairs(
    photos: Sequence[str | os.PathLike[str]], params: LocalParams, *, progress: Progress = identity
) -> Pairs:
    """Extract the features of photos and cut the patch of each.

    Raises InputError if there are no features in any of them, ImageError for a file that can not be read.
    """
    found: list[tuple[NDArray[Any], ...]] = []
    digest = hashlib.blake2b(digest_size=16)
    for number, path in enumerate(progress(photos)):
        image = read_image(Path(path))
        digest.update(repr(image.pixels.shape).encode() + image.pixels.tobytes())
        features = extract(image, params)
        if len(features) == 0:
            continue
        grey = to_grey(image).astype(np.float32) / np.float32(255)
        patches, contrasts = normalise(cut_patches(grey, features.keypoints))
        numbers = np.full(len(features), number, np.int32)
        found.append((features.descriptors, features.keypoints, patches, contrasts, numbers))
    if not found:
        raise InputError("no features in any of the photos: give others, or a lower contrast threshold")
    descriptors, keypoints, patches, contrasts, numbers = (
        np.concatenate(column) for column in zip(*found, strict=True)
    )
    return Pairs(descriptors, keypoints, patches, contrasts, numbers, digest.hexdigest(), features.extractor)
