# SPDX-License-Identifier: Apache-2.0
"""Cameras and poses by image name: hloc's and COLMAP's lists of them, guesses, and how far a pose is from another.

Camera parameters are COLMAP's throughout: its order, and its principal point, for which the centre of the first pixel
is at (0.5, 0.5). A pose is cam_from_world; lists hold quaternions as w x y z. Knows no image; EXIF is read in
``images``, and ``colmap`` turns cameras and poses into COLMAP's own objects.
"""

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.files.atomic import read_text, write_text
from sfumato.types.scene import CAMERA_MODELS, Camera, Pose, unit_rotation

# --- image names: nothing renames an image inside an archive, so names are checked before photos are concealed


SHOWN = 5

NAME_EARLIER = (
    "photos must get other names before they are concealed for the first time; do not rename and conceal them again "
    "if they were lifted: a second lifting reveals the first"
)
NAME_FIRST = "give the photos other names first"
"""What to say before photos are concealed in a way that gives the same descriptor the same result each time."""


def is_listable(name: str) -> bool:
    """Tell whether a list of hloc's can hold a name: no spaces, and no # in front."""
    return name.split() == [name] and not name.startswith("#")


def unlistable_names(names: Iterable[str]) -> list[str]:
    """Return the names that hloc's lists cannot hold."""
    return [name for name in names if not is_listable(name)]


def name_fault(name: str) -> str:
    """Return why a name must not go where others take it for a path, or an empty text.

    >>> name_fault("deep/er/a b.jpg"), name_fault("a/../b.jpg")
    ('', 'it leaves its folder')
    """
    if name.startswith("/"):
        return "it is absolute"
    if ".." in name.split("/"):
        return "it leaves its folder"
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        return "it holds control characters"
    return ""


def name_list(names: list[str]) -> str:
    """Return the first of several names, as they may be shown, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"{name!r:.80}" for name in names[:SHOWN]) + more


# --- text files with an image per line, as hloc and COLMAP keep cameras and poses: ``name word word ...``


PROBLEMS_SHOWN = 8
MOST_DIGITS = 9
"""Of a width or a height in pixels."""

Value = TypeVar("Value")


def _read_list(path: str | os.PathLike[str], what: str, parse: Callable[[list[str]], Value]) -> dict[str, Value]:
    """Read ``what`` of each image; empty lines and lines that begin with # are comments.

    ``parse`` takes the words after the name and raises InputError for wrong ones.

    Raises FileError naming every wrong line at once.
    """
    return _parse_list(Path(path), read_text(path), what, parse)


def _parse_list(path: Path, text: str, what: str, parse: Callable[[list[str]], Value]) -> dict[str, Value]:
    """Return what the text of a list says of each image; ``path`` and ``what`` are for messages."""
    values, problems = dict[str, Value](), []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        name, *words = line.split() or ["#"]
        if name.startswith("#"):
            continue
        if name in lines:
            problems.append(f"line {number}: {name!r:.200} was named before, in line {lines[name]}")
            continue
        lines[name] = number
        try:
            values[name] = parse(words)
        except InputError as problem:
            problems.append(f"line {number}: {problem}")
    if problems:
        more = f"; and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
        raise FileError(f"{path}: cannot read the {what}: {'; '.join(problems[:PROBLEMS_SHOWN])}{more}")
    return values


def _write_list(
    path: str | os.PathLike[str],
    rows: Mapping[str, Iterable[str]],
    comment: str = "",
    marks: Mapping[str, str] | None = None,
) -> None:
    """Write an image per line, in the order given, under a comment if there is one; whole or not at all.

    ``marks`` are comments above the lines of single images.

    Raises InputError for names that such a file cannot hold, FileError if it cannot be written.
    """
    wrong = unlistable_names(rows)
    if wrong:
        raise InputError(
            f"names with spaces, or that begin with #, cannot be listed: {name_list(wrong)}; {NAME_EARLIER}"
        )
    lines = [f"# {comment}"] if comment else []
    for name, row in rows.items():
        lines += [f"# {marks[name]}"] if marks and name in marks else []
        lines.append(" ".join([name, *row]))
    write_text(path, "".join(f"{line}\n" for line in lines))


def numbers(words: Iterable[str], what: str) -> tuple[float, ...]:
    """Return words as numbers, or raise InputError naming the first that is not one."""
    result = []
    for word in words:
        try:
            result.append(float(word))
        except ValueError as cause:
            raise InputError(f"{what}: {word!r:.40} is not a number") from cause
    return tuple(result)


# --- cameras


GUESSED_FOCAL = 1.2
"""COLMAP's guess of a focal length: this many times the longer side of the image."""

GUESSED = "guessed:"
"""Begins the comment above a camera whose focal length is a guess."""
GUESS_MARK = f"{GUESSED} correct the focal length below and delete this line, or leave both and it is adjusted"


