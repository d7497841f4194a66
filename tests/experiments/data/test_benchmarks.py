# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.experiments.data.benchmarks import read_aachen_folder, thresholds, write_submission
from sfumato.types.scene import Pose

CAMERA = "SIMPLE_RADIAL 64 48 50.5 32 24 -0.03"
DAY, NIGHT = "query/day/milestone/d1.jpg", "query/night/nexus5x/n1.jpg"


def write_lists(folder, save_picture, images):
    (folder / "queries").mkdir(parents=True)
    for condition, name in (("day", DAY), ("night", NIGHT)):
        (folder / "queries" / f"{condition}_time_queries_with_intrinsics.txt").write_text(f"{name} {CAMERA}\n")
        save_picture(folder / images / name)
    for name in ("db/1.jpg", "db/2.jpg"):
        save_picture(folder / images / name)


@pytest.fixture
def version_1(tmp_path, save_picture, turn):
    """Write the layout of version 1: an NVM model and a list of intrinsics."""
    folder = tmp_path / "aachen"
    write_lists(folder, save_picture, "images/images_upright")
    models = folder / "3D-models"
    models.mkdir()
    (models / "database_intrinsics.txt").write_text(f"db/1.jpg {CAMERA}\ndb/2.jpg {CAMERA}\n")
    words = " ".join(repr(float(value)) for value in turn()[1])
    rows = "".join(f"db/{number}.jpg 50.5 {words} {number} 2 3 -0.03 0\n" for number in (2, 1))
    (models / "aachen_cvpr2018_db.nvm").write_text(f"NVM_V3\n\n2\n{rows}\n0\n")
    return folder


@pytest.fixture
def version_1_1(tmp_path, save_picture):
    """Write the layout of version 1.1: a COLMAP model, and images that were unpacked at two places."""
    import cv2  # noqa: F401  (before pycolmap)

    pycolmap = pytest.importorskip("pycolmap")
    folder = tmp_path / "aachen_v1.1"
    write_lists(folder, save_picture, "images/images_upright")
    save_picture(folder / "images_upright" / "sequences" / "s1.png")
    text = tmp_path / "text"
    text.mkdir()
    (text / "cameras.txt").write_text(f"1 {CAMERA}\n")
    names = ("db/1.jpg", "db/2.jpg", "sequences/s1.png")
    (text / "images.txt").write_text("".join(f"{k} 1 0 0 0 {k} 0 0 1 {name}\n\n" for k, name in enumerate(names, 1)))
    (text / "points3D.txt").write_text("")
    model = folder / "3D-models" / "aachen_v_1_1"
    model.mkdir(parents=True)
    pycolmap.Reconstruction(text).write_binary(model)
    return folder


def told(*arguments):
    with pytest.raises(FileError) as error:
        read_aachen_folder(*arguments)
    return str(error.value)


def test_version_1(version_1, turn):
    found = read_aachen_folder(version_1)
    assert found.version == "1"
    assert found.database.names == ("db/1.jpg", "db/2.jpg")
    assert np.abs(found.database.poses["db/2.jpg"].rotation - turn()[0]).max() < 1e-12
    assert np.abs(found.database.poses["db/2.jpg"].center - [2, 2, 3]).max() < 1e-12
    assert found.database.cameras["db/1.jpg"].params == (50.5, 32, 24, -0.03)
    assert (found.day.names, found.night.names) == ((DAY,), (NIGHT,))
    assert found.night.paths[NIGHT].is_file()
    assert found.night.cameras[NIGHT].model == "SIMPLE_RADIAL"
    assert "98" in " ".join(found.remarks)
    assert "4328" in " ".join(found.remarks)
    assert repr(found) == "Aachen('1', PosedImages(2 images), day Queries(1), night Queries(1))"


def test_version_1_1_with_images_at_two_places(version_1_1):
    found = read_aachen_folder(version_1_1)
    assert found.version == "1.1"
    assert found.database.names == ("db/1.jpg", "db/2.jpg", "sequences/s1.png")
    assert found.database.paths["sequences/s1.png"].parent.parent.name == "images_upright"
    assert any("version 1.1 has 6697" in remark for remark in found.remarks)


def test_a_longer_list_of_the_night_belongs_to_version_1_1(version_1_1, version_1, save_picture):
    for folder, count in ((version_1_1, 2), (version_1, 1)):
        more = "query/night/nexus5x_additional_night/n2.jpg"
        save_picture(folder / "images" / "images_upright" / more)
        path = folder / "queries" / "night_time_queries_with_intrinsics_v1_1.txt"
        path.write_text(f"{NIGHT} {CAMERA}\n{more} {CAMERA}\n")
        assert len(read_aachen_folder(folder).night.names) == count


