# SPDX-License-Identifier: Apache-2.0
"""Renderer of textured rectangles through an exact pinhole camera: depth along a ray, and its colour.

Points are in COLMAP's convention here: the centre of the first
pixel is (0.5, 0.5). Distances are in the unit of the world, metres by habit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array
from sfumato.types.scene import Camera, Pose

Array = NDArray[np.float64]
Colours = NDArray[np.float32]
Box = tuple[slice, slice]

SMALLEST_LEVEL = 4
"""A texture is halved until a side would be shorter than this."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Surface:
    """A rectangle in the world with a picture on it, seen from both sides.

    ``corner`` (3,) is the outer corner of the first pixel, ``across`` (3,) and ``down`` (3,) are the edges along its
    rows and columns; ``picture`` (H, W, 3) holds grey levels from 0 to 255. ``levels`` are the picture and its halves.
    """

    corner: Array
    across: Array
    down: Array
    picture: Colours
    levels: tuple[Colours, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("corner", "across", "down"):
            object.__setattr__(self, name, frozen_array(getattr(self, name), name, (3,), np.float64))
        area = np.linalg.norm(np.cross(self.across, self.down))
        if area <= 1e-9 * (np.linalg.norm(self.across) * np.linalg.norm(self.down)) or area == 0:
            raise InputError("across and down: expected two edges of a rectangle, got a line")
        picture = frozen_array(self.picture, "picture", (None, None, 3))
        if picture.size == 0:
            raise InputError(f"picture: expected at least one pixel, got shape {picture.shape}")
        object.__setattr__(self, "picture", picture)
        object.__setattr__(self, "levels", _halves(picture))

    def __repr__(self) -> str:
        height, width = self.picture.shape[:2]
        return f"Surface({width} x {height} pixels)"

    def at(self, texels: ArrayLike) -> Array:
        """Return where in the world points (N, 2) of the picture are; the centre of its first pixel is (0, 0)."""
        given = frozen_array(texels, "texels", (None, 2), np.float64)
        share = (given + 0.5) / (self.picture.shape[1], self.picture.shape[0])
        return self.corner + share[:, :1] * self.across + share[:, 1:] * self.down


def project(camera: Camera, pose: Pose, world: ArrayLike) -> tuple[Array, Array]:
    """Return where a camera sees points (N, 3) of the world, (N, 2), and their depths (N,).

    What is not in front of the camera is seen nowhere: NaN.
    """
    given = frozen_array(world, "world", (None, 3), np.float64)
    inside = given @ pose.rotation.T + pose.translation
    depth = inside[:, 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = (inside @ intrinsics(camera).T)[:, :2] / depth[:, None]
    seen[depth <= 0] = np.nan
    return seen, depth


def _unproject(camera: Camera, pose: Pose, points: Array, depth: Array) -> Array:
    """Return the points (N, 3) of the world that a camera sees at ``points`` (N, 2) in ``depth`` (N,)."""
    rays = np.column_stack([points, np.ones(len(points))]) @ np.linalg.inv(intrinsics(camera)).T
    world: Array = (rays * depth[:, None] - pose.translation) @ pose.rotation
    return world


def cast(surfaces: Sequence[Surface], camera: Camera, pose: Pose, points: ArrayLike) -> Array:
    """Return the depth (N,) of the nearest surface behind each of the points (N, 2); inf where there is none."""
    given = frozen_array(points, "points", (None, 2), np.float64)
    nearest = np.zeros(len(given))
    for surface in surfaces:
        lines = _to_surface(surface, camera, pose)
        if lines is not None:
            along, below, inverse = lines[:, :2] @ given.T + lines[:, 2:]
            hit = _is_hit(along, below, inverse) & (inverse > nearest)
            nearest[hit] = inverse[hit]
    with np.errstate(divide="ignore"):
        return np.asarray(1 / nearest)


def render(
    surfaces: Sequence[Surface], camera: Camera, pose: Pose, samples: int = 2
) -> tuple[Colours, NDArray[np.float32]]:
    """Return what a camera sees: colours (H, W, 3) from 0 to 255, and depths (H, W) of the centres of the pixels.

    A pixel is the mean of ``samples`` x ``samples`` rays; textures are smoothed to the distance of the rays. Where
    there is nothing, the colour is 0 and the depth inf.
    """
    import cv2

    intrinsics(camera)  # refuses other models, whatever there is to see
    owner, _ = _nearest(surfaces, camera, pose, samples)
    fine = np.zeros((*owner.shape, 3), np.float32)
    for number, surface in enumerate(surfaces):
        whole = _box(surface, camera, pose, samples)
        lines = _to_surface(surface, camera, pose)
        box = None if whole is None or lines is None else _around(owner, number, whole)
        if box is not None and lines is not None:
            mine = owner[box] == number
            fine[box][mine] = _look_up(surface, _sampled(lines, samples), box, mine)[mine]
    size = camera.width, camera.height
    colours: Colours = cv2.resize(fine, size, interpolation=cv2.INTER_AREA)  # the mean: the sizes divide
    with np.errstate(divide="ignore"):
        depth = 1 / _nearest(surfaces, camera, pose, 1)[1]
    return colours, depth.astype(np.float32)


def intrinsics(camera: Camera) -> Array:
    """Return the matrix (3, 3) of a PINHOLE camera."""
    if camera.model != "PINHOLE" or len(camera.params) != 4:
        raise InputError(f"only PINHOLE cameras (fx, fy, cx, cy) are rendered, got {camera!r}")
    fx, fy, cx, cy = camera.params
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def _to_surface(surface: Surface, camera: Camera, pose: Pose) -> Array | None:
    """Return the matrix (3, 3) that takes a point (x, y, 1) to (u, v, 1) / depth; None for an edge-on surface.

    u and v go from 0 to 1 along the edges of the surface.
    """
    edges = pose.rotation @ np.column_stack([surface.across, surface.down, surface.corner])
    edges[:, 2] += pose.translation
    if abs(np.linalg.det(edges)) < 1e-12:
        return None
    lines: Array = np.linalg.inv(intrinsics(camera) @ edges).astype(np.float64)
    return lines


def _sampled(lines: Array, samples: int) -> Array:
    """Return the matrix for points counted in samples, of which each pixel has ``samples`` a side."""
    return lines @ np.diag([1 / samples, 1 / samples, 1.0])


def _is_hit(along: NDArray[Any], below: NDArray[Any], inverse: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell which rays meet the rectangle in front of the camera, given u, v and 1 over their depth."""
    hit: NDArray[np.bool_] = (inverse > 0) & (along >= 0) & (along <= inverse) & (below >= 0) & (below <= inverse)
    return hit


def _nearest(
    surfaces: Sequence[Surface], camera: Camera, pose: Pose, samples: int
) -> tuple[NDArray[np.int32], Colours]:
    """Return for each sample (height, width) the number of the surface it shows, -1 for none, and 1 over its depth."""
    shape = camera.height * samples, camera.width * samples
    owner, nearest = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
    for number, surface in enumerate(surfaces):
        lines = _to_surface(surface, camera, pose)
        box = _box(surface, camera, pose, samples)
        if lines is None or box is None:
            continue
        along, below, inverse = _on_grid(_sampled(lines, samples), box)
        hit = _is_hit(along, below, inverse) & (inverse > nearest[box])
        owner[box][hit] = number
        nearest[box][hit] = inverse[hit]
    return owner, nearest


def _box(surface: Surface, camera: Camera, pose: Pose, samples: int) -> Box | None:
    """Return the rows and columns of samples a surface may cover, all where part of it is behind; None for none."""
    corners = surface.corner + np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) @ np.stack([surface.across, surface.down])
    seen, depth = project(camera, pose, corners)
    if (depth <= 1e-9).all():
        return None
    size = np.array([camera.width, camera.height]) * samples
    if (depth <= 1e-9).any():
        return slice(0, int(size[1])), slice(0, int(size[0]))
    low = np.clip(np.floor(seen.min(axis=0) * samples) - 1, 0, size).astype(int)
    high = np.clip(np.ceil(seen.max(axis=0) * samples) + 1, 0, size).astype(int)
    return (slice(low[1], high[1]), slice(low[0], high[0])) if (low < high).all() else None


def _around(owner: NDArray[np.int32], number: int, limits: Box) -> Box | None:
    """Return the smallest box of samples with all that show a surface, of which none lies outside ``limits``."""
    shown = owner[limits] == number
    rows, columns = (np.flatnonzero(shown.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return None
    top, left = limits[0].start, limits[1].start
    return slice(top + rows[0], top + rows[-1] + 1), slice(left + columns[0], left + columns[-1] + 1)


def _on_grid(lines: Array, box: Box) -> tuple[Colours, Colours, Colours]:
    """Take the centres of the samples of a box through a matrix (3, 3): three arrays (rows, columns)."""
    down = np.arange(box[0].start, box[0].stop)[:, None] + 0.5
    across = np.arange(box[1].start, box[1].stop)[None, :] + 0.5
    along, below, inverse = (
        (line[0] * across).astype(np.float32) + (line[1] * down + line[2]).astype(np.float32) for line in lines
    )
    return along, below, inverse


def _look_up(surface: Surface, lines: Array, box: Box, mine: NDArray[np.bool_]) -> Colours:
    """Return the colours (rows, columns, 3) of a surface where it shows, each between the two levels that fit.

    The level makes a texel as large as a sample; where the surface is slanted, as large in area.
    """
    import cv2

    along, below, inverse = _on_grid(lines, box)
    inverse[~mine] = np.inf
    height, width = surface.picture.shape[:2]
    texels = np.float32(abs(np.linalg.det(lines)) * width * height) / inverse**3  # that a sample covers
    top = len(surface.levels) - 1
    level = np.clip(0.5 * np.log2(np.maximum(texels, 1)), 0, top)
    u, v = along / inverse, below / inverse
    colours = np.zeros((*mine.shape, 3), np.float32)
    for number in range(int(level[mine].min()), min(top, int(level[mine].max()) + 1) + 1):
        share = np.maximum(1 - np.abs(level - number), 0)
        texture = surface.levels[number]
        place = u * np.float32(texture.shape[1]) - np.float32(0.5), v * np.float32(texture.shape[0]) - np.float32(0.5)
        found = cv2.remap(texture, *place, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        colours += share[:, :, None] * found
    return colours


def _halves(picture: Colours) -> tuple[Colours, ...]:
    """Return a picture and its halves; each covers the same rectangle, border to border."""
    import cv2

    levels = [picture]
    while min(levels[-1].shape[:2]) >= 2 * SMALLEST_LEVEL:
        height, width = levels[-1].shape[:2]
        levels.append(cv2.resize(levels[-1], ((width + 1) // 2, (height + 1) // 2), interpolation=cv2.INTER_AREA))
    return tuple(levels)
