# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import FileError, InputError
from sfumato.search.entries import Entries, read_blocks


def given(count, m, n=5, seed=0):
    rng = np.random.default_rng(seed)
    return read_blocks(sfumato.Subspaces(rng.standard_normal((count, n)), rng.standard_normal((count, m, n))), "x")


@pytest.fixture
def entries():
    made = Entries(5)
    made.add(given(6, 2))
    made.add(given(3, 1))
    return made


def test_rows_and_ids_are_kept_for_life(entries):
    assert (len(entries), entries.total, entries.next_id) == (9, 9, 9)
    assert [segment.dim for segment in entries.segments] == [2, 1]
    assert entries.remove([2, 7, 100]).tolist() == [2, 7]
    assert (len(entries), entries.total) == (7, 9)
    assert entries.alive_ids().tolist() == [0, 1, 3, 4, 5, 6, 8]
    new, rows = entries.add(given(2, 1, seed=5))
    assert (new.tolist(), rows) == ([9, 10], range(9, 11))
    assert entries.ids_of(np.array([[8, 10, -1]])).tolist() == [[8, 10, -1]]
    assert entries.remove([2]).size == 0


def test_small_neighbours_merge_and_keep_their_rows(entries):
    before = entries.segments[1].origin.copy()
    entries.add(given(4, 1, seed=2), [50, 51, 52, 53])
    assert len(entries.segments) == 2
    np.testing.assert_array_equal(entries.segments[1].origin[:3], before)
    assert entries.ids_of(np.arange(6, 13)).tolist() == [6, 7, 8, 50, 51, 52, 53]


def test_distances_cross_segments(entries):
    queries = given(2, 1, seed=9)
    i, rows = np.array([0, 1, 1]), np.array([1, 8, 0])
    found = entries.distances("distance", queries.blocks[0], i, rows)
    for at in range(3):
        segment = entries.segments[int(rows[at] >= 6)]
        row = rows[at] - segment.start
        one = sfumato.Subspaces(segment.origin[row : row + 1], segment.basis[row : row + 1])
        query = sfumato.Subspaces(queries.blocks[0].origin, queries.blocks[0].basis)[i[at]]
        assert found[at] == pytest.approx(np.sqrt(sfumato.squared_distances(query, one)[0, 0]), abs=1e-7)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 20], "1 of 2 are in the index already"),
        ([30, 30], "more than once"),
        ([-1, 3], "numbers from 0"),
        ([3, 2**63 - 1], "numbers from 0"),
        ([1], "expected shape"),
        ([0.5, 1.5], "expected integers"),
    ],
)
def test_ids_that_can_not_be_are_refused_and_nothing_changes(entries, ids, message):
    with pytest.raises(InputError, match=message):
        entries.add(given(2, 2), ids)
    assert entries.total == 9


def test_after_the_last_number_there_is_no_next_id(entries):
    entries.add(given(1, 2), [2**63 - 2])
    with pytest.raises(InputError, match="numbers left"):
        entries.add(given(1, 2))
    assert all(segment.ids.dtype == np.int64 for segment in entries.segments)


def test_ids_of_removed_entries_may_be_used_again(entries):
    entries.remove([0])
    assert entries.add(given(1, 2), [0])[0].tolist() == [0]


def test_another_space_is_refused(entries):
    with pytest.raises(InputError, match=r"R\^5, these"):
        entries.add(given(1, 1, n=4))
    with pytest.raises(InputError, match="integers"):
        entries.remove([0.5])


def test_arrays_bring_everything_back(entries):
    entries.remove([1])
    back = Entries.restore(entries.arrays(), entries.settings())
    assert (len(back), back.total, back.next_id) == (8, 9, 9)
    assert back.ids_of(np.arange(9)).tolist() == list(range(9))
    assert repr(back) == repr(entries)
    assert "8 in R^5" in repr(back)


@pytest.mark.parametrize("name", ["origin 0", "basis 1", "ids 0", "alive"])
def test_parts_that_do_not_fit_are_refused(entries, name):
    arrays = entries.arrays()
    arrays[name] = arrays[name][:-1]
    with pytest.raises(FileError):
        Entries.restore(arrays, entries.settings())


def test_empty_entries_are_fine():
    empty = Entries(4)
    assert (len(empty), empty.total, empty.nbytes) == (0, 0, 0)
    assert len(Entries.restore(empty.arrays(), empty.settings())) == 0
