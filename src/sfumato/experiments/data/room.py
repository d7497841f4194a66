# SPDX-License-Identifier: Apache-2.0
"""Rendered room with exact ground truth: walls hung with photos, boards and boxes, and views with cameras and poses.

For tests, demonstrations and evaluations without data: random numbers come from the caller's generator. The photos are
those of scikit-image. The world is in metres: x and y along the floor, whose middle is the origin, z up. Poses are
cam_from_world, cameras in COLMAP's convention.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.experiments.data.render import Array, Colours, Surface, intrinsics, render
from sfumato.files.atomic import new_folder
from sfumato.images.samples import sample_image, sample_names
from sfumato.types.arrays import Range, frozen_array, refuse_unknown, settle_numbers
from sfumato.types.clear import Image
from sfumato.types.scene import Camera, Pose

PHOTOS = {
    "astronaut": 1, "camera": 1, "chelsea": 1, "coffee": 1, "coins": 1, "hubble": 2, "moon": 1, "motorcycle-left": 2,
    "page": 1, "retina": 1, "rocket": 1,
}  # fmt: skip
"""Photos on the walls, and their number of pieces. Only one of the two motorcycles: they show the same."""

LARGEST_PHOTO = 640
TEXELS_PER_METRE = 200
OVERLAP = 0.02
"""Metres that walls reach beyond their corners, and that pictures hang before them."""
UP = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True, slots=True)
class Extent:
    """The inner size of a room in metres: ``length`` along x, ``width`` along y, ``height``."""

    length: float = 4.8
    width: float = 4.0
    height: float = 2.6


def furnish(extent: Extent, rng: np.random.Generator) -> tuple[Surface, ...]:
    """Return the surfaces of a room, drawn anew: which photo hangs where, and where boards and boxes stand."""
    photos = _photos(rng)
    surfaces = _shell(extent, rng)
    for wall in _walls(extent):
        surfaces += _hung(wall, photos, rng)
    surfaces += _standing(extent, photos, rng)
    return tuple(surfaces)


@dataclass(frozen=True, slots=True, eq=False)
class _Wall:
    """A wall seen from inside: its upper left ``corner``, ``right`` and inward ``normal`` of length 1, ``size``."""

    corner: Array
    right: Array
    normal: Array
    size: tuple[float, float]


def _walls(extent: Extent) -> list[_Wall]:
    """Return the four walls, the one at the far end of x first, then to the right."""
    half = np.array([extent.length, extent.width]) / 2
    walls = []
    for normal in ((-1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, -1.0)):
        inward = np.array([*normal, 0.0])
        right = np.cross(-inward, UP)
        span = extent.width if normal[0] else extent.length
        middle = np.array([*(-np.array(normal) * half), extent.height])
        walls.append(_Wall(middle - right * span / 2, right, inward, (span, extent.height)))
    return walls


def _shell(extent: Extent, rng: np.random.Generator) -> list[Surface]:
    """Return four walls, floor and ceiling; each reaches a little beyond its edges, so that no ray slips through."""
    surfaces = []
    paints = [("brick", False, (200, 170, 150)), ("", False, (205, 200, 180)), ("brick", True, (175, 185, 200)),
              ("", False, (190, 205, 190))]  # fmt: skip
    for wall, (photo, mirrored, colour) in zip(_walls(extent), paints, strict=True):
        size = wall.size[0] + 2 * OVERLAP, wall.size[1] + 2 * OVERLAP
        corner = wall.corner + OVERLAP * (UP - wall.right)
        paint = _paint(size, photo, mirrored, np.array(colour), rng)
        surfaces.append(Surface(corner, wall.right * size[0], -UP * size[1], paint))
    size = extent.length + 2 * OVERLAP, extent.width + 2 * OVERLAP
    for height, photo, colour in ((0.0, "gravel", (150, 140, 130)), (extent.height, "", (235, 235, 230))):
        corner = np.array([-size[0] / 2, size[1] / 2, height])
        edges = np.array([size[0], 0, 0]), np.array([0, -size[1], 0])
        surfaces.append(Surface(corner, *edges, _paint(size, photo, False, np.array(colour), rng)))
    return surfaces


def _hung(wall: _Wall, photos: Iterator[Colours], rng: np.random.Generator) -> list[Surface]:
    """Hang photos on a wall in two rows of three, each somewhere in its place."""
    columns, rows = 3, 2
    place = np.array([wall.size[0] / columns, wall.size[1] / rows])
    surfaces = []
    for row in range(rows):
        for column in range(columns):
            photo = _framed(next(photos))
            aspect = photo.shape[1] / photo.shape[0]
            size = min(place[0] * 0.92 / aspect, place[1] * 0.92) * rng.uniform(0.88, 1.0) * np.array([aspect, 1])
            left, above = place * (column, row) + (place - size) * rng.uniform(0.2, 0.8, 2)
            corner = wall.corner + left * wall.right - above * UP + OVERLAP * wall.normal
            surfaces.append(Surface(corner, wall.right * size[0], -UP * size[1], photo))
    return surfaces


def _standing(extent: Extent, photos: Iterator[Colours], rng: np.random.Generator) -> list[Surface]:
    """Put two boards and two boxes around the middle of the floor."""
    scale = np.array([extent.length, extent.width]) / (4.8, 4.0)
    surfaces = []
    for x, y, turn in ((-0.55, 0.45, 20.0), (0.6, -0.35, 110.0)):
        middle = np.array([x, y]) * scale + rng.uniform(-0.08, 0.08, 2)
        photo = next(photos)
        height = rng.uniform(0.75, 0.95)
        right = _direction(turn + rng.uniform(-15, 15)) * height * photo.shape[1] / photo.shape[0]
        surfaces.append(Surface(np.array([*middle, height]) - right / 2, right, -UP * height, photo))
    covers = _covers()
    for x, y, size in ((0.75, 0.7, (0.5, 0.5, 0.7)), (-0.7, -0.6, (0.65, 0.45, 0.45))):
        middle = np.array([x, y]) * scale + rng.uniform(-0.08, 0.08, 2)
        surfaces += _box(middle, np.array(size), rng.uniform(0, 90), covers)
    return surfaces


def _box(middle: Array, size: Array, turn: float, covers: Iterator[Colours]) -> list[Surface]:
    """Return the four sides and the top of a box on the floor."""
    ahead, right = _direction(turn + 90) * size[1], _direction(turn) * size[0]
    foot = np.array([*middle, 0.0])
    lid = foot + UP * size[2]
    surfaces = [Surface(lid - right / 2 + ahead / 2, right, -ahead, next(covers))]
    for outward, along in ((-ahead, right), (right, ahead), (ahead, -right), (-right, -ahead)):
        surfaces.append(Surface(lid + outward / 2 - along / 2, along, -UP * size[2], next(covers)))
    return surfaces


def _direction(degrees: float) -> Array:
    angle = np.deg2rad(degrees)
    return np.array([np.cos(angle), np.sin(angle), 0.0])


def _photos(rng: np.random.Generator) -> Iterator[Colours]:
    """Yield photos in a drawn order, then all of them mirrored, and again: nothing is seen twice before it must be."""
    photos = [
        half for name in sample_names() if name in PHOTOS for half in np.array_split(_sample(name), PHOTOS[name], 1)
    ]
    order = [(i, step) for step in (1, -1) for i in rng.permutation(len(photos))]
    while photos:
        yield from (photos[i][:, ::step] for i, step in order)
    while True:  # a scikit-image without photos
        yield _paint((2.0, 2.0), "", False, rng.uniform(90, 200, 3), rng)


def _covers() -> Iterator[Colours]:
    """Yield the quarters of a photo of grass, then their mirror images, for the sides of boxes."""
    photo = _sample("grass") if "grass" in sample_names() else np.full((64, 64, 3), 128, np.float32)
    middle = photo.shape[0] // 2, photo.shape[1] // 2
    quarters = [photo[rows, columns] for rows in (slice(0, middle[0]), slice(middle[0], None))
                for columns in (slice(0, middle[1]), slice(middle[1], None))]  # fmt: skip
    tints = np.array([[1.15, 0.9, 0.65], [0.75, 0.95, 1.2]])
    while True:
        for mirrored in (False, True):
            for quarter in quarters:
                yield np.clip((quarter[:, ::-1] if mirrored else quarter) * tints[int(mirrored)], 0, 255)


def _sample(name: str) -> Colours:
    """Return a sample photo in colours, at most LARGEST_PHOTO pixels a side."""
    import cv2

    pixels: NDArray[np.uint8] = sample_image(name).pixels
    colours = np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels
    shrink = min(1.0, LARGEST_PHOTO / max(colours.shape[:2]))
    size = round(colours.shape[1] * shrink), round(colours.shape[0] * shrink)
    resized: Colours = cv2.resize(colours.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    return resized


def _framed(photo: Colours) -> Colours:
    """Return a photo with a dark frame."""
    import cv2

    edge = max(photo.shape[:2]) // 40
    framed: Colours = cv2.copyMakeBorder(photo, *(edge,) * 4, cv2.BORDER_CONSTANT, value=(40.0, 30.0, 25.0))
    return framed


def _paint(size: tuple[float, float], photo: str, mirrored: bool, colour: Array, rng: np.random.Generator) -> Colours:
    """Return a painted surface of ``size`` metres: one colour, a photo of its material, and stains of all sizes.

    The stains are drawn, so that no two places look the same though the material does.
    """
    import cv2

    width, height = (max(8, round(length * TEXELS_PER_METRE)) for length in size)
    grain = np.zeros((height, width), np.float32)
    for step in (2, 4, 8, 16, 32, 64, 128):
        coarse = rng.normal(size=(-(-height // step) + 2, -(-width // step) + 2)).astype(np.float32)
        grain += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    shade = 1 + 0.05 * grain
    if photo and photo in sample_names():
        material = _sample(photo)[:, :: -1 if mirrored else 1].mean(axis=2)
        material = cv2.resize(np.ascontiguousarray(material), (width, height), interpolation=cv2.INTER_CUBIC)
        shade *= 0.4 + 0.6 * material / material.mean()
    painted: Colours = np.clip(shade[:, :, None] * colour, 0, 255).astype(np.float32)
    return painted


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
        raise InputError("position and target: a camera cannot look straight up or down here")
    forward, right = forward / np.linalg.norm(forward), right / np.linalg.norm(right)
    cos, sin = np.cos(np.deg2rad(roll)), np.sin(np.deg2rad(roll))
    turned = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
    rotation = turned @ np.stack([right, np.cross(forward, right), forward])
    return Pose(rotation, -rotation @ place)


def save_room(room: Room, folder: str | os.PathLike[str]) -> None:
    """Write a folder of posed images: images/*.png, and cameras.json with what is known of each camera.

    In cameras.json the centre of the first pixel is (0, 0). The folder appears when it is complete, or not at all.

    Raises FileError if it is there already and not empty, or cannot be written.
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
