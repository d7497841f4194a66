# SPDX-License-Identifier: Apache-2.0
"""What the tests of geometry share: a scene of points and cameras, seen exactly, without any picture."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest

from sfumato.types.scene import Camera, Matches, Pose

CAMERA = Camera("PINHOLE", 640, 480, (800.0, 790.0, 322.5, 238.5))


@dataclass(frozen=True)
class Scene:
    """Points (P, 3), and what cameras on an arc around them see: keypoints (N, 4) ours, in random order.

    ``seen`` tells which point each keypoint is, ``matches`` the right matches of all pairs.
    """

    points: np.ndarray
    keypoints: dict[str, np.ndarray]
    seen: dict[str, np.ndarray]
    cameras: dict[str, Camera]
    poses: dict[str, Pose]
    matches: dict[tuple[str, str], Matches]


def looking_at(centre: np.ndarray, target: np.ndarray) -> Pose:
    """A camera at ``centre`` that looks at ``target``, its y axis down."""
    forward = (target - centre) / np.linalg.norm(target - centre)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    return Pose(rotation, -rotation @ centre)


def project(points: np.ndarray, pose: Pose, camera: Camera) -> np.ndarray:
    """Pixels in COLMAP's convention, written out by hand for a PINHOLE camera."""
    x, y, z = (points @ pose.rotation.T + pose.translation).T
    fx, fy, cx, cy = camera.params
    return np.stack([fx * x / z + cx, fy * y / z + cy], axis=1)


def common(seen0: np.ndarray, seen1: np.ndarray) -> Matches:
    """The right matches of two images that see these points."""
    points, rows0, rows1 = np.intersect1d(seen0, seen1, return_indices=True)
    return Matches(np.stack([rows0, rows1], axis=1), np.zeros(len(points), np.float32))


@pytest.fixture(scope="session")
def make_scene() -> Callable[..., Scene]:
    def make(images: int = 6, points: int = 200, *, seed: int = 0, noise_px: float = 0.3, prefix: str = "") -> Scene:
        rng = np.random.default_rng(seed)
        world = rng.uniform(-1.8, 1.8, (points, 3))
        keypoints, seen, poses = {}, {}, {}
        for number, angle in enumerate(np.linspace(0, np.pi / 2, images)):
            name = f"{prefix}{number:02}.jpg"
            centre = 8 * np.array([np.cos(angle), np.sin(angle), 0.1 * np.sin(3 * angle)])
            poses[name] = looking_at(centre, rng.uniform(-0.2, 0.2, 3))
            places = project(world, poses[name], CAMERA) + noise_px * rng.standard_normal((points, 2)) - 0.5
            seen[name] = rng.permutation(np.flatnonzero(((places > 0) & (places < (639, 479))).all(axis=1)))
            more = np.column_stack([rng.uniform(1, 9, len(seen[name])), rng.uniform(0, 360, len(seen[name]))])
            keypoints[name] = np.column_stack([places[seen[name]], more]).astype(np.float32)
        matches = {(a, b): common(seen[a], seen[b]) for a, b in combinations(sorted(seen), 2)}
        return Scene(world, keypoints, seen, dict.fromkeys(keypoints, CAMERA), poses, matches)

    return make


@pytest.fixture(scope="session")
def scene(make_scene: Callable[..., Scene]) -> Scene:
    return make_scene()
