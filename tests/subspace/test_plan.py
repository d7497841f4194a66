# SPDX-License-Identifier: Apache-2.0
"""The plan is chosen from the data, once, and obeys what it is told."""

import numpy as np
import pytest

from sfumato.subspace import plan, reference
from sfumato.subspace.fast import prepare
from sfumato.subspace.subspace_set import Frame, SubspaceSet

N = 32


def make(count: int = 60, m: int = 2, n: int = N, varied: int = N, seed: int = 0) -> SubspaceSet:
    """Subspaces whose origins vary in some coordinates only."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, n)) * (np.arange(n) < varied)
    arrays = [
        np.ascontiguousarray(p, np.float32) for p in reference.canonicalise(points, rng.normal(size=(count, m, n)))
    ]
    for array in arrays:
        array.flags.writeable = False
    return prepare(*arrays)


def choose(a: SubspaceSet, b: SubspaceSet, keep=(1, 1), limit=np.inf, head=None, frame=None) -> plan.Plan:
    return plan.choose_plan(a, b, frame or Frame.of(a.origin, b.origin), keep, limit=limit, head=head)


def test_few_pairs_need_no_bound():
    assert choose(make(), make(seed=1)).head == 0


@pytest.mark.parametrize("head", [8, 20, N])
def test_a_head_that_is_asked_for_is_taken(head):
    chosen = choose(make(), make(seed=1), head=head)
    assert chosen.head == head
    assert chosen.step > 0


@pytest.mark.parametrize("keep", [(1, 1), (2, 0), (0, 5)])
@pytest.mark.parametrize("limit", [np.inf, 1e-3, 0.0])
def test_many_pairs_get_one(monkeypatch, keep, limit):
    monkeypatch.setattr(plan, "SMALL", 0)
    chosen = choose(make(), make(seed=1), keep, limit)
    assert chosen.head in (*plan.HEADS, N)
    assert 4 < chosen.head <= N
    assert np.isfinite(chosen.step)
    assert chosen.step > 0


def test_one_row_or_all_equal(monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 0)
    one = make(1)
    same = prepare(np.repeat(one.origin, 50, axis=0), np.repeat(one.basis, 50, axis=0))
    for sides in ((one, make()), (make(), one), (one, one), (same, same)):
        chosen = choose(*sides)
        assert chosen.head > 0
        assert chosen.step > 0


def test_the_plan_is_remembered(monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 0)
    a, b = make(), make(seed=1)
    frame = Frame.of(a.origin, b.origin)
    first = choose(a, b, frame=frame)
    monkeypatch.setattr(plan, "_measure", None)
    assert choose(a, b, frame=frame) is first


@pytest.mark.parametrize("head", [None, 8])
def test_large_subspaces_against_points_are_taken_in_dual_form(monkeypatch, head):
    """There only the whole panel bounds anything: the projection of a complement is not one of the projection."""
    monkeypatch.setattr(plan, "SMALL", 0)
    large, points = make(m=30), make(m=0, seed=1)
    assert choose(large, points, head=head) == plan.Plan(N, choose(large, points).step, (True, False))
    assert not plan._dual(make(m=16), points)
    assert choose(make(m=2), make(m=2, seed=1)).duals == (False, False)


@pytest.mark.parametrize("large", [10**9, 10])
def test_where_projecting_settles_nothing_nothing_is_projected(monkeypatch, large):
    monkeypatch.setattr(plan, "SMALL", 10)
    monkeypatch.setattr(plan, "LARGE", large)
    rng = np.random.default_rng(8)
    flat = [
        prepare(
            *(
                part.astype(np.float32)
                for part in reference.canonicalise(rng.normal(size=(300, 128)), rng.normal(size=(300, 2, 128)))
            )
        )
        for _ in range(2)
    ]
    assert choose(*flat).head == 128
