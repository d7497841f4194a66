# SPDX-License-Identifier: Apache-2.0
"""When an index leaves a batch to the exact scan."""

import numpy as np
import pytest

import sfumato
from sfumato.search.entries import Block
from sfumato.search.exact import ExactIndex, has_lines, scan_cost


@pytest.fixture(autouse=True)
def kinds_choose(kinds_alone, monkeypatch):
    monkeypatch.setattr("sfumato.search.index.Index.uses_exact", True)


def block(count, m, n=24):
    return Block(np.zeros((count, n), np.float32), np.zeros((count, m, n), np.float32), np.arange(count))


@pytest.fixture(scope="module")
def lifted(lift_points):
    return lift_points(1200, n=24)


@pytest.fixture(scope="module")
def inverted(lifted):
    return sfumato.search.build(lifted.code, "inverted")


@pytest.mark.parametrize("m", [0, 2])
def test_the_exact_scan_costs_less_in_larger_batches(lifted, m):
    entries = sfumato.search.build(lifted.code, "exact").entries
    costs = [scan_cost(entries, block(count, m), "distance") for count in (1, 10, 100, 1000)]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > 10 * costs[-1]


@pytest.mark.parametrize("kind", ["inverted", "grassmann", "projector"])
def test_a_large_batch_is_answered_exactly(lifted, kind):
    index, exact = (sfumato.search.build(lifted.code, name) for name in (kind, "exact"))
    expected = exact.search_counted(lifted.views, 2)
    answers = index.search_counted(lifted.views, 2)
    for one, other in zip(answers[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert answers[2].looked_at == 1200 * 1200
    index.uses_exact = False
    assert index.search_counted(lifted.views[:500], 2)[2] != exact.search_counted(lifted.views[:500], 2)[2]


def test_a_small_batch_is_answered_by_the_kind(inverted, lifted, monkeypatch):
    monkeypatch.setattr(ExactIndex, "search_block", lambda *_: pytest.fail("this was for the kind"))
    assert inverted.search_counted(lifted.views[:1], 1)[2].looked_at < 1200
    assert inverted.search_counted(lifted.code[:1], 1)[2].looked_at <= 1200


def test_more_effort_is_sooner_left_to_the_scan(inverted):
    for m in (0, 2):
        costs = [inverted.cost(block(5, m), 1, effort) for effort in (0.0, None, 0.9)]
        assert costs == sorted(costs)
        assert costs[0] < costs[2]


def test_a_radius_of_answers_is_not_left_to_the_scan(lifted):
    index = sfumato.search.build(lifted.code, "grassmann", params={"within": 0.01})
    assert index.cost(block(1000, 0), 1, None) == 0


def test_what_is_added_or_removed_is_known_to_the_scan(lifted):
    index = sfumato.search.build(lifted.code[:1000], "inverted")
    index.search(lifted.views[:500], 1)
    index.add(lifted.code[1000:])
    index.remove([5])
    ids = index.search(lifted.views, 1)[1][:, 0]
    assert 5 not in ids
    expected = sfumato.search.build(lifted.code, "exact")
    expected.remove([5])
    np.testing.assert_array_equal(ids, expected.search(lifted.views, 1)[1][:, 0])


def test_angles_of_lines_are_told_from_those_that_need_singular_values(lifted):
    linear = sfumato.Subspaces(np.zeros((300, 24)), lifted.code.basis[:300])
    entries = sfumato.search.build(linear, "exact", "angle").entries
    assert has_lines(entries, block(3, 1))
    assert not has_lines(entries, block(3, 2))
    assert scan_cost(entries, block(3, 1), "angle") < scan_cost(entries, block(3, 2), "angle")
    index = sfumato.search.build(linear, "inverted", "angle")
    assert index.search_counted(lifted.views[:50], 1)[2].looked_at == 50 * 300
