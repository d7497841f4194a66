# SPDX-License-Identifier: Apache-2.0
"""Sequences of pictures of flat scenes with homographies, as HPatches and Oxford's affine set are laid out.

A sequence is a folder: ``1.ppm ... 6.ppm`` with ``H_1_2 ... H_1_6`` (HPatches), or ``img1.ppm ...`` with
``H1to2p ...`` (Oxford). ``i_`` in front of its name is illumination, ``v_`` viewpoint. H_1_k takes pixels of picture
1 to picture k, with the centre of the first pixel at (0, 0).
"""

import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError
from sfumato.images.folders.ground import (
    HomographySequence,
    Kind,
    image_size,
    need_folder,
    numbers,
    read_lines,
    refuse,
)
from sfumato.images.homography import warp_points
from sfumato.images.read import SUFFIXES

PICTURE = re.compile(r"(?:img)?(\d{1,4})$")
MATRIX = re.compile(r"H_1_(\d{1,4})$|H1to(\d{1,4})p?$")
KINDS: dict[str, Kind] = {"i_": "illumination", "v_": "viewpoint"}

Matrix = NDArray[np.float64]


def read_homography_folder(path: str | os.PathLike[str]) -> list[HomographySequence]:
    """Read one sequence, or a folder of sequences sorted by name.

    Raises FileError naming everything that is wrong: pictures that are missing, doubled or damaged, homographies that
    are missing, no numbers, not invertible, or that take no point of the first picture into the other.
    """
    folder = Path(path)
    need_folder(folder, "sequences, or one sequence")
    if _looks_like_sequence(folder):
        places = [folder]
    else:
        inside = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
        places = [place for place in inside if _looks_like_sequence(place) or place.name[:2] in KINDS]
    if not places:
        raise FileError(
            f"{folder} holds no sequence: expected folders with 1.ppm ... and H_1_2 ..., or img1 and H1to2p"
        )
    sequences, problems = [], []
    for place in places:
        sequence, wrong = _read_sequence(place)
        problems += [f"{place.name}: {text}" for text in wrong]
        if sequence is not None:
            sequences.append(sequence)
    refuse(folder, problems)
    return sequences


def _looks_like_sequence(folder: Path) -> bool:
    return any(MATRIX.fullmatch(entry.name) or _picture_number(entry) == 1 for entry in folder.iterdir())


def _picture_number(path: Path) -> int | None:
    match = PICTURE.fullmatch(path.stem) if path.suffix.lower() in SUFFIXES else None
    return int(match[1]) if match else None


def _read_sequence(folder: Path) -> tuple[HomographySequence | None, list[str]]:
    """Return a sequence, or None and all that is wrong with it."""
    pictures, problems = _pictures(folder)
    files = {int(match[1] or match[2]): entry for entry in folder.iterdir() if (match := MATRIX.fullmatch(entry.name))}
    count = max([*pictures, *files, 2])
    problems += [f"picture {number} is missing" for number in range(1, count + 1) if number not in pictures]
    problems += [f"homography H_1_{number} is missing" for number in range(2, count + 1) if number not in files]
    sizes = {}
    for number, picture in sorted(pictures.items()):
        try:
            sizes[number] = image_size(picture)
        except ImageError as problem:
            problems.append(f"picture {number} can not be read ({problem})")
    matrices = []
    for number in sorted(set(files) & set(range(2, count + 1))):
        found = _read_matrix(files[number])
        wrong = found if isinstance(found, str) else _fault(found, sizes.get(1), sizes.get(number))
        if wrong:
            problems.append(f"{files[number].name} {wrong}")
        else:
            matrices.append(found)
    if problems:
        return None, problems
    paths = tuple(pictures[number] for number in range(1, count + 1))
    kind = KINDS.get(folder.name[:2], "other")
    return HomographySequence(folder.name, kind, paths, tuple(m for m in matrices if not isinstance(m, str))), []


def _pictures(folder: Path) -> tuple[dict[int, Path], list[str]]:
    """Return the numbered pictures, and those numbers that two files claim."""
    pictures: dict[int, Path] = {}
    problems = []
    for entry in sorted(folder.iterdir()):
        number = _picture_number(entry)
        if number in pictures:
            problems.append(f"picture {number} is there twice: {pictures[number].name} and {entry.name}")
        elif number:
            pictures[number] = entry
    return pictures, problems


def _read_matrix(path: Path) -> Matrix | str:
    """Read nine numbers, or return why there are none."""
    try:
        values = numbers(" ".join(read_lines(path)).split())
    except FileError as problem:
        return f"can not be read ({problem})"
    if values is None or len(values) != 9:
        return "does not hold nine finite numbers"
    return np.array(values).reshape(3, 3)


def _fault(matrix: Matrix, first: tuple[int, int] | None, other: tuple[int, int] | None) -> str:
    """Return why a matrix can not be the homography between two pictures of these sizes, or an empty text."""
    if first is None or other is None:
        return ""
    unit = matrix / max(np.abs(matrix).max(), 1e-300)
    scaled = np.linalg.inv(_to_pixels(other)) @ unit @ _to_pixels(first)  # both pictures fill [-1, 1]
    stretch = np.linalg.svd(scaled, compute_uv=False)
    if stretch[-1] <= 1e-9 * stretch[0]:
        return "is not invertible"
    across, down = np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 21))
    seen = warp_points(scaled, np.stack([across.ravel(), down.ravel()], 1))
    if not (np.abs(seen) <= 1).all(axis=1).any():
        return "takes no point of picture 1 into its picture: is it of another sequence, or the other way round?"
    return ""


def _to_pixels(size: tuple[int, int]) -> Matrix:
    """Return the matrix that takes [-1, 1] to the pixels of a picture."""
    half = np.array(size) / 2
    return np.array([[half[0], 0, half[0] - 0.5], [0, half[1], half[1] - 0.5], [0, 0, 1]])
