# SPDX-License-Identifier: Apache-2.0
"""Chances agree with simulations; the advice holds in a simulation of the theorem."""

import math

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.search.grassmann.family import (
    Hasher,
    HashRule,
    HashTables,
    bit_chance,
    draw_lines,
    squared_cosines,
    symbols_of,
)
from sfumato.search.grassmann.theory import (
    FAILURE_BOUND,
    Chances,
    advise,
    chances,
    configurations,
    joint_chance,
    simulate,
)

PRINTED = HashRule(name="printed", theta0=math.pi / 6)


def drawn_differ(rule, n, dim, angle, seed=0, draws=60_000):
    """How often symbols differ, from lines and subspaces themselves."""
    line, span = np.zeros((1, 1, n), np.float32), np.eye(n, dtype=np.float32)[None, :dim]
    line[0, 0, 0], line[0, 0, dim] = math.cos(angle), math.sin(angle)
    lines = draw_lines(draws, n, np.random.default_rng(seed))
    first, second = (
        symbols_of(squared_cosines(one, lines), np.tile(rule.cuts(one.shape[1], n), (draws, 1))) for one in (line, span)
    )
    return np.mean(first != second)


@pytest.mark.parametrize("rule", [PRINTED, HashRule(), HashRule(bins=4)])
@pytest.mark.parametrize(("n", "dim"), [(2, 1), (3, 1), (4, 3), (5, 2), (25, 4)])
def test_integrals_agree_with_draws(rule, n, dim):
    found = chances(rule, n, (1, dim), 0.2, 5)
    for differ, angle in ((found.differ1, 0.2), (found.differ2, 1.0)):
        expected = drawn_differ(rule, n, dim, angle)
        assert differ == pytest.approx(expected, abs=4 * math.sqrt(max(differ * (1 - differ), 1e-6) / 60_000) + 1e-6)
    assert found.p1 > found.p2 or found.differ2 < 1e-9


def test_order_of_dimensions_does_not_matter():
    assert chances(HashRule(), 9, (1, 3), 0.1, 3) == chances(HashRule(), 9, (3, 1), 0.1, 3)


def test_a_line_inside_a_subspace_is_the_limit():
    both = joint_chance(0.5, 0.5, 1e-9, 1, 6)
    assert both == pytest.approx(bit_chance(math.pi / 4, 1, 6), rel=1e-6)  # the same line


def test_theorem_3_4_is_false_as_printed():
    found = chances(PRINTED, 1000, (1, 1), 1 / math.sqrt(1000), math.pi / 2 * math.sqrt(1000))
    limit = math.erf(1 / math.tan(math.pi / 6) / 2 / math.sqrt(2))  # 2 Phi(alpha cot(theta0) / 2) - 1 for alpha = 1
    assert found.rho == pytest.approx(limit, abs=2e-3)
    assert found.rho > 1.5 / (1 + math.exp(0.5))  # what Eq. 5 says it is at most, and half as much again


def test_subspaces_are_simulated_and_say_how():
    found = chances(HashRule(), 12, (3, 3), 0.2, 4, np.random.default_rng(0))
    assert found.p1 > found.p2
    assert 0 < found.error < 1e-3
    for angles, distance in ((found.near, 0.2), (found.far, 0.8)):
        assert math.hypot(*angles) == pytest.approx(distance)
    again = chances(HashRule(), 12, (3, 3), 0.2, 4, np.random.default_rng(1))
    assert found.p1 == pytest.approx(again.p1, abs=6 * found.error)


def test_simulation_agrees_with_integrals_for_a_line():
    rule = HashRule()
    cuts = rule.cuts(1, 20), rule.cuts(5, 20)
    differ = simulate(cuts, (1, 5), 20, (0.5,), np.random.default_rng(0))
    assert differ == pytest.approx(chances(rule, 20, (1, 5), 0.5, 2).differ1, abs=4e-3)


