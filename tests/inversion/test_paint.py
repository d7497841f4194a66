# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.features.local import extract
from sfumato.images.read import to_grey
from sfumato.images.samples import sample_image
from sfumato.inversion.metrics import picture_scores
from sfumato.inversion.paint import CHANNELS, USUAL_BRIGHTNESS, PaintParams, paint
from sfumato.training.photos import cut_patches


@pytest.fixture(scope="module")
def photo():
    image = sample_image("coffee")
    grey = to_grey(image).astype(np.float32) / np.float32(255)
    features = extract(image, max_features=1000)
    return grey, features.keypoints, np.nan_to_num(cut_patches(grey, features.keypoints), nan=0.5)


def test_true_patches_give_the_picture_back(photo):
    grey, keypoints, patches = photo
    painted = paint(keypoints, patches, grey.shape[::-1])
    assert painted.channels.shape == (CHANNELS, *grey.shape)
    assert np.isfinite(painted.channels).all()
    np.testing.assert_array_equal(painted.channels[0], painted.picture)
    covered = picture_scores(np.clip(painted.picture, 0, 1), grey)["ssim"]
    even = picture_scores(np.full_like(grey, USUAL_BRIGHTNESS), grey)["ssim"]
    turned = keypoints + np.array([0, 0, 0, 90], np.float32)  # the control: patches at the wrong angle
    wrong = picture_scores(np.clip(paint(turned, patches, grey.shape[::-1]).picture, 0, 1), grey)["ssim"]
    assert covered > even + 0.1
    assert wrong < covered - 0.1


def test_brightness_within_a_patch_does_not_count(photo):
    grey, keypoints, patches = photo
    shifted = patches + np.linspace(-1, 1, len(patches), dtype=np.float32)[:, None, None]
    size = grey.shape[::-1]
    np.testing.assert_allclose(
        paint(keypoints, shifted, size).picture, paint(keypoints, patches, size).picture, atol=0.01
    )


def test_finer_patches_count_more():
    keypoints = np.array([[20, 20, 1, 0], [20, 20, 3, 0]], np.float32)
    slope = np.tile(np.arange(24, dtype=np.float32), (24, 1))
    patches = np.stack([slope, -slope])  # the finer one says brighter to the right
    for fineness, sign in ((6.0, 1), (0.0, 1), (-6.0, -1)):
        painted = paint(keypoints, patches, (40, 40), PaintParams(fineness=fineness))
        assert np.sign(painted.channels[1, 20, 20]) == sign


def test_nothing_gives_even_grey():
    painted = paint(np.empty((0, 4), np.float32), np.empty((0, 24, 24), np.float32), (30, 20))
    np.testing.assert_allclose(painted.picture, USUAL_BRIGHTNESS, atol=1e-6)
    assert (painted.channels[1:] == 0).all()
    assert "30 x 20" in repr(painted)
