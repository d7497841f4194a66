# SPDX-License-Identifier: Apache-2.0
"""What an owner chose to publish: clear descriptors of mapped points, for others to be localized against.

Unrelated to the clear types on purpose: nothing turns ``Features`` into this but ``sfumato.publish``, on the device
that owns the pictures and when it is told to. A server reads it and can not write it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import Extractor


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PublicPoints:
    """Published descriptors of the mapped points that one image of a map sees.

    ``points`` (N,) int64, COLMAP's numbers of the points; ``descriptors`` (N, n) float32, row i of point i.

    >>> PublicPoints([7, 9], np.eye(2, 8), Extractor("sift"))
    PublicPoints(2 x 8 sift, published)
    """

    points: NDArray[np.int64]
    descriptors: NDArray[np.float32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        points = frozen_array(self.points, "points", (None,), np.int64)
        descriptors = frozen_array(self.descriptors, "descriptors", (len(points), None))
        if descriptors.shape[1] == 0:
            raise InputError("descriptors: need at least one dimension")
        if (points < 0).any():
            raise InputError("points: expected COLMAP's numbers of points, 0 or more")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "descriptors", descriptors)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"PublicPoints({len(self)} x {self.descriptors.shape[1]} {self.extractor.name}, published)"
