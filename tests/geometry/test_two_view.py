# SPDX-License-Identifier: Apache-2.0
import warnings

import numpy as np
import pycolmap
import pytest

from sfumato.errors import InputError
from sfumato.geometry.colmap import to_colmap
from sfumato.geometry.verify import (
    VerifyParams,
    _epipolar_errors_px,
    _estimator,
    _has_enough,
    _ImagePoints,
    _known_geometry,
)
from sfumato.types.scene import Camera

KINDS = pycolmap.TwoViewGeometryConfiguration


def side_of(scene, name, *, camera=None, trusted=True):
    points = scene.keypoints[name][:, :2].astype(np.float64) + 0.5
    return _ImagePoints(name, to_colmap(camera or scene.cameras[name], 1, trusted=trusted), points)


def rows_of(scene, pair):
    return scene.matches[pair].indices.astype(np.uint32)


PAIR = ("00.jpg", "03.jpg")


def test_errors_are_zero_for_what_is_seen_exactly(make_scene):
    scene = make_scene(noise_px=0.0)
    views = [(side_of(scene, name), scene.poses[name]) for name in PAIR]
    errors = _epipolar_errors_px(*views, rows_of(scene, PAIR))
    assert errors.shape == (len(scene.matches[PAIR]), 2)
    assert errors.max() < 1e-3


def test_errors_are_in_pixels_of_each_image(make_scene):
    """A keypoint that is moved by 3 pixels away from its line is 3 pixels from it."""
    scene = make_scene(noise_px=0.0)
    side0, side1 = (side_of(scene, name) for name in PAIR)
    rows = rows_of(scene, PAIR)
    turn = scene.poses[PAIR[1]].rotation @ scene.poses[PAIR[0]].rotation.T
    x, y, z = scene.poses[PAIR[1]].translation - turn @ scene.poses[PAIR[0]].translation
    inverse = np.linalg.inv(side1.camera.calibration_matrix())
    fundamental = inverse.T @ np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ turn @ inverse
    places = np.column_stack([side0.points[rows[:, 0]], np.ones(len(rows))])
    normals = (places @ fundamental.T)[:, :2]
    moved = side1.points.copy()
    moved[rows[:, 1]] += 3 * normals / np.linalg.norm(normals, axis=1, keepdims=True)
    views = (side0, scene.poses[PAIR[0]]), (_ImagePoints(PAIR[1], side1.camera, moved), scene.poses[PAIR[1]])
    assert np.allclose(_epipolar_errors_px(*views, rows)[:, 1], 3, rtol=0.02)  # fx and fy differ a little


def test_distortion_is_taken_out_first(make_scene):
    scene = make_scene(noise_px=0.0)
    bent = Camera("SIMPLE_RADIAL", 640, 480, (800.0, 322.5, 238.5, -0.2))
    camera = to_colmap(bent, 1)
    sides = []
    for name in PAIR:
        straight = side_of(scene, name)
        rays = straight.camera.cam_from_img(straight.points)
        seen = camera.img_from_cam(np.column_stack([rays, np.ones(len(rays))]))
        sides.append(_ImagePoints(name, camera, seen))
    views = [(side, scene.poses[side.name]) for side in sides]
    assert _epipolar_errors_px(*views, rows_of(scene, PAIR)).max() < 1e-3


def test_a_place_that_no_ray_leads_to_is_infinitely_far_without_a_warning(make_scene):
    scene = make_scene(noise_px=0.0)
    bent = to_colmap(Camera("SIMPLE_RADIAL", 640, 480, (200.0, 320.0, 240.0, -2.0)), 1)
    sides = [_ImagePoints(name, bent, side_of(scene, name).points) for name in PAIR]
    rows = rows_of(scene, PAIR)
    lost = np.isnan(bent.cam_from_img(sides[0].points[rows[:, 0]])).any(axis=1)
    assert lost.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        errors = _epipolar_errors_px(*((side, scene.poses[side.name]) for side in sides), rows)
    assert np.isinf(errors[lost]).all()


