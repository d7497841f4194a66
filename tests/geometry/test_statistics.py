# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import numpy as np
import pycolmap
import pytest

from sfumato.geometry.colmap import from_rigid, to_colmap, to_rigid
from sfumato.geometry.statistics import (
    FEW_IMAGES,
    MOST_PAIRS,
    MapRun,
    MapStatistics,
    _relative_error,
    align,
    compare_poses,
    compare_with_truth,
    doubt_agreement,
    pose_differences,
    poses_of,
    statistics_of,
)
from sfumato.types.scene import Camera, Pose, rotation_of

CAMERA = Camera("PINHOLE", 640, 480, (800.0, 790.0, 322.5, 238.5))


def moved(poses, scale=2.5, seed=0):
    """The same cameras in another world: turned, shifted and scaled, as pycolmap does it."""
    rng = np.random.default_rng(seed)
    turn = pycolmap.Rotation3d(rotation_of(rng.standard_normal(4)))
    similarity = pycolmap.Sim3d(scale, turn, 5 * rng.standard_normal(3))
    return {name: from_rigid(similarity.transform_camera_world(to_rigid(pose))) for name, pose in poses.items()}


def reconstruction_of(poses):
    made = pycolmap.Reconstruction()
    made.add_camera_with_trivial_rig(to_colmap(CAMERA, 1))
    for number, (name, pose) in enumerate(poses.items(), 1):
        image = pycolmap.Image(name=name, camera_id=1, image_id=number)
        made.add_image_with_trivial_frame(image, to_rigid(pose))
    return made


def shifted(pose, by):
    return Pose(pose.rotation, pose.translation - pose.rotation @ np.asarray(by))


def test_another_world_is_no_error(scene):
    errors = compare_poses(moved(scene.poses), scene.poses)
    assert errors.aligned
    assert errors.names == tuple(sorted(scene.poses))
    assert errors.missing == ()
    assert max(errors.position.max(), errors.rotation.max()) < 1e-6
    assert max(errors.relative_rotation.max(), errors.relative_direction.max()) < 1e-6
    assert len(errors.relative_rotation) == 15


def test_the_alignment_is_that_of_pycolmap(scene):
    rng = np.random.default_rng(1)
    found = {name: shifted(pose, 0.01 * rng.standard_normal(3)) for name, pose in moved(scene.poses).items()}
    errors = compare_poses(found, scene.poses)
    theirs = pycolmap.align_reconstructions_via_proj_centers(
        reconstruction_of(found), reconstruction_of(scene.poses), 0.5
    )
    for name, position, rotation in zip(errors.names, errors.position, errors.rotation, strict=True):
        pose = theirs.transform_camera_world(to_rigid(found[name]))
        centre = pose.tgt_origin_in_src()
        assert position == pytest.approx(np.linalg.norm(centre - scene.poses[name].center), abs=1e-3)
        angle = pose.rotation.angle_to(to_rigid(scene.poses[name]).rotation)
        assert rotation == pytest.approx(np.rad2deg(angle), abs=0.02)


def test_one_wrong_camera_does_not_spoil_the_others(scene):
    found = moved(scene.poses)
    found["02.jpg"] = shifted(found["02.jpg"], (40, 0, 0))
    errors = compare_poses(found, scene.poses)
    wrong = errors.names.index("02.jpg")
    others = np.delete(errors.position, wrong)
    assert others.max() < 1e-6
    assert errors.position[wrong] == pytest.approx(16)  # 40 in a world 2.5 times as large
    assert errors.median_position < 1e-6


def test_names_join_and_missing_images_are_named(scene):
    found = moved(scene.poses)
    del found["04.jpg"]
    found["stranger.jpg"] = found["00.jpg"]
    errors = compare_poses(found, scene.poses)
    assert errors.missing == ("04.jpg",)
    assert len(errors.names) == 5
    assert "5 images, 1 missing" in repr(errors)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images_have_relative_errors_only(scene, count):
    names = sorted(scene.poses)[:count]
    found = moved({name: scene.poses[name] for name in names})
    errors = compare_poses(found, scene.poses)
    assert not errors.aligned
    assert np.isnan(errors.position).all()
    assert np.isnan(errors.median_position)
    assert len(errors.relative_rotation) == max(0, count - 1)
    assert len(errors.missing) == 6 - count


def test_cameras_on_a_line_can_not_be_aligned(scene):
    poses = {str(i): Pose(np.eye(3), np.array([float(i), 0, 0])) for i in range(5)}
    errors = compare_poses(moved(poses), poses)
    assert not errors.aligned
    assert errors.relative_direction.max() < 1e-6


def test_relative_errors_by_hand():
    here, there = Pose(np.eye(3), np.zeros(3)), Pose(np.eye(3), np.array([1.0, 0.0, 0.0]))
    turned = Pose(rotation_of(np.array([np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)])), np.array([0.0, 7.0, 0.0]))
    assert _relative_error((here, turned), (here, there)) == (pytest.approx(45), pytest.approx(90))
    assert _relative_error((here, here), (here, there)) == (0, 180)
    assert _relative_error((here, there), (here, here)) == (0, 0)


