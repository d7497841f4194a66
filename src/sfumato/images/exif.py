# SPDX-License-Identifier: Apache-2.0
"""What a photo tells about its camera: the focal length in its EXIF, in pixels. Reads nothing else of it.

Where the photo was taken and when are in the same place and are not looked at.
"""

import os
from pathlib import Path

from sfumato.errors import ImageError


def focal_from_exif(path: str | os.PathLike[str], size: tuple[int, int]) -> float | None:
    """Return the focal length, in pixels of an image of (width, height), that a photo tells; None if it tells none.

    The photo may be larger or smaller than ``size``, or lie on its side. COLMAP reads the tags, and knows the sensor
    width of many cameras.

    Raises ImageError if there is no such photo or it can not be read.
    """
    import cv2  # noqa: F401 (before pycolmap: both carry a zlib)
    import pycolmap

    path = Path(path)
    if not path.is_file():
        raise ImageError(f"{str(path)!r} is not there: check the path")
    level = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    try:
        camera = pycolmap.infer_camera_from_image(str(path))
    except (RuntimeError, ValueError) as cause:
        raise ImageError(f"{path} can not be read as an image: copy or export it again") from cause
    finally:
        pycolmap.logging.minloglevel = level
    if not camera.has_prior_focal_length:
        return None
    return float(camera.mean_focal_length() * max(size) / max(camera.width, camera.height))
