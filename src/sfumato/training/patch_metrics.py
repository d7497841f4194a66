# SPDX-License-Identifier: Apache-2.0
"""Metrics of ranked patch pairs as HPatches defines them, and the false positive rate at 95 % recall.

Knows distances and truth values only; one definition for clear, lifted and encoded descriptors.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError


def fpr95(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the share of false pairs below the least threshold that keeps 95 % of the true ones (FPR@95).

    ``distances`` (M,), ``same`` (M,) bool. 1 is the worst; pairs at the threshold count as below.

    >>> fpr95([0.1, 0.2, 0.3, 0.15], [True, True, False, False])
    0.5

    Raises InputError without a true or without a false pair.
    """
    values, true = _checked(distances, same)
    if true.all() or not true.any():
        raise InputError("FPR@95 needs true and false pairs, got one kind only")
    ordered = np.sort(values[true])
    threshold = ordered[int(np.ceil(0.95 * len(ordered))) - 1]
    return float((values[~true] <= threshold).mean())


def average_precision(distances: ArrayLike, same: ArrayLike, positives: int | None = None) -> float:
    """Return the area below precision over recall of a list ranked by distance, as HPatches computes it.

    By trapezoids, from precision 1 at recall 0. ``positives`` is the number of true ones to be found where the list may
    lack some. Equal distances rank the false first.

    >>> average_precision([0.1, 0.2, 0.3], [True, True, False])
    1.0
    """
    values, true = _checked(distances, same)
    total = int(true.sum()) if positives is None else positives
    if total < true.sum():
        raise InputError(f"positives: {total} are fewer than the list holds")
    if total == 0 or not len(values):
        return 0.0
    hits = np.cumsum(true[np.lexsort((true, values))])
    recall = np.concatenate([[0.0], hits / total])
    precision = np.concatenate([[1.0], hits / np.arange(1, len(hits) + 1)])
    return float(np.trapezoid(precision, recall))


def area_under_curve(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the chance that a true pair is nearer than a false one (the area below the ROC curve), ties half."""
    values, true = _checked(distances, same)
    if true.all() or not true.any():
        raise InputError("the area needs true and false pairs, got one kind only")
    false = np.sort(values[~true])
    below = np.searchsorted(false, values[true], side="left")
    equal = np.searchsorted(false, values[true], side="right") - below
    return float(1 - (below + equal / 2).mean() / len(false))


def _checked(distances: ArrayLike, same: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, true = np.asarray(distances, np.float64), np.asarray(same, np.bool_)
    if values.ndim != 1 or values.shape != true.shape:
        raise InputError(f"expected distances (M,) and as many truth values, got {values.shape} and {true.shape}")
    if np.isnan(values).any():
        raise InputError("some distances are not numbers")
    return values, true
