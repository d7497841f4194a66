# SPDX-License-Identifier: Apache-2.0
"""Which directions of a descriptor tell points apart: the linear discriminant of pairs of views (Fisher).

A network that can be undone conceals nothing from whoever undoes it: what an encoder is to hide must be left out. The
discriminant orders the directions of a descriptor by how much points differ along them, compared with views of one
point; a NinjaNet may begin as the projection on the first few. Knows pairs of clear descriptors of the public.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import need
from sfumato.learn.pairs import DescriptorPairs

Floats = NDArray[np.float32]

RIDGE = 1e-4
"""Added to the spread within points, as a share of its mean: a direction in which nothing ever moves is no proof."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Discriminant:
    """``directions`` (n, n), a column each, the most telling first; views of one point spread by 1 along each."""

    mean: Floats
    directions: Floats

    def __repr__(self) -> str:
        return f"Discriminant({self.directions.shape[0]} numbers)"


def discriminant(pairs: DescriptorPairs) -> Discriminant:
    """Solve S_between v = s S_within v for pairs of views (Fisher): the directions by falling s."""
    eigh: Any = need("scipy.linalg", extra="learn").eigh
    first, second = pairs.first.astype(np.float64), pairs.second.astype(np.float64)
    mean = (first.mean(axis=0) + second.mean(axis=0)) / 2
    apart, middle = (first - second) / np.sqrt(2), (first + second) / 2 - mean
    within, between = apart.T @ apart / len(apart), middle.T @ middle / len(middle)
    damping = RIDGE * np.trace(within) / len(within) + 1e-12
    _, directions = eigh(between, within + damping * np.eye(len(within)))
    return Discriminant(mean.astype(np.float32), directions[:, ::-1].astype(np.float32))
