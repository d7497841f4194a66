# SPDX-License-Identifier: Apache-2.0
"""Cells, inverted lists, and the cells of queries."""

import itertools

import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError
from sfumato.search.entries import Entries, read_blocks
from sfumato.search.inverted.cells import (
    FEWEST,
    CellFinder,
    InvertedLists,
    assign_cells,
    cell_count,
    centres_of_points,
    centres_of_subspaces,
    lists_of,
    middle_of,
    points_near,
)
from sfumato.search.inverted.codes import Axes

ZERO = np.zeros(12, np.float32)


def test_more_entries_get_more_cells_but_not_in_proportion():
    counts = [cell_count(count, 128) for count in (0, 1, 1000, 10_000, 100_000, 1_000_000, 10**9)]
    assert counts == sorted(counts)
    assert counts[0] == counts[1] == 16
    assert counts[5] == counts[6] == 8192  # one in 64 of them is 128
    assert cell_count(10**9, 1024) == 65_536
    assert cell_count(10**6, 1) == 64


def test_few_points_are_centres_themselves():
    points = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    centres = centres_of_points(points, 16, 0)
    assert {tuple(row) for row in centres} == {tuple(row) for row in points}


def test_centres_are_repeatable_and_lie_among_the_points(lift_points):
    points = lift_points(2000, n=12).points
    first, again = (centres_of_points(points, 50, 3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    nearest = sfumato.squared_distances(points, first).min(axis=1).mean()
    random = sfumato.squared_distances(points, points[:50]).min(axis=1).mean()
    assert nearest < random


def test_centres_learned_from_subspaces_are_nearer_to_what_they_hide_than_origins_are(lift_points):
    lifted = lift_points(3000, n=12, m=1)
    given = lifted.code
    learned = centres_of_subspaces([(given.origin, given.basis)], 40, 0, ZERO)
    of_origins = centres_of_points(given.origin, 40, 0)
    assert learned.shape == (40, 12)
    far = [sfumato.squared_distances(lifted.points, centres).min(axis=1).mean() for centres in (learned, of_origins)]
    assert far[0] < far[1]


def test_subspaces_are_filed_under_the_cells_nearest_to_the_whole_of_them(lift_points):
    lifted = lift_points(300, n=12)
    centres = lifted.points[:64].copy()
    expected = np.argsort(sfumato.squared_distances(lifted.code, centres), axis=1)[:, :7]
    for middle in (ZERO, centres.mean(axis=0)):
        cells = assign_cells(centres, middle, lifted.code.origin, lifted.code.basis, 7)
        np.testing.assert_array_equal(np.sort(cells, axis=1), np.sort(expected, axis=1))
    none = np.zeros((0, 12), np.float32), np.zeros((0, 2, 12), np.float32)
    assert assign_cells(centres, ZERO, *none, 3).shape == (0, 3)


def test_the_middle_is_where_subspaces_pass_and_not_where_they_are_nearest_to_0(lift_points):
    rng = np.random.default_rng(0)
    points = 100 + 0.1 * rng.standard_normal((500, 12))
    far = sfumato.conceal(points.astype(np.float32), "random-2")
    middle = middle_of([(far.origin, far.basis)], 12)
    np.testing.assert_allclose(middle, 100, atol=0.1)
    near = points_near(middle, far.origin, far.basis)
    assert np.linalg.norm(near - points, axis=1).max() < 1
    np.testing.assert_allclose(
        middle_of([(points.astype(np.float32), np.zeros((500, 0, 12)))], 12), points.mean(axis=0)
    )


def test_lists_hold_every_entry_where_it_is_filed():
    cells = np.array([[0, 2], [2, 1], [0, 1]], np.int32)
    offsets, members = lists_of(cells, 4)
    assert offsets.tolist() == [0, 2, 4, 6, 6]
    assert [members[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [[0, 2], [1, 2], [0, 1], []]


# --- lists


@pytest.fixture
def made(lift_points):
    given = lift_points(40, n=8).code
    axes = Axes.of(given.origin, linear=False)
    cells = np.random.default_rng(0).integers(0, 6, (40, 3)).astype(np.int32)

    def part(first, last):
        inside = slice(first, last)
        return InvertedLists.of(first, cells[inside], axes, given.origin[inside], given.basis[inside], 6)

    entries = Entries(8)
    entries.add(read_blocks(given, "x"))
    return part, entries


def test_two_runs_joined_are_one_made_at_once(made):
    part, _ = made
    joined, whole = part(0, 15).joined(part(15, 40)), part(0, 40)
    for name in ("start", "dim"):
        assert getattr(joined, name) == getattr(whole, name)
    for name in ("offsets", "members"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    for name in ("coarse", "fine"):
        apart = getattr(joined, name)[:, 12:].astype(int) - getattr(whole, name)[:, 12:]
        assert np.abs(apart).max() <= 1, "products of other shapes round differently"


def test_only_neighbours_of_like_size_join(made):
    part, _ = made
    assert part(0, 20).joins(part(20, 40))
    assert not part(0, 35).joins(part(35, 40))
    assert not part(0, 10).joins(part(20, 40))


def test_a_part_of_a_file_is_checked(made):
    part, entries = made
    good = part(0, 40)
    InvertedLists.restore(0, good.offsets, good.members, good.coarse, good.fine, entries, 6)
    codes = good.coarse, good.fine
    wrong = [
        (1, good.offsets, good.members, codes, 6),
        (99, good.offsets, good.members, codes, 6),
        (0, good.offsets, good.members, codes, 7),
        (0, good.offsets, good.members - 1, codes, 6),
        (0, good.offsets, good.members + 1, codes, 6),
        (0, good.offsets + 1, good.members, codes, 6),
        (0, good.offsets, good.members.astype(np.int64), codes, 6),
        (0, good.offsets, good.members, (good.coarse, good.fine[:, 1:]), 6),
        (0, good.offsets, good.members, (good.coarse[1:], good.fine), 6),
        (0, good.offsets, good.members, (good.fine, good.fine), 6),
        (0, np.array([0, 5, 3, 120, 120, 120, 120]), good.members, codes, 6),
        (0, np.array([0, 2**63 - 1, -5, 120, 120, 120, 120]), good.members, codes, 6),  # differences overflow
    ]
    for start, offsets, members, given, count in wrong:
        with pytest.raises(FileError):
            InvertedLists.restore(start, offsets, members, *given, entries, count)


# --- probing


@pytest.fixture(scope="module")
def cells():
    """Points that vary more on some axes than on others, like descriptors."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((2500, 64)) * np.linspace(1, 0.05, 64) + 0.3).astype(np.float32)


def finder_of(centres):
    return CellFinder.of(centres, Axes.of(centres, linear=False))


@pytest.mark.parametrize("m", [0, 2])
def test_nearly_the_same_cells_as_by_comparing_all_nearest_first(cells, lift_points, m):
    given = lift_points(40, n=64, m=m, seed=3).code
    found = finder_of(cells).nearest(given.origin, given.basis, 8)
    whole = assign_cells(cells, cells.mean(axis=0), given.origin, given.basis, 8, in_order=True)
    assert found.dtype == np.int32
    assert np.mean([len(set(a) & set(b)) / 8 for a, b in zip(found, whole, strict=True)]) > 0.9
    same = (found[:, 0] == whole[:, 0]).mean()
    assert same > 0.9, "nearest first"


@pytest.mark.parametrize("count", [1, 7, FEWEST - 1])
def test_few_cells_are_compared_whole(cells, lift_points, count):
    given = lift_points(10, n=64, seed=4).code
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
