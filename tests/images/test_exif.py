# SPDX-License-Identifier: Apache-2.0
import struct

import cv2
import numpy as np
import pytest

from sfumato.errors import ImageError
from sfumato.images.read import focal_from_exif


def photo(path, focal_35mm=None, size=(300, 200)):
    """A JPEG, with the focal length for 35 mm film in its EXIF if one is given."""
    done, data = cv2.imencode(".jpg", np.full((size[1], size[0]), 128, np.uint8))
    assert done
    content = data.tobytes()
    if focal_35mm is not None:
        # A TIFF header, a first directory that points to the Exif directory, and there FocalLengthIn35mmFilm.
        tiff = b"II*\0" + struct.pack("<I", 8)
        tiff += struct.pack("<HHHIII", 1, 0x8769, 4, 1, 26, 0)
        tiff += struct.pack("<HHHIHHI", 1, 0xA405, 3, 1, focal_35mm, 0, 0)
        segment = b"Exif\0\0" + tiff
        content = content[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + content[2:]
    path.write_bytes(content)
    return path


def test_the_focal_length_of_35_mm_film_in_pixels(tmp_path):
    path = photo(tmp_path / "a.jpg", 28)
    focal = focal_from_exif(path, (300, 200))
    diagonal = np.hypot(300, 200) / np.hypot(36, 24)
    assert focal == pytest.approx(28 * diagonal, rel=0.03)


def test_it_scales_with_the_image_and_does_not_mind_its_turning(tmp_path):
    path = photo(tmp_path / "a.jpg", 28)
    focal = focal_from_exif(path, (300, 200))
    assert focal_from_exif(path, (150, 100)) == pytest.approx(focal / 2)
    assert focal_from_exif(path, (200, 300)) == pytest.approx(focal)


def test_a_photo_that_tells_nothing(tmp_path, capfd):
    assert focal_from_exif(photo(tmp_path / "a.jpg"), (300, 200)) is None
    assert capfd.readouterr() == ("", "")


def test_what_is_no_photo_or_not_there(tmp_path, capfd):
    (tmp_path / "a.jpg").write_text("no photo")
    for name, message in (("a.jpg", "cannot be read"), ("b.jpg", "is not there"), (".", "is not there")):
        with pytest.raises(ImageError, match=message):
            focal_from_exif(tmp_path / name, (300, 200))
    assert capfd.readouterr() == ("", "")
