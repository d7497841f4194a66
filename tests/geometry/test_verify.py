# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pycolmap
import pytest

from sfumato.geometry.colmap import to_colmap, to_rigid, write_database
from sfumato.geometry.verify import VerifyParams, explain_matches, verify
from sfumato.types.scene import Matches, Pose


def spoilt(matches, share, seed=0):
    """Matches of which a share has wrong partners; and which rows are still right."""
    rng = np.random.default_rng(seed)
    rows = matches.indices.copy()
    wrong = rng.permutation(len(rows))[: int(share * len(rows))]
    rows[wrong, 1] = np.roll(rows[wrong, 1], 1)
    right = np.ones(len(rows), bool)
    right[wrong] = False
    return Matches(rows, matches.distances), right


@pytest.fixture(scope="module")
def scene(make_scene):
    return make_scene(4, 120)


@pytest.fixture(scope="module")
def noisy(scene):
    """Half of all matches are wrong; one pair has too few, and one only wrong ones."""
    matches, right = {}, {}
    for number, (pair, perfect) in enumerate(scene.matches.items()):
        matches[pair], right[pair] = spoilt(perfect, 0.5, number)
    few, wrong = ("00.jpg", "01.jpg"), ("00.jpg", "02.jpg")
    matches[few] = Matches(scene.matches[few].indices[:14], scene.matches[few].distances[:14])
    matches[wrong], right[wrong] = spoilt(scene.matches[wrong], 1.0)
    return matches, right, [few, wrong]


def written(path, scene, matches):
    write_database(path, scene.keypoints, scene.cameras, matches)
    return path


def two_views(path, pair):
    with pycolmap.Database.open(str(path)) as database:
        numbers = {image.name: image.image_id for image in database.read_all_images()}
        return database.read_two_view_geometry(numbers[pair[0]], numbers[pair[1]])


def check(path, outcome, matches, right, refused):
    told = {pair.names: pair for pair in outcome.pairs}
    assert set(told) == set(matches)
    for pair, rows in right.items():
        geometry = two_views(path, pair)
        assert told[pair].matches == len(matches[pair])
        assert told[pair].inliers == len(geometry.inlier_matches)
        if pair in refused:
            assert (told[pair].inliers, told[pair].configuration) == (0, "degenerate")
            continue
        assert told[pair].configuration == "calibrated"
        good = {tuple(row) for row in matches[pair].indices[rows].tolist()}
        kept = {tuple(row) for row in geometry.inlier_matches.tolist()}
        assert len(good & kept) >= 0.95 * len(good)
        assert len(kept - good) <= 0.1 * len(rows)
    assert outcome.verified == len(matches) - len(refused)
    assert outcome.inliers == sum(pair.inliers for pair in outcome.pairs)


def test_right_matches_stay_and_wrong_ones_go(tmp_path, scene, noisy):
    path = written(tmp_path / "d.db", scene, noisy[0])
    check(path, verify(path), *noisy)


def test_with_known_poses_too(tmp_path, scene, noisy):
    path = written(tmp_path / "d.db", scene, noisy[0])
    check(path, verify(path, poses=scene.poses), *noisy)


def test_neither_threads_nor_order_change_anything(tmp_path, scene, noisy):
    results = []
    for threads, matches in ((1, noisy[0]), (2, dict(reversed(noisy[0].items())))):
        path = written(tmp_path / f"{threads}.db", scene, matches)
        outcome = verify(path, VerifyParams(threads=threads))
        results.append((outcome, [two_views(path, pair).inlier_matches.tolist() for pair in noisy[0]]))
    assert results[0] == results[1]


def test_progress_sees_every_pair(tmp_path, scene, noisy):
    path, seen = written(tmp_path / "d.db", scene, noisy[0]), []
    verify(path, progress=lambda pairs: (seen.append(1) or pair for pair in pairs))
    assert len(seen) == len(noisy[0])


def test_an_inlier_ratio_that_is_not_reached(tmp_path, scene, noisy):
    path = written(tmp_path / "d.db", scene, noisy[0])
    assert verify(path, VerifyParams(min_inlier_ratio=0.9)).verified == 0


