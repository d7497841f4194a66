# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.features.faces import PLACES, SIDE, align, roll, sharpness, similarity
from sfumato.images.samples import sample_image


def moved(angle: float, scale: float, shift: tuple[float, float]) -> np.ndarray:
    turn = np.radians(angle)
    linear = scale * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return PLACES @ linear.T + np.array(shift)


@pytest.mark.parametrize(("angle", "scale"), [(0, 1), (30, 2.5), (-170, 0.4)])
def test_points_are_brought_to_their_places(angle, scale):
    points = moved(angle, scale, (200, -30))
    found = similarity(points)
    assert np.allclose(points @ found[:, :2].T + found[:, 2], PLACES, atol=1e-9)
    assert np.linalg.det(found[:, :2]) > 0
    assert np.isclose(roll(points) - roll(PLACES), angle)


def test_a_face_is_never_mirrored():
    found = similarity(PLACES * [-1, 1])
    assert np.linalg.det(found[:, :2]) > 0


def test_a_turned_picture_comes_out_upright():
    """Put an upright 112 x 112 picture somewhere into a larger one, turned; aligning gets it back."""
    photo = cv2.resize(sample_image("astronaut").pixels[:200, 120:320], (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    points = moved(25, 2.0, (150, 40))
    placed = cv2.warpAffine(photo, cv2.invertAffineTransform(similarity(points)), (500, 500), flags=cv2.INTER_CUBIC)
    back = align(placed, points)
    inner = slice(10, SIDE - 10)
    assert back.shape == (SIDE, SIDE, 3)
    assert np.abs(back[inner, inner].astype(float) - photo[inner, inner]).mean() < 6


def test_blur_lowers_the_sharpness():
    photo = np.ascontiguousarray(sample_image("astronaut").pixels[:SIDE, 150 : 150 + SIDE])
    assert sharpness(cv2.GaussianBlur(photo, (0, 0), 4)) < 0.1 * sharpness(photo)


def test_points_in_one_place_are_refused():
    with pytest.raises(InputError, match="points"):
        similarity(np.ones((5, 2)))
