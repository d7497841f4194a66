# SPDX-License-Identifier: Apache-2.0
import json
import time

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.experiments.data.render import Surface, _unproject, cast, project
from sfumato.experiments.data.room import (
    Extent,
    Room,
    RoomParams,
    RoomView,
    draw_poses,
    look_at,
    make_room,
    save_room,
)
from sfumato.features.local import extract
from sfumato.images.read import read_image
from sfumato.types.clear import Image
from sfumato.types.scene import Camera

SMALL = RoomParams(views=4, width=160, height=120)


@pytest.fixture(scope="module")
def clean():
    """Four views without noise, all with the same exposure."""
    return make_room(SMALL, np.random.default_rng(5), noise=0, exposure=0)


@pytest.fixture(scope="module")
def full():
    return make_room(RoomParams(views=3), np.random.default_rng(0))


def random_points(view, count, seed=0):
    return np.random.default_rng(seed).uniform(0, 1, (count, 2)) * (np.array(view.image.size) - 1)


def correspondences(room, i, j, points):
    """Return the places in view j of ``points`` (N, 2) of view i, and which of them are visible there.

    What lies outside the picture, behind the camera, or behind something else is hidden; NaN if it has no place.
    """
    given = np.asarray(points, np.float64)
    first, second = room.views[i], room.views[j]
    depth = cast(room.surfaces, first.camera, first.pose, given + 0.5)
    met = np.isfinite(depth)
    world = np.full((len(given), 3), np.nan)
    world[met] = _unproject(first.camera, first.pose, given[met] + 0.5, depth[met])
    seen, visible = np.full(given.shape, np.nan), np.zeros(len(given), bool)
    seen[met], away = project(second.camera, second.pose, world[met])
    size = second.image.size
    inside = met.copy()
    inside[met] = (away > 0) & (seen[met] >= 0).all(axis=1) & (seen[met] <= size).all(axis=1)
    inside[met] &= (given[met] >= -0.5).all(axis=1) & (given[met] <= np.array(first.image.size) - 0.5).all(axis=1)
    nearest = cast(room.surfaces, second.camera, second.pose, seen[inside])
    visible[inside] = nearest >= (1 - 1e-3) * away[inside[met]]
    return seen - 0.5, visible


def test_a_seed_makes_a_room(clean):
    again, other = (make_room(SMALL, np.random.default_rng(seed), noise=0, exposure=0) for seed in (5, 6))
    for view, same, different in zip(clean.views, again.views, other.views, strict=True):
        assert np.array_equal(view.image.pixels, same.image.pixels)
        assert np.array_equal(view.depth, same.depth)
        assert np.array_equal(view.pose.rotation, same.pose.rotation)
        assert not np.array_equal(view.image.pixels, different.image.pixels)
    assert [view.image.name for view in clean.views] == [f"view-{i:04d}.png" for i in range(4)]


def test_views_have_what_they_promise(clean):
    extent = Extent()
    for view in clean.views:
        assert view.image.size == (160, 120)
        assert (view.camera.width, view.camera.height) == (160, 120)
        assert view.depth.shape == (120, 160)
        assert view.depth.dtype == np.float32
        assert np.isfinite(view.depth).all()
        assert 0.2 < view.depth.min() < view.depth.max() < 7
        assert (np.abs(view.pose.center[:2]) < np.array([extent.length, extent.width]) / 2 - 0.3).all()
        assert view.image.pixels.std() > 25


def test_noise_and_exposure_change_views_but_not_what_is_there(clean):
    """The draws of the room come first: the same room, whatever the views are like."""
    noisy = make_room(SMALL, np.random.default_rng(5), noise=20, exposure=0)
    assert np.array_equal(noisy.views[0].depth, clean.views[0].depth)
    change = noisy.views[0].image.pixels.astype(float) - clean.views[0].image.pixels
    middle = (clean.views[0].image.pixels > 80) & (clean.views[0].image.pixels < 180)
    assert 18 < change[middle].std() < 22
    bright = make_room(SMALL, np.random.default_rng(5), noise=0, exposure=0.5)
    ratios = [a.image.pixels.mean() / b.image.pixels.mean() for a, b in zip(bright.views, clean.views, strict=False)]
    assert abs(ratios[0] - 1) > 0.02


def test_points_correspond_to_themselves(clean):
    points = random_points(clean.views[0], 200)
    there, visible = correspondences(clean, 0, 0, points)
    assert np.allclose(there, points, atol=1e-8)
    assert visible.all()