def test_many_points_are_aligned_from_a_sample():
    rng = np.random.default_rng(0)
    source = rng.standard_normal((40, 3))
    turn = rotation_of(rng.standard_normal(4))
    target = 3 * source @ turn.T + (1, 2, 3)
    target[:15] += 20 * rng.standard_normal((15, 3))
    scale, found, shift = align(source, target)
    assert scale == pytest.approx(3)
    assert np.allclose(found, turn)
    assert np.allclose(shift, (1, 2, 3))


def test_of_very_many_pairs_some_are_compared():
    rng = np.random.default_rng(0)
    poses = {f"{i:03}": Pose(rotation_of(rng.standard_normal(4)), rng.standard_normal(3)) for i in range(220)}
    errors = compare_poses(moved(poses), poses)
    assert 0.9 * MOST_PAIRS < len(errors.relative_rotation) <= MOST_PAIRS
    assert errors.median_relative < 1e-6


def test_figures_of_a_reconstruction_by_hand(scene, capfd):
    poses = {name: scene.poses[name] for name in sorted(scene.poses)[:3]}
    made = pycolmap.Reconstruction()
    made.add_camera_with_trivial_rig(to_colmap(CAMERA, 1))
    for number, (name, pose) in enumerate(poses.items(), 1):
        places = (scene.keypoints[name][:, :2] + 0.5).astype(np.float64)
        image = pycolmap.Image(name=name, camera_id=1, image_id=number, keypoints=places)
        made.add_image_with_trivial_frame(image, to_rigid(pose))
    errors, lengths = [], []
    for point in range(len(scene.points)):
        views = [
            (n, list(scene.seen[name]).index(point)) for n, name in enumerate(poses, 1) if point in scene.seen[name]
        ]
        if len(views) < 2:
            continue
        made.add_point3D(scene.points[point], pycolmap.Track([pycolmap.TrackElement(*view) for view in views]))
        seen = [np.ravel(made.image(n).project_point(scene.points[point])) for n, _ in views]
        places = [made.image(n).points2D[row].xy for n, row in views]
        errors.append(np.mean(np.linalg.norm(np.subtract(seen, places), axis=1)))
        lengths.append(len(views))
    found = statistics_of(made, 7)
    assert (found.images, found.registered, found.points) == (7, 3, len(errors))
    assert found.observations == sum(lengths)
    assert found.track_length == pytest.approx(np.mean(lengths))
    assert found.observations_per_image == pytest.approx(sum(lengths) / 3)
    assert found.reprojection_error_px == pytest.approx(np.mean(errors), rel=1e-6)
    compared = compare_with_truth(made, scene.poses)
    assert compared.position.max() < 1e-9
    assert list(poses_of(made)) == list(poses)
    assert capfd.readouterr() == ("", "")


def test_no_map_has_figures_too():
    assert statistics_of(None, 4) == MapStatistics(images=4)


def test_differences_of_two_maps_do_not_depend_on_their_worlds(scene):
    turn = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]])
    other = {
        name: Pose(pose.rotation @ turn, 3 * pose.translation + pose.rotation @ [1, 2, 3])
        for name, pose in scene.poses.items()
    }
    difference, of_image = pose_differences(scene.poses, other)
    assert difference < 1e-4
    assert set(of_image) == set(scene.poses)
    off = {**other, "02.jpg": Pose(other["02.jpg"].rotation @ turn, other["02.jpg"].translation)}
    difference, of_image = pose_differences(scene.poses, off)
    assert difference < 1e-4  # a third of the pairs
    assert [name for name, degrees in of_image.items() if degrees > 1] == ["02.jpg"]
    difference, of_image = pose_differences(scene.poses, {"00.jpg": scene.poses["00.jpg"]})
    assert np.isnan(difference)
    assert of_image == {}


KEPT = MapRun(mapper="incremental", seed=0, registered=FEW_IMAGES, is_best=True, difference_deg=0.0)
AGAIN = replace(KEPT, seed=1, is_best=False, difference_deg=0.1)
OTHER = MapRun(mapper="global", seed=0, registered=FEW_IMAGES, difference_deg=9.9)


def test_the_other_mapper_decides_about_agreement():
    assert doubt_agreement([KEPT]) == []
    (reason,) = doubt_agreement([KEPT, OTHER])
    assert "the global mapper's map of these images differs from it by 9.9 degrees" in reason
    (reason,) = doubt_agreement([KEPT, OTHER, AGAIN, replace(OTHER, seed=1, difference_deg=12.0)])
    assert "the global mapper's maps of these images differ from it by 9.9 degrees or more" in reason
    assert doubt_agreement([KEPT, OTHER, AGAIN, replace(OTHER, seed=1, difference_deg=1.0)]) == []


@pytest.mark.parametrize("other", [MapRun(mapper="global", seed=0), replace(OTHER, difference_deg=float("nan"))])
def test_one_mapper_alone_agrees_with_itself_on_many_images_only(other):
    (reason,) = doubt_agreement([KEPT, other])
    assert "only one of 2 runs" in reason
    (reason,) = doubt_agreement([KEPT, other, AGAIN])
    assert "only the incremental mapper" in reason
    many = replace(KEPT, registered=FEW_IMAGES + 1)
    assert doubt_agreement([many, other, AGAIN]) == []
    (reason,) = doubt_agreement([many, other, replace(AGAIN, difference_deg=40.2)])
    assert "the incremental mapper's other map of these images differs from it by 40.2 degrees" in reason
