# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

import sfumato
from sfumato.auditing.subjects import Subject, choose_subjects, conceal_repeatably
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, read_posed_folder
from sfumato.experiments.maps import scene as module
from sfumato.experiments.maps.scene import PhotoScene
from sfumato.features.local import LocalParams
from sfumato.types.recipe import Recipe

RAW, RANDOM, HYBRID = choose_subjects(["raw", "random-2", "sub-hybrid-2"], ["s-to-s"], [4])


@pytest.fixture
def room(small_room: Path, tmp_path: Path) -> PhotoScene:
    images = read_posed_folder(small_room)
    return PhotoScene(
        images, tmp_path, LocalParams(extractor="opencv", max_features=150), sfumato.load_decoys(), threads=1
    )


def test_every_pair_is_matched_as_the_matcher_does(room: PhotoScene):
    for subject in (RAW, RANDOM):
        found = room.matches(subject)
        assert len(found) == 10
        a, b = room.names[:2]
        sides = [room.clear(name).descriptors for name in (a, b)]
        if subject is RANDOM:
            sides = [conceal_repeatably(room.clear(name), subject.recipe, None, seed=4) for name in (a, b)]
        expected = sfumato.match(*sides)
        assert np.array_equal(found[a, b].indices, expected.indices)
        assert np.array_equal(found[a, b].distances, expected.distances)


def test_matches_are_found_again_without_features(room: PhotoScene, monkeypatch: pytest.MonkeyPatch):
    first = room.matches(RANDOM)
    monkeypatch.setattr(module, "extract", None)
    again = PhotoScene(room.images, room.folder, room.local).matches(RANDOM)
    assert all(np.array_equal(again[pair].indices, first[pair].indices) for pair in first)
    with pytest.raises(TypeError):
        PhotoScene(room.images, room.folder, room.local).matches(Subject(Recipe("random-2"), "s-to-s", 5))


def test_damaged_matches_are_made_anew(room: PhotoScene, caplog: pytest.LogCaptureFixture):
    first = room.matches(RANDOM)
    path = sorted(room.folder.rglob("*.npz"))[3]
    path.write_bytes(b"")
    again = PhotoScene(room.images, room.folder, room.local, threads=1).matches(RANDOM)
    assert all(np.array_equal(again[pair].indices, first[pair].indices) for pair in first)
    assert path.name in caplog.text


def test_what_is_kept_holds_no_descriptor(room: PhotoScene):
    room.matches(HYBRID)
    for path in room.folder.rglob("*.npz"):
        with np.load(path, allow_pickle=False) as members:
            assert set(members.files) == {"indices", "distances", "match_seconds", "prepare_seconds", "seconds"}
            assert members["indices"].shape[1:] == (2,)


def test_little_memory_changes_nothing(room: PhotoScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = room.matches(HYBRID)
    monkeypatch.setattr(module, "CACHE_BYTES", 1)
    other = PhotoScene(room.images, tmp_path / "other", room.local, sfumato.load_decoys(), threads=1)
    again = other.matches(HYBRID)
    assert all(np.array_equal(again[pair].indices, first[pair].indices) for pair in first)


def test_concealed_features_are_those_of_the_subject(room: PhotoScene):
    name = room.names[0]
    assert room.concealed(name, HYBRID).recipe.evaluation_seed == 4
    assert room.concealed(name, HYBRID).code.dim == 2
    assert np.array_equal(room.concealed(name, RAW).code.origin, room.clear(name).descriptors)


def test_the_digest_knows_pictures_cameras_and_poses(room: PhotoScene, tmp_path: Path):
    images, names = room.images, room.names
    swapped = {**images.poses, names[0]: images.poses[names[1]], names[1]: images.poses[names[0]]}
    pictures = {**images.paths, names[0]: images.paths[names[1]]}
    others = [PosedImages(images.paths, images.cameras, swapped), PosedImages(pictures, images.cameras, images.poses)]
    digests = {PhotoScene(one, tmp_path, room.local).digest for one in (images, *others)}
    assert len(digests) == 3


def test_a_picture_that_can_not_be_read_is_told(room: PhotoScene, tmp_path: Path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    paths = {**room.images.paths, room.names[2]: bad}
    scene = PhotoScene(PosedImages(paths, room.images.cameras, room.images.poses), tmp_path, room.local)
    with pytest.raises(InputError, match="4 samples"):
        scene.matches(RAW)


def test_too_few_images_are_told(room: PhotoScene, tmp_path: Path):
    few = room.names[:2]
    images = PosedImages(*({name: given[name] for name in few} for given in
                           (room.images.paths, room.images.cameras, room.images.poses)))  # fmt: skip
    with pytest.raises(InputError, match="3 images"):
        PhotoScene(images, tmp_path, room.local)
