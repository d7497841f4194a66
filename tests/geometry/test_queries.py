# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.geometry.cameras import pose_error, read_poses, write_cameras
from sfumato.geometry.localization import LocalizeParams
from sfumato.geometry.maps import Map, load_map
from sfumato.geometry.model import read_model
from sfumato.geometry.queries import NoPose, check_poses_output, localize, localize_each, save_localizations, summarise
from sfumato.types.concealed import PublicPoints
from sfumato.types.scene import Camera


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def map_(places, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    places.write_model(place, folder)
    model = read_model(folder)
    points = {
        name: PublicPoints(
            model.numbers[model.sight(name).landmarks],
            place.features[name].descriptors[model.sight(name).keypoints],
        )
        for name in places.VIEWS
    }
    return Map(model, points, is_public=True)


@pytest.fixture
def queries(places, place, tmp_path):
    """Two queries that can be localized, one that shows something else, one without features, one without a size."""
    hidden = place.concealed(places.QUERIES)
    rng = np.random.default_rng(3)
    strange = sfumato.Subspaces(rng.standard_normal((80, 32)), rng.standard_normal((80, 2, 32)))
    first = hidden["query/0.jpg"]
    hidden["elsewhere.jpg"] = sfumato.ConcealedFeatures(
        rng.uniform(0, 400, (80, 4)), strange, "random-2", image_size=(640, 480)
    )
    hidden["empty.jpg"] = sfumato.ConcealedFeatures(np.zeros((0, 4)), first.code[:0], "random-2", image_size=(640, 480))
    hidden["sizeless.jpg"] = sfumato.ConcealedFeatures(first.keypoints, first.code, first.recipe)
    sfumato.save(tmp_path / "query.sfm", hidden)
    with sfumato.load(tmp_path / "query.sfm") as archive:
        yield archive


def spoil(path, name):
    with sfumato.load(path) as archive:
        raw = archive[name].code.origin.tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(raw[:64])] ^= 1
    path.write_bytes(content)


def test_every_query_gets_a_pose_or_a_reason(queries, map_, place, places, tmp_path):
    cameras = dict.fromkeys(("query/0.jpg", "elsewhere.jpg", "empty.jpg", "of nobody"), place.camera)
    outcome = localize(queries, map_, cameras)
    assert set(outcome.results) == set(queries)
    assert set(outcome.poses) == {"query/0.jpg", "query/1.jpg"}
    for name, pose in outcome.poses.items():
        assert pose_error(pose, place.poses[name])[0] < (0.02 if name in cameras else 0.5)
    assert outcome.guessed == ["query/1.jpg"]
    assert outcome.doubts == {}
    assert outcome.reasons["empty.jpg"] == "the query has no features"
    assert outcome.reasons["sizeless.jpg"].startswith("no camera is given")
    assert outcome.reasons["elsewhere.jpg"].startswith(("too few", "no pose"))
    facts = summarise(outcome)
    assert (facts["queries"], facts["localized"], facts["cameras guessed"]) == (5, 2, 1)
    table = save_localizations(tmp_path / "poses.txt", outcome, LocalizeParams(), {"map": "public points"})
    check_files(tmp_path, table, outcome)


def check_files(folder, table, outcome):
    assert table == folder / "poses.json"
    back = read_poses(folder / "poses.txt")
    assert set(back) == set(outcome.poses)
    assert all(pose_error(back[name], pose) == pytest.approx((0, 0), abs=1e-6) for name, pose in outcome.poses.items())
    content = json.loads(table.read_text())
    assert content["params"]["max_error_px"] == 12
    assert content["queries"]["query/1.jpg"]["camera"] == "guessed"
    assert content["queries"]["query/0.jpg"]["inliers"] == outcome.results["query/0.jpg"].inliers
    assert content["queries"]["empty.jpg"] == {
        "localized": False, "inliers": 0, "matches": 0, "candidates": 5, "camera": "given",
        "reason": "the query has no features", "doubt": "",
    }  # fmt: skip
    assert not [key for key in content["queries"]["query/0.jpg"] if "pose" in key]
    assert not [path for path in folder.iterdir() if path.suffix == ".part"]


def test_a_query_without_candidates_has_no_pose(queries, map_, place):
    """hloc takes the pose of a database image here."""
    wanted = {"query/0.jpg": ("not/mapped.jpg",), "query/1.jpg": ()}
    outcome = localize(queries, map_, None, wanted)
    assert not outcome.poses
    assert outcome.strangers == {"not/mapped.jpg"}
    assert outcome.reasons["query/0.jpg"] == "no image of the map to compare with"


def test_a_damaged_query_is_named_and_does_not_stop_the_others(queries, map_, place, places):
    spoil(queries.path, "query/0.jpg")
    with sfumato.load(queries.path) as damaged:
        outcome = localize(damaged, map_, dict.fromkeys(places.QUERIES, place.camera))
    assert list(outcome.unreadable) == ["query/0.jpg"]
    assert list(outcome.poses) == ["query/1.jpg"]