def test_images_may_lie_beside_the_models(version_1):
    (version_1 / "images" / "images_upright").rename(version_1 / "images_upright")
    assert len(read_aachen_folder(version_1).database) == 2


def test_everything_wrong_is_told_at_once(version_1, save_picture):
    images = version_1 / "images" / "images_upright"
    (images / "db" / "2.jpg").unlink()
    save_picture(images / DAY, (10, 10))
    lines = f"{NIGHT} {CAMERA}\n# comment\n\n{NIGHT} {CAMERA}\nquery/x.jpg PINHOLE 1 2 3\n"
    (version_1 / "queries" / "night_time_queries_with_intrinsics.txt").write_text(lines)
    message = told(version_1)
    for text in (
        "db/2.jpg is missing",
        f"{DAY} is 10 x 10",
        f"line 4: {NIGHT} is there twice",
        "line 5: PINHOLE has 4",
    ):
        assert text in message
    (version_1 / "queries" / "day_time_queries_with_intrinsics.txt").unlink()
    (version_1 / "3D-models" / "aachen_cvpr2018_db.nvm").unlink()
    message = told(version_1)
    assert "day_time_queries_with_intrinsics.txt: no such file" in message
    assert "aachen_cvpr2018_db.nvm is missing" in message


def test_poses_and_cameras_must_be_of_the_same_images(version_1):
    intrinsics = version_1 / "3D-models" / "database_intrinsics.txt"
    intrinsics.write_text(f"db/1.jpg {CAMERA}\ndb/3.jpg {CAMERA}\n")
    message = told(version_1)
    assert "db/2.jpg has a pose and no camera" in message
    assert "db/3.jpg has a camera and no pose" in message


def test_no_data_at_all(tmp_path):
    assert "is not there" in told(tmp_path / "none")
    message = told(tmp_path)
    assert "images_upright is missing" in message
    assert "database_intrinsics.txt: no such file" in message
    assert "aachen_v_1_1 is not there" in told(tmp_path, "1.1")
    with pytest.raises(InputError, match="version"):
        read_aachen_folder(tmp_path, "2")


def test_thresholds():
    strict = ((0.25, 2), (0.5, 5), (5, 10))
    assert thresholds("day") == thresholds("night") == thresholds("day", before_june_2020=True) == strict
    assert thresholds("night", before_june_2020=True) == ((0.5, 2), (1, 5), (5, 10))
    with pytest.raises(InputError, match="night"):
        thresholds("dusk")


def test_a_submission(version_1, tmp_path, turn):
    found = read_aachen_folder(version_1)
    rotation, quaternion = turn()
    path = tmp_path / "Aachen_eval.txt"
    left_out = write_submission(path, {NIGHT: Pose(rotation, np.array([1.5, -2, 1e-7]))}, found)
    assert left_out == (DAY,)
    name, *numbers = path.read_text().split()
    assert name == "n1.jpg"
    assert np.abs(np.array(numbers, float) - [*quaternion, 1.5, -2, 1e-7]).max() < 1e-12
    write_submission(path, {}, found)
    assert path.read_text() == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Aachen_eval.txt", "aachen"], "nothing else is left"


def test_a_submission_is_read_by_colmap(version_1, tmp_path, turn):
    """The quaternion is COLMAP's, w first: its text reader makes the same rotation of it."""
    import cv2  # noqa: F401

    pycolmap = pytest.importorskip("pycolmap")
    for angle in (0.0, 0.7, 3.1, np.pi):
        rotation, _ = turn(angle)
        write_submission(tmp_path / "s.txt", {DAY: Pose(rotation, np.zeros(3))}, read_aachen_folder(version_1))
        w, x, y, z = map(float, (tmp_path / "s.txt").read_text().split()[1:5])
        assert np.abs(pycolmap.Rotation3d(np.array([x, y, z, w])).matrix() - rotation).max() < 1e-9


def test_submissions_that_can_not_be(version_1, tmp_path, save_picture):
    pose = Pose(np.eye(3), np.zeros(3))
    with pytest.raises(InputError, match="poses"):
        write_submission(tmp_path / "s.txt", {"db/1.jpg": pose}, read_aachen_folder(version_1))
    with pytest.raises(FileError, match="written"):
        write_submission(tmp_path / "no" / "s.txt", {DAY: pose}, read_aachen_folder(version_1))
    twin = "query/night/nexus5x/d1.jpg"
    save_picture(version_1 / "images" / "images_upright" / twin)
    with (version_1 / "queries" / "night_time_queries_with_intrinsics.txt").open("a") as file:
        file.write(f"{twin} {CAMERA}\n")
    with pytest.raises(InputError, match=r"d1\.jpg"):
        write_submission(tmp_path / "s.txt", {DAY: pose}, read_aachen_folder(version_1))
    assert not (tmp_path / "s.txt").exists()
