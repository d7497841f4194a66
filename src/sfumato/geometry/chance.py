# SPDX-License-Identifier: Apache-2.0
"""How easily an epipolar geometry comes about by chance: whether wrong matches alone would fit one as well.

Concealed features have many wrong matches, and among many draws one geometry always fits some of them. Knows points
and rows only.
"""

from math import lgamma, log, log10

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHUFFLES = 20
SOLUTIONS = {5: 10, 7: 3}
"""Geometries that a sample of so many matches has, at most."""


def log_false_alarms(
    geometry: Floats, sides: tuple[Floats, Floats], max_error: float, inliers: int, *, sample: int, trials: int
) -> float:
    """Return the logarithm to base 10 of how many geometries would fit so many of these matches by chance.

    ``geometry`` (3, 3) takes a point of image 0 to its line in image 1; ``sides`` two times (N, 3), matched points in
    homogeneous coordinates; ``sample`` the matches that determine a geometry: 7, or 5 if the cameras are known;
    ``trials`` the samples drawn.

    After Moisan and Stival (2004): the number of geometries drawn, times the number of sets of inliers there can be
    beyond the sample, times the probability that all of one fit by chance. That probability is measured, as the share
    of matches that fit after their partners were exchanged at random, so it knows where keypoints crowd.
    """
    others, fitting = len(sides[0]) - sample, inliers - sample
    if others < 1 or fitting < 1:
        return float("inf")
    sets = (lgamma(others + 1) - lgamma(fitting + 1) - lgamma(others - fitting + 1)) / log(10)
    return log10(trials * SOLUTIONS[sample]) + sets + fitting * log10(chance_of_fit(geometry, sides, max_error))


def chance_of_fit(geometry: Floats, sides: tuple[Floats, Floats], max_error: float) -> float:
    """Return which share of matches with random partners is within ``max_error`` of a geometry; never quite 0."""
    rng = np.random.default_rng(0)
    fitting = total = 0
    for _ in range(SHUFFLES):
        partners = sides[1][rng.permutation(len(sides[1]))]
        fitting += int((squared_sampson_errors(geometry, sides[0], partners) <= max_error**2).sum())
        total += len(partners)
    return (fitting + 1) / (total + 1)


def squared_sampson_errors(geometry: Floats, points0: Floats, points1: Floats) -> Floats:
    """Return the squared distance, to first order, of matches (N, 3) from the nearest that fit a geometry."""
    lines1, lines0 = points0 @ geometry.T, points1 @ geometry
    misses = np.einsum("ni,ni->n", points1, lines1) ** 2
    slopes = (lines1[:, :2] ** 2).sum(axis=1) + (lines0[:, :2] ** 2).sum(axis=1)
    errors: Floats = misses / np.maximum(slopes, np.finfo(np.float64).tiny)
    return errors
