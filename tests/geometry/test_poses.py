# SPDX-License-Identifier: Apache-2.0
"""Conventions are tested against pycolmap, not assumed: which way a pose goes, and the order of quaternions."""

import numpy as np
import pycolmap
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import FileError
from sfumato.geometry.cameras import (
    _quaternion_of,
    angle_between,
    nearest_rotation,
    pose_error,
    read_poses,
    write_poses,
)
from sfumato.geometry.colmap import PIXEL_CENTRE, from_rigid, to_colmap, to_rigid
from sfumato.types.scene import Camera, Pose, rotation_of


def any_pose(seed):
    rng = np.random.default_rng(seed)
    return Pose(rotation_of(rng.standard_normal(4)), 10 * rng.standard_normal(3))


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 2, 3, None]))
def test_quaternions_are_colmaps_with_w_first(seed, zero):
    quaternion = np.random.default_rng(seed).standard_normal(4)
    if zero is not None:
        quaternion[zero] *= 1e-9  # half turns, where the usual formula loses its digits
    quaternion /= np.linalg.norm(quaternion)
    theirs = pycolmap.Rotation3d(np.roll(quaternion, -1))  # x y z w
    assert np.allclose(rotation_of(quaternion), theirs.matrix(), atol=1e-12)
    ours = _quaternion_of(rotation_of(quaternion))
    assert ours[0] >= 0
    assert np.abs(ours @ quaternion) == pytest.approx(1, abs=1e-12)
    assert np.abs(np.roll(ours, -1) @ pycolmap.Rotation3d(rotation_of(quaternion)).quat) == pytest.approx(1, abs=1e-9)


def test_a_pose_takes_the_world_to_the_camera_as_colmaps_does():
    pose, point = any_pose(1), np.array([0.3, -2.0, 5.0])
    rigid = to_rigid(pose)
    assert np.allclose(rigid * point, pose.rotation @ point + pose.translation)
    assert np.allclose(rigid.tgt_origin_in_src(), pose.center)
    back = from_rigid(rigid)
    assert np.allclose(back.rotation, pose.rotation, atol=1e-15)
    assert np.array_equal(back.translation, pose.translation)


def test_a_known_point_is_seen_where_colmap_sees_it():
    """Our pose and camera by hand, against pycolmap's image and camera in a reconstruction."""
    pose = Pose(rotation_of(np.array([0.9, 0.1, -0.2, 0.05])), np.array([0.2, -0.1, 4.0]))
    camera, point = Camera("PINHOLE", 640, 480, (800.0, 790.0, 322.5, 238.5)), np.array([0.5, -0.4, 1.0])
    reconstruction = pycolmap.Reconstruction()
    reconstruction.add_camera_with_trivial_rig(to_colmap(camera, 1))
    image = pycolmap.Image(name="a.jpg", camera_id=1, image_id=1)
    reconstruction.add_image_with_trivial_frame(image, to_rigid(pose))
    theirs = np.ravel(reconstruction.image(1).project_point(point))
    x, y, z = pose.rotation @ point + pose.translation
    assert np.allclose(theirs, (800 * x / z + 322.5, 790 * y / z + 238.5))
    keypoint = theirs - PIXEL_CENTRE  # ours: half a pixel less
    matrix = np.array([[800, 0, 322.5 - 0.5], [0, 790, 238.5 - 0.5], [0, 0, 1]]) @ np.array([x, y, z])
    assert np.allclose(keypoint, matrix[:2] / matrix[2])


def test_the_list_is_in_the_order_of_colmaps_text_files(tmp_path):
    pose = any_pose(2)
    reconstruction = pycolmap.Reconstruction()
    reconstruction.add_camera_with_trivial_rig(to_colmap(Camera("PINHOLE", 9, 9, (9.0, 9.0, 4.5, 4.5)), 1))
    image = pycolmap.Image(name="a.jpg", camera_id=1, image_id=1)
    reconstruction.add_image_with_trivial_frame(image, to_rigid(pose))
    reconstruction.write_text(str(tmp_path))
    line = next(row for row in (tmp_path / "images.txt").read_text().splitlines() if row.endswith("a.jpg"))
    theirs = np.array(line.split()[1:8], float)
    write_poses(tmp_path / "poses.txt", {"a.jpg": pose})
    ours = np.array((tmp_path / "poses.txt").read_text().splitlines()[0].split()[1:], float)
    assert np.allclose(ours, theirs * np.repeat([np.sign(theirs[0]), 1], [4, 3]))


def test_lists_come_back(tmp_path):
    poses = {f"{seed}.jpg": any_pose(seed) for seed in range(5)}
    write_poses(tmp_path / "poses.txt", poses)
    back = read_poses(tmp_path / "poses.txt")
    assert list(back) == sorted(poses)
    for name, pose in poses.items():
        assert np.allclose(back[name].rotation, pose.rotation, atol=1e-14)
        assert np.array_equal(back[name].translation, pose.translation)
    write_poses(tmp_path / "none.txt", {})
    assert read_poses(tmp_path / "none.txt") == {}


def test_wrong_lines_are_named(tmp_path):
    path = tmp_path / "poses.txt"
    path.write_text("a 1 0 0 0 0 0 0\nb 1 0 0 0 0 0\nc 2 0 0 0 0 0 0\nd 1 0 0 0 inf 0 0\ne 1e200 1e200 0 0 0 0 0\n")
    with pytest.raises(FileError) as caught:
        read_poses(path)
    for part in ("line 2: expected 'name qw", "line 3: expected a quaternion", "line 4: expected", "line 5: expected"):
        assert part in str(caught.value)


def test_errors_of_poses():
    truth = any_pose(3)
    turn = rotation_of(np.array([np.cos(np.deg2rad(0.005)), 0, np.sin(np.deg2rad(0.005)), 0]))
    moved = Pose(turn @ truth.rotation, -turn @ truth.rotation @ (truth.center + np.array([0.0, 0.3, 0.4])))
    metres, degrees = pose_error(moved, truth)
    assert metres == pytest.approx(0.5)
    assert degrees == pytest.approx(0.01, rel=1e-9)
    theirs = pycolmap.Rotation3d(moved.rotation).angle_to(pycolmap.Rotation3d(truth.rotation))
    assert degrees == pytest.approx(np.rad2deg(theirs), rel=1e-5)


def test_half_turns_and_none():
    assert angle_between(np.eye(3), np.eye(3)) == 0
    assert angle_between(np.diag([1.0, -1.0, -1.0]), np.eye(3)) == pytest.approx(180)


def test_the_nearest_rotation_is_one():
    assert np.allclose(nearest_rotation(np.diag([2.0, 3.0, 4.0])), np.eye(3))
    mirrored = nearest_rotation(np.diag([1.0, 1.0, -0.1]))
    assert np.linalg.det(mirrored) == pytest.approx(1)


def test_poses_are_not_shown():
    assert repr(any_pose(1)) == "Pose(cam_from_world)"
