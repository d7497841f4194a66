# SPDX-License-Identifier: Apache-2.0
"""The subset mechanism: its likelihood ratio is e^eps and no more, its hulls are functions of sets, its sums add up."""

import math
from collections import Counter
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

import sfumato
from sfumato.concealment import subset as module
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.subset import (
    _set_probability,
    draw_sets,
    exclusion_probability,
    hulls,
    nearest_entries,
    privacy_spent,
)
from sfumato.errors import DecoyError, EvaluationOnlyWarning, InputError, RecipeError
from sfumato.types.recipe import Link, Recipe

SAMPLES = 60_000

DRAWS = 10
"""Pairs of releases that are matched: one pair alone falls below its mean now and then."""


def counted(own, entries, link, seed=0):
    """Draw sets for one descriptor many times; count each."""
    drawn = np.frombuffer(np.random.default_rng(seed).bytes(SAMPLES * 8 * (link.dim + 1)), "u1").reshape(SAMPLES, -1)
    return Counter(map(tuple, draw_sets(np.full(SAMPLES, own), entries, link, drawn).tolist()))


@pytest.mark.parametrize(("entries", "size", "epsilon"), [(5, 2, 1.0), (7, 3, 0.5), (4, 3, 2.0), (9, 2, 4.0)])
def test_probabilities_of_all_sets_add_up_and_their_ratio_is_exact(entries, size, epsilon):
    sets = list(combinations(range(entries), size))
    table = np.array(
        [[_set_probability(entries, size, epsilon, included=v in chosen) for chosen in sets] for v in range(entries)]
    )
    assert table.sum(axis=1) == pytest.approx(1)
    ratios = table[:, None] / table[None]
    assert ratios.max() == pytest.approx(math.exp(epsilon))


@pytest.mark.parametrize(("entries", "size", "epsilon"), [(5, 2, 1.0), (6, 3, 0.7)])
def test_what_is_drawn_has_these_probabilities(entries, size, epsilon):
    link = Link("subset", size, variant=f":eps={epsilon}")
    for own in (0, entries - 1):
        found = counted(own, entries, link, seed=own)
        sets = list(combinations(range(entries), size))
        expected = [SAMPLES * _set_probability(entries, size, epsilon, included=own in chosen) for chosen in sets]
        assert stats.chisquare([found[chosen] for chosen in sets], expected).pvalue > 1e-4


def test_a_wrong_probability_would_be_noticed(monkeypatch):
    """The test above can fail: e^eps without the size in front is a common mistake."""
    link, entries = Link("subset", 2, variant=":eps=1"), 5
    wrong = (entries - 2) / (math.e + entries - 2)
    monkeypatch.setattr(module, "exclusion_probability", lambda *_: wrong)
    found = counted(0, entries, link)
    monkeypatch.undo()
    sets = list(combinations(range(entries), 2))
    expected = [SAMPLES * _set_probability(entries, 2, 1.0, included=0 in chosen) for chosen in sets]
    assert stats.chisquare([found[chosen] for chosen in sets], expected).pvalue < 1e-6
    included = sum(found[chosen] for chosen in sets if 0 in chosen) / 4
    excluded = sum(found[chosen] for chosen in sets if 0 not in chosen) / 6
    assert included / excluded != pytest.approx(math.e, rel=0.1)


def test_extreme_eps_stays_on_the_safe_side():
    assert exclusion_probability(65_536, 4, 100.0) > 0  # never rounded to certainty
    link = Link("subset", 2, variant=":eps=100")
    drawn = np.zeros((1, 24), np.uint8)  # the one coin in 2^64 that leaves the own entry out
    assert 3 not in draw_sets(np.array([3]), 10, link, drawn)[0]
    with pytest.raises(DecoyError, match="subset"):
        exclusion_probability(4, 4, 1.0)


def test_no_eps_is_too_large_and_none_leaves_exclusion_out():
    assert exclusion_probability(100, 4, 999) == 0.0
    assert exclusion_probability(100, 4, 2.0) == pytest.approx(96 / (4 * math.exp(2) + 96), rel=1e-14)
    link = Link("subset", 2, variant=":eps=999")
    drawn = np.zeros((1, 24), np.uint8)  # the one coin in 2^64 that excludes
    assert 3 not in draw_sets(np.array([3]), 10, link, drawn)[0]
    drawn[0, 0] = 1
    assert 3 in draw_sets(np.array([3]), 10, link, drawn)[0]


