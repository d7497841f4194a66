# SPDX-License-Identifier: Apache-2.0
"""What the tests of a device share: features of another program, photos with cameras, and generated scenes."""

import h5py
import numpy as np
import pytest

from sfumato.images.read import read_image, to_grey
from sfumato.images.samples import sample_paths


@pytest.fixture
def hloc_file(tmp_path):
    """An hloc features.h5 of two images with 256-dimensional unit-norm descriptors, one in a folder."""
    path = tmp_path / "feats-superpoint-n4096.h5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name in ("db/1.jpg", "query.jpg"):
            descriptors = rng.normal(size=(256, 90))
            group = file.create_group(name)
            group["keypoints"] = rng.uniform(0, 600, (90, 2)).astype(np.float32)
            group["descriptors"] = (descriptors / np.linalg.norm(descriptors, axis=0)).astype(np.float16)
            group["scores"] = np.ones(90, np.float16)
            group["image_size"] = np.array([640, 480])
    return path


@pytest.fixture
def camera_photos(tmp_path, write_photo):
    """Two photos with a focal length in their EXIF, and one without."""
    pixels = to_grey(read_image(sample_paths()["coffee"]))[:200, :300]
    (tmp_path / "photos").mkdir()
    write_photo(tmp_path / "photos" / "a.jpg", pixels, 28)
    write_photo(tmp_path / "photos" / "b.jpg", pixels, 35)  # the same picture, another camera
    write_photo(tmp_path / "photos" / "c.jpg", pixels[:, ::-1])
    return tmp_path / "photos"
