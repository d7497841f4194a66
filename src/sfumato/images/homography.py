# SPDX-License-Identifier: Apache-2.0
"""Pairs of images with exact ground truth: a picture, and the same picture seen through a known homography.

For evaluations and demonstrations, never for concealment: all that is drawn comes from the caller's
generator. Coordinates are those of keypoints (``sfumato.types.clear``): the centre of the first pixel is (0, 0).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import Range, frozen_array, refuse_unknown, settle_numbers
from sfumato.types.clear import Image

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HomographyParams:
    """Limits of the changes in a second picture; each change is drawn evenly up to its limit.

    0 (for ``scale`` 1) is no change. ``rotation`` in degrees, either way. ``scale`` a factor, from 1/scale to
    scale. ``perspective`` moves each corner by this share of half the width and height. ``translation`` is a
    share of width and height. ``brightness`` is added, in grey levels, and ``contrast`` changes the distance
    from middle grey by this share. ``blur`` is the sigma of a Gaussian in pixels of the second picture,
    ``noise`` the deviation of Gaussian noise in grey levels.
    """

    rotation: float = 30.0
    scale: float = 1.25
    perspective: float = 0.15
    translation: float = 0.05
    brightness: float = 20.0
    contrast: float = 0.2
    blur: float = 0.5
    noise: float = 2.0

    def __new__(cls, **settings: object) -> "HomographyParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "rotation": Range(0, 180),
            "scale": Range(1, 8),
            "perspective": Range(0, 0.5),
            "translation": Range(0, 1),
            "brightness": Range(0, 255),
            "contrast": Range(0, 1),
            "blur": Range(0, 50),
            "noise": Range(0, 255),
        }
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HomographyPair:
    """Two pictures; ``homography`` (3, 3) float64 takes pixel coordinates of the first to the second."""

    first: Image
    second: Image
    homography: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "homography", frozen_array(self.homography, "homography", (3, 3), np.float64))

    def __repr__(self) -> str:
        return f"HomographyPair({self.first!r}, {self.second!r})"


def make_pair(
    image: Image, rng: np.random.Generator, params: HomographyParams | None = None, **settings: Any
) -> HomographyPair:
    """Draw a homography and show ``image`` through it, on a canvas of the same size.

    Outside of the first picture the second has its mean colour. Settings are those of HomographyParams.

    >>> pair = make_pair(Image(np.zeros((40, 60), np.uint8)), np.random.default_rng(0), rotation=0, noise=0)
    >>> pair.second.size
    (60, 40)
    """
    params = replace(params or HomographyParams(), **settings)
    homography = draw_homography(image.size, rng, params)
    pixels = _warp(image.pixels, homography)
    sigma = rng.uniform(0, params.blur)
    if sigma > 0:
        pixels = _blur(pixels, sigma)
    gain = 1 + rng.uniform(-params.contrast, params.contrast)
    pixels = (pixels - 127.5) * gain + 127.5 + rng.uniform(-params.brightness, params.brightness)
    deviation = rng.uniform(0, params.noise)
    if deviation > 0:
        pixels = pixels + rng.normal(0, deviation, pixels.shape)
    second = Image(np.clip(np.rint(pixels), 0, 255).astype(np.uint8), image.name and f"{image.name} warped")
    return HomographyPair(image, second, homography)


def draw_homography(size: tuple[int, int], rng: np.random.Generator, params: HomographyParams) -> Array:
    """Draw a homography (3, 3) of a picture of ``size`` (width, height) around its centre.

    The corners are moved first, then everything is scaled, turned and moved.
    """
    center = (np.array(size, float) - 1) / 2
    half = np.maximum(center, 0.5)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half
    moved = corners + rng.uniform(-params.perspective, params.perspective, (4, 2)) * half
    angle = np.deg2rad(rng.uniform(-params.rotation, params.rotation))
    factor = params.scale ** rng.uniform(-1, 1)
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    shift = rng.uniform(-params.translation, params.translation, 2) * size
    turned = np.array([[cos, -sin, center[0] + shift[0]], [sin, cos, center[1] + shift[1]], [0, 0, 1]])
    to_center = np.array([[1, 0, -center[0]], [0, 1, -center[1]], [0, 0, 1]])
    unscaled = turned @ _from_corners(corners, moved) @ to_center
    homography: Array = unscaled / unscaled[2, 2]
    return homography


def warp_points(homography: ArrayLike, points: ArrayLike) -> Array:
    """Take points (N, 2) through a homography (3, 3); a point on its horizon goes to infinity.

    >>> warp_points([[1, 0, 5], [0, 1, 0], [0, 0, 1]], [[1, 2]])
    array([[6., 2.]])
    """
    matrix = frozen_array(homography, "homography", (3, 3), np.float64)
    flat = frozen_array(points, "points", (None, 2), np.float64)
    moved = flat @ matrix[:, :2].T + matrix[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = moved[:, :2] / moved[:, 2:]
    return result


def _from_corners(before: Array, after: Array) -> Array:
    """Return the homography (3, 3) that takes four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(before, after, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    entries = np.linalg.solve(np.array(rows), after.ravel())
    return np.append(entries, 1.0).reshape(3, 3)


def _warp(pixels: NDArray[np.uint8], homography: Array) -> Array:
    """Return a picture (H, W) or (H, W, 3) seen through a homography, sampled by cubic splines.

    Where the picture shrinks it is first blurred, so that nothing aliases. OpenCV's own warp is not used: it
    rounds coordinates to 1/32 pixel.
    """
    from scipy.ndimage import map_coordinates

    height, width = pixels.shape[:2]
    source = pixels.astype(np.float64)
    shrinks = 1 / _magnification(homography, (width, height))
    if shrinks > 1:
        source = _blur(source, 0.5 * np.sqrt(shrinks**2 - 1))
    back = np.linalg.inv(homography)
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    x, y, w = np.tensordot(back, np.stack([across, down, np.ones_like(across)]), 1)
    behind = w <= 0  # beyond the horizon
    w[behind] = np.inf
    positions = np.where(behind, -10.0, np.stack([y / w, x / w]))
    channels = np.atleast_3d(source)
    sampled = [
        map_coordinates(channels[:, :, c], positions, order=3, mode="constant", cval=channels[:, :, c].mean())
        for c in range(channels.shape[2])
    ]
    return np.stack(sampled, axis=2).reshape(pixels.shape)


def _magnification(homography: Array, size: tuple[int, int]) -> float:
    """Return by how much lengths grow at the centre of a picture."""
    point = np.array([(size[0] - 1) / 2, (size[1] - 1) / 2, 1.0])
    w = homography[2] @ point
    return float(np.sqrt(abs(np.linalg.det(homography) / w**3)))


def _blur(pixels: Array, sigma: float) -> Array:
    from scipy.ndimage import gaussian_filter

    blurred: Array = gaussian_filter(pixels, sigma, axes=(0, 1), mode="nearest")
    return blurred


SequenceKind = Literal["illumination", "viewpoint", "other"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HomographySequence:
    """Pictures of one flat scene; ``homographies[k]`` (3, 3) takes pixels of ``paths[0]`` to ``paths[k + 1]``."""

    name: str
    kind: SequenceKind
    paths: tuple[Path, ...]
    homographies: tuple[NDArray[np.float64], ...]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.homographies) + 1:
            raise InputError(
                f"sequence {self.name}: {len(self.paths)} pictures need {len(self.paths) - 1} homographies, "
                f"got {len(self.homographies)}"
            )
        checked = tuple(frozen_array(matrix, "homography", (3, 3), np.float64) for matrix in self.homographies)
        object.__setattr__(self, "paths", tuple(self.paths))
        object.__setattr__(self, "homographies", checked)

    def __repr__(self) -> str:
        return f"HomographySequence({self.name!r}, {self.kind}, {len(self.paths)} images)"
