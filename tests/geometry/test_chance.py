# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.geometry.verify import _chance_of_fit, _log_false_alarms, _squared_sampson_errors

SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
"""A camera moved to the right: matches are in the same row."""


def in_rows(count, crowd=None, seed=0):
    """Matches of which all fit: image 1 is moved sideways; with a crowd, all of them lie in so narrow a band."""
    rng = np.random.default_rng(seed)
    x0, x1, y = rng.random((3, count)) if crowd is None else rng.random((3, count)) * [[1], [1], [crowd]]
    ones = np.ones(count)
    return np.stack([x0, y, ones], axis=1), np.stack([x1, y, ones], axis=1)


def test_errors_are_distances_from_what_fits():
    points0 = np.array([[0.0, 0, 1], [0, 3, 1]])
    points1 = np.array([[5.0, 0, 1], [7, 4, 1]])
    assert _squared_sampson_errors(SIDEWAYS, points0, points1) == pytest.approx([0, 0.5])  # half a step on each side


def test_the_chance_is_the_share_of_the_picture_near_a_line():
    error = 0.005
    expected = 2 * np.sqrt(2) * error  # rows that differ by up to sqrt(2) times the error
    assert _chance_of_fit(SIDEWAYS, in_rows(2000), error) == pytest.approx(expected, rel=0.1)


def test_a_crowd_fits_by_chance():
    assert _chance_of_fit(SIDEWAYS, in_rows(300, crowd=0.005), 0.005) > 0.99
    free, crowded = (
        _log_false_alarms(SIDEWAYS, in_rows(60, crowd), 0.005, 40, sample=5, trials=10_000) for crowd in (None, 0.005)
    )
    assert free < -20
    assert crowded > 0


def test_more_inliers_are_less_of_an_accident():
    sides = in_rows(200)
    found = [_log_false_alarms(SIDEWAYS, sides, 0.005, k, sample=7, trials=10_000) for k in (20, 30, 50, 150, 200)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0 > found[2]


def test_the_sample_itself_proves_nothing():
    assert _log_false_alarms(SIDEWAYS, in_rows(7), 0.005, 7, sample=7, trials=10) == np.inf
    assert _log_false_alarms(SIDEWAYS, in_rows(100), 0.005, 5, sample=5, trials=10) == np.inf


def test_the_best_of_many_draws_is_recognised_as_chance():
    """Random matches: the best of many random geometries has inliers, and they are not believed."""
    rng = np.random.default_rng(1)
    sides = tuple(np.column_stack([rng.random((150, 2)), np.ones(150)]) for _ in range(2))
    best, inliers = SIDEWAYS, 0
    for _ in range(2000):
        drawn = rng.standard_normal((3, 3))
        fitting = int((_squared_sampson_errors(drawn, *sides) <= 0.01**2).sum())
        if fitting > inliers:
            best, inliers = drawn, fitting
    assert inliers > 7
    assert _log_false_alarms(best, sides, 0.01, inliers, sample=7, trials=2000) > 0
