# SPDX-License-Identifier: Apache-2.0
import os

import numpy as np
import pycolmap
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.geometry.cameras import (
    check_camera,
    default_camera,
    is_listable,
    read_cameras,
    read_known_cameras,
    read_marked_cameras,
    refuse_other_sizes,
    write_cameras,
)
from sfumato.geometry.colmap import to_colmap
from sfumato.types.scene import CAMERA_MODELS, Camera

CAMERAS = {
    "db/2.jpg": Camera("SIMPLE_RADIAL", 640, 480, (700.0, 320.0, 240.0, -0.1)),
    "a.jpg": Camera("PINHOLE", 1536, 1024, (1.0 / 3, 1379.74, 760.35, 503.41)),
}


@pytest.mark.parametrize("model", [model for model in CAMERA_MODELS if model != "EQUIRECTANGULAR"])
def test_parameters_are_those_of_colmap(model):
    camera = to_colmap(Camera(model, 640, 480, tuple(np.linspace(1, 2, len(CAMERA_MODELS[model])))), 7)
    assert camera.verify_params()
    assert (camera.camera_id, camera.model_name, camera.has_prior_focal_length) == (7, model, True)
    names = CAMERA_MODELS[model]
    assert [i for i, name in enumerate(names) if name.startswith("f")] == list(camera.focal_length_idxs())
    assert [i for i, name in enumerate(names) if name in ("cx", "cy")] == list(camera.principal_point_idxs())
    assert len(camera.params_info.split(",")) == len(names)
    too_few = Camera(model, 640, 480, (1.0,) * (len(names) - 1))
    with pytest.raises(InputError, match=f"{model} has {len(names)} parameters"):
        to_colmap(too_few, 1)


def from_colmap(camera):
    return Camera(camera.model_name, camera.width, camera.height, tuple(camera.params))


def test_to_colmap_and_back():
    for camera in CAMERAS.values():
        assert from_colmap(to_colmap(camera, 3)) == camera
    assert not to_colmap(CAMERAS["a.jpg"], 3, trusted=False).has_prior_focal_length


def test_a_point_on_the_axis_is_at_the_principal_point():
    camera = to_colmap(CAMERAS["a.jpg"], 1)
    assert np.allclose(np.ravel(camera.img_from_cam(np.array([0.0, 0.0, 2.0]))), (760.35, 503.41))
    assert np.allclose(np.ravel(camera.cam_from_img(np.array([760.35, 503.41 + 1379.74]))), (0, 1))


def test_the_guess_is_colmaps():
    guess = default_camera((640, 480))
    colmaps = pycolmap.Camera.create_from_model_name(1, "SIMPLE_RADIAL", 1.2 * 640, 640, 480)
    assert from_colmap(colmaps) == guess
    assert default_camera((480, 640)).params == (768.0, 240.0, 320.0, 0.0)
    assert default_camera((640, 480), 500.0).params[0] == 500


def test_lists_keep_every_digit(tmp_path):
    path = tmp_path / "cameras.txt"
    write_cameras(path, CAMERAS)
    assert read_cameras(path) == CAMERAS
    assert path.read_text().splitlines()[1].startswith("a.jpg PINHOLE 1536 1024 0.3333333333333333 1379.74")


def test_guesses_are_marked_in_the_list_by_a_comment(tmp_path):
    path = tmp_path / "cameras.txt"
    write_cameras(path, CAMERAS, ["a.jpg"])
    lines = path.read_text().splitlines()
    assert lines[1].startswith("# guessed: ")
    assert [line.split()[0] for line in lines if not line.startswith("#")] == ["a.jpg", "db/2.jpg"]  # as hloc reads it
    assert read_cameras(path) == CAMERAS
    assert read_marked_cameras(path) == (CAMERAS, {"a.jpg"})
    assert set(read_known_cameras(path)) == {"db/2.jpg"}
    path.write_text("\n".join([*lines[:2], "", "# mine", *lines[2:]]))  # a mark holds for the next camera
    assert read_marked_cameras(path)[1] == {"a.jpg"}
    path.write_text("\n".join([lines[0], *lines[2:]]))
    assert read_marked_cameras(path) == (CAMERAS, frozenset())


