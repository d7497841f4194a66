# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.search.grassmann.family import HashTables, mix_bits


def some_keys(count, tables, kinds, seed=0):
    return mix_bits(np.random.default_rng(seed).integers(kinds, size=(count, tables)).astype(np.uint64))


def by_scan(keys, asked):
    """Rows and how many keys they share, by comparing all keys."""
    shared = (keys[:, :, None] == asked[None]).sum(axis=(1, 2))
    return {int(row): int(shared[row]) for row in np.flatnonzero(shared)}


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_tables_find_what_a_scan_over_keys_finds(count):
    keys, asked = some_keys(count, 5, 40), some_keys(20, 10, 40, seed=1).reshape(20, 5, 2)
    tables = HashTables.of(keys, first=1000)
    alive = np.ones(1000 + count, bool)
    rows, counts, looked = tables.find(asked, alive, count, by_count=True)
    for query in range(20):
        expected = by_scan(keys, asked[query])
        found = {int(r) - 1000: int(c) for r, c in zip(rows[query], counts[query], strict=True) if r >= 0}
        assert found == expected
        assert looked[query] == sum(expected.values())
        assert np.all(np.diff(counts[query]) <= 0)


def test_only_buckets_are_looked_at():
    keys = some_keys(4000, 1, 2000)
    looked = HashTables.of(keys).find(keys[:50, :, None], np.ones(4000, bool), 10, by_count=True)[2]
    assert looked.max() < 20


def test_a_cap_keeps_those_that_share_most_and_removed_rows_are_passed_over():
    keys = some_keys(300, 8, 6)
    tables, alive = HashTables.of(keys), np.ones(300, bool)
    rows, counts, _ = tables.find(keys[:1, :, None], alive, 300, by_count=True)
    few, their, _ = tables.find(keys[:1, :, None], alive, 5, by_count=True)
    assert rows[0, 0] == 0
    assert few[0].tolist() == rows[0, :5].tolist()
    assert their[0].tolist() == counts[0, :5].tolist()
    alive[0] = False
    assert 0 not in tables.find(keys[:1, :, None], alive, 300, by_count=True)[0]


def test_the_order_of_algorithm_2_is_that_of_the_tables():
    keys = np.array([[2, 1], [1, 2], [1, 1], [3, 3]], np.uint64)
    asked = np.array([[[1], [1]]], np.uint64)
    tables, alive = HashTables.of(mix_bits(keys)), np.ones(4, bool)
    assert tables.find(mix_bits(asked), alive, 4, by_count=False)[0][0].tolist() == [1, 2, 0, -1]
    rows, _, looked = tables.find(mix_bits(asked), alive, 2, by_count=False)
    assert (rows[0].tolist(), looked.tolist()) == ([1, 2], [2])  # the second table is not reached


def test_no_rows():
    tables = HashTables.of(np.zeros((0, 3), np.uint64))
    assert tables.find(some_keys(2, 3, 5)[:, :, None], np.zeros(0, bool), 4, by_count=True)[0].tolist() == [[-1], [-1]]


def test_restored_tables_are_checked():
    tables = HashTables.of(some_keys(50, 3, 9))
    good = tables.arrays()
    assert len(HashTables.restore(good, 0, 50, 3)) == 50
    starts, rows = good["starts"].copy(), good["rows"].copy()
    starts[1, 3], rows[2, 0] = 4_000_000_000, 50
    for wrong, count, number in (
        ({**good, "starts": starts}, 50, 3),
        ({**good, "rows": rows}, 50, 3),
        ({**good, "rows": rows[:, :40]}, 50, 3),
        ({**good, "prints": good["prints"].astype(np.int64)}, 50, 3),
        (good, 51, 3),
        (good, 50, 4),
    ):
        with pytest.raises(FileError):
            HashTables.restore(wrong, 0, count, number)
