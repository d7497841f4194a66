# SPDX-License-Identifier: Apache-2.0
"""Local features of pictures: keypoints of COLMAP, OpenCV or Harris, described by SIFT, RootSIFT or a network.

One picture at a time; ``features.sources`` works through folders. Keypoints are in the convention of
``sfumato.types.clear``. The result is clear: it must not leave the device.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, load_pycolmap, suggest
from sfumato.features.harris import find_corners
from sfumato.features.networks import NETWORKS, PatchNetwork, describe_patches, load_network
from sfumato.images.read import opencv_error, read_image, to_grey
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers
from sfumato.types.clear import Features, Image
from sfumato.types.extractor import Extractor, Setting

Floats = NDArray[np.float32]
Descriptors = tuple[Floats, NDArray[np.float64]]

COLMAP_PLACES = 8192
"""Places that COLMAP keeps of a picture by default, those of the largest scale."""
LONGEST_SIDE = 32_000
"""OpenCV counts pixels in 16 bits while it doubles a picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParams:
    """Settings of local features: who finds keypoints, and how they are described.

    ``extractor``: ``colmap`` (COLMAP's own SIFT, whose maps it is made for), ``opencv`` (three times as fast, and finds
    fewer of the same points again) or ``harris`` (corners, with OpenCV's SIFT). Of more than ``max_features`` those of
    the largest scale are kept, of corners the strongest. A picture with a side longer than ``max_image_size`` is made
    smaller first, as COLMAP does. ``contrast_threshold`` (OpenCV's; COLMAP's peak threshold is a third of it),
    ``edge_threshold`` and ``octave_layers`` belong to COLMAP's and OpenCV's detectors; ``sigma`` and
    ``precise_upscale``, which removes a shift of 0.25 pixels, to OpenCV's. For Harris ``sigma`` is the width of its
    window, and ``corner_quality`` the least response of a corner, as a share of the strongest. Networks see the square
    of half side ``patch_scale`` times sigma around a keypoint; ``weights`` is their file, without it the published
    weights are downloaded.
    """

    extractor: str = "colmap"
    descriptor: str = "sift"
    max_features: int = 16_384
    max_image_size: int = 3200
    contrast_threshold: float = 0.02
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
            "max_image_size": Range(16, LONGEST_SIDE, whole=True),
            "contrast_threshold": Range(0, 1),
            "edge_threshold": Range(1, 1000),
            "sigma": Range(0.5, 10),
            "octave_layers": Range(1, 20, whole=True),
            "corner_quality": Range(0, 1),
            "patch_scale": Range(0.5, 100),
        }
        problems = settle_numbers(self, ranges)
        words: dict[str, list[Any]] = {
            "extractor": list(DETECTORS),
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

    ``grey`` (H, W) uint8; ``keypoints`` (N, 4) float32; ``histograms`` (N, 128) float32, SIFT of any scale, or None if
    the descriptor needs none.
    """

    grey: NDArray[np.uint8]
    keypoints: Floats
    histograms: Floats | None


def extract(
    image: str | os.PathLike[str] | Image | NDArray[np.uint8], params: LocalParams | None = None, **settings: Any
) -> Features:
    """Extract the local features of a picture: a file, an Image, or uint8 pixels (H, W) or (H, W, 3) RGB.

    Rows go from the top of the picture to its bottom: their order says nothing that positions do not say. The same
    pixels always give the same rows. Descriptors are float32 of unit norm, (N, 128). A picture without features gives
    none. Settings are those of LocalParams.

    >>> extract(np.zeros((40, 60), np.uint8), descriptor="rootsift")
    Features(0 x 128 rootsift, clear)

    Raises ImageError for a file that cannot be read, InputError for settings and arrays that are not valid. For
    networks also MissingDependency without the extra ``learn``, and FileError for weights that are missing or wrong.
    """
    params = resolve_params(params, settings)
    prepare(params)
    picture = _as_image(image)
    grey = to_grey(picture)
    small = _shrink(grey, params.max_image_size)
    detection = DETECTORS[params.extractor](small, params)
    rows, norms = DESCRIPTORS[params.descriptor](detection, params)
    usable = norms > 0
    keypoints = _enlarge(detection.keypoints[usable], small.shape, grey.shape)
    order = order_by_position(keypoints)
    return Features(keypoints[order], rows[usable][order], extractor_of(params), picture.size)


def order_by_position(keypoints: Floats) -> NDArray[np.intp]:
    """Return the rows of keypoints (N, 4) from top to bottom, and from left to right on one height.

    Scale and angle decide only among keypoints at the very same place.

    >>> order_by_position(np.array([[5, 2, 1, 0], [7, 1, 3, 0], [4, 1, 2, 0]], np.float32))
    array([2, 1, 0])
    """
    x, y, sigma, angle = keypoints[:, :4].T
    return np.lexsort((angle, sigma, x, y))


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
    """Return the network of these settings, loaded once; None if the descriptor is not a network. Loads COLMAP too.

    Raises MissingDependency without the extra ``learn``, FileError for weights that are missing or wrong.
    """
    if params.extractor == "colmap":
        load_pycolmap()
    return load_network(params.descriptor, params.weights) if params.descriptor in NETWORKS else None


def resolve_params(params: LocalParams | None, settings: dict[str, Any]) -> LocalParams:
    """Return the params with single settings changed; misspelt ones are an InputError."""
    if params is not None and not isinstance(params, LocalParams):
        raise InputError(f"params must be LocalParams or None, got {type(params).__name__}")
    refuse_unknown(LocalParams, settings)
    return replace(params or LocalParams(), **settings)


def detect_colmap(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    """Find the extrema of differences of Gaussians as COLMAP does, with its SIFT histograms."""
    pycolmap = load_pycolmap()
    options = pycolmap.FeatureExtractionOptions(use_gpu=False, num_threads=1)
    sift, is_root = options.sift, params.descriptor == "rootsift"
    # COLMAP counts places, and each may have two orientations: by default its own 8,192 places, as it comes.
    sift.max_num_features = min(params.max_features, max(COLMAP_PLACES, params.max_features // 2))
    sift.peak_threshold = max(params.contrast_threshold / params.octave_layers, 1e-9)  # as OpenCV divides it
    sift.edge_threshold, sift.octave_resolution = params.edge_threshold, params.octave_layers
    sift.normalization = pycolmap.Normalization.L1_ROOT if is_root else pycolmap.Normalization.L2
    try:
        points, data = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu).extract_from_uint8_array(grey)
    except (RuntimeError, ValueError) as cause:
        size = f"{grey.shape[1]} x {grey.shape[0]}"
        raise InputError(f"COLMAP cannot extract features from {size} pixels: {str(cause).strip():.200}") from cause
    if not len(points):
        return _nothing(grey, params)
    table = pycolmap.keypoints_to_matrix(points)[:, :4].astype(np.float64)
    table = np.column_stack([table[:, :2] - 0.5, table[:, 2], np.mod(np.rad2deg(table[:, 3]), 360)]).astype(np.float32)
    rows = _choose(table, table[:, 2], params.max_features)
    histograms = data.data[rows].astype(np.float32)
    return Detection(
        grey, table[rows], (histograms**2 if is_root else histograms) if _wants_histograms(params) else None
    )


def detect_opencv(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    """Find the extrema of differences of Gaussians with OpenCV, with its SIFT histograms."""

    def work(sift: Any) -> Any:
        return sift.detectAndCompute(grey, None) if _wants_histograms(params) else (sift.detect(grey, None), None)

    points, histograms = _with_sift(grey, params, work)
    if not points:
        return _nothing(grey, params)
    table = np.array([(*p.pt, p.size / 2, p.angle) for p in points], np.float32)
    rows = _choose(table, table[:, 2], params.max_features)
    return Detection(grey, table[rows], None if histograms is None else histograms[rows])


def detect_harris(grey: NDArray[np.uint8], params: LocalParams) -> Detection:
    """Find the strongest Harris corners at several scales; OpenCV makes their SIFT histograms at those scales."""
    import cv2

    table = find_corners(grey, params.sigma, params.corner_quality)
    if not len(table):
        return _nothing(grey, params)
    table = table[_choose(table, table[:, 4], params.max_features)]
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
    "colmap": detect_colmap,
    "opencv": detect_opencv,
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


def _with_sift(grey: NDArray[np.uint8], params: LocalParams, work: Callable[[Any], Any]) -> Any:
    """Call a function with OpenCV's SIFT; OpenCV's errors become ours."""
    import cv2

    try:
        sift = cv2.SIFT.create(
            nfeatures=0,  # all: OpenCV would keep the strongest
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


def _choose(table: Floats, rank: Floats, most: int) -> NDArray[np.intp]:
    """Return the rows x, y, sigma, angle, ... of highest rank, at most this many, from top to bottom."""
    x, y, sigma, angle = table[:, :4].T
    best = np.lexsort((angle, sigma, x, y, -rank))[:most]
    return best[order_by_position(table[best])]


def _shrink(grey: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """Return a picture whose sides are at most this long."""
    if max(grey.shape) <= longest:
        return grey
    import cv2

    share = longest / max(grey.shape)
    height, width = (max(1, round(share * side)) for side in grey.shape)
    small: NDArray[np.uint8] = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    return small


def _enlarge(keypoints: Floats, small: tuple[int, ...], full: tuple[int, ...]) -> Floats:
    """Return where keypoints of a smaller picture are in the full one."""
    if small == full:
        return keypoints
    across, down = full[1] / small[1], full[0] / small[0]
    x, y, sigma, angle = keypoints.T.astype(np.float64)
    places = (x + 0.5) * across - 0.5, (y + 0.5) * down - 0.5
    return np.column_stack([*places, sigma * np.sqrt(across * down), angle]).astype(np.float32)


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
