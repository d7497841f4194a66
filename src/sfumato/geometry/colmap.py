# SPDX-License-Identifier: Apache-2.0
"""COLMAP's own cameras and poses, to and fro, and a silent log.

pycolmap's arrays hold quaternions as x y z w.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sfumato.errors import InputError
from sfumato.errors import load_pycolmap as load_pycolmap
from sfumato.geometry.cameras import check_camera, nearest_rotation
from sfumato.types.scene import Camera, Pose

NOTHING = 3
"""COLMAP's number for a log that shows only what ends the process."""


@contextmanager
def silence() -> Iterator[None]:
    """Keep COLMAP from logging errors that are reported in another way."""
    log = load_pycolmap().logging
    before = int(log.minloglevel)
    log.minloglevel = max(before, NOTHING)
    try:
        yield
    finally:
        log.minloglevel = before


def to_colmap(camera: Camera, camera_id: int, *, trusted: bool = True) -> Any:
    """Return a camera as a ``pycolmap.Camera``; ``trusted`` says that its focal length is known, not guessed.

    Raises InputError for a model or number of parameters that COLMAP does not know.
    """
    check_camera(camera)
    pycolmap = load_pycolmap()
    try:
        made = pycolmap.Camera(model=camera.model, width=camera.width, height=camera.height, params=list(camera.params))
    except (TypeError, ValueError, RuntimeError) as cause:
        raise InputError(f"this pycolmap ({pycolmap.__version__}) knows no camera model {camera.model}") from cause
    made.camera_id = camera_id
    made.has_prior_focal_length = trusted
    return made


def to_rigid(pose: Pose) -> Any:
    """Return a pose as a ``pycolmap.Rigid3d``."""
    pycolmap = load_pycolmap()
    return pycolmap.Rigid3d(pycolmap.Rotation3d(np.array(pose.rotation)), np.array(pose.translation))


def from_rigid(rigid: Any) -> Pose:
    """Return a ``pycolmap.Rigid3d`` cam_from_world as a Pose."""
    matrix = np.asarray(rigid.matrix(), np.float64)
    return Pose(nearest_rotation(matrix[:, :3]), matrix[:, 3])
