# SPDX-License-Identifier: Apache-2.0
"""Plans of searches: the number of axes of the bound, the steps of its bytes, primal or dual form.

Chosen from a sample of the data. The result of a search does not depend on its plan; only the time does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.subspace.subspace_set import Frame, SubspaceSet

HEADS = (8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512)
SAMPLE_ROWS, SAMPLE_COLUMNS = 24, 384
GUESS = 26, 1.9
"""This many axes, and this many per dimension of the two sides, suit local descriptors."""

SMALL, LARGE = 100_000, 6_000_000
"""Up to SMALL pairs, brackets are faster than preparing a bound; only beyond LARGE does trying several bounds pay."""

DUAL = 0.6
"""Against points, subspaces of more than this share of the dimensions are cheaper by their complements, once made."""

USELESS = 0.1
"""A plan that leaves this share of the pairs was made for other data, and is dropped."""

UNTRIED = 3
"""A sample alone, without the nearest of all, makes a bound look this many times worse than it is."""

LEAST_GAIN = 0.94
"""Axes other than the first guess need new panels: they must save more time than these take."""

PRODUCT, PAIR_PRODUCT, PAIR_BYTE, PAIR = 1 / 75, 1 / 20, 1 / 28, 15.0
"""Nanoseconds of a product in the bound, of one in a bracket, of a byte fetched for it, and of a bracket besides; only
their ratios matter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``head`` axes for the bound, 0 for none; ``step`` of its bytes; ``duals``: which side is taken in dual form."""

    head: int
    step: float
    duals: tuple[bool, bool] = (False, False)


def choose_plan(
    a: SubspaceSet,
    b: SubspaceSet,
    frame: Frame,
    keep: tuple[int, int],
    *,
    limit: float,
    head: int | None,
    run: Callable[..., Iterable[Any]] = map,
) -> Plan:
    """Return the plan that should be fastest for these sides; the frame remembers plans. ``run`` is a map."""
    duals = _dual(a, b), _dual(b, a)
    for side, dual in zip((a, b), duals, strict=True):
        side.panel(frame, None, dual=dual, run=run)  # whatever the plan
    if any(duals) and head is not None:
        head = a.origin.shape[1]  # the projection of a complement is no complement
    if head is None and len(a) * len(b) <= SMALL:
        return Plan(0, 1.0, duals)
    key = (a.dim, b.dim, keep, limit, head, (len(a) * len(b)).bit_length())
    plan: Plan | None = frame.plans.get(key)
    if plan is None:
        plan = frame.plans[key] = _measure(a, b, frame, keep, duals, limit, head, run)
    return plan


def _dual(side: SubspaceSet, other: SubspaceSet) -> bool:
    """Return whether the dual form of a side is faster: for large subspaces, against points."""
    return other.dim == 0 and side.dim > DUAL * side.origin.shape[1]


def _measure(
    a: SubspaceSet,
    b: SubspaceSet,
    frame: Frame,
    keep: tuple[int, int],
    duals: tuple[bool, bool],
    limit: float,
    head: int | None,
    run: Callable[..., Iterable[Any]],
) -> Plan:
    """Try bounds on more and on fewer axes on a sample, until they cost more than they save."""
    n, stack = a.origin.shape[1], (a.dim + 1) * (b.dim + 1)
    heads = [k for k in HEADS if a.dim + b.dim + 4 <= k < n and not any(duals)] + [n]
    guess = head or min(heads, key=lambda k: abs(k - GUESS[0] - GUESS[1] * (a.dim + b.dim)))
    tried = len(a) * len(b) > LARGE
    samples = [_PlanSample(a, b, frame, keep, side, duals, limit, guess, tried, run) for side in (0, 1) if keep[side]]
    step = step_for(np.concatenate([sample.limits for sample in samples]), _spread(a, b, frame, duals))
    if head is not None or len(heads) == 1:
        return Plan(guess, step, duals)

    def cost(candidate: int) -> float:
        """Return the nanoseconds per pair."""
        total = stack * candidate * PRODUCT
        for sample in samples:
            bracket = stack * n * PAIR_PRODUCT + 2 * (sample.fetched + 1) * n * PAIR_BYTE + PAIR
            total += sample.share(candidate, step) * bracket
        return total

    at, last = heads.index(guess), len(heads) - 1
    costs = {at: cost(guess)}
    for direction in (1, -1) if tried else ():
        while 0 <= at + direction < len(heads):
            costs.setdefault(at + direction, cost(heads[at + direction]))
            if costs[at + direction] >= costs[at] * LEAST_GAIN:
                break
            at += direction
    full = costs.setdefault(last, cost(n))  # where projecting settles little, it must not cost
    doubt = 1 if tried else UNTRIED
    return Plan(heads[last if full * doubt < costs[at] else at], step, duals)


def step_for(limits: NDArray[np.float64], spread: float) -> float:
    """Return steps with which a byte reaches well beyond the squared distances that matter.

    ``spread`` is the mean squared distance of origins from their mean. It counts because the nearest of a sample may
    all share a decoy with it, and say nothing about other rows.
    """
    return max(float(limits[np.isfinite(limits)].max(initial=0.0)) * 1.5 / 254, spread / 254, 1e-12)


def _spread(a: SubspaceSet, b: SubspaceSet, frame: Frame, duals: tuple[bool, bool]) -> float:
    """Return the mean squared distance of the origins of two sides from the mean of a frame."""
    norms = [side.panel(frame, None, dual=dual).norms for side, dual in zip((a, b), duals, strict=True)]
    return float(np.mean([part.mean() for part in norms]))


class _PlanSample:
    """Rows of one side, more rows of the other, and the distance to the last neighbour of each of the former."""

    def __init__(
        self, a: SubspaceSet, b: SubspaceSet, frame: Frame, keep: tuple[int, int], side: int, duals: Any, limit: float,
        guess: int, tried: bool, run: Any,
    ) -> None:  # fmt: skip
        self.frame, self.duals, self.side, self.limit = frame, duals, side, limit
        self.fetched, self.keep = (b if side == 0 else a).dim, keep[side]
        both = [a, b]
        both[side] = both[side].sample(SAMPLE_ROWS)
        self.sides = list(both)
        self.sides[1 - side] = both[1 - side].sample(SAMPLE_COLUMNS)
        self.limits = self._search(self.sides, Plan(0, 1.0, duals), map)
        if tried:
            step = step_for(self.limits, _spread(a, b, frame, duals))
            self.limits = self._search(both, Plan(guess, step, duals), run)

    def _search(self, sides: list[SubspaceSet], plan: Plan, run: Any) -> NDArray[np.float64]:
        """Return the squared distance of the last neighbour of each sampled row."""
        from sfumato.subspace.fast import TiledSearch

        keep = [min(self.keep, len(sides[1 - self.side])) if k == self.side else 0 for k in (0, 1)]
        nearest = [
            (np.full((len(own), count), self.limit), np.full((len(own), count), -1, np.int64))
            for own, count in zip(sides, keep, strict=True)
        ]
        TiledSearch(sides[0], sides[1], self.frame, plan, self.limit, nearest, run).run()
        farthest: NDArray[np.float64] = np.minimum(nearest[self.side][0][:, -1], self.limit)
        return farthest

    def share(self, head: int, step: float) -> float:
        """Return the share of pairs that a bound on ``head`` axes does not settle."""
        from sfumato.subspace.fast import TiledSearch
        from sfumato.subspace.kernels import bounds

        rows, columns = self.sides
        nothing = [(np.empty((len(own), 0)), np.empty((len(own), 0), np.int64)) for own in self.sides]
        search = TiledSearch(rows, columns, self.frame, Plan(head, step, self.duals), np.inf, nothing)
        out = np.empty((len(rows), -(-len(columns) // search.group) * search.group), np.uint8)
        bounds.fill(
            *search.coarse, (0, len(rows)), (0, out.shape[1] // search.group), search.coarse_scales,
            np.float32(1 / step), search.sides[0].ones, search.sides[1].ones, out.reshape(-1), out.shape[1],
        )  # fmt: skip
        limits = self.limits[:, None] if self.side == 0 else self.limits
        return float((out[:, : len(columns)] * step <= limits).mean())
