# SPDX-License-Identifier: Apache-2.0
"""Places of which one photo is sealed and the attacker has another; and which pairs of their features are true."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from places.registration import project
from sfumato.features.local import LocalParams, extract
from sfumato.types.clear import Features

Floats = np.ndarray

PLACES = ("v_boat", "v_graf", "i_leuven", "v_churchill", "v_bikes")
REACH, LIKE = 3.0, 0.5
"""A pair is true if it lies so near to where geometry has it, in pixels, and its descriptors are so near."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A sealed photo and the attacker's; ``geometry`` (3, 3) from the attacker's to the sealed one: a homography, or a
    fundamental matrix if it ``is_fundamental``."""

    name: str
    sealed: Path
    other: Path
    geometry: Floats
    is_fundamental: bool

    def archive(self) -> Features:
        """Return the features that the owner seals."""
        return _features(self.sealed)

    def own(self) -> Features:
        """Return the features of the attacker's photo."""
        return _features(self.other)


@cache
def _features(path: Path) -> Features:
    return extract(path, LocalParams())


def place_scenes(folder: Path, other: int) -> list[Scene]:
    """Return the homography sequences: photo 1 is sealed, the attacker has photo ``other``."""
    return [
        Scene(f"{name} {other}", folder / name / "1.png", folder / name / f"{other}.png",
              np.linalg.inv(np.loadtxt(folder / name / f"H_1_{other}")), is_fundamental=False)
        for name in PLACES
    ]  # fmt: skip


def sample_scenes(path: Path) -> list[Scene]:
    """Return a photo with itself, for a smoke test."""
    return [Scene(path.stem, path, path, np.eye(3), is_fundamental=False)]


def fountain_scenes(folder: Path) -> list[Scene]:
    """Return each photo of a posed set with the next one, which the attacker has."""
    cameras = json.loads((folder / "cameras.json").read_text())
    names = sorted(cameras)
    return [
        Scene(f"{first} {second}", folder / "images" / first, folder / "images" / second,
              _fundamental(cameras[second], cameras[first]), is_fundamental=True)
        for first, second in pairwise(names)
    ]  # fmt: skip


def _fundamental(own: dict[str, Floats], sealed: dict[str, Floats]) -> Floats:
    """Return F with y F x = 0 for points x of one camera and y of the other."""
    turns = [np.array(camera["world_from_cam_rotation"]) for camera in (own, sealed)]
    shift = turns[1].T @ (np.array(own["center_in_world"]) - np.array(sealed["center_in_world"]))
    cross = np.array([[0, -shift[2], shift[1]], [shift[2], 0, -shift[0]], [-shift[1], shift[0], 0]])
    lenses = [np.linalg.inv(np.array(camera["K"])) for camera in (own, sealed)]
    return lenses[1].T @ cross @ turns[1].T @ turns[0] @ lenses[0]


def is_true(scene: Scene, own: Features, archive: Features, rows: Floats, partners: Floats) -> Floats:
    """Tell which pairs of features, of the attacker's photo and of the archive, are of one thing in the scene."""
    rows = np.broadcast_to(rows, partners.shape)
    mine, theirs = own.keypoints[rows.ravel(), :2], archive.keypoints[partners.ravel(), :2]
    if scene.is_fundamental:
        lines = np.column_stack([mine, np.ones(len(mine))]) @ scene.geometry.T
        away = np.abs((lines * np.column_stack([theirs, np.ones(len(theirs))])).sum(axis=1))
        away = away / np.hypot(lines[:, 0], lines[:, 1])
    else:
        away = np.linalg.norm(project(scene.geometry, mine) - theirs, axis=1)
    apart = np.linalg.norm(own.descriptors[rows.ravel()] - archive.descriptors[partners.ravel()], axis=1)
    return ((away < REACH) & (apart < LIKE)).reshape(partners.shape)
