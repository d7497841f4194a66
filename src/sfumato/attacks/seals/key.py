# SPDX-License-Identifier: Apache-2.0
"""Key recovery: the key of a seal, computed from descriptors that are known together with their codes.

Whether bit i of two near descriptors agrees depends on a_i (x - y) alone: the phase cancels. So the differences over
which a bit flips lie along a_i, as in phase retrieval by a spectral start (Candès, Li and Soltanolkotabi, "Phase
retrieval via Wirtinger flow", 2015, section 2). From there a_i is climbed to on pairs, then the phase is scanned for,
and both are fitted to all known codes. With the key every other code is searched for its descriptor: from likely ones
downhill, towards one that has these bits.

Knows rows and codes of one seal; no recipe. A thousand or two of known pairs are enough, one photo's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.seals.known_pairs import linear_map, unlike_none
from sfumato.types.arrays import frozen_array

Floats = NDArray[np.float32]

NEIGHBOURS, NEAREST, FARTHEST = 40, 0.02, 3.3
"""Pairs of known rows that tell: this many nearest of each, not the same, and no farther than this many bandwidths."""
MOST_PAIRS = 40_000
PAIR_STEPS, ROW_STEPS, BATCH = 600, 1500, 2048
PAIR_RATE, ROW_RATE = 0.15, 0.1
PRIOR, SHARPNESS, PHASES = 1e-4, 4.0, 32
STARTS, SEARCH_STEPS, SEARCH_RATE, PULL = 6, 120, 0.03, 0.02
SURE = 0.88
"""With fewer bits right than this a descriptor was not found, and the smooth guess is the better one."""
RIDGE = 0.03
BLOCK = 2048


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Waves:
    """What a key was found to be: ``directions`` (B, n) and ``phases`` (B,) of bits that are signs of cosines."""

    directions: Floats
    phases: Floats

    def codes(self, rows: Floats) -> Floats:
        """Return the bits (N, B) of rows, as plus or minus 1."""
        return np.where(np.cos(rows @ self.directions.T + self.phases) < 0, -1, 1).astype(np.float32)

    def __repr__(self) -> str:
        return f"Waves({len(self.phases)} bits of {self.directions.shape[1]} numbers)"


class Adam:
    """Steps down a slope (Kingma and Ba 2015, algorithm 1), of one array."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._first, self._second, self._count = np.zeros(shape, np.float32), np.zeros(shape, np.float32), 0

    def step(self, slope: Floats, rate: float) -> Floats:
        """Return what is to be taken off."""
        self._count += 1
        self._first += 0.1 * (slope - self._first)
        self._second += 0.001 * (slope * slope - self._second)
        first, second = self._first / (1 - 0.9**self._count), self._second / (1 - 0.999**self._count)
        taken: Floats = np.float32(rate) * first / (np.sqrt(second) + np.float32(1e-8))
        return taken


def recover_key(rows: Floats, codes: Floats, bandwidth: float, *, seed: int = 0) -> Waves:
    """Return the waves whose signs the codes (N, B) of known rows (N, n) are, as far as they tell.

    Raises InputError for arrays that do not belong together.
    """
    rows = frozen_array(rows, "known rows", (None, None))
    signs = np.sign(frozen_array(codes, "known codes", (len(rows), None))).astype(np.float32)
    rng = np.random.default_rng(seed)
    differences, agree = _near_pairs(rows, signs, bandwidth, rng)
    directions = _spectral(differences, agree, bandwidth)
    steps = Adam(directions.shape)
    for number in range(PAIR_STEPS):
        batch = rng.integers(len(differences), size=BATCH)
        slope = _pair_slope(directions, differences[batch], agree[batch]) + PRIOR * bandwidth**2 * directions
        directions -= steps.step(slope, PAIR_RATE * (1 - number / PAIR_STEPS) + 0.005)
    return _fitted(rows, signs, directions, rng)


def read_with_key(codes: Floats, waves: Waves, public: Floats) -> Floats:
    """Return the descriptors (N, n) behind codes (N, B), as likely as public ones (V, n) and with these bits."""
    likely = waves.codes(public)
    smooth, mean = linear_map(likely, public, RIDGE), public.mean(axis=0)
    spread, axes = np.linalg.eigh(np.cov(public.T))
    pull = ((axes / (spread + 1e-5)) @ axes.T).astype(np.float32)  # (n, n): how unlikely a direction is
    results = []
    for start in range(0, len(codes), BLOCK):
        signs = np.sign(codes[start : start + BLOCK]).astype(np.float32)
        nearest = np.argpartition(-(signs @ likely.T), STARTS, axis=1)[:, : STARTS - 1]
        guessed, least = smooth(signs), np.full(len(signs), np.inf)
        best = guessed.copy()
        for begun in (guessed, *(public[nearest[:, number]] for number in range(STARTS - 1))):
            rows, loss = _downhill(begun, signs, waves, mean, pull)
            better = loss < least
            best[better], least[better] = rows[better], loss[better]
        results.append(np.where(((waves.codes(best) == signs).mean(axis=1) >= SURE)[:, None], best, guessed))
    return unlike_none(np.concatenate(results) if results else np.empty((0, public.shape[1]), np.float32), public)


