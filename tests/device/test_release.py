# SPDX-License-Identifier: Apache-2.0
"""A release: what several photos see leaves the device once, and nothing else, on the conditions of its owner."""

import shutil
import stat
from dataclasses import replace
from hashlib import sha256

import cv2
import numpy as np
import pytest

import sfumato
from sfumato.concealment.rows import GRID, to_grid
from sfumato.device import ReleaseParams, conceal_photos, draw_releases, release_positions
from sfumato.device.release import draw_release
from sfumato.errors import FileError, InputError, NameWarning, RecipeError
from sfumato.features import LocalParams, write_hloc
from sfumato.images.samples import sample_paths
from sfumato.matching import load_matches
from sfumato.store import Evidence, load_evidence, save_evidence
from sfumato.store.evidence import gather_evidence
from sfumato.types.scene import Matches


def release(device, *params, **given):
    return release_positions(device.archive, device.matches, *params, secret=device.key, **given)


def share_of(rows, truth):
    """Which share of rows, of all photos, is true."""
    return float(np.concatenate([truth[name][part] for name, part in rows.items()]).mean())


# ---------------------------------------------------------------- what leaves


def test_what_three_photos_see_leaves_and_what_one_sees_stays(device):
    outcome = release(device)
    shown = device.shown()
    assert {name: len(rows) for name, rows in shown.items()} == outcome.shown == outcome.new
    assert not outcome.kept_back
    assert (outcome.claimed, outcome.proven) == (6, 6)
    three, two = device.scene.rows(3, device.key), device.scene.rows(2, device.key)
    missed = [1 - np.isin(np.flatnonzero(three[name]), shown[name]).mean() for name in shown]
    assert max(missed) < 0.05
    assert share_of(shown, two) > 0.995  # what is left are matches by chance
    for name, one in device.scene.features.items():
        alone = device.scene.points[name] < 0
        assert alone.sum() > 0
        assert outcome.rows[name] == len(one)
    assert 0.6 < outcome.share < 0.9


def test_released_positions_are_those_of_the_features_on_the_grid(device):
    release(device)
    with sfumato.load(device.archive) as images:
        for name, clear in device.scene.features.items():
            places = images[name].keypoints[images[name].is_shown]
            assert (places[:, :2] * GRID == np.rint(places[:, :2] * GRID)).all()
            assert (places[:, 2:] == (1, 0)).all()
            rows = sfumato.concealment.order_rows(clear, secret=device.key)
            np.testing.assert_array_equal(
                images[name].keypoints[images[name].is_shown, :2],
                to_grid(clear.keypoints)[rows][images[name].is_shown],
            )


def test_the_same_again_releases_nothing_new(device):
    first = release(device)
    before = device.archive.read_bytes(), device.shown()
    again = release(device)
    assert sum(again.new.values()) == 0
    assert again.shown == first.shown
    assert (again.share, again.proven) == (first.share, first.proven)
    assert device.archive.read_bytes() == before[0]


def test_photos_that_come_later_release_more_and_take_nothing_back(tmp_path, make_device, make_scene):
    scene = make_scene(photos=5, points=500, clutter=100)
    few = replace(scene, features={name: scene.features[name] for name in ("0.jpg", "1.jpg", "2.jpg")})
    device = make_device(tmp_path, few)
    release(device)
    before = device.shown()
    write_hloc(tmp_path / "more.h5", scene.features.items())
    conceal_photos(tmp_path / "more.h5", device.archive, secret=device.key)
    sfumato.match_archive(device.archive, tmp_path / "more-matches.h5")
    release(replace(device, matches=tmp_path / "more-matches.h5"))
    after = device.shown()
    assert all(set(before[name]) <= set(after[name]) for name in before)
    assert sum(map(len, after.values())) > sum(map(len, before.values())) + 300


