# SPDX-License-Identifier: Apache-2.0
"""What must not leave the device: pictures and clear features.

Nothing a server runs imports this module; a test follows the imports and says so.

**Keypoint convention, stated here once.** A keypoint is (x, y, sigma, angle): x to the right and y down, in
pixels, with the *centre of the first pixel at (0, 0)*; sigma is the scale in pixels (OpenCV's ``size / 2``,
COLMAP's ``scale``); angle is OpenCV's, in degrees. COLMAP puts the centre of the first pixel at (0.5, 0.5):
add 0.5.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import checked_size, frozen_array
from sfumato.types.extractor import Extractor


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Image:
    """A picture: ``pixels`` (H, W) grey or (H, W, 3) red-green-blue, uint8, upright."""

    pixels: NDArray[np.uint8]
    name: str = ""

    def __post_init__(self) -> None:
        given = np.asarray(self.pixels)
        if given.dtype != np.uint8 or given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] != 3):
            raise InputError(
                f"pixels of {self.name or 'an image'}: expected uint8 (H, W) or (H, W, 3), "
                f"got {given.dtype} {given.shape}"
            )
        if given.size == 0:
            raise InputError(f"{self.name or 'an image'} has no pixels: shape {given.shape}")
        object.__setattr__(self, "pixels", frozen_array(given, "pixels", given.shape, np.uint8))

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

    def __repr__(self) -> str:
        return f"Features({len(self)} x {self.descriptors.shape[1]} {self.extractor.name}, clear)"
