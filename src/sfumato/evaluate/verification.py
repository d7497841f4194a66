# SPDX-License-Identifier: Apache-2.0
"""How well distances tell pairs of one face from pairs of two: folds, receiver operating curve, error rates.

Knows distances and truths; not what was compared. A pair is accepted where its distance is at most a threshold.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Curve:
    """Error rates at every threshold that decides differently: ``threshold`` (T,) ascending, and two rates (T,).

    ``false_accept`` is the share of pairs of two faces that are accepted, ``true_accept`` that of pairs of one.
    """

    threshold: Floats
    false_accept: Floats
    true_accept: Floats
    impostors: int
    genuine: int

    def __repr__(self) -> str:
        return f"Curve({len(self.threshold)} thresholds, {self.genuine} genuine, {self.impostors} impostors)"


def receiver_curve(distances: ArrayLike, same: ArrayLike) -> Curve:
    """Return the curve of pairs: ``distances`` (P,), and whether both sides are the same face, ``same`` (P,).

    Thresholds lie half-way between distances that differ; the first accepts nothing, the last everything.

    Raises InputError unless there are pairs of both kinds.
    """
    values, truths = checked_pairs(distances, same)
    genuine, impostors = int(truths.sum()), int((~truths).sum())
    if not genuine or not impostors:
        raise InputError(f"verification needs pairs of both kinds, got {genuine} genuine and {impostors} impostors")
    order = np.argsort(values, kind="stable")
    ranked, hits = values[order], truths[order]
    last = np.flatnonzero(np.r_[np.diff(ranked) > 0, True])  # of equal distances all are accepted, or none
    between = (ranked[last[:-1]] + ranked[last[:-1] + 1]) / 2
    return Curve(
        threshold=np.r_[ranked[0] - 1.0, between, ranked[-1] + 1.0],
        false_accept=np.r_[0.0, np.cumsum(~hits)[last] / impostors],
        true_accept=np.r_[0.0, np.cumsum(hits)[last] / genuine],
        impostors=impostors,
        genuine=genuine,
    )


def best_threshold(distances: ArrayLike, same: ArrayLike) -> float:
    """Return the threshold that decides most pairs rightly; of several, the middle one.

    >>> best_threshold([0.0, 1.0, 2.0, 4.0], [True, True, False, False])
    1.5
    """
    curve = receiver_curve(distances, same)
    right = curve.true_accept * curve.genuine + (1 - curve.false_accept) * curve.impostors
    best = np.flatnonzero(right > right.max() - 0.5)
    return float(curve.threshold[best[(len(best) - 1) // 2]])


def fold_accuracies(distances: ArrayLike, same: ArrayLike, fold: ArrayLike) -> Floats:
    """Return the accuracy on each fold with the best threshold of the others (section 4.2.1 of the paper).

    Raises InputError for fewer than two folds, or where what is left beside one fold has pairs of one kind only.
    """
    values, truths = checked_pairs(distances, same)
    folds = frozen_array(fold, "fold", (len(values),), np.int64)
    names = np.unique(folds)
    if len(names) < 2:
        raise InputError(f"folds: need at least two, got {len(names)}")
    found = []
    for name in names:
        held = folds == name
        threshold = best_threshold(values[~held], truths[~held])
        found.append(float(((values[held] <= threshold) == truths[held]).mean()))
    return np.array(found)


def true_accepts_at(curve: Curve, rate: float) -> float | None:
    """Return the share of genuine pairs accepted where at most ``rate`` of the impostors are.

    None where there are too few impostors to tell such a rate: one of them alone would be more.
    """
    if rate * curve.impostors < 1:
        return None
    return float(curve.true_accept[_last_within(curve, rate)])


def threshold_at(curve: Curve, rate: float) -> float:
    """Return the largest threshold at which at most ``rate`` of the impostors are accepted."""
    return float(curve.threshold[_last_within(curve, rate)])


def equal_error_rate(curve: Curve) -> float:
    """Return the rate at which as many impostors are accepted as genuine pairs rejected, between two thresholds."""
    reject = 1 - curve.true_accept
    gap = curve.false_accept - reject  # grows from -1 to 1
    after = int(np.argmax(gap >= 0))
    step = gap[after] - gap[after - 1]
    part = -gap[after - 1] / step
    return float(curve.false_accept[after - 1] + part * (curve.false_accept[after] - curve.false_accept[after - 1]))


def checked_pairs(distances: ArrayLike, same: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
    """Return distances and truths as arrays of one length; InputError for other shapes."""
    values = frozen_array(distances, "distances", (None,), np.float64)
    truths = np.asarray(same)
    if truths.shape != values.shape or (truths.size and not np.isin(truths, (0, 1)).all()):
        raise InputError(f"same: expected {len(values)} truth values, got {truths.dtype} {truths.shape}")
    return values, truths.astype(bool)


def _last_within(curve: Curve, rate: float) -> int:
    return int(np.flatnonzero(curve.false_accept <= rate)[-1])
