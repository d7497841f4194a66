# SPDX-License-Identifier: Apache-2.0
"""Photos that networks are trained with: pixels, clear features, windows cut out of both, and patches of keypoints.

Features are those of the entire photo, so that a window has as many as the same place of an attacked photo. A patch is
the square of half side 6 sigma around a keypoint, turned by its angle, sampled to 24 x 24 from an image pyramid. SIFT
ignores brightness and contrast, so a patch is stored without them, and its contrast beside it. Clear descriptors and
pixels of public photos stay in memory: nothing here is written.
"""

import hashlib
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import ImageError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import read_image, to_grey
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.images import LONGEST, FeaturePlaces, place, scaled
from sfumato.inversion.load import Concealer
from sfumato.inversion.paint import PATCH_SIDE, REACH
from sfumato.types.clear import Features, Image
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, identity

Floats = NDArray[np.float32]
Picture = str | os.PathLike[str] | Image

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Photo:
    """A photo of others: ``pixels`` (H, W, 3) uint8, and clear ``features``, found at 1 / ``scale`` times the size."""

    pixels: NDArray[np.uint8]
    features: Features
    scale: float = 1.0

    def __repr__(self) -> str:
        return f"Photo({self.pixels.shape[1]} x {self.pixels.shape[0]}, {self.features!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Window:
    """A square of a photo: ``truth`` (side, side, 3) uint8, the released features in it (M, C), and their places."""

    truth: NDArray[np.uint8]
    inputs: NDArray[np.float32]
    placed: FeaturePlaces

    def __repr__(self) -> str:
        return f"Window({self.truth.shape[1]} x {self.truth.shape[0]}, {len(self.inputs)} features)"


def read_photos(
    pictures: Sequence[Picture], local: LocalParams, side: int, progress: Progress = iter, *, scale: float = 1.0
) -> list[Photo]:
    """Read photos and extract their features; each is reduced to LONGEST, or enlarged until a window fits in.

    After that, with a ``scale`` below 1, pixels are reduced to learn from, features are not. Photos that cannot be
    read, or show no feature, are named in the log and left out.

    Raises InputError if fewer than two are left: one is needed to learn from, one to see what was learned.
    """
    photos = list(_read(pictures, local, side, progress, scale))
    if len(photos) < 2:
        raise InputError(f"{len(photos)} of {len(pictures)} photos are of use: a training needs two at least")
    return photos


def _read(
    pictures: Sequence[Picture], local: LocalParams, side: int, progress: Progress, scale: float
) -> Iterator[Photo]:
    for picture in progress(pictures):
        try:
            image = picture if isinstance(picture, Image) else read_image(picture)
        except ImageError as problem:
            log.warning("left out of the training: %s", problem)
            continue
        pixels = fitted(image.pixels, math.ceil(side / scale))
        features = extract(pixels, local)
        if len(features):
            yield Photo(resized(pixels, scale, side), features, scale)
        else:
            log.warning("left out of the training, no features: %s", image.name)


def fitted(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return a picture in colours, its longer side at most LONGEST and its shorter side at least ``side``."""
    coloured = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
    height, width = coloured.shape[:2]
    scale = max(min(1.0, LONGEST / max(height, width)), side / min(height, width))
    return resized(coloured, scale, side)


def resized(pixels: NDArray[np.uint8], scale: float, side: int) -> NDArray[np.uint8]:
    """Return a picture at ``scale`` times its size, its shorter side at least ``side``."""
    import cv2

    if scale == 1:
        return pixels
    height, width = pixels.shape[:2]
    size = max(side, round(width * scale)), max(side, round(height * scale))
    result: NDArray[np.uint8] = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
    return result


def cut(
    photo: Photo,
    corner: tuple[int, int],
    side: int,
    concealer: Concealer | None,
    frame: ArrayLike,
    *,
    every: bool = False,
    mirror: bool = False,
) -> Window:
    """Conceal a photo and cut the square of ``side`` pixels whose first pixel is ``corner`` (x, y) out of it.

    ``every``: keep several features at one pixel (``place``). ``mirror``: what lies left comes to lie right, for
    positions without descriptors.
    """
    x, y = corner
    released = photo.features if concealer is None else concealer(photo.features)
    keypoints = scaled(released.keypoints, photo.scale)
    truth = photo.pixels[y : y + side, x : x + side]
    if mirror:
        keypoints = np.concatenate([2 * x + side - 1 - keypoints[:, :1], keypoints[:, 1:]], axis=1)
        truth = truth[:, ::-1]
    placed = place(keypoints, (side, side), corner=corner, every=every)
    if isinstance(released, Features):
        inputs = released.descriptors[placed.rows]
    else:
        inputs = canonical_input(released.subspaces[placed.rows], frame)
    return Window(truth, inputs, placed)


def random_windows(
    photos: Sequence[Photo],
    side: int,
    count: int,
    rng: np.random.Generator,
    concealer: Concealer | None,
    frame: ArrayLike,
    *,
    every: bool = False,
    mirror: bool = False,
) -> list[Window]:
    """Cut windows at random places of random photos; at least one of them has a feature.

    ``mirror``: half of them are mirrored, where there is no descriptor that a mirror would change.
    """
    while True:
        windows = []
        for number in rng.integers(len(photos), size=count):
            height, width = photos[number].pixels.shape[:2]
            corner = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
            is_mirrored = mirror and bool(rng.integers(2))
            windows.append(cut(photos[number], corner, side, concealer, frame, every=every, mirror=is_mirrored))
        if any(len(window.inputs) for window in windows):
            return windows


# --- pairs of a descriptor and the patch that it describes


LEAST_CONTRAST = 1e-3
"""Deviations below this, of values from 0 to 1, count as this: a patch from 8 bits cannot have less."""

KEYPOINTS_AT_ONCE = 1000
"""OpenCV's maps have at most 32,767 rows."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchSamples:
    """M descriptors and their patches, photo after photo, from the strongest feature of each.

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
        return f"PatchSamples({len(self)} of {self.descriptors.shape[1]} numbers, {self.extractor.name})"

    def of_photo(self, number: int, most: int) -> slice:
        """Return the rows of the strongest features of a photo, at most ``most``."""
        first, end = np.searchsorted(self.photos, [number, number + 1])
        return slice(int(first), min(int(end), int(first) + most))


def cut_patches(grey: Floats, keypoints: Floats, side: int = PATCH_SIDE) -> Floats:
    """Cut patches (N, side, side) from a picture (H, W); NaN where a patch reaches out of the picture."""
    import cv2

    patches = np.empty((len(keypoints), side, side), np.float32)
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
            patches[rows] = np.where(inside, cut, np.nan)
    return patches


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
) -> PatchSamples:
    """Extract the features of photos and cut the patch of each.

    Raises InputError if there are no features in any of them, ImageError for a file that cannot be read.
    """
    columns: list[tuple[NDArray[Any], ...]] = []
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
        columns.append((features.descriptors, features.keypoints, patches, contrasts, numbers))
    if not columns:
        raise InputError("no features in any of the photos: give others, or a lower contrast threshold")
    descriptors, keypoints, patches, contrasts, numbers = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    return PatchSamples(descriptors, keypoints, patches, contrasts, numbers, digest.hexdigest(), features.extractor)
