# SPDX-License-Identifier: Apache-2.0
import dataclasses
import re

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.types.clear import Features, Image
from sfumato.types.extractor import Extractor

SENTINEL = 8.7654321


def features(count: int = 3, n: int = 5, **more) -> Features:
    return Features(np.full((count, 4), SENTINEL), np.full((count, n), SENTINEL), **more)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_image(shape: tuple[int, ...]):
    pixels = np.zeros(shape, np.uint8)
    image = Image(pixels, "desk.jpg")
    pixels[:] = 9
    assert image.size == (6, 4)
    assert not image.pixels.any()
    assert not image.pixels.flags.writeable
    assert repr(image) == "Image('desk.jpg', 6 x 4)"


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 6)),
        np.zeros(4, np.uint8),
        np.zeros((4, 6, 4), np.uint8),
        np.zeros((0, 6), np.uint8),
        None,
    ],
)
def test_image_refuses(pixels):
    with pytest.raises(InputError, match=r"desk\.jpg"):
        Image(pixels, "desk.jpg")


def test_features_are_checked_read_only_and_detached():
    keypoints, descriptors = np.zeros((2, 4)), np.zeros((2, 5), np.float32)
    made = Features(keypoints, descriptors, Extractor("sift"), (640, 480))
    descriptors[:] = 1
    assert made.keypoints.dtype == made.descriptors.dtype == np.float32
    assert not made.descriptors.any()
    assert not made.keypoints.flags.writeable
    assert not made.descriptors.flags.writeable
    assert len(made) == 2
    assert made.image_size == (640, 480)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.descriptors = descriptors  # type: ignore[misc]


def test_no_features_are_valid():
    made = features(0)
    assert len(made) == 0
    assert made.descriptors.shape == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.zeros((2, 3)), np.zeros((2, 5))), r"keypoints: expected shape \(any, 4\), got \(2, 3\)"),
        ((np.zeros((2, 4)), np.zeros((3, 5))), r"descriptors: expected shape \(2, any\), got \(3, 5\)"),
        ((np.zeros((2, 4)), np.zeros((2, 0))), "descriptors: need at least one dimension"),
        ((np.zeros((1, 4)), np.full((1, 5), np.nan)), "descriptors: 1 of 1 rows are not finite"),
        ((np.zeros((1, 4)), np.zeros((1, 5)), "sift"), "extractor: expected an Extractor, got str"),
        ((np.zeros((1, 4)), np.zeros((1, 5)), Extractor(), (0, 1)), "image_size"),
    ],
)
def test_features_refuse(arguments: tuple, says: str):
    with pytest.raises(InputError, match=says):
        Features(*arguments)


def test_text_forms_show_counts_and_no_values():
    text = repr(features(extractor=Extractor("sift"))) + str(features()) + repr(Image(np.full((2, 2), 87, np.uint8)))
    assert not re.search(r"8\.7|87", text)
    assert repr(features(extractor=Extractor("sift"))) == "Features(3 x 5 sift, clear)"
