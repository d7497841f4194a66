# SPDX-License-Identifier: Apache-2.0
"""Results of matching and mapping: matches, cameras, poses, landmarks, without descriptors of any kind.

Their text forms show no values: the position of a camera is the position of its owner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import checked_size, frozen_array


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Matches:
    """``indices`` (M, 2) int32, rows of side 0 and side 1; ``distances`` (M,) float32, Euclidean."""

    indices: NDArray[np.int32]
    distances: NDArray[np.float32]

    def __post_init__(self) -> None:
        indices = frozen_array(self.indices, "indices", (None, 2), np.int32)
        if (indices < 0).any():
            raise InputError("indices: expected integers of 0 or more")
        distances = frozen_array(self.distances, "distances", (len(indices),))
        if (distances < 0).any():
            raise InputError("distances: expected values of 0 or more")
        object.__setattr__(self, "indices", indices)
        object.__setattr__(self, "distances", distances)

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Matches({len(self)})"


@dataclass(frozen=True, slots=True, repr=False)
class Camera:
    """Intrinsics in COLMAP's words: model name, width and height in pixels, parameters in COLMAP's order."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model.replace("_", "").isalnum():
            raise InputError(f"camera model: expected a COLMAP name such as PINHOLE, got {self.model!r:.80}")
        size = checked_size((self.width, self.height)) or (0, 0)
        params = frozen_array(self.params, f"parameters of camera {self.model}", (None,), np.float64)
        object.__setattr__(self, "width", size[0])
        object.__setattr__(self, "height", size[1])
        object.__setattr__(self, "params", tuple(params.tolist()))

    def __repr__(self) -> str:
        return f"Camera({self.model}, {self.width} x {self.height})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pose:
    """Camera from world: a world point X is at ``rotation @ X + translation`` in the camera's frame.

    ``rotation`` (3, 3) float64, orthonormal with determinant 1; ``translation`` (3,) float64.
    """

    rotation: NDArray[np.float64]
    translation: NDArray[np.float64]

    def __post_init__(self) -> None:
        rotation = frozen_array(self.rotation, "rotation", (3, 3), np.float64)
        if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-6 or np.linalg.det(rotation) < 0:
            raise InputError("rotation: expected an orthonormal matrix of determinant 1")
        object.__setattr__(self, "rotation", rotation)
        object.__setattr__(self, "translation", frozen_array(self.translation, "translation", (3,), np.float64))

    @property
    def center(self) -> NDArray[np.float64]:
        """The camera's centre in the world, (3,)."""
        result: NDArray[np.float64] = -self.rotation.T @ self.translation
        return result

    def __repr__(self) -> str:
        return "Pose(cam_from_world)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Landmarks:
    """Mapped points: ``positions`` (P, 3) float64 in the world, and the images that see them.

    ``observations`` (O, 3) int64: landmark, image, keypoint row. ``images`` names the images.
    """

    positions: NDArray[np.float64]
    observations: NDArray[np.int64]
    images: tuple[str, ...]

    def __post_init__(self) -> None:
        positions = frozen_array(self.positions, "positions", (None, 3), np.float64)
        observations = frozen_array(self.observations, "observations", (None, 3), np.int64)
        names: Any = self.images
        images = tuple(names)
        if isinstance(names, str) or not all(isinstance(name, str) for name in images):
            raise InputError("images: expected a list of names")
        limits = np.array([len(positions), len(images), 2**31])
        if observations.size and (observations.min() < 0 or (observations >= limits).any()):
            raise InputError("observations: a landmark, image or keypoint number is out of range")
        object.__setattr__(self, "positions", positions)
        object.__setattr__(self, "observations", observations)
        object.__setattr__(self, "images", images)

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"Landmarks({len(self)} points, {len(self.observations)} observations, {len(self.images)} images)"


# --- COLMAP's camera models, in the order of COLMAP's numbers

CAMERA_MODELS: dict[str, tuple[str, ...]] = {
    name: tuple(parameters.split())
    for name, parameters in {
        "SIMPLE_PINHOLE": "f cx cy",
        "PINHOLE": "fx fy cx cy",
        "SIMPLE_RADIAL": "f cx cy k",
        "RADIAL": "f cx cy k1 k2",
        "OPENCV": "fx fy cx cy k1 k2 p1 p2",
        "OPENCV_FISHEYE": "fx fy cx cy k1 k2 k3 k4",
        "FULL_OPENCV": "fx fy cx cy k1 k2 p1 p2 k3 k4 k5 k6",
        "FOV": "fx fy cx cy omega",
        "SIMPLE_RADIAL_FISHEYE": "f cx cy k",
        "RADIAL_FISHEYE": "f cx cy k1 k2",
        "THIN_PRISM_FISHEYE": "fx fy cx cy k1 k2 p1 p2 k3 k4 sx1 sy1",
        "RAD_TAN_THIN_PRISM_FISHEYE": "fx fy cx cy k0 k1 k2 k3 k4 k5 p0 p1 s0 s1 s2 s3",
        "SIMPLE_DIVISION": "f cx cy k",
        "DIVISION": "fx fy cx cy k",
        "SIMPLE_FISHEYE": "f cx cy",
        "FISHEYE": "fx fy cx cy",
        "EUCM": "fx fy cx cy alpha beta",
        "EQUIRECTANGULAR": "w h",
    }.items()
}
"""Parameters by the name of the model; those that begin with f are focal lengths in pixels."""


# --- rotations from quaternions w x y z, as files hold them

QUATERNION_TOLERANCE = 1e-2
"""The length of a quaternion in a file may differ from 1 by this; a larger difference is a mistake."""


def rotation_of(quaternion: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) of a quaternion w x y z of any length but 0.

    >>> rotation_of([2, 0, 0, 0]).tolist() == np.eye(3).tolist()
    True
    """
    w, x, y, z = np.asarray(quaternion, np.float64) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def unit_rotation(quaternion: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rotation (3, 3) of a quaternion w x y z from a file; InputError if it is not nearly of length 1."""
    values = np.asarray(quaternion, np.float64)
    if (
        not np.isfinite(values).all()
        or np.abs(values).max() > 2
        or abs(np.linalg.norm(values) - 1) > QUATERNION_TOLERANCE
    ):
        raise InputError("expected a quaternion of length 1")
    return rotation_of(values)
