# SPDX-License-Identifier: Apache-2.0
"""Drawings of an image as the server sees it: dots at positions, and codes that nobody here can read.

Everything is drawn from a frame, so it shows what the server has and no more. Drawings are paths of SVG: numbers alone.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.recipe import Recipe

MOST_DOTS = 20_000
BLOCK_ROWS, BLOCK_BITS = 88, 88
NUMBER_ROWS, NUMBER_COLUMNS = 16, 6

SEALED = (
    "Dots are positions that the device released, because other photos see the same: they outline what the map shows "
    "too. All others stayed on the device. Without its key, and without a photo of this place, our attackers paint no "
    "more of it than a flat picture has. That is measured, not proven. Anyone who has another photo of the place can "
    "often recover the key, and then read part of the bits."
)
OUTLINES = (
    "The device sent the position of every feature: outlines of the photo show in the dots, and nothing hides them."
)
LIFTED = (
    "These are affine subspaces, as published. Of SIFT attackers recover most descriptors at the usual dimensions, and "
    "paint the photo from them: treat this recipe as obfuscation."
)
ENCODED = (
    "These are points of a public encoder. A network that was trained on its points paints part of the picture from "
    "them; 'sfumato help concealment' says how much."
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A path of SVG in a box of ``width`` x ``height``, and how many things of all it shows."""

    width: int
    height: int
    path: str
    shown: int
    total: int


def draw_dots(features: ConcealedFeatures) -> Drawing:
    """Return a dot for every feature whose position left the device, to scale; of very many an even selection.

    An image of unknown size gets the box of its dots.
    """
    positions = np.asarray(features.keypoints[features.is_shown, :2], np.float64)
    largest = positions.max(axis=0) + 1 if len(positions) else np.ones(2)
    width, height = features.image_size or (int(np.ceil(largest[0])), int(np.ceil(largest[1])))
    rows = positions
    if len(rows) > MOST_DOTS:
        rows = positions[np.linspace(0, len(positions) - 1, MOST_DOTS).astype(np.int64)]
    path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in rows)
    return Drawing(max(1, width), max(1, height), path, len(rows), len(features))


def draw_bits(bits: NDArray[np.bool_]) -> Drawing:
    """Return a block of bits, (rows, columns), a square for each that is set.

    >>> draw_bits(np.array([[True, True, False]])).path
    'M0 0h2v1h-2z'
    """
    height, width = bits.shape
    parts = []
    for y, row in enumerate(bits):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        parts += [f"M{x} {y}h{end - x}v1h-{end - x}z" for x, end in edges.reshape(-1, 2)]
    return Drawing(width, height, "".join(parts), int(bits.sum()), bits.size)


def first_bits(features: ConcealedFeatures) -> Drawing | None:
    """Return the first bits of the first codes as a block; None if the codes are no bits, or there are none."""
    if not isinstance(features.code, Bits) or not len(features):
        return None
    packed = np.asarray(features.code.packed[:BLOCK_ROWS])
    return draw_bits(np.unpackbits(packed, axis=1)[:, :BLOCK_BITS].astype(bool))


def first_numbers(features: ConcealedFeatures) -> list[str]:
    """Return the first numbers of the first codes as lines of text; empty if the codes are bits."""
    if isinstance(features.code, Bits):
        return []
    rows = np.asarray(features.code.origin[:NUMBER_ROWS, :NUMBER_COLUMNS], np.float64)
    return [" ".join(f"{value:+.3f}" for value in row) for row in rows]


def threat_sentence(recipe: Recipe, *, has_all_positions: bool = False) -> str:
    """Return what docs/explanation/threat_model.md says of features of a recipe, in short."""
    if recipe.is_sealed:
        return OUTLINES if has_all_positions else SEALED
    return LIFTED if recipe.lifting is not None else ENCODED
