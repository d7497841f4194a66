# SPDX-License-Identifier: Apache-2.0
"""Whether the focal lengths that were given fit a map: a copy of it is adjusted once more with them left free.

A wrong focal length bends a map without leaving large errors in it. Knows reconstructions as pycolmap has them; the one
that is asked about is not changed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sfumato.geometry.library import load_pycolmap, silenced

OTHER_FOCAL = 1.1
"""A focal length that becomes so many times larger or smaller has moved."""
LESS_ERROR = 0.7
"""So much of the mean reprojection error is clearly less."""
MOST_STEPS = 50


def doubt_cameras(reconstruction: Any, is_fixed: Callable[[str], bool], *, threads: int = 1) -> str:
    """Return what speaks against the focal lengths of the images whose cameras were kept as given, or an empty text."""
    fixed = {
        number: reconstruction.image(number).camera_id
        for number in reconstruction.reg_image_ids()
        if is_fixed(str(reconstruction.image(number).name))
    }
    before = {camera: _focal(reconstruction, camera) for camera in set(fixed.values())}
    if not any(before.values()) or not reconstruction.num_points3D():
        return ""
    try:
        free = _adjusted(reconstruction, threads)
    except (RuntimeError, ValueError) as cause:  # the map is there all the same
        return f"the given focal lengths could not be checked: {str(cause).strip():.200}"
    errors = [float(one.compute_mean_reprojection_error()) for one in (reconstruction, free)]
    factors = {camera: _focal(free, camera) / given for camera, given in before.items() if given}
    moved = {camera for camera, factor in factors.items() if not 1 / OTHER_FOCAL <= factor <= OTHER_FOCAL}
    if not moved or not errors[1] <= LESS_ERROR * errors[0]:
        return ""
    count = sum(camera in moved for camera in fixed.values())
    typical = float(np.median([factors[camera] for camera in moved]))
    return (
        f"the given focal lengths of {count} of {len(fixed)} images do not fit: left free they become about "
        f"{typical:.2f} times as long and the reprojection error falls from {errors[0]:.2f} to {errors[1]:.2f} px. The "
        f"map may be bent: check the cameras, or let them be adjusted (--refine-intrinsics)"
    )


def _adjusted(reconstruction: Any, threads: int) -> Any:
    """Return a copy with all points, poses and focal lengths adjusted."""
    pycolmap = load_pycolmap()
    free = pycolmap.Reconstruction(reconstruction)
    options = pycolmap.BundleAdjustmentOptions()
    options.refine_focal_length, options.refine_extra_params, options.refine_principal_point = True, False, False
    options.print_summary = False
    options.ceres.solver_options.num_threads = threads
    options.ceres.solver_options.max_num_iterations = MOST_STEPS
    config = pycolmap.BundleAdjustmentConfig()
    for number in free.reg_image_ids():
        config.add_image(number)
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    with silenced():  # pycolmap.bundle_adjustment writes to the terminal all the same
        pycolmap.create_default_bundle_adjuster(options, config, free).solve()
    for one in (reconstruction, free):
        one.update_point_3d_errors()
    return free


def _focal(reconstruction: Any, camera: int) -> float:
    found = reconstruction.camera(camera)
    values = [float(found.params[row]) for row in found.focal_length_idxs()]
    return float(np.mean(values)) if values else 0.0
