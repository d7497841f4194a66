# SPDX-License-Identifier: Apache-2.0
"""Mapped points of a COLMAP model: their positions, and which keypoint of which image sees each.

Knows positions and numbers, no descriptor of any kind. Keypoints are given in our convention, the centre of the first
pixel at (0, 0); COLMAP's own is half a pixel more. Reads the two files it needs itself: COLMAP's own reader ends the
process on some damaged ones.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.atomic import read_bytes
from sfumato.geometry.colmap import PIXEL_CENTRE
from sfumato.types.arrays import frozen_array
from sfumato.types.scene import Landmarks

SAME_PLACE_PX = 0.01
"""Keypoints of a model and of an archive closer than this are the same; rounding to float32 is far below it."""

IMAGES, POINTS = "images.bin", "points3D.bin"
COUNT, IMAGE, POINT = struct.Struct("<Q"), struct.Struct("<I7dI"), struct.Struct("<Q3d3BdQ")
"""A count; an image: number, quaternion, translation, camera; a point: number, xyz, colour, error, track length."""
KEYPOINT = np.dtype([("place", "<f8", 2), ("point", "<i8")])
TRACK_BYTES = 8
LARGEST = 2**36
NO_POINT = -1


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Sight:
    """Points that one image sees, a row each: ``landmarks`` (N,), ``keypoints`` (N,), ``places`` (N, 2) in pixels."""

    landmarks: NDArray[np.int64]
    keypoints: NDArray[np.int64]
    places: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.landmarks)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Model:
    """The mapped points of a COLMAP model.

    ``landmarks`` as in Landmarks, its observations sorted by image and keypoint; ``numbers`` (P,) int64, COLMAP's own
    of each landmark, ascending; ``places`` (O, 2) float64, the keypoint of each observation; ``counts`` (I,) int64,
    the keypoints each image has, those that see no landmark too.
    """

    landmarks: Landmarks
    numbers: NDArray[np.int64]
    places: NDArray[np.float64]
    counts: NDArray[np.int64]
    _rows: dict[str, int] = field(init=False)
    _starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        images, observations = self.landmarks.images, self.landmarks.observations
        if len(set(images)) != len(images):
            raise InputError("two images of the model have the same name")
        starts = np.searchsorted(observations[:, 1], np.arange(len(images) + 1))
        for name, value in (
            ("numbers", frozen_array(self.numbers, "numbers", (len(self.landmarks),), np.int64)),
            ("places", frozen_array(self.places, "places", (len(observations), 2), np.float64)),
            ("counts", frozen_array(self.counts, "counts", (len(images),), np.int64)),
            ("_rows", {name: row for row, name in enumerate(images)}),
            ("_starts", starts),
        ):
            object.__setattr__(self, name, value)

    @property
    def names(self) -> tuple[str, ...]:
        """The registered images, sorted."""
        return self.landmarks.images

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def sight(self, name: str) -> Sight:
        """Return what an image sees, in the order of its keypoints."""
        row = self._rows[name]
        rows = slice(int(self._starts[row]), int(self._starts[row + 1]))
        observations = self.landmarks.observations[rows]
        return Sight(observations[:, 0], observations[:, 2], self.places[rows])

    def count(self, name: str) -> int:
        """Return how many keypoints an image has."""
        return int(self.counts[self._rows[name]])

    def rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the landmarks of COLMAP's numbers, -1 for an unknown number."""
        if len(self.numbers) == 0:
            return np.full(len(numbers), -1, np.int64)
        place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        rows: NDArray[np.int64] = np.where(self.numbers[place] == numbers, place, -1)
        return rows

    def __repr__(self) -> str:
        return f"Model({len(self.landmarks)} points, {len(self.names)} images)"


def read_model(folder: str | os.PathLike[str]) -> Model:
    """Read the points of the COLMAP model in a folder; of its files images.bin and points3D.bin are used.

    Raises FileError naming what is missing or damaged.
    """
    folder = Path(folder)
    missing = [name for name in (IMAGES, POINTS) if not (folder / name).is_file()]
    if missing:
        texts = (folder / "images.txt").is_file()
        advice = "convert it: colmap model_converter --output_type BIN" if texts else "sfumato map makes one"
        raise FileError(f"{folder} holds no COLMAP model, {' and '.join(missing)} is missing; {advice}")
    try:
        return _assemble(_read_points(folder / POINTS), _read_images(folder / IMAGES))
    except InputError as cause:
        raise FileError(f"{folder}: {cause}; make the map again") from cause
    except (struct.error, ValueError, ArithmeticError, MemoryError) as cause:
        raise FileError(f"{folder}: the COLMAP model is damaged; make the map again") from cause
    except OSError as cause:
        raise FileError(
            f"{folder}: cannot read the COLMAP model ({cause.strerror or cause}); check the path"
        ) from cause


