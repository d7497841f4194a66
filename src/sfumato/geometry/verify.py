# SPDX-License-Identifier: Apache-2.0
"""Geometric verification: which matches of two images can belong to one rigid scene.

Works on a COLMAP database, pair by pair, and writes the result into it. Each pair is drawn for from the same seed, so
neither the order nor the number of threads changes anything. Knows positions, cameras and rows; no descriptors.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import lgamma, log, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.geometry.colmap import from_rigid, load_pycolmap
from sfumato.types.progress import Progress
from sfumato.types.scene import Pose

# --- how easily an epipolar geometry comes about by chance; concealed features have many wrong matches


Floats = NDArray[np.float64]

SHUFFLES = 20
SOLUTIONS = {5: 10, 7: 3}
"""Most geometries that a sample of this many matches has."""


def _log_false_alarms(
    geometry: Floats, sides: tuple[Floats, Floats], max_error: float, inliers: int, *, sample: int, trials: int
) -> float:
    """Return the logarithm to base 10 of the number of geometries that would fit as many of these matches by chance.

    ``geometry`` (3, 3) takes a point of image 0 to its line in image 1; ``sides`` two times (N, 3), matched points in
    homogeneous coordinates; ``sample`` the matches that determine a geometry: 7, or 5 if the cameras are known;
    ``trials`` the samples drawn.

    After Moisan and Stival (2004): the number of geometries drawn, times the number of sets of inliers there can be
    beyond the sample, times the probability that all of one fit by chance. That probability is measured, as the share
    of matches that fit after their partners were exchanged at random, so it knows where keypoints crowd.
    """
    others, fitting = len(sides[0]) - sample, inliers - sample
    if others < 1 or fitting < 1:
        return float("inf")
    sets = (lgamma(others + 1) - lgamma(fitting + 1) - lgamma(others - fitting + 1)) / log(10)
    return log10(trials * SOLUTIONS[sample]) + sets + fitting * log10(_chance_of_fit(geometry, sides, max_error))


def _chance_of_fit(geometry: Floats, sides: tuple[Floats, Floats], max_error: float) -> float:
    """Return which share of matches with random partners is within ``max_error`` of a geometry; never quite 0."""
    rng = np.random.default_rng(0)
    fitting = total = 0
    for _ in range(SHUFFLES):
        partners = sides[1][rng.permutation(len(sides[1]))]
        fitting += int((_squared_sampson_errors(geometry, sides[0], partners) <= max_error**2).sum())
        total += len(partners)
    return (fitting + 1) / (total + 1)


def _squared_sampson_errors(geometry: Floats, points0: Floats, points1: Floats) -> Floats:
    """Return the squared distance, to first order, of matches (N, 3) from the nearest that fit a geometry."""
    lines1, lines0 = points0 @ geometry.T, points1 @ geometry
    misses = np.einsum("ni,ni->n", points1, lines1) ** 2
    slopes = (lines1[:, :2] ** 2).sum(axis=1) + (lines0[:, :2] ** 2).sum(axis=1)
    errors: Floats = misses / np.maximum(slopes, np.finfo(np.float64).tiny)
    return errors


# --- the geometry that most matches of two images fit, estimated or known, and whether to believe it


MOST_TRIALS = 10_000
"""Draws for a pair at most, COLMAP's own number. Twice as many find 0.2 % more inliers and take twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyParams:
    """Conditions for a match, in pixels of reprojection, and for a pair of images.

    ``min_inlier_ratio``: inliers among the matches; 0.1 is the paper's. ``max_false_alarms``: how many of the
    geometries drawn may be expected to fit as well if all matches were wrong; inf does not ask. ``threads``: None means
    all cores.
    """

    max_error_px: float = 4.0
    min_inliers: int = 15
    min_inlier_ratio: float = 0.1
    max_false_alarms: float = 0.01
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.max_error_px < 1e6:
            problems.append(f"max_error_px must be above 0, got {self.max_error_px!r:.40}")
        if not 1 <= self.min_inliers < 2**31:
            problems.append(f"min_inliers must be 1 or more, got {self.min_inliers!r:.40}")
        if not 0 < self.min_inlier_ratio <= 1:
            problems.append(f"min_inlier_ratio must be above 0 and at most 1, got {self.min_inlier_ratio!r:.40}")
        if not self.max_false_alarms > 0:
            problems.append(f"max_false_alarms must be above 0, got {self.max_false_alarms!r:.40}")
        if not 0 <= self.seed < 2**31:
            problems.append(f"seed must be from 0 to {2**31 - 1}, got {self.seed!r:.40}")
        if self.threads is not None and self.threads < 1:
            problems.append(f"threads must be 1 or more, or None, got {self.threads!r:.40}")
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _ImagePoints:
    """One image of a pair: its name, its camera as pycolmap has it, and points (N, 2) float64 in COLMAP's pixels."""

    name: str
    camera: Any
    points: NDArray[np.float64]


