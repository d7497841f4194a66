# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments.patches.protocols import (
    Labels,
    distance_between,
    draw_pairs,
    matching,
    pair_distances,
    retrieval,
    verification,
)

GROUPS, POINTS, VIEWS = 4, 10, 3


@pytest.fixture
def labels():
    group, point, view = (axis.ravel() for axis in np.indices((GROUPS, POINTS, VIEWS)))
    return Labels((group * POINTS + point).astype(np.int64), group.astype(np.int32), view.astype(np.int32))


def described(labels, noise, seed=0):
    """A descriptor a point, and noise on every patch of it."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(labels.points.max() + 1, 24))[labels.points]
    return (own + noise * rng.normal(size=own.shape)).astype(np.float32)


def test_pairs_are_what_they_say(labels):
    pairs = draw_pairs(labels, 500, np.random.default_rng(0))
    assert pairs.true.shape == pairs.same_group.shape == pairs.other_group.shape == (500, 2)
    a, b = pairs.true.T
    assert (labels.points[a] == labels.points[b]).all()
    assert (labels.views[a] != labels.views[b]).all()
    assert len(np.unique(labels.points[a])) == GROUPS * POINTS
    a, b = pairs.same_group.T
    assert (labels.groups[a] == labels.groups[b]).all()
    assert (labels.points[a] != labels.points[b]).all()
    assert np.array_equal(labels.views[b], labels.views[pairs.true[:, 1]])
    a, b = pairs.other_group.T
    assert (labels.groups[a] != labels.groups[b]).all()


def test_one_group_has_no_pairs_of_others(labels):
    rows = labels.groups == 0
    alone = Labels(labels.points[rows], labels.groups[rows], labels.views[rows])
    pairs = draw_pairs(alone, 50, np.random.default_rng(0))
    assert (len(pairs.true), len(pairs.same_group), len(pairs.other_group)) == (50, 50, 0)
    single = Labels(np.arange(4), np.zeros(4, np.int32), np.zeros(4, np.int32))
    pairs = draw_pairs(single, 50, np.random.default_rng(0))
    assert (len(pairs.true), len(pairs.same_group), len(pairs.other_group)) == (0, 0, 0)
    assert verification(pair_distances(distance_between(np.zeros((4, 2)), np.zeros((4, 2))), pairs)) == {}


def figures(labels, noise):
    rows = described(labels, noise)
    distance, rng = distance_between(rows, rows), np.random.default_rng(1)
    told = verification(pair_distances(distance, draw_pairs(labels, 400, rng)))
    return {
        **told,
        "matching": matching(distance, labels).mean(),
        "retrieval": retrieval(distance, labels, 100, 100, rng).mean(),
    }


def test_all_tasks_are_perfect_without_noise_and_chance_with_nothing_but(labels):
    clear, noisy, lost = (figures(labels, noise) for noise in (0.01, 1.0, 1e4))
    for name in ("verification", "matching", "retrieval", "balanced, same group", "area, other group"):
        assert clear[name] == pytest.approx(1), name
        assert clear[name] > noisy[name] > lost[name], name
    assert clear["fpr95"] == 0 < noisy["fpr95"] < 0.8 < lost["fpr95"]
    assert lost["area, same group"] == pytest.approx(0.5, abs=0.06)
    assert lost["balanced, other group"] == pytest.approx(0.5, abs=0.08)
    assert lost["verification"] == pytest.approx(1 / 6, abs=0.06)  # one true among six


def test_matching_counts_what_was_not_found():
    points = np.array([0, 1, 2, 3] * 2)
    labels = Labels(points, np.zeros(8, np.int32), np.repeat([0, 1], 4).astype(np.int32))
    rows = np.eye(4, dtype=np.float32)[points]
    assert matching(distance_between(rows, rows), labels).tolist() == [1.0]
    rows[5] = 9  # point 1 is lost in the second picture: its reference goes to a wrong one, at a larger distance
    assert matching(distance_between(rows, rows), labels).tolist() == [0.75]


def test_matching_is_a_figure_for_each_pair_of_pictures(labels):
    rows = described(labels, 0.1)
    assert matching(distance_between(rows, rows), labels).shape == (GROUPS * (VIEWS - 1),)


def test_retrieval_leaves_out_the_own_group(labels):
    """A distractor that equals the query would spoil the list; of the own group it does not count."""
    rows = described(labels, 0.01)
    twin = np.flatnonzero((labels.points == 1) & (labels.views == 0))[0]
    rows[twin] = rows[np.flatnonzero((labels.points == 0) & (labels.views == 0))[0]]
    found = retrieval(distance_between(rows, rows), labels, 1000, 1000, np.random.default_rng(0))
    assert len(found) == GROUPS * POINTS
    assert (found == 1).sum() == GROUPS * POINTS - 1  # the twin itself is no longer like its own views
    stranger = np.flatnonzero((labels.points == POINTS) & (labels.views == 0))[0]
    rows[stranger] = rows[np.flatnonzero((labels.points == 0) & (labels.views == 0))[0]]
    spoilt = retrieval(distance_between(rows, rows), labels, 1000, 1000, np.random.default_rng(0))
    assert (spoilt < 1).sum() == 3  # point 0 finds the stranger first, and the stranger its own views last


def test_nothing_is_a_case():
    none = Labels(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32))
    distance = distance_between(np.zeros((0, 3)), np.zeros((0, 3)))
    rng = np.random.default_rng(0)
    assert len(draw_pairs(none, 10, rng).true) == len(matching(distance, none)) == 0
    assert len(retrieval(distance, none, 10, 10, rng)) == 0
