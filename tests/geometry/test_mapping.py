# SPDX-License-Identifier: Apache-2.0
"""A map is made from exactly known scenes; what cannot be mapped gives a reason, and leaves nothing behind."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.geometry import mappers
from sfumato.geometry.cameras import default_camera
from sfumato.geometry.colmap import to_rigid
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import OtherModel, _connected, _doubt_parts, _MapPart, _Trial, map_keypoints
from sfumato.geometry.model_folder import MODEL_FILES
from sfumato.geometry.statistics import MapRun, MapStatistics, compare_with_truth, doubt_map, poses_of
from sfumato.geometry.verify import VerifiedPair, VerifyOutcome
from sfumato.matching.pairs import sequential
from sfumato.types.scene import Camera, Matches, Pose

NOTHING = Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))


def map_scenes(scenes, folder):
    """Map the images of several scenes at once; no match connects them."""
    keypoints, cameras, matches = (
        {key: value for scene in scenes for key, value in getattr(scene, kind).items()}
        for kind in ("keypoints", "cameras", "matches")
    )
    return map_keypoints(keypoints, cameras, matches, folder)


def misplace(model, rng):
    """Turn and shift every camera of a reconstruction at random."""
    for number in model.reg_image_ids():
        image = model.image(number)
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        pose = Pose(turn * np.sign(np.linalg.det(turn)), rng.normal(size=3))
        image.frame.set_cam_from_world(image.camera_id, to_rigid(pose))


def change_models(monkeypatch, change, names=("global",)):
    """Have mappers change each model that they made."""
    for name in names:

        def changed(work, params, ticks, real=mappers.MAPPERS[name]):
            models = real(work, params, ticks)
            for model in models:
                change(model)
            return models

        monkeypatch.setitem(mappers.MAPPERS, name, changed)


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_a_known_scene_comes_back(tmp_path, scene, mapper, capfd):
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", MapParams(mapper=mapper))
    assert outcome.folder == tmp_path / "model"
    assert (outcome.reason, outcome.unregistered, outcome.other_models) == ("", (), ())
    assert sorted(path.name for path in outcome.folder.iterdir()) == sorted(MODEL_FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    found = outcome.statistics
    assert (found.images, found.registered) == (6, 6)
    assert found.points > 0.9 * len(scene.points)
    assert 4 < found.track_length <= 6
    assert 0.2 < found.reprojection_error_px < 0.5
    assert outcome.verified.verified == 15
    made = pycolmap.Reconstruction(str(outcome.folder))
    assert made.num_points3D() == found.points
    errors = compare_with_truth(made, scene.poses)
    assert errors.median_position < 0.02
    assert errors.median_rotation < 0.1
    for camera in made.cameras.values():
        assert list(camera.params) == list(scene.cameras["00.jpg"].params)  # given, so trusted
    assert capfd.readouterr() == ("", "")


def test_the_keypoints_of_the_model_are_half_a_pixel_further(tmp_path, scene):
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model")
    made = pycolmap.Reconstruction(str(outcome.folder))
    for image in made.images.values():
        places = np.array([point.xy for point in image.points2D])
        assert np.allclose(places - 0.5, scene.keypoints[image.name][:, :2], atol=1e-4)


def test_half_a_pixel_would_be_noticed(tmp_path, make_scene):
    """The same scene with all keypoints half a pixel off fits worse: the convention is not a matter of taste."""
    exact = make_scene(noise_px=0.0)
    shifted = {name: keypoints + 0.5 for name, keypoints in exact.keypoints.items()}
    good = map_keypoints(exact.keypoints, exact.cameras, exact.matches, tmp_path / "a", poses=exact.poses)
    bad = map_keypoints(shifted, exact.cameras, exact.matches, tmp_path / "b", poses=exact.poses)
    assert good.statistics.reprojection_error_px < 0.01
    assert bad.statistics.reprojection_error_px > 10 * good.statistics.reprojection_error_px


@pytest.mark.parametrize("mapper", ["auto", "incremental", "global"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, make_scene, mapper):
    scene = make_scene(4, 100)
    for name in ("a", "b"):
        params = MapParams(seed=4, mapper=mapper, guessed=scene.cameras)
        map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / name, params)
    for file in MODEL_FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_with_known_poses_the_cameras_stay(tmp_path, scene):
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", poses=scene.poses)
    assert outcome.statistics.registered == 6
    assert outcome.statistics.points > 0.95 * len(scene.points)
    made = pycolmap.Reconstruction(str(outcome.folder))
    errors = compare_with_truth(made, scene.poses)
    assert errors.position.max() < 1e-9
    far = [np.linalg.norm(scene.points - point.xyz, axis=1).min() for point in made.points3D.values()]
    assert np.median(far) < 0.02


def test_images_without_a_pose_are_left_out(tmp_path, scene):
    poses = {name: pose for name, pose in scene.poses.items() if name != "03.jpg"}
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", poses=poses)
    assert (outcome.statistics.images, outcome.statistics.registered) == (5, 5)


def test_pairs_in_the_spelling_of_hloc_are_triangulated_too(tmp_path, scene):
    def deep(mapping):
        return {f"db/{name}": value for name, value in mapping.items()}

    matches = {(f"db-{first}", f"db-{second}"): found for (first, second), found in scene.matches.items()}
    keypoints, cameras, poses = deep(scene.keypoints), deep(scene.cameras), deep(scene.poses)
    outcome = map_keypoints(keypoints, cameras, matches, tmp_path / "model", poses=poses)
    assert outcome.verified.verified == 15
    assert outcome.statistics.points > 0.95 * len(scene.points)
    fewer = {name: rows for name, rows in keypoints.items() if name != "db/00.jpg"}
    assert map_keypoints(fewer, cameras, matches, tmp_path / "fewer", poses=poses).verified.verified == 10
    with pytest.raises(InputError, match=r"'db-xx.jpg'"):
        map_keypoints(
            keypoints, cameras, {**matches, ("db-00.jpg", "db-xx.jpg"): NOTHING}, tmp_path / "other", poses=poses
        )


def test_an_image_without_matches_among_posed_ones(tmp_path, scene):
    matches = {pair: rows for pair, rows in scene.matches.items() if "03.jpg" not in pair}
    outcome = map_keypoints(scene.keypoints, scene.cameras, matches, tmp_path / "model", poses=scene.poses)
    assert outcome.statistics.points > 0
    assert outcome.statistics.images == 6


def test_guessed_cameras_are_adjusted_and_given_ones_are_not(tmp_path, make_scene):
    scene = make_scene(6, 150)
    wrong = default_camera((640, 480), 700.0)  # 800 in truth
    cameras = dict.fromkeys(scene.cameras, wrong)
    params = MapParams(guessed=scene.cameras, shared_camera=True)
    outcome = map_keypoints(scene.keypoints, cameras, scene.matches, tmp_path / "guessed", params)
    assert outcome.statistics.registered == 6
    made = pycolmap.Reconstruction(str(outcome.folder))
    assert made.num_cameras() == 1
    assert made.cameras[1].focal_length == pytest.approx(795, abs=25)
    trusted = map_keypoints(scene.keypoints, cameras, scene.matches, tmp_path / "given", MapParams(shared_camera=True))
    kept = pycolmap.Reconstruction(str(trusted.folder))
    assert kept.cameras[1].focal_length == 700
    adjusted = replace(MapParams(shared_camera=True), refine_intrinsics=True)
    outcome = map_keypoints(scene.keypoints, cameras, scene.matches, tmp_path / "adjusted", adjusted)
    made = pycolmap.Reconstruction(str(outcome.folder))
    assert made.cameras[1].focal_length == pytest.approx(795, abs=25)


def test_two_scenes_are_two_maps_and_the_larger_is_kept(tmp_path, make_scene):
    large, small = make_scene(6), make_scene(4, seed=1, prefix="other/")
    outcome = map_scenes([large, small], tmp_path / "model")
    assert len(outcome.runs) == 2  # which agree on both scenes
    assert outcome.statistics.registered == 6
    assert outcome.statistics.images == 10
    other = OtherModel(tmp_path / "model" / "others" / "1", 4, 200)
    assert outcome.other_models == (other,)
    assert outcome.doubt == ()  # nothing connects the two: neither speaks against the other
    assert set(poses_of(pycolmap.Reconstruction(str(other.folder)))) == set(small.keypoints)
    assert outcome.unregistered == tuple(sorted(small.keypoints))
    names = {image.name for image in pycolmap.Reconstruction(str(tmp_path / "model")).images.values()}
    assert names == set(large.keypoints)


def test_images_of_another_scene_are_no_fault(tmp_path, make_scene):
    scenes = [make_scene(3, 150, seed=number, prefix=f"{number}/") for number in range(3)]
    outcome = map_scenes(scenes, tmp_path / "model")
    assert (outcome.statistics.registered, outcome.statistics.images) == (3, 9)
    assert outcome.doubt == ()
    assert [(other.images, other.doubt) for other in outcome.other_models] == [(3, ()), (3, ())]


def test_a_separate_map_that_is_wrong_is_in_doubt(tmp_path, make_scene, monkeypatch):
    large, small = make_scene(5, 120), make_scene(4, 120, seed=1, prefix="other/")
    rng = np.random.default_rng(0)

    def spoil(model):
        if set(poses_of(model)) <= set(small.keypoints):
            misplace(model, rng)

    change_models(monkeypatch, spoil, names=("incremental", "global"))
    outcome = map_scenes([large, small], tmp_path / "model")
    assert outcome.doubt == ()
    (other,) = outcome.other_models
    assert [reason for reason in other.doubt if "verified matches" in reason]
    assert [reason for reason in other.doubt if "differ from it" in reason]


def test_runs_are_compared_scene_by_scene(tmp_path, make_scene, monkeypatch):
    """The largest map of one run may show another scene than the largest of the next."""
    first, second = make_scene(4, 120), make_scene(4, 110, seed=1, prefix="other/")

    def shrink(model):
        if set(poses_of(model)) <= set(first.keypoints):
            for number in list(model.points3D)[:30]:
                model.delete_point3D(number)

    change_models(monkeypatch, shrink)
    outcome = map_scenes([first, second], tmp_path / "model")
    assert outcome.doubt == ()
    assert [other.doubt for other in outcome.other_models] == [()]
    assert all(run.registered == 4 and run.difference_deg < 1 for run in outcome.runs)


def test_two_mappers_that_agree_are_convincing(tmp_path, scene):
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model")
    assert [(run.mapper, run.seed, run.registered) for run in outcome.runs] == [("incremental", 0, 6), ("global", 0, 6)]
    assert [run.is_best for run in outcome.runs].count(True) == 1
    assert all(run.explained_share > 0.99 and run.difference_deg < 0.5 for run in outcome.runs)
    assert (outcome.doubt, outcome.doubtful_images) == ((), {})


def test_one_mapper_is_one_run(tmp_path, scene):
    params = MapParams(mapper="global", seed=7)
    (run,) = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", params).runs
    assert (run.mapper, run.seed, run.is_best, run.difference_deg) == ("global", 7, True, 0.0)


def test_a_map_that_contradicts_its_matches_is_in_doubt_and_not_kept(tmp_path, make_scene, monkeypatch):
    """A mapper that puts the cameras elsewhere is not believed, and a right one is preferred."""
    scene, rng = make_scene(5, 120), np.random.default_rng(0)
    change_models(monkeypatch, lambda model: misplace(model, rng))
    one = MapParams(mapper="global")
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "wrong", one)
    assert outcome.folder is not None
    assert [reason for reason in outcome.doubt if "verified matches" in reason]
    assert set(outcome.doubtful_images) == set(scene.keypoints)
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "right")
    first, second, third, _ = outcome.runs
    assert (first.mapper, first.is_best) == ("incremental", True)
    assert second.difference_deg > 10
    assert second.score < first.score
    assert third.difference_deg < 1
    (reason,) = outcome.doubt  # another seed of the same mapper is no second opinion
    assert "the global mapper's maps" in reason


def verified_pairs(*pairs, inliers=40):
    return VerifyOutcome(tuple(VerifiedPair(names, 50, inliers, "calibrated") for names in pairs))


def test_parts_that_verified_pairs_connect_are_in_doubt(scene):
    run, names = MapRun(mapper="global", seed=0), sorted(scene.poses)
    parts = tuple(_MapPart(None, run, {name: scene.poses[name] for name in names[i : i + 2]}) for i in (0, 2, 4))
    trial = _Trial(run, parts)
    assert _doubt_parts(parts[0], trial, verified_pairs(("00.jpg", "01.jpg"))) == []
    joined = verified_pairs(("00.jpg", "01.jpg"), ("00.jpg", "05.jpg"), ("05.jpg", "01.jpg"))
    for part in (parts[0], parts[2]):
        (reason,) = _doubt_parts(part, trial, joined)
        assert "fall into 2 models" in reason
        assert "2 verified pairs" in reason
    assert _doubt_parts(parts[1], trial, joined) == []


def test_images_are_connected_through_chains_of_verified_pairs():
    pairs = verified_pairs(("a", "b"), ("d", "c"), ("c", "b"), ("x", "y"))
    assert _connected({"a"}, pairs) == {"a", "b", "c", "d"}
    assert _connected({"x", "y"}, pairs) == {"x", "y"}
    assert _connected({"a"}, verified_pairs(("a", "b"), inliers=0)) == {"a"}


def test_few_images_points_and_short_tracks_are_told():
    run = MapRun(mapper="incremental", seed=0, verified=100, explained=95)
    good = MapStatistics(images=6, registered=6, points=900, track_length=3.5, observations_per_image=500)
    assert doubt_map(good, run) == []
    for change, word in (
        ({"registered": 2}, "only 2 of 6 images"),
        ({"observations_per_image": 12.0}, "sees 12 of its points"),
        ({"track_length": 2.04}, "track length is 2.04"),
    ):
        (reason,) = doubt_map(replace(good, **change), run)
        assert word in reason
    (reason,) = doubt_map(good, replace(run, explained=40))
    assert "explains 40% of the 100 verified matches" in reason


@pytest.fixture
def no_map(tmp_path, capfd):
    """Ask for a map that cannot be; return the reason, after a look at what else happened."""

    def ask(keypoints, cameras, matches, params=None):
        outcome = map_keypoints(keypoints, cameras, matches, tmp_path / "model", params)
        assert outcome.folder is None
        assert outcome.statistics.registered == 0
        assert outcome.unregistered == tuple(sorted(keypoints))
        assert not [*tmp_path.iterdir()]
        assert capfd.readouterr() == ("", "")
        return outcome.reason

    return ask


def test_no_image_and_one_image(no_map, scene):
    assert no_map({}, {}, {}) == "a map needs two images or more, there are none"
    one = {"00.jpg": scene.keypoints["00.jpg"]}
    assert no_map(one, scene.cameras, {}) == "a map needs two images or more, there is one"


def test_images_without_features(no_map, scene):
    empty = dict.fromkeys(list(scene.keypoints)[1:], np.zeros((0, 4), np.float32))
    reason = no_map({**scene.keypoints, **empty}, scene.cameras, {})
    assert reason == "5 of 6 images have no features: a map needs two images with features"


def test_one_image_without_features_does_not_stop_the_others(tmp_path, scene):
    keypoints = {**scene.keypoints, "03.jpg": np.zeros((0, 4), np.float32)}
    matches = {pair: NOTHING if "03.jpg" in pair else rows for pair, rows in scene.matches.items()}
    outcome = map_keypoints(keypoints, scene.cameras, matches, tmp_path / "model")
    assert outcome.statistics.registered == 5
    assert outcome.unregistered == ("03.jpg",)


def test_no_matches(no_map, scene):
    told = "no two of 6 images have a match"
    assert told in no_map(scene.keypoints, scene.cameras, {})
    assert told in no_map(scene.keypoints, scene.cameras, dict.fromkeys(scene.matches, NOTHING))


def test_features_that_do_not_match_are_not_blamed_on_the_cameras(no_map, scene):
    keypoints = {name: np.tile(rows, (20, 1)) for name, rows in scene.keypoints.items()}
    few = {pair: Matches(found.indices[:8], found.distances[:8]) for pair, found in scene.matches.items()}
    for matches in (few, dict.fromkeys(scene.matches, NOTHING)):
        reason = no_map(keypoints, scene.cameras, matches)
        for word in ("bandwidth", "the same key", "sfumato inspect"):
            assert word in reason
        assert "overlap" not in reason


def test_matches_at_random(no_map, make_scene):
    scene, rng = make_scene(3, 100), np.random.default_rng(0)
    matches = {}
    for pair, rows in scene.matches.items():
        shuffled = np.stack([rows.indices[:, 0], rng.permutation(rows.indices[:, 1])], axis=1)
        matches[pair] = Matches(shuffled, rows.distances)
    reason = no_map(scene.keypoints, scene.cameras, matches)
    assert "pairs of images" in reason
    assert "check the cameras" in reason


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_cameras_that_never_move(no_map, scene, mapper):
    keypoints = dict.fromkeys(scene.keypoints, scene.keypoints["00.jpg"])
    rows = np.stack([np.arange(len(scene.keypoints["00.jpg"]))] * 2, axis=1).astype(np.int32)
    matches = dict.fromkeys(scene.matches, Matches(rows, np.zeros(len(rows), np.float32)))
    reason = no_map(keypoints, scene.cameras, matches, MapParams(mapper=mapper))
    assert "check the cameras" in reason


def test_wrong_intrinsics_give_a_result(tmp_path, make_scene):
    scene = make_scene(4, 100)
    wrong = dict.fromkeys(scene.cameras, Camera("PINHOLE", 640, 480, (400.0, 395.0, 322.5, 238.5)))
    outcome = map_keypoints(scene.keypoints, wrong, scene.matches, tmp_path / "model")
    right = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "right")
    assert outcome.reason or outcome.statistics.reprojection_error_px > right.statistics.reprojection_error_px


def test_mistakes_are_errors_and_leave_nothing(tmp_path, scene):
    with pytest.raises(InputError, match="no camera"):
        map_keypoints(scene.keypoints, {}, scene.matches, tmp_path / "model")
    with pytest.raises(InputError, match="here"):
        map_keypoints(scene.keypoints, scene.cameras, {("00.jpg", "x"): NOTHING, **scene.matches}, tmp_path / "model")
    assert not [*tmp_path.iterdir()]


def test_an_existing_map_is_refused_before_any_work(tmp_path, scene):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "cameras.bin").write_text("old")

    def progress(stage, items, total):
        raise AssertionError("nothing was to be done")

    with pytest.raises(FileError, match="already"):
        map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", progress=progress)
    params = MapParams(overwrite=True)
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", params)
    assert pycolmap.Reconstruction(str(outcome.folder)).num_reg_images() == 6


def test_a_failure_leaves_the_old_map(tmp_path, scene):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "cameras.bin").write_text("old")
    outcome = map_keypoints(scene.keypoints, scene.cameras, {}, tmp_path / "model", MapParams(overwrite=True))
    assert outcome.folder is None
    assert (tmp_path / "model" / "cameras.bin").read_text() == "old"


def test_what_completes_a_map_is_there_when_it_appears(tmp_path, scene):
    def complete(folder: Path) -> None:
        assert pycolmap.Reconstruction(str(folder)).num_reg_images() == 6
        assert not (tmp_path / "model").exists()
        (folder / "landmarks.sfm").write_text("concealed")

    map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", complete=complete)
    assert (tmp_path / "model" / "landmarks.sfm").exists()


def test_a_map_that_can_not_be_completed_does_not_appear(tmp_path, scene):
    def complete(folder: Path) -> None:
        raise FileError("no")

    with pytest.raises(FileError, match="no"):
        map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", complete=complete)
    assert not [*tmp_path.iterdir()]


def test_progress_goes_through_both_stages(tmp_path, scene):
    counted = {}

    def progress(stage, items, total):
        for item in items:
            counted.setdefault(stage, [total, 0])[1] += 1
            yield item

    map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", progress=progress)
    assert counted["verifying"] == [15, 15]
    assert counted["mapping"][0] == 6  # the incremental mapper, image by image
    assert counted["mapping"][1] >= 5 + 1  # and the global one


def test_a_stop_from_within_leaves_nothing(tmp_path, scene):
    def progress(stage, items, total):
        for number, item in enumerate(items):
            if stage == "mapping" and number == 3:
                raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model", progress=progress)
    assert not [*tmp_path.iterdir()]


def test_colmap_that_gives_up_is_a_reason(tmp_path, scene, monkeypatch, no_map):
    def fails(*arguments, **options):
        raise RuntimeError("[incremental.cc:1] Check failed: something\nmore")

    monkeypatch.setattr(pycolmap, "incremental_mapping", fails)
    outcome = map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model")
    assert [run.registered for run in outcome.runs] == [0, 6, 0, 6]  # the other mapper made one
    shutil.rmtree(tmp_path / "model")
    reason = no_map(scene.keypoints, scene.cameras, scene.matches, MapParams(mapper="incremental"))
    assert reason == "COLMAP stopped: [incremental.cc:1] Check failed: something"

    def full(*arguments, **options):
        raise RuntimeError("SQLite error: database or disk is full")

    monkeypatch.setattr(pycolmap, "incremental_mapping", full)
    with pytest.raises(FileError, match="Free"):
        map_keypoints(scene.keypoints, scene.cameras, scene.matches, tmp_path / "model")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_the_fountain_is_mapped_where_it_was_surveyed(tmp_path, shared_data):
    """Eleven photos with raw SIFT, each matched with the two next ones, against surveyed cameras in metres."""
    folder = shared_data / "posed" / "fountain-P11"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    posed = read_posed_folder(folder)
    features = {name: sfumato.extract(path, max_features=2000) for name, path in posed.paths.items()}
    matches = {
        pair: sfumato.match(*(features[name].descriptors for name in pair)) for pair in sequential(posed.names, 2)
    }
    keypoints = {name: found.keypoints for name, found in features.items()}
    outcome = map_keypoints(keypoints, posed.cameras, matches, tmp_path / "model")
    assert outcome.statistics.registered == 11
    assert outcome.statistics.points > 1200
    assert outcome.statistics.reprojection_error_px < 0.6
    errors = compare_with_truth(pycolmap.Reconstruction(str(outcome.folder)), posed.poses)
    assert errors.median_position < 0.02
    assert errors.median_rotation < 0.3
    assert errors.median_relative < 0.3
