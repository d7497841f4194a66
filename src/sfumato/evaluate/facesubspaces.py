# SPDX-License-Identifier: Apache-2.0
"""Faces under changing light as linear subspaces: one for each person, and queries from other images of them.

Reads a file such as Extended Yale B (npz with ``image`` (N, H, W) and ``subject`` (N,)) or any folder with a folder of
pictures for each person, cropped and shrunk. Section 5.2 of the hashing paper.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.images.read import list_images, read_image, to_grey
from sfumato.types.concealed import Subspaces


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Faces:
    """Grey pictures as rows: ``pixels`` (N, height * width) float32 from 0 to 1, ``subject`` (N,) from 0."""

    pixels: NDArray[np.float32]
    subject: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 2 or self.subject.shape != (len(self.pixels),) or not len(self.subject):
            raise InputError("faces: expected pictures of one size, and a subject for each")

    @property
    def people(self) -> int:
        """How many people there are."""
        return int(self.subject.max()) + 1

    def __repr__(self) -> str:
        return f"Faces({len(self.pixels)} pictures of {self.people} people)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaceProtocol:
    """How subspaces are made: ``images`` of each person drawn to span ``dim`` dimensions, queries of ``query_dims``."""

    images: int = 36
    dim: int = 5
    query_dims: tuple[int, ...] = tuple(range(1, 11))

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= self.images:
            raise InputError(f"images: {self.images} can not span {self.dim} dimensions")
        if not self.query_dims or min(self.query_dims) < 1:
            raise InputError(f"query_dims: expected dimensions of 1 or more, got {self.query_dims}")


def read_faces(place: str | Path, crop: tuple[int, int] | None = None) -> Faces:
    """Read faces from an npz file, or from a folder of folders; ``crop`` (width, height) is what pictures shrink to.

    Raises FileError for a file that holds no faces, InputError for pictures of different sizes and no crop.
    """
    path = Path(place)
    return _from_file(path) if path.is_file() else _from_folder(path, crop)


def split_faces(faces: Faces, protocol: FaceProtocol, rng: np.random.Generator) -> tuple[Subspaces, list[Subspaces]]:
    """Return one subspace for each person, and for each query dimension one query for each person, from other images.

    The subspace is that of the greatest singular values of the pictures, not centred: it passes through 0 (total least
    squares, as the paper has it). Of a person with too few images, InputError.
    """
    few = np.flatnonzero(np.bincount(faces.subject) < protocol.images + max(protocol.query_dims))
    if few.size:
        needed = protocol.images + max(protocol.query_dims)
        raise InputError(f"faces: person {few[0]} and {few.size - 1} others have fewer than {needed} pictures")
    spans, rest = [], []
    for person in range(faces.people):
        rows = rng.permutation(np.flatnonzero(faces.subject == person))
        chosen = faces.pixels[rows[: protocol.images]].astype(np.float64)
        spans.append(np.linalg.svd(chosen, full_matrices=False)[2][: protocol.dim])
        rest.append(rows[protocol.images :])
    zero = np.zeros((faces.people, faces.pixels.shape[1]), np.float32)
    queries = [
        Subspaces(zero, np.stack([faces.pixels[rng.choice(rows, dim, replace=False)] for rows in rest]))
        for dim in protocol.query_dims
    ]
    return Subspaces(zero, np.stack(spans).astype(np.float32)), queries


def _from_file(path: Path) -> Faces:
    try:
        with np.load(path, allow_pickle=False) as members:
            image, subject = members["image"], members["subject"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as cause:
        raise FileError(f"{path}: expected an npz file with the arrays image and subject") from cause
    if image.ndim != 3 or image.dtype != np.uint8 or subject.shape != (len(image),) or subject.dtype.kind not in "iu":
        raise FileError(f"{path}: image must be (N, H, W) of 8 bits, and subject (N,) whole numbers")
    numbers = np.unique(subject, return_inverse=True)[1]
    return Faces(image.reshape(len(image), -1).astype(np.float32) / 255, numbers.astype(np.int64))


def _from_folder(folder: Path, crop: tuple[int, int] | None) -> Faces:
    import cv2

    if crop is not None and not all(1 <= side <= 10_000 for side in crop):
        raise InputError(f"crop: expected a width and a height in pixels, got {crop}")
    rows, people = [], []
    for name, path in list_images(folder):
        person = name.rpartition("/")[0]
        if not person:
            raise InputError(f"{folder}: {name} is in no folder: put the pictures of each person in one")
        grey = to_grey(read_image(path, name))
        shown = grey if crop is None else cv2.resize(_middle(grey, crop), crop, interpolation=cv2.INTER_AREA)
        rows.append(np.asarray(shown, np.float32).ravel() / 255)
        people.append(person)
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"{folder}: the pictures have different sizes: say what to crop them to")
    return Faces(np.stack(rows), np.unique(people, return_inverse=True)[1].astype(np.int64))


def _middle(grey: NDArray[np.uint8], crop: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the largest part in the middle of a picture that has the proportions of the crop."""
    height, width = grey.shape
    scale = min(width / crop[0], height / crop[1])
    kept = max(1, round(crop[0] * scale)), max(1, round(crop[1] * scale))
    left, top = (width - kept[0]) // 2, (height - kept[1]) // 2
    return np.ascontiguousarray(grey[top : top + kept[1], left : left + kept[0]])