def check_camera(camera: Camera) -> Camera:
    """Return a camera whose model is known, with as many parameters as it needs and a positive focal length."""
    parameters = CAMERA_MODELS.get(camera.model)
    if parameters is None:
        hint = suggest(camera.model, CAMERA_MODELS) or "; the usual ones are PINHOLE, SIMPLE_RADIAL and OPENCV"
        raise InputError(f"no camera model is called {camera.model!r:.40}{hint}")
    if not any(name.startswith("f") for name in parameters):
        raise InputError(f"{camera.model} has no focal length: such images can be neither mapped nor localized here")
    if len(camera.params) != len(parameters):
        names = " ".join(parameters)
        raise InputError(f"{camera.model} has {len(parameters)} parameters ({names}), {len(camera.params)} were given")
    if any(value <= 0 for value, name in zip(camera.params, parameters, strict=True) if name.startswith("f")):
        raise InputError(f"{camera.model}: expected a focal length above 0 pixels")
    return camera


def read_cameras(path: str | os.PathLike[str], images: Iterable[str] | None = None) -> dict[str, Camera]:
    """Read a list of cameras, hloc's or COLMAP's: ``name MODEL width height parameters...`` per line, # for comments.

    COLMAP's cameras.txt has numbers in place of names, and the images.txt beside it says which image has which. Without
    images.txt a single camera serves all ``images``.

    Raises FileError naming every wrong line at once, and for cameras of COLMAP's that no image can be told for.
    """
    return read_marked_cameras(path, images)[0]


def read_marked_cameras(
    path: str | os.PathLike[str], images: Iterable[str] | None = None
) -> tuple[dict[str, Camera], frozenset[str]]:
    """Read a list of cameras, and the names of those that ``write_cameras`` marked as guesses."""
    path = Path(path)
    text = read_text(path)
    cameras = _parse_list(path, text, "cameras", _parse_camera)
    if not cameras:
        raise FileError(f"{path} names no camera: a line is 'name MODEL width height parameters...'")
    names = None if images is None else list(images)
    if _is_numbered(cameras, names):
        return _name_cameras(path, cameras, names), frozenset()
    return cameras, _marked_names(text)


def read_known_cameras(path: str | os.PathLike[str], images: Iterable[str] | None = None) -> dict[str, Camera]:
    """Read a list of cameras without those that are marked as guesses."""
    cameras, guessed = read_marked_cameras(path, images)
    return {name: camera for name, camera in cameras.items() if name not in guessed}


def _marked_names(text: str) -> frozenset[str]:
    """Return the first words of the lines below a mark; other comments may stand between."""
    names, is_marked = set(), False
    for line in text.split("\n"):
        words = line.split() or ["#"]
        if words[0].startswith("#"):
            is_marked = is_marked or line.lstrip("# \t").startswith(GUESSED)
            continue
        if is_marked:
            names.add(words[0])
        is_marked = False
    return frozenset(names)


def _is_numbered(cameras: Iterable[str], images: list[str] | None) -> bool:
    """Tell whether a list is COLMAP's: all its names are numbers, and not those of images."""
    return all(name.isascii() and name.isdigit() for name in cameras) and not set(cameras) & set(images or ())


def _name_cameras(path: Path, cameras: Mapping[str, Camera], images: list[str] | None) -> dict[str, Camera]:
    """Return the cameras of COLMAP's list by the names of their images."""
    beside = path.with_name("images.txt")
    if beside.is_file():
        numbers_of = _read_image_cameras(beside)
        lost = [name for name, number in numbers_of.items() if number not in cameras]
        if lost:
            raise FileError(
                f"{beside}: the cameras of {name_list(lost)} are not in {path}: give both files of one model"
            )
        return {name: cameras[number] for name, number in numbers_of.items()}
    if len(cameras) > 1 or images is None:
        raise FileError(
            f"{path} is COLMAP's list of {len(cameras)} cameras, and {beside.name}, which says which image has which, "
            f"is not beside it: put it there, or write a line 'name MODEL width height parameters...' per image"
        )
    return dict.fromkeys(images, next(iter(cameras.values())))


def _read_image_cameras(path: Path) -> dict[str, str]:
    """Return the number of the camera of each image in COLMAP's images.txt; poses and keypoints are not read."""
    numbers_of: dict[str, str] = {}
    lines = iter(enumerate(read_text(path).split("\n"), 1))
    for place, line in lines:
        words = line.split(maxsplit=9)
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 10:
            raise FileError(f"{path}: line {place}: expected COLMAP's 'IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME'")
        numbers_of[words[9].strip()] = words[8]
        next(lines, None)  # its keypoints, or an empty line
    return numbers_of


