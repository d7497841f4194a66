# SPDX-License-Identifier: Apache-2.0
"""Patches of HPatches (Balntas, Lenc, Vedaldi and Mikolajczyk): stripes of 65 x 65 patches, a folder a sequence.

``ref.png`` holds the patches of the reference picture, one below the other; ``e1.png ... e5.png`` those of the other
pictures with easy jitter, ``h`` hard, ``t`` tough. Row i of every stripe shows point i. Whole pictures of HPatches with
homographies are another thing: ``images.folders.hpatches``.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, ImageError, InputError, suggest
from sfumato.images.folders.ground import need_folder, refuse
from sfumato.images.patchsets import LEVELS, PatchSet, join_patch_sets
from sfumato.images.read import read_image, to_grey

SIDE = 65
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
    found = {place.name: place for place in list_hpatches(folder)}
    wanted = list(found) if names is None else list(names)
    problems = [f"there is no sequence {name!r:.80}" for name in wanted if name not in found]
    if not found:
        raise FileError(f"{folder} holds no sequence of patches: expected folders with {REFERENCE}, e1.png, ...")
    sets = []
    for name in wanted:
        if name in found:
            read = _read_sequence(found[name], level, most)
            problems += [f"{name}: {text}" for text in read] if isinstance(read, list) else []
            sets += [read] if isinstance(read, PatchSet) else []
    refuse(folder, problems)
    return join_patch_sets(sets)


def read_split(path: str | os.PathLike[str], name: str, *, train: bool = False) -> list[str]:
    """Return the sequences of a split from HPatches' splits.json: a, b, c, full, illum or view; those to test on.

    Raises FileError if the file or the split is not there.
    """
    place = Path(path)
    try:
        splits = json.loads(place.read_text(encoding="utf-8"))
        found = splits[name]["train" if train else "test"]
    except OSError as cause:
        raise FileError(f"{place}: can not be read: {cause.strerror or cause}") from cause
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise FileError(f"{place}: no split {name!r:.80} is in it") from cause
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise FileError(f"{place}: split {name!r:.80} is no list of names")
    return found


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
        return f"{path.name} can not be read ({problem})" if path.exists() else f"{path.name} is missing"
    if grey.shape[1] != SIDE or grey.shape[0] % SIDE:
        return (
            f"{path.name} has {grey.shape[1]} x {grey.shape[0]} pixels: expected a stripe {SIDE} wide of whole patches"
        )
    return grey.reshape(-1, SIDE, SIDE)
