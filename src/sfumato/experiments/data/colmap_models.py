# SPDX-License-Identifier: Apache-2.0
"""Cameras and poses of COLMAP models (.bin or .txt, of any version), and poses of NVM models (VisualSFM, version 3).

Keypoints and points are not read. COLMAP's own reader hangs or ends the process on damaged files, and would load every
point of the map, so the two files are read here. A line of an image in an NVM model is ``name focal qw qx qy qz cx cy
cz distortion 0``: the quaternion of cam_from_world's rotation, and the camera's centre in the world; it is read line by
line, since the points that follow can be gigabytes.
"""

import os
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages, parse_camera
from sfumato.images.folders import check_image, need_folder, numbers, read_lines, refuse
from sfumato.types.scene import CAMERA_MODELS, Camera, Pose, unit_rotation

COUNT, CAMERA, IMAGE = struct.Struct("<Q"), struct.Struct("<IiQQ"), struct.Struct("<I7dI")
"""A count; a camera's number, model, width and height; an image's number, quaternion, translation, camera."""
KEYPOINT_BYTES = 24
LONGEST_NAME = 4096
MODEL_NAMES = tuple(CAMERA_MODELS)

Row = tuple[str, int, list[float]]
"""An image: its name, the number of its camera, and qw qx qy qz tx ty tz."""


def read_colmap_model(path: str | os.PathLike[str], images: str | os.PathLike[str] | None = None) -> PosedImages:
    """Read the registered images of a COLMAP model; with ``images``, their folder, every file is checked too.

    Raises FileError naming everything that is wrong: files of the model that are missing or damaged, images that are
    missing, damaged or of another size than their camera's.
    """
    folder = Path(path)
    need_folder(folder, "a COLMAP model, with cameras and images as .bin or .txt")
    if images is not None:
        need_folder(Path(images), "the images of the model")
    known, rows = _read(folder)
    cameras, poses, paths = {}, {}, {}
    problems = []
    for name, number, pose in rows:
        try:
            found = known[number], Pose(unit_rotation(pose[:4]), np.array(pose[4:]))
        except (KeyError, InputError) as problem:
            reason = f"there is no camera {number}" if isinstance(problem, KeyError) else problem
            problems.append(f"image {name!r:.80}: {reason}")
            continue
        if name in poses:
            problems.append(f"image {name!r:.80} is there twice")
            continue
        cameras[name], poses[name] = found
        if images is not None:
            paths[name] = Path(images) / name
            problems += check_image(paths[name], name, (cameras[name].width, cameras[name].height))
    refuse(folder, problems)
    return PosedImages(paths, cameras, poses)


def _read(folder: Path) -> tuple[dict[int, Camera], list[Row]]:
    """Read the binary files if they are there, else the text files."""
    for suffix in (".bin", ".txt"):
        cameras, images = folder / f"cameras{suffix}", folder / f"images{suffix}"
        if not (cameras.is_file() and images.is_file()):
            continue
        if suffix == ".txt":
            return _cameras_of_text(cameras), _images_of_text(images)
        try:
            with cameras.open("rb") as file:
                known = _cameras_of_bytes(file)
            with images.open("rb") as file:
                return known, _images_of_bytes(file)
        except (struct.error, InputError, UnicodeDecodeError, OverflowError) as cause:
            raise FileError(f"{folder}: {cameras.name} or {images.name} is cut off or damaged: {cause}") from cause
        except OSError as cause:
            raise FileError(f"{folder}: the model cannot be read: {cause.strerror or cause}") from cause
    raise FileError(f"{folder} is no COLMAP model: expected cameras and images, both .bin or both .txt")


def _cameras_of_bytes(file: BinaryIO) -> dict[int, Camera]:
    cameras = {}
    for _ in range(_count(file, CAMERA.size)):
        number, model, width, height = CAMERA.unpack(file.read(CAMERA.size))
        if not 0 <= model < len(MODEL_NAMES):
            raise InputError(f"unknown camera model {model}")
        name = MODEL_NAMES[model]
        params = struct.Struct(f"<{len(CAMERA_MODELS[name])}d")
        cameras[number] = Camera(name, width, height, params.unpack(file.read(params.size)))
    _expect_end(file)
    return cameras


def _images_of_bytes(file: BinaryIO) -> list[Row]:
    rows: list[Row] = []
    for _ in range(_count(file, IMAGE.size)):
        _, *pose, camera = IMAGE.unpack(file.read(IMAGE.size))
        name = _name(file)
        keypoints = COUNT.unpack(file.read(COUNT.size))[0]
        if keypoints > _left(file) // KEYPOINT_BYTES:
            raise InputError(f"image {name!r:.80} has more keypoints than the file")
        file.seek(keypoints * KEYPOINT_BYTES, os.SEEK_CUR)
        rows.append((name, camera, pose))
    _expect_end(file)
    return rows