def refuse_other_keypoints(name: str, model: Model, keypoints: NDArray[np.float32]) -> None:
    """Raise InputError unless these (N, 4) are all the keypoints of an image that the model was made from."""
    sight = model.sight(name)
    if len(keypoints) != model.count(name):
        raise InputError(f"image {name!r:.80} has {len(keypoints)} features, in the model {model.count(name)}")
    if not same_places(keypoints[sight.keypoints], sight.places):
        raise InputError(f"image {name!r:.80} has other keypoints than in the model")


def same_places(keypoints: NDArray[np.float32], places: NDArray[np.float64]) -> bool:
    """Tell whether keypoints (N, 4) are at places (N, 2)."""
    return bool((np.abs(keypoints[:, :2] - places) <= SAME_PLACE_PX).all())


def _read_images(path: Path) -> list[tuple[str, NDArray[Any]]]:
    """Return the name of each registered image, and place and point of its keypoints."""
    data = read_bytes(path, LARGEST)
    images, at = [], COUNT.size
    for _ in range(_checked_count(data, IMAGE.size, path)):
        end = data.index(b"\0", at + IMAGE.size)
        name = data[at + IMAGE.size : end].decode("utf-8", "surrogateescape")
        (count,) = COUNT.unpack_from(data, end + 1)
        at = end + 1 + COUNT.size
        images.append((name, np.frombuffer(data, KEYPOINT, count, at) if count else np.zeros(0, KEYPOINT)))
        at += count * KEYPOINT.itemsize
    _refuse_rest(data, at, path)
    return images


def _read_points(path: Path) -> dict[int, tuple[float, ...]]:
    """Return the position of each of COLMAP's numbers."""
    data = read_bytes(path, LARGEST)
    points: dict[int, tuple[float, ...]] = {}
    at = COUNT.size
    for _ in range(_checked_count(data, POINT.size, path)):
        number, x, y, z, *_, track = POINT.unpack_from(data, at)
        points[number] = x, y, z
        at += POINT.size + track * TRACK_BYTES
    _refuse_rest(data, at, path)
    return points


def _checked_count(data: bytes, least: int, path: Path) -> int:
    count = COUNT.unpack_from(data)[0] if len(data) >= COUNT.size else -1
    if not 0 <= count * least <= len(data):
        raise InputError(f"{path.name} is damaged: it does not hold as many entries as it says")
    return int(count)


def _refuse_rest(data: bytes, end: int, path: Path) -> None:
    if end != len(data):
        raise InputError(f"{path.name} is damaged: it has {len(data)} bytes and should have {end}")


def _assemble(points: Mapping[int, Any], images: list[tuple[str, NDArray[Any]]]) -> Model:
    numbers = np.array(sorted(points), np.int64)
    positions = np.array([points[number] for number in numbers.tolist()], np.float64).reshape(-1, 3)
    observations, places = [np.zeros((0, 3), np.int64)], [np.zeros((0, 2))]
    images = sorted(images, key=lambda image: image[0])
    for row, (name, keypoints) in enumerate(images):
        seeing = np.flatnonzero(keypoints["point"] != NO_POINT)
        points_of = keypoints["point"][seeing]
        landmarks = np.searchsorted(numbers, points_of)
        if (landmarks >= len(numbers)).any() or (numbers[landmarks] != points_of).any():
            raise InputError(f"image {name!r:.80} sees points that the model does not have")
        observations.append(np.stack([landmarks, np.full(len(seeing), row), seeing], axis=1))
        places.append(keypoints["place"][seeing] - PIXEL_CENTRE)
    return Model(
        Landmarks(positions, np.concatenate(observations), tuple(name for name, _ in images)),
        numbers,
        np.concatenate(places),
        np.array([len(keypoints) for _, keypoints in images], np.int64),
    )
