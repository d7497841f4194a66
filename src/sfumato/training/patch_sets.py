# SPDX-License-Identifier: Apache-2.0
"""Labelled patches: small grey pictures, and which of them show the same point, of UBC PhotoTour and HPatches.

A folder of UBC (Brown, Hua and Winder: liberty, notredame, yosemite) holds sheets ``patches0000.bmp ...`` of 16 x 16
patches of 64 x 64 pixels, row by row; ``info.txt``, one line per patch, which begins with the number of its point; and
``m50_<n>_<n>_0.txt``, one line per pair: patch, point and an unused number, twice. The patches of a pair are the same
if their points are. HPatches (Balntas, Lenc, Vedaldi and Mikolajczyk) has one folder per sequence: ``ref.png`` holds
the 65 x 65 patches of the reference picture, one below the other; ``e1.png ... e5.png`` those of the other pictures
with easy jitter, ``h`` hard, ``t`` tough. Row i of every stripe shows point i. (Entire pictures of HPatches are read by
``experiments.data``.) Patches are clear, like the photos they were cut from.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, ImageError, InputError, suggest
from sfumato.images.folders import need_folder, read_lines, refuse
from sfumato.images.read import read_image, to_grey
from sfumato.types.arrays import frozen_array

LEVELS = ("easy", "hard", "tough")
"""Amounts of detector error, the smallest first (HPatches, section 3)."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchSet:
    """P patches: ``patches`` (P, s, s) uint8, grey.

    ``points`` (P,) int64, the same number for the same point; ``groups`` (P,) int32, the photo or sequence of origin;
    ``views`` (P,) int32, which picture of its group a patch is from, 0 the reference; ``level`` one of LEVELS, or empty
    where there is none.
    """

    patches: NDArray[np.uint8]
    points: NDArray[np.int64]
    groups: NDArray[np.int32]
    views: NDArray[np.int32]
    level: str = ""

    def __post_init__(self) -> None:
        given = np.asarray(self.patches)
        if given.dtype != np.uint8 or given.ndim != 3 or given.shape[1] != given.shape[2]:
            raise InputError(f"patches: expected uint8 of shape (P, s, s), got {given.dtype} {given.shape}")
        if self.level not in ("", *LEVELS):
            raise InputError(f"level: expected one of {', '.join(LEVELS)} or nothing, got {self.level!r:.80}")
        for name, value in (
            ("patches", frozen_array(given, "patches", given.shape, np.uint8)),
            ("points", frozen_array(self.points, "points", (len(given),), np.int64)),
            ("groups", frozen_array(self.groups, "groups", (len(given),), np.int32)),
            ("views", frozen_array(self.views, "views", (len(given),), np.int32)),
        ):
            object.__setattr__(self, name, value)
        if (self.views < 0).any():
            raise InputError("views: expected integers of 0 or more")

    @property
    def side(self) -> int:
        """The side of a patch in pixels."""
        return int(self.patches.shape[1])

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, rows: Any) -> "PatchSet":
        """Select patches by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        return PatchSet(self.patches[index], self.points[index], self.groups[index], self.views[index], self.level)

    def __repr__(self) -> str:
        points, groups = len(np.unique(self.points)), len(np.unique(self.groups))
        level = f", {self.level}" if self.level else ""
        return f"PatchSet({len(self)} of {self.side} x {self.side}, {points} points, {groups} groups{level})"


def join_patch_sets(sets: Sequence[PatchSet]) -> PatchSet:
    """Return several sets as one; points and groups of different sets stay different.

    Raises InputError for no set, patches of different size or different levels.
    """
    if not sets:
        raise InputError("there is no set of patches to join")
    sides, levels = {patch_set.side for patch_set in sets if len(patch_set)}, {patch_set.level for patch_set in sets}
    if len(sides) > 1 or len(levels) > 1:
        raise InputError(f"sets of patches differ: sides {sorted(sides)}, levels {sorted(levels)}")
    side = next(iter(sides), sets[0].side)
    return PatchSet(
        np.concatenate([patch_set.patches.reshape(-1, side, side) for patch_set in sets]),
        number_apart([patch_set.points for patch_set in sets]),
        number_apart([patch_set.groups for patch_set in sets]).astype(np.int32),
        np.concatenate([patch_set.views for patch_set in sets]),
        levels.pop(),
    )


def number_apart(lists: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return lists of numbers as one, from 0 on: equal only where they are equal within one list.

    >>> number_apart([np.array([7, 7, 9]), np.array([7])]).tolist()
    [0, 0, 1, 2]
    """
    numbers, start = [np.zeros(0, np.int64)], 0
    for values in lists:
        names, inverse = np.unique(values, return_inverse=True)
        numbers.append(inverse.astype(np.int64) + start)
        start += len(names)
    return np.concatenate(numbers)


