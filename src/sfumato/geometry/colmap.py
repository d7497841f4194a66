# SPDX-License-Identifier: Apache-2.0
"""COLMAP's library: loaded in the right order and with a quiet log, and its own cameras and poses to and fro.

Every module here that needs pycolmap asks this one for it. pycolmap's arrays hold quaternions as x y z w.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from sfumato.errors import InputError, MissingDependency
from sfumato.geometry.cameras import check_camera, nearest_rotation
from sfumato.types.scene import Camera, Pose

ERRORS_ONLY, NOTHING = 2, 3
"""COLMAP's numbers for a log that shows errors and nothing less, and for one that shows only what ends the process."""


def load_pycolmap() -> ModuleType:
    """Return pycolmap, with OpenCV loaded before it (both carry a zlib, and the first one wins) and a quiet log.

    Raises MissingDependency if it is not installed.
    """
    try:
        import cv2  # noqa: F401
        import pycolmap
    except ImportError as cause:
        raise MissingDependency(f"maps and poses need pycolmap: pip install 'pycolmap>=4.0.4' ({cause})") from cause
    pycolmap.logging.minloglevel = max(int(pycolmap.logging.minloglevel), ERRORS_ONLY)
    module: ModuleType = pycolmap
    return module


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
