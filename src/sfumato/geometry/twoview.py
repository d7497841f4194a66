# SPDX-License-Identifier: Apache-2.0
"""What two images have in common: the geometry that most of their matches fit, estimated or known, and whether to
believe it.

Knows the positions, cameras and matched rows of two images, and no files. Every pair is drawn for from the same seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.geometry.chance import log_false_alarms
from sfumato.geometry.library import load_pycolmap
from sfumato.types.scene import Pose

MOST_TRIALS = 10_000
"""Draws for a pair at most, COLMAP's own number. Twice as many find 0.2 % more inliers and take twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyParams:
    """When a match counts, in pixels of reprojection, and when a pair of images does.

    ``min_inlier_ratio``: inliers among the matches; 0.1 is the paper's. ``max_false_alarms``: how many of the
    geometries drawn may be expected to fit as well if all matches were wrong; inf does not ask. ``threads``: None means
    the cores there are.
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
class Side:
    """One image of a pair: its name, its camera as pycolmap has it, and points (N, 2) float64 in COLMAP's pixels."""

    name: str
    camera: Any
    points: NDArray[np.float64]


Estimate = Callable[[Side, Side, NDArray[np.uint32]], Any]


def estimator(params: VerifyParams) -> Estimate:
    """Return a function that estimates the geometry of two images, as a ``pycolmap.TwoViewGeometry``."""
    pycolmap = load_pycolmap()
    options = pycolmap.TwoViewGeometryOptions()
    options.min_num_inliers = params.min_inliers
    options.compute_relative_pose = True
    options.ransac.max_error = params.max_error_px
    options.ransac.min_inlier_ratio = params.min_inlier_ratio
    options.ransac.max_num_trials = MOST_TRIALS
    options.ransac.random_seed = params.seed

    def estimate(side0: Side, side1: Side, rows: NDArray[np.uint32]) -> Any:
        if len(rows) < params.min_inliers:
            return refused()
        known = side0.camera.has_prior_focal_length and side1.camera.has_prior_focal_length
        first = calibrated(side0, side1, rows, options.ransac) if known else None
        if first is not None and not is_believable(first, side0, side1, rows, params):
            return refused()  # as most pairs that see nothing in common: the rest need not be tried
        geometry = pycolmap.estimate_two_view_geometry(
            side0.camera, side0.points, side1.camera, side1.points, rows, options
        )
        if first is not None and geometry.config == int(pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED):
            return first  # what fits better without cameras that are known fits by chance
        return geometry if is_believable(geometry, side0, side1, rows, params) else refused()

    return estimate


def calibrated(side0: Side, side1: Side, rows: NDArray[np.uint32], ransac: Any) -> Any:
    """Return the geometry that fits most matches of two images whose cameras are known."""
    pycolmap = load_pycolmap()
    found = pycolmap.estimate_essential_matrix(
        side0.points[rows[:, 0]], side1.points[rows[:, 1]], side0.camera, side1.camera, ransac
    )
    if found is None:
        return refused()
    return pycolmap.TwoViewGeometry(
        config=int(pycolmap.TwoViewGeometryConfiguration.CALIBRATED),
        E=found["E"],
        cam2_from_cam1=found["cam2_from_cam1"],
        inlier_matches=np.ascontiguousarray(rows[np.asarray(found["inlier_mask"], bool)]),
    )


def is_believable(geometry: Any, side0: Side, side1: Side, rows: NDArray[np.uint32], params: VerifyParams) -> bool:
    """Tell whether a geometry has enough inliers, and more than wrong matches would have found another for.

    Wrong matches fit an epipolar geometry easily; a plane is too much to ask of them.
    """
    kinds = load_pycolmap().TwoViewGeometryConfiguration
    inliers, limit = len(geometry.inlier_matches), log10(params.max_false_alarms)
    if not enough(inliers, len(rows), params):
        return False
    if geometry.config == int(kinds.CALIBRATED) and geometry.E is not None:
        rays = _rays(side0, rows[:, 0]), _rays(side1, rows[:, 1])
        error = params.max_error_px * 2 / (side0.camera.mean_focal_length() + side1.camera.mean_focal_length())
        return log_false_alarms(geometry.E, rays, error, inliers, sample=5, trials=MOST_TRIALS) <= limit
    if geometry.config == int(kinds.UNCALIBRATED) and geometry.F is not None:
        ones = np.ones((len(rows), 1))
        pixels = np.hstack([side0.points[rows[:, 0]], ones]), np.hstack([side1.points[rows[:, 1]], ones])
        return log_false_alarms(geometry.F, pixels, params.max_error_px, inliers, sample=7, trials=MOST_TRIALS) <= limit
    return True


def known_geometry(params: VerifyParams, poses: Mapping[str, Pose]) -> Estimate:
    """Return a function that keeps the matches of two images which agree with the images' poses."""
    pycolmap = load_pycolmap()

    def estimate(side0: Side, side1: Side, rows: NDArray[np.uint32]) -> Any:
        if len(rows) == 0 or side0.name not in poses or side1.name not in poses:
            return refused()
        errors = epipolar_errors_px((side0, poses[side0.name]), (side1, poses[side1.name]), rows)
        inliers = rows[(errors <= params.max_error_px).all(axis=1)]
        if not enough(len(inliers), len(rows), params):
            return refused()
        kind = int(pycolmap.TwoViewGeometryConfiguration.CALIBRATED)
        return pycolmap.TwoViewGeometry(config=kind, inlier_matches=np.ascontiguousarray(inliers))

    return estimate


def epipolar_errors_px(
    view0: tuple[Side, Pose], view1: tuple[Side, Pose], rows: NDArray[np.uint32]
) -> NDArray[np.float64]:
    """Return how far matched points lie from each other's epipolar lines, (M, 2): in image 0 and in image 1, in pixels.

    Lines are drawn where the camera has no distortion, so pixels are those of its mean focal length.
    """
    (side0, pose0), (side1, pose1) = view0, view1
    turn = pose1.rotation @ pose0.rotation.T
    x, y, z = pose1.translation - turn @ pose0.translation
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ turn
    rays0, rays1 = _rays(side0, rows[:, 0]), _rays(side1, rows[:, 1])
    lines1, lines0 = rays0 @ essential.T, rays1 @ essential
    misses = np.abs(np.einsum("ni,ni->n", rays1, lines1))
    errors = []
    for lines, side in ((lines0, side0), (lines1, side1)):
        lengths = np.maximum(np.hypot(lines[:, 0], lines[:, 1]), np.finfo(np.float64).tiny)
        with np.errstate(over="ignore", invalid="ignore"):
            errors.append(misses / lengths * side.camera.mean_focal_length())
    result: NDArray[np.float64] = np.nan_to_num(np.stack(errors, axis=1), nan=np.inf)
    return result


def _rays(side: Side, rows: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Return where keypoints are seen by a camera without distortion and of focal length 1, (M, 3)."""
    places = np.nan_to_num(np.asarray(side.camera.cam_from_img(side.points[rows]), np.float64), nan=np.inf)
    return np.column_stack([places, np.ones(len(rows))])


def enough(inliers: int, matches: int, params: VerifyParams) -> bool:
    """Tell whether so many verified matches make a verified pair."""
    return inliers >= params.min_inliers and inliers >= params.min_inlier_ratio * matches


def refused() -> Any:
    """Return the geometry of two images that have none in common; its kind is said, which newer COLMAPs rely on."""
    pycolmap = load_pycolmap()
    return pycolmap.TwoViewGeometry(config=int(pycolmap.TwoViewGeometryConfiguration.DEGENERATE))