def test_configurations_have_the_distance():
    for distance in (0.3, 2.0, math.pi / 2 * math.sqrt(3)):
        for angles in configurations(3, distance):
            assert math.hypot(*angles) == pytest.approx(distance)
            assert max(angles) <= math.pi / 2 + 1e-9
    assert len(configurations(3, 0.3)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dims": (0, 3)}, "dims"),
        ({"dims": (1, 9)}, "dims"),
        ({"ratio": 0.5}, "distance"),
        ({"ratio": 100}, "distance"),
        ({"dims": (2, 3)}, "rng"),
        ({"rule": HashRule(name="quantised")}, "quantised"),
    ],
)
def test_what_is_refused(changes, message):
    given = {"rule": HashRule(), "ambient_dim": 9, "dims": (1, 3), "radius": 0.1, "ratio": 2.0, **changes}
    with pytest.raises(InputError, match=message):
        chances(**given)


def test_constant_bits_gain_nothing():
    assert Chances(differ1=0, differ2=0, near=(0.1,), far=(0.2,)).rho == 1


# --- advice


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def test_the_advice_holds_in_a_simulation():
    """Theorem 2.3: tables as advised, near entries planted at R, all others at c R or farther."""
    rng, n, entries = np.random.default_rng(0), 16, 3000
    radius, ratio = 0.15, 8.0
    found = chances(HashRule(), n, (1, 1), radius, ratio)
    advice = advise(found, entries)
    assert advice.verdict == "possible"
    misses, floods, trials = 0, 0, 40
    for trial in range(trials):
        query = unit(rng.normal(size=(1, n)))
        others = unit(rng.normal(size=(4 * entries, n)))
        others = others[np.abs(others @ query[0]) <= math.cos(ratio * radius)][: entries - 1]
        assert len(others) == entries - 1
        away = unit(rng.normal(size=n) - (rng.normal(size=n) @ query[0]) * query[0])
        away = unit(away - (away @ query[0]) * query[0])
        near = math.cos(radius) * query[0] + math.sin(radius) * away
        database = np.concatenate([others, near[None]]).astype(np.float32)[:, None]
        hasher = Hasher.draw(HashRule(), (advice.tables, advice.key_length), [], n, np.random.default_rng(trial))
        tables = HashTables.of(hasher.keys(database))
        rows, counts, _ = tables.find(
            hasher.keys(query[:, None])[:, :, None], np.ones(entries, bool), entries, by_count=True
        )
        misses += entries - 1 not in rows[0]
        floods += counts[0][rows[0] != entries - 1].sum() > advice.cap
    assert misses / trials <= advice.miss + 0.2  # 1 / e at most, and 40 trials
    assert (misses + floods) / trials <= FAILURE_BOUND


def test_failure_bound_and_sizes():
    advice = advise(Chances(differ1=0.05, differ2=0.5, near=(0.1,), far=(1.0,)), 1000)
    assert (advice.key_length, advice.cap) == (10, 3 * advice.tables)
    assert advice.tables == math.ceil(0.95**-10)
    assert advice.tables <= 1000 ** (math.log(0.95) / math.log(0.5)) / 0.95 + 1
    assert advice.miss <= 1 / math.e
    assert advice.failure_bound == pytest.approx(1 / 3 + 1 / math.e)


@pytest.mark.parametrize("theta0", [math.pi / 8, math.pi / 6])
def test_the_printed_angles_are_impossible_in_high_dimension(theta0):
    found = chances(HashRule(name="printed", theta0=theta0), 504, (1, 5), 0.2, 4)
    advice = advise(found, 10**6)
    assert advice.verdict == "impossible"
    assert advice.key_length is None
    assert "inner product" in advice.reason or "no more often" in advice.reason


def test_a_gain_that_is_none_is_told():
    assert advise(Chances(differ1=0.3, differ2=0.5, near=(0.1,), far=(1.0,)), 50).verdict == "slower than a scan"
    assert advise(Chances(differ1=0.5, differ2=0.5, near=(0.1,), far=(1.0,)), 50).verdict == "impossible"
    assert advise(Chances(differ1=0.4999, differ2=0.5, near=(0.1,), far=(1.0,)), 10**9).verdict == "impossible"
    assert "differ in a bit" in advise(Chances(differ1=0, differ2=0, near=(0.1,), far=(1.0,)), 50).reason
    with pytest.raises(InputError, match="entries"):
        advise(Chances(differ1=0.1, differ2=0.5, near=(0.1,), far=(1.0,)), 1)
