# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import ImageError
from sfumato.images.read import focal_from_exif


@pytest.fixture
def photo(write_photo):
    return lambda path, focal_35mm=None: write_photo(path, np.full((200, 300), 128, np.uint8), focal_35mm)


def test_the_focal_length_of_35_mm_film_in_pixels(photo, tmp_path):
    path = photo(tmp_path / "a.jpg", 28)
    focal = focal_from_exif(path, (300, 200))
    diagonal = np.hypot(300, 200) / np.hypot(36, 24)
    assert focal == pytest.approx(28 * diagonal, rel=0.03)


def test_it_scales_with_the_image_and_does_not_mind_its_turning(photo, tmp_path):
    path = photo(tmp_path / "a.jpg", 28)
    focal = focal_from_exif(path, (300, 200))
    assert focal_from_exif(path, (150, 100)) == pytest.approx(focal / 2)
    assert focal_from_exif(path, (200, 300)) == pytest.approx(focal)


def test_a_photo_that_tells_nothing(photo, tmp_path, capfd):
    assert focal_from_exif(photo(tmp_path / "a.jpg"), (300, 200)) is None
    assert capfd.readouterr() == ("", "")


def test_what_is_no_photo_or_not_there(tmp_path, capfd):
    (tmp_path / "a.jpg").write_text("no photo")
    for name, message in (("a.jpg", "cannot be read"), ("b.jpg", "is not there"), (".", "is not there")):
        with pytest.raises(ImageError, match=message):
            focal_from_exif(tmp_path / name, (300, 200))
    assert capfd.readouterr() == ("", "")
