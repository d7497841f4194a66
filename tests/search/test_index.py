# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError
from sfumato.search.entries import check_effort, check_k
from sfumato.search.index import SearchStats, best_of_each

KINDS = ("exact", "inverted")


@pytest.fixture(scope="module")
def lifted(lift_points):
    return lift_points(600, n=24)


@pytest.fixture(scope="module", params=KINDS)
def index(request, lifted):
    return sfumato.search.build(lifted.code, request.param)


def test_distances_are_true_and_ascending(index, lifted):
    distances, ids = index.search(lifted.views[:20], k=5)
    assert (distances.dtype, ids.dtype, ids.shape) == (np.float32, np.int64, (20, 5))
    assert (np.diff(distances, axis=1) >= 0).all()
    for query, row in enumerate(ids):
        true = np.sqrt(sfumato.squared_distances(lifted.views[query : query + 1], lifted.code[row]))[0]
        np.testing.assert_allclose(distances[query], true, atol=1e-6)


def test_more_than_there_are_pads(index, lifted):
    distances, ids = index.search(lifted.views[:2], k=700, effort=1)
    assert (ids[:, 600:] == -1).all()
    assert np.isinf(distances[:, 600:]).all()
    assert all(set(row[:600]) == set(range(600)) for row in ids)


def test_queries_of_any_dimension_in_one_call(index, lifted):
    mixed = [lifted.code[:3], lifted.points[5:7]]
    ids = index.search(mixed, k=1)[1][:, 0]
    assert ids[3:].tolist() == [5, 6]
    assert index.search(np.zeros((0, 24)), k=3)[1].shape == (0, 3)


def test_what_was_done_is_counted(index, lifted):
    stats = index.search_counted(lifted.views[:7], k=2)[2]
    assert stats.queries == 7
    assert 0 < stats.evaluated <= stats.looked_at <= 7 * 600
    assert stats.empty == 0
    assert stats + stats == SearchStats(14, 2 * stats.looked_at, 2 * stats.evaluated, 0)


def test_candidates_hold_the_answer(index, lifted):
    nearest = index.search(lifted.views[:5], k=1)[1][:, 0]
    for one, ids in zip(nearest, index.candidates(lifted.views[:5]), strict=True):
        assert one in ids
        assert (np.diff(ids) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((1, 23)),), r"R\^24, these are subspaces of R\^23"),
        ((np.zeros((1, 24)), 0), "k: expected a whole number of 1 or more"),
        ((np.zeros((1, 24)), 1.5), "k: expected an integer"),
        ((np.zeros((1, 24)), 1, 2), "effort: expected a number from 0 to 1"),
        ((np.zeros((1, 24)), 1, "much"), "effort"),
    ],
)
def test_mistakes(index, arguments, message):
    with pytest.raises(InputError, match=message):
        index.search(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_adding_and_removing(lifted, lift_points, kind):
    index, more = sfumato.search.build(lifted.code, kind), lift_points(300, n=24, m=1, seed=7)
    ids = index.add([more.code[:200], more.code[200:]])
    assert ids.tolist() == list(range(600, 900))
    assert index.search(more.points[[0, 250]], k=1, effort=0.6)[1].tolist() == [[600], [850]]
    assert index.remove([600, 850, 850, 12345]) == 2
    assert len(index) == 898
    found = index.search(more.points[[0, 250]], k=898, effort=1)[1]
    assert not np.isin(found, [600, 850]).any()
    assert index.search(more.points[[1]], k=1, effort=0.6)[1].tolist() == [[601]]


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_may_be_empty(kind):
    index = sfumato.search.build(np.zeros((0, 6)), kind)
    distances, ids, stats = index.search_counted(np.ones((2, 6)), k=3)
    assert (ids == -1).all()
    assert np.isinf(distances).all()
    assert stats.empty == 2
    index.add(np.eye(6), ids=np.arange(10, 16))
    assert index.search(np.eye(6), k=1)[1][:, 0].tolist() == list(range(10, 16))
    index.remove(np.arange(10, 16))
    assert index.search(np.eye(6), k=1, effort=1)[1].tolist() == [[-1]] * 6


def test_best_of_each_breaks_ties_by_row():
    best, where = best_of_each(np.array([0, 0, 0, 2]), np.array([4, 1, 3, 9]), np.array([1.0, 1.0, 0.5, 2.0]), 3, 2)
    assert where.tolist() == [[3, 1], [-1, -1], [9, -1]]
    assert best.tolist() == [[0.5, 1.0], [np.inf, np.inf], [2.0, np.inf]]


def test_numbers_of_numpy_are_fine():
    assert check_k(np.int32(3)) == 3
    assert check_effort(np.float32(0.5)) == 0.5
    assert check_effort(None) is None


@pytest.mark.parametrize("kind", ["exact", "inverted", "grassmann", "projector"])
def test_an_addition_that_is_interrupted_leaves_the_index_as_it_was(kind, lifted, monkeypatch):
    index = sfumato.search.build(lifted.code[:200], kind)
    before = index.search(lifted.points[:50], 1)
    on_add = type(index).on_add

    def interrupt(self, rows):
        on_add(self, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(index), "on_add", interrupt)
    with pytest.raises(KeyboardInterrupt):
        index.add(lifted.code[200:400])
    monkeypatch.undo()
    assert len(index) == 200
    assert index.entries.next_id == 200
    index.add(lifted.code[200:210])
    found = index.search(lifted.points[:50], 1)
    if kind in ("exact", "inverted"):
        np.testing.assert_array_equal(found[1], before[1])
    assert index.search(lifted.points[205:206], 1, effort=1)[1].tolist() == [[205]]


def test_duplicates_are_all_found_lower_id_first(lifted):
    twice = sfumato.Subspaces(
        np.repeat(lifted.code.origin[:100], 3, axis=0), np.repeat(lifted.code.basis[:100], 3, axis=0)
    )
    for kind in KINDS:
        ids = sfumato.search.build(twice, kind).search(lifted.points[:20], 3, effort=0.9)[1]
        np.testing.assert_array_equal(ids, 3 * np.arange(20)[:, None] + np.arange(3))


def test_effort_one_prepares_the_scan_once_and_sees_what_was_added_and_removed(lifted, monkeypatch):
    from sfumato.search import exact as module

    made = []
    prepare = module.prepare
    monkeypatch.setattr(module, "prepare", lambda *sides: made.append(len(sides[0])) or prepare(*sides))
    index = sfumato.search.build(lifted.code[:300])
    for _ in range(3):
        index.search(lifted.points[:2], 1, effort=1)
    assert made.count(300) == 1
    index.remove([0])
    assert index.search(lifted.points[:1], 1, effort=1)[1] != 0
    index.add(lifted.points[:1])
    assert index.search(lifted.points[:1], 1, effort=1)[1] == 300


def test_more_answers_than_memory_should_hold_are_refused():
    index = sfumato.search.build(np.eye(3), "exact")
    with pytest.raises(InputError, match="has 3 entries; ask for 3 at most"):
        index.search(np.eye(3), k=2**31 - 1)
    assert index.search(np.eye(3), k=5)[1].shape == (3, 5)
