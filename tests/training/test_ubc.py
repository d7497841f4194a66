# SPDX-License-Identifier: Apache-2.0
import cv2
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.training.patch_sets import is_ubc_folder, read_points, read_ubc, read_ubc_pairs

COUNT = 300  # one sheet is full, the second is not


@pytest.fixture
def folder(tmp_path):
    """A miniature of liberty: 300 patches of 100 points, three each, and a list of 4 pairs."""
    rng = np.random.default_rng(0)
    sheets = rng.integers(0, 256, (2, 1024, 1024), np.uint8)
    for number, sheet in enumerate(sheets):
        assert cv2.imwrite(str(tmp_path / f"patches{number:04d}.bmp"), sheet)
    (tmp_path / "info.txt").write_text("".join(f"{row // 3} 0\n" for row in range(COUNT)))
    lines = ["0 0 0 1 0 0 0", "3 1 0 9 3 0 0", "297 99 0 299 99 0 0", "5 1 0 6 2 0 0"]
    (tmp_path / "m50_2_2_0.txt").write_text("\n".join(lines) + "\n")
    return tmp_path, sheets


def test_patches_are_cut_row_by_row(folder):
    place, sheets = folder
    found = read_ubc(place)
    assert repr(found) == "PatchSet(300 of 64 x 64, 100 points, 1 groups)"
    np.testing.assert_array_equal(found.patches[0], sheets[0, :64, :64])
    np.testing.assert_array_equal(found.patches[17], sheets[0, 64:128, 64:128])
    np.testing.assert_array_equal(found.patches[256 + 43], sheets[1, 128:192, 11 * 64 : 12 * 64])
    assert found.views[:6].tolist() == [0, 1, 2, 0, 1, 2]


def test_some_rows_open_only_their_sheets(folder):
    place, sheets = folder
    (place / "patches0000.bmp").unlink()
    found = read_ubc(place, [299, 256])
    np.testing.assert_array_equal(found.patches[1], sheets[1, :64, :64])
    assert (found.points.tolist(), found.views.tolist()) == ([99, 85], [2, 1])
    assert len(read_ubc(place, [])) == 0


def test_pairs_are_the_same_if_their_points_are(folder):
    place, _ = folder
    pairs = read_ubc_pairs(place)
    assert repr(pairs) == "PatchPairs(4, 2 the same)"
    assert pairs.rows.tolist() == [[0, 1], [3, 9], [297, 299], [5, 6]]
    assert pairs.same.tolist() == [True, False, True, False]
    (place / "m50_5_5_0.txt").write_text("0 0 0 1 0 0\n")
    assert len(read_ubc_pairs(place)) == 1  # the longest by its name
    assert len(read_ubc_pairs(place, "m50_2_2_0.txt")) == 4
    (place / "m50_100000_100000_0.txt").write_text("0 0 0 1 0 0\n" * 2)
    (place / "m50_500000_500000_0.txt").write_text("0 0 0 1 0 0\n" * 3)
    assert len(read_ubc_pairs(place)) == 2  # the usual one


def damage_cut(place):
    data = (place / "patches0001.bmp").read_bytes()
    (place / "patches0001.bmp").write_bytes(data[:500])


DAMAGE = {
    "patches0001.bmp is missing": lambda place: (place / "patches0001.bmp").unlink(),
    "patches0001.bmp cannot be read": damage_cut,
    "expected 1024 each way": lambda place: cv2.imwrite(str(place / "patches0000.bmp"), np.zeros((64, 64), np.uint8)),
    "info.txt line 2": lambda place: (place / "info.txt").write_text("0 0\nzero 0\n"),
    "info.txt: no such file": lambda place: (place / "info.txt").unlink(),
    "UTF-8": lambda place: (place / "info.txt").write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("told", DAMAGE)
def test_damaged_folders_are_told(folder, told):
    DAMAGE[told](folder[0])
    with pytest.raises(FileError, match=told):
        read_ubc(folder[0])


@pytest.mark.parametrize(
    ("text", "told"),
    [("0 0 0 1\n", "line 1: expected"), ("0 0 0 -1 0 0\n", "line 1: expected"), ("0 0 0 300 0 0\n", "not those of"),
     ("0 0 0 1 5 0\n", "not those of"), ("0 0 0 " + "9" * 30 + " 0 0\n", "line 1: expected")],
)  # fmt: skip
def test_damaged_lists_are_told(folder, text, told):
    (folder[0] / "m50_2_2_0.txt").write_text(text)
    with pytest.raises(FileError, match=told):
        read_ubc_pairs(folder[0])


def test_what_is_not_there_is_told(folder, tmp_path):
    place = folder[0]
    assert is_ubc_folder(place)
    assert not is_ubc_folder(place / "gone")
    (place / "m50_2_2_0.txt").unlink()
    with pytest.raises(FileError, match="pairs"):
        read_ubc_pairs(place)
    with pytest.raises(FileError, match="row"):
        read_ubc(place, [300])
    with pytest.raises(FileError, match="not there"):
        read_points(tmp_path / "nowhere")
