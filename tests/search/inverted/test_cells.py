# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np

import sfumato
from sfumato.search.inverted.cells import (
    assign_cells,
    cell_count,
    centres_of_points,
    centres_of_subspaces,
    lists_of,
    middle_of,
    points_near,
)

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
    given = lifted.subspaces
    learned = centres_of_subspaces([(given.origin, given.basis)], 40, 0, ZERO)
    of_origins = centres_of_points(given.origin, 40, 0)
    assert learned.shape == (40, 12)
    far = [sfumato.squared_distances(lifted.points, centres).min(axis=1).mean() for centres in (learned, of_origins)]
    assert far[0] < far[1]


def test_subspaces_are_filed_under_the_cells_nearest_to_the_whole_of_them(lift_points):
    lifted = lift_points(300, n=12)
    centres = lifted.points[:64].copy()
    expected = np.argsort(sfumato.squared_distances(lifted.subspaces, centres), axis=1)[:, :7]
    for middle in (ZERO, centres.mean(axis=0)):
        cells = assign_cells(centres, middle, lifted.subspaces.origin, lifted.subspaces.basis, 7)
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
