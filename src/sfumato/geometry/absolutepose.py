# SPDX-License-Identifier: Apache-2.0
"""A pose from keypoints and the points they see, by COLMAP; and whether another focal length would explain more.

Knows pixels, positions and cameras; no features. A wrong focal length bends the pose until much still agrees: that is
seen only by letting it go.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.geometry.cameras import to_colmap
from sfumato.geometry.library import load_pycolmap
from sfumato.geometry.poses import from_rigid
from sfumato.types.scene import Camera, Pose

PERSPECTIVE = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV")
"""Models whose focal length COLMAP estimates along with the pose."""

OTHER_FOCAL = 1.15
"""A focal length so many times another one, or less than one by it, is another."""
MORE_INLIERS, FEWEST_MORE = 1.1, 10
"""So many times the inliers, and so many more, are clearly more."""
LESS_ERROR = 0.6
"""So much of the error is clearly less, if no inlier is lost."""
ENOUGH = 30
"""Of fewer inliers the error says little: one more unknown makes it smaller in any case."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Estimate:
    """A ``pose``, or None; how many pairs agree with it, their median error, and the focal length it has in pixels."""

    pose: Pose | None
    inliers: int = 0
    error_px: float = np.inf
    focal_px: float = 0.0


def estimate_pose(
    places: NDArray[np.float64],
    positions: NDArray[np.float64],
    camera: Camera,
    *,
    max_error_px: float = 12.0,
    seed: int = 0,
    free_focal: bool = False,
) -> Estimate:
    """Return the pose that most pairs agree with; with ``free_focal`` the focal length is estimated along with it.

    ``places`` (M, 2) pixels in COLMAP's convention, ``positions`` (M, 3) in the world.
    """
    pycolmap = load_pycolmap()
    estimation = pycolmap.AbsolutePoseEstimationOptions()
    estimation.ransac.max_error = float(max_error_px)
    estimation.ransac.random_seed = int(seed)
    estimation.estimate_focal_length = free_focal
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    refinement.refine_focal_length = free_focal
    theirs = to_colmap(camera, 1, trusted=not free_focal)
    found = pycolmap.estimate_and_refine_absolute_pose(places, positions, theirs, estimation, refinement)
    if found is None:
        return Estimate(None)
    try:
        pose = from_rigid(found["cam_from_world"])
    except (InputError, np.linalg.LinAlgError):  # not finite: the points do not determine it
        return Estimate(None)
    agreeing = np.asarray(found["inlier_mask"], bool)
    seen = np.asarray(theirs.img_from_cam(positions[agreeing] @ pose.rotation.T + pose.translation))
    errors = np.linalg.norm(seen.reshape(-1, 2) - places[agreeing], axis=1)
    focal = [float(theirs.params[row]) for row in theirs.focal_length_idxs()]
    return Estimate(
        pose,
        int(found["num_inliers"]),
        float(np.nan_to_num(np.median(errors), nan=np.inf)) if len(errors) else np.inf,
        float(np.mean(focal)) if focal else 0.0,
    )


def doubt_focal(
    places: NDArray[np.float64],
    positions: NDArray[np.float64],
    camera: Camera,
    given: Estimate,
    *,
    max_error_px: float = 12.0,
    seed: int = 0,
) -> str:
    """Return what speaks against the focal length of a camera, or an empty text; ``given`` was estimated with it."""
    if camera.model not in PERSPECTIVE:
        return ""
    free = estimate_pose(places, positions, camera, max_error_px=max_error_px, seed=seed, free_focal=True)
    focal = given.focal_px or float(camera.params[0])
    if free.pose is None or not free.focal_px > 0 or 1 / OTHER_FOCAL < free.focal_px / focal < OTHER_FOCAL:
        return ""
    more = free.inliers >= max(MORE_INLIERS * given.inliers, given.inliers + FEWEST_MORE)
    better = free.inliers >= max(given.inliers, ENOUGH) and free.error_px <= LESS_ERROR * given.error_px
    if not more and not better:
        return ""
    error = "" if given.pose is None else f" within {given.error_px:.1f} px"
    return (
        f"a focal length of about {free.focal_px:.0f} px instead of {focal:.0f} explains more, {free.inliers} matches "
        f"within {free.error_px:.1f} px instead of {given.inliers}{error}: check the camera, the pose may be far off"
    )
