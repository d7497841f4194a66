# SPDX-License-Identifier: Apache-2.0
"""Photos to learn from, and windows of them."""

from pathlib import Path

import numpy as np
import pytest

from sfumato.concealment.lifting import conceal
from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_image
from sfumato.inversion.canonical import frame_of
from sfumato.inversion.images import LONGEST
from sfumato.training.photos import cut, fitted, random_windows, read_photos
from sfumato.types.clear import Image

LOCAL = LocalParams(max_features=200)


@pytest.fixture(scope="module")
def photos():
    return read_photos([sample_image("coffee"), sample_image("chelsea")], LOCAL, 64)


def test_sizes_are_brought_to_what_a_network_works_on():
    assert fitted(np.zeros((1000, 500, 3), np.uint8), 64).shape == (LONGEST, LONGEST // 2, 3)
    assert fitted(np.zeros((40, 80), np.uint8), 64).shape == (64, 128, 3)
    small = np.zeros((100, 200, 3), np.uint8)
    assert fitted(small, 64) is small


def test_what_can_not_be_used_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "junk.jpg").write_text("junk")
    flat = Image(np.zeros((80, 80), np.uint8), "flat.png")
    with pytest.raises(InputError, match="1 of 3 photos"):
        read_photos([tmp_path / "junk.jpg", flat, sample_image("coffee")], LOCAL, 64)
    assert "junk.jpg" in caplog.text
    assert "flat.png" in caplog.text


def test_a_window_holds_its_pixels_and_its_features(photos):
    photo, side, corner = photos[0], 64, (100, 50)
    window = cut(photo, corner, side, None, np.eye(128))
    assert np.array_equal(window.truth, photo.pixels[50:114, 100:164])
    places = np.rint(photo.features.keypoints[:, :2]) - corner
    inside = ((places >= 0) & (places < side)).all(axis=1)
    assert 0 < len(window.inputs) == len(np.unique(places[inside], axis=0))
    assert np.array_equal(window.inputs, photo.features.descriptors[window.placed.rows])


def test_a_concealed_window_shows_what_is_released(photos):
    frame = frame_of(photos[0].features.descriptors)
    seen = []

    def concealer(features):
        seen.append(len(features))
        return conceal(features, "random-2")

    window = cut(photos[0], (100, 50), 64, concealer, frame)
    assert window.inputs.shape == (len(window.placed), 3 * 128)
    assert 0 < len(window.placed) < seen[0] == len(photos[0].features)
    again = cut(photos[0], (100, 50), 64, concealer, frame)
    assert not np.array_equal(window.inputs, again.inputs)  # drawn anew


def test_windows_are_drawn_from_the_generator(photos):
    def draw(seed: int):
        return random_windows(photos, 64, 3, np.random.default_rng(seed), None, np.eye(128))

    assert all(np.array_equal(a.truth, b.truth) for a, b in zip(draw(1), draw(1), strict=True))
    assert not all(np.array_equal(a.truth, b.truth) for a, b in zip(draw(1), draw(2), strict=True))
    assert "features" in repr(draw(1)[0])


def test_a_smaller_scale_keeps_the_features_of_the_photo():
    (full, _), (small, _) = (
        read_photos([sample_image("coffee"), sample_image("chelsea")], LOCAL, side, scale=scale)
        for side, scale in ((128, 1.0), (64, 0.5))
    )
    assert np.array_equal(full.features.keypoints, small.features.keypoints)
    assert small.pixels.shape[0] == round(full.pixels.shape[0] / 2)
    large = cut(full, (40, 20), 128, None, np.eye(128), every=True)
    window = cut(small, (20, 10), 64, None, np.eye(128), every=True)
    assert len(set(large.placed.rows) & set(window.placed.rows)) > 0.9 * len(large.placed) > 20
    rows = np.flatnonzero(np.isin(window.placed.rows, large.placed.rows))
    x = window.placed.pixels[rows] % 64 + window.placed.offsets[rows, 0] + 20
    assert np.allclose(x, (full.features.keypoints[window.placed.rows[rows], 0] + 0.5) / 2 - 0.5, atol=1e-3)


def test_a_mirror_turns_positions_and_pixels_alike(photos):
    plain, mirrored = (
        cut(photos[0], (100, 50), 64, None, np.eye(128), every=True, mirror=one) for one in (False, True)
    )
    assert np.array_equal(plain.truth[:, ::-1], mirrored.truth)
    assert np.array_equal(plain.placed.rows, mirrored.placed.rows)
    assert np.array_equal(63 - plain.placed.pixels % 64, mirrored.placed.pixels % 64)
