# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.folders import PosedImages, UnposedImages, read_posed_folder, read_scene_folder


def entry(rotation, center=(1.0, -2.0, 0.5), size=(64, 48), focal=50.0):
    intrinsics = [[focal, 0.0, 31.0], [0.0, focal + 1, 23.5], [0.0, 0.0, 1.0]]
    return {
        "K": intrinsics, "world_from_cam_rotation": rotation.tolist(),
        "center_in_world": list(center), "size": list(size)
    }  # fmt: skip


@pytest.fixture
def posed(tmp_path, save_picture, turn):
    """Write a small posed folder; entries of cameras.json can be replaced."""

    def make(**changes):
        entries = {name: entry(np.round(turn(angle)[0], 6)) for name, angle in (("a.png", 0.2), ("deep/b.jpg", 2.0))}
        for name in entries:
            save_picture(tmp_path / "images" / name)
        entries |= changes
        text = json.dumps({name: value for name, value in entries.items() if value is not None})
        (tmp_path / "cameras.json").write_text(text)
        return tmp_path

    return make


def told(folder):
    with pytest.raises(FileError) as error:
        read_posed_folder(folder)
    return str(error.value)


def test_cameras_are_colmaps_and_poses_from_the_world(posed, turn):
    found = read_posed_folder(posed())
    assert found.names == ("a.png", "deep/b.jpg")
    assert found.cameras["a.png"].model == "PINHOLE"
    assert found.cameras["a.png"].params == (50.0, 51.0, 31.5, 24.0), "half a pixel more: COLMAP's first centre is 0.5"
    rotation, _ = turn(0.2)
    pose = found.poses["a.png"]
    assert np.abs(pose.rotation - rotation.T).max() < 2e-6
    assert np.abs(pose.center - [1, -2, 0.5]).max() < 1e-12
    assert found.paths["deep/b.jpg"].is_file()


def test_a_point_is_where_the_camera_sees_it(posed, turn):
    """Strecha's own words: x = K R' (X - C), the first pixel's centre at 0; COLMAP's is half a pixel more."""
    found = read_posed_folder(posed())
    rotation, center = np.round(turn(2.0)[0], 6), np.array([1.0, -2.0, 0.5])
    point = center + rotation @ np.array([0.3, -0.2, 4.0])
    intrinsics = np.array(entry(rotation)["K"])
    x = intrinsics @ rotation.T @ (point - center)
    pose, camera = found.poses["deep/b.jpg"], found.cameras["deep/b.jpg"]
    in_camera = pose.rotation @ point + pose.translation
    fx, fy, cx, cy = camera.params
    seen = np.array([fx, fy]) * in_camera[:2] / in_camera[2] + [cx, cy]
    assert np.abs(seen - (x[:2] / x[2] + 0.5)).max() < 1e-3


def test_everything_wrong_is_told_at_once(posed, save_picture, turn):
    rotation, _ = turn()
    good = entry(rotation)
    skewed = [[50, 1.0, 31], [0, 51, 23], [0, 0, 1]]
    folder = posed(
        **{
            "a.png": entry(rotation, size=(48, 64)),
            "missing.png": good,
            "mirror.png": good | {"world_from_cam_rotation": np.diag([1.0, 1, -1]).tolist()},
            "skew.png": good | {"K": skewed},
            "short.png": {"K": good["K"]},
            "nan.png": good | {"center_in_world": [0.0, float("nan"), 1.0]},
            "ragged.png": good | {"K": [[1, 2], [3]]},
            "size.png": good | {"size": [0, 5]},
            "none.png": 7,
            "../out.png": good,
        }
    )
    save_picture(folder / "images" / "extra.png")
    message = told(folder)
    for text in (
        "a.png is 64 x 48, its camera says 48 x 64", "image missing.png is missing",
        "mirror.png: world_from_cam_rotation",
        "skew.png: K", "short.png: world_from_cam_rotation, center_in_world, size missing", "nan.png: center_in_world",
        "ragged.png: K", "size.png: image_size", "none.png: K", "leaves the folder", "extra.png has no camera",
    ):  # fmt: skip
        assert text in message, text


def test_files_that_are_missing_or_no_json(tmp_path, posed):
    assert "is not there" in told(tmp_path / "none")
    assert "cameras.json: no such file" in told(tmp_path)
    (tmp_path / "cameras.json").write_text("{}")
    assert "names no image" in told(tmp_path)
    (tmp_path / "cameras.json").write_text('{"a.png": 1, "a.png": 2}')
    assert "is there twice" in told(tmp_path)
    for wrong in ("{", "[" * 100_000, "[]", "3"):
        (tmp_path / "cameras.json").write_text(wrong)
        assert "cameras.json" in told(tmp_path)
    (tmp_path / "cameras.json").write_text('{"a.png": {}}')
    assert "folder images is missing" in told(tmp_path)
    (tmp_path / "images").mkdir()
    assert "a.png: K, world_from_cam_rotation" in told(tmp_path)


def test_the_fountain(real_data):
    found = read_posed_folder(real_data("posed/fountain-P11"))
    assert len(found) == 11
    camera = found.cameras["0000.jpg"]
    assert (camera.model, camera.width, camera.height) == ("PINHOLE", 1536, 1024)
    assert camera.params == (1379.74, 1382.08, 760.095 + 0.5, 503.155 + 0.5)
    centers = np.array([pose.center for pose in found.poses.values()])
    assert 0.5 < np.linalg.norm(np.diff(centers, axis=0), axis=1).min() < 3, "neighbours stand a step apart, in metres"


def test_photos_without_cameras_are_a_scene_too(tmp_path, save_picture, posed):
    save_picture(tmp_path / "photos" / "b.png", (64, 48))
    save_picture(tmp_path / "photos" / "deep" / "a.jpg", (32, 40))
    photos = read_scene_folder(tmp_path / "photos")
    assert isinstance(photos, UnposedImages)
    assert (photos.names, dict(photos.sizes)) == (("b.png", "deep/a.jpg"), {"b.png": (64, 48), "deep/a.jpg": (32, 40)})
    assert repr(photos) == "UnposedImages(2 images)"
    assert isinstance(read_scene_folder(posed()), PosedImages)


def test_photos_that_can_not_be_read_are_left_out_and_named(tmp_path, save_picture):
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(FileError, match=r"b\.png"):
        read_scene_folder(tmp_path)
    save_picture(tmp_path / "a.png")
    save_picture(tmp_path / "c.jpg", (64, 48))
    (tmp_path / "c.jpg").write_bytes((tmp_path / "c.jpg").read_bytes()[:-200])  # its header is whole
    photos = read_scene_folder(tmp_path)
    assert photos.names == ("a.png",)
    assert set(photos.unreadable) == {"b.png", "c.jpg"}
    with pytest.raises(FileError):
        read_scene_folder(tmp_path / "missing")
    with pytest.raises(InputError):
        UnposedImages({"a": tmp_path}, {})
