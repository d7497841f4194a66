# SPDX-License-Identifier: Apache-2.0
"""Painting: one picture from patches at keypoints, by averaged gradients and Poisson's equation.

A patch is a small picture in the frame of a keypoint (x, y, sigma, angle). Overlapping patches disagree about
brightness but agree about gradients, so gradients are averaged, the finest patches counting most. The picture with the
nearest gradients solves Poisson's equation; with free (Neumann) borders, over which nothing flows, the cosine transform
diagonalises it (Perez et al., Poisson Image Editing, 2003) and one solve is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.fast import load_compiled

Floats = NDArray[np.float32]

PATCH_SIDE = 24
REACH = 6.0
"""Half the side of a patch, in sigmas: SIFT looks no further (four cells of three sigmas)."""

USUAL_BRIGHTNESS = 0.45
"""Mean grey of photos; no descriptor tells it."""

CHANNELS = 6
"""Inputs of the refinement: picture, differences right and down, their energy, cover, scale."""


def solve_poisson(right: Floats, down: Floats, mean: float = 0.0) -> Floats:
    """Return the picture (H, W) of a given mean that minimises the squared distance to gradients.

    ``right`` (H, W) is the difference of the pixel to the right, ``down`` that of the pixel below; their last column
    and row do not count.
    """
    from scipy.fft import dctn, idctn

    height, width = right.shape
    spectrum = dctn(divergence(right, down), type=2, workers=1)
    vertical = 2 * np.cos(np.pi * np.arange(height, dtype=np.float32) / height) - 2
    horizontal = 2 * np.cos(np.pi * np.arange(width, dtype=np.float32) / width) - 2
    eigenvalues = vertical[:, None] + horizontal[None, :]
    eigenvalues[0, 0] = 1
    spectrum /= eigenvalues
    spectrum[0, 0] = 0
    picture: Floats = idctn(spectrum, type=2, workers=1).astype(np.float32) + np.float32(mean)
    return picture


def divergence(right: Floats, down: Floats) -> Floats:
    """Return the divergence (H, W) of forward differences: their adjoint, negated."""
    flow: Floats = np.zeros(right.shape, np.float32)
    flow[:, :-1] += right[:, :-1]
    flow[:, 1:] -= right[:, :-1]
    flow[:-1] += down[:-1]
    flow[1:] -= down[:-1]
    return flow


@dataclass(frozen=True, slots=True, kw_only=True)
class PaintParams:
    """Weights of patches in the average.

    The weight of a patch falls with distance as a Gaussian of deviation ``window`` sigmas, and with its scale as
    sigma to the power -``fineness``. ``faint`` is the weight below which gradients fade to nothing, against a weight
    of 1 at the centre of a patch of sigma 1.
    """

    window: float = 2.5
    fineness: float = 3.0
    faint: float = 1e-3


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Painting:
    """A ``picture`` (H, W) float32 made of patches, not clipped, and ``channels`` (6, H, W) for the refinement."""

    picture: Floats
    channels: Floats

    def __repr__(self) -> str:
        return f"Painting({self.picture.shape[1]} x {self.picture.shape[0]})"


def _load_splat() -> Callable[..., None]:
    from sfumato.inversion.paint_kernel import splat

    return splat  # type: ignore[no-any-return]


def paint(keypoints: Floats, patches: Floats, size: tuple[int, int], params: PaintParams | None = None) -> Painting:
    """Paint patches (N, 24, 24), in units of brightness, at keypoints (N, 4), into a picture of size (width, height).

    Only differences within a patch count. Without patches the picture is even grey.
    """
    splat = load_compiled(_load_splat)
    params = params or PaintParams()
    width, height = size
    sums = np.zeros((height, width, 5), np.float32)
    if len(keypoints):
        strength = keypoints[:, 2] ** np.float32(-params.fineness)
        splat(np.ascontiguousarray(patches), np.ascontiguousarray(keypoints), strength, params.window, sums)
    weight = sums[:, :, 0]
    share: Floats = np.float32(1) / (weight + np.float32(params.faint))
    right: Floats = sums[:, :, 1] * share
    down: Floats = sums[:, :, 2] * share
    picture = solve_poisson(right, down, USUAL_BRIGHTNESS)
    energy = np.sqrt(np.maximum(sums[:, :, 3] * share, 0))
    cover = 0.1 * np.log(weight * np.float32(1 / params.faint) + 1)
    channels = np.stack([picture, right, down, energy, cover, sums[:, :, 4] * share]).astype(np.float32)
    return Painting(picture, channels)
