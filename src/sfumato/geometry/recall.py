# SPDX-License-Identifier: Apache-2.0
"""How many of a set of queries were localized, and how well: from pose errors alone, no pose and no image."""

from collections.abc import Iterable, Sequence

import numpy as np

from sfumato.errors import InputError

PoseError = tuple[float, float]
"""Metres and degrees."""

THRESHOLDS: tuple[PoseError, ...] = ((0.25, 2), (0.5, 5), (5, 10))
"""High, medium and coarse precision of the long-term visual localization benchmark."""


def recalls(errors: Iterable[PoseError | None], thresholds: Sequence[PoseError] = THRESHOLDS) -> tuple[float, ...]:
    """Return for each threshold (metres, degrees) the share of queries within both; None is a query without a pose.

    >>> recalls([(0.1, 0.5), (0.1, 3.0), None, (9.0, 0.1)])
    (0.25, 0.5, 0.5)
    """
    table = _table(errors)
    if len(table) == 0:
        return tuple(0.0 for _ in thresholds)
    return tuple(float((table <= np.asarray(limit, float)).all(axis=1).mean()) for limit in thresholds)


def median_errors(errors: Iterable[PoseError | None]) -> PoseError:
    """Return the medians of metres and of degrees over all queries; those without a pose are infinitely far.

    >>> median_errors([(0.1, 2.0), (0.3, 1.0), None])
    (0.3, 2.0)
    """
    table = _table(errors)
    if len(table) == 0:
        return float("inf"), float("inf")
    with np.errstate(invalid="ignore"):
        metres, degrees = np.sort(table, axis=0)[[(len(table) - 1) // 2, len(table) // 2]].mean(axis=0)
    return float(metres), float(degrees)


def _table(errors: Iterable[PoseError | None]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    rows = [(float("inf"), float("inf")) if error is None else (float(error[0]), float(error[1])) for error in errors]
    table = np.array(rows, np.float64).reshape(-1, 2)
    if np.isnan(table).any() or (table < 0).any():
        raise InputError("errors: expected metres and degrees of 0 or more, or None for a query without a pose")
    return table