def test_the_geometry_found_is_the_one_there_is(scene):
    geometry = _estimator(VerifyParams())(side_of(scene, PAIR[0]), side_of(scene, PAIR[1]), rows_of(scene, PAIR))
    assert geometry.config == int(KINDS.CALIBRATED)
    assert len(geometry.inlier_matches) > 0.95 * len(scene.matches[PAIR])
    first, second = (scene.poses[name] for name in PAIR)
    turn = second.rotation @ first.rotation.T
    shift = second.translation - turn @ first.translation
    found = geometry.cam2_from_cam1
    assert np.allclose(found.rotation.matrix(), turn, atol=0.01)
    assert np.allclose(found.translation / np.linalg.norm(found.translation), shift / np.linalg.norm(shift), atol=0.02)


def test_cameras_that_are_wrong_but_trusted_are_held_to(scene):
    """With a wrong focal length the uncalibrated geometry fits everything; it is not what was asked for."""
    wrong = Camera("PINHOLE", 640, 480, (250.0, 250.0, 322.5, 238.5))
    sides = [side_of(scene, name, camera=wrong) for name in PAIR]
    geometry = _estimator(VerifyParams())(*sides, rows_of(scene, PAIR))
    assert geometry.config in (int(KINDS.CALIBRATED), int(KINDS.DEGENERATE))
    assert len(geometry.inlier_matches) < 0.9 * len(scene.matches[PAIR])
    guessed = [side_of(scene, name, camera=wrong, trusted=False) for name in PAIR]
    geometry = _estimator(VerifyParams())(*guessed, rows_of(scene, PAIR))
    assert geometry.config == int(KINDS.UNCALIBRATED)
    assert len(geometry.inlier_matches) > 0.95 * len(scene.matches[PAIR])


def test_a_plane_is_believed():
    """Two views of a wall: a homography, which wrong matches do not fit by chance."""
    rng = np.random.default_rng(0)
    wall = np.column_stack([rng.uniform(50, 590, 60), rng.uniform(50, 430, 60)])
    turned = np.array([[0.9, 0.1, 20], [-0.1, 0.95, 30], [1e-4, 2e-4, 1]])
    places = np.column_stack([wall, np.ones(60)]) @ turned.T
    camera = to_colmap(Camera("PINHOLE", 640, 480, (800.0, 790.0, 322.5, 238.5)), 1)
    sides = _ImagePoints("a", camera, wall), _ImagePoints("b", camera, places[:, :2] / places[:, 2:])
    rows = np.stack([np.arange(60)] * 2, axis=1).astype(np.uint32)
    geometry = _estimator(VerifyParams())(*sides, rows)
    assert geometry.config in (int(KINDS.PLANAR), int(KINDS.PANORAMIC), int(KINDS.PLANAR_OR_PANORAMIC))
    assert len(geometry.inlier_matches) == 60


def test_nothing_is_refused_with_a_name(scene):
    sides = side_of(scene, PAIR[0]), side_of(scene, PAIR[1])
    nothing = np.zeros((0, 2), np.uint32)
    for estimate in (_estimator(VerifyParams()), _known_geometry(VerifyParams(), scene.poses)):
        geometry = estimate(*sides, nothing)
        assert geometry.config == int(KINDS.DEGENERATE)
        assert len(geometry.inlier_matches) == 0


def test_known_geometry_says_its_kind(scene):
    """Newer COLMAPs use no pair whose kind is not said, silently."""
    estimate = _known_geometry(VerifyParams(), scene.poses)
    geometry = estimate(side_of(scene, PAIR[0]), side_of(scene, PAIR[1]), rows_of(scene, PAIR))
    assert geometry.config == int(KINDS.CALIBRATED)


def test_what_is_enough():
    params = VerifyParams(min_inliers=20, min_inlier_ratio=0.1)
    assert _has_enough(20, 200, params)
    assert not _has_enough(19, 19, params)
    assert not _has_enough(20, 201, params)


def test_all_wrong_parameters_at_once():
    with pytest.raises(InputError) as caught:
        VerifyParams(max_error_px=0, min_inliers=0, min_inlier_ratio=2, max_false_alarms=0, seed=-1, threads=0)
    for name in ("max_error_px", "min_inliers", "min_inlier_ratio", "max_false_alarms", "seed", "threads"):
        assert name in str(caught.value)