def test_a_map_is_made_of_what_was_released(device, tmp_path):
    with pytest.raises(InputError, match="release"):
        sfumato.build_map(device.archive, device.matches, tmp_path / "early")
    release(device)
    camera = sfumato.Camera("PINHOLE", 640, 480, (500, 500, 320, 240))
    made = sfumato.build_map(
        device.archive, device.matches, tmp_path / "model", dict.fromkeys(device.scene.features, camera)
    )
    assert made.statistics.registered == 4
    assert made.statistics.points > 500


def test_photos_that_match_nothing_release_nothing(tmp_path, make_device, make_scene, scene):
    other = make_scene(photos=1, seed=9, prefix="other-")
    both = replace(scene, features={**scene.features, **other.features}, points={**scene.points, **other.points})
    device = make_device(tmp_path, both)
    outcome = release(device)
    assert outcome.shown["other-0.jpg"] == 0
    assert outcome.rows["other-0.jpg"] > 1000
    assert len(device.shown()["other-0.jpg"]) == 0
    assert outcome.shown["0.jpg"] > 500


def test_two_photos_alone_release_nothing(tmp_path, make_device, make_scene):
    assert release(make_device(tmp_path, make_scene(photos=2, points=300))).share == 0


# ---------------------------------------------------------------- rules and conditions


def test_rules_let_more_go_one_after_the_other(device):
    rows = {}
    for rule in ("circles", "tracks", "pairs"):
        rows[rule] = release(device, ReleaseParams(rule=rule, least_rows=0), dry_run=True)
    for name in device.scene.features:
        shown = [rows[rule].shown[name] for rule in ("circles", "tracks", "pairs")]
        assert shown == sorted(shown)
        assert shown[0] > 500
    assert rows["pairs"].share > rows["tracks"].share


def test_two_photos_are_enough_for_pairs(tmp_path, make_device, make_scene):
    device = make_device(tmp_path, make_scene(photos=2))
    assert release(device, ReleaseParams(rule="circles")).share == 0
    outcome = release(device, ReleaseParams(rule="pairs"))
    assert all(shown > 500 for shown in outcome.shown.values())
    assert share_of(device.shown(), device.scene.rows(2, device.key)) > 0.99


def test_a_photo_with_few_tracks_gives_what_a_proven_pair_agrees_on(device):
    """Else it would be missing in the map. Here all photos have few: the limit is above them all."""
    plain = release(device, ReleaseParams(least_rows=0), dry_run=True)
    more = release(device, ReleaseParams(least_rows=5000), dry_run=True)
    pairs = release(device, ReleaseParams(rule="pairs"), dry_run=True)
    for name in plain.shown:
        assert plain.shown[name] <= more.shown[name] <= pairs.shown[name]
    assert sum(more.shown.values()) > sum(plain.shown.values())
    nothing = release(device, ReleaseParams(least_rows=5000, least_circles=5000), dry_run=True)
    assert nothing.shown == plain.shown


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"rule": "track"}, "tracks"),
        ({"rule": ""}, "rule"),
        ({"most_share": 0}, "limit"),
        ({"most_share": 1.1}, "limit"),
        ({"most_share": float("nan")}, "limit"),
        ({"max_error_px": 0}, "max_error_px"),
        ({"max_error_px": float("inf")}, "max_error_px"),
        ({"least_circles": 0}, "least_circles"),
        ({"least_rows": -1}, "least_rows"),
    ],
)
def test_conditions_that_mean_nothing_are_refused(given, word):
    with pytest.raises(InputError, match=word):
        ReleaseParams(**given)


def test_a_photo_of_which_too_much_is_asked_for_keeps_everything(device):
    outcome = release(device, ReleaseParams(most_share=0.3))
    assert set(outcome.kept_back) == set(device.scene.features)
    assert all("30%" in reason for reason in outcome.kept_back.values())
    assert outcome.share == 0
    assert not any(map(len, device.shown().values()))


