# SPDX-License-Identifier: Apache-2.0
"""UBC's PhotoTour patches (Brown, Hua and Winder): sheets of patches, their points, and lists of pairs to test on.

A folder (liberty, notredame, yosemite) holds ``patches0000.bmp ...``, sheets of 16 x 16 patches of 64 x 64 pixels, row
by row; ``info.txt``, a line a patch with the number of its point first; and ``m50_<n>_<n>_0.txt``, a line a pair:
patch, point and a number nobody uses, twice. Two patches of a pair are the same if their points are.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, ImageError
from sfumato.images.folders.ground import need_folder, read_lines, refuse
from sfumato.images.patchsets import PatchSet
from sfumato.images.read import read_image, to_grey
from sfumato.types.arrays import frozen_array

INFO = "info.txt"
SIDE, ACROSS = 64, 16
ON_A_SHEET = ACROSS * ACROSS
PAIRS = re.compile(r"m50_(\d+)_(\d+)_0\.txt")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchPairs:
    """Pairs of patches to tell apart: ``rows`` (M, 2) int64 of the folder's patches, ``same`` (M,) bool."""

    rows: NDArray[np.int64]
    same: NDArray[np.bool_]

    def __post_init__(self) -> None:
        rows = frozen_array(self.rows, "rows", (None, 2), np.int64)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "same", frozen_array(self.same, "same", (len(rows),), np.bool_))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"PatchPairs({len(self)}, {int(self.same.sum())} the same)"


def is_ubc_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a folder looks like one of these."""
    return (Path(path) / INFO).is_file() and any(Path(path).glob("patches*.bmp"))


def read_ubc(path: str | os.PathLike[str], rows: ArrayLike | None = None) -> PatchSet:
    """Read the patches of a folder, all or some ``rows`` (K,); only the sheets that are needed are opened.

    Views count the patches of a point, in the order of the file; everything is one group.

    Raises FileError naming all that is wrong: missing, damaged or too few sheets, lines that are no numbers.
    """
    folder = Path(path)
    points = read_points(folder)
    wanted = np.arange(len(points)) if rows is None else np.asarray(rows, np.int64).reshape(-1)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= len(points)):
        raise FileError(f"{folder}: it has {len(points)} patches, asked for one that is not among them")
    patches = np.zeros((len(wanted), SIDE, SIDE), np.uint8)
    problems = []
    for sheet in np.unique(wanted // ON_A_SHEET).tolist():
        found = _read_sheet(folder / f"patches{sheet:04d}.bmp")
        if isinstance(found, str):
            problems.append(found)
            continue
        here = np.flatnonzero(wanted // ON_A_SHEET == sheet)
        patches[here] = found[wanted[here] % ON_A_SHEET]
    refuse(folder, problems)
    groups = np.zeros(len(wanted), np.int32)
    return PatchSet(patches, points[wanted], groups, _views(points)[wanted])


def read_points(path: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Return the point (P,) of each patch of a folder."""
    folder = Path(path)
    need_folder(folder, f"UBC patches, with {INFO} and patches0000.bmp")
    points, problems = [], []
    for number, line in enumerate(read_lines(folder / INFO), 1):
        word = (line.split() or [""])[0]
        if word.isdecimal() and len(word) < 18:
            points.append(int(word))
        elif line.strip():
            problems.append(f"{INFO} line {number}: expected the number of a point")
    refuse(folder, problems)
    return np.array(points, np.int64)


def read_ubc_pairs(path: str | os.PathLike[str], name: str | None = None) -> PatchPairs:
    """Read a list of pairs, by default the usual m50_100000_100000_0.txt, or the longest there is.

    Raises FileError if there is none, or a line names patches or points that are not those of info.txt.
    """
    folder = Path(path)
    points = read_points(folder)
    lists = {int(match[1]): entry.name for entry in folder.iterdir() if (match := PAIRS.fullmatch(entry.name))}
    chosen = name or lists.get(100_000) or (lists[max(lists)] if lists else None)
    if chosen is None:
        raise FileError(f"{folder}: no list of pairs such as m50_100000_100000_0.txt is in it")
    rows, same, problems = [], [], []
    for number, line in enumerate(read_lines(folder / chosen), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 6 or not all(word.isdecimal() and len(word) < 18 for word in words[:5]):
            problems.append(f"{chosen} line {number}: expected patch, point, 0, patch, point, 0")
            continue
        first, point0, _, second, point1 = map(int, words[:5])
        if max(first, second) >= len(points) or (points[first], points[second]) != (point0, point1):
            problems.append(f"{chosen} line {number}: these patches are not those of {INFO}")
            continue
        rows.append((first, second))
        same.append(point0 == point1)
    refuse(folder, problems)
    return PatchPairs(np.array(rows, np.int64).reshape(-1, 2), np.array(same, np.bool_))


def _views(points: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return for each patch how many of its point come before it."""
    order = np.argsort(points, kind="stable")
    ordered = points[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    views = np.empty(len(points), np.int32)
    views[order] = np.arange(len(points)) - starts
    return views


def _read_sheet(path: Path) -> NDArray[np.uint8] | str:
    """Return the patches (256, 64, 64) of a sheet, or what is wrong with it."""
    try:
        grey = to_grey(read_image(path))
    except ImageError as problem:
        return f"{path.name} can not be read ({problem})" if path.exists() else f"{path.name} is missing"
    if grey.shape != (SIDE * ACROSS, SIDE * ACROSS):
        return f"{path.name} has {grey.shape[1]} x {grey.shape[0]} pixels, expected {SIDE * ACROSS} each way"
    cut = grey.reshape(ACROSS, SIDE, ACROSS, SIDE).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(cut.reshape(ON_A_SHEET, SIDE, SIDE))
