# SPDX-License-Identifier: Apache-2.0
"""With a stand-in for dlib; the library itself runs in test_face.py, where it is installed."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sfumato.features.faces import EYES, MOUTH, NOSE, FaceFinder


def box(left, top, right, bottom):
    ends = {"left": left, "top": top, "right": right, "bottom": bottom}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in ends.items()})


def finder(finds, *, most=10**6, least=0.25):
    """A finder whose detector returns ``finds`` (box, score, which), and notes the sizes it was given."""
    sizes = []

    def run(pixels, upsample, threshold):
        sizes.append((pixels.shape, upsample))
        return tuple(zip(*finds, strict=True)) if finds else ((), (), ())

    def predict(pixels, where):
        spot = SimpleNamespace(x=where.left(), y=where.top())
        return SimpleNamespace(num_parts=68, part=lambda i: spot)

    dlib = SimpleNamespace(
        get_frontal_face_detector=lambda: SimpleNamespace(run=run),
        shape_predictor=lambda path: predict,
        rectangle=box,
    )
    return FaceFinder(dlib, Path("points.dat"), least_score=least, most=most), sizes


def test_the_widest_comes_first_and_doubtful_finds_are_left_out():
    found, _ = finder([(box(0, 0, 50, 50), 1.0, 0), (box(60, 0, 160, 90), 0.3, 3), (box(0, 0, 200, 200), 0.1, 0)])
    faces = found.find(np.zeros((300, 300, 3), np.uint8), 1)
    assert [face.width for face in faces] == [100, 50]
    assert [face.tilted for face in faces] == [True, False]
    assert np.array_equal(faces[0].points, np.tile([60.0, 0.0], (5, 1)))


def test_a_large_picture_is_made_smaller_and_points_are_those_of_the_whole():
    found, sizes = finder([(box(10, 20, 60, 70), 1.0, 0)], most=100 * 200)
    (face,) = found.find(np.zeros((400, 800, 3), np.uint8), 1)
    assert sizes == [((100, 200, 3), 1)]
    assert face.width == 200
    assert np.array_equal(face.points[0], [40.0, 80.0])


@pytest.mark.parametrize("shape", [(1, 1), (15, 4000), (400, 3)])
def test_a_picture_too_small_for_a_face_is_not_searched(shape):
    found, sizes = finder([(box(0, 0, 1, 1), 1.0, 0)])
    assert found.find(np.zeros((*shape, 3), np.uint8), 1) == []
    assert sizes == []


def test_the_points_used_are_eyes_nose_and_mouth():
    assert [last - first for first, last in EYES] == [6, 6]
    assert len({NOSE, *MOUTH, *range(*EYES[0]), *range(*EYES[1])}) == 15
