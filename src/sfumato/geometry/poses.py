# SPDX-License-Identifier: Apache-2.0
"""Poses: lists of them as hloc writes its results, COLMAP's own object and back, and how far one is from another.

A pose is cam_from_world. Lists and COLMAP's text files hold quaternions as w x y z; pycolmap's arrays hold x y z w.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.geometry.library import load_pycolmap
from sfumato.geometry.lists import numbers, read_list, write_list
from sfumato.types.rotations import unit_rotation
from sfumato.types.scene import Pose


def read_poses(path: str | os.PathLike[str]) -> dict[str, Pose]:
    """Read a list ``name qw qx qy qz tx ty tz`` of cam_from_world poses, as hloc writes its results.

    An empty list is one in which nothing was localized. Raises FileError naming every wrong line at once.
    """
    return read_list(path, "poses", _parse)


def write_poses(path: str | os.PathLike[str], poses: Mapping[str, Pose]) -> None:
    """Write poses in hloc's form, sorted by name, without any comment: its readers know none."""
    rows = {
        name: [repr(float(x)) for x in (*quaternion_of(pose.rotation), *pose.translation)]
        for name, pose in sorted(poses.items())
    }
    write_list(path, rows)


def to_rigid(pose: Pose) -> Any:
    """Return a pose as a ``pycolmap.Rigid3d``."""
    pycolmap = load_pycolmap()
    return pycolmap.Rigid3d(pycolmap.Rotation3d(np.array(pose.rotation)), np.array(pose.translation))


def from_rigid(rigid: Any) -> Pose:
    """Return a ``pycolmap.Rigid3d`` cam_from_world as a Pose."""
    matrix = np.asarray(rigid.matrix(), np.float64)
    return Pose(nearest_rotation(matrix[:, :3]), matrix[:, 3])


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


def quaternion_of(rotation: NDArray[np.float64]) -> NDArray[np.float64]:
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


def _parse(words: list[str]) -> Pose:
    if len(words) != 7:
        raise InputError(f"expected 'name qw qx qy qz tx ty tz', names without spaces; there are {len(words)} numbers")
    values = np.array(numbers(words, "pose"))
    if not np.isfinite(values).all():
        raise InputError("expected a quaternion of length 1 and a finite translation")
    return Pose(unit_rotation(values[:4]), values[4:])
