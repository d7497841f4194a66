# SPDX-License-Identifier: Apache-2.0
"""Symbols, keys and hash tables."""

import math

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.search.grassmann.family import (
    Hasher,
    HashRule,
    HashTables,
    bit_chance,
    draw_lines,
    keys_of,
    mix_bits,
    quantile_cosines,
    share_of_lines,
    squared_cosines,
    symbols_of,
)
from sfumato.search.grassmann.kernels import collide


def bases(count, dim, n, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, n, dim))
    return np.linalg.qr(drawn)[0].transpose(0, 2, 1).astype(np.float32)


def test_lines_are_unit_vectors_in_all_directions():
    lines = draw_lines(20_000, 5, np.random.default_rng(0))
    assert np.allclose(np.linalg.norm(lines, axis=1), 1, atol=1e-6)
    assert np.allclose(lines.T @ lines / len(lines), np.eye(5) / 5, atol=0.01)


def test_squared_cosines_are_those_of_principal_angles():
    lines, spans = draw_lines(7, 12, np.random.default_rng(1)), bases(9, 3, 12)
    found = squared_cosines(spans, lines)
    for i, span in enumerate(spans):
        for j, line in enumerate(lines):
            cosine = np.linalg.svd(span.astype(float) @ line[:, None].astype(float), compute_uv=False)[0]
            assert found[i, j] == pytest.approx(cosine**2, abs=1e-6)
    assert squared_cosines(spans[:0], lines).shape == (0, 7)


@pytest.mark.parametrize(("dim", "n"), [(1, 4), (4, 25), (5, 60)])
def test_the_law_of_the_angle(dim, n):
    cosines = squared_cosines(bases(1, dim, n), draw_lines(40_000, n, np.random.default_rng(2)))[0]
    shares = np.array([0.1, 0.5, 0.9])
    assert np.allclose(np.quantile(cosines, shares), quantile_cosines(shares, dim, n), rtol=0.05)
    assert np.allclose(share_of_lines(quantile_cosines(shares, dim, n), dim, n), shares)
    assert bit_chance(math.pi / 3, dim, n) == pytest.approx(np.mean(cosines >= 0.25), abs=0.01)


def test_a_subspace_that_is_everything_contains_every_line():
    assert bit_chance(0.1, 3, 3) == 1
    assert quantile_cosines(np.array([0.5]), 3, 3).tolist() == [1]


@pytest.mark.parametrize(("dim", "n", "chance"), [(4, 25, 1.7e-8), (5, 437, 1.2e-177)])
@pytest.mark.parametrize("theta0", [math.pi / 8])
def test_printed_bits_are_constant_in_high_dimension(dim, n, chance, theta0):
    assert bit_chance(theta0, dim, n) == pytest.approx(chance, rel=0.05)
    cosines = squared_cosines(bases(500, dim, n), draw_lines(60, n, np.random.default_rng(3)))
    for angle in (math.pi / 8, math.pi / 6):
        cuts = np.tile(HashRule(name="printed", theta0=angle).cuts(dim, n), (60, 1))
        assert not symbols_of(cosines, cuts).any()  # 30,000 bits, not one of them 1
    halves = np.tile(HashRule().cuts(dim, n), (60, 1))
    assert 0.4 < symbols_of(cosines, halves).mean() < 0.6  # those of the default rule tell something


def test_quantised_cuts_cover_the_right_angle():
    rule = HashRule(name="quantised")
    assert len(rule.cuts(2, 9)) == 59  # 60 bins of pi / 120, as the authors' program has
    angles = np.arccos(np.sqrt(rule.cuts(2, 9, offset=0.01)))
    assert np.all(np.diff(angles) < 0)
    assert angles.min() == pytest.approx(math.pi / 120 - 0.01)
    assert np.allclose(np.diff(angles), -math.pi / 120)


def test_keys_differ_exactly_where_symbols_do():
    every = np.array(np.meshgrid(*[range(3)] * 4), np.uint16).reshape(4, -1).T
    assert len(np.unique(keys_of(every, 1))) == 81
    twice = keys_of(np.concatenate([every, every], axis=1), 2)
    assert np.array_equal(twice[:, 0], twice[:, 1])
    assert len(np.unique(mix_bits(np.arange(1000, dtype=np.uint64)))) == 1000


