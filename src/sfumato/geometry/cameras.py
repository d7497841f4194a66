# SPDX-License-Identifier: Apache-2.0
"""Cameras: hloc's list of them, a guess where nothing is known, and COLMAP's own object and back.

Parameters are COLMAP's throughout: its order, and its principal point, for which the centre of the first pixel is at
(0.5, 0.5). Knows no image; what EXIF tells is read in ``images``.
"""

import os
from collections.abc import Mapping
from typing import Any

from sfumato.errors import FileError, InputError, suggest
from sfumato.geometry.library import load_pycolmap
from sfumato.geometry.lists import SHOWN, numbers, read_list, write_list
from sfumato.types.cameramodels import CAMERA_MODELS
from sfumato.types.scene import Camera

GUESSED_FOCAL = 1.2
"""COLMAP's guess of a focal length: so many times the longer side of the image."""


def check_camera(camera: Camera) -> Camera:
    """Return a camera whose model is known, with as many parameters as it needs and a positive focal length."""
    wanted = CAMERA_MODELS.get(camera.model)
    if wanted is None:
        hint = suggest(camera.model, CAMERA_MODELS) or "; the usual ones are PINHOLE, SIMPLE_RADIAL and OPENCV"
        raise InputError(f"no camera model is called {camera.model!r:.40}{hint}")
    if not any(name.startswith("f") for name in wanted):
        raise InputError(f"{camera.model} has no focal length: such images can be neither mapped nor localized here")
    if len(camera.params) != len(wanted):
        told = " ".join(wanted)
        raise InputError(f"{camera.model} has {len(wanted)} parameters ({told}), {len(camera.params)} were given")
    if any(value <= 0 for value, name in zip(camera.params, wanted, strict=True) if name.startswith("f")):
        raise InputError(f"{camera.model}: expected a focal length above 0 pixels")
    return camera


def read_cameras(path: str | os.PathLike[str]) -> dict[str, Camera]:
    """Read hloc's list of cameras: ``name MODEL width height parameters...`` a line, # for comments.

    Raises FileError naming every wrong line at once.
    """
    cameras = read_list(path, "cameras", _parse)
    if not cameras:
        raise FileError(f"{path} names no camera: a line is 'name MODEL width height parameters...'")
    return cameras


def write_cameras(path: str | os.PathLike[str], cameras: Mapping[str, Camera]) -> None:
    """Write cameras in hloc's form, sorted by name; every number comes back exactly."""
    rows = {
        name: [camera.model, str(camera.width), str(camera.height), *map(repr, camera.params)]
        for name, camera in sorted(cameras.items())
    }
    write_list(path, rows, "name MODEL width height parameters...")


def default_camera(size: tuple[int, int], focal_px: float | None = None) -> Camera:
    """Return a camera from (width, height): the principal point in the middle and no distortion yet.

    Without a focal length it is guessed, as 1.2 times the longer side.

    >>> default_camera((640, 480)).params
    (768.0, 320.0, 240.0, 0.0)
    """
    width, height = size
    focal = GUESSED_FOCAL * max(width, height) if focal_px is None else focal_px
    return Camera("SIMPLE_RADIAL", width, height, (focal, width / 2, height / 2, 0.0))


def refuse_other_sizes(cameras: Mapping[str, Camera], sizes: Mapping[str, tuple[int, int] | None]) -> None:
    """Raise InputError naming the images whose camera has another width and height than the image itself."""
    wrong = [
        f"{name!r:.80} is {size[0]} x {size[1]}, its camera {cameras[name].width} x {cameras[name].height}"
        for name, size in sizes.items()
        if size is not None and name in cameras and size != (cameras[name].width, cameras[name].height)
    ]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        many = "1 camera is of an image" if len(wrong) == 1 else f"{len(wrong)} cameras are of images"
        raise InputError(
            f"{many} of another size: {'; '.join(wrong[:SHOWN])}{more}. "
            f"Scale focal length and principal point with the image"
        )


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


def from_colmap(camera: Any) -> Camera:
    """Return a ``pycolmap.Camera`` as a Camera."""
    return Camera(str(camera.model_name), int(camera.width), int(camera.height), tuple(map(float, camera.params)))


def _parse(words: list[str]) -> Camera:
    if len(words) < 4:
        raise InputError("expected 'name MODEL width height parameters...', names without spaces")
    model, width, height, *params = words
    if not (width.isascii() and width.isdigit() and height.isascii() and height.isdigit()):
        raise InputError(f"expected a width and a height in whole pixels, got {width!r:.20} and {height!r:.20}")
    return check_camera(Camera(model, int(width), int(height), numbers(params, "parameters")))
