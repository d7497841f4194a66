# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures: photos of a scene with or without ground truth, and sequences with homographies.

A folder of posed photos has ``images/`` and ``cameras.json``, which maps each image name to ``K`` (3, 3) with the
centre of the first pixel at (0, 0), ``world_from_cam_rotation`` R (3, 3), ``center_in_world`` C (3,) in metres and
``size`` [width, height]. The camera is returned in COLMAP's convention: half a pixel is added to the principal point,
and the pose is (R', -R' C). A sequence is a folder with ``1.ppm ... 6.ppm`` and ``H_1_2 ... H_1_6`` (HPatches), or with
``img1.ppm ...`` and ``H1to2p ...`` (Oxford); ``i_`` in front of its name is illumination, ``v_`` viewpoint. H_1_k takes
pixels of picture 1 to picture k, with the centre of the first pixel at (0, 0), as keypoints have it
(``sfumato.types.clear``). Pixels are not read, and one error names everything that is wrong with a folder.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, InputError
from sfumato.images.folders import check_image, image_size, need_folder, numbers, read_lines, refuse
from sfumato.images.homography import HomographySequence, SequenceKind, warp_points
from sfumato.images.read import SUFFIXES, list_images, read_image
from sfumato.types.arrays import checked_size, frozen_array
from sfumato.types.scene import CAMERA_MODELS, Camera, Pose


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PosedImages:
    """Pictures whose cameras are known: files, intrinsics and poses under the same names.

    ``paths`` is empty if only cameras are known. ``names`` are sorted.
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
class UnposedImages:
    """Photos of one scene without ground truth: files and sizes (width, height) under the same names, sorted.

    ``unreadable`` are the photos of the folder that were left out, with the reason.
    """

    paths: Mapping[str, Path]
    sizes: Mapping[str, tuple[int, int]]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.paths) != set(self.sizes):
            raise InputError("photos: paths and sizes must have the same names")
        for attribute in ("paths", "sizes"):
            object.__setattr__(self, attribute, MappingProxyType(dict(sorted(getattr(self, attribute).items()))))

    @property
    def names(self) -> tuple[str, ...]:
        """The photos, sorted."""
        return tuple(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"UnposedImages({len(self)} images)"


def parse_camera(words: list[str]) -> Camera | str:
    """Read ``MODEL width height parameters...`` as COLMAP and hloc write it; a text says what is wrong with it."""
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


# --- photos of a scene, with cameras.json or without


def read_scene_folder(path: str | os.PathLike[str]) -> PosedImages | UnposedImages:
    """Read photos of one scene: posed ones if the folder has cameras.json, otherwise all photos in it and below it.

    Photos without known cameras that cannot be read are left out, and named in the result. Raises FileError naming
    everything else that is wrong with the folder.
    """
    folder = Path(path)
    need_folder(folder, "photos of a scene")
    if (folder / "cameras.json").exists():
        return read_posed_folder(folder)
    paths, sizes, unreadable = dict(list_images(folder)), {}, {}
    for name, file in paths.items():
        try:
            sizes[name] = read_image(file).size  # all of it: one that is cut off would fail later, on one side only
        except ImageError as problem:
            unreadable[name] = str(problem)
    if not sizes:
        refuse(folder, [f"image {name} cannot be read ({problem})" for name, problem in unreadable.items()])
    return UnposedImages({name: paths[name] for name in sizes}, sizes, unreadable)


KEYS = ("K", "world_from_cam_rotation", "center_in_world", "size")


def read_posed_folder(path: str | os.PathLike[str]) -> PosedImages:
    """Read a folder of photos with known cameras.

    Raises FileError naming everything that is wrong: photos without a camera or cameras without a photo, damaged
    photos, other sizes than the camera's, matrices that are no intrinsics or no rotation.
    """
    folder = Path(path)
    need_folder(folder, "photos with images/ and cameras.json in it")
    entries = _read_entries(folder / "cameras.json")
    images = folder / "images"
    if not images.is_dir():
        raise FileError(f"{folder}: the folder images is missing")
    problems: list[str] = []
    paths, cameras, poses = {}, {}, {}
    for name, entry in sorted(entries.items()):
        try:
            camera, pose = _parse(entry)
        except InputError as problem:
            problems.append(f"{name}: {problem}")
            continue
        problems += check_image(images / name, name, (camera.width, camera.height))
        paths[name], cameras[name], poses[name] = images / name, camera, pose
    unknown = sorted({name for name, _ in list_images(images)} - set(entries)) if any(images.iterdir()) else []
    problems += [f"image {name} has no camera in cameras.json" for name in unknown]
    refuse(folder, problems)
    return PosedImages(paths, cameras, poses)


def _read_entries(path: Path) -> dict[str, Any]:
    text = "\n".join(read_lines(path))

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise FileError(f"{path}: {twice[0]!r:.80} is there twice")
        return dict(pairs)

    try:
        entries = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as cause:
        raise FileError(f"{path} is no JSON: {cause}") from cause
    if not isinstance(entries, dict) or not entries:
        raise FileError(f"{path} names no image: expected an object with an entry for each")
    return entries


def _parse(entry: Any) -> tuple[Camera, Pose]:
    """Return camera and pose; InputError says what is wrong with them."""
    missing = [key for key in KEYS if key not in entry] if isinstance(entry, dict) else list(KEYS)
    if missing:
        raise InputError(f"{', '.join(missing)} missing")
    matrix = frozen_array(entry["K"], "K", (3, 3), np.float64)
    fx, fy, cx, cy = matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2]
    plain = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    if fx <= 0 or fy <= 0 or np.abs(matrix - plain).max() > 1e-9:
        raise InputError("K: expected [fx 0 cx; 0 fy cy; 0 0 1] with positive focal lengths")
    rotation = nearest_rotation(frozen_array(entry["world_from_cam_rotation"], "rotation", (3, 3), np.float64))
    if rotation is None:
        raise InputError("world_from_cam_rotation: expected an orthonormal matrix of determinant 1")
    center = frozen_array(entry["center_in_world"], "center_in_world", (3,), np.float64)
    size = checked_size(entry["size"])
    if size is None:
        raise InputError("size: expected width and height")
    camera = Camera("PINHOLE", *size, (fx, fy, cx + 0.5, cy + 0.5))
    return camera, Pose(rotation.T, -rotation.T @ center)


# --- sequences with homographies


PICTURE = re.compile(r"(?:img)?(\d{1,4})$")
MATRIX = re.compile(r"H_1_(\d{1,4})$|H1to(\d{1,4})p?$")
KINDS: dict[str, SequenceKind] = {"i_": "illumination", "v_": "viewpoint"}

Matrix = NDArray[np.float64]


def read_homography_folder(path: str | os.PathLike[str]) -> list[HomographySequence]:
    """Read one sequence, or a folder of sequences sorted by name.

    Raises FileError naming everything that is wrong: pictures that are missing, doubled or damaged, homographies that
    are missing, no numbers, not invertible, or that take no point of the first picture into the other.
    """
    folder = Path(path)
    need_folder(folder, "sequences, or one sequence")
    if _looks_like_sequence(folder):
        places = [folder]
    else:
        inside = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
        places = [place for place in inside if _looks_like_sequence(place) or place.name[:2] in KINDS]
    if not places:
        raise FileError(
            f"{folder} holds no sequence: expected folders with 1.ppm ... and H_1_2 ..., or img1 and H1to2p"
        )
    sequences, problems = [], []
    for place in places:
        sequence, wrong = _read_sequence(place)
        problems += [f"{place.name}: {text}" for text in wrong]
        if sequence is not None:
            sequences.append(sequence)
    refuse(folder, problems)
    return sequences


def _looks_like_sequence(folder: Path) -> bool:
    return any(MATRIX.fullmatch(entry.name) or _picture_number(entry) == 1 for entry in folder.iterdir())


def _picture_number(path: Path) -> int | None:
    match = PICTURE.fullmatch(path.stem) if path.suffix.lower() in SUFFIXES else None
    return int(match[1]) if match else None


def _read_sequence(folder: Path) -> tuple[HomographySequence | None, list[str]]:
    """Return a sequence, or None and all that is wrong with it."""
    pictures, problems = _pictures(folder)
    files = {int(match[1] or match[2]): entry for entry in folder.iterdir() if (match := MATRIX.fullmatch(entry.name))}
    count = max([*pictures, *files, 2])
    problems += [f"picture {number} is missing" for number in range(1, count + 1) if number not in pictures]
    problems += [f"homography H_1_{number} is missing" for number in range(2, count + 1) if number not in files]
    sizes = {}
    for number, picture in sorted(pictures.items()):
        try:
            sizes[number] = image_size(picture)
        except ImageError as problem:
            problems.append(f"picture {number} cannot be read ({problem})")
    matrices = []
    for number in sorted(set(files) & set(range(2, count + 1))):
        found = _read_matrix(files[number])
        wrong = found if isinstance(found, str) else _fault(found, sizes.get(1), sizes.get(number))
        if wrong:
            problems.append(f"{files[number].name} {wrong}")
        else:
            matrices.append(found)
    if problems:
        return None, problems
    paths = tuple(pictures[number] for number in range(1, count + 1))
    kind = KINDS.get(folder.name[:2], "other")
    return HomographySequence(folder.name, kind, paths, tuple(m for m in matrices if not isinstance(m, str))), []


def _pictures(folder: Path) -> tuple[dict[int, Path], list[str]]:
    """Return the numbered pictures, and those numbers that two files claim."""
    pictures: dict[int, Path] = {}
    problems = []
    for entry in sorted(folder.iterdir()):
        number = _picture_number(entry)
        if number in pictures:
            problems.append(f"picture {number} is there twice: {pictures[number].name} and {entry.name}")
        elif number:
            pictures[number] = entry
    return pictures, problems


def _read_matrix(path: Path) -> Matrix | str:
    """Read nine numbers, or return why there are none."""
    try:
        values = numbers(" ".join(read_lines(path)).split())
    except FileError as problem:
        return f"cannot be read ({problem})"
    if values is None or len(values) != 9:
        return "does not hold nine finite numbers"
    return np.array(values).reshape(3, 3)


def _fault(matrix: Matrix, first: tuple[int, int] | None, other: tuple[int, int] | None) -> str:
    """Return why a matrix cannot be the homography between two pictures of these sizes, or an empty text."""
    if first is None or other is None:
        return ""
    unit = matrix / max(np.abs(matrix).max(), 1e-300)
    scaled = np.linalg.inv(_to_pixels(other)) @ unit @ _to_pixels(first)  # both pictures fill [-1, 1]
    stretch = np.linalg.svd(scaled, compute_uv=False)
    if stretch[-1] <= 1e-9 * stretch[0]:
        return "is not invertible"
    across, down = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21))
    seen = warp_points(scaled, np.stack([across.ravel(), down.ravel()], 1))
    if not (np.abs(seen) <= 1).all(axis=1).any():
        return "takes no point of picture 1 into its picture: is it of another sequence, or the other way round?"
    return ""


def _to_pixels(size: tuple[int, int]) -> Matrix:
    """Return the matrix that takes [-1, 1] to the pixels of a picture."""
    half = np.array(size) / 2
    return np.array([[half[0], 0, half[0] - 0.5], [0, half[1], half[1] - 0.5], [0, 0, 1]])
