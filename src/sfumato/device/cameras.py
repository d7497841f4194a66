# SPDX-License-Identifier: Apache-2.0
"""Cameras of the photos on a device: focal lengths from EXIF, or guesses."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sfumato.errors import (
    FileError,
    ImageError,
    InputError,
)
from sfumato.features.colmap import SIGNATURE
from sfumato.features.sources import FeatureSource, open_source
from sfumato.files.atomic import ANY_SIZE, open_file
from sfumato.geometry.cameras import (
    default_camera,
)
from sfumato.images.read import SUFFIXES, focal_from_exif, image_format, read_image
from sfumato.store.archive import load
from sfumato.types.progress import Progress, identity
from sfumato.types.scene import Camera


@dataclass(frozen=True, slots=True)
class CameraList:
    """Cameras by the name of their image.

    ``guessed`` are the images whose focal length is a guess; ``unreadable`` gives the reason where there is no camera.
    """

    cameras: Mapping[str, Camera]
    guessed: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)


def infer_cameras(source: str | os.PathLike[str], *, progress: Progress = identity) -> CameraList:
    """Return a camera for each image of an archive, of a folder of photos, or of one photo.

    The focal length is that of EXIF, or the one that goes with the archive; without one it is guessed as 1.2 times the
    longer side. ``sfumato.geometry.write_cameras`` writes them as hloc does.

    Raises FileError if there is neither an archive nor a photo.

    >>> from sfumato.images import sample_paths
    >>> infer_cameras(sample_paths()["coffee"]).guessed
    ('coffee.png',)
    """
    sizes: dict[str, tuple[int, int] | None] = {}
    focal: dict[str, float | None] = {}
    unreadable: dict[str, str] = {}
    if holds_photos(source):
        photos = open_source(source)
        for name in progress(photos.names):
            try:
                sizes[name] = read_image(photos.photos[name]).size
            except ImageError as problem:
                unreadable[name] = str(problem)
                continue
            focal[name] = focal_length(photos, name, sizes[name])
    else:
        with load(source) as archive:
            summary = archive.summary()
        unreadable |= summary.damaged
        for header in progress(summary.images):
            sizes[header.name], focal[header.name] = header.image_size, header.focal_px
    unreadable |= {name: "the archive does not say how large it is" for name, size in sizes.items() if size is None}
    cameras = {name: default_camera(size, focal[name]) for name, size in sizes.items() if size is not None}
    return CameraList(cameras, tuple(name for name in cameras if focal[name] is None), unreadable)


def holds_photos(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a folder or a photo, by its content; an archive is neither."""
    path = Path(path)
    if path.is_dir():
        return True
    try:
        with open_file(path, ANY_SIZE) as file:
            head = file.read(32)
    except FileError:
        return path.suffix.lower() in SUFFIXES
    return bool(image_format(head)) or (path.suffix.lower() in SUFFIXES and not head.startswith(SIGNATURE))


def focal_length(source: FeatureSource, name: str, size: tuple[int, int] | None) -> float | None:
    """Return the focal length in the EXIF of a photo; None where there is none, or COLMAP does not know the format."""
    try:
        return None if size is None else focal_from_exif(source.photos[name], size)
    except ImageError:
        return None


def need_photos(source: FeatureSource) -> None:
    """Raise InputError for cameras of what are not photos."""
    if not source.photos:
        raise InputError(
            f"cameras (--with-cameras) are read from the EXIF of photos, and {source.path} holds features of another "
            f"program: leave it out, and give cameras to the map (--cameras)"
        )