Estimator = Callable[[_ImagePoints, _ImagePoints, NDArray[np.uint32]], Any]


def _estimator(params: VerifyParams) -> Estimator:
    """Return a function that estimates the geometry of two images, as a ``pycolmap.TwoViewGeometry``."""
    pycolmap = load_pycolmap()
    options = pycolmap.TwoViewGeometryOptions()
    options.min_num_inliers = params.min_inliers
    options.compute_relative_pose = True
    options.ransac.max_error = params.max_error_px
    options.ransac.min_inlier_ratio = params.min_inlier_ratio
    options.ransac.max_num_trials = MOST_TRIALS
    options.ransac.random_seed = params.seed

    def estimate(side0: _ImagePoints, side1: _ImagePoints, rows: NDArray[np.uint32]) -> Any:
        if len(rows) < params.min_inliers:
            return _no_geometry()
        known = side0.camera.has_prior_focal_length and side1.camera.has_prior_focal_length
        first = _calibrated_geometry(side0, side1, rows, options.ransac) if known else None
        if first is not None and not _is_believable(first, side0, side1, rows, params):
            return _no_geometry()  # as most pairs that see nothing in common: the rest need not be tried
        geometry = pycolmap.estimate_two_view_geometry(
            side0.camera, side0.points, side1.camera, side1.points, rows, options
        )
        if first is not None and geometry.config == int(pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED):
            return first  # what fits better without cameras that are known fits by chance
        return geometry if _is_believable(geometry, side0, side1, rows, params) else _no_geometry()

    return estimate


def _calibrated_geometry(side0: _ImagePoints, side1: _ImagePoints, rows: NDArray[np.uint32], ransac: Any) -> Any:
    """Return the geometry that fits most matches of two images whose cameras are known."""
    pycolmap = load_pycolmap()
    fit = pycolmap.estimate_essential_matrix(
        side0.points[rows[:, 0]], side1.points[rows[:, 1]], side0.camera, side1.camera, ransac
    )
    if fit is None:
        return _no_geometry()
    return pycolmap.TwoViewGeometry(
        config=int(pycolmap.TwoViewGeometryConfiguration.CALIBRATED),
        E=fit["E"],
        cam2_from_cam1=fit["cam2_from_cam1"],
        inlier_matches=np.ascontiguousarray(rows[np.asarray(fit["inlier_mask"], bool)]),
    )


def _is_believable(
    geometry: Any, side0: _ImagePoints, side1: _ImagePoints, rows: NDArray[np.uint32], params: VerifyParams
) -> bool:
    """Tell whether a geometry has enough inliers, and more than wrong matches would have found another for.

    Wrong matches fit an epipolar geometry easily; a plane is too much to ask of them.
    """
    kinds = load_pycolmap().TwoViewGeometryConfiguration
    inliers, limit = len(geometry.inlier_matches), log10(params.max_false_alarms)
    if not _has_enough(inliers, len(rows), params):
        return False
    if geometry.config == int(kinds.CALIBRATED) and geometry.E is not None:
        rays = _rays(side0, rows[:, 0]), _rays(side1, rows[:, 1])
        error = params.max_error_px * 2 / (side0.camera.mean_focal_length() + side1.camera.mean_focal_length())
        return _log_false_alarms(geometry.E, rays, error, inliers, sample=5, trials=MOST_TRIALS) <= limit
    if geometry.config == int(kinds.UNCALIBRATED) and geometry.F is not None:
        ones = np.ones((len(rows), 1))
        pixels = np.hstack([side0.points[rows[:, 0]], ones]), np.hstack([side1.points[rows[:, 1]], ones])
        return (
            _log_false_alarms(geometry.F, pixels, params.max_error_px, inliers, sample=7, trials=MOST_TRIALS) <= limit
        )
    return True


SCALE_PX = 2.0
"""Error of a good match that the quick estimate assumes."""
LEAST_AGREEING = 15


