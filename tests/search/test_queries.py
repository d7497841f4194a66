# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError
from sfumato.search.entries import Block, read_blocks


def subspaces(count, m, n=6, seed=0):
    rng = np.random.default_rng(seed)
    return sfumato.Subspaces(rng.standard_normal((count, n)), rng.standard_normal((count, m, n)))


def concealed(count, extractor="sift"):
    given = subspaces(count, 2)
    return sfumato.ConcealedFeatures(np.zeros((count, 4)), given, "random-2", sfumato.Extractor(extractor))


def test_one_set_is_one_block_and_not_copied():
    given = subspaces(5, 2)
    read = read_blocks(given, "x")
    assert (read.count, read.dim, len(read.blocks)) == (5, 6, 1)
    assert read.blocks[0].basis is given.basis
    assert "5 of dimension 2" in repr(read.blocks[0])


def test_lists_are_sorted_by_dimension_and_places_remember():
    points = np.arange(12.0).reshape(2, 6)
    read = read_blocks([subspaces(3, 2), points, subspaces(4, 2, seed=1), subspaces(1, 1)], "x")
    assert [block.dim for block in read.blocks] == [0, 1, 2]
    assert [block.places.tolist() for block in read.blocks] == [[3, 4], [9], [0, 1, 2, 5, 6, 7, 8]]
    np.testing.assert_array_equal(read.blocks[0].origin, points)


def test_a_list_of_numbers_is_points_and_none_is_fine():
    assert read_blocks([[1.0, 2.0], [3.0, 4.0]], "x").count == 2
    assert read_blocks(np.zeros((0, 4)), "x").count == 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([np.zeros((1, 3)), np.zeros((1, 4))], "one space"),
        ("abc", "expected ConcealedFeatures"),
        ([[1.0], [2.0, 3.0]], "different lengths"),
        (np.full((1, 3), np.nan), "not finite"),
        ([concealed(2), concealed(2, "rootsift")], "rootsift"),
    ],
)
def test_what_can_not_be_is_refused(value, message):
    with pytest.raises(InputError, match=message):
        read_blocks(value, "x")


def test_for_angles_points_become_lines():
    read = read_blocks(np.array([[0.0, 2.0]]), "x", "angle")
    block: Block = read.blocks[0]
    assert block.dim == 1
    assert block.basis.tolist() == [[[0.0, 1.0]]]
    assert not block.origin.any()


def test_for_angles_zero_and_affine_are_refused():
    with pytest.raises(InputError, match="vector"):
        read_blocks(np.array([[0.0, 2.0], [0.0, 0.0]]), "x", "angle")
    with pytest.raises(InputError, match="pass"):
        read_blocks(subspaces(3, 1), "x", "angle")


def test_other_descriptors_and_spaces_are_refused():
    source = read_blocks(concealed(2), "x").source
    source.check(None)
    with pytest.raises(InputError, match="rootsift"):
        source.check(read_blocks(concealed(2, "rootsift"), "x").source)
