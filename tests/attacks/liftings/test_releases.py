# SPDX-License-Identifier: Apache-2.0
"""Several releases meet in the descriptor; noisy ones nearly; one release alone says nothing."""

import warnings

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Companions, Knowledge
from sfumato.attacks.liftings.releases import meet, pull_of, recover_intersection, sum_by_row
from sfumato.attacks.run import recovery_distances, score_recovery
from sfumato.errors import EvaluationOnlyWarning
from sfumato.images.samples import sample_image
from sfumato.subspace.reference import closest_points, squared_distances


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def conceal(points, recipe, decoys=None, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return sfumato.conceal(points, recipe, decoys, evaluation_seed=seed)


def joined(parts):
    rows = np.tile(np.arange(len(parts[0]), dtype=np.int32), len(parts))
    origin, basis = (np.concatenate([getattr(part, name) for part in parts]) for name in ("origin", "basis"))
    return Companions(rows=rows, subspaces=sfumato.Subspaces(origin, basis))


@pytest.fixture(scope="module")
def clear():
    return sfumato.extract(sample_image("coffee"), max_features=150)


@pytest.fixture(scope="module")
def decoys():
    return sfumato.load_decoys()


@pytest.mark.parametrize("recipe", ["random-2", "sub-hybrid-2", "sub-hybrid-4", "sub-hybrid-8"])
def test_two_releases_give_the_descriptor_away(clear, decoys, recipe):
    first, second = conceal(clear, recipe, decoys, 1), conceal(clear, recipe, decoys, 2)
    known = Knowledge(releases=joined([second.code]))
    found = recover_intersection(first, known)
    assert score_recovery(found, clear.descriptors)["within 0.02"] == 1
    assert found.confidence.min() > 0.99
    without_norm = meet(first.code, known.releases)
    assert score_recovery(without_norm, clear.descriptors)["within 0.02"] == 1


def test_the_same_release_twice_gives_nothing(clear, decoys):
    hidden = conceal(clear, "sub-hybrid-2", decoys, 1)
    found = recover_intersection(hidden, Knowledge(releases=joined([hidden.code])))
    assert score_recovery(found, clear.descriptors)["within 0.1"] < 0.1
    assert found.confidence.max() < 0.01


def test_without_companions_nothing_is_known(clear, decoys):
    hidden = conceal(clear, "sub-hybrid-2", decoys, 1)
    some = Companions(rows=np.zeros(0, np.int32), subspaces=hidden.code[:0])
    for found in (recover_intersection(hidden, Knowledge()), recover_intersection(hidden, Knowledge(releases=some))):
        assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
        assert found.confidence.max() == 0


def test_only_rows_with_companions_are_recovered(clear, decoys):
    first, second = conceal(clear, "sub-hybrid-2", decoys, 1), conceal(clear, "sub-hybrid-2", decoys, 2)
    rows = np.array([7, 3], np.int32)
    found = recover_intersection(first, Knowledge(releases=Companions(rows=rows, subspaces=second.code[rows])))
    assert np.flatnonzero(found.confidence > 0.5).tolist() == [3, 7]
    assert recovery_distances(found, clear.descriptors)[rows].max() < 1e-4


def test_noisy_views_and_more_of_them(clear, decoys):
    rng = np.random.default_rng(0)
    views = [unit(clear.descriptors + 0.2 * unit(rng.standard_normal(clear.descriptors.shape))) for _ in range(10)]
    lifted = [conceal(view, "sub-hybrid-2", decoys, number) for number, view in enumerate(views)]

    def median(count):
        found = meet(lifted[0], joined(lifted[1:count]), 1.0)
        return np.median(np.linalg.norm(found.descriptors - views[0], axis=1))

    assert median(2) < 0.05  # with the norm known, one noisy view is enough
    assert median(10) < median(2)
    loose = meet(lifted[0], joined(lifted[1:2]))
    assert np.median(np.linalg.norm(loose.descriptors - views[0], axis=1)) > 2 * median(2)


def test_a_wrong_companion_among_many_is_outvoted(clear, decoys):
    rng = np.random.default_rng(1)
    views = [unit(clear.descriptors + 0.2 * unit(rng.standard_normal(clear.descriptors.shape))) for _ in range(6)]
    views[3] = np.roll(views[3], 1, axis=0)  # all of one view belong to other descriptors
    lifted = [conceal(view, "sub-hybrid-2", decoys, number) for number, view in enumerate(views)]
    found = meet(lifted[0], joined(lifted[1:]), 1.0)
    assert np.mean(np.linalg.norm(found.descriptors - views[0], axis=1) < 0.1) > 0.9
    misled = meet(lifted[0], joined([lifted[3]]), 1.0)  # any other descriptor helps a little: all are alike
    assert np.mean(np.linalg.norm(misled.descriptors - views[0], axis=1) < 0.1) < 0.4


def test_doubt_grows_with_distance(clear, decoys):
    rng = np.random.default_rng(2)
    first = conceal(clear.descriptors, "sub-hybrid-2", decoys, 1)
    confidence = []
    for noise in (0.0, 0.2, 0.6, 1.5):
        near = unit(clear.descriptors + noise * unit(rng.standard_normal(clear.descriptors.shape)))
        second = conceal(near, "sub-hybrid-2", decoys, 2)
        confidence.append(meet(first, joined([second]), 1.0).confidence.mean())
    assert (np.diff(confidence) < 0).all()


def test_without_a_norm_it_is_the_closest_point_and_the_form_is_the_distance(clear, decoys):
    first, second = (conceal(clear.descriptors, "sub-hybrid-4", decoys, seed) for seed in (1, 2))
    second = sfumato.Subspaces(second.origin[::-1], second.basis[::-1])
    companions = joined([second])
    expected, _ = closest_points(first.origin, first.basis, second.origin, second.basis)
    assert np.allclose(meet(first, companions).descriptors, expected, atol=1e-4)
    at_origin = pull_of(first, companions).squared_distances(np.zeros((len(first), 4)))
    assert np.allclose(at_origin, np.diagonal(squared_distances(first.origin, second)), atol=1e-6)


def test_points_are_what_they_are():
    points = sfumato.Subspaces(np.eye(3, 5), np.zeros((3, 0, 5)))
    found = meet(points, None)
    assert np.array_equal(found.descriptors, np.eye(3, 5))
    assert found.confidence.min() == 1


def test_sums_by_row():
    sums = sum_by_row(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0, 2], np.int32), 4)
    assert sums.tolist() == [[2.0], [0.0], [5.0], [0.0]]
    assert sum_by_row(np.zeros((0, 2)), np.zeros(0, np.int32), 1).tolist() == [[0.0, 0.0]]
