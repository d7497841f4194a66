# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import FileError, ImageError, InputError
from sfumato.experiments.data.folders import PosedImages, nearest_rotation, parse_camera
from sfumato.images import folders
from sfumato.images.homography import HomographySequence
from sfumato.types.scene import Camera, Pose

CAMERA = Camera("PINHOLE", 64, 48, (60.0, 60.0, 32.0, 24.0))
POSE = Pose(np.eye(3), np.array([1.0, 2.0, 3.0]))


def test_posed_images_are_sorted_and_can_not_be_changed():
    names = ("b.jpg", "a.jpg")
    posed = PosedImages({n: Path(n) for n in names}, dict.fromkeys(names, CAMERA), dict.fromkeys(names, POSE))
    assert posed.names == ("a.jpg", "b.jpg") == tuple(posed.paths) == tuple(posed.cameras) == tuple(posed.poses)
    assert len(posed) == 2
    assert repr(posed) == "PosedImages(2 images)"
    with pytest.raises(TypeError):
        posed.paths["c.jpg"] = Path("c")
    assert len(PosedImages({}, {}, {})) == 0
    assert PosedImages({}, {"a": CAMERA}, {"a": POSE}).names == ("a",)


@pytest.mark.parametrize(
    ("paths", "cameras", "poses"), [({}, {}, {"a": POSE}), ({"b": Path("b")}, {"a": CAMERA}, {"a": POSE})]
)
def test_names_must_agree(paths, cameras, poses):
    with pytest.raises(InputError, match="same names"):
        PosedImages(paths, cameras, poses)


def test_a_sequence_has_a_homography_for_every_picture_but_the_first():
    sequence = HomographySequence("v_a", "viewpoint", (Path("1"), Path("2")), (np.eye(3),))
    assert not sequence.homographies[0].flags.writeable
    assert repr(sequence) == "HomographySequence('v_a', viewpoint, 2 images)"
    with pytest.raises(InputError, match="homographies"):
        HomographySequence("v_a", "viewpoint", (Path("1"), Path("2")), ())


def test_problems_are_told_at_once_and_counted(tmp_path):
    folders.refuse(tmp_path, [])
    with pytest.raises(FileError, match="one; two"):
        folders.refuse(tmp_path, ["one", "two"])
    with pytest.raises(FileError, match="30"):
        folders.refuse(tmp_path, map(str, range(50)))


def test_a_folder_must_be_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="things"):
        folders.need_folder(tmp_path / "file", "things")
    with pytest.raises(FileError, match="not there"):
        folders.need_folder(tmp_path / "none", "things")


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "list.txt"
    for content, message in ((None, "no such"), (b"\xff\xfe\x00", "UTF-8")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FileError, match=message):
            folders.read_lines(path)
    with pytest.raises(FileError, match="read"):
        folders.read_lines(tmp_path)
    path.write_text("a b\nc\n")
    assert folders.read_lines(path) == ["a b", "c"]


def test_sizes_are_those_of_the_upright_picture(tmp_path, save_picture):
    pillow = pytest.importorskip("PIL.Image")
    assert folders.image_size(save_picture(tmp_path / "a.png", (64, 48))) == (64, 48)
    assert folders.image_size(save_picture(tmp_path / "a.jpg", (30, 50))) == (30, 50)
    assert folders.image_size(save_picture(tmp_path / "a.ppm", (31, 50))) == (31, 50)
    exif = pillow.Exif()
    exif[0x112] = 6
    pillow.open(tmp_path / "a.jpg").save(tmp_path / "lying.jpg", exif=exif)
    assert folders.image_size(tmp_path / "lying.jpg") == (50, 30)
    assert folders.image_size(save_picture(tmp_path / "a.jp2", (128, 96))) == (128, 96), "not left to Pillow, but read"
    (tmp_path / "no.jpg").write_text("no picture")
    with pytest.raises(ImageError, match=r"no\.jpg"):
        folders.image_size(tmp_path / "no.jpg")


def test_what_can_be_wrong_with_a_picture(tmp_path, save_picture):
    good = save_picture(tmp_path / "deep" / "a.png")
    assert folders.check_image(good, "deep/a.png", (64, 48)) == []
    assert folders.check_image(good, "deep/a.png") == []
    assert "64 x 48, its camera says 48 x 64" in folders.check_image(good, "deep/a.png", (48, 64))[0]
    assert "missing" in folders.check_image(tmp_path / "b.png", "b.png")[0]
    (tmp_path / "c.png").write_bytes(b"")
    assert "cannot be read" in folders.check_image(tmp_path / "c.png", "c.png")[0]
    for name in ("../a.png", "/etc/a.png", "a/../../b.png", "", "a\0b"):
        assert "leaves the folder" in folders.check_image(tmp_path / "x", name)[0]


def test_cameras_as_hloc_writes_them():
    camera = parse_camera(["SIMPLE_RADIAL", "1600", "1063", "1469.2", "800", "531.5", "-0.0353"])
    assert camera == Camera("SIMPLE_RADIAL", 1600, 1063, (1469.2, 800, 531.5, -0.0353))


@pytest.mark.parametrize(("line", "message"), [
    ("PINHOLE 10 10", "expected MODEL"), ("PINHOL 10 10 1 2 3 4", "unknown camera model"),
    ("PINHOLE 10 10 1 2 3", "has 4 parameters, got 3"), ("PINHOLE 10.5 10 1 2 3 4", "whole numbers"),
    ("PINHOLE 0 10 1 2 3 4", "whole numbers"), ("PINHOLE 10 10 1 2 3 nan", "finite"),
    ("PINHOLE 10 10 1 2 3 x", "finite"),
    ("PINHOLE inf 10 1 2 3 4", "whole numbers"), ("PINHOLE 1000000000000 10 1 2 3 4", "1000000000000"),
])  # fmt: skip
def test_cameras_that_are_none(line, message):
    assert message in parse_camera(line.split())


def test_rotations_that_were_rounded(turn):
    rotation, _ = turn()
    rounded = np.round(rotation, 4)
    with pytest.raises(InputError):
        Pose(rounded, np.zeros(3))
    found = nearest_rotation(rounded)
    Pose(found, np.zeros(3))
    assert np.abs(found - rotation).max() < 1e-4
    for wrong in (np.diag([1.0, 1, -1]), 2 * np.eye(3), np.zeros((3, 3)), rotation + 0.01):
        assert nearest_rotation(wrong) is None
