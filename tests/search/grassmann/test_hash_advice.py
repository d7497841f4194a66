# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.search.grassmann.family import HashRule, HashTables
from sfumato.search.grassmann.index import Hasher
from sfumato.search.grassmann.theory import FAILURE_BOUND, Chances, advise, chances


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
