# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from sfumato.errors import InputError
from sfumato.types.scene import Camera, Landmarks, Matches, Pose

SENTINEL = 8.7654321


def test_matches():
    indices = np.array([[0, 1], [2, 2**31 - 1]], np.int64)
    matches = Matches(indices, [0.5, 0.25])
    indices[:] = 5
    assert len(matches) == 2
    assert matches.indices.dtype == np.int32
    assert matches.indices.tolist() == [[0, 1], [2, 2**31 - 1]]
    assert not matches.indices.flags.writeable
    assert not matches.distances.flags.writeable
    assert len(Matches(np.zeros((0, 2)), np.zeros(0))) == 0


@pytest.mark.parametrize(
    ("indices", "distances", "says"),
    [
        ([[0.0, 1.0]], [1], "indices: expected integers"),
        ([[True, False]], [1], "indices: expected integers"),
        ([[0, -1]], [1], "indices: expected integers of 0 or more"),
        ([[0, 2**31]], [1], "indices: expected integers"),
        ([0, 1], [1], r"indices: expected shape \(any, 2\)"),
        ([[0, 1]], [1, 2], r"distances: expected shape \(1\)"),
        ([[0, 1]], [-1], "distances: expected values of 0 or more"),
        ([[0, 1]], [np.nan], "distances: 1 of 1 rows are not finite"),
    ],
)
def test_matches_refuse(indices, distances, says: str):
    with pytest.raises(InputError, match=says):
        Matches(indices, distances)


def test_camera():
    camera = Camera("SIMPLE_RADIAL", np.int64(640), 480, np.array([500.0, 320, 240, 0]))
    assert (camera.width, camera.height) == (640, 480)
    assert camera.params == (500.0, 320.0, 240.0, 0.0)
    assert camera == Camera("SIMPLE_RADIAL", 640, 480, (500, 320, 240, 0))
    assert hash(camera) == hash(Camera("SIMPLE_RADIAL", 640, 480, (500, 320, 240, 0)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("", 640, 480, ()),
        ("PIN HOLE", 640, 480, ()),
        (5, 640, 480, ()),
        ("PINHOLE", 0, 480, ()),
        ("PINHOLE", 640.5, 480, ()),
        ("PINHOLE", 640, 480, (np.nan,)),
        ("PINHOLE", 640, 480, ("f",)),
        ("PINHOLE", 640, 480, 5),
    ],
)
def test_camera_refuses(arguments: tuple):
    with pytest.raises(InputError):
        Camera(*arguments)


@given(st.integers(0, 2**32))
def test_pose_maps_its_centre_to_zero(seed: int):
    rng = np.random.default_rng(seed)
    pose = Pose(Rotation.random(rng=rng).as_matrix(), rng.normal(size=3))
    np.testing.assert_allclose(pose.rotation @ pose.center + pose.translation, 0, atol=1e-12)


@pytest.mark.parametrize(
    "rotation",
    [np.eye(3) * 1.001, np.diag([1.0, 1, -1]), np.zeros((3, 3)), np.eye(2), np.full((3, 3), np.nan)],
)
def test_pose_refuses(rotation):
    with pytest.raises(InputError, match="rotation"):
        Pose(rotation, np.zeros(3))
    with pytest.raises(InputError, match="translation"):
        Pose(np.eye(3), np.zeros(2))


def test_landmarks():
    landmarks = Landmarks(np.zeros((2, 3)), [[0, 0, 7], [1, 1, 0]], ["a.jpg", "b.jpg"])
    assert len(landmarks) == 2
    assert landmarks.images == ("a.jpg", "b.jpg")
    assert len(Landmarks(np.zeros((0, 3)), np.zeros((0, 3)), ())) == 0


@pytest.mark.parametrize(
    ("observations", "images", "says"),
    [
        ([[2, 0, 0]], ["a"], "out of range"),
        ([[0, 1, 0]], ["a"], "out of range"),
        ([[0, 0, -1]], ["a"], "out of range"),
        ([[0, 0, 2**31]], ["a"], "out of range"),
        ([[0.0, 0.0, 0.5]], ["a"], "observations: expected integers"),
        ([[0, 0, 0]], "a", "images: expected a list of names"),
        ([[0, 0, 0]], [5], "images: expected a list of names"),
    ],
)
def test_landmarks_refuse(observations, images, says: str):
    with pytest.raises(InputError, match=says):
        Landmarks(np.zeros((2, 3)), observations, images)


def test_text_forms_show_no_values():
    made = (
        Matches([[87, 87]], [SENTINEL]),
        Camera("PINHOLE", 640, 480, (SENTINEL,)),
        Pose(np.eye(3), [SENTINEL] * 3),
        Landmarks([[SENTINEL] * 3], [[0, 0, 87]], ["a"]),
    )
    for value in made:
        assert "87" not in repr(value) + str(value)
        assert "8.7" not in repr(value) + str(value)
