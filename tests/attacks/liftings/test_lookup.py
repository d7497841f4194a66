# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.attacks.liftings.vertex import find_entries, find_repeats


@pytest.fixture(scope="module")
def entries():
    return np.random.default_rng(0).random((5000, 40))


def test_entries_are_found_by_all_distances_and_by_the_tree_alike(entries):
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 5000, 50)
    points = np.concatenate([entries[rows] + 1e-5 * rng.normal(size=(50, 40)), rng.random((50, 40))])
    found = find_entries(points, entries, 1e-3)
    assert np.array_equal(found[:50], rows)
    assert (found[50:] == -1).all()
    assert (find_entries(points, entries, 1e-7) == -1).all()


def test_empty_sides(entries):
    assert find_entries(entries[:0], entries, 1e-3).shape == (0,)
    assert (find_entries(entries[:3], entries[:0], 1e-3) == -1).all()


def test_repeats_need_another_owner(entries):
    points = np.concatenate([entries[:3], entries[:3], entries[5:6]])
    owners = np.array([0, 1, 2, 9, 1, 8, 3])
    assert find_repeats(points, owners, 1e-6).tolist() == [True, False, True, True, False, True, False]
    assert find_repeats(points[:0], owners[:0], 1e-6).shape == (0,)
