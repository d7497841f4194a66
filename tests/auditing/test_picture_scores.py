# SPDX-License-Identifier: Apache-2.0
"""What an attack left behind, in figures."""

import numpy as np
import pytest

from sfumato.auditing.attack_task import decode_picture, distance_scores, encode_picture
from sfumato.errors import ImageError


def test_pictures_are_kept_to_8_bits():
    picture = np.random.default_rng(0).uniform(-0.1, 1.1, (11, 13, 3)).astype(np.float32)
    back = decode_picture(encode_picture(picture)) / 255
    assert np.abs(back - np.clip(picture, 0, 1)).max() <= 0.5 / 255 + 1e-6
    with pytest.raises(ImageError, match="damaged"):
        decode_picture(np.zeros(7, np.uint8))


def test_distances_as_shares():
    assert distance_scores(np.empty(0)) == {}
    assert distance_scores(np.array([0.01, 0.05, 0.2, 0.9])) == {
        "distance": pytest.approx(0.29), "median": pytest.approx(0.125),
        "within 0.02": 0.25, "within 0.1": 0.5, "within 0.3": 0.75,
    }  # fmt: skip
