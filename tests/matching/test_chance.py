# SPDX-License-Identifier: Apache-2.0
import secrets

import numpy as np
import pytest

import sfumato
from sfumato.hamming.search import distances
from sfumato.matching.mutual import FALSE_ALARMS, chance_limit
from sfumato.types.recipe import Recipe


def test_unrelated_codes_are_as_rarely_as_near_as_it_says():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (1200, 8), np.uint8)
    limit = chance_limit(Recipe.of("sealed-64"), 600)
    alarms = (distances(codes[:600], codes[600:]) <= limit).sum(axis=1).mean()
    assert 0.2 * FALSE_ALARMS < alarms <= 1.5 * FALSE_ALARMS


def test_more_candidates_and_fewer_bits_ask_for_more():
    limits = [chance_limit(Recipe.of("sealed-512"), count) for count in (10, 1000, 100_000)]
    assert limits == sorted(limits, reverse=True)
    assert all(limit == int(limit) and 150 < limit < 256 for limit in limits)
    assert chance_limit(Recipe.of("sealed-64"), 1000) < limits[1]


@pytest.mark.parametrize("recipe", ["raw", "random-2", "compress-48"])
def test_other_recipes_have_no_limit(recipe):
    assert chance_limit(Recipe.of(recipe), 1000) is None
    assert chance_limit(None, 1000) is None


@pytest.fixture(scope="module")
def sealed():
    rng = np.random.default_rng(1)
    points = np.abs(rng.standard_normal((300, 128)))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    near = points[:100] + rng.normal(0, 0.01, (100, 128))
    strangers = np.abs(rng.standard_normal((200, 128)))
    other = np.concatenate([near / np.linalg.norm(near, axis=1, keepdims=True),
                            strangers / np.linalg.norm(strangers, axis=1, keepdims=True)])  # fmt: skip
    clear = [sfumato.Features(np.zeros((300, 4)), rows, sfumato.Extractor("sift")) for rows in (points, other)]
    key = secrets.token_bytes(32)
    return [sfumato.conceal(one, "sealed-512", secret=key, positions=True) for one in clear]


def test_sealed_strangers_do_not_match(sealed):
    found = sfumato.match(*sealed)
    assert (found.indices[:, 0] == found.indices[:, 1]).mean() > 0.8
    assert (found.indices[:, 0] < 100).sum() > 95
    every = sfumato.match(*sealed, ratio=1, max_distance=np.inf)
    assert len(every) > len(found) + 20, "by chance many are nearest to one another"
    assert len(sfumato.match(*sealed, max_distance=20)) <= len(found)