# --- UBC PhotoTour


INFO = "info.txt"
UBC_SIDE, SHEET_ROWS = 64, 16
SHEET_SIZE = SHEET_ROWS * SHEET_ROWS
PAIR_LIST = re.compile(r"m50_(\d+)_(\d+)_0\.txt")


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
    """Tell whether a folder looks like one of UBC."""
    return (Path(path) / INFO).is_file() and any(Path(path).glob("patches*.bmp"))


def read_ubc(path: str | os.PathLike[str], rows: ArrayLike | None = None) -> PatchSet:
    """Read the patches of a folder, all or some ``rows`` (K,); only the sheets that are needed are opened.

    Views count the patches of a point, in the order of the file; everything is one group.

    Raises FileError naming all that is wrong: missing, damaged or too few sheets, lines that are no numbers.
    """
    folder = Path(path)
    points = read_points(folder)
    index = np.arange(len(points)) if rows is None else np.asarray(rows, np.int64).reshape(-1)
    if index.size and (index.min() < 0 or index.max() >= len(points)):
        raise FileError(f"{folder}: it has {len(points)} patches, and a row outside of them was given")
    patches = np.zeros((len(index), UBC_SIDE, UBC_SIDE), np.uint8)
    problems = []
    for sheet in np.unique(index // SHEET_SIZE).tolist():
        cuttings = _read_sheet(folder / f"patches{sheet:04d}.bmp")
        if isinstance(cuttings, str):
            problems.append(cuttings)
            continue
        here = np.flatnonzero(index // SHEET_SIZE == sheet)
        patches[here] = cuttings[index[here] % SHEET_SIZE]
    refuse(folder, problems)
    return PatchSet(patches, points[index], np.zeros(len(index), np.int32), _views(points)[index])


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
    lists = {int(match[1]): entry.name for entry in folder.iterdir() if (match := PAIR_LIST.fullmatch(entry.name))}
    list_name = name or lists.get(100_000) or (lists[max(lists)] if lists else None)
    if list_name is None:
        raise FileError(f"{folder}: no list of pairs such as m50_100000_100000_0.txt is in it")
    rows, same, problems = [], [], []
    for number, line in enumerate(read_lines(folder / list_name), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 6 or not all(word.isdecimal() and len(word) < 18 for word in words[:5]):
            problems.append(f"{list_name} line {number}: expected patch, point, 0, patch, point, 0")
            continue
        first, point0, _, second, point1 = map(int, words[:5])
        if max(first, second) >= len(points) or (points[first], points[second]) != (point0, point1):
            problems.append(f"{list_name} line {number}: these patches are not those of {INFO}")
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
        return f"{path.name} cannot be read ({problem})" if path.exists() else f"{path.name} is missing"
    if grey.shape != (UBC_SIDE * SHEET_ROWS, UBC_SIDE * SHEET_ROWS):
        return f"{path.name} has {grey.shape[1]} x {grey.shape[0]} pixels, expected {UBC_SIDE * SHEET_ROWS} each way"
    cut = grey.reshape(SHEET_ROWS, UBC_SIDE, SHEET_ROWS, UBC_SIDE).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(cut.reshape(SHEET_SIZE, UBC_SIDE, UBC_SIDE))


# --- HPatches


HPATCHES_SIDE = 65
REFERENCE = "ref.png"
VIEWS = 5
LETTERS = dict(zip(LEVELS, "eht", strict=True))


def list_hpatches(path: str | os.PathLike[str]) -> list[Path]:
    """Return the sequences in a folder, or the folder itself if it is one, sorted by name; none if it holds none."""
    folder = Path(path)
    if (folder / REFERENCE).is_file():
        return [folder]
    if not folder.is_dir():
        return []
    return sorted(place for place in folder.iterdir() if (place / REFERENCE).is_file())


def read_hpatches(
    path: str | os.PathLike[str], level: str, names: Iterable[str] | None = None, *, most: int | None = None
) -> PatchSet:
    """Read the patches of sequences at one level: all in a folder, or those called ``names``.

    A group is a sequence; view 0 is the reference, k picture k. ``most`` takes the first points of each sequence only.

    Raises FileError naming all that is wrong: stripes that are missing, damaged, or of different length.
    """
    folder = Path(path)
    if level not in LEVELS:
        raise InputError(f"level: {level!r:.80} is none of {', '.join(LEVELS)}{suggest(str(level), LEVELS)}")
    need_folder(folder, "HPatches sequences, with ref.png, e1.png, ...")
    sequences = {sequence.name: sequence for sequence in list_hpatches(folder)}
    if not sequences:
        raise FileError(f"{folder} holds no sequence of patches: expected folders with {REFERENCE}, e1.png, ...")
    sets, problems = [], []
    for name in sequences if names is None else names:
        if name not in sequences:
            problems.append(f"there is no sequence {name!r:.80}")
            continue
        patches = _read_sequence(sequences[name], level, most)
        problems += [f"{name}: {text}" for text in patches] if isinstance(patches, list) else []
        sets += [patches] if isinstance(patches, PatchSet) else []
    refuse(folder, problems)
    return join_patch_sets(sets)


def _read_sequence(folder: Path, level: str, most: int | None) -> PatchSet | list[str]:
    """Return the patches of a sequence, or all that is wrong with it."""
    stripes, problems = [], []
    for name in (REFERENCE, *(f"{LETTERS[level]}{number}.png" for number in range(1, VIEWS + 1))):
        stripe = _read_stripe(folder / name)
        problems += [stripe] if isinstance(stripe, str) else []
        stripes += [] if isinstance(stripe, str) else [stripe]
    if not problems and len({len(stripe) for stripe in stripes}) > 1:
        problems.append(f"its stripes hold {sorted({len(stripe) for stripe in stripes})} patches: expected one number")
    if problems:
        return problems
    kept = [stripe[:most] for stripe in stripes]
    count, pictures = len(kept[0]), len(kept)
    return PatchSet(
        np.concatenate(kept),
        np.tile(np.arange(count), pictures),
        np.zeros(count * pictures, np.int32),
        np.repeat(np.arange(pictures, dtype=np.int32), count),
        level,
    )


def _read_stripe(path: Path) -> NDArray[np.uint8] | str:
    """Return the patches (N, 65, 65) of a stripe, or what is wrong with it."""
    try:
        grey = to_grey(read_image(path))
    except ImageError as problem:
        return f"{path.name} cannot be read ({problem})" if path.exists() else f"{path.name} is missing"
    if grey.shape[1] != HPATCHES_SIDE or grey.shape[0] % HPATCHES_SIDE:
        size = f"{grey.shape[1]} x {grey.shape[0]} pixels"
        return f"{path.name} has {size}: expected a stripe {HPATCHES_SIDE} wide of whole patches"
    return grey.reshape(-1, HPATCHES_SIDE, HPATCHES_SIDE)


def fpr95(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the share of false pairs below the least threshold that keeps 95 % of the true ones (FPR@95).

    ``distances`` (M,), ``same`` (M,) bool. 1 is the worst; pairs at the threshold count as below.

    >>> fpr95([0.1, 0.2, 0.3, 0.15], [True, True, False, False])
    0.5

    Raises InputError without a true or without a false pair.
    """
    values, true = _checked(distances, same)
    if true.all() or not true.any():
        raise InputError("FPR@95 needs true and false pairs, got one kind only")
    ordered = np.sort(values[true])
    threshold = ordered[int(np.ceil(0.95 * len(ordered))) - 1]
    return float((values[~true] <= threshold).mean())


def average_precision(distances: ArrayLike, same: ArrayLike, positives: int | None = None) -> float:
    """Return the area below precision over recall of a list ranked by distance, as HPatches computes it.

    By trapezoids, from precision 1 at recall 0. ``positives`` is the number of true ones to be found where the list may
    lack some. Equal distances rank the false first.

    >>> average_precision([0.1, 0.2, 0.3], [True, True, False])
    1.0
    """
    values, true = _checked(distances, same)
    total = int(true.sum()) if positives is None else positives
    if total < true.sum():
        raise InputError(f"positives: {total} are fewer than the list holds")
    if total == 0 or not len(values):
        return 0.0
    hits = np.cumsum(true[np.lexsort((true, values))])
    recall = np.concatenate([[0.0], hits / total])
    precision = np.concatenate([[1.0], hits / np.arange(1, len(hits) + 1)])
    return float(np.trapezoid(precision, recall))


def area_under_curve(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the chance that a true pair is nearer than a false one (the area below the ROC curve), ties half."""
    values, true = _checked(distances, same)
    if true.all() or not true.any():
        raise InputError("the area needs true and false pairs, got one kind only")
    false = np.sort(values[~true])
    below = np.searchsorted(false, values[true], side="left")
    equal = np.searchsorted(false, values[true], side="right") - below
    return float(1 - (below + equal / 2).mean() / len(false))


def _checked(distances: ArrayLike, same: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, true = np.asarray(distances, np.float64), np.asarray(same, np.bool_)
    if values.ndim != 1 or values.shape != true.shape:
        raise InputError(f"expected distances (M,) and as many truth values, got {values.shape} and {true.shape}")
    if np.isnan(values).any():
        raise InputError("some distances are not numbers")
    return values, true