@pytest.mark.parametrize("trusted", [True, False])
def test_wrong_matches_alone_are_not_believed(tmp_path, make_scene, trusted):
    """Among many draws one geometry always fits some; without the question whether that is chance it is taken."""
    scene = make_scene(3, 150)
    matches = {pair: spoilt(perfect, 1.0, number)[0] for number, (pair, perfect) in enumerate(scene.matches.items())}
    path = tmp_path / "d.db"
    write_database(path, scene.keypoints, scene.cameras, matches, trusted=trusted)
    assert verify(path).verified == 0
    for file in (path, *tmp_path.glob("d.db-*")):
        file.unlink()
    write_database(path, scene.keypoints, scene.cameras, matches, trusted=trusted)
    assert verify(path, VerifyParams(max_false_alarms=np.inf)).verified > 0


def test_cameras_that_are_not_known_are_verified_without(tmp_path, scene, noisy):
    path = tmp_path / "d.db"
    write_database(path, scene.keypoints, scene.cameras, noisy[0], trusted=False)
    outcome = verify(path)
    assert outcome.verified == len(noisy[0]) - 2
    assert {pair.configuration for pair in outcome.pairs} == {"uncalibrated", "degenerate"}


def test_poses_that_are_wrong_or_missing(tmp_path, scene):
    path = written(tmp_path / "d.db", scene, scene.matches)
    names = sorted(scene.poses)
    poses = dict(scene.poses)
    del poses[names[0]]
    poses[names[1]] = Pose(poses[names[1]].rotation, poses[names[1]].translation + np.array([0.5, 0.5, 0]))
    outcome = verify(path, poses=poses)
    for pair in outcome.pairs:
        if names[0] in pair.names:
            assert pair.inliers == 0
        elif names[1] in pair.names:
            assert pair.inliers < 0.3 * pair.matches
        else:
            assert pair.inliers > 0.95 * pair.matches


def test_two_images_from_one_place_have_no_epipolar_lines(tmp_path, scene):
    path = written(tmp_path / "d.db", scene, scene.matches)
    here = scene.poses["00.jpg"]
    outcome = verify(path, poses=dict.fromkeys(scene.poses, here))
    assert outcome.verified <= len(outcome.pairs)


def test_nothing_to_verify(tmp_path, scene):
    path = written(tmp_path / "d.db", scene, {})
    outcome = verify(path)
    assert (outcome.pairs, outcome.verified, outcome.matches) == ((), 0, 0)
    assert repr(outcome) == "VerifyOutcome(0 of 0 pairs, 0 of 0 matches)"


def test_a_map_explains_its_matches_and_a_wrong_one_does_not(tmp_path, scene):
    path = written(tmp_path / "a.db", scene, scene.matches)
    verify(path)

    def placed(poses):
        model = pycolmap.Reconstruction()
        for number, name in enumerate(sorted(poses), 1):
            model.add_camera_with_trivial_rig(to_colmap(scene.cameras[name], number))
            image = pycolmap.Image(name=name, camera_id=number, image_id=number + 10)  # not the database's number
            model.add_image_with_trivial_frame(image, to_rigid(poses[name]))
        return model

    right = explain_matches(path, placed(scene.poses), 4.0)
    assert [pair.names for pair in right] == sorted(scene.matches)
    assert sum(pair.explained for pair in right) > 0.99 * sum(pair.inliers for pair in right)
    fewer = {name: scene.poses[name] for name in ("00.jpg", "02.jpg")}
    assert [pair.names for pair in explain_matches(path, placed(fewer), 4.0)] == [("00.jpg", "02.jpg")]
    turned = {**scene.poses, "00.jpg": scene.poses["03.jpg"], "03.jpg": scene.poses["00.jpg"]}
    wrong = {pair.names: pair for pair in explain_matches(path, placed(turned), 4.0)}
    assert wrong["01.jpg", "02.jpg"].explained == wrong["01.jpg", "02.jpg"].inliers
    assert wrong["00.jpg", "01.jpg"].explained < 0.3 * wrong["00.jpg", "01.jpg"].inliers
    mirrored = {name: Pose(pose.rotation, -pose.translation) for name, pose in scene.poses.items()}
    behind = explain_matches(path, placed(mirrored), 4.0)  # the same epipolar lines, all points behind the cameras
    assert sum(pair.explained for pair in behind) == 0
