# SPDX-License-Identifier: Apache-2.0
"""Local features of pictures: DoG keypoints with SIFT or RootSIFT, by OpenCV.

Knows one picture at a time; ``features.many`` works through folders. Keypoints are in the convention of
``sfumato.types.clear``. What it returns is clear: it must not leave the device.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.images.read import read_image, to_grey, told_by_cv
from sfumato.images.settings import Range, refuse_unknown, settle_numbers
from sfumato.types.clear import Features, Image
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]

LONGEST_SIDE = 32_000
"""OpenCV counts pixels in 16 bits while it doubles a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParams:
    """How local features are found and described.

    At most the ``max_features`` strongest are kept. ``contrast_threshold``, ``edge_threshold``, ``sigma`` and
    ``octave_layers`` are OpenCV's. ``precise_upscale`` removes a shift of 0.25 pixels that OpenCV has without
    it.
    """

    detector: str = "dog"
    descriptor: str = "sift"
    max_features: int = 8000
    contrast_threshold: float = 0.04
    edge_threshold: float = 10.0
    sigma: float = 1.6
    octave_layers: int = 3
    precise_upscale: bool = True

    def __new__(cls, **settings: object) -> "LocalParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "max_features": Range(1, 10_000_000, whole=True),
            "contrast_threshold": Range(0, 1),
            "edge_threshold": Range(1, 1000),
            "sigma": Range(0.5, 10),
            "octave_layers": Range(1, 20, whole=True),
        }
        problems = settle_numbers(self, ranges)
        words: dict[str, list[Any]] = {
            "detector": list(DETECTORS),
            "descriptor": list(DESCRIPTORS),
            "precise_upscale": [True, False],
        }
        for name, known in words.items():
            word = getattr(self, name)
            if not any(word is one or (isinstance(word, str) and word == one) for one in known):
                hint = suggest(str(word), map(str, known))
                problems.append(f"{name} must be one of {', '.join(map(str, known))}, got {word!r:.80}{hint}")
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Detected:
    """What a descriptor is made from.

    ``grey`` (H, W) uint8; ``keypoints`` (N, 4) float32; ``histograms`` (N, 128) float32, SIFT as OpenCV gives
    it.
    """

    grey: NDArray[np.uint8]
    keypoints: Floats
    histograms: Floats


def extract(
    image: str | os.PathLike[str] | Image | NDArray[np.uint8], params: LocalParams | None = None, **settings: Any
) -> Features:
    """Extract the local features of a picture: a file, an Image, or uint8 pixels (H, W) or (H, W, 3) RGB.

    Rows go from the strongest to the weakest; the same pixels always give the same rows. Descriptors are
    float32 of unit norm, (N, 128). A picture without features gives none. Settings are those of LocalParams.

    >>> extract(np.zeros((40, 60), np.uint8), descriptor="rootsift")
    Features(0 x 128 rootsift, clear)

    Raises ImageError for a file that can not be read, InputError for settings and arrays that are not valid.
    """
    params = chosen(params, settings)
    picture = _as_image(image)
    detected = DETECTORS[params.detector](to_grey(picture), params)
    rows, norms = DESCRIPTORS[params.descriptor](detected)
    described = norms > 0
    return Features(
        detected.keypoints[described],
        rows[described],
        Extractor(params.descriptor, asdict(params)),
        picture.size,
    )


def chosen(params: LocalParams | None, settings: dict[str, Any]) -> LocalParams:
    """Return the params with single settings changed; misspelt ones are an InputError."""
    if params is not None and not isinstance(params, LocalParams):
        raise InputError(f"params must be LocalParams or None, got {type(params).__name__}")
    refuse_unknown(LocalParams, settings)
    return replace(params or LocalParams(), **settings)


def detect_dog(grey: NDArray[np.uint8], params: LocalParams) -> Detected:
    """Find the strongest extrema of differences of Gaussians, with their SIFT histograms."""
    import cv2

    if max(grey.shape) > LONGEST_SIDE:
        size = f"{grey.shape[1]} x {grey.shape[0]}"
        raise InputError(f"a picture of {size} pixels is too large: make its longer side {LONGEST_SIDE} or less")
    try:
        sift = cv2.SIFT.create(
            nfeatures=params.max_features,  # and all that are as strong as the last one
            nOctaveLayers=params.octave_layers,
            contrastThreshold=params.contrast_threshold,
            edgeThreshold=params.edge_threshold,
            sigma=params.sigma,
            enable_precise_upscale=params.precise_upscale,
        )
        found, histograms = sift.detectAndCompute(grey, None)
    except cv2.error as cause:
        told = InputError(f"OpenCV can not extract features from {grey.shape[1]} x {grey.shape[0]} pixels: {cause}")
        raise told_by_cv(cause, told) from cause
    if not found:
        return Detected(grey, np.empty((0, 4), np.float32), np.empty((0, 128), np.float32))
    table = np.array([(*p.pt, p.size / 2, p.angle, p.response) for p in found], np.float32)
    x, y, sigma, angle, response = table.T
    order = np.lexsort((angle, sigma, x, y, -response))[: params.max_features]
    return Detected(grey, table[order, :4], histograms[order])


def describe_sift(detected: Detected) -> tuple[Floats, NDArray[np.float64]]:
    """Return SIFT of unit norm (N, 128), and the norms (N,) before; a row of norm 0 describes nothing."""
    return _unit(detected.histograms)


def describe_rootsift(detected: Detected) -> tuple[Floats, NDArray[np.float64]]:
    """Return the square root of SIFT of unit sum: its Euclidean distance is SIFT's Hellinger distance."""
    return _unit(np.sqrt(detected.histograms.astype(np.float64)))


DETECTORS: dict[str, Callable[[NDArray[np.uint8], LocalParams], Detected]] = {"dog": detect_dog}

DESCRIPTORS: dict[str, Callable[[Detected], tuple[Floats, NDArray[np.float64]]]] = {
    "sift": describe_sift,
    "rootsift": describe_rootsift,
}


def _unit(rows: NDArray[Any]) -> tuple[Floats, NDArray[np.float64]]:
    exact = rows.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    unit: Floats = (exact / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)
    return unit, norms


def _as_image(image: Any) -> Image:
    if isinstance(image, Image):
        return image
    if isinstance(image, np.ndarray):
        return Image(image)
    if isinstance(image, str | os.PathLike):
        return read_image(image)
    raise InputError(f"expected a file name, an Image or uint8 pixels, got {type(image).__name__}")
