# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from sfumato.auditing.task import digest_data
from sfumato.experiments.data.folders import read_posed_folder, read_scene_folder
from sfumato.experiments.maps import plain_colmap
from sfumato.experiments.maps.plain_colmap import STEPS, map_plainly, scene_size
from sfumato.geometry.statistics import compare_poses
from sfumato.types.scene import Pose


@pytest.fixture
def room(small_room: Path, mapped_room: Path, monkeypatch: pytest.MonkeyPatch):
    """Photos of a room, and the map that plain COLMAP made of them, which is kept."""
    images = read_posed_folder(small_room)
    monkeypatch.setattr(plain_colmap, "_predict", None)
    digests = {name: digest_data(path) for name, path in images.paths.items()}
    return images, map_plainly(images.paths, digests, mapped_room)


def test_the_map_is_near_the_truth_and_kept(room):
    images, plain = room
    assert 3 <= plain.statistics.registered == len(plain.poses) <= plain.statistics.images == 5
    assert plain.poses.keys() == plain.cameras.keys() <= set(images.names)
    assert plain.statistics.points > 100
    assert np.median(compare_poses(plain.poses, images.poses).relative_rotation) < 5
    assert set(plain.seconds) == set(STEPS)
    assert len(plain.seed_counts) == 3
    assert plain.size > 0
    assert not plain.agreeing or (plain.seed_degrees <= 1 and len(set(plain.seed_counts)) == 1)


def test_photos_that_can_not_be_mapped_give_no_poses(blank_photos, tmp_path):
    paths = read_scene_folder(blank_photos).paths
    plain = map_plainly(paths, dict.fromkeys(paths, "0"), tmp_path / "out")
    assert (plain.poses, plain.size, plain.agreeing, plain.seed_counts) == ({}, 0, False, (0, 0, 0))


def test_a_photo_on_its_side_is_turned(tmp_path):
    exif = Pillow.Exif()
    exif[0x112] = 6
    Pillow.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "side.jpg", exif=exif)
    Pillow.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "plain.jpg")
    paths = {"side.jpg": tmp_path / "side.jpg", "deep/plain.jpg": tmp_path / "plain.jpg"}
    plain_colmap._lay_out(paths, tmp_path / "out")
    with Pillow.open(tmp_path / "out/side.jpg") as turned:
        assert turned.size == (40, 60)
    assert (tmp_path / "out/deep/plain.jpg").resolve() == (tmp_path / "plain.jpg").resolve()


def test_the_size_of_a_scene_is_the_median_distance_of_two_cameras():
    def at(x):
        return Pose(np.eye(3), np.array([-x, 0.0, 0.0]))

    assert scene_size({"a": at(0), "b": at(1), "c": at(5)}) == 4
    assert scene_size({"a": at(0)}) == 0