def test_a_map_adjusts_the_cameras_that_a_list_marks_as_guesses(places, tmp_path):
    place = places.make_place()
    views = [name for name in places.VIEWS if is_listable(name)]
    place.archive(tmp_path / "private.sfm", views)
    width, height, true = place.camera.width, place.camera.height, place.camera.params[0]
    guess = default_camera((width, height), 1.15 * true)
    for guessed in ((), views):
        folder = tmp_path / f"model-{len(guessed)}"
        write_cameras(tmp_path / "cameras.txt", dict.fromkeys(views, guess), guessed)
        outcome = sfumato.build_map(tmp_path / "private.sfm", None, folder, tmp_path / "cameras.txt")
        assert outcome.guessed == frozenset(guessed)
        made = pycolmap.Reconstruction(str(folder))
        focal = np.median([camera.focal_length for camera in made.cameras.values()])
        assert (abs(focal / true - 1) < 0.03) == bool(guessed)
    params = sfumato.geometry.MapParams(guessed=[views[0], "another.jpg"], mapper="incremental")
    cameras = dict.fromkeys(views, default_camera((width, height), true))
    assert sfumato.build_map(tmp_path / "private.sfm", None, folder, cameras, params, overwrite=True).guessed == {
        views[0]
    }


def test_hlocs_own_line(tmp_path):
    path = tmp_path / "queries.txt"
    path.write_text("query/night/x.jpg SIMPLE_RADIAL 1600 1200 1469.2 800 600 -0.0353019\n")
    camera = read_cameras(path)["query/night/x.jpg"]
    assert camera == Camera("SIMPLE_RADIAL", 1600, 1200, (1469.2, 800, 600, -0.0353019))


WRONG = """a.jpg PINHOLE 640 480 1 1 320 240
a.jpg PINHOLE 640 480 1 1 320 240
b.jpg PINHOL 640 480 1 1 320 240
c.jpg PINHOLE 640 480 1 320 240
d.jpg PINHOLE 640.5 480 1 1 320 240
e.jpg PINHOLE 640 480 nan 1 320 240
f.jpg PINHOLE 640 480 -5 1 320 240
my photo.jpg PINHOLE 640 480 1 1 320 240
"""


def test_all_wrong_lines_at_once(tmp_path):
    path = tmp_path / "cameras.txt"
    path.write_text(WRONG)
    with pytest.raises(FileError) as caught:
        read_cameras(path)
    told = str(caught.value)
    for part in (
        "line 2: 'a.jpg' was named before",
        "line 3: no camera model is called 'PINHOL' (did you mean 'PINHOLE'?)",
        "line 4: PINHOLE has 4 parameters (fx fy cx cy), 3 were given",
        "line 5: expected a width and a height in whole pixels",
        "line 6: parameters of camera PINHOLE",
        "line 7: PINHOLE: expected a focal length above 0",
        "line 8: ",
    ):
        assert part in told, told
    assert "line 1:" not in told


def test_an_empty_list_is_told(tmp_path):
    path = tmp_path / "cameras.txt"
    path.write_text("# nothing yet\n")
    with pytest.raises(FileError, match="no camera"):
        read_cameras(path)


COLMAPS = """# Camera list with one line of data per camera:
#   CAMERA_ID, MODEL, WIDTH, HEIGHT, PARAMS[]
# Number of cameras: 2
1 SIMPLE_RADIAL 640 480 512.5 320 240 -0.01
7 PINHOLE 800 600 700 701 400 300
"""
IMAGES = """# Image list with two lines of data per image:
#   IMAGE_ID, QW, QX, QY, QZ, TX, TY, TZ, CAMERA_ID, NAME
#   POINTS2D[] as (X, Y, POINT3D_ID)
1 1 0 0 0 0 0 0 7 db/a.jpg
1.5 2.5 -1 3 4 9
2 1 0 0 0 0 0 1 1 b c.jpg

3 1 0 0 0 0 0 2 7 d.jpg
"""


