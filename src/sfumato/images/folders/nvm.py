# SPDX-License-Identifier: Apache-2.0
"""The poses of an NVM model (VisualSFM's format, version 3): its images, not its points.

A line of an image is ``name focal qw qx qy qz cx cy cz distortion 0``: the quaternion of cam_from_world's rotation, and
the camera's centre in the world. Read line by line, since the points that follow can be gigabytes.
"""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.images.folders.ground import numbers, refuse
from sfumato.types.rotations import unit_rotation
from sfumato.types.scene import Pose

LONGEST_LINE = 10_000


def read_nvm_poses(path: str | os.PathLike[str]) -> dict[str, Pose]:
    """Return the pose of every image of the first model in a file.

    Raises FileError naming everything that is wrong with them.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8") as file:
            return _parse(path, _lines(path, file))
    except FileNotFoundError as cause:
        raise FileError(f"{path} is missing") from cause
    except UnicodeDecodeError as cause:
        raise FileError(f"{path} is no text") from cause
    except OSError as cause:
        if isinstance(cause, FileError):
            raise
        raise FileError(f"{path} can not be read: {cause.strerror or cause}") from cause


def _lines(path: Path, file: TextIO) -> Iterator[list[str]]:
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
