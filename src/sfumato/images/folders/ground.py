# SPDX-License-Identifier: Apache-2.0
"""What a folder with ground truth holds, and the checks that all such folders share.

Knows pictures by name, path and size; never opens their pixels. Cameras are in COLMAP's convention, homographies in
that of keypoints (``sfumato.types.clear``). Whatever is wrong with a folder is told at once, in one error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, InputError
from sfumato.images.read import read_image
from sfumato.types.arrays import frozen_array
from sfumato.types.cameramodels import CAMERA_MODELS
from sfumato.types.scene import Camera, Pose

Kind = Literal["illumination", "viewpoint", "other"]

TOLD_AT_ONCE = 20
LARGEST_TEXT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PosedImages:
    """Pictures whose cameras are known: files, intrinsics and poses under the same names.

    ``paths`` is empty where only cameras are known. ``names`` are sorted.
    """

    paths: Mapping[str, Path]
    cameras: Mapping[str, Camera]
    poses: Mapping[str, Pose]
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(sorted(self.poses))
        if set(self.cameras) != set(names) or (self.paths and set(self.paths) != set(names)):
            raise InputError("posed images: paths, cameras and poses must have the same names")
        object.__setattr__(self, "names", names)
        for attribute in ("paths", "cameras", "poses"):
            given = getattr(self, attribute)
            sorted_copy = {name: given[name] for name in names if name in given}
            object.__setattr__(self, attribute, MappingProxyType(sorted_copy))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"PosedImages({len(self)} images)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class HomographySequence:
    """Pictures of one flat scene; ``homographies[k]`` (3, 3) takes pixels of ``paths[0]`` to ``paths[k + 1]``."""

    name: str
    kind: Kind
    paths: tuple[Path, ...]
    homographies: tuple[NDArray[np.float64], ...]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.homographies) + 1:
            raise InputError(
                f"sequence {self.name}: {len(self.paths)} pictures need {len(self.paths) - 1} homographies, "
                f"got {len(self.homographies)}"
            )
        checked = tuple(frozen_array(matrix, "homography", (3, 3), np.float64) for matrix in self.homographies)
        object.__setattr__(self, "paths", tuple(self.paths))
        object.__setattr__(self, "homographies", checked)

    def __repr__(self) -> str:
        return f"HomographySequence({self.name!r}, {self.kind}, {len(self.paths)} images)"


def refuse(place: Path, problems: Iterable[str]) -> None:
    """Raise FileError naming all that is wrong with a folder; nothing wrong raises nothing."""
    told = list(problems)
    if told:
        more = f"; and {len(told) - TOLD_AT_ONCE} more" if len(told) > TOLD_AT_ONCE else ""
        raise FileError(f"{place}: {'; '.join(told[:TOLD_AT_ONCE])}{more}")


def need_folder(place: Path, what: str) -> None:
    """Raise FileError if there is no such folder."""
    if not place.is_dir():
        state = "is a file" if place.exists() else "is not there"
        raise FileError(f"{place} {state}: give the folder of {what}")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file; FileError if it is missing, no text, or far too large."""
    try:
        if path.stat().st_size > LARGEST_TEXT:
            raise FileError(f"{path} is too large for a list of images: {path.stat().st_size} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as cause:
        raise FileError(f"{path} is missing") from cause
    except UnicodeDecodeError as cause:
        raise FileError(f"{path} is no text") from cause
    except OSError as cause:
        raise FileError(f"{path} can not be read: {cause.strerror or cause}") from cause


def numbers(words: Iterable[str]) -> list[float] | None:
    """Return words as finite numbers; None if one is none."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def is_inside(name: str) -> bool:
    """Tell whether a relative name stays in its folder, whoever wrote it."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name


def image_size(path: Path) -> tuple[int, int]:
    """Return (width, height) of a picture as it stands upright; only its header is read where that is enough.

    Raises ImageError naming the file.
    """
    from PIL import Image as Pillow  # comes with scikit-image and matplotlib

    try:
        with Pillow.open(path, formats=("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP", "GIF")) as picture:
            width, height = picture.size
            turned = picture.getexif().get(0x112) in (5, 6, 7, 8)
    except Exception:  # whatever Pillow does not understand is read, or told, by our own reader
        return read_image(path).size
    return (height, width) if turned else (width, height)


def check_image(path: Path, name: str, size: tuple[int, int] | None = None) -> list[str]:
    """Return what is wrong with a picture: missing, no picture, or of another size than it should have."""
    if not is_inside(name):
        return [f"the name {name!r:.80} leaves the folder of images"]
    if not path.is_file():
        return [f"image {name} is missing"]
    try:
        found = image_size(path)
    except ImageError as problem:
        return [f"image {name} can not be read ({problem})"]
    if size is not None and found != size:
        return [f"image {name} is {found[0]} x {found[1]}, its camera says {size[0]} x {size[1]}"]
    return []


def parse_camera(words: list[str]) -> Camera | str:
    """Read ``MODEL width height parameters...`` as COLMAP and hloc write it; return what is wrong with it as a text."""
    if len(words) < 4:
        return "expected MODEL width height parameters..."
    model, sizes, params = words[0], numbers(words[1:3]), numbers(words[3:])
    if model not in CAMERA_MODELS:
        return f"unknown camera model {model!r:.40}"
    if params is None or sizes is None or any(size != int(size) or size < 1 for size in sizes):
        return "width and height must be whole numbers and all parameters finite numbers"
    if len(params) != len(CAMERA_MODELS[model]):
        return f"{model} has {len(CAMERA_MODELS[model])} parameters, got {len(params)}"
    try:
        return Camera(model, int(sizes[0]), int(sizes[1]), tuple(params))
    except InputError as problem:
        return str(problem)


def nearest_rotation(matrix: Any) -> NDArray[np.float64] | None:
    """Return the rotation nearest to a (3, 3) matrix that was rounded in a file; None if it is no rotation."""
    given = np.asarray(matrix, np.float64)
    left, stretch, right = np.linalg.svd(given)
    if np.abs(stretch - 1).max() > 1e-3 or np.linalg.det(given) < 0:
        return None
    rotation: NDArray[np.float64] = left @ right
    return rotation