def test_points_agree_with_depth_and_poses(clean):
    first, second = clean.views[:2]
    down, across = (axis.ravel() for axis in np.mgrid[:120:7, :160:7])
    points = np.stack([across, down], axis=1)
    world = _unproject(first.camera, first.pose, points + 0.5, first.depth[down, across].astype(float))
    expected = project(second.camera, second.pose, world)[0] - 0.5
    there, visible = correspondences(clean, 0, 1, points)
    assert np.allclose(there, expected, atol=1e-3)
    assert 0.4 < visible.mean() < 1
    back, _ = correspondences(clean, 1, 0, there[visible])
    assert np.linalg.norm(back - points[visible], axis=1).max() < 1e-6


def test_corresponding_points_look_alike_and_hidden_ones_do_not(clean):
    points = random_points(clean.views[0], 3000)
    there, visible = correspondences(clean, 0, 1, points)
    inside = ((there >= 0) & (there <= (159, 119))).all(axis=1)
    smooth = [cv2.GaussianBlur(view.image.pixels.astype(np.float32), (0, 0), 1) for view in clean.views[:2]]
    colours = [cv2.remap(picture, *place.astype(np.float32).T[:, :, None], cv2.INTER_LINEAR)[:, 0]
               for picture, place in zip(smooth, (points, there), strict=True)]  # fmt: skip
    change = np.abs(colours[0] - colours[1]).mean(axis=1)
    assert (inside & ~visible).sum() > 20
    assert np.median(change[visible]) < 5
    assert np.median(change[inside & ~visible]) > 3 * np.median(change[visible])


def hand_made(second):
    """A wall two metres ahead, a small board before its middle, and two cameras side by side."""
    camera = Camera("PINHOLE", 100, 80, (80.0, 80.0, 50.0, 40.0))
    grey = np.full((8, 8, 3), 128.0)
    wall = Surface(np.array([2.0, 4, 3]), np.array([0, -8.0, 0]), np.array([0, 0, -6.0]), grey)
    board = Surface(np.array([1.0, 0.1, 0.1]), np.array([0, -0.2, 0]), np.array([0, 0, -0.2]), grey)
    image = Image(np.zeros((80, 100, 3), np.uint8))
    poses = look_at([0, 0, 0], [1, 0, 0]), second
    return Room((wall, board), tuple(RoomView(image, camera, pose, np.ones((80, 100), np.float32)) for pose in poses))


def test_what_something_hides_is_not_visible():
    room = hand_made(look_at([0, 0.5, 0], [1, 0.5, 0]))
    # at one metre the step of half a metre is 40 pixels, at two metres 20
    there, visible = correspondences(room, 0, 1, [[49.5, 39.5], [69.5, 39.5], [69.5, 60.0], [90.0, 39.5], [20.0, 20.0]])
    assert np.allclose(there, [[89.5, 39.5], [89.5, 39.5], [89.5, 60.0], [110.0, 39.5], [40.0, 20.0]])
    assert visible.tolist() == [True, False, True, False, True]


def test_what_is_behind_the_other_camera_or_nowhere_has_no_place():
    room = hand_made(look_at([0, 0, 0], [-1, 0, 0]))
    there, visible = correspondences(room, 0, 1, [[10.0, 10.0]])
    assert np.isnan(there).all()
    assert not visible.any()
    there, visible = correspondences(room, 1, 0, [[10.0, 10.0]])  # it looks at nothing
    assert np.isnan(there).all()
    assert not visible.any()
    there, visible = correspondences(room, 0, 1, np.zeros((0, 2)))
    assert there.shape == (0, 2)
    assert visible.shape == (0,)


def test_points_outside_the_first_picture_are_not_visible():
    room = hand_made(look_at([0, 0.1, 0], [1, 0.1, 0]))
    assert correspondences(room, 0, 1, [[-0.4, 10.0], [-0.6, 10.0]])[1].tolist() == [True, False]


@pytest.mark.slow
def test_neighbours_have_hundreds_of_correct_matches(full):
    """Mutual nearest SIFT, clear; what mapping lives on."""
    found = [extract(view.image) for view in full.views]
    matcher = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True)
    for i, j in ((0, 1), (1, 2), (0, 2)):
        pairs = np.array([(m.queryIdx, m.trainIdx) for m in matcher.match(found[i].descriptors, found[j].descriptors)])
        there, visible = correspondences(full, i, j, found[i].keypoints[pairs[:, 0], :2])
        away = np.linalg.norm(there - found[j].keypoints[pairs[:, 1], :2], axis=1)
        correct = visible & (away < 2)
        assert correct.sum() > (300 if j == i + 1 else 150)
        offset = np.median((found[j].keypoints[pairs[:, 1], :2] - there)[correct], axis=0)
        assert np.abs(offset).max() < 0.1