def agreeing_matches(
    points0: NDArray[np.floating], points1: NDArray[np.floating], max_error_px: float = 4.0
) -> NDArray[np.bool_]:
    """Tell which of some matches (M, 2) pixels each agree with one epipolar geometry; none if chance could do as well.

    Cameras need not be known. A quick look by MAGSAC (Barath et al. 2019) for devices that hold both photos of a pair;
    a map is verified by COLMAP. The same matches give the same answer.
    """
    import cv2

    nothing = np.zeros(len(points0), bool)
    if len(points0) < LEAST_AGREEING:
        return nothing
    settings = cv2.UsacParams()
    settings.threshold, settings.confidence, settings.maxIterations = SCALE_PX, 0.9999, MOST_TRIALS
    settings.score, settings.loMethod = cv2.SCORE_METHOD_MAGSAC, cv2.LOCAL_OPTIM_SIGMA
    settings.loIterations, settings.loSampleSize, settings.randomGeneratorState = 10, 50, 0
    sides = np.ascontiguousarray(points0, np.float64), np.ascontiguousarray(points1, np.float64)
    try:
        geometry, _ = cv2.findFundamentalMat(*sides, settings)
    except cv2.error:  # all points on one line or in one spot
        return nothing
    if geometry is None or geometry.shape != (3, 3) or not np.isfinite(geometry).all():
        return nothing
    rows0, rows1 = (np.hstack([side, np.ones((len(side), 1))]) for side in sides)
    agreeing: NDArray[np.bool_] = _squared_sampson_errors(geometry, rows0, rows1) <= max_error_px**2 / 2
    count = int(agreeing.sum())
    if count < LEAST_AGREEING:
        return nothing
    alarms = _log_false_alarms(geometry, (rows0, rows1), max_error_px, count, sample=7, trials=MOST_TRIALS)
    return agreeing if alarms <= log10(FALSE_GEOMETRIES) else nothing


FLAT_SHARE, FLAT_ERROR = 0.9, 0.0025
"""Of matches that one homography explains, within this share of the longer side: the rest shows no depth."""
FOCAL_FACTORS = np.geomspace(0.5, 4, 13)
"""Focal lengths that are tried, as shares of the longer side."""
ROTATION_ERROR = 0.1
"""How far a matrix of determinant 1 may be from a rotation and count as one."""


