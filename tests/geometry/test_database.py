# SPDX-License-Identifier: Apache-2.0
import logging
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pycolmap
import pytest

from sfumato.errors import FileError, InputError
from sfumato.geometry.colmap import PIXEL_CENTRE, write_database
from sfumato.types.scene import Camera, Matches

CAMERA = Camera("SIMPLE_RADIAL", 640, 480, (700.0, 320.0, 240.0, -0.1))


def pairs(*rows):
    return Matches(np.array(rows, np.int32).reshape(-1, 2), np.zeros(len(rows), np.float32))


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    keypoints = {f"db/{i}.jpg": (300 * rng.random((5 + i, 4))).astype(np.float32) for i in range(3)}
    return keypoints, dict.fromkeys(keypoints, CAMERA)


def test_keypoints_are_half_a_pixel_further_and_come_back(tmp_path, small):
    keypoints, cameras = small
    numbers = write_database(tmp_path / "d.db", keypoints, cameras, {})
    assert list(numbers) == sorted(keypoints)
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        for name, number in numbers.items():
            assert database.read_image(number).name == name
            written = database.read_keypoints(number)
            assert written.shape == (len(keypoints[name]), 2)
            assert np.allclose(written - PIXEL_CENTRE, keypoints[name][:, :2], atol=1e-4)
            camera = database.read_camera(database.read_image(number).camera_id)
            assert (camera.model_name, camera.width, camera.has_prior_focal_length) == ("SIMPLE_RADIAL", 640, True)
            assert list(camera.params) == list(CAMERA.params)
        assert (database.num_cameras(), database.num_rigs(), database.num_frames()) == (3, 3, 3)


def test_there_is_no_descriptor_in_it(tmp_path, small):
    write_database(tmp_path / "d.db", *small, {("db/0.jpg", "db/1.jpg"): pairs((0, 0))})
    with closing(sqlite3.connect(tmp_path / "d.db")) as database:
        assert database.execute("SELECT count(*) FROM keypoints").fetchone() == (3,)
        assert database.execute("SELECT count(*) FROM matches").fetchone() == (1,)
        assert database.execute("SELECT count(*) FROM descriptors").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM two_view_geometries").fetchone() == (0,)


def test_pairs_in_either_order_and_twice_are_one(tmp_path, small):
    matches = {
        ("db/1.jpg", "db/0.jpg"): pairs((5, 0), (1, 2)),
        ("db/0.jpg", "db/1.jpg"): pairs((0, 5), (3, 3)),
        ("db/2.jpg", "db/1.jpg"): pairs((6, 5)),
        ("db/0.jpg", "db/2.jpg"): pairs(),
    }
    numbers = write_database(tmp_path / "d.db", *small, matches)
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        first = database.read_matches(numbers["db/0.jpg"], numbers["db/1.jpg"])
        assert sorted(map(tuple, first.tolist())) == [(0, 5), (2, 1), (3, 3)]
        assert database.read_matches(numbers["db/2.jpg"], numbers["db/1.jpg"]).tolist() == [[6, 5]]
        assert len(database.read_matches(numbers["db/0.jpg"], numbers["db/2.jpg"])) == 0


def test_hlocs_spelling_is_understood(tmp_path, small):
    numbers = write_database(tmp_path / "d.db", *small, {("db-1.jpg", "db-0.jpg"): pairs((4, 2))})
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        assert database.read_matches(numbers["db/0.jpg"], numbers["db/1.jpg"]).tolist() == [[2, 4]]


def test_an_image_with_itself_is_left_out_and_told(tmp_path, small, caplog):
    with caplog.at_level(logging.WARNING):
        write_database(tmp_path / "d.db", *small, {("db/1.jpg", "db/1.jpg"): pairs((0, 0))})
    assert "1 pairs of an image with itself" in caplog.text


@pytest.mark.parametrize("rows", [(5, 0), (0, 6)])
def test_rows_that_are_not_there(tmp_path, small, rows):
    with pytest.raises(InputError, match=r"'db/0.jpg'"):
        write_database(tmp_path / "d.db", *small, {("db/0.jpg", "db/1.jpg"): pairs(rows)})
    assert not (tmp_path / "d.db").exists()


def test_images_that_are_not_there(tmp_path, small):
    matches = {("db/0.jpg", "db/7.jpg"): pairs((0, 0)), ("x", "y"): pairs((0, 0))}
    with pytest.raises(InputError, match="matched images"):
        write_database(tmp_path / "d.db", *small, matches)