def test_colmaps_own_list_takes_names_from_the_images_beside_it(tmp_path):
    path = tmp_path / "any.txt"
    path.write_text(COLMAPS)
    (tmp_path / "images.txt").write_text(IMAGES)
    cameras = read_cameras(path)
    assert {name: camera.width for name, camera in cameras.items()} == {"db/a.jpg": 800, "b c.jpg": 640, "d.jpg": 800}
    assert cameras["b c.jpg"] == Camera("SIMPLE_RADIAL", 640, 480, (512.5, 320, 240, -0.01))


def test_a_single_camera_of_colmaps_serves_all_images(tmp_path):
    path = tmp_path / "cameras.txt"
    path.write_text("".join(COLMAPS.splitlines(keepends=True)[:-1]))
    assert {name: camera.width for name, camera in read_cameras(path, ["a.jpg", "b.jpg"]).items()} == {
        "a.jpg": 640,
        "b.jpg": 640,
    }
    assert set(read_cameras(path, ["1", "b.jpg"])) == {"1"}  # an image of that name


def test_cameras_of_colmaps_that_no_image_can_be_told_for(tmp_path):
    path = tmp_path / "cameras.txt"
    path.write_text(COLMAPS)
    for images in (None, ["a.jpg"]):
        with pytest.raises(FileError, match=r"images\.txt"):
            read_cameras(path, images)
    (tmp_path / "images.txt").write_text("1 1 0 0 0 0 0 0 3 a.jpg\n\n")
    with pytest.raises(FileError, match=r"'a\.jpg'"):
        read_cameras(path, ["a.jpg"])
    (tmp_path / "images.txt").write_text("a.jpg 1 2 3\n")
    with pytest.raises(FileError, match="line 1"):
        read_cameras(path, ["a.jpg"])


def test_colmap_reads_the_same_from_its_own_text(tmp_path):
    model = pycolmap.Reconstruction()
    for number, focal in ((1, 500.0), (2, 600.0)):
        camera = pycolmap.Camera.create_from_model_name(number, "PINHOLE", focal, 640, 480)
        model.add_camera_with_trivial_rig(camera)
        image = pycolmap.Image(name=f"{number}.jpg", camera_id=number, image_id=number)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
    model.write_text(str(tmp_path))
    assert {name: camera.params[0] for name, camera in read_cameras(tmp_path / "cameras.txt").items()} == {
        "1.jpg": 500,
        "2.jpg": 600,
    }


def test_cameras_of_images_of_another_size():
    refuse_other_sizes(CAMERAS, {"a.jpg": (1536, 1024), "db/2.jpg": None, "other": (1, 1)})
    with pytest.raises(InputError, match=r"'a.jpg'"):
        refuse_other_sizes(CAMERAS, {"a.jpg": (1024, 1536), "db/2.jpg": (640, 480)})


def test_models_that_are_none():
    with pytest.raises(InputError, match="EQUIRECTANGULAR"):
        check_camera(Camera("EQUIRECTANGULAR", 64, 48, (64.0, 48.0)))
    with pytest.raises(InputError, match="PINHOLE"):
        check_camera(Camera("GLASS", 1, 1, ()))


@pytest.mark.parametrize("number", ["9" * 5000, "1e3", "-1", "0", "4294967296", "1" * 10])
def test_sizes_that_are_none_are_told(tmp_path, number):
    (tmp_path / "cameras.txt").write_text(f"a.jpg PINHOLE {number} 480 500 500 320 240\n")
    with pytest.raises(FileError, match="line 1"):
        read_cameras(tmp_path / "cameras.txt")


def test_a_pipe_is_no_list(tmp_path):
    os.mkfifo(tmp_path / "cameras.txt")
    with pytest.raises(FileError, match="not a"):
        read_cameras(tmp_path / "cameras.txt")
