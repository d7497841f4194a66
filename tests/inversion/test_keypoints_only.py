# SPDX-License-Identifier: Apache-2.0
"""Inverters of keypoints alone: no descriptor has a part in what they paint."""

import numpy as np
import pytest

import sfumato
from sfumato.images.samples import sample_image
from sfumato.inversion.load import empty_rows, inputs_of, load_keypoint_inverter, without_descriptors
from sfumato.inversion.metrics import picture_scores
from sfumato.inversion.patches import invert_rows, load_inverter


@pytest.fixture(scope="module")
def coffee():
    return sample_image("coffee"), sfumato.extract(sample_image("coffee"), max_features=500)


def test_the_bundled_one_sees_more_than_a_mean_descriptor_shows(coffee):
    image, features = coffee
    blind = load_keypoint_inverter()
    assert blind.is_blind
    assert "keypoints of sift" in repr(blind)
    seen = invert_rows(blind, features.keypoints, inputs_of(blind, features), image.size)
    assert picture_scores(seen, image.pixels)["ssim"] > 0.3
    assert seen.std() > 0.02


def test_descriptors_do_not_matter(coffee):
    _, features = coffee
    other = sfumato.Features(features.keypoints, features.descriptors[::-1], features.extractor, features.image_size)
    hidden = without_descriptors(features)
    np.testing.assert_array_equal(hidden.code.origin, without_descriptors(other).code.origin)
    assert hidden.code.origin.shape == (len(features), 1)
    assert not empty_rows(3).any()
    assert not load_inverter().is_blind
