# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.features.harris import find_corners
from sfumato.images.samples import sample_image


def spot(x, y, sigma=1.2, size=(120, 100)):
    """A Gaussian spot whose centre is known to a fraction of a pixel; the first pixel's centre is (0, 0)."""
    across, down = np.meshgrid(np.arange(size[0]) - x, np.arange(size[1]) - y)
    return np.rint(30 + 200 * np.exp(-(across**2 + down**2) / (2 * sigma**2))).astype(np.uint8)


def square(left=30.3, top=20.7, side=50.0, size=(120, 100)):
    """A bright square with soft edges at known places."""
    across, down = np.meshgrid(np.arange(size[0]), np.arange(size[1]))

    def inside(place, start):
        return 0.25 * (1 + np.tanh(place - start)) * (1 + np.tanh(start + side - place))

    return np.rint(40 + 160 * inside(across, left) * inside(down, top)).astype(np.uint8)


def nearest(table, x, y):
    return table[np.linalg.norm(table[:, :2] - [x, y], axis=1).argmin()]


@pytest.mark.parametrize(("x", "y"), [(60, 50), (60.3, 49.8), (55.5, 50.25), (20.1, 80.9)])
def test_a_spot_is_found_where_it_is(x, y):
    found = find_corners(spot(x, y), 1.6, 0.5)
    assert len(found) == 1
    assert np.abs(found[0, :2] - [x, y]).max() < 0.05


def test_the_corners_of_a_square_lie_inside_it_by_most_of_sigma():
    """A Harris corner is where gradients of two directions meet in one window: not the tip, but the same everywhere."""
    found = find_corners(square(), 1.6, 0.1)
    for level in (0, 1, 2):
        corners = found[found[:, 5] == level]
        assert len(corners) == 4
        for x, y, inward_x, inward_y in (
            (30.3, 20.7, 1, 1),
            (80.3, 20.7, -1, 1),
            (30.3, 70.7, 1, -1),
            (80.3, 70.7, -1, -1),
        ):
            inside = (nearest(corners, x, y)[:2] - [x, y]) * [inward_x, inward_y] / (1.6 * 2**level)
            assert (inside > 0.75).all()
            assert (inside < 1.05).all()


def test_sigma_doubles_with_every_level():
    found = find_corners(square(), 1.6, 0.0)
    assert set(found[:, 5]) >= {0, 1, 2}
    for level in np.unique(found[:, 5]):
        assert set(found[found[:, 5] == level][:, 2]) == {np.float32(1.6 * 2**level)}


def test_the_angle_is_that_of_the_gradients():
    """A bright corner of a dark field: gradients point into it, to the right and down alike."""
    grey = np.full((100, 100), 40, np.uint8)
    grey[50:, 50:] = 200
    for turns, expected in ((0, 45), (1, 315), (2, 225), (3, 135)):  # np.rot90 turns the other way
        corner = np.ascontiguousarray(np.rot90(cv2.GaussianBlur(grey, (0, 0), 1), turns))
        found = find_corners(corner, 1.6, 0.1)
        angle = found[found[:, 4].argmax(), 3]
        off = (angle - expected + 180) % 360 - 180
        assert abs(off) < 50, "one of the two sides of the corner, or between them"
        assert 0 <= angle < 360
    one_edge = np.tile(np.linspace(0, 200, 100), (100, 1))
    one_edge[40:60, 40:60] += 25
    found = find_corners(one_edge.astype(np.uint8), 1.6, 0.1)
    inner = found[(np.abs(found[:, :2] - 50) < 15).all(axis=1) & (found[:, 5] == 0)]
    assert len(inner) >= 4


def test_angles_turn_with_the_picture():
    grey = cv2.GaussianBlur(np.random.default_rng(0).integers(0, 255, (121, 121), dtype=np.uint8), (0, 0), 3)
    before = find_corners(grey, 1.6, 0.05)
    before = before[before[:, 5] == 0]
    after = find_corners(np.ascontiguousarray(np.rot90(grey, -1)), 1.6, 0.05)
    after = after[after[:, 5] == 0]
    assert len(before) > 10
    assert len(before) == len(after)
    for x, y, _, angle, *_ in before:
        match = nearest(after, 120 - y, x)
        assert np.abs(match[:2] - [120 - y, x]).max() < 0.01
        assert abs((match[3] - angle - 90 + 180) % 360 - 180) < 1


def test_quality_is_a_share_of_the_strongest():
    grey = sample_image("coins").pixels
    everything = find_corners(grey, 1.6, 0.0)
    some = find_corners(grey, 1.6, 0.1)
    assert 0 < len(some) < len(everything)
    assert some[:, 4].min() >= 0.1 * everything[:, 4].max()
    assert (everything[:, 4] > 0).all()


@pytest.mark.parametrize("shape", [(1, 1), (5, 300), (15, 15), (16, 16), (40, 40)])
def test_flat_and_tiny_pictures_have_none(shape):
    assert find_corners(np.full(shape, 128, np.uint8), 1.6, 0.0).shape == (0, 6)


def test_edges_and_borders_are_no_corners():
    grey = np.full((100, 100), 40, np.uint8)
    grey[:, 50:] = 200
    assert len(find_corners(grey, 1.6, 0.01)) == 0


def test_contrast_changes_nothing_but_the_response():
    first, second = find_corners(square(), 1.6, 0.2), find_corners(square() // 2, 1.6, 0.2)
    assert len(first) == len(second)
    assert np.abs(first[:, :2] - second[:, :2]).max() < 0.1
    assert second[:, 4].max() == pytest.approx(first[:, 4].max() / 16, rel=0.1)