def has_parallax(
    points0: NDArray[np.floating],
    points1: NDArray[np.floating],
    size0: tuple[int, int],
    size1: tuple[int, int],
    others: int = 0,
) -> bool:
    """Tell whether matches (M, 2) of two photos (width, height) show that these were taken from different places.

    They do not if one homography explains nearly all of them and is that of a camera which only turned, for some focal
    length (Hartley and Zisserman 2004, 8.4.2): a burst, a tripod, a panorama. A map gets no point from such photos.
    ``others``: matches that did not agree with these in one geometry. Where there are many, some of the matches agree
    by chance, and look like depth.
    """
    import cv2

    some = slice(None, None, max(1, len(points0) // 2000))  # as telling as all
    sides = np.ascontiguousarray(points0[some], np.float64), np.ascontiguousarray(points1[some], np.float64)
    if len(sides[0]) < LEAST_AGREEING:
        return False
    error = FLAT_ERROR * max(*size0, *size1)
    matrix, fitting = cv2.findHomography(sides[0], sides[1], cv2.USAC_MAGSAC, error, maxIters=2000)
    if matrix is None or (1 - fitting.mean()) * len(points0) > (1 - FLAT_SHARE) * (len(points0) + others):
        return True
    for factor in FOCAL_FACTORS:
        cameras = [
            np.array(
                [[factor * max(size), 0, (size[0] - 1) / 2], [0, factor * max(size), (size[1] - 1) / 2], [0, 0, 1]]
            )
            for size in (size0, size1)
        ]
        turned = np.linalg.solve(cameras[1], matrix @ cameras[0])
        turned /= np.cbrt(np.linalg.det(turned)) or np.inf
        if np.linalg.norm(turned @ turned.T - np.eye(3)) < ROTATION_ERROR:
            return False
    return True


RESECTIONS = 64
"""Cameras of the third photo that are tried, each from six points."""
LEAST_STATIC = 0.5
"""Share of points that must agree on the third camera: what stands still is the larger part of what photos share."""


def agreeing_in_three(
    sides: tuple[NDArray[np.floating], NDArray[np.floating], NDArray[np.floating]], max_error_px: float = 8.0
) -> NDArray[np.bool_]:
    """Tell which points (N, 2) of three photos, seen in all of them, can stand still; none if the photos do not say.

    Two photos alone let a point pass that moves along its epipolar line, as somebody walking does. Here points are
    placed in space by the first two, up to a projective frame (Hartley and Zisserman 2004, result 9.14), and the third
    camera, found from six of them at a time, must see them where they are. No camera need be known.
    """
    import cv2

    nothing = np.zeros(len(sides[0]), bool)
    if len(nothing) < LEAST_AGREEING:
        return nothing
    scaled, scales = zip(*(_scaled_points(side) for side in sides), strict=True)
    try:
        limits = SCALE_PX * scales[1], 0.999, MOST_TRIALS // 20
        geometry, _ = cv2.findFundamentalMat(scaled[0], scaled[1], cv2.USAC_MAGSAC, *limits)
    except cv2.error:  # all points on one line or in one spot
        return nothing
    if geometry is None or geometry.shape != (3, 3) or not np.isfinite(geometry).all():
        return nothing
    epipole = np.linalg.svd(geometry.T)[2][-1]
    second = np.column_stack([np.cross(epipole, geometry.T).T, epipole])
    points = cv2.triangulatePoints(np.eye(3, 4), second, scaled[0].T.copy(), scaled[1].T.copy()).T
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    limit, rng = max_error_px * scales[2], np.random.default_rng(0)
    some = rng.permutation(len(points))[:500]
    samples = np.stack([rng.permutation(len(points))[:6] for _ in range(RESECTIONS)])
    cameras = _resect(points[samples], scaled[2][samples])
    counts = [np.count_nonzero(_camera_errors(camera, points[some], scaled[2][some]) <= limit) for camera in cameras]
    agreeing = _camera_errors(cameras[int(np.argmax(counts))], points, scaled[2]) <= limit
    for _ in range(2):
        if np.count_nonzero(agreeing) < LEAST_AGREEING:
            return nothing
        camera = _resect(points[agreeing][None], scaled[2][agreeing][None])[0]
        agreeing = _camera_errors(camera, points, scaled[2]) <= limit
    return agreeing if agreeing.sum() >= max(LEAST_AGREEING, LEAST_STATIC * len(agreeing)) else nothing


def _scaled_points(points: NDArray[np.floating]) -> tuple[Floats, float]:
    """Return points (N, 2) around 0 at a distance of about 1, and by how much they were scaled."""
    moved = np.asarray(points, np.float64) - points.mean(axis=0)
    scale = float(1 / max(np.linalg.norm(moved, axis=1).mean(), 1e-9))
    return np.ascontiguousarray(moved * scale), scale


def _resect(points: Floats, pixels: Floats) -> Floats:
    """Return cameras (S, 3, 4) that take points (S, N, 4) to pixels (S, N, 2), by the direct linear transformation."""
    zeros = np.zeros_like(points)
    rows0 = np.concatenate([points, zeros, -pixels[..., :1] * points], axis=2)
    rows1 = np.concatenate([zeros, points, -pixels[..., 1:] * points], axis=2)
    table = np.concatenate([rows0, rows1], axis=1)
    vectors = np.linalg.eigh(np.swapaxes(table, 1, 2) @ table)[1][:, :, 0]
    cameras: Floats = vectors.reshape(-1, 3, 4)
    return cameras


def _camera_errors(camera: Floats, points: Floats, pixels: Floats) -> Floats:
    """Return how far from pixels (N, 2) a camera sees points (N, 4)."""
    seen = points @ camera.T
    with np.errstate(divide="ignore", invalid="ignore"):
        errors: Floats = np.linalg.norm(seen[:, :2] / seen[:, 2:] - pixels, axis=1)
    return np.nan_to_num(errors, nan=np.inf)


FALSE_GEOMETRIES = 0.01
"""Geometries that would fit as many wrong matches, expected among all that were tried."""


def _known_geometry(params: VerifyParams, poses: Mapping[str, Pose]) -> Estimator:
    """Return a function that keeps the matches of two images which agree with the images' poses."""
    pycolmap = load_pycolmap()

    def estimate(side0: _ImagePoints, side1: _ImagePoints, rows: NDArray[np.uint32]) -> Any:
        if len(rows) == 0 or side0.name not in poses or side1.name not in poses:
            return _no_geometry()
        errors = _epipolar_errors_px((side0, poses[side0.name]), (side1, poses[side1.name]), rows)
        inliers = rows[(errors <= params.max_error_px).all(axis=1)]
        if not _has_enough(len(inliers), len(rows), params):
            return _no_geometry()
        kind = int(pycolmap.TwoViewGeometryConfiguration.CALIBRATED)
        return pycolmap.TwoViewGeometry(config=kind, inlier_matches=np.ascontiguousarray(inliers))

    return estimate


def _epipolar_errors_px(
    view0: tuple[_ImagePoints, Pose], view1: tuple[_ImagePoints, Pose], rows: NDArray[np.uint32]
) -> NDArray[np.float64]:
    """Return how far matched points lie from each other's epipolar lines, (M, 2): in image 0 and in image 1, in pixels.

    Lines are drawn where the camera has no distortion, so pixels are those of its mean focal length.
    """
    (side0, pose0), (side1, pose1) = view0, view1
    turn = pose1.rotation @ pose0.rotation.T
    x, y, z = pose1.translation - turn @ pose0.translation
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ turn
    rays0, rays1 = _rays(side0, rows[:, 0]), _rays(side1, rows[:, 1])
    errors = []
    with np.errstate(over="ignore", invalid="ignore"):  # a place that no ray leads to is infinitely far from every line
        lines1, lines0 = rays0 @ essential.T, rays1 @ essential
        misses = np.abs(np.einsum("ni,ni->n", rays1, lines1))
        for lines, side in ((lines0, side0), (lines1, side1)):
            lengths = np.maximum(np.hypot(lines[:, 0], lines[:, 1]), np.finfo(np.float64).tiny)
            errors.append(misses / lengths * side.camera.mean_focal_length())
    result: NDArray[np.float64] = np.nan_to_num(np.stack(errors, axis=1), nan=np.inf)
    return result


def _rays(side: _ImagePoints, rows: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return where keypoints are seen by a camera without distortion and of focal length 1, (M, 3)."""
    places = np.nan_to_num(np.asarray(side.camera.cam_from_img(side.points[rows]), np.float64), nan=np.inf)
    return np.column_stack([places, np.ones(len(rows))])


def _has_enough(inliers: int, matches: int, params: VerifyParams) -> bool:
    """Tell whether this many verified matches make a verified pair."""
    return inliers >= params.min_inliers and inliers >= params.min_inlier_ratio * matches


def _no_geometry() -> Any:
    """Return the geometry of two images that have none in common; its kind is said, which newer COLMAPs rely on."""
    pycolmap = load_pycolmap()
    return pycolmap.TwoViewGeometry(config=int(pycolmap.TwoViewGeometryConfiguration.DEGENERATE))


# --- all pairs of a database


AT_ONCE = 64
KEPT_IMAGES = 512


@dataclass(frozen=True, slots=True)
class VerifiedPair:
    """Matches of two images and how many were verified, 0 for a refused pair; ``configuration`` is COLMAP's word."""

    names: tuple[str, str]
    matches: int
    inliers: int
    configuration: str


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """Results of all matched pairs of a database."""

    pairs: tuple[VerifiedPair, ...] = ()

    @property
    def verified(self) -> int:
        """Pairs with inliers."""
        return sum(pair.inliers > 0 for pair in self.pairs)

    @property
    def matches(self) -> int:
        """Matches of all pairs."""
        return sum(pair.matches for pair in self.pairs)

    @property
    def inliers(self) -> int:
        """Verified matches of all pairs."""
        return sum(pair.inliers for pair in self.pairs)

    def __repr__(self) -> str:
        return f"VerifyOutcome({self.verified} of {len(self.pairs)} pairs, {self.inliers} of {self.matches} matches)"


def verify(
    database: str | os.PathLike[str],
    params: VerifyParams | None = None,
    *,
    poses: Mapping[str, Pose] | None = None,
    progress: Progress = iter,
) -> VerifyOutcome:
    """Verify every matched pair of a COLMAP database and write the two-view geometries into it.

    Without ``poses`` the geometry of a pair is estimated. With them it is known, and matches must agree with it;
    pairs of images without a pose are refused. ``progress`` wraps the pairs.
    """
    params, pycolmap = params or VerifyParams(), load_pycolmap()
    estimate = _estimator(params) if poses is None else _known_geometry(params, poses)
    pairs: list[VerifiedPair] = []
    with pycolmap.Database.open(str(database)) as file:
        images = {image.image_id: image for image in file.read_all_images()}

        @lru_cache(KEPT_IMAGES)
        def side(number: int) -> _ImagePoints:
            camera = file.read_camera(images[number].camera_id)
            points = np.asarray(file.read_keypoints(number), np.float64).reshape(-1, 2)
            return _ImagePoints(images[number].name, camera, points)

        def task(pair_id: int) -> tuple[tuple[int, int], _ImagePoints, _ImagePoints, NDArray[np.uint32]]:
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            return (first, second), side(first), side(second), file.read_matches(first, second)

        pair_ids = sorted(file.read_num_matches()[0])
        with ThreadPoolExecutor(params.threads or os.cpu_count() or 1) as pool:
            for (numbers, side0, side1, rows), geometry in progress(_mapped(pool, estimate, map(task, pair_ids))):
                file.write_two_view_geometry(*numbers, geometry)
                kind = pycolmap.TwoViewGeometryConfiguration(int(geometry.config)).name.lower()
                inliers = len(geometry.inlier_matches)
                pairs.append(VerifiedPair((side0.name, side1.name), len(rows), inliers, kind))
    return VerifyOutcome(tuple(pairs))


def _mapped(pool: ThreadPoolExecutor, estimate: Estimator, tasks: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each task with its result, in order, with a bounded number of them under way."""
    while batch := list(islice(tasks, AT_ONCE)):
        futures = [pool.submit(estimate, *task[1:]) for task in batch]
        try:
            for task, future in zip(batch, futures, strict=True):
                yield task, future.result()
        finally:
            for future in futures:
                future.cancel()


# --- what a map makes of the matches that were verified


@dataclass(frozen=True, slots=True)
class ExplainedPair:
    """Verified matches of two images of a map, and how many of them the map explains."""

    names: tuple[str, str]
    inliers: int
    explained: int


def explain_matches(
    database: str | os.PathLike[str], reconstruction: Any, max_error_px: float
) -> tuple[ExplainedPair, ...]:
    """Return, for each verified pair of images in a map, how many of its verified matches agree with the two poses.

    Such a match is within ``max_error_px`` of the epipolar lines of the map, and its point is in front of both cameras.
    Nobody has to know where the cameras really stood: a map with wrong poses contradicts most of what it was made from.
    """
    pycolmap = load_pycolmap()
    pairs: list[ExplainedPair] = []
    with pycolmap.Database.open(str(database)) as file:
        names = {image.image_id: str(image.name) for image in file.read_all_images()}
        numbers = {str(reconstruction.image(number).name): number for number in reconstruction.reg_image_ids()}

        @lru_cache(KEPT_IMAGES)
        def view(number: int) -> tuple[_ImagePoints, Pose]:
            image = reconstruction.image(numbers[names[number]])
            points = np.asarray(file.read_keypoints(number), np.float64).reshape(-1, 2)
            side = _ImagePoints(names[number], reconstruction.camera(image.camera_id), points)
            return side, from_rigid(image.cam_from_world())

        for pair_id in sorted(file.read_num_matches()[0]):
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            if names[first] not in numbers or names[second] not in numbers:
                continue
            rows = file.read_two_view_geometry(first, second).inlier_matches
            if len(rows):
                agreeing = _agreeing(view(first), view(second), rows, max_error_px)
                pairs.append(ExplainedPair((names[first], names[second]), len(rows), int(agreeing.sum())))
    return tuple(pairs)


def _agreeing(
    view0: tuple[_ImagePoints, Pose], view1: tuple[_ImagePoints, Pose], rows: NDArray[np.uint32], max_error_px: float
) -> NDArray[np.bool_]:
    """Tell which matches agree with two poses: near the epipolar lines, and in front of both cameras.

    Rays that are parallel within the error meet far away on either side: they count as in front.
    """
    (side0, pose0), (side1, pose1) = view0, view1
    near = (_epipolar_errors_px(view0, view1, rows) <= max_error_px).all(axis=1)
    turn = pose1.rotation @ pose0.rotation.T
    shift = pose1.translation - turn @ pose0.translation
    with np.errstate(over="ignore", invalid="ignore"):
        rays0, rays1 = _rays(side0, rows[:, 0]) @ turn.T, _rays(side1, rows[:, 1])
        normals = np.cross(rays0, rays1)
        sines = np.linalg.norm(normals, axis=1) / (np.linalg.norm(rays0, axis=1) * np.linalg.norm(rays1, axis=1))
        depth0 = (np.cross(rays1, shift) * normals).sum(axis=1)
        depth1 = (np.cross(rays0, shift) * normals).sum(axis=1)
        parallel = sines <= 2 * max_error_px / (side0.camera.mean_focal_length() + side1.camera.mean_focal_length())
        agreeing: NDArray[np.bool_] = near & (parallel | ((depth0 > 0) & (depth1 > 0)))
    return agreeing
