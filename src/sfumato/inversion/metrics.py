# SPDX-License-Identifier: Apache-2.0
"""Scores of a reconstructed picture: mean absolute error, structural similarity, signal to noise; and its outlines.

Pictures are arrays with values from 0 to 1, grey or red-green-blue. Structural similarity is scikit-image's with
the Gaussian window of Wang et al. (2004): sigma 1.5, no sample covariance, a range of 1.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError

GREY = (0.299, 0.587, 0.114)
"""Parts of red, green and blue in grey, as everywhere in this package."""

SMALLEST_SIDE = 11
"""The window of the structural similarity, in pixels."""


def picture_scores(picture: ArrayLike, truth: ArrayLike) -> dict[str, float]:
    """Score a picture (H, W) or (H, W, 3) against the true one: mae, ssim and psnr in grey, and in colour if both have.

    Integers are taken as 0 to 255. ``psnr`` of equal pictures is infinite.

    >>> scores = picture_scores(np.full((16, 16), 0.5), np.full((16, 16), 0.25))
    >>> round(scores["mae"], 3), round(scores["psnr"], 2)
    (0.25, 12.04)

    Raises InputError for other shapes, values outside 0 to 1, and pictures smaller than the window.
    """
    pictures = _checked(picture, "picture"), _checked(truth, "truth")
    if pictures[0].shape[:2] != pictures[1].shape[:2]:
        sizes = " and ".join(f"{picture.shape[1]} x {picture.shape[0]}" for picture in pictures)
        raise InputError(f"pictures to compare must have one size, got {sizes}")
    scores = _scores(*(as_grey(picture) for picture in pictures))
    if all(picture.ndim == 3 for picture in pictures):
        scores |= {f"{name}_rgb": value for name, value in _scores(*pictures).items()}
    return scores


def as_grey(picture: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a picture (H, W) or (H, W, 3) as grey (H, W)."""
    return picture if picture.ndim == 2 else picture @ np.asarray(GREY, picture.dtype)


OUTLINE_WINDOW = 10 / 3
"""Standard deviation of the window in which contrast is measured, in pixels of a photo of 480."""
OUTLINE_BLACK = 0.2
"""Contrast that is drawn black: the standard deviation of grey values, of 0 to 1."""


def outlines(picture: ArrayLike, scale: float = 1.0) -> NDArray[np.float32]:
    """Return the outlines of a picture (H, W) or (H, W, 3): white where it is even, black where it has contrast.

    Keypoints lie where a picture has contrast, and say nothing of what is bright and what is dark: a dark spot on
    bright ground gives the same ones as a bright spot on dark ground. So this is what positions alone can show.
    ``scale``: the size of the picture, as a share of its photo's.
    """
    import cv2

    grey, window = as_grey(_checked(picture, "picture")), OUTLINE_WINDOW * scale
    mean, square = (cv2.GaussianBlur(one, (0, 0), window, borderType=cv2.BORDER_REPLICATE) for one in (grey, grey**2))
    contrast = np.sqrt(np.maximum(square - mean**2, 0))
    drawn: NDArray[np.float32] = (1 - np.minimum(contrast / OUTLINE_BLACK, 1)).astype(np.float32)
    return drawn


def outline_score(painted: ArrayLike, truth: ArrayLike) -> float:
    """Return the correlation of painted outlines (H, W) or (H, W, 3) with those of the true picture; 0 for an even one.

    >>> rng = np.random.default_rng(0)
    >>> photo = np.kron(rng.random((4, 4)), np.ones((16, 16)))
    >>> outline_score(outlines(photo), photo), outline_score(np.ones((64, 64)), photo)
    (1.0, 0.0)
    """
    ours, theirs = (np.asarray(one, np.float64) for one in (as_grey(_checked(painted, "painted")), outlines(truth)))
    if ours.shape != theirs.shape:
        raise InputError(f"pictures to compare must have one size, got {ours.shape[::-1]} and {theirs.shape[::-1]}")
    ours, theirs = ours - ours.mean(), theirs - theirs.mean()
    norm = float(np.sqrt((ours**2).sum() * (theirs**2).sum()))
    return round(float((ours * theirs).sum()) / norm, 12) if norm > 1e-9 else 0.0


def summary(scores: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each score over photos, and beside it its standard deviation, ``ssim_deviation`` and so on."""
    means: dict[str, float] = {"photos": float(len(scores))}
    for name in scores[0] if scores else ():
        values = np.array([score[name] for score in scores])
        means |= {name: float(values.mean()), f"{name}_deviation": float(values.std(ddof=min(1, len(scores) - 1)))}
    return means


def leakage(ssim: float, floor: float, clear: float) -> float:
    """Return the share of the detail that clear descriptors add: 0 at the floor (keypoints alone), 1 for clear ones."""
    return (ssim - floor) / (clear - floor) if clear != floor else float("nan")


def _scores(picture: NDArray[np.float64], truth: NDArray[np.float64]) -> dict[str, float]:
    from skimage.metrics import structural_similarity

    squared = float(np.mean((picture - truth) ** 2))
    similar = structural_similarity(
        truth,
        picture,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=None if picture.ndim == 2 else 2,
    )
    return {
        "mae": float(np.abs(picture - truth).mean()),
        "ssim": float(similar),
        "psnr": float("inf") if squared == 0 else -10 * float(np.log10(squared)),
    }


def _checked(picture: ArrayLike, name: str) -> NDArray[np.float64]:
    given = np.asarray(picture)
    values: NDArray[np.float64] = given / 255.0 if given.dtype.kind in "iu" else given.astype(np.float64)
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] != 3):
        raise InputError(f"{name}: expected a picture (H, W) or (H, W, 3), got {given.shape}")
    if min(values.shape[:2]) < SMALLEST_SIDE:
        raise InputError(f"{name}: a picture must be {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels or more to be compared")
    if not (values.min() >= -1e-6 and values.max() <= 1 + 1e-6):  # also refuses NaN
        raise InputError(f"{name}: values must be from 0 to 1")
    return values
