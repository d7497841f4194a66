# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.search.inverted.cells import FEWEST, CellFinder, assign_cells
from sfumato.search.inverted.codes import Axes


@pytest.fixture(scope="module")
def cells():
    """Points that vary more on some axes than on others, like descriptors."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((2500, 64)) * np.linspace(1, 0.05, 64) + 0.3).astype(np.float32)


def finder_of(centres):
    return CellFinder.of(centres, Axes.of(centres, linear=False))


@pytest.mark.parametrize("m", [0, 2])
def test_nearly_the_same_cells_as_by_comparing_all_nearest_first(cells, lift_points, m):
    given = lift_points(40, n=64, m=m, seed=3).subspaces
    found = finder_of(cells).nearest(given.origin, given.basis, 8)
    whole = assign_cells(cells, cells.mean(axis=0), given.origin, given.basis, 8, in_order=True)
    assert found.dtype == np.int32
    assert np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found, whole, strict=True)]) > 0.9
    same = (found[:, 0] == whole[:, 0]).mean()
    assert same > 0.9, "nearest first"


@pytest.mark.parametrize("count", [1, 7, FEWEST - 1])
def test_few_cells_are_compared_whole(cells, lift_points, count):
    given = lift_points(10, n=64, seed=4).subspaces
    found = finder_of(cells[:count]).nearest(given.origin, given.basis, min(count, 5))
    np.testing.assert_array_equal(
        found,
        assign_cells(
            cells[:count], cells[:count].mean(axis=0), given.origin, given.basis, min(count, 5), in_order=True
        ),
    )


def test_no_queries(cells):
    empty = np.zeros((0, 64), np.float32), np.zeros((0, 2, 64), np.float32)
    assert finder_of(cells).nearest(*empty, 5).shape == (0, 5)