def test_the_limit_counts_what_left_before(device):
    """A server that asks in many small rounds gets no more than one that asks at once."""
    with load_matches(device.matches) as file:
        pairs = {pair: file[pair] for pair in file}
    rng, params = np.random.default_rng(0), ReleaseParams(most_share=0.3, least_rows=0)
    held = 0
    for _ in range(20):
        chosen = {pair: rng.random(len(one)) < 0.2 for pair, one in pairs.items()}
        some = {pair: Matches(one.indices[chosen[pair]], one.distances[chosen[pair]]) for pair, one in pairs.items()}
        outcome = release_positions(device.archive, some, params, secret=device.key)
        held += len(outcome.kept_back)
    shown = device.shown()
    assert all(len(rows) <= 0.3 * len(device.scene.features[name]) for name, rows in shown.items())
    assert sum(map(len, shown.values())) > 0
    assert held > 20
    whole = release_positions(device.archive, pairs, ReleaseParams(most_share=0.9), secret=device.key)
    assert whole.share > 0.6, "what was held back goes when the owner allows it"


def test_a_dry_run_says_what_would_leave_and_changes_no_file(device, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    would = release(device, dry_run=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    done = release(device)
    assert (would.shown, would.new, would.proven) == (done.shown, done.new, done.proven)


# ---------------------------------------------------------------- what never leaves


def write_mask(folder, name, size=(640, 480), black=np.s_[:, :300]):
    folder.mkdir(exist_ok=True)
    mask = np.full(size[::-1], 255, np.uint8)
    mask[black] = 0
    assert cv2.imwrite(str(folder / f"{name}.png"), mask)


def test_what_lies_under_a_mask_stays_home_and_the_rest_goes(device, tmp_path):
    free = release(device, dry_run=True)
    write_mask(tmp_path / "never", "1.jpg")
    outcome = release(device, never=tmp_path / "never")
    with sfumato.load(device.archive) as images:
        columns = images["1.jpg"].keypoints[images["1.jpg"].is_shown, 0]
        assert np.rint(columns).min() >= 300
        assert len(columns) > 100
    assert outcome.shown["1.jpg"] < 0.8 * free.shown["1.jpg"]
    assert all(outcome.shown[name] == free.shown[name] for name in free.shown if name != "1.jpg")


def test_a_mask_that_is_all_black_keeps_a_photo_at_home(device, tmp_path):
    for name in device.scene.features:
        write_mask(tmp_path / "never", name, black=np.s_[:])
    assert release(device, never=tmp_path / "never").share == 0
    assert not any(map(len, device.shown().values()))


@pytest.mark.parametrize("size", [(320, 240), (1280, 960), (480, 640), (640, 479)])
def test_a_mask_of_another_size_is_refused(device, tmp_path, size):
    """Its pixels are not those of the photo: what it should cover would leave."""
    write_mask(tmp_path / "never", "1.jpg", size, np.s_[:, : size[0] // 2])
    with pytest.raises(FileError, match=r"1\.jpg\.png.*640"):
        release(device, never=tmp_path / "never")
    assert not any(map(len, device.shown().values()))


def test_masks_that_are_not_there_or_no_pictures_are_refused(device, tmp_path):
    with pytest.raises(FileError, match="--never"):
        release(device, never=tmp_path / "none")
    (tmp_path / "never").mkdir()
    with pytest.raises(FileError, match="no mask"):
        release(device, never=tmp_path / "never")
    write_mask(tmp_path / "never", "another.jpg")
    with pytest.raises(FileError, match="no mask"):
        release(device, never=tmp_path / "never")
    (tmp_path / "never" / "2.jpg.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"2\.jpg\.png"):
        release(device, never=tmp_path / "never")
    assert not any(map(len, device.shown().values()))


# ---------------------------------------------------------------- what is refused


def test_another_key_or_place_is_refused(device, tmp_path, monkeypatch):
    before = device.archive.read_bytes()
    for given in ({"secret": sha256(b"another").digest()}, {"secret": device.key, "place": "hall"}, {}):
        with pytest.raises(RecipeError, match="key"):
            release_positions(device.archive, device.matches, **given)
    monkeypatch.setenv("SFUMATO_KEY", str(tmp_path / "none.key"))
    with pytest.raises(FileError, match="key"):
        release_positions(device.archive, device.matches)
    assert not (tmp_path / "none.key").exists()
    assert device.archive.read_bytes() == before


def test_a_place_has_its_own_key(tmp_path, make_device, make_scene):
    device = make_device(tmp_path, make_scene(points=300), place="hall")
    with pytest.raises(RecipeError, match="place"):
        release(device)
    assert release(device, place="hall").share > 0.3


def test_matches_of_another_archive_are_refused(device, tmp_path, make_device, make_scene):
    other = make_device(tmp_path / "other", make_scene(seed=3, points=300))
    with pytest.raises(FileError, match="match again"):
        release(replace(device, matches=other.matches))
    assert not any(map(len, device.shown().values()))


@pytest.mark.parametrize("given", [{"positions": True}, {"recipe": "random-2"}])
def test_an_archive_of_which_nothing_stayed_home_is_refused(tmp_path, make_device, make_scene, given):
    scene = make_scene(photos=2, points=100, clutter=20)
    device = make_device(tmp_path, scene, **given)
    before = device.archive.read_bytes()
    with pytest.raises(InputError, match="map"):
        release(device)
    assert device.archive.read_bytes() == before


def test_matches_that_are_no_file_are_refused(device, tmp_path):
    (tmp_path / "bad.h5").write_bytes(b"x" * 600)
    for path in (tmp_path / "bad.h5", tmp_path / "none.h5", device.archive):
        with pytest.raises(FileError):
            release(replace(device, matches=path))


def test_photos_without_features_take_no_part(tmp_path, make_device, make_scene, scene):
    empty = make_scene(photos=1, points=0, clutter=0, prefix="empty-")
    both = replace(scene, features={**empty.features, **scene.features}, points={**scene.points, **empty.points})
    device = make_device(tmp_path, both)
    outcome = release(device)
    assert "empty-0.jpg" not in outcome.rows
    assert outcome.share > 0.5


# ---------------------------------------------------------------- evidence of a server, and photos of other devices


def evidence_of(images, matches, own, path):
    """What a server sends: as a file, there and back."""
    with load_matches(matches) as file:
        claims = iter([(pair, file[pair].indices.astype(np.int64)) for pair in file])
        save_evidence(path, gather_evidence(claims, images, own))
    return load_evidence(path)


def test_the_evidence_of_a_server_is_as_good_as_a_match_file(device, tmp_path):
    plain = release(device, dry_run=True)
    with sfumato.load(device.archive) as images:
        evidence = evidence_of(images, device.matches, list(images), tmp_path / "evidence")
    outcome = release_positions(device.archive, evidence, secret=device.key)
    assert (outcome.shown, outcome.proven) == (plain.shown, plain.proven)


def split(device, tmp_path, own):
    """The archive of a device that took some of the photos, and the evidence of a server that has all of them."""
    with sfumato.load(device.archive) as images:
        evidence = evidence_of(images, device.matches, own, tmp_path / "evidence")
        sfumato.save(tmp_path / "own.sfm", {name: images[name] for name in own})
    shutil.copy(device.positions, tmp_path / "own.sfm.positions")
    return tmp_path / "own.sfm", evidence


def test_photos_of_another_device_count_as_the_third(device, tmp_path):
    """Two own photos, and one of another device, of which rows and tags are known, and no positions."""
    archive, evidence = split(device, tmp_path, ("0.jpg", "1.jpg"))
    assert set(evidence.others) == {"2.jpg", "3.jpg"}
    only = Evidence({pair: rows for pair, rows in evidence.claims.items() if "3.jpg" not in pair}, evidence.others)
    params = ReleaseParams(least_rows=0)
    outcome = release_positions(archive, only, params, secret=device.key, dry_run=True)
    assert set(outcome.rows) == {"0.jpg", "1.jpg"}
    assert all(shown > 400 for shown in outcome.shown.values())
    alone = Evidence({("0.jpg", "1.jpg"): evidence.claims["0.jpg", "1.jpg"]}, {})
    assert release_positions(archive, alone, params, secret=device.key, dry_run=True).share == 0
    released = release_positions(archive, evidence, params, secret=device.key)
    with sfumato.load(archive) as images:
        shown = {name: np.flatnonzero(images[name].is_shown) for name in images}
    assert {name: len(rows) for name, rows in shown.items()} == released.shown
    assert share_of(shown, device.scene.rows(3, device.key)) > 0.98


def test_an_archive_with_photos_of_another_device_releases_ones_own_alone(device, tmp_path):
    """Whoever was given an archive has no positions of it: tags let its rows count, and nothing of them leaves."""
    some = [(name, one) for name, one in device.scene.features.items() if name != "3.jpg"]
    write_hloc(tmp_path / "some.h5", some)
    device.positions.unlink()
    outcome = release(device, photos=tmp_path / "some.h5")
    assert set(outcome.rows) == {"0.jpg", "1.jpg", "2.jpg"}
    assert len(device.shown()["3.jpg"]) == 0


# ---------------------------------------------------------------- pictures


def test_a_picture_shows_what_left_and_what_stayed():
    pixels = np.full((60, 80, 3), 200, np.uint8)
    positions = np.array([[20, 30], [60, 40]], np.float32)
    sheet = draw_release(pixels, positions, np.array([True, False]))
    assert sheet.shape == (60, 80 + 8 + 80, 3)
    assert sheet[30, 20].tolist() == [255, 150, 0]
    assert sheet[40, 60].tolist() == [150, 150, 150]
    dots = sheet[:, 88:]
    assert dots[30, 20].tolist() == [255, 255, 255]
    assert not dots[40, 60].any()
    assert draw_release(pixels[:, :, 0], positions, np.array([True, False])).shape == sheet.shape


def test_pictures_are_private_and_there_for_each_photo(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("coffee", "chelsea"):
        shutil.copy(sample_paths()[name], tmp_path / "photos" / f"{name} 1.png")
    archive, local = tmp_path / "p.sfm", LocalParams(max_features=60, extractor="opencv")
    with pytest.warns(NameWarning):
        conceal_photos(tmp_path / "photos", archive, secret=sha256(b"pictures").digest(), local=local)
    paths = draw_releases(archive, tmp_path / "photos", tmp_path / "seen")
    assert sorted(path.name for path in paths) == ["chelsea%201.png.jpg", "coffee%201.png.jpg"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert cv2.imread(str(paths[0])).shape[1] > 600
    (tmp_path / "p.sfm.positions").unlink()
    with pytest.raises(FileError, match="positions"):
        draw_releases(archive, tmp_path / "photos", tmp_path / "seen")


# ---------------------------------------------------------------- on real photos


def test_photos_of_a_fountain_release_enough_for_a_map(tmp_path, shared_data):
    names = ["0003.jpg", "0004.jpg", "0005.jpg"]
    (tmp_path / "photos").mkdir()
    for name in names:
        shutil.copy(shared_data / "posed" / "fountain-P11" / "images" / name, tmp_path / "photos")
    archive, matches, key = tmp_path / "p.sfm", tmp_path / "m.h5", sha256(b"fountain").digest()
    local = LocalParams(max_features=1500, max_image_size=768, extractor="opencv")
    conceal_photos(tmp_path / "photos", archive, secret=key, local=local)
    sfumato.match_archive(archive, matches)
    outcome = release_positions(archive, matches, secret=key)
    assert not outcome.kept_back
    assert outcome.proven == 3
    assert 0.05 < outcome.share < 0.7
    again = release_positions(archive, matches, secret=key)
    assert sum(again.new.values()) == 0
    made = sfumato.build_map(archive, matches, tmp_path / "model")
    assert made.statistics.registered == 3
