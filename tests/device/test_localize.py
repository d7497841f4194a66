# SPDX-License-Identifier: Apache-2.0
"""Photos localized on the device that has the key of the map."""

import shutil
from hashlib import sha256

import numpy as np
import pytest

import sfumato
from sfumato.device import conceal_photos, own_keypoints, release_positions
from sfumato.errors import ArchiveError, InputError, RecipeError
from sfumato.features.local import LocalParams
from sfumato.geometry.maps import save_landmarks


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A map of three views of a made-up room under a key, and the photo of a fourth; tests must not write to it."""
    from sfumato.experiments import make_room, read_posed_folder, save_room

    folder = tmp_path_factory.mktemp("room")
    save_room(make_room(None, np.random.default_rng(0), views=4, width=320, height=240), folder / "room")
    posed = read_posed_folder(folder / "room")
    (folder / "today").mkdir()
    last = sorted((folder / "room" / "images").iterdir())[-1]
    last.rename(folder / "today" / last.name)
    local = LocalParams(max_features=700)
    archive, matches = folder / "private.sfm", folder / "matches.h5"
    conceal_photos(folder / "room" / "images", archive, secret=ROOM_KEY, place="hall", local=local)
    sfumato.match_archive(archive, matches)
    assert release_positions(archive, matches, secret=ROOM_KEY, place="hall").share > 0.1
    made = sfumato.build_map(archive, matches, folder / "model", posed.cameras)
    assert made.statistics.registered == 3, made.reason
    return folder, posed.cameras


ROOM_KEY = sha256(b"5").digest()


def test_a_photo_is_localized_where_the_key_is(room, tmp_path, monkeypatch):
    folder, cameras = room
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = sfumato.localize_photos(
        folder / "today", folder / "model", cameras, secret=ROOM_KEY, place="hall", output=tmp_path / "poses.txt"
    )
    assert set(outcome.poses) == {"view-0003.png"}, outcome.reasons
    assert {path.name for path in tmp_path.iterdir()} == {"poses.txt", "poses.json"}  # what was concealed is gone
    given = {"secret": ROOM_KEY, "place": "hall", "local": LocalParams(max_features=700)}
    conceal_photos(folder / "today", tmp_path / "query.sfm", positions=True, **given)
    same = sfumato.localize(tmp_path / "query.sfm", folder / "model", cameras)
    assert np.array_equal(same["view-0003.png"].translation, outcome["view-0003.png"].translation)


def test_a_query_whose_positions_stay_home_is_localized_with_the_file_beside_it(room, tmp_path):
    folder, cameras = room
    query, given = tmp_path / "query.sfm", {"secret": ROOM_KEY, "place": "hall", "local": LocalParams(max_features=700)}
    conceal_photos(folder / "today", query, **given)
    with pytest.raises(InputError, match="positions"):
        sfumato.localize(query, folder / "model", cameras)
    here = sfumato.localize(query, folder / "model", cameras, keypoints=own_keypoints(query))
    whole = sfumato.localize_photos(folder / "today", folder / "model", cameras, secret=ROOM_KEY, place="hall")
    name = "view-0003.png"
    assert here.results[name].inliers == whole.results[name].inliers > 20
    assert np.abs(here[name].translation - whole[name].translation).max() < 0.05  # positions on the grid


def test_photos_under_another_key_are_refused_with_the_fingerprint_of_the_map(room, tmp_path, monkeypatch):
    folder, _ = room
    with sfumato.load(folder / "private.sfm") as archive:
        name = archive.header("view-0000.png").recipe.links[-1].checksum
    for more in ({"secret": ROOM_KEY}, {"secret": sha256(b"2").digest(), "place": "hall"}, {}):
        with pytest.raises(RecipeError, match=name):
            sfumato.localize_photos(folder / "today", folder / "model", **more)
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "none.key"))
    with pytest.raises(RecipeError, match=name):
        sfumato.localize_photos(folder / "today", folder / "model")
    assert not (tmp_path / "none.key").exists()


def test_a_map_of_other_features_can_not_be_used_for_photos(room, places, tmp_path):
    folder, _ = room
    place = places.make_place()
    places.write_model(place, tmp_path / "model")
    with sfumato.load(place.archive(tmp_path / "private.sfm", places.VIEWS)) as archive:
        save_landmarks(tmp_path / "model", archive)
    with pytest.raises(InputError, match="sfumato conceal"):
        sfumato.localize_photos(folder / "today", tmp_path / "model")


def test_photos_that_can_not_be_read_are_named(room, tmp_path):
    folder, cameras = room
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("no photo")
    with pytest.raises(ArchiveError, match=r"a\.jpg"):
        sfumato.localize_photos(tmp_path / "photos", folder / "model", secret=ROOM_KEY, place="hall")
    shutil.copy(folder / "today" / "view-0003.png", tmp_path / "photos")
    outcome = sfumato.localize_photos(tmp_path / "photos", folder / "model", cameras, secret=ROOM_KEY, place="hall")
    assert (set(outcome.unreadable), set(outcome.poses)) == ({"a.jpg"}, {"view-0003.png"})
