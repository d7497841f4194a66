# SPDX-License-Identifier: Apache-2.0
"""Points of three photos: what stands still agrees with one geometry, what moves between the photos does not."""

import numpy as np
import pytest

from sfumato.geometry.verify import agreeing_in_three, has_parallax

CENTRES = ((0, 0, 0), (0.6, 0.1, 0), (1.0, -0.1, 0.2))


def seen_from(points: np.ndarray, centre: tuple[float, ...], turn: float) -> np.ndarray:
    """Pixels (N, 2) of points for a camera at a place, turned about its upright axis."""
    rotation = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
    moved = (points - centre) @ rotation.T
    return 1200 * moved[:, :2] / moved[:, 2:] + [800, 600]


def three_views(rng: np.random.Generator, steps: tuple[float, float, float]) -> tuple[np.ndarray, ...]:
    """800 points that stand still, then 200 that step sideways before each photo; a pixel of noise."""
    still = rng.uniform([-3, -2, 4], [3, 2, 9], (800, 3))
    people = rng.uniform([-1, -1, 4], [1, 1, 5], (200, 3))
    views = []
    for number, (centre, step) in enumerate(zip(CENTRES, steps, strict=True)):
        points = np.concatenate([still, people + np.array([step, 0, 0])])
        views.append(seen_from(points, centre, -0.05 * number) + rng.normal(0, 1, (1000, 2)))
    return tuple(views)


@pytest.mark.parametrize("steps", [(0, 0.5, -0.3), (0, -0.4, 0.4), (0, 1.0, 0.2)])
def test_what_stands_still_stays_and_what_walks_goes(steps: tuple[float, float, float]):
    agreeing = agreeing_in_three(three_views(np.random.default_rng(3), steps))
    assert agreeing[:800].mean() > 0.95
    assert agreeing[800:].mean() < 0.1


def test_all_that_stands_still_agrees():
    assert agreeing_in_three(three_views(np.random.default_rng(4), (0, 0, 0))).mean() > 0.95


def test_matches_without_a_scene_agree_on_nothing():
    rng = np.random.default_rng(5)
    places = tuple(rng.uniform(0, 1500, (300, 2)) for _ in range(3))
    assert not agreeing_in_three(places).any()
    assert not agreeing_in_three(tuple(side[:5] for side in places)).any()
    spot = np.zeros((40, 2)) + 7.0
    assert not agreeing_in_three((spot, spot, spot)).any()


def test_a_camera_that_only_turns_shows_no_parallax_and_one_that_moves_does():
    rng, size = np.random.default_rng(6), (1600, 1200)
    points = rng.uniform([-3, -2, 4], [3, 2, 9], (500, 3))
    first = seen_from(points, (0, 0, 0), 0)
    assert not has_parallax(first, first + rng.normal(0, 0.5, first.shape), size, size)
    assert not has_parallax(first, seen_from(points, (0, 0, 0), 0.15), size, size)
    assert has_parallax(first, seen_from(points, (0.5, 0, 0), 0.05), size, size)
    assert not has_parallax(first[:5], first[:5], size, size)
