# SPDX-License-Identifier: Apache-2.0
"""A small made-up room with exact ground truth: views of it, their cameras and poses, depth, and what corresponds.

For tests, demonstrations and evaluations without data: all that is drawn comes from the caller's generator. Metres;
poses are cam_from_world, cameras in COLMAP's convention; points are those of keypoints (``sfumato.types.clear``): the
centre of the first pixel is (0, 0).
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.images.furnish import UP, Extent, furnish
from sfumato.images.render import Surface, cast, intrinsics, project, render, unproject
from sfumato.images.settings import Range, refuse_unknown, settle_numbers
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.clear import Image
from sfumato.types.scene import Camera, Pose
from sfumato.whole import new_folder

Array = NDArray[np.float64]

HIDDEN = 1e-3
"""A point is hidden by what is nearer by more than this share of its depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomParams:
    """How many views there are, and how they are taken.

    ``focal`` is the focal length in widths of the picture. From view to view the camera goes ``step`` degrees around
    the room, its eyes on the middle. ``noise`` is the deviation of Gaussian noise in grey levels, ``exposure`` the
    largest change of brightness, as a share. ``samples`` x ``samples`` rays make a pixel.
    """

    views: int = 12
    width: int = 640
    height: int = 480
    focal: float = 0.95
    step: float = 15.0
    noise: float = 2.0
    exposure: float = 0.1
    samples: int = 2

    def __new__(cls, **settings: object) -> "RoomParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "views": Range(1, 10_000, whole=True),
            "width": Range(16, 8000, whole=True),
            "height": Range(16, 8000, whole=True),
            "focal": Range(0.1, 10),
            "step": Range(0, 360),
            "noise": Range(0, 255),
            "exposure": Range(0, 0.9),
            "samples": Range(1, 8, whole=True),
        }
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RoomView:
    """One view: its picture, camera, pose, and ``depth`` (H, W) float32 in metres at the centres of the pixels."""

    image: Image
    camera: Camera
    pose: Pose
    depth: NDArray[np.float32]

    def __repr__(self) -> str:
        return f"RoomView({self.image!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Room:
    """A room: what is in it, and views of it."""

    surfaces: tuple[Surface, ...]
    views: tuple[RoomView, ...]

    def __repr__(self) -> str:
        return f"Room({len(self.surfaces)} surfaces, {len(self.views)} views)"


def make_room(params: RoomParams | None, rng: np.random.Generator, **settings: Any) -> Room:
    """Draw a room and take pictures of it. Settings are those of RoomParams.

    >>> room = make_room(None, np.random.default_rng(0), views=2, width=64, height=48)
    >>> room
    Room(42 surfaces, 2 views)
    """
    params = replace(params or RoomParams(), **settings)
    extent = Extent()
    surfaces = furnish(extent, rng)
    poses = draw_poses(extent, params, rng)
    views = [_take(surfaces, pose, f"view-{i:04d}.png", params, rng) for i, pose in enumerate(poses)]
    return Room(surfaces, tuple(views))


def draw_poses(extent: Extent, params: RoomParams, rng: np.random.Generator) -> list[Pose]:
    """Return the poses of a walk around the room, looking across its middle, slightly unsteady."""
    angles = np.deg2rad(rng.uniform(0, 360) + params.step * np.arange(params.views))
    poses = []
    for angle in angles:
        ring = np.array([extent.length * np.cos(angle), extent.width * np.sin(angle)]) * rng.uniform(0.37, 0.41)
        position = np.array([*ring, extent.height * (0.55 + 0.08 * np.sin(2.3 * angle)) + rng.uniform(-0.05, 0.05)])
        target = np.array([0, 0, 0.45 * extent.height]) + rng.uniform(-0.15, 0.15, 3)
        poses.append(look_at(position, target, roll=rng.uniform(-3, 3)))
    return poses


