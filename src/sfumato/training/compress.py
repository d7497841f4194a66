# SPDX-License-Identifier: Apache-2.0
"""Principal components of descriptors: the encoder ``compress``, learned from public photos without any network.

All components go into one file, the strongest first; a recipe says how many it takes. Knows rows of descriptors and
what they came from in words; no recipe, and keeps no descriptor.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.encoder import Encoder
from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array

FEWEST_EACH = 4
"""So many rows for each dimension are the fewest that components are learned from."""

TOLD = (16, 24, 32, 48, 64, 96)
"""For these numbers of components the card says how much of the spread they keep."""


def learn_compress(descriptors: ArrayLike, extractor_name: str, card: Mapping[str, Any] | None = None) -> Encoder:
    """Return all principal components of descriptors (N, n) as an encoder: y = V (x - mean), strongest first.

    The signs are fixed (the largest number of each component is positive), so that the same rows give the same file.
    ``card`` is noted beside what is known here: rows, and the share of the spread that some numbers of components keep.

    Raises InputError for too few rows, or rows that do not differ.
    """
    rows = frozen_array(descriptors, "descriptors", (None, None))
    count, n = rows.shape
    if n < 2 or count < FEWEST_EACH * n:
        raise InputError(
            f"{count} descriptors of {n} dimensions are too few: give photos with {FEWEST_EACH * n} or more"
        )
    mean = rows.mean(axis=0, dtype=np.float64)
    spread, axes = np.linalg.eigh(_covariance(rows, mean))
    spread, components = np.maximum(spread[::-1], 0), axes[:, ::-1].T
    if not spread.sum() > 0:
        raise InputError("all descriptors are the same: give other photos")
    largest = components[np.arange(n), np.abs(components).argmax(axis=1)]
    components = components * np.where(largest < 0, -1, 1)[:, None]
    kept = np.cumsum(spread) / spread.sum()
    told = {"descriptors": count, "kept": {str(dim): round(float(kept[dim - 1]), 4) for dim in TOLD if dim <= n}}
    layer = (components.astype(np.float32), (-components @ mean).astype(np.float32), False)
    return Encoder(layers=(layer,), extractor_name=extractor_name, kind="compress", card={**(card or {}), **told})


def _covariance(rows: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance (n, n), summed in float64 a block at a time."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), 65_536):
        centred = rows[start : start + 65_536] - mean
        total += centred.T @ centred
    covariance: NDArray[np.float64] = total / len(rows)
    return covariance
