# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.experiments.data.colmap_models import read_nvm_poses


@pytest.fixture
def write(tmp_path, turn):
    """Write a model of two images, as VisualSFM does, with changes."""

    def make(head="NVM_V3 \n\n2\n", more="", count=2):
        _, quaternion = turn()
        words = " ".join(f"{value:.12f}" for value in 0.999 * quaternion)
        lines = [f"db/{number}.jpg 1084.59 {words} {number}.5 -2 3 0.0810989 0\n" for number in range(count)]
        points = "1\n0.1 0.2 0.3 255 0 0 1 0 5 1.0 2.0\n0\n"
        (tmp_path / "model.nvm").write_text(head + "".join(lines) + more + "\n" + points)
        return tmp_path / "model.nvm"

    return make


def told(path):
    with pytest.raises(FileError) as error:
        read_nvm_poses(path)
    return str(error.value)


def test_poses_are_from_the_world(write, turn):
    poses = read_nvm_poses(write())
    assert set(poses) == {"db/0.jpg", "db/1.jpg"}
    assert np.abs(poses["db/1.jpg"].rotation - turn()[0]).max() < 1e-9
    assert np.abs(poses["db/1.jpg"].center - [1.5, -2, 3]).max() < 1e-9


def test_points_are_not_read(write):
    path = write()
    path.write_text(path.read_text() + "x" * 100_000)
    assert len(read_nvm_poses(path)) == 2


def test_what_is_no_model(write, tmp_path):
    assert "missing" in told(tmp_path / "none.nvm")
    assert "cannot be read" in told(tmp_path)
    assert "does not begin with NVM_V3" in told(write(head="ply\n2\n"))
    assert "number of images is missing" in told(write(head="NVM_V3\n\ntwo\n"))
    assert "number of images is missing" in told(write(head="NVM_V3\n\n" + "9" * 500 + "\n"))
    assert "cut off after 5 of 9 images" in told(write(head="NVM_V3\n9\n"))
    assert "more than 10000 characters" in told(write(head="NVM_V3\n\n3\n", more="x" * 20_000))
    write().write_bytes(b"NVM_V3\n1\n\xff\xfe\n")
    assert "no text" in told(tmp_path / "model.nvm")


def test_all_wrong_images_are_named(write):
    more = "db/9.jpg 1 0 0 0 0 1 2 3 0 0\ndb/0.jpg 1 1 0 0 0 1 2 3 0 0\ndb/8.jpg 1 1 0 0 0 nan 2 3 0 0\n"
    message = told(write(head="NVM_V3\n5\n", more=more))
    assert "'db/9.jpg' is not 'name focal" in message
    assert "'db/0.jpg' is there twice" in message
    assert "'db/8.jpg' is not" in message