def look_at(position: ArrayLike, target: ArrayLike, roll: float = 0.0) -> Pose:
    """Return the pose of a camera at ``position`` (3,) that looks at ``target`` (3,), turned by ``roll`` degrees.

    >>> look_at([0, 0, 1], [1, 0, 1]).rotation @ [1, 0, 0]
    array([0., 0., 1.])
    """
    place = frozen_array(position, "position", (3,), np.float64)
    forward = frozen_array(target, "target", (3,), np.float64) - place
    right = np.cross(forward, UP)
    if np.linalg.norm(right) < 1e-9:
        raise InputError("position and target: a camera can not look straight up or down here")
    forward, right = forward / np.linalg.norm(forward), right / np.linalg.norm(right)
    cos, sin = np.cos(np.deg2rad(roll)), np.sin(np.deg2rad(roll))
    turned = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
    rotation = turned @ np.stack([right, np.cross(forward, right), forward])
    return Pose(rotation, -rotation @ place)


def correspondences(room: Room, i: int, j: int, points: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Return where view j sees what view i shows at ``points`` (N, 2), and which of it is really to be seen there.

    Hidden is what lies outside the picture, behind the camera, or behind something else; it has a place all the same,
    NaN where there is none.
    """
    given = frozen_array(points, "points", (None, 2), np.float64)
    first, second = (room.views[_view(room, number)] for number in (i, j))
    depth = cast(room.surfaces, first.camera, first.pose, given + 0.5)
    met = np.isfinite(depth)
    world = np.full((len(given), 3), np.nan)
    world[met] = unproject(first.camera, first.pose, given[met] + 0.5, depth[met])
    seen, visible = np.full(given.shape, np.nan), np.zeros(len(given), bool)
    seen[met], away = project(second.camera, second.pose, world[met])
    size = second.image.size
    inside = met.copy()
    inside[met] = (away > 0) & (seen[met] >= 0).all(axis=1) & (seen[met] <= size).all(axis=1)
    inside[met] &= (given[met] >= -0.5).all(axis=1) & (given[met] <= np.array(first.image.size) - 0.5).all(axis=1)
    nearest = cast(room.surfaces, second.camera, second.pose, seen[inside])
    visible[inside] = nearest >= (1 - HIDDEN) * away[inside[met]]
    return seen - 0.5, visible


def save_room(room: Room, folder: str | os.PathLike[str]) -> None:
    """Write a folder of posed images: images/*.png, and cameras.json with what is known of each camera.

    In cameras.json the centre of the first pixel is (0, 0). The folder appears when it is complete, or not at all.

    Raises FileError if it is there already and not empty, or can not be written.
    """
    with new_folder(folder) as temporary:
        _write(room, temporary)


def _write(room: Room, folder: Path) -> None:
    import cv2

    (folder / "images").mkdir()
    for view in room.views:
        encoded = cv2.imencode(".png", view.image.pixels[:, :, ::-1])[1]
        (folder / "images" / view.image.name).write_bytes(encoded.tobytes())
    cameras = {view.image.name: _facts(view) for view in room.views}
    (folder / "cameras.json").write_text(json.dumps(cameras, indent=1) + "\n", encoding="utf-8")


def _facts(view: RoomView) -> dict[str, Any]:
    matrix = intrinsics(view.camera)
    matrix[:2, 2] -= 0.5
    return {
        "K": matrix.tolist(),
        "world_from_cam_rotation": view.pose.rotation.T.tolist(),
        "center_in_world": view.pose.center.tolist(),
        "size": list(view.image.size),
    }


def _take(
    surfaces: tuple[Surface, ...], pose: Pose, name: str, params: RoomParams, rng: np.random.Generator
) -> RoomView:
    """Take one picture, with its own exposure and noise."""
    focal = params.focal * params.width
    camera = Camera("PINHOLE", params.width, params.height, (focal, focal, params.width / 2, params.height / 2))
    colours, depth = render(surfaces, camera, pose, params.samples)
    colours *= 1 + rng.uniform(-params.exposure, params.exposure)
    colours += rng.normal(0, params.noise, colours.shape).astype(np.float32)
    pixels = np.clip(np.rint(colours), 0, 255).astype(np.uint8)
    depth.setflags(write=False)
    return RoomView(Image(pixels, name), camera, pose, depth)


def _view(room: Room, number: int) -> int:
    index = whole_number(number, "view")
    if not 0 <= index < len(room.views):
        raise InputError(f"view: expected a number from 0 to {len(room.views) - 1}, got {index}")
    return index
