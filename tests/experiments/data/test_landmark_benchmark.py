# SPDX-License-Identifier: Apache-2.0
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.experiments.data.benchmarks import read_landmark_folder

SCHEMA = """
CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL,
    width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL);
CREATE TABLE images (image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE,
    camera_id INTEGER NOT NULL);
"""
PARAMS = (50.0, 32.0, 24.0, 0.01)


@pytest.fixture
def scene(tmp_path, save_picture):
    """Write a scene in the layout of the benchmark: images/ and database.db; return its folder."""

    def make(name="Mini_Forum", images=("b.jpg", "a.jpg"), **changes):
        folder = tmp_path / "datasets" / name
        camera = {"model": 2, "width": 64, "height": 48, "params": PARAMS, "known": 1} | changes
        (folder / "keypoints").mkdir(parents=True)
        with sqlite3.connect(folder / "database.db") as database:
            database.executescript(SCHEMA)
            for number, image in enumerate(images, 1):
                save_picture(folder / "images" / image)
                params = np.array(camera["params"], "<f8").tobytes()
                known = camera["known"] if number == 1 else 0
                row = (number, camera["model"], camera["width"], camera["height"], params, known)
                database.execute("INSERT INTO cameras VALUES (?, ?, ?, ?, ?, ?)", row)
                database.execute("INSERT INTO images (name, camera_id) VALUES (?, ?)", (image, number))
        database.close()
        return folder

    return make


def told(folder):
    with pytest.raises(FileError) as error:
        read_landmark_folder(folder)
    return str(error.value)


def test_a_scene(scene):
    folder = scene()
    (found,) = read_landmark_folder(folder)
    assert found.name == "Mini_Forum"
    assert found.names == ("a.jpg", "b.jpg")
    assert found.paths["a.jpg"] == folder / "images" / "a.jpg"
    assert (found.cameras["a.jpg"].model, found.cameras["a.jpg"].params) == ("SIMPLE_RADIAL", PARAMS)
    assert found.trusted == {"b.jpg"}
    assert found.remarks == ()
    assert repr(found) == "LandmarkScene('Mini_Forum', 2 images)"


def test_a_folder_of_scenes_and_what_is_not_as_published(scene):
    scene()
    (scene("Madrid_Metropolis").parent / "notes").mkdir()
    found = read_landmark_folder(scene("Alamo").parent)
    assert [one.name for one in found] == ["Alamo", "Madrid_Metropolis", "Mini_Forum"]
    assert found[1].remarks == ("2 images, the published set has 1344",)


def test_what_is_not_in_the_database_is_not_in_the_benchmark(scene, save_picture):
    folder = scene()
    save_picture(folder / "images" / "more.jpg")
    (found,) = read_landmark_folder(folder)
    assert "more.jpg" not in found.names


def test_a_database_that_colmap_wrote(tmp_path, save_picture):
    import cv2  # noqa: F401  (before pycolmap)

    pycolmap = pytest.importorskip("pycolmap")
    save_picture(tmp_path / "Mini" / "images" / "a.jpg")
    with pycolmap.Database.open(str(tmp_path / "Mini" / "database.db")) as database:
        camera = pycolmap.Camera(model="PINHOLE", width=64, height=48, params=[50.0, 51.0, 32.0, 24.0])
        number = database.write_camera(camera)
        database.write_image(pycolmap.Image(name="a.jpg", camera_id=number))
    (found,) = read_landmark_folder(tmp_path / "Mini")
    assert found.cameras["a.jpg"].params == (50.0, 51.0, 32.0, 24.0)
    assert found.cameras["a.jpg"].model == "PINHOLE"


def test_everything_wrong_is_told_at_once(scene, save_picture):
    first, second = scene("One"), scene("Two")
    (first / "images" / "a.jpg").unlink()
    save_picture(first / "images" / "b.jpg", (10, 10))
    (second / "database.db").write_text("no database at all, only text, long enough to look like one")
    (second.parent / "Three" / "images").mkdir(parents=True)
    message = told(first.parent)
    for text in ("One: image a.jpg is missing", "One: image b.jpg is 10 x 10", "Two: database.db is no COLMAP database",
                 "Three: database.db is missing"):  # fmt: skip
        assert text in message


@pytest.mark.parametrize(("changes", "message"), [
    ({"model": 99}, "unknown model 99"), ({"params": (1.0,)}, "needs 4 parameters"), ({"width": "x"}, "whole numbers"),
    ({"width": 0}, "positive width"), ({"params": (1.0, 2.0, 3.0, float("nan"))}, "not finite"),
])  # fmt: skip
def test_cameras_that_are_none(scene, changes, message):
    assert message in told(scene(**changes))


@pytest.mark.parametrize("table", ["images", "cameras"])
def test_a_view_that_never_ends_is_no_table(scene, table):
    folder = scene()
    endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS name, n AS camera_id FROM r"
    with closing(sqlite3.connect(folder / "database.db")) as database, database:
        database.execute(f"ALTER TABLE {table} RENAME TO hidden")
        database.execute(f"CREATE VIEW {table} AS {endless}")
    assert f"it has no table {table}" in told(folder)


def test_nothing_there(tmp_path, scene):
    assert "holds no scene" in told(tmp_path)
    assert "is not there" in told(tmp_path / "none")
    assert "names no image" in told(scene("Empty", images=()))
    assert "leaves the folder" in told(scene("Out", images=("../out.jpg",)))