def _near_pairs(rows: Floats, signs: Floats, bandwidth: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return differences (P, n) of near rows, and whether their bits agree (P, B): 1, or -1."""
    from scipy.spatial import cKDTree

    near, other = cKDTree(rows).query(rows, k=min(NEIGHBOURS + 1, len(rows)))
    first = np.repeat(np.arange(len(rows))[:, None], near.shape[1], axis=1)
    tells = (near > NEAREST) & (near < FARTHEST * bandwidth) & (first < other)
    one, two = first[tells], other[tells]
    if len(one) > MOST_PAIRS:
        sample = rng.permutation(len(one))[:MOST_PAIRS]
        one, two = one[sample], two[sample]
    return rows[one] - rows[two], signs[one] * signs[two]


def _spectral(differences: Floats, agree: Floats, bandwidth: float) -> Floats:
    """Return the directions along which differences flip each bit, all of the length that keys have at random."""
    spread, axes = np.linalg.eigh(differences.T @ differences / len(differences))
    whiten = (axes / np.sqrt(spread + 0.1 * spread.mean())).astype(np.float32)
    white = differences @ whiten
    white /= np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)
    results = np.empty((agree.shape[1], differences.shape[1]), np.float32)
    for bit, flips in enumerate((agree - agree.mean(axis=0)).T):
        results[bit] = whiten @ np.linalg.eigh((white * flips[:, None]).T @ white)[1][:, 0]
    results /= np.linalg.norm(results, axis=1, keepdims=True)
    return results * np.float32(0.7 * np.sqrt(results.shape[1]) / bandwidth)


def _pair_slope(directions: Floats, differences: Floats, agree: Floats) -> Floats:
    """Return the slope of the squared error of the agreement that directions foretell: its first two harmonics."""
    turned = differences @ directions.T
    scale = np.float32(8 / np.pi**2)
    foretold = scale * (np.cos(turned) + np.cos(3 * turned) / 9)
    slope: Floats = ((agree - foretold) * scale * (np.sin(turned) + np.sin(3 * turned) / 3)).T @ differences
    return slope / np.float32(len(differences))


def _fitted(rows: Floats, signs: Floats, directions: Floats, rng: np.random.Generator) -> Waves:
    """Return directions and phases fitted to all known codes by logistic regression, from the best phase of a scan."""
    turned = rows @ directions.T
    scan = np.linspace(0, 2 * np.pi, PHASES, endpoint=False, dtype=np.float32)
    best = np.argmax([(signs * np.cos(turned + phase)).mean(axis=0) for phase in scan], axis=0)
    phases: Floats = scan[best].astype(np.float32)
    steps, turns = Adam(directions.shape), Adam(phases.shape)
    for number in range(ROW_STEPS):
        batch = rng.integers(len(rows), size=min(BATCH, len(rows)))
        slope = _bit_slope(rows[batch] @ directions.T + phases, signs[batch]) / np.float32(len(batch))
        rate = ROW_RATE * (1 - number / ROW_STEPS) + 0.002
        directions -= steps.step((slope.T @ rows[batch]).astype(np.float32), rate)
        phases -= turns.step(slope.sum(axis=0, dtype=np.float32), rate)
    return Waves(directions, phases)


def _bit_slope(turned: Floats, signs: Floats) -> Floats:
    """Return the slope of log(1 + exp(-s b cos t)) in t, for bits b and angles t (N, B)."""
    wrong = 1 / (1 + np.exp(SHARPNESS * signs * np.cos(turned)))
    slope: Floats = (SHARPNESS * signs * np.sin(turned) * wrong).astype(np.float32)
    return slope


def _downhill(begun: Floats, signs: Floats, waves: Waves, mean: Floats, pull: Floats) -> tuple[Floats, Floats]:
    """Return rows that have the bits, as far as they are found from here and are likely; and what is left to wish."""
    rows, steps = np.maximum(begun, 0).astype(np.float32), Adam(begun.shape)
    for number in range(SEARCH_STEPS):
        done = number / SEARCH_STEPS
        likely = np.float32(PULL + 0.3 * max(0.0, 1 - 2 * done))
        slope = _bit_slope(rows @ waves.directions.T + waves.phases, signs) @ waves.directions
        slope += 2 * likely * ((rows - mean) @ pull)
        rows = np.maximum(rows - steps.step(slope, SEARCH_RATE * (1 - done) + 0.001), 0)
    unlike = np.log1p(np.exp(-SHARPNESS * signs * np.cos(rows @ waves.directions.T + waves.phases))).sum(axis=1)
    return rows, unlike + PULL * (((rows - mean) @ pull) * (rows - mean)).sum(axis=1)
