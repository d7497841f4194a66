# SPDX-License-Identifier: Apache-2.0
"""Known pairs: clear descriptors with their codes under a key let an attacker read other codes of that key.

The attacker photographed the place himself, or has a device of the owner: he then uses the key without knowing it. He
learns from his pairs how codes go back to descriptors: by the descriptors of the nearest known codes where some are
near, elsewhere by least squares from codes to descriptors, which is kernel regression in the random features that codes
are (Rahimi and Recht, "Random features for large-scale kernel machines", 2007, section 3). Pairs that he holds back
tell him how near is near, and how smooth. Knows pairs of rows; no key, no recipe.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import KnownPairs, Recovery

Floats = NDArray[np.float32]

HELD_BACK = 0.1
"""The share of the pairs that choose, and do not teach."""
LARGEST_HELD_BACK = 2000
NEIGHBOURS, SHARPNESS = 8, 4
NEAR = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, np.inf)
"""From which likeness of codes on the nearest known ones may be believed; one of them is chosen."""
RIDGES = (0.003, 0.03, 0.3)
"""Added to the spread of codes, as a share of its mean."""
BLOCK = 1024


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LinearMap:
    """Least squares from codes (N, B) to descriptors (N, n): ``matrix`` (B, n), and the two means."""

    matrix: Floats
    code_mean: Floats
    descriptor_mean: Floats

    def __call__(self, codes: Floats) -> Floats:
        estimates = (codes - self.code_mean) @ self.matrix + self.descriptor_mean
        return estimates.astype(np.float32, copy=False)

    def __repr__(self) -> str:
        return f"LinearMap({self.matrix.shape[0]} bits to {self.matrix.shape[1]} numbers)"


def read_codes(codes: Floats, pairs: KnownPairs) -> Recovery:
    """Return descriptors for codes (N, B); the confidence is how much of the spread of held back ones was explained."""
    known, rows = pairs.codes, pairs.descriptors
    held_out = min(LARGEST_HELD_BACK, int(len(rows) * HELD_BACK))
    if held_out < 2:
        guesses = nearest_mean(codes, known, rows)[0]
        return Recovery(unlike_none(guesses, rows), np.full(len(codes), 0.5, np.float32))
    taught, truth = slice(held_out, None), rows[:held_out]
    by_maps = [one(known[:held_out]) for one in linear_maps(known[taught], rows[taught], RIDGES)]
    errors = [_errors(guess, truth, rows) for guess in by_maps]
    smooth = min(range(len(RIDGES)), key=lambda number: float(errors[number].sum()))
    near, likeness = nearest_mean(known[:held_out], known[taught], rows[taught])
    by_near = _errors(near, truth, rows)
    left = {edge: float(np.where(likeness >= edge, by_near, errors[smooth]).sum()) for edge in NEAR}
    edge = min(left, key=lambda one: left[one])
    guesses, likeness = nearest_mean(codes, known, rows)
    mapped = linear_map(known, rows, RIDGES[smooth])(codes)
    guesses = np.where(likeness[:, None] >= edge, guesses, mapped)
    spread = float(((rows.mean(axis=0) - truth) ** 2).sum())
    sure = float(np.clip(1 - left[edge] / max(spread, 1e-12), 0, 1))
    return Recovery(unlike_none(guesses, rows), np.full(len(codes), sure, np.float32))


def _errors(guesses: Floats, truth: Floats, rows: Floats) -> Floats:
    """Return the squared errors (N,) of guesses, made like all descriptors are."""
    errors: Floats = ((unlike_none(guesses, rows) - truth) ** 2).sum(axis=1)
    return errors


def linear_map(codes: Floats, rows: Floats, ridge: float) -> LinearMap:
    """Solve the ridge regression of descriptors (N, n) on codes (N, B)."""
    return linear_maps(codes, rows, (ridge,))[0]


def linear_maps(codes: Floats, rows: Floats, ridges: Sequence[float]) -> list[LinearMap]:
    """Solve it for several ridges, in the smaller of the dimensions N and B."""
    code_mean, mean = codes.mean(axis=0), rows.mean(axis=0)
    centred, targets = codes - code_mean, rows - mean
    wide = centred.shape[1] > len(centred)
    spread = (centred @ centred.T if wide else centred.T @ centred).astype(np.float64)
    crossed = targets if wide else centred.T @ targets
    maps = []
    for ridge in ridges:
        added = ridge * max(float(np.trace(spread)) / centred.shape[1], 1e-12)
        solved = np.linalg.solve(spread + added * np.eye(len(spread)), crossed)
        matrix = centred.T @ solved.astype(np.float32) if wide else solved
        maps.append(LinearMap(matrix.astype(np.float32), code_mean, mean))
    return maps


def nearest_mean(codes: Floats, known: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """Return the mean of the descriptors of the nearest known codes, the nearer the more weight; and how alike the
    nearest is (N,): 1 for the same code, about 0 for an unrelated one."""
    estimates, alike = np.empty((len(codes), rows.shape[1]), np.float32), np.empty(len(codes), np.float32)
    count = min(NEIGHBOURS, len(known))
    for start in range(0, len(codes), BLOCK):
        likeness = codes[start : start + BLOCK] @ known.T
        picked = np.argpartition(-likeness, count - 1, axis=1)[:, :count]
        taken = np.maximum(np.take_along_axis(likeness, picked, axis=1), 1e-6)
        weight = taken**SHARPNESS / (taken**SHARPNESS).sum(axis=1, keepdims=True)
        estimates[start : start + BLOCK] = np.einsum("nk,nkd->nd", weight, rows[picked])
        alike[start : start + BLOCK] = taken.max(axis=1)
    return estimates, alike


def unlike_none(guesses: Floats, rows: Floats) -> Floats:
    """Return guesses with what all known descriptors have: no negative numbers, and one norm."""
    if rows.min() >= 0:
        guesses = np.maximum(guesses, 0)
    norms = np.linalg.norm(rows, axis=1)
    if np.ptp(norms) < 1e-2 * norms.mean():
        guesses = guesses * (norms.mean() / np.maximum(np.linalg.norm(guesses, axis=1, keepdims=True), 1e-9))
    estimates: Floats = guesses.astype(np.float32)
    return estimates