def test_cameras_that_are_not_there(tmp_path, small):
    keypoints, cameras = small
    del cameras["db/1.jpg"], cameras["db/2.jpg"]
    with pytest.raises(InputError, match=r"'db/1.jpg'"):
        write_database(tmp_path / "d.db", keypoints, cameras, {})
    with pytest.raises(InputError, match=r"'db/1.jpeg'"):  # one that has no image
        write_database(tmp_path / "d.db", keypoints, {**cameras, "db/1.jpeg": cameras["db/0.jpg"]}, {})


@pytest.mark.parametrize("name", ["/etc/a.jpg", "db/../../a.jpg", "a\x1b[2J.jpg"])
def test_names_that_lead_elsewhere_do_not_get_into_a_model(tmp_path, small, name):
    keypoints, cameras = small
    keypoints[name], cameras[name] = keypoints["db/0.jpg"], cameras["db/0.jpg"]
    with pytest.raises(InputError, match="time"):
        write_database(tmp_path / "d.db", keypoints, cameras, {})
    assert not [*tmp_path.iterdir()]


def test_matches_of_names_that_hloc_spells_alike_are_refused(tmp_path, small):
    keypoints, cameras = small
    for name in ("x/y-z.jpg", "x-y/z.jpg"):
        keypoints[name], cameras[name] = keypoints["db/0.jpg"], cameras["db/0.jpg"]
    with pytest.raises(InputError, match=r"'x-y-z.jpg'"):
        write_database(tmp_path / "d.db", keypoints, cameras, {("x-y-z.jpg", "db/1.jpg"): pairs((0, 0))})


@pytest.mark.parametrize("wrong", [np.zeros((3, 1)), np.zeros(3), np.full((3, 4), np.nan), [["a", "b"]]])
def test_keypoints_that_are_none(tmp_path, small, wrong):
    keypoints, cameras = small
    with pytest.raises(InputError, match=r"'db/1.jpg'"):
        write_database(tmp_path / "d.db", {**keypoints, "db/1.jpg": wrong}, cameras, {})


def test_images_without_keypoints(tmp_path, small):
    keypoints, cameras = small
    numbers = write_database(tmp_path / "d.db", {**keypoints, "db/1.jpg": np.zeros((0, 4))}, cameras, {})
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        assert len(database.read_keypoints(numbers["db/1.jpg"])) == 0


def test_a_camera_shared_by_all(tmp_path, small):
    keypoints, cameras = small
    numbers = write_database(tmp_path / "d.db", keypoints, cameras, {}, shared=True)
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        assert (database.num_cameras(), database.num_rigs(), database.num_frames()) == (1, 1, 3)
        assert {database.read_image(number).camera_id for number in numbers.values()} == {1}
    cameras["db/1.jpg"] = Camera("PINHOLE", 640, 480, (700.0, 700.0, 320.0, 240.0))
    with pytest.raises(InputError, match=r"'db/0.jpg'"):
        write_database(tmp_path / "e.db", keypoints, cameras, {}, shared=True)


@pytest.mark.parametrize(("trusted", "known"), [(False, []), (["db/1.jpg"], ["db/1.jpg"])])
def test_guesses_are_marked_as_such(tmp_path, small, trusted, known):
    numbers = write_database(tmp_path / "d.db", *small, {}, trusted=trusted)
    with pycolmap.Database.open(str(tmp_path / "d.db")) as database:
        cameras = {
            name: database.read_camera(database.read_image(number).camera_id) for name, number in numbers.items()
        }
    assert [name for name, camera in cameras.items() if camera.has_prior_focal_length] == known


def test_a_file_that_is_there_is_left_alone(tmp_path, small):
    (tmp_path / "d.db").write_text("mine")
    with pytest.raises(FileError, match="there already"):
        write_database(tmp_path / "d.db", *small, {})
    assert (tmp_path / "d.db").read_text() == "mine"


def test_a_disk_without_room_is_told_before(tmp_path, small, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(FileError, match="1000"):
        write_database(tmp_path / "d.db", *small, {})
    assert not [*tmp_path.iterdir()]


FULL = """
import resource, signal, sys
import numpy as np
from sfumato.geometry.colmap import write_database
from sfumato.types.scene import Camera
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
camera = Camera("PINHOLE", 640, 480, (800.0, 800.0, 320.0, 240.0))
keypoints = {f"{i}.jpg": np.ones((5000, 2)) for i in range(9)}
try:
    write_database(sys.argv[1], keypoints, dict.fromkeys(keypoints, camera), {})
except OSError as error:
    print(type(error).__name__)
"""


def test_a_disk_that_fills_up_is_an_error_and_not_the_end(tmp_path):
    command = [sys.executable, "-c", FULL, str(tmp_path / "d.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("FileError\n", "")


def test_no_images_at_all(tmp_path):
    assert write_database(tmp_path / "d.db", {}, {}, {}) == {}