def test_cameras_of_another_size_are_told_before_any_work(queries, map_):
    wrong = dict.fromkeys(["query/0.jpg", "query/1.jpg"], Camera("PINHOLE", 1280, 960, (1000, 1000, 640, 480)))
    with pytest.raises(InputError, match="2 cameras"):
        localize_each(queries, wrong, lambda *query: pytest.fail("work was done"))


def test_what_can_not_be_compared_names_the_query(queries, map_, place, places):
    points = {"db/a.jpg": PublicPoints(map_.model.numbers[:1], np.ones((1, 16)))}
    points["db/a.jpg"] = PublicPoints(map_.model.numbers[map_.model.sight("db/a.jpg").landmarks[:1]], np.ones((1, 16)))
    other = Map(map_.model, points, is_public=True)
    with pytest.raises(InputError, match=r"'elsewhere\.jpg'"):
        localize(queries, other)


def test_an_output_that_can_not_be_is_told_before_any_work(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "images.bin").write_bytes(b"x")
    check_poses_output(tmp_path / "poses.txt", model, {})
    for path, message in (
        ("poses.json", "beside it"), (".", "folder"), ("none/poses.txt", "folder is missing"),
        ("model/images.bin", "it is images.bin of the map"),
    ):  # fmt: skip
        with pytest.raises(FileError, match=message):
            check_poses_output(tmp_path / path, model, {})


def test_neither_list_nor_table_replaces_what_is_read_or_of_another_kind(tmp_path):
    for name in ("cameras.txt", "poses.json"):
        (tmp_path / name).write_text("mine")
    for overwrite, message in ((False, "exists"), (True, "is not a table of localized queries")):
        with pytest.raises(FileError, match=message):
            check_poses_output(tmp_path / "poses.txt", tmp_path / "model", {}, overwrite=overwrite)
    with pytest.raises(FileError, match="cameras"):
        check_poses_output(
            tmp_path / "cameras.txt", tmp_path / "model", {"the list of cameras": tmp_path / "cameras.txt"},
            overwrite=True,
        )  # fmt: skip


def test_cameras_of_other_images_are_not_just_ignored(queries, map_, place):
    with pytest.raises(InputError, match="2 cameras"):
        localize_each(queries, dict.fromkeys(["0.png", "1.png"], place.camera), lambda *query: pytest.fail("worked"))


def test_queries_that_no_list_holds_are_left_out_and_counted(places, place, map_, tmp_path):
    hidden = place.concealed(places.QUERIES)
    sfumato.save(tmp_path / "q.sfm", {"a b.jpg": hidden["query/0.jpg"], "c.jpg": hidden["query/1.jpg"]})
    cameras = dict.fromkeys(("a b.jpg", "c.jpg"), place.camera)
    with sfumato.load(tmp_path / "q.sfm") as archive:
        outcome = localize(archive, map_, cameras, output=tmp_path / "listed.txt")
        everything = localize(archive, map_, cameras)
    assert set(everything.poses) == {"a b.jpg", "c.jpg"}
    assert list(outcome.poses) == ["c.jpg"]
    assert list(outcome.unlisted) == ["a b.jpg"]
    assert "do not rename and conceal them again" in outcome.reasons["a b.jpg"]
    facts = summarise(outcome)
    assert (facts["queries"], facts["localized"], facts["not listed"]) == (2, 1, ["a b.jpg"])
    table = save_localizations(tmp_path / "poses.txt", outcome, LocalizeParams())
    assert list(json.loads(table.read_text())["unlisted"]) == ["a b.jpg"]


def test_a_camera_that_does_not_fit_is_doubted(queries, map_, places, tmp_path):
    wrong = dict.fromkeys(places.QUERIES, Camera("PINHOLE", 640, 480, (250, 250, 320, 240)))
    outcome = localize(queries, map_, wrong)
    assert set(outcome.doubts) >= set(places.QUERIES)
    assert summarise(outcome)["cameras in doubt"] == outcome.doubts
    table = json.loads(save_localizations(tmp_path / "poses.txt", outcome, LocalizeParams()).read_text())
    assert "px instead of 250" in table["queries"]["query/0.jpg"]["doubt"]


def test_a_full_disk_leaves_what_was_there(queries, map_, tmp_path, monkeypatch):
    (tmp_path / "poses.json").write_text("old")
    outcome = localize(queries, map_, None, {})

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(FileError, match="space left"):
        save_localizations(tmp_path / "poses.txt", outcome, LocalizeParams())
    assert (tmp_path / "poses.json").read_text() == "old"
    left = {path.name for path in tmp_path.iterdir()} - {"query.sfm-wal", "query.sfm-shm"}  # queries are open
    assert left == {"poses.json", "query.sfm"}


