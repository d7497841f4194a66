# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError
from sfumato.images.homography import HomographyParams, draw_homography, warp_points
from sfumato.training.views import Tolerance, jacobians, same_keypoints, warp_keypoints

SIZE = (200, 150)


def some_keypoints(rng, count=40):
    return np.column_stack(
        [rng.uniform(20, 180, count), rng.uniform(20, 130, count), rng.uniform(1, 8, count), rng.uniform(0, 360, count)]
    )


@given(st.integers(0, 10_000))
def test_the_warp_is_that_of_a_small_step(seed):
    rng = np.random.default_rng(seed)
    homography = draw_homography(SIZE, rng, HomographyParams())
    keypoints = some_keypoints(rng, 10)
    warped = warp_keypoints(homography, keypoints)
    turned = np.deg2rad(keypoints[:, 3])
    ahead = keypoints[:, :2] + 1e-4 * np.stack([np.cos(turned), np.sin(turned)], axis=1)
    moved = warp_points(homography, ahead) - warp_points(homography, keypoints[:, :2])
    angle = np.rad2deg(np.arctan2(moved[:, 1], moved[:, 0]))
    assert np.abs((warped[:, 3] - angle + 180) % 360 - 180).max() < 1e-2
    area = np.linalg.det(jacobians(homography, keypoints[:, :2]))
    np.testing.assert_allclose(warped[:, 2] ** 2, keypoints[:, 2] ** 2 * area, rtol=1e-9)


def test_beyond_the_horizon_is_nothing():
    tilted = np.array([[1, 0, 0], [0, 1, 0], [-0.01, 0, 1.0]])  # w = 1 - x / 100
    warped = warp_keypoints(tilted, [[50, 5, 2, 0], [100, 5, 2, 0], [150, 5, 2, 0]])
    assert np.isfinite(warped[0]).all()
    assert np.isnan(warped[1:]).all()


def test_the_same_keypoints_are_found_and_others_are_not():
    rng = np.random.default_rng(1)
    first, homography = some_keypoints(rng), draw_homography(SIZE, rng, HomographyParams())
    second = warp_keypoints(homography, first)
    shuffle = rng.permutation(len(first))
    found = same_keypoints(first, second[shuffle], homography)
    np.testing.assert_array_equal(shuffle[found[:, 1]], found[:, 0])
    assert len(found) == len(first)
    for column, change in ((0, 4.0), (2, 10.0), (3, 30.0)):
        other = second.copy()
        other[:, column] += change
        exact = Tolerance(position_px=1, scale=1.2, rotation=10)
        wrong = same_keypoints(first, other, homography, exact)
        assert not (wrong[:, 0] == wrong[:, 1]).any(), column


def test_of_two_directions_at_one_place_each_finds_its_own():
    first = np.array([[30, 30, 3, 10], [30, 30, 3, 100]], float)
    second = first[::-1] + np.array([1.0, 0, 0.1, 2])
    assert same_keypoints(first, second, np.eye(3)).tolist() == [[0, 1], [1, 0]]


def test_each_row_is_used_once():
    first = np.array([[30, 30, 3, 10], [30.5, 30, 3, 10]], float)
    assert same_keypoints(first, first[:1], np.eye(3)).tolist() == [[0, 0]]


def test_nothing_is_a_case():
    none = np.zeros((0, 4))
    assert same_keypoints(none, none, np.eye(3)).shape == (0, 2)
    assert same_keypoints(none, [[1, 1, 1, 0]], np.eye(3)).shape == (0, 2)
    assert warp_keypoints(np.eye(3), none).shape == (0, 4)


def test_settings_are_checked():
    with pytest.raises(InputError, match="position_px"):
        Tolerance(position_px=0)
    with pytest.raises(InputError, match="'rotation'"):
        Tolerance(rotatoin=3)
