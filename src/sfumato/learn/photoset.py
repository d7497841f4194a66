# SPDX-License-Identifier: Apache-2.0
"""The photos a network is trained with: pixels and clear features, and windows cut out of both.

Features are those of the whole photo, so that a window has as many as the same place of a photo that is attacked. Holds
clear descriptors of public photos; nothing of it is written anywhere.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import ImageError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import read_image
from sfumato.learn.featuremap import Placed, place
from sfumato.learn.representation import canonical_input
from sfumato.types.clear import Features, Image
from sfumato.types.concealed import ConcealedFeatures

Progress = Callable[[Iterable[Any]], Iterable[Any]]
Concealer = Callable[[Features], ConcealedFeatures]
"""How features are concealed: fresh draws at every call."""

Picture = str | os.PathLike[str] | Image

LONGEST = 480
"""Larger photos are reduced to this longer side, in training and when a picture is made."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Photo:
    """A photo of others: ``pixels`` (H, W, 3) uint8 and the clear ``features`` found in it."""

    pixels: NDArray[np.uint8]
    features: Features

    def __repr__(self) -> str:
        return f"Photo({self.pixels.shape[1]} x {self.pixels.shape[0]}, {self.features!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Window:
    """A square of a photo: ``truth`` (side, side, 3) uint8, what was released in it (M, C), and where."""

    truth: NDArray[np.uint8]
    inputs: NDArray[np.float32]
    placed: Placed

    def __repr__(self) -> str:
        return f"Window({self.truth.shape[1]} x {self.truth.shape[0]}, {len(self.inputs)} features)"


def read_photos(pictures: Sequence[Picture], local: LocalParams, side: int, progress: Progress = iter) -> list[Photo]:
    """Read photos and extract their features; each is reduced to LONGEST, or enlarged until a window fits in.

    Photos that can not be read, or show no feature, are named in the log and left out.

    Raises InputError if fewer than two are left: one is needed to learn from, one to see what was learned.
    """
    found = list(_read(pictures, local, side, progress))
    if len(found) < 2:
        raise InputError(f"{len(found)} of {len(pictures)} photos are of use: a training needs two at least")
    return found


def _read(pictures: Sequence[Picture], local: LocalParams, side: int, progress: Progress) -> Iterator[Photo]:
    for picture in progress(pictures):
        try:
            image = picture if isinstance(picture, Image) else read_image(picture)
        except ImageError as problem:
            log.warning("left out of the training: %s", problem)
            continue
        pixels = fitted(image.pixels, side)
        features = extract(pixels, local)
        if len(features):
            yield Photo(pixels, features)
        else:
            log.warning("left out of the training, no features: %s", image.name)


def fitted(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return a picture in colours, its longer side at most LONGEST and its shorter side at least ``side``."""
    import cv2

    coloured = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
    height, width = coloured.shape[:2]
    scale = max(min(1.0, LONGEST / max(height, width)), side / min(height, width))
    if scale == 1:
        return coloured
    size = max(side, round(width * scale)), max(side, round(height * scale))
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    scaled: NDArray[np.uint8] = cv2.resize(coloured, size, interpolation=method)
    return scaled


def cut(photo: Photo, corner: tuple[int, int], side: int, concealer: Concealer | None, frame: ArrayLike) -> Window:
    """Cut the square of so many pixels whose first pixel is ``corner`` (x, y), and conceal the features in it."""
    x, y = corner
    placed = place(photo.features.keypoints, (side, side), corner=corner)
    inside = Features(
        photo.features.keypoints[placed.rows],
        photo.features.descriptors[placed.rows],
        photo.features.extractor,
        photo.features.image_size,
    )
    released = inside.descriptors if concealer is None else canonical_input(concealer(inside).subspaces, frame)
    return Window(photo.pixels[y : y + side, x : x + side], released, placed)


def random_windows(
    photos: Sequence[Photo],
    side: int,
    count: int,
    rng: np.random.Generator,
    concealer: Concealer | None,
    frame: ArrayLike,
) -> list[Window]:
    """Cut windows at random places of random photos; at least one of them has a feature."""
    while True:
        windows = []
        for number in rng.integers(len(photos), size=count):
            height, width = photos[number].pixels.shape[:2]
            corner = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
            windows.append(cut(photos[number], corner, side, concealer, frame))
        if any(len(window.inputs) for window in windows):
            return windows
