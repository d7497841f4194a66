# SPDX-License-Identifier: Apache-2.0
"""Photos made again from the patches of another: each patch projected on the nearest of 1,000 small subspaces.

Section 5.1 of the hashing paper (after Basri et al.): 16 overlapping 5 x 5 patches around each of 1,000 random pixels
of one photo span a subspace of 4 dimensions; the photos to be made are cut into patches that do not overlap. Knows
grey pictures as arrays.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.search.index import Index, SearchStats
from sfumato.types.concealed import Subspaces

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchDictionary:
    """How subspaces are cut: ``pixels`` of a photo, ``shifts`` ** 2 patches of ``side`` around each, ``dim`` axes."""

    pixels: int = 1000
    side: int = 5
    shifts: int = 4
    dim: int = 4

    def __post_init__(self) -> None:
        if not (1 <= self.dim <= min(self.shifts**2, self.side**2 - 1) and self.pixels >= 1 and self.shifts >= 1):
            raise InputError("patches: expected more patches around a pixel than dimensions, and fewer than pixels")


def patch_subspaces(grey: NDArray[np.uint8], cut: PatchDictionary, rng: np.random.Generator) -> Subspaces:
    """Return the subspaces of random pixels of a photo (H, W): the greatest singular vectors of the patches around.

    The patches are those whose middle is -2 to 1 pixels from the pixel in each direction (for 16 of 5 x 5). They are
    not centred: the subspaces pass through 0. Pixels are drawn again where patches are alike and span too little.

    Raises InputError for a photo too small or too flat.
    """
    margin = cut.side // 2 + cut.shifts
    if min(grey.shape) < 2 * margin + 1:
        raise InputError(f"a photo of {grey.shape[1]} x {grey.shape[0]} pixels is too small to cut patches from")
    bases: list[NDArray[np.float64]] = []
    for _ in range(20 * cut.pixels):
        at = [int(rng.integers(margin, length - margin)) for length in grey.shape]
        _, sizes, axes = np.linalg.svd(_patches_around(grey, at, cut), full_matrices=False)
        if sizes[cut.dim - 1] > 1e-3 * max(sizes[0], 1e-9):
            bases.append(axes[: cut.dim])
        if len(bases) == cut.pixels:
            return Subspaces(np.zeros((cut.pixels, cut.side**2), np.float32), np.stack(bases).astype(np.float32))
    raise InputError("the photo is too flat: its patches span too few dimensions; choose another one")


def _patches_around(grey: NDArray[np.uint8], at: list[int], cut: PatchDictionary) -> NDArray[np.float64]:
    half, first = cut.side // 2, -(cut.shifts // 2)
    steps = range(first, first + cut.shifts)
    rows = [
        grey[at[0] + y - half : at[0] + y - half + cut.side, at[1] + x - half : at[1] + x - half + cut.side].ravel()
        for y in steps
        for x in steps
    ]
    return np.array(rows, np.float64) / 255


def cut_patches(grey: NDArray[np.uint8], side: int) -> Floats:
    """Return the patches (N, side ** 2) of a photo that do not overlap, row by row; what is left over is left out."""
    rows, columns = grey.shape[0] // side, grey.shape[1] // side
    if not rows or not columns:
        raise InputError(f"a photo of {grey.shape[1]} x {grey.shape[0]} pixels has no patch of {side} x {side}")
    trimmed = grey[: rows * side, : columns * side].reshape(rows, side, columns, side)
    return (trimmed.transpose(0, 2, 1, 3).reshape(-1, side * side) / 255).astype(np.float32)


def join_patches(patches: NDArray[np.float32], shape: tuple[int, int], side: int) -> Floats:
    """Put patches together again, as ``cut_patches`` cut a photo of this shape."""
    rows, columns = shape[0] // side, shape[1] // side
    joined = patches.reshape(rows, columns, side, side).transpose(0, 2, 1, 3)
    return np.clip(joined.reshape(rows * side, columns * side), 0, 1).astype(np.float32)


def repatch(
    grey: NDArray[np.uint8], entries: Subspaces, index: Index, side: int
) -> tuple[Floats, Floats, SearchStats, float]:
    """Return the photo made again, what of the photo it stands for, what the search took, and the mean angle found.

    Black patches lie in every subspace and are not asked for; a patch for which nothing is found stays black.
    """
    patches = cut_patches(grey, side)
    lit = np.flatnonzero(np.linalg.norm(patches, axis=1) > 1e-6)
    made = np.zeros_like(patches)
    angles, ids, stats = index.search_counted(patches[lit], k=1)
    found = ids[:, 0] >= 0
    axes = entries.basis[ids[found, 0]]
    own = patches[lit[found]]
    made[lit[found]] = np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", axes, own), axes)
    mean_angle = float(angles[found, 0].mean()) if found.any() else 0.0
    return join_patches(made, grey.shape, side), join_patches(patches, grey.shape, side), stats, mean_angle
