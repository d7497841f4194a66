# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.geometry.colmap import load_pycolmap
from sfumato.geometry.localization import PERSPECTIVE, _doubt_focal, _estimate_pose
from sfumato.types.scene import CAMERA_MODELS, Camera


@pytest.fixture(scope="module")
def place(places):
    return places.make_place()


@pytest.fixture(scope="module")
def sight(place, places):
    """Pixels and points of a query, a third of them wrong."""
    rng = np.random.default_rng(0)
    pixels = places.project(place.points, place.poses["query/1.jpg"], place.camera)
    pixels += 0.5 * rng.standard_normal(pixels.shape)
    pixels[::3] = rng.uniform(0, 480, pixels[::3].shape)
    return pixels, place.points


def pinhole(focal):
    return Camera("PINHOLE", 640, 480, (focal, focal, 320, 240))


def test_poses_are_those_of_colmap(place, places):
    """cam_from_world: what COLMAP estimates takes a world point to the camera as our Pose does."""
    pose = place.poses["query/1.jpg"]
    pixels = places.project(place.points, pose, place.camera)
    found = _estimate_pose(pixels, place.points, place.camera)
    assert found.inliers == len(place.points)
    assert found.error_px < 1e-3
    assert found.focal_px == places.FOCAL
    assert np.abs(found.pose.rotation - pose.rotation).max() < 1e-6
    assert np.abs(found.pose.translation - pose.translation).max() < 1e-5
    camera = load_pycolmap().Camera(model="PINHOLE", width=640, height=480, params=list(place.camera.params))
    local = place.points @ found.pose.rotation.T + found.pose.translation
    assert np.abs(np.array(camera.img_from_cam(local)) - pixels).max() < 1e-3


def test_points_that_determine_nothing(place):
    found = _estimate_pose(np.zeros((30, 2)), np.ones((30, 3)), place.camera)
    assert found.pose is None or np.isfinite(found.pose.translation).all()
    _doubt_focal(np.zeros((30, 2)), np.ones((30, 3)), place.camera, found)


def test_a_free_focal_length_is_found(sight, places):
    found = _estimate_pose(*sight, pinhole(900.0), free_focal=True)
    assert found.focal_px == pytest.approx(places.FOCAL, rel=0.03)


@pytest.mark.parametrize("focal", [100, 250, 400, 650, 1200])
def test_a_wrong_focal_length_is_doubted(sight, focal):
    given = _estimate_pose(*sight, pinhole(focal))
    told = _doubt_focal(*sight, pinhole(focal), given)
    assert f"px instead of {focal} explains more" in told
    assert abs(float(told.split("about ")[1].split(" ")[0]) - 500) < 25


@pytest.mark.parametrize("focal", [480, 500, 520])
def test_a_right_one_is_not(sight, focal):
    assert _doubt_focal(*sight, pinhole(focal), _estimate_pose(*sight, pinhole(focal))) == ""


def test_a_flat_scene_says_nothing_of_the_focal_length(place, places):
    """Seen straight on, a larger focal length from further away fits as well."""
    rng = np.random.default_rng(1)
    points = np.column_stack([rng.uniform(-2, 2, (60, 2)), np.full(60, 6.0)])
    pixels = places.FOCAL * points[:, :2] / 6 + (320, 240) + 0.5 * rng.standard_normal((60, 2))
    for focal in (300, 500, 900):
        assert _doubt_focal(pixels, points, pinhole(focal), _estimate_pose(pixels, points, pinhole(focal))) == ""


@pytest.mark.parametrize("model", [model for model in CAMERA_MODELS if model != "EQUIRECTANGULAR"])
def test_every_model_gets_an_answer(sight, model):
    values = {"f": 400.0, "c": 320.0, "w": 640.0, "h": 480.0, "omega": 0.1, "beta": 1.0}
    by_letter = {name: values.get(name[0], 0.0) if name[0] in "fc" else 0.0 for name in CAMERA_MODELS[model]}
    camera = Camera(model, 640, 480, tuple(values.get(name, value) for name, value in by_letter.items()))
    given = _estimate_pose(*sight, camera)
    told = _doubt_focal(*sight, camera, given)
    assert bool(told) == (model in PERSPECTIVE)


def test_few_points_fit_many_focal_lengths(place, places):
    """With one more unknown the error of a few points falls in any case: it is no reason to doubt a right camera."""
    rng = np.random.default_rng(2)
    pose = place.poses["query/0.jpg"]
    for _ in range(20):
        points = place.points[rng.choice(len(place.points), 22, replace=False)]
        pixels = places.project(points, pose, place.camera) + 2 * rng.standard_normal((22, 2))
        assert _doubt_focal(pixels, points, pinhole(500), _estimate_pose(pixels, points, pinhole(500))) == ""
