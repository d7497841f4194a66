# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import read_homography_folder, read_posed_folder
from sfumato.experiments.data.generated import CHANGES, PHOTOS, make_homography_folder, make_room_folder, open_scenes
from sfumato.images.homography import make_pair
from sfumato.images.read import read_image
from sfumato.images.samples import sample_image, sample_names


def test_what_is_written_is_read_back_exactly(tmp_path: Path):
    make_homography_folder(tmp_path / "made", np.random.default_rng(1), photos=("brick",), others=1)
    sequences = read_homography_folder(tmp_path / "made")
    assert [(s.name, s.kind, len(s.paths)) for s in sequences] == [
        ("i_brick", "illumination", 2), ("v_brick", "viewpoint", 2)
    ]  # fmt: skip
    rng = np.random.default_rng(1)
    for sequence, letter in zip(sequences, "iv", strict=True):
        pair = make_pair(sample_image("brick"), rng, CHANGES[letter])
        assert np.array_equal(sequence.homographies[0], pair.homography)
        for path, image in zip(sequence.paths, (pair.first, pair.second), strict=True):
            assert np.array_equal(read_image(path).pixels, image.pixels)


def test_light_moves_nothing_and_viewpoint_does(small_sequences: Path):
    light, viewpoint = read_homography_folder(small_sequences)
    assert all(np.allclose(matrix, np.eye(3)) for matrix in light.homographies)
    assert not any(np.allclose(matrix, np.eye(3), atol=0.05) for matrix in viewpoint.homographies)


def test_the_photos_are_there():
    assert set(PHOTOS) <= set(sample_names())


def test_the_same_seed_writes_the_same_files(small_sequences: Path, tmp_path: Path, files_below):
    make_homography_folder(tmp_path / "made", np.random.default_rng(3), photos=("coffee",), others=2)
    assert files_below(tmp_path / "made") == files_below(small_sequences)


def test_a_room_is_read_back_and_left_alone(small_room: Path, files_below):
    images = read_posed_folder(small_room)
    assert len(images) == 5
    assert set(images.paths) == set(images.cameras) == set(images.poses)
    before = files_below(small_room)
    assert make_room_folder(small_room, np.random.default_rng(9)) == small_room
    assert files_below(small_room) == before


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="written"):
        make_homography_folder(tmp_path / "file" / "made", np.random.default_rng(0), photos=())


def test_scenes_are_called_after_their_folders(tmp_path: Path, save_picture, small_room: Path):
    save_picture(tmp_path / "bridge" / "a.png")
    scenes = open_scenes([tmp_path / "bridge", small_room], tmp_path / "out")
    assert {name: type(images).__name__ for name, images in scenes.items()} == {
        "bridge": "UnposedImages", small_room.name: "PosedImages"
    }  # fmt: skip
    with pytest.raises(InputError, match="bridge"):
        open_scenes([tmp_path / "bridge", tmp_path / "bridge"], tmp_path / "out")


def test_without_folders_there_is_a_room(tmp_path: Path, small_room: Path):
    (tmp_path / "generated-room").symlink_to(small_room)
    assert list(open_scenes([], tmp_path)) == ["room"]
