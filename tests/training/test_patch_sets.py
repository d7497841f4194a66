# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.training.patch_sets import PatchSet, join_patch_sets


def made(points, groups=None, level="", side=8):
    count = len(points)
    rng = np.random.default_rng(count)
    patches = rng.integers(0, 256, (count, side, side), np.uint8)
    return PatchSet(patches, points, [0] * count if groups is None else groups, np.arange(count) % 2, level)


def test_a_set_is_read_only_and_tells_no_pixels():
    one = made([3, 3, 4], level="hard")
    assert repr(one) == "PatchSet(3 of 8 x 8, 2 points, 1 groups, hard)"
    assert not one.patches.flags.writeable
    assert (len(one), one.side, len(one[one.points == 3])) == (3, 8, 2)
    assert one[1].level == "hard"


def test_joined_sets_keep_points_and_groups_apart():
    both = join_patch_sets([made([5, 5, 9], [2, 2, 7]), made([5, 6], [0, 0])])
    assert both.points.tolist() == [0, 0, 1, 2, 3]
    assert both.groups.tolist() == [0, 0, 1, 2, 2]
    assert np.array_equal(both.patches[3:], made([5, 6]).patches)


def test_an_empty_set_joins_too():
    assert len(join_patch_sets([made([]), made([1, 1])])) == 2
    assert len(join_patch_sets([made([])])) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"patches": np.zeros((2, 8, 8))}, "uint8"),
        ({"patches": np.zeros((2, 8, 9), np.uint8)}, "uint8 of shape"),
        ({"points": [1]}, "points"),
        ({"views": [0, -1]}, "views"),
        ({"level": "heavy"}, "level"),
    ],
)
def test_what_is_no_set_is_refused(change, told):
    good = {"patches": np.zeros((2, 8, 8), np.uint8), "points": [1, 1], "groups": [0, 0], "views": [0, 1]}
    PatchSet(**good)
    with pytest.raises(InputError, match=told):
        PatchSet(**{**good, **change})


def test_sets_that_differ_do_not_join():
    with pytest.raises(InputError, match="differ"):
        join_patch_sets([made([1]), made([1], side=9)])
    with pytest.raises(InputError, match="differ"):
        join_patch_sets([made([1], level="easy"), made([1], level="hard")])
    with pytest.raises(InputError, match="no set"):
        join_patch_sets([])
