# SPDX-License-Identifier: Apache-2.0
"""How to search: on how many axes to bound, with how fine steps, and in which form. Chosen from a sample of the data.

Whatever is chosen, the result is the same; only the time differs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.subspace.prepared import Frame, Prepared

HEADS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
SAMPLE_ROWS, SAMPLE_COLUMNS, SAMPLE_SHARE = 24, 4096, 1024
SMALL = 100_000
"""So few pairs are bracketed faster than a bound is prepared."""

PRODUCT, PAIR_PRODUCT, PAIR_BYTE, PAIR = 1 / 60, 1 / 40, 1 / 14, 10.0
"""Nanoseconds of a product in the bound, of one in a bracket, of a byte fetched for it, and of a bracket besides; only
their ratios matter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``head`` axes for the bound, 0 for none; ``step`` of its bytes; ``duals``: which side is taken in dual form."""

    head: int
    step: float
    duals: tuple[bool, bool] = (False, False)


def choose_plan(
    a: Prepared, b: Prepared, frame: Frame, keep: tuple[int, int], *, limit: float, head: int | None
) -> Plan:
    """Return the plan that should be fastest for these sides; plans are remembered in the frame."""
    duals = _dual(a, b), _dual(b, a)
    if head is None and len(a) * len(b) <= SMALL:
        return Plan(0, 1.0, duals)
    key = (a.dim, b.dim, keep, limit, head, (len(a) * len(b)).bit_length())
    if key not in frame.plans:
        frame.plans[key] = _measure(a, b, frame, keep, duals, limit, head)
    plan: Plan = frame.plans[key]
    return plan


def _dual(side: Prepared, other: Prepared) -> bool:
    """Tell whether a side is better taken in dual form: large subspaces, against points."""
    return other.dim == 0 and 2 * side.dim > side.origin.shape[1]


def _measure(
    a: Prepared, b: Prepared, frame: Frame, keep: tuple[int, int], duals: tuple[bool, bool], limit: float, head: int | None
) -> Plan:
    from sfumato.subspace.fast import Search

    n = a.origin.shape[1]
    few, many = (a, b) if keep[0] else (b, a)
    wanted = max(keep)
    rows, columns = few.sample(SAMPLE_ROWS), many.sample(SAMPLE_COLUMNS)
    forms = duals if keep[0] else duals[::-1]
    nearest = _fresh(len(rows), min(wanted, len(columns)), limit), _fresh(len(columns), 0, limit)
    Search(rows, columns, frame, Plan(0, 1.0, forms), limit, nearest).run()
    limits, columns = np.minimum(nearest[0][0][:, -1], limit), columns.sample(SAMPLE_SHARE)
    step = max(float(limits[np.isfinite(limits)].max(initial=0.0)) * 1.5 / 254, 1e-12)
    if head is not None:
        return Plan(head, step, duals)
    if any(duals):
        return Plan(n, step, duals)
    stack = (a.dim + 1) * (b.dim + 1)
    bracket = stack * n * PAIR_PRODUCT + 2 * (b.dim + 1) * n * PAIR_BYTE + PAIR
    sides = (keep[0] > 0) + (keep[1] > 0)
    best, least = n, np.inf
    for candidate in [k for k in HEADS if a.dim + b.dim + 4 <= k < n] + [n]:
        floor = stack * candidate * PRODUCT
        if floor >= least:
            break
        share = _share(rows, columns, frame, candidate, forms, limits, step)
        cost = floor + sides * share * bracket
        if cost < least:
            best, least = candidate, cost
    return Plan(best, step, duals)


def _fresh(count: int, keep: int, limit: float) -> tuple[Any, Any]:
    return np.full((count, keep), limit), np.full((count, keep), -1, np.int64)


def _share(
    rows: Prepared, columns: Prepared, frame: Frame, head: int, duals: tuple[bool, bool], limits: Any, step: float
) -> float:
    """Return the share of pairs of a sample that a bound on ``head`` axes does not settle."""
    from sfumato.subspace import bounds
    from sfumato.subspace.fast import Search

    search = Search(rows, columns, frame, Plan(head, step, duals), np.inf, (_fresh(0, 0, 0.0), _fresh(0, 0, 0.0)))
    out = np.empty((len(rows), -(-len(columns) // 8) * 8), np.uint8)
    bounds.fill(
        *search.coarse, (0, len(rows)), (0, out.shape[1] // 8), search.coarse_scales, np.float32(1 / step),
        search.sides[0].ones, search.sides[1].ones, out.reshape(-1), out.shape[1],
    )  # fmt: skip
    return float((out[:, : len(columns)] * step <= limits[:, None]).mean())
