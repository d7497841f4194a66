# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.concealment.lifting import conceal
from sfumato.errors import InputError
from sfumato.experiments.patches.protocols import distance_between
from sfumato.subspace.reference import squared_distances
from sfumato.training.patch_sets import area_under_curve, average_precision, fpr95
from sfumato.types.concealed import Subspaces

LISTS = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=60)


def test_fpr95_by_hand():
    distances = [*range(1, 101), 94.5, 95, 95.5, 200]  # 95 of the 100 true ones are at 95 or below
    same = [True] * 100 + [False] * 4
    assert fpr95(distances, same) == 0.5
    assert fpr95([1, 2], [True, False]) == 0
    assert fpr95([2, 1], [True, False]) == 1
    assert fpr95([1, 1], [True, False]) == 1  # equal is not told apart


def precision_by_hand(distances, same, positives):
    """HPatches' own: trapezoids below precision over recall, from precision 1 at recall 0."""
    ranked = sorted(zip(distances, same, strict=True))  # False before True
    hits, area, before = 0, 0.0, (0.0, 1.0)
    for rank, (_, true) in enumerate(ranked, 1):
        hits += true
        now = (hits / positives, hits / rank)
        area += (now[0] - before[0]) * (now[1] + before[1]) / 2
        before = now
    return area


@given(LISTS)
def test_average_precision_is_the_area_by_hand(listed):
    distances, same = zip(*listed, strict=True)
    total = sum(same)
    wanted = precision_by_hand(distances, same, total) if total else 0
    assert average_precision(distances, same) == pytest.approx(wanted)
    assert average_precision(distances, same, total + 3) == pytest.approx(precision_by_hand(distances, same, total + 3))


@given(LISTS)
def test_the_area_is_the_chance_of_the_right_order(listed):
    distances, same = (np.array(column) for column in zip(*listed, strict=True))
    if same.all() or not same.any():
        with pytest.raises(InputError, match="one kind"):
            area_under_curve(distances, same)
        return
    true, false = distances[same], distances[~same]
    wins = (true[:, None] < false) + 0.5 * (true[:, None] == false)
    assert area_under_curve(distances, same) == pytest.approx(wins.mean())


def test_nothing_is_a_case():
    assert average_precision([], []) == 0
    assert average_precision([], [], 4) == 0
    assert average_precision([1.0], [False]) == 0


def test_what_is_no_list_is_refused():
    for wrong in (([1, 2], [True]), ([[1]], [[True]]), ([np.nan], [True])):
        with pytest.raises(InputError):
            average_precision(*wrong)
    with pytest.raises(InputError, match="one kind"):
        fpr95([1.0], [True])
    with pytest.raises(InputError, match="positives"):
        average_precision([1.0, 2.0], [True, True], 1)


@pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
def test_one_distance_for_points_and_subspaces(monkeypatch):
    monkeypatch.setattr("sfumato.experiments.patches.protocols.PAIRS_AT_ONCE", 7)
    points = np.random.default_rng(0).normal(size=(12, 16)).astype(np.float32)
    lifted = conceal(points, "random-2", evaluation_seed=1)
    i, j = (axis.ravel() for axis in np.indices((12, 12)))
    for a, b in ((points, points), (points, lifted), (lifted, lifted)):
        found = distance_between(a, b)(i, j).reshape(12, 12)
        wanted = np.sqrt(squared_distances(a, b))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_sides_must_fit():
    with pytest.raises(InputError, match="dimensions"):
        distance_between(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(InputError, match="Subspaces"):
        distance_between(np.zeros(3), np.zeros((2, 4)))
    none = Subspaces(np.zeros((0, 4)), np.zeros((0, 1, 4)))
    assert distance_between(none, none)(np.zeros(0, int), np.zeros(0, int)).shape == (0,)
