# SPDX-License-Identifier: Apache-2.0
"""Clear values: pictures, features and face embeddings. They must not leave the device.

No server imports this module; a test follows the imports. The concealed values in ``sfumato.types.concealed`` are
unrelated on purpose.

**Keypoint convention, stated here once.** A keypoint is (x, y, sigma, angle): x to the right and y down, in
pixels, with the *centre of the first pixel at (0, 0)*; sigma is the scale in pixels (OpenCV's ``size / 2``,
COLMAP's ``scale``); angle is OpenCV's, in degrees. COLMAP puts the centre of the first pixel at (0.5, 0.5):
add 0.5.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import checked_size, frozen_array
from sfumato.types.extractor import Extractor, is_label


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Image:
    """A picture: ``pixels`` (H, W) grey or (H, W, 3) red-green-blue, uint8, upright."""

    pixels: NDArray[np.uint8]
    name: str = ""

    def __post_init__(self) -> None:
        pixels = np.asarray(self.pixels)
        if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
            raise InputError(
                f"pixels of {self.name or 'an image'}: expected uint8 (H, W) or (H, W, 3), "
                f"got {pixels.dtype} {pixels.shape}"
            )
        if pixels.size == 0:
            raise InputError(f"{self.name or 'an image'} has no pixels: shape {pixels.shape}")
        object.__setattr__(self, "pixels", frozen_array(pixels, "pixels", pixels.shape, np.uint8))

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    def __repr__(self) -> str:
        return f"Image({self.name!r}, {self.size[0]} x {self.size[1]})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Features:
    """Clear local features of one image.

    ``keypoints`` (N, 4) float32 in the convention above; ``descriptors`` (N, n) float32; ``image_size``
    (width, height) or None.
    """

    keypoints: NDArray[np.float32]
    descriptors: NDArray[np.float32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)
    image_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        keypoints = frozen_array(self.keypoints, "keypoints", (None, 4))
        descriptors = frozen_array(self.descriptors, "descriptors", (len(keypoints), None))
        if descriptors.shape[1] == 0:
            raise InputError("descriptors: need at least one dimension")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        object.__setattr__(self, "keypoints", keypoints)
        object.__setattr__(self, "descriptors", descriptors)
        object.__setattr__(self, "image_size", checked_size(self.image_size))

    def __len__(self) -> int:
        return len(self.keypoints)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "Features":
        """Return the features of some rows: their numbers, or whether each is one of them."""
        return replace(self, keypoints=self.keypoints[rows], descriptors=self.descriptors[rows])

    def __repr__(self) -> str:
        return f"Features({len(self)} x {self.descriptors.shape[1]} {self.extractor.name}, clear)"


SHORTEST = 1e-6
"""An embedding shorter than this has no direction."""

UNIT = 1e-6
"""Rows whose length differs from 1 by less than this stay as they are, to the last bit."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Embeddings:
    """Clear embeddings of N faces: ``values`` (N, n) float32 of unit norm, ``names`` N short texts.

    Rows of another length are scaled to unit norm. Names need not differ; without any, rows are named by their number.

    Raises InputError for wrong shapes, numbers that are not finite, rows of length 0, and unusable names.

    >>> import numpy as np
    >>> Embeddings(np.array([[3.0, 4.0]]), ("alice",)).values
    array([[0.6, 0.8]], dtype=float32)
    """

    values: NDArray[np.float32]
    names: tuple[str, ...] = ()
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        values = frozen_array(unit_rows(self.values), "embeddings", (None, None))
        names = tuple(self.names) or tuple(str(row) for row in range(len(values)))
        if values.shape[1] == 0:
            raise InputError("embeddings: need at least one dimension")
        if len(names) != len(values):
            raise InputError(f"embeddings: {len(values)} rows have {len(names)} names")
        wrong = [row for row, name in enumerate(names) if not is_label(name)]
        if wrong:
            raise InputError(f"embeddings: the name of row {wrong[0]} is not a short, printable text")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "names", tuple(str(name) for name in names))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Embeddings":
        """Select rows by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        if not index.size:
            return Embeddings(np.zeros((0, self.values.shape[1]), np.float32), (), self.extractor)
        return Embeddings(self.values[index], tuple(self.names[row] for row in index), self.extractor)

    def __repr__(self) -> str:
        return f"Embeddings({len(self)} x {self.values.shape[1]} {self.extractor.name}, clear)"


def unit_rows(values: ArrayLike) -> NDArray[np.float32]:
    """Return rows (N, n) scaled to unit norm; raise InputError for a row without a direction."""
    array = frozen_array(values, "embeddings", (None, None), np.float64)
    lengths = np.linalg.norm(array, axis=1)
    short = np.flatnonzero(~(lengths > SHORTEST) | ~np.isfinite(lengths))
    if short.size:
        raise InputError(f"embeddings: {short.size} rows have no direction, the first is row {short[0]}")
    scale = np.where(np.abs(lengths - 1) <= UNIT, 1.0, lengths)
    rows: NDArray[np.float32] = (array / scale[:, None]).astype(np.float32)
    return rows


def people_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the person on each photo, for names of a person and a number as in LFW: Aaron_Sorkin_0002.

    >>> people_of(["Aaron_Sorkin_0001", "alice"])
    ('Aaron_Sorkin', 'alice')
    """
    return tuple(re.sub(r"(?<=.)[_-]\d+$", "", name) for name in names)
