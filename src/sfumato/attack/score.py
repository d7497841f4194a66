# SPDX-License-Identifier: Apache-2.0
"""How near recovered descriptors come to the clear ones. Knows distances, not attacks, and keeps no descriptor."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.attack.knowledge import Recovered
from sfumato.types.arrays import frozen_array

WITHIN = (0.02, 0.1, 0.3)
"""Distances, where descriptors have unit norm: broken, recognisably near, still useful to an inverter."""


def recovery_distances(recovered: Recovered, clear: ArrayLike) -> NDArray[np.float64]:
    """Return the distance (N,) of each recovered descriptor to its clear one, ``clear`` (N, n)."""
    truth = frozen_array(clear, "clear descriptors", recovered.descriptors.shape)
    distances: NDArray[np.float64] = np.linalg.norm(recovered.descriptors.astype(np.float64) - truth, axis=1)
    return distances


def summarise_distances(distances: NDArray[np.float64]) -> dict[str, float]:
    """Return count, mean and median of distances (N,), and the share within each of ``WITHIN``; NaN of nothing."""
    count = len(distances)
    shares = {f"within {limit}": float((distances <= limit).mean()) if count else float("nan") for limit in WITHIN}
    middle = (float(distances.mean()), float(np.median(distances))) if count else (float("nan"), float("nan"))
    return {"count": float(count), "mean": middle[0], "median": middle[1], **shares}


def score_recovery(recovered: Recovered, clear: ArrayLike) -> dict[str, float]:
    """Score an attack against the clear descriptors (N, n): count, mean and median distance, shares within.

    >>> guess = Recovered(np.eye(2, 4), np.ones(2))
    >>> score_recovery(guess, np.eye(2, 4))["within 0.02"]
    1.0
    """
    return summarise_distances(recovery_distances(recovered, clear))
