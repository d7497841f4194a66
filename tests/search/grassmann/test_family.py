# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.search.grassmann.family import (
    HashRule,
    bit_chance,
    draw_lines,
    keys_of,
    mix_bits,
    quantile_cosines,
    share_of_lines,
    squared_cosines,
    symbols_of,
)


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