def write_cameras(path: str | os.PathLike[str], cameras: Mapping[str, Camera], guessed: Iterable[str] = ()) -> None:
    """Write cameras in hloc's form, sorted by name; every number comes back exactly.

    A comment above marks each of ``guessed``: hloc skips it, and maps adjust the camera.
    """
    rows = {
        name: [camera.model, str(camera.width), str(camera.height), *map(repr, camera.params)]
        for name, camera in sorted(cameras.items())
    }
    _write_list(path, rows, "name MODEL width height parameters...", dict.fromkeys(guessed, GUESS_MARK))


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
        more = f"; and {len(wrong) - PROBLEMS_SHOWN} more" if len(wrong) > PROBLEMS_SHOWN else ""
        count = "1 camera is of an image" if len(wrong) == 1 else f"{len(wrong)} cameras are of images"
        raise InputError(
            f"{count} of another size: {'; '.join(wrong[:PROBLEMS_SHOWN])}{more}. "
            f"Scale focal length and principal point with the image"
        )


def _parse_camera(words: list[str]) -> Camera:
    if len(words) < 4:
        raise InputError("expected 'name MODEL width height parameters...', names without spaces")
    model, width, height, *params = words
    if not all(size.isascii() and size.isdigit() and len(size) <= MOST_DIGITS for size in (width, height)):
        raise InputError(f"expected a width and a height in whole pixels, got {width!r:.20} and {height!r:.20}")
    return check_camera(Camera(model, int(width), int(height), numbers(params, "parameters")))


# --- poses


def read_poses(path: str | os.PathLike[str]) -> dict[str, Pose]:
    """Read a list ``name qw qx qy qz tx ty tz`` of cam_from_world poses, as hloc writes its results.

    An empty list is one in which nothing was localized. Raises FileError naming every wrong line at once.
    """
    return _read_list(path, "poses", _parse_pose)


def write_poses(path: str | os.PathLike[str], poses: Mapping[str, Pose]) -> None:
    """Write poses in hloc's form, sorted by name, without any comment: its readers know none."""
    _write_list(path, {name: map(repr, pose_numbers(pose)) for name, pose in sorted(poses.items())})


def pose_numbers(pose: Pose) -> list[float]:
    """Return a pose as hloc's lists have it: qw qx qy qz tx ty tz."""
    return [float(value) for value in (*_quaternion_of(pose.rotation), *pose.translation)]


def pose_error(pose: Pose, truth: Pose) -> tuple[float, float]:
    """Return how far the camera's centre is from the true one, in the world's unit, and by how many degrees it turns.

    >>> stands = Pose(np.eye(3), np.zeros(3))
    >>> pose_error(Pose(np.eye(3), np.array([3.0, 4.0, 0.0])), stands)
    (5.0, 0.0)
    """
    metres = float(np.linalg.norm(pose.center - truth.center))
    return metres, angle_between(pose.rotation, truth.rotation)


def angle_between(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the angle in degrees by which one rotation (3, 3) differs from another; exact for small ones too."""
    turn = first @ second.T
    sine = np.linalg.norm([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    return float(np.rad2deg(np.arctan2(sine, np.trace(turn) - 1)))


def _quaternion_of(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quaternion w x y z, with w of 0 or more, of a rotation (3, 3)."""
    r = np.asarray(rotation, np.float64)
    # The outer product of the quaternion with itself, times 4: its longest column is known best.
    table = np.array(
        [
            [1 + r[0, 0] + r[1, 1] + r[2, 2], r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]],
            [r[2, 1] - r[1, 2], 1 + r[0, 0] - r[1, 1] - r[2, 2], r[0, 1] + r[1, 0], r[0, 2] + r[2, 0]],
            [r[0, 2] - r[2, 0], r[0, 1] + r[1, 0], 1 - r[0, 0] + r[1, 1] - r[2, 2], r[1, 2] + r[2, 1]],
            [r[1, 0] - r[0, 1], r[0, 2] + r[2, 0], r[1, 2] + r[2, 1], 1 - r[0, 0] - r[1, 1] + r[2, 2]],
        ]
    )
    column = table[:, int(np.argmax(np.diag(table)))]
    unit: NDArray[np.float64] = column / np.linalg.norm(column)
    return -unit if unit[0] < 0 else unit


def nearest_rotation(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) nearest to a matrix that is one but for rounding."""
    left, _, right = np.linalg.svd(matrix)
    turn = np.diag([1.0, 1.0, float(np.sign(np.linalg.det(left @ right)))])
    nearest: NDArray[np.float64] = left @ turn @ right
    return nearest


def _parse_pose(words: list[str]) -> Pose:
    if len(words) != 7:
        raise InputError(f"expected 'name qw qx qy qz tx ty tz', names without spaces; there are {len(words)} numbers")
    values = np.array(numbers(words, "pose"))
    if not np.isfinite(values).all():
        raise InputError("expected a quaternion of length 1 and a finite translation")
    return Pose(unit_rotation(values[:4]), values[4:])
