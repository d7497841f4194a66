# SPDX-License-Identifier: Apache-2.0

import cv2
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.training.patch_sets import list_hpatches, read_hpatches

COUNTS = {"i_dome": 3, "v_wall": 2}
STRIPES = ("ref", *(f"{letter}{number}" for letter in "eht" for number in range(1, 6)))


@pytest.fixture
def folder(tmp_path):
    """A miniature of HPatches: two sequences of three and two patches."""
    rng = np.random.default_rng(0)
    for name, count in COUNTS.items():
        (tmp_path / name).mkdir()
        for stripe in STRIPES:
            assert cv2.imwrite(str(tmp_path / name / f"{stripe}.png"), rng.integers(0, 256, (65 * count, 65), np.uint8))
    (tmp_path / "notes").mkdir()
    return tmp_path


def stripe(folder, name):
    return cv2.imread(str(folder / f"{name}.png"), cv2.IMREAD_GRAYSCALE)


def test_a_level_is_the_reference_and_five_views(folder):
    found = read_hpatches(folder, "hard")
    assert repr(found) == "PatchSet(30 of 65 x 65, 5 points, 2 groups, hard)"
    row = np.flatnonzero((found.points == 2) & (found.views == 4))
    np.testing.assert_array_equal(found.patches[row[0]], stripe(folder / "i_dome", "h4")[130:])
    row = np.flatnonzero((found.points == 3) & (found.views == 0))
    np.testing.assert_array_equal(found.patches[row[0]], stripe(folder / "v_wall", "ref")[:65])
    assert set(found.groups[found.points >= 3]) == {1}
    easy = read_hpatches(folder, "easy")
    assert np.array_equal(easy.patches[easy.views == 0], found.patches[found.views == 0])
    assert not np.array_equal(easy.patches, found.patches)


def test_some_sequences_and_some_points(folder):
    assert [place.name for place in list_hpatches(folder)] == ["i_dome", "v_wall"]
    assert len(read_hpatches(folder, "easy", ["v_wall"])) == 12
    assert len(read_hpatches(folder, "easy", most=1)) == 12
    assert len(read_hpatches(folder / "i_dome", "tough")) == 18
    assert list_hpatches(folder / "notes") == list_hpatches(folder / "gone") == []


def shorten(folder):
    (folder / "i_dome" / "t2.png").write_bytes((folder / "i_dome" / "t2.png").read_bytes()[:-40])


DAMAGE = {
    "i_dome: t3.png is missing": lambda folder: (folder / "i_dome" / "t3.png").unlink(),
    "i_dome: t2.png cannot be read": shorten,
    "v_wall: its stripes hold": lambda folder: cv2.imwrite(str(folder / "v_wall" / "t1.png"), np.zeros((65, 65))),
    "expected a stripe 65 wide": lambda folder: cv2.imwrite(str(folder / "v_wall" / "t1.png"), np.zeros((66, 65))),
}


@pytest.mark.parametrize("told", DAMAGE)
def test_damaged_sequences_are_told(folder, told):
    DAMAGE[told](folder)
    read_hpatches(folder, "easy")
    with pytest.raises(FileError, match=told):
        read_hpatches(folder, "tough")


def test_what_is_not_there_is_told(folder):
    with pytest.raises(InputError, match="'tough'"):
        read_hpatches(folder, "rough")
    with pytest.raises(FileError, match="no sequence 'x'"):
        read_hpatches(folder, "easy", ["x"])
    with pytest.raises(FileError, match="sequence"):
        read_hpatches(folder / "notes", "easy")