def test_the_path_goes_on_where_it_was():
    few, many = (draw_poses(Extent(), RoomParams(views=n), np.random.default_rng(1)) for n in (2, 30))
    assert all(np.array_equal(a.rotation, b.rotation) for a, b in zip(few, many, strict=False))
    centers = np.array([pose.center for pose in many])
    steps = np.linalg.norm(np.diff(centers, axis=0), axis=1)
    assert steps.min() > 0.3
    assert steps.max() < 0.9


def test_look_at():
    pose = look_at([1, 2, 3], [4, 6, 3], roll=0)
    assert np.allclose(pose.center, [1, 2, 3])
    assert np.allclose(pose.rotation @ [0.6, 0.8, 0], [0, 0, 1])
    assert np.allclose(pose.rotation @ [0, 0, -1], [0, 1, 0])  # down is down
    turned = look_at([1, 2, 3], [4, 6, 3], roll=90)
    assert np.allclose(turned.rotation @ [0.6, 0.8, 0], [0, 0, 1])
    assert np.allclose(np.abs(turned.rotation @ [0, 0, -1]), [1, 0, 0])
    with pytest.raises(InputError, match="straight"):
        look_at([0, 0, 0], [0, 0, 1])


def test_saved_and_read_again(clean, tmp_path):
    save_room(clean, tmp_path / "room")
    cameras = json.loads((tmp_path / "room" / "cameras.json").read_text())
    assert sorted(cameras) == [view.image.name for view in clean.views]
    assert sorted(path.name for path in (tmp_path / "room" / "images").iterdir()) == sorted(cameras)
    for view in clean.views:
        facts = cameras[view.image.name]
        assert set(facts) == {"K", "world_from_cam_rotation", "center_in_world", "size"}
        read = read_image(tmp_path / "room" / "images" / view.image.name)
        assert np.array_equal(read.pixels, view.image.pixels)
        assert facts["size"] == [160, 120]
        points = random_points(view, 5)
        world = (
            np.array(facts["center_in_world"])
            + (np.column_stack([points, np.ones(5)]) @ np.linalg.inv(facts["K"]).T)
            @ np.array(facts["world_from_cam_rotation"]).T
        )
        assert np.allclose(project(view.camera, view.pose, world)[0] - 0.5, points)
    assert [path.name for path in tmp_path.iterdir()] == ["room"]
    posed = read_posed_folder(tmp_path / "room")
    for view in clean.views:
        assert np.allclose(posed.cameras[view.image.name].params, view.camera.params, rtol=1e-12)
        assert np.allclose(posed.poses[view.image.name].rotation, view.pose.rotation, atol=1e-12)
        assert np.allclose(posed.poses[view.image.name].translation, view.pose.translation, atol=1e-12)


def test_a_folder_with_something_in_it_is_left_alone(clean, tmp_path):
    (tmp_path / "mine").mkdir()
    save_room(clean, tmp_path / "mine")
    before = (tmp_path / "mine" / "cameras.json").stat().st_mtime_ns
    time.sleep(0.01)
    with pytest.raises(FileError, match="already there"):
        save_room(clean, tmp_path / "mine")
    assert (tmp_path / "mine" / "cameras.json").stat().st_mtime_ns == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="already there"):
        save_room(clean, tmp_path / "file")


@pytest.mark.parametrize("trouble", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_all_or_nothing_is_written(clean, tmp_path, monkeypatch, trouble):
    real, calls = cv2.imencode, []

    def encode(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise trouble
        return real(*arguments)

    monkeypatch.setattr(cv2, "imencode", encode)
    with pytest.raises(KeyboardInterrupt if isinstance(trouble, KeyboardInterrupt) else FileError):
        save_room(clean, tmp_path / "room")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"view": 3}, "did you mean 'views'"),
        ({"views": 0, "noise": -1}, "views must be from 1.*noise must be"),
        ({"views": 2.5}, "whole number"),
        ({"samples": 0}, "samples"),
        ({"focal": "long"}, "focal"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(InputError, match=message):
        RoomParams(**settings)


def test_text_forms_show_no_place(clean):
    assert repr(clean) == "Room(42 surfaces, 4 views)"
    assert repr(clean.views[1]) == "RoomView(Image('view-0001.png', 160 x 120))"
