# SPDX-License-Identifier: Apache-2.0
"""How sure a figure is: intervals over photos, drawn again with replacement. Knows numbers by photo, nothing else."""

from collections.abc import Mapping

import numpy as np

DRAWS = 2000
COVERED = 0.95
SMALLEST_SCALE = 0.01
"""Of structural similarity: where clear descriptors show less than this beyond the floor, there is nothing to leak."""


def leakage_interval(
    similar: Mapping[str, float], clear: Mapping[str, float], floor: Mapping[str, float]
) -> tuple[float, float, float] | None:
    """Return leakage (similar - floor) / (clear - floor) of the means over photos, and its interval of 95 %.

    Photos are drawn again with replacement, all three figures of a photo together (the percentile bootstrap), with
    fixed draws, so that the same figures give the same interval; draws of photos whose clear pictures are no better
    than the floor say nothing and are left out. None if no photo has all three figures, or the clear pictures of all
    together are no better than the floor.

    >>> leakage_interval({"a": 0.5, "b": 0.6}, {"a": 0.7, "b": 0.8}, {"a": 0.3, "b": 0.4})
    (0.5, 0.5, 0.5)
    """
    names = sorted(similar.keys() & clear.keys() & floor.keys())
    if not names:
        return None
    values = np.array([[one[name] for name in names] for one in (similar, clear, floor)])  # (3, N)
    drawn = np.random.default_rng(0).integers(len(names), size=(DRAWS, len(names)))
    means = values[:, drawn].mean(axis=2)  # (3, DRAWS)
    own = values.mean(axis=1)
    if own[1] - own[2] < SMALLEST_SCALE:
        return None
    scales = means[1] - means[2]
    telling = scales >= SMALLEST_SCALE
    spread = (
        (means[0] - means[2])[telling] / scales[telling] if telling.any() else (own[0] - own[2]) / (own[1] - own[2])
    )
    low, high = np.quantile(spread, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    return round(float((own[0] - own[2]) / (own[1] - own[2])), 12), round(float(low), 12), round(float(high), 12)
