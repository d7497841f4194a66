# SPDX-License-Identifier: Apache-2.0
import re
from contextlib import suppress

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.experiments.data.colmap_models import read_colmap_model

CAMERAS = "# comment\n1 SIMPLE_RADIAL 64 48 50.5 32 24 -0.03\n2 PINHOLE 48 64 40 41 24.5 32.5\n"


@pytest.fixture
def model(tmp_path, save_picture, turn):
    """Write a model of two images as COLMAP's text files, and their pictures."""
    pytest.importorskip("pycolmap")
    _, quaternion = turn()
    words = " ".join(repr(float(value)) for value in quaternion)
    images = f"1 {words} 0.5 -1 2 1 db/b.png\n\n2 1 0 0 0 3 4 5 2 a.png\n\n"
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "cameras.txt").write_text(CAMERAS)
    (folder / "images.txt").write_text(images)
    (folder / "points3D.txt").write_text("")
    save_picture(tmp_path / "images" / "db" / "b.png", (64, 48))
    save_picture(tmp_path / "images" / "a.png", (48, 64))
    return folder


def told(*arguments):
    with pytest.raises(FileError) as error:
        read_colmap_model(*arguments)
    return str(error.value)


def check(found, turn):
    assert found.names == ("a.png", "db/b.png")
    assert found.cameras["db/b.png"].model == "SIMPLE_RADIAL"
    assert found.cameras["db/b.png"].params == (50.5, 32.0, 24.0, -0.03)
    assert (found.cameras["a.png"].width, found.cameras["a.png"].height) == (48, 64)
    assert np.abs(found.poses["db/b.png"].rotation - turn()[0]).max() < 1e-12, "cam_from_world"
    assert found.poses["db/b.png"].translation.tolist() == [0.5, -1, 2]


def test_text_and_binary_are_the_same(model, turn, tmp_path):
    import cv2  # noqa: F401  (before pycolmap)
    import pycolmap

    check(read_colmap_model(model), turn)
    (tmp_path / "binary").mkdir()
    pycolmap.Reconstruction(model).write_binary(tmp_path / "binary")
    found = read_colmap_model(tmp_path / "binary", tmp_path / "images")
    check(found, turn)
    assert found.paths["db/b.png"] == tmp_path / "images" / "db" / "b.png"
    for name in ("rigs.bin", "frames.bin"):  # models written before COLMAP had them
        (tmp_path / "binary" / name).unlink()
    check(read_colmap_model(tmp_path / "binary"), turn)


def test_without_a_folder_of_images_there_are_no_paths(model):
    found = read_colmap_model(model)
    assert dict(found.paths) == {}
    assert len(found) == 2


def test_images_are_checked(model, tmp_path, save_picture):
    (tmp_path / "images" / "a.png").unlink()
    save_picture(tmp_path / "images" / "db" / "b.png", (32, 32))
    message = told(model, tmp_path / "images")
    assert "image a.png is missing" in message
    assert "db/b.png is 32 x 32, its camera says 64 x 48" in message
    assert "is not there" in told(model, tmp_path / "nowhere")


def test_no_model(tmp_path, model):
    assert "is not there" in told(tmp_path / "none")
    assert "is no COLMAP model" in told(tmp_path)
    (model / "points3D.txt").unlink()
    assert len(read_colmap_model(model)) == 2, "points are not asked for"
    (model / "images.txt").unlink()
    assert "is no COLMAP model" in told(model)


def binary(model, tmp_path):
    import cv2  # noqa: F401
    import pycolmap

    folder = tmp_path / "binary"
    folder.mkdir()
    pycolmap.Reconstruction(model).write_binary(folder)
    return folder


@pytest.mark.parametrize("name", ["images.bin", "cameras.bin"])
def test_files_cut_off_or_too_long(model, tmp_path, name):
    folder = binary(model, tmp_path)
    whole = (folder / name).read_bytes()
    for cut in range(len(whole)):
        (folder / name).write_bytes(whole[:cut])
        assert "cut off or damaged" in told(folder)
    (folder / name).write_bytes(whole + b"\0")
    assert "1 bytes too much" in told(folder)
    for start in range(0, len(whole), 4):  # counts, numbers and sizes that are enormous
        (folder / name).write_bytes(whole[:start] + b"\xff\xff\xff\xff" + whole[start + 4 :])
        with suppress(FileError):
            assert len(read_colmap_model(folder)) == 2


def test_keypoints_are_stepped_over(tmp_path):
    import cv2  # noqa: F401

    pycolmap = pytest.importorskip("pycolmap")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 1, 5, 30
    reconstruction = pycolmap.synthesize_dataset(options)
    reconstruction.write_binary(tmp_path)
    found = read_colmap_model(tmp_path)
    theirs = {image.name: image for image in reconstruction.images.values()}
    assert set(found.names) == set(theirs)
    assert len(theirs) >= 5
    for name, image in theirs.items():
        matrix = image.cam_from_world().matrix()
        assert np.abs(found.poses[name].rotation - matrix[:, :3]).max() < 1e-12
        assert np.abs(found.poses[name].translation - matrix[:, 3]).max() < 1e-12
        assert found.cameras[name].params == tuple(image.camera.params)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("cameras.txt", "1 WHATEVER 64 48 1 2 3\nx PINHOLE 64 48 1 2 3 4\n", "line 1: unknown camera model .*line 2"),
    ("cameras.txt", "1 PINHOLE 64 48 1 2 3 4\n", "there is no camera 2"),
    ("images.txt", "1 1 0 0 0 0 0 0 1\n\n", "line 1: expected number qw"),
    ("images.txt", "1 1 1 0 0 0 0 0 1 a.png\n\n", "quaternion of length 1"),
    ("images.txt", "1 1 0 0 0 0 0 nan 1 a.png\n\n", "line 1: expected"),
    ("images.txt", "1 1 0 0 0 0 0 0 1 a.png\n\n2 1 0 0 0 0 0 0 1 a.png\n\n", "is there twice"),
])  # fmt: skip
def test_text_that_is_no_model(model, name, content, message):
    (model / name).write_text(content)
    assert re.search(message, told(model))