def test_the_hull_is_a_function_of_the_set_alone(decoys):
    sets = np.array([[3, 8, 40], [3, 8, 40], [1, 2, 5]])
    found = hulls(decoys.descriptors, sets)
    assert found.dim == 2
    assert np.array_equal(found.basis[0], found.basis[1])
    for row, chosen in zip(range(3), sets, strict=True):
        one = sfumato.Subspaces(found.origin[[row]], found.basis[[row]])
        assert sfumato.match(one, decoys.descriptors[chosen], mutual=False).distances.max() < 1e-4
    twins = np.vstack([decoys.descriptors[:1]] * 2 + [decoys.descriptors[1:2]])
    dependent = hulls(twins, np.array([[0, 1, 2]]))  # equal entries: still a plane, again of the set alone
    assert np.abs(dependent.basis[0] @ dependent.basis[0].T - np.eye(2)).max() < 1e-5


def test_large_eps_matches_and_small_eps_does_not(points, decoys):
    own = nearest_entries(points, decoys.descriptors)
    assert np.array_equal(own, (points @ decoys.descriptors.T).argmax(axis=1))
    distinct = points[np.unique(own, return_index=True)[1]][:20]  # few: sets also share entries by chance
    shares = {}
    for epsilon in (0.1, 30):
        correct = 0
        for _ in range(DRAWS):
            releases = [sfumato.conceal(distinct, f"subset-3:eps={epsilon}", decoys) for _ in range(2)]
            pairs = sfumato.match(*releases).indices
            correct += (pairs[:, 0] == pairs[:, 1]).sum()
        shares[epsilon] = correct / (DRAWS * len(distinct))
    assert shares[30] > 0.75  # both hulls hold the same entry; 0.9 on average
    assert shares[0.1] < 0.3


def test_equal_descriptors_are_drawn_on_their_own(points, decoys):
    same = np.repeat(points[:1], 40, axis=0)
    hidden = sfumato.conceal(same, "subset-3:eps=1", decoys)
    assert len(np.unique(hidden.origin, axis=0)) > 30  # one shared set would tell that they are equal


def test_draws_that_can_be_repeated_have_no_guarantee(points, decoys):
    features = sfumato.Features(np.zeros((300, 4)), points)
    with pytest.raises(RecipeError, match="secret"):
        sfumato.conceal(points, "subset-3:eps=1", decoys, secret=sha256(b"3").digest())
    with pytest.warns(EvaluationOnlyWarning):
        hidden = sfumato.conceal(features, "subset-3:eps=1", decoys, evaluation_seed=1)
    spent = privacy_spent(hidden.recipe, 300)
    assert math.isinf(spent.per_descriptor)
    assert "no guarantee" in str(spent)
    fresh = sfumato.conceal(features, "subset-3:eps=1", decoys)
    assert privacy_spent(fresh.recipe, 300, releases=2) == module.PrivacyCost(1.0, 300.0, 600.0)
    assert privacy_spent("sub-hybrid-2", 300) is None


def test_what_does_not_fit_is_told(points, decoys):
    for recipe, kind, message in (
        ("subset-3:eps=1", DecoyError, "needs a dictionary"),
        ("subset-40:eps=1", RecipeError, "span no hull in 32"),
    ):
        with pytest.raises(kind, match=message):
            sfumato.conceal(points, recipe, None if "dictionary" in message else decoys)
    with pytest.raises(InputError, match="only hybrid-labels"):
        sfumato.conceal(points, "subset-3:eps=1", decoys, labels=[0] * 300)
    with pytest.raises(DecoyError, match="dictionary"):
        sfumato.conceal(points, "subset-3:eps=1", Decoys(decoys.descriptors[:3]))
    assert sfumato.conceal(points[:0], "subset-3:eps=1", decoys).basis.shape == (0, 2, 32)


@pytest.mark.parametrize("given", ["subset-4:eps=10", "subset-4:eps=10.0", "subset-4:eps=010.00"])
def test_recipes_say_eps_in_one_way(given):
    recipe = Recipe.of(given)
    assert str(recipe) == "subset-4:eps=10"
    assert (recipe.dim, recipe.lifting.epsilon) == (3, 10.0)
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("wrong", ["subset-4", "subset-1:eps=2", "subset-4:eps=0", "subset-4:eps=-1",
                                   "subset-4:eps=1e3", "subset-4:eps=5-forced", "random-2:eps=5",
                                   "random-2-generated"])  # fmt: skip
def test_wrong_recipes_are_refused(wrong):
    with pytest.raises(RecipeError):
        Recipe.of(wrong)
