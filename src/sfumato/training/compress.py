# SPDX-License-Identifier: Apache-2.0
"""Principal components of descriptors: the encoder ``compress``, learned from public photos without any network.

All components go into one file, the strongest first; a recipe says how many it takes. The file holds no descriptor.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.encoder import Encoder, save_encoder
from sfumato.device import ConcealOutcome, read_features
from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.features.sources import open_source
from sfumato.types.arrays import frozen_array
from sfumato.types.progress import Progress, identity

LEAST_ROWS = 4
"""Rows that are needed per dimension."""

CARD_DIMS = (16, 24, 32, 48, 64, 96)
"""For these numbers of components the card says which share of the spread they keep."""


def train_compress(
    sources: Sequence[Path],
    output: Path,
    *,
    local: LocalParams | None = None,
    extractor: str | None = None,
    workers: int | None = None,
    outcome: ConcealOutcome | None = None,
    progress: Progress = identity,
) -> Encoder:
    """Learn components from photos and files of features, write them to a file, and return them.

    ``local`` describes photos, ``extractor`` names the descriptors of hloc and COLMAP files; ``outcome`` counts images.

    Raises InputError for no features, too few, or several kinds of descriptors; FileError for unreadable files.
    """
    opened = [open_source(path, params=local, extractor=extractor, workers=workers) for path in sources]
    outcome = outcome or ConcealOutcome()
    images = [features for _, features in read_features(opened, outcome, progress) if len(features)]
    if not images:
        raise InputError("no image of these has a feature: give other photos")
    kind = images[0].extractor
    if not all(features.extractor.matches(kind) for features in images):
        raise InputError("these are descriptors of different kinds: learn from one kind at a time")
    card = {"images": outcome.images, "settings": dict(kind.settings), "data": [path.name for path in sources]}
    components = learn_compress(np.concatenate([features.descriptors for features in images]), kind.name, card)
    return save_encoder(output, components)


def learn_compress(descriptors: ArrayLike, extractor_name: str, card: Mapping[str, Any] | None = None) -> Encoder:
    """Return all principal components of descriptors (N, n) as an encoder: y = V (x - mean), strongest first.

    The signs are fixed (the largest number of each component is positive), so that the same rows give the same file.
    ``card`` is extended by the number of rows, and the share of the spread that CARD_DIMS components keep.

    Raises InputError for too few rows, or rows that do not differ.
    """
    rows = frozen_array(descriptors, "descriptors", (None, None))
    count, n = rows.shape
    if n < 2 or count < LEAST_ROWS * n:
        raise InputError(
            f"{count} descriptors of {n} dimensions are too few: give photos with {LEAST_ROWS * n} or more"
        )
    mean = rows.mean(axis=0, dtype=np.float64)
    spread, axes = np.linalg.eigh(_covariance(rows, mean))
    spread, components = np.maximum(spread[::-1], 0), axes[:, ::-1].T
    if not spread.sum() > 0:
        raise InputError("all descriptors are the same: give other photos")
    largest = components[np.arange(n), np.abs(components).argmax(axis=1)]
    components = components * np.where(largest < 0, -1, 1)[:, None]
    shares = np.cumsum(spread) / spread.sum()
    kept = {str(dim): round(float(shares[dim - 1]), 4) for dim in CARD_DIMS if dim <= n}
    layer = (components.astype(np.float32), (-components @ mean).astype(np.float32), False)
    return Encoder(
        layers=(layer,),
        extractor_name=extractor_name,
        kind="compress",
        card={**(card or {}), "descriptors": count, "kept": kept},
    )


def _covariance(rows: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance (n, n), summed in float64 a block at a time."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), 65_536):
        centred = rows[start : start + 65_536] - mean
        total += centred.T @ centred
    covariance: NDArray[np.float64] = total / len(rows)
    return covariance