def _name(file: BinaryIO) -> str:
    """Read a text that ends with a zero."""
    start = file.tell()
    name, end, _ = file.read(LONGEST_NAME).partition(b"\0")
    if not end:
        raise InputError("the name of an image does not end")
    file.seek(start + len(name) + 1)
    return name.decode("utf-8")


def _count(file: BinaryIO, size: int) -> int:
    """Read how many entries of at least ``size`` bytes follow; more than there is room for is an InputError."""
    count: int = COUNT.unpack(file.read(COUNT.size))[0]
    if count > _left(file) // size:
        raise InputError(f"{count} entries do not fit in it")
    return count


def _left(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size - file.tell()


def _expect_end(file: BinaryIO) -> None:
    if _left(file):
        raise InputError(f"{_left(file)} bytes too much")


def _cameras_of_text(path: Path) -> dict[int, Camera]:
    """Read ``number MODEL width height parameters...`` a line."""
    cameras: dict[int, Camera] = {}
    problems = []
    for number, words in _lines(path):
        camera = parse_camera(words[1:]) if words[0].isdecimal() else "expected the number of a camera"
        if isinstance(camera, str):
            problems.append(f"line {number}: {camera}")
        else:
            cameras[int(words[0])] = camera
    refuse(path, problems)
    return cameras


def _images_of_text(path: Path) -> list[Row]:
    """Read ``number qw qx qy qz tx ty tz camera name`` a line; each is followed by a line of keypoints."""
    rows: list[Row] = []
    problems = []
    for number, words in _lines(path, every_second=True):
        pose = numbers(words[1:8])
        if len(words) < 10 or pose is None or not words[8].isdecimal():
            problems.append(f"line {number}: expected number qw qx qy qz tx ty tz camera name")
        else:
            rows.append((" ".join(words[9:]), int(words[8]), pose))
    refuse(path, problems)
    return rows


def _lines(path: Path, *, every_second: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that is no comment, or of the first of each two."""
    lines = iter(enumerate(read_lines(path), 1))
    for number, line in lines:
        if line.strip() and not line.startswith("#"):
            yield number, line.split()
            if every_second:
                next(lines, None)


# --- NVM models


LONGEST_LINE = 10_000


def read_nvm_poses(path: str | os.PathLike[str]) -> dict[str, Pose]:
    """Return the pose of every image of the first model in a file.

    Raises FileError naming everything that is wrong with them.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            return _parse(path, _nvm_lines(path, file))
    except FileNotFoundError as cause:
        raise FileError(f"{path} is missing") from cause
    except UnicodeDecodeError as cause:
        raise FileError(f"{path} is no text") from cause
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{path} cannot be read: {cause.strerror or cause}") from cause


def _nvm_lines(path: Path, file: TextIO) -> Iterator[list[str]]:
    """Yield the words of each line that has some."""
    for line in iter(lambda: file.readline(LONGEST_LINE + 1), ""):
        if len(line) > LONGEST_LINE:
            raise FileError(f"{path} is no NVM model: a line of an image has more than {LONGEST_LINE} characters")
        if line.strip():
            yield line.split()


def _parse(path: Path, lines: Iterator[list[str]]) -> dict[str, Pose]:
    if not next(lines, [""])[0].startswith("NVM_V3"):
        raise FileError(f"{path} is no NVM model: it does not begin with NVM_V3")
    head = next(lines, [""])
    if len(head) != 1 or not head[0].isdecimal() or len(head[0]) > 8:
        raise FileError(f"{path}: the number of images is missing")
    count = int(head[0])
    poses: dict[str, Pose] = {}
    problems, seen = [], 0
    for words in islice(lines, count):
        seen += 1
        values = numbers(words[1:])
        rotation = None if values is None or len(values) != 10 else _rotation(values[1:5])
        if values is None or rotation is None:
            problems.append(f"image {words[0]!r:.80} is not 'name focal qw qx qy qz cx cy cz distortion 0'")
        elif words[0] in poses:
            problems.append(f"image {words[0]!r:.80} is there twice")
        else:
            poses[words[0]] = Pose(rotation, -rotation @ np.array(values[5:8]))
    if seen < count:
        problems.append(f"it is cut off after {seen} of {count} images")
    refuse(path, problems)
    return poses


def _rotation(quaternion: list[float]) -> NDArray[np.float64] | None:
    try:
        return unit_rotation(quaternion)
    except InputError:
        return None