@pytest.mark.parametrize("wrong", [{"name": "quantil"}, {"theta0": 0}, {"theta0": 1.0}, {"bins": 1}, {"width": 0.0}])
def test_rules_that_can_not_be(wrong):
    with pytest.raises(InputError):
        HashRule(**wrong)


# --- keys


def random_bases(count, dim, n, seed=0, stretch=1.0):
    drawn = np.random.default_rng(seed).normal(size=(count, n, dim))
    drawn[:, 0] *= stretch
    return np.linalg.qr(drawn)[0].transpose(0, 2, 1).astype(np.float32)


def draw(rule="quantile", sizes=(6, 4), sample=(), n=20, **more):
    return Hasher.draw(HashRule(name=rule, **more), sizes, list(sample), n, np.random.default_rng(5))


def test_equal_subspaces_have_equal_keys_whatever_their_bases():
    spans = random_bases(50, 3, 20)
    turned = np.einsum("ij,njk->nik", np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0], spans)
    hasher = draw(sample=[spans])
    same = hasher.keys(spans) == hasher.keys(turned.astype(np.float32))
    assert same.mean() > 0.99  # rounding may cross a cut
    assert hasher.keys(spans[:0]).shape == (0, 6)


def test_cuts_are_fitted_to_subspaces_that_all_lean_one_way():
    spans = random_bases(2000, 3, 20, stretch=30)
    shares = {}
    for name, sample in (("fitted", [spans]), ("by the law", [])):
        hasher = draw(sample=sample)
        bits = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(3)).mean(axis=0)
        shares[name] = np.abs(bits - 0.5)
    assert shares["fitted"].max() < 0.02
    assert shares["by the law"].max() > 0.2


def test_other_dimensions_get_cuts_of_their_own():
    hasher = draw(sample=[random_bases(2000, 3, 20)])
    for dim in (1, 3, 7):
        spans = random_bases(2000, dim, 20, seed=dim)
        bits = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(dim)).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 0.06


@pytest.mark.parametrize(("rule", "more"), [("quantile", {}), ("quantile", {"bins": 4}), ("quantised", {"width": 0.2})])
def test_probes_are_the_key_and_its_neighbours(rule, more):
    spans = random_bases(40, 2, 20)
    hasher = draw(rule, sample=[random_bases(300, 2, 20, seed=9)], **more)
    found = hasher.probes(spans, 4)
    assert found.shape == (40, 6, 4)
    assert np.array_equal(found[:, :, 0], hasher.keys(spans))
    assert all(len(set(row)) == 4 for row in found.reshape(-1, 4).tolist())
    symbols = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(2)).astype(int)
    one_off = set()
    for place in range(4):
        for step in (-1, 1):
            changed = symbols.reshape(40, 6, 4).copy()
            changed[:, :, place] += step
            one_off |= set(keys_of(changed.reshape(40, -1).astype(np.uint16), 6)[0].tolist())
    assert set(found[0, :, 1:].ravel().tolist()) <= one_off


def test_probing_finds_more_near_subspaces():
    spans = random_bases(400, 2, 20)
    moved = np.linalg.qr((spans + 0.1 * np.random.default_rng(2).normal(size=spans.shape)).transpose(0, 2, 1))[0]
    moved = moved.transpose(0, 2, 1).astype(np.float32)
    hasher = draw(sample=[spans], sizes=(4, 8))
    keys = hasher.keys(spans)[:, :, None]
    hits = [(hasher.probes(moved, count) == keys).any(axis=(1, 2)).mean() for count in (1, 4)]
    others = (hasher.probes(np.roll(moved, 1, axis=0), 4) == keys).any(axis=(1, 2)).mean()
    assert hits[1] > hits[0] > others


def test_nothing_of_a_subspace_is_shown():
    assert repr(draw()) == "Hasher(quantile, 6 tables of 4 symbols)"


# --- hash tables


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


# --- collisions


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
