# SPDX-License-Identifier: Apache-2.0
import numpy as np

from sfumato.search.grassmann.family import HashTables, mix_bits
from sfumato.search.grassmann.kernels import collide


def run(keys, asked, cap, by_count, alive=None):
    tables = HashTables.of(keys)
    rows, counts = np.full((len(asked), cap), -1, np.int64), np.zeros((len(asked), cap), np.int64)
    looked, alive = np.zeros(len(asked), np.int64), np.ones(len(keys), bool) if alive is None else alive
    collide(tables.starts, tables.prints, tables.rows, alive, asked, by_count, rows, counts, looked)
    return rows, counts, looked


def test_counts_of_one_query_do_not_leak_into_the_next():
    keys = mix_bits(np.arange(12, dtype=np.uint64).reshape(6, 2) % np.uint64(3))
    asked = np.concatenate([keys[:2], keys[:2]])[:, :, None]
    rows, counts, looked = run(keys, asked, 6, True)
    assert np.array_equal(rows[:2], rows[2:])
    assert np.array_equal(counts[:2], counts[2:])
    assert np.array_equal(looked[:2], looked[2:])


def test_rows_that_share_more_keys_come_first_and_of_equals_the_first_found():
    keys = mix_bits(np.array([[1, 9, 9], [1, 2, 9], [1, 2, 3], [9, 2, 3]], np.uint64))
    asked = mix_bits(np.array([[[1], [2], [3]]], np.uint64))
    rows, counts, looked = run(keys, asked, 4, True)
    assert rows[0].tolist() == [2, 1, 3, 0]
    assert counts[0].tolist() == [3, 2, 2, 1]
    assert looked.tolist() == [8]
    assert run(keys, asked, 2, False)[0][0].tolist() == [0, 1]


def test_the_dead_are_passed_over():
    keys = mix_bits(np.ones((3, 1), np.uint64))
    alive = np.array([True, False, True])
    rows, _, looked = run(keys, keys[:1, :, None], 3, False, alive)
    assert rows[0].tolist() == [0, 2, -1]
    assert looked.tolist() == [2]
