# SPDX-License-Identifier: Apache-2.0
"""The compiled search of bits gives what the definition gives, in every case: ties, limits, widths, threads."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.hamming.search import FEW, MANY, BitSet, distances, search_bits


def defined(a, b, keep, limit=np.inf):
    """Return squares and rows of the nearest by the definition: all distances, sorted, of equals the lower row."""
    squared = np.square(distances(a, b).astype(np.float64))
    order = np.argsort(squared, axis=1, kind="stable")[:, :keep]
    best = np.take_along_axis(squared, order, axis=1)
    return np.where(best <= limit, best, np.inf), np.where(best <= limit, order, -1)


def codes(seed, count, width, ones):
    """Return packed codes of few different values, so that distances tie."""
    return np.packbits(np.random.default_rng(seed).random((count, 8 * width)) < ones, axis=1)


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    width=st.sampled_from([1, 4, 8, 13, 64]),
    ones=st.sampled_from([0.0, 0.02, 0.5]),
    keep=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    limit=st.sampled_from([np.inf, 0.0, 9.0, 30.5**2]),
    threads=st.sampled_from([1, 2, 3]),
)
def test_the_compiled_search_is_the_definition(seed, sizes, width, ones, keep, limit, threads):
    a, b = codes(seed, sizes[0], width, ones), codes(seed + 1, sizes[1], width, ones)
    found = search_bits(BitSet(a), BitSet(b), keep, threads=threads, limit=limit)
    for squared, rows, expected in (
        (found.squared0, found.rows0, defined(a, b, keep[0], limit)),
        (found.squared1, found.rows1, defined(b, a, keep[1], limit)),
    ):
        np.testing.assert_array_equal(squared, expected[0])
        np.testing.assert_array_equal(rows, expected[1])


def test_which_side_was_transposed_before_changes_nothing():
    a, b = codes(0, 200, 8, 0.1), codes(1, 90, 8, 0.1)
    plain = search_bits(BitSet(a), BitSet(b), (2, 2))
    used = BitSet(a)
    assert used.columns.shape == (4, 200)
    again = search_bits(used, BitSet(b), (2, 2))
    np.testing.assert_array_equal(plain.rows0, again.rows0)
    np.testing.assert_array_equal(plain.rows1, again.rows1)


def test_codes_of_whole_words_are_read_where_they_are():
    packed = codes(0, 10, 64, 0.5)
    assert np.shares_memory(BitSet(packed).words, packed)


def test_no_bit_becomes_a_float():
    a, b = codes(0, 3000, 64, 0.5), codes(1, 3000, 64, 0.5)
    search_bits(BitSet(a[:64]), BitSet(b[:64]), (2, 2))  # compiled
    tracemalloc.start()
    search_bits(BitSet(a), BitSet(b), (2, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * (a.nbytes + b.nbytes)  # floats would take 32 times as much


def test_the_sizes_in_memory_are_told():
    prepared = BitSet(codes(0, 100, 13, 0.5))
    before = prepared.nbytes
    assert (before, prepared.columns.nbytes) == (1300, 1600)
    assert prepared.nbytes == 1300 + 2 * 1600


@pytest.mark.parametrize("count", [1, 255, 256, 257])
def test_every_column_of_a_last_tile_counts(count):
    b = codes(3, count, 8, 0.5)
    found = search_bits(BitSet(b[-1:]), BitSet(b), (1, 0))
    assert found.squared0[0, 0] == 0
    assert (b[found.rows0[0, 0]] == b[-1]).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [4, 5, 64])
def test_a_few_among_many_are_those_of_the_definition(width, threads):
    rng = np.random.default_rng(width)
    many = rng.integers(0, 256, (MANY + 1000, width), dtype=np.uint8)
    many[-500:] = many[:500]  # of equals the lower row first
    few = np.concatenate([many[:4], rng.integers(0, 256, (FEW - 4, width), dtype=np.uint8)])
    for limit in (np.inf, float(np.quantile(distances(few, many), 1e-4)) ** 2):
        squared, rows = defined(few, many, 5, limit)
        answer = search_bits(BitSet(few), BitSet(many), (5, 0), threads=threads, limit=limit)
        assert np.array_equal(answer.squared0, squared)
        assert np.array_equal(answer.rows0, rows)
