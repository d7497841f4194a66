# SPDX-License-Identifier: Apache-2.0
"""Labelled patches: small grey pictures, and which of them show the same point.

Knows pixels and numbers, not how the patches came about: they are read from UBC's PhotoTour (``ubc``) or HPatches
(``hpatches``), or generated from photos (``views``). Patches are clear, like the photos they were cut from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array

LEVELS = ("easy", "hard", "tough")
"""How far the detector is taken to be off (HPatches, section 3)."""


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
    sides, levels = {one.side for one in sets if len(one)}, {one.level for one in sets}
    if len(sides) > 1 or len(levels) > 1:
        raise InputError(f"sets of patches differ: sides {sorted(sides)}, levels {sorted(levels)}")
    side = next(iter(sides), sets[0].side)
    return PatchSet(
        np.concatenate([one.patches.reshape(-1, side, side) for one in sets]),
        number_apart([one.points for one in sets]),
        number_apart([one.groups for one in sets]).astype(np.int32),
        np.concatenate([one.views for one in sets]),
        levels.pop(),
    )


def number_apart(lists: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return lists of numbers as one, from 0 on: equal only where they are equal within one list.

    >>> number_apart([np.array([7, 7, 9]), np.array([7])]).tolist()
    [0, 0, 1, 2]
    """
    numbers, known = [np.zeros(0, np.int64)], 0
    for one in lists:
        names, places = np.unique(one, return_inverse=True)
        numbers.append(places.astype(np.int64) + known)
        known += len(names)
    return np.concatenate(numbers)
