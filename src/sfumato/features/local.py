# SPDX-License-Identifier: Apache-2.0
"""Local features of pictures: DoG or Harris keypoints, described by SIFT, RootSIFT or a network for patches.

One picture at a time; ``features.sources`` works through folders. Keypoints are in the convention of
``sfumato.types.clear``. The result is clear: it must not leave the device.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.features.harris import find_corners
from sfumato.features.networks import NETWORKS, PatchNetwork, describe_patches, load_network
from sfumato.images.read import opencv_error, read_image, to_grey
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers
from sfumato.types.clear import Features, Image
from sfumato.types.extractor import Extractor, Setting

Floats = NDArray[np.float32]
Descriptors = tuple[Floats, NDArray[np.float64]]

LONGEST_SIDE = 32_000
"""OpenCV counts pixels in 16 bits while it doubles a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParams:
    """Settings of local features: detector and descriptor.

    At most the ``max_features`` strongest are kept. ``contrast_threshold``, ``edge_threshold``, ``sigma`` and
    ``octave_layers`` are OpenCV's, for DoG; for Harris ``sigma`` is the width of its window, and ``corner_quality`` the
    least response of a corner, as a share of the strongest. ``precise_upscale`` removes a shift of 0.25 pixels that
    OpenCV has without it. Networks see the square of half side ``patch_scale`` times sigma around a keypoint;
    ``weights`` is their file, without it kornia downloads them.
    """

    detector: str = "dog"
    descriptor: str = "sift"
    max_features: int = 8000
    contrast_threshold: float = 0.04
    edge_threshold: float = 10.0
    sigma: float = 1.6
    octave_layers: int = 3
    precise_upscale: bool = True
    corner_quality: float = 0.0001
    patch_scale: float = 6.0
    weights: str | os.PathLike[str] | None = None

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
            "corner_quality": Range(0, 1),
            "patch_scale": Range(0.5, 100),
        }
        problems = settle_numbers(self, ranges)
        words: dict[str, list[Any]] = {
            "detector": list(DETECTORS),
            "descriptor": list(DESCRIPTORS),
            "precise_upscale": [True, False],
        }
        for name, known in words.items():
            word = getattr(self, name)
            if not any(word is choice or (isinstance(word, str) and word == choice) for choice in known):
                hint = suggest(str(word), map(str, known))
                problems.append(f"{name} must be one of {', '.join(map(str, known))}, got {word!r:.80}{hint}")
        problems += self._settle_weights()
        if problems:
            raise InputError("; ".join(problems))

    def _settle_weights(self) -> list[str]:
        """Turn a path into plain text; return the problems."""
        kind = NETWORKS.get(self.descriptor) if isinstance(self.descriptor, str) else None
        if self.weights is None:
            missing = kind is not None and kind.published is None
            return [f"weights must be a file: {self.descriptor} has none to download (--weights)"] if missing else []
        if not isinstance(self.weights, str | os.PathLike) or not isinstance(os.fspath(self.weights), str):
            return [f"weights must be the path of a file or None, got {type(self.weights).__name__}"]
        object.__setattr__(self, "weights", os.fspath(self.weights))
        return [] if kind else [f"weights must be None: {self.descriptor!s:.80} is not a network"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Detection:
    """Keypoints of a picture, before they are described.

    ``grey`` (H, W) uint8; ``keypoints`` (N, 4) float32; ``histograms`` (N, 128) float32, SIFT as OpenCV gives it, or
    None if the descriptor needs none.
    """

    grey: NDArray[np.uint8]
    keypoints: Floats
    histograms: Floats | None


def extract(
    image: str | os.PathLike[str] | Image | NDArray[np.uint8], params: LocalParams | None = None, **settings: Any
) -> Features:
    """Extract the local features of a picture: a file, an Image, or uint8 pixels (H, W) or (H, W, 3) RGB.

    Rows go from the strongest to the weakest; the same pixels always give the same rows. Descriptors are
    float32 of unit norm, (N, 128). A picture without features gives none. Settings are those of LocalParams.

    >>> extract(np.zeros((40, 60), np.uint8), descriptor="rootsift")
    Features(0 x 128 rootsift, clear)

    Raises ImageError for a file that cannot be read, InputError for settings and arrays that are not valid. For
    networks also MissingDependency without the extra ``learn``, and FileError for weights that are missing or wrong.
    """
    params = resolve_params(params, settings)
    prepare(params)
    picture = _as_image(image)
    detection = DETECTORS[params.detector](to_grey(picture), params)
    rows, norms = DESCRIPTORS[params.descriptor](detection, params)
    usable = norms > 0
    return Features(detection.keypoints[usable], rows[usable], extractor_of(params), picture.size)


def extractor_of(params: LocalParams) -> Extractor:
    """Return the extractor of descriptors with these settings.

    A network's name carries the checksum of its weights, ``hardnet-1f0c9a27``: descriptors of other weights live in
    another space, and kinds are compared by name. The path of the file is not recorded.
    """
    network = prepare(params)
    settings: dict[str, Setting] = asdict(params)
    if network is None:
        return Extractor(params.descriptor, settings)
    return Extractor(f"{network.kind}-{network.checksum}", settings | {"weights": network.checksum})


def prepare(params: LocalParams) -> PatchNetwork | None:
    """Return the network of these settings, loaded once; None if the descriptor is not a network.

    Raises MissingDependency without the extra ``learn``, FileError for weights that are missing or wrong.
    """
    return load_network(params.descriptor, params.weights) if params.descriptor in NETWORKS else None


def resolve_params(params: LocalParams | None, settings: dict[str, Any]) -> LocalParams:
    """Return the params with single settings changed; misspelt ones are an InputError."""
    if params is not None and not isinstance(params, LocalParams):
        raise InputError(f"params must be LocalParams or None, got {type(params).__name__}")
    refuse_unknown(LocalParams, settings)
    return replace(params or LocalParams(), **settings)


def detect_dog(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    """Find the strongest extrema of differences of Gaussians, with their SIFT histograms."""
    _refuse_too_long(grey)

    def work(sift: Any) -> Any:
        return sift.detectAndCompute(grey, None) if _wants_histograms(params) else (sift.detect(grey, None), None)

    points, histograms = _with_sift(grey, params, work)
    if not points:
        return _nothing(grey, params)
    table = np.array([(*p.pt, p.size / 2, p.angle, p.response) for p in points], np.float32)
    order = _strongest_first(table)[: params.max_features]
    return Detection(grey, table[order, :4], None if histograms is None else histograms[order])


def detect_harris(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    """Find the strongest Harris corners at several scales; OpenCV makes their SIFT histograms at those scales."""
    import cv2

    _refuse_too_long(grey)
    table = find_corners(grey, params.sigma, params.corner_quality)
    if not len(table):
        return _nothing(grey, params)
    table = table[_strongest_first(table)[: params.max_features]]
    if not _wants_histograms(params):
        return Detection(grey, table[:, :4], None)
    points = [
        cv2.KeyPoint(float(x), float(y), 2 * float(sigma), float(angle), float(response), int(level))
        for x, y, sigma, angle, response, level in table
    ]  # the level of OpenCV's pyramid, in its first layer, has the blur of the corner's sigma
    return Detection(grey, table[:, :4], _with_sift(grey, params, lambda sift: sift.compute(grey, points)[1]))


def describe_sift(detection: Detection, _: LocalParams) -> Descriptors:
    """Return SIFT of unit norm (N, 128), and the norms (N,) before; a row of norm 0 describes nothing."""
    assert detection.histograms is not None
    return _unit(detection.histograms)


def describe_rootsift(detection: Detection, _: LocalParams) -> Descriptors:
    """Return the square root of SIFT of unit sum: its Euclidean distance is SIFT's Hellinger distance."""
    assert detection.histograms is not None
    return _unit(np.sqrt(detection.histograms.astype(np.float64)))


def describe_by_network(detection: Detection, params: LocalParams) -> Descriptors:
    """Return the descriptors that a network gives the patches around keypoints, of unit norm."""
    network = prepare(params)
    assert network is not None
    return _unit(describe_patches(detection.grey, detection.keypoints, network, params.patch_scale))


DETECTORS: dict[str, Callable[[NDArray[np.uint8], LocalParams], Detection]] = {
    "dog": detect_dog,
    "harris": detect_harris,
}

DESCRIPTORS: dict[str, Callable[[Detection, LocalParams], Descriptors]] = {
    "sift": describe_sift,
    "rootsift": describe_rootsift,
    **dict.fromkeys(NETWORKS, describe_by_network),
}


def _wants_histograms(params: LocalParams) -> bool:
    return params.descriptor not in NETWORKS


def _nothing(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    histograms = np.empty((0, 128), np.float32) if _wants_histograms(params) else None
    return Detection(grey, np.empty((0, 4), np.float32), histograms)


def _refuse_too_long(grey: NDArray[np.uint8]) -> None:
    if max(grey.shape) > LONGEST_SIDE:
        size = f"{grey.shape[1]} x {grey.shape[0]}"
        raise InputError(f"a picture of {size} pixels is too large: make its longer side {LONGEST_SIDE} or less")


def _with_sift(grey: NDArray[np.uint8], params: LocalParams, work: Callable[[Any], Any]) -> Any:
    """Call a function with OpenCV's SIFT; OpenCV's errors become ours."""
    import cv2

    try:
        sift = cv2.SIFT.create(
            nfeatures=params.max_features,  # and all that are as strong as the last one
            nOctaveLayers=params.octave_layers,
            contrastThreshold=params.contrast_threshold,
            edgeThreshold=params.edge_threshold,
            sigma=params.sigma,
            enable_precise_upscale=params.precise_upscale,
        )
        return work(sift)
    except cv2.error as cause:
        error = InputError(f"OpenCV cannot extract features from {grey.shape[1]} x {grey.shape[0]} pixels: {cause}")
        raise opencv_error(cause, error) from cause


def _strongest_first(table: Floats) -> NDArray[np.intp]:
    """Return the order of rows x, y, sigma, angle, response, ...: strongest first, ties by position."""
    x, y, sigma, angle, response = table[:, :5].T
    return np.lexsort((angle, sigma, x, y, -response))


def _unit(rows: NDArray[Any]) -> Descriptors:
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
