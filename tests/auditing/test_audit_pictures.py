# SPDX-License-Identifier: Apache-2.0
"""Pictures of an audit: lines go where the matches are, and pictures are small."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from sfumato.auditing import pictures
from sfumato.auditing.pictures import GAP, RIGHT, SIDE, WRONG, draw_matches, small
from sfumato.auditing.subjects import ClearFeatures
from sfumato.features.local import LocalParams, extract
from sfumato.images.homography import HomographySequence


def test_right_and_wrong_lines_differ_in_colour_and_in_their_ends():
    first, second = np.full((60, 80), 90, np.uint8), np.full((40, 70, 3), 90, np.uint8)
    points0 = np.array([[10.0, 10.0], [10.0, 45.0]])
    points1 = np.array([[60.0, 10.0], [60.0, 35.0]])
    sheet = draw_matches(first, second, points0, points1, np.array([True, False]))
    assert sheet.shape == (60, 80 + GAP + 70, 3)
    near = [int(np.abs(sheet[y, x].astype(int) - colour).max()) for y, x, colour in ((10, 10, RIGHT), (45, 10, WRONG))]
    assert max(near) < 40
    ends = [(sheet[y - 4 : y + 5, 6:15] != 157).any(axis=2) for y in (10, 45)]
    assert ends[0].sum() != ends[1].sum()
    assert (sheet[50:, 80 + GAP :] == 255).all()


def test_no_match_draws_no_line():
    empty = np.empty((0, 2))
    sheet = draw_matches(np.zeros((20, 20), np.uint8), np.zeros((20, 20), np.uint8), empty, empty, np.empty(0, bool))
    assert len(np.unique(sheet)) == 2


def test_pictures_are_reduced_and_small():
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    content = small(noise)
    back = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    assert max(back.shape) == SIDE
    assert len(content) < 120_000
    assert content.startswith(b"\xff\xd8"), "browsers print JPEG as it is, and other files tenfold"


@pytest.mark.parametrize("recipe", ["raw", "sealed-512"])
def test_lines_end_where_the_released_rows_are(small_photos, monkeypatch, recipe):
    path = small_photos["coffee.png"]
    sequence = HomographySequence("coffee.png", "viewpoint", (path, path), (np.eye(3),))
    clear = ClearFeatures(lambda one: extract(one, LocalParams(max_features=20)))
    released = clear[path]
    rows = np.array([[0, len(released) - 1], [len(released) - 1, 0]])
    prediction = {"indices": rows, "errors_px": np.array([0.0, 9.0], np.float32)}
    loaded = SimpleNamespace(load_prediction=lambda sample: (prediction, None))
    monkeypatch.setattr(pictures, "Results", lambda folder, task: loaded)
    calls = []
    monkeypatch.setattr(pictures, "draw_matches", lambda *parts: calls.append(parts) or np.zeros((4, 4, 3), np.uint8))
    (pair,) = pictures.pairs_of(sequence)
    task = SimpleNamespace(params={"recipe": recipe}, seed=None)
    plan = SimpleNamespace(clear=clear, tasks=[task], samples={pair.key: None})
    (picture,) = pictures.match_pictures(plan, sequence, "unused")
    ((_, _, starts, ends, right),) = calls
    assert (picture.shows, picture.recipe, picture.photo) == ("matches", recipe, "coffee.png")
    assert len(released) == 20
    np.testing.assert_array_equal(starts, released.keypoints[rows[:, 0], :2])
    np.testing.assert_array_equal(ends, released.keypoints[rows[:, 1], :2])
    assert right.tolist() == [True, False]
