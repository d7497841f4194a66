# SPDX-License-Identifier: Apache-2.0
"""Photos with surveyed cameras: ``images/`` and ``cameras.json`` side by side.

cameras.json maps each image name to ``K`` (3, 3) with the centre of the first pixel at (0, 0),
``world_from_cam_rotation`` R (3, 3), ``center_in_world`` C (3,) in metres and ``size`` [width, height]. The camera that
comes out is COLMAP's: half a pixel is added to the principal point, and the pose is (R', -R' C).
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.images.folders.ground import (
    PosedImages,
    check_image,
    nearest_rotation,
    need_folder,
    read_lines,
    refuse,
)
from sfumato.images.read import list_images
from sfumato.types.arrays import checked_size, frozen_array
from sfumato.types.scene import Camera, Pose

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
