# SPDX-License-Identifier: Apache-2.0
"""Sparse maps: what was released about each keypoint, written at the pixel where it lies, 0 everywhere else.

The input of networks that turn features back into a picture (section 3.2 of the NinjaDesc paper). Knows keypoints and
vectors; not what the vectors mean. The first layers of a network work on the vectors before they are written into the
map: a convolution of 1 x 1 gives the same, at every pixel instead of at every keypoint.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError, need
from sfumato.types.arrays import frozen_array


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Placed:
    """Which features lie in a map and where: their ``rows`` (M,), and ``pixels`` (M,), y * width + x, each once."""

    rows: NDArray[np.int64]
    pixels: NDArray[np.int64]
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Placed({len(self)} features in {self.size[0]} x {self.size[1]} pixels)"


def place(keypoints: ArrayLike, size: tuple[int, int], *, corner: tuple[int, int] = (0, 0)) -> Placed:
    """Place keypoints (N, 4) in a window of ``size`` (width, height) pixels whose first pixel is ``corner`` (x, y).

    Places are rounded to whole pixels. Keypoints outside are left out. Where several fall on one pixel the first row,
    of features the strongest, is kept: a map holds one vector a pixel.
    """
    points = frozen_array(keypoints, "keypoints", (None, 4))
    width, height = size
    if width < 1 or height < 1:
        raise InputError(f"a map needs at least one pixel, got {width} x {height}")
    x = np.rint(points[:, 0].astype(np.float64)).astype(np.int64) - corner[0]
    y = np.rint(points[:, 1].astype(np.float64)).astype(np.int64) - corner[1]
    inside = np.flatnonzero((x >= 0) & (x < width) & (y >= 0) & (y < height))
    pixels, first = np.unique(y[inside] * width + x[inside], return_index=True)
    return Placed(inside[first], pixels, (width, height))


def scatter(vectors: Any, placed: list[Placed]) -> Any:
    """Write vectors (M, C), the rows of all maps one after the other, into a tensor of maps (B, C, H, W).

    All maps have one size. The result is laid out channels first: torch 2.13 on a processor corrupts memory in the
    gradient of a 1 x 1 convolution with a stride when channels are last.
    """
    torch: Any = need("torch", extra="learn")
    width, height = placed[0].size
    area = width * height
    flat = np.concatenate([one.pixels + number * area for number, one in enumerate(placed)])
    index = torch.from_numpy(flat).to(vectors.device)
    empty = vectors.new_zeros((len(placed) * area, vectors.shape[1]))
    filled = empty.index_copy(0, index, vectors)  # (B H W, C)
    return filled.view(len(placed), height, width, -1).permute(0, 3, 1, 2).contiguous()  # (B, C, H, W)