def test_from_an_archive_to_poses_each_step_is_a_call(places, place, tmp_path):
    views = [name for name in places.VIEWS if " " not in name]
    place.archive(tmp_path / "private.sfm", views)
    place.archive(tmp_path / "query.sfm", places.QUERIES)
    write_cameras(tmp_path / "cameras.txt", dict.fromkeys([*views, *places.QUERIES], place.camera))
    assert sfumato.match_archive(tmp_path / "private.sfm", tmp_path / "m.h5").matches > 100
    for matches in (str(tmp_path / "m.h5"), None):
        folder = tmp_path / f"model-{matches is None}"
        model = sfumato.build_map(str(tmp_path / "private.sfm"), matches, folder, cameras=tmp_path / "cameras.txt")
        assert model.statistics.registered == len(views), model.reason
        assert (model.folder, dict(model.unreadable), model.guessed) == (folder, {}, frozenset())
    output = tmp_path / "poses.txt"
    poses = sfumato.localize(tmp_path / "query.sfm", folder, cameras=tmp_path / "cameras.txt", output=output)
    assert list(poses) == sorted(places.QUERIES)
    assert all(isinstance(pose, sfumato.Pose) for pose in poses.values())
    assert set(read_poses(output)) == set(places.QUERIES)
    with sfumato.load(tmp_path / "query.sfm") as archive, load_map(folder) as map_:
        nothing = sfumato.localize(archive, map_, dict.fromkeys(archive, place.camera), {"query/0.jpg": []})
    assert {type(why) for why in nothing.values()} == {NoPose}
    assert "no image" in nothing["query/0.jpg"].reason
    with pytest.raises(KeyError):
        nothing["another.jpg"]
    with pytest.raises(InputError, match="sequential:3"):
        sfumato.localize(tmp_path / "query.sfm", folder, pairs="sequential:3")
    with pytest.raises(FileError, match=r"query\.sfm"):
        sfumato.localize(tmp_path / "query.sfm", folder, output=tmp_path / "query.sfm", overwrite=True)
    files = sfumato.export_hloc(tmp_path / "private.sfm", tmp_path / "m.h5", tmp_path / "hloc").files
    assert [path.name for path in files] == ["features.h5", "matches.h5", "pairs.txt"]


def test_cameras_are_guessed_from_sizes_and_focal_lengths(places, place, tmp_path):
    place.archive(tmp_path / "private.sfm", places.VIEWS)
    known = {places.VIEWS[0]: float(place.camera.params[0])}
    model = sfumato.build_map(tmp_path / "private.sfm", None, tmp_path / "model", focal_lengths=known)
    assert model.guessed == frozenset(places.VIEWS[1:])
    with pytest.raises(InputError, match="no camera"):
        sfumato.build_map(tmp_path / "private.sfm", None, tmp_path / "other", cameras={places.VIEWS[0]: place.camera})
    with pytest.raises(FileError, match="--overwrite"):
        sfumato.build_map(tmp_path / "private.sfm", None, tmp_path / "model")


def test_focal_lengths_that_go_with_an_archive_are_used(places, place, tmp_path):
    focal = float(place.camera.params[0])
    views, queries = place.concealed(places.VIEWS), place.concealed(places.QUERIES)
    views = {name: replace(hidden, focal_px=focal) for name, hidden in views.items()}
    queries["query/0.jpg"] = replace(queries["query/0.jpg"], focal_px=focal)
    sfumato.save(tmp_path / "private.sfm", views)
    sfumato.save(tmp_path / "query.sfm", queries)
    model = sfumato.build_map(tmp_path / "private.sfm", None, tmp_path / "model")
    assert (model.guessed, model.statistics.registered) == (frozenset(), len(places.VIEWS))
    made = read_model(tmp_path / "model")
    assert len(made.names) == len(places.VIEWS)
    other = sfumato.build_map(
        tmp_path / "private.sfm", None, tmp_path / "other", focal_lengths=dict.fromkeys(places.VIEWS[:2], 1.1 * focal)
    )
    assert other.guessed == frozenset()
    outcome = sfumato.localize(tmp_path / "query.sfm", tmp_path / "model", output=tmp_path / "poses.txt")
    assert (outcome.guessed, outcome.from_archive) == (["query/1.jpg"], ["query/0.jpg"])
    assert set(outcome.poses) == set(places.QUERIES)
    content = json.loads((tmp_path / "poses.json").read_text())
    assert {name: facts["camera"] for name, facts in content["queries"].items()} == {
        "query/0.jpg": "from the archive",
        "query/1.jpg": "guessed",
    }
    cameras = dict.fromkeys(places.QUERIES, place.camera)
    assert sfumato.localize(tmp_path / "query.sfm", tmp_path / "model", cameras).from_archive == []


def test_one_camera_of_colmaps_serves_all_images(places, place, tmp_path):
    place.archive(tmp_path / "private.sfm", places.VIEWS)
    place.archive(tmp_path / "query.sfm", places.QUERIES)
    (tmp_path / "cameras.txt").write_text("# COLMAP's\n1 PINHOLE 640 480 500 500 320 240\n")
    model = sfumato.build_map(tmp_path / "private.sfm", None, tmp_path / "model", tmp_path / "cameras.txt")
    assert (model.guessed, model.statistics.registered) == (frozenset(), len(places.VIEWS))
    outcome = sfumato.localize(tmp_path / "query.sfm", tmp_path / "model", tmp_path / "cameras.txt")
    assert (outcome.guessed, set(outcome.poses)) == ([], set(places.QUERIES))
