# SPDX-License-Identifier: Apache-2.0
import shutil

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.images.homography import warp_points

SHIFT = "1 0 3\n0 1 -2\n0 0 1\n"


@pytest.fixture
def sequence(tmp_path, save_picture):
    """Write a small sequence in HPatches' layout, or Oxford's; return its folder."""

    def make(name="v_wall", count=3, pattern="{}.ppm", matrix="H_1_{}"):
        for number in range(1, count + 1):
            save_picture(tmp_path / "set" / name / pattern.format(number), seed=number)
            if number > 1:
                (tmp_path / "set" / name / matrix.format(number)).write_text(SHIFT)
        return tmp_path / "set" / name

    return make


def told(folder):
    with pytest.raises(FileError) as error:
        read_homography_folder(folder)
    return str(error.value)


def test_a_folder_of_sequences_in_both_layouts(sequence):
    sequence("v_wall")
    sequence("i_lamp", count=6, pattern="{}.png")
    folder = sequence("graf", count=2, pattern="img{}.ppm", matrix="H1to{}p").parent
    (folder / ".hidden").mkdir()
    (folder / "notes").mkdir()
    (folder / "README.txt").touch()
    found = read_homography_folder(folder)
    assert [(s.name, s.kind, len(s.paths)) for s in found] == [
        ("graf", "other", 2), ("i_lamp", "illumination", 6), ("v_wall", "viewpoint", 3)
    ]  # fmt: skip
    assert [path.name for path in found[2].paths] == ["1.ppm", "2.ppm", "3.ppm"]
    assert all((matrix == [[1, 0, 3], [0, 1, -2], [0, 0, 1]]).all() for s in found for matrix in s.homographies)


def test_one_sequence_alone(sequence):
    (found,) = read_homography_folder(sequence("v_wall"))
    assert found.name == "v_wall"


def test_pictures_are_in_the_order_of_their_numbers(sequence):
    (found,) = read_homography_folder(sequence("v_many", count=11))
    assert [path.stem for path in found.paths] == [str(number) for number in range(1, 12)]


def test_everything_missing_is_named(sequence):
    folder = sequence("v_wall", count=6)
    sequence("v_other")
    (folder / "3.ppm").unlink()
    (folder / "H_1_5").unlink()
    (folder / "6.ppm").unlink()
    (folder / "4.ppm").write_text("no picture")
    shutil.copy(folder / "2.ppm", folder / "2.png")
    shutil.copy(folder / "H_1_2", folder / "H_1_8")
    message = told(folder.parent)
    for text in ("picture 3 is missing", "picture 6 is missing", "picture 7 is missing", "picture 8 is missing",
                 "homography H_1_5 is missing", "homography H_1_7 is missing",
                 "picture 4 cannot be read", "picture 2 is there twice"):  # fmt: skip
        assert f"v_wall: {text}" in message
    assert "v_other:" not in message


@pytest.mark.parametrize(("content", "message"), [
    ("", "nine finite numbers"), ("1 0 0 0 1 0 0 0", "nine finite numbers"), ("1 0 0 0 1 0 0 0 nan", "nine finite"),
    ("1 0 0 0 1 0 0 0 x", "nine finite"), ("1 0 0 1 0 0 0 0 1", "not invertible"), ("0 " * 9, "not invertible"),
    ("1e308 " * 9, "not invertible"),
    ("1 0 9999 0 1 0 0 0 1", "takes no point"), (b"\xff\xfe", "cannot be read"),
])  # fmt: skip
def test_homographies_that_are_none(sequence, content, message):
    folder = sequence()
    (folder / "H_1_2").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert f"H_1_2 {message}" in told(folder) or message in told(folder)


def test_large_movements_and_scales_are_invertible(sequence):
    folder = sequence()
    (folder / "H_1_2").write_text("0.01 0 20 0 0.01 20 1e-9 0 1e-3")
    assert "takes no point" in told(folder)
    (folder / "H_1_2").write_text("1e-3 0 2e-3 0 1e-3 2e-3 0 0 1e-3")
    assert read_homography_folder(folder)


def test_folders_without_sequences(tmp_path):
    assert "holds no sequence" in told(tmp_path)
    assert "is not there" in told(tmp_path / "none")
    (tmp_path / "v_empty").mkdir()
    message = told(tmp_path)
    assert "v_empty: picture 1 is missing" in message
    assert "v_empty: homography H_1_2 is missing" in message


def test_real_sequences(real_data):
    found = read_homography_folder(real_data("homography"))
    assert {sequence.name for sequence in found} >= {"v_graf", "i_leuven"}
    assert all(len(sequence.paths) == 6 for sequence in found)
    graf = next(sequence for sequence in found if sequence.name == "v_graf")
    center = warp_points(graf.homographies[0], np.array([[400.0, 320.0]]))
    assert (center > 0).all()
    assert (center < [800, 640]).all()
