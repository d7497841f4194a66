# SPDX-License-Identifier: Apache-2.0
"""Searches of the kind inverted: recall, work, memory, adding, saving, limits."""

import numpy as np
import pytest

import sfumato
from sfumato.errors import EvaluationOnlyWarning, InputError
from sfumato.search.inverted.index import InvertedIndex, InvertedParams

PARAMS = {"cells": 256, "filed": 24, "threads": 1}


@pytest.fixture(scope="module")
def lifted(lift_points):
    return lift_points(2500)


@pytest.fixture(scope="module")
def index(lifted, lift_points):
    public = lift_points(2500).points + 0.1 * np.random.default_rng(5).standard_normal((2500, 48))
    return sfumato.search.build(lifted.code, params={**PARAMS, "points": public})


def recall(index, queries, subspaces, **more):
    distances, _, stats = index.search_counted(queries, 1, **more)
    true = sfumato.nearest(queries, subspaces, k=1)[0][:, 0]
    return (distances[:, 0] <= true + 1e-6).mean(), stats.looked_at / len(queries) / len(subspaces)


def test_nearly_all_are_found_looking_at_few(index, lifted):
    found, share = recall(index, lifted.views[:200], lifted.code)
    assert found >= 0.95
    assert share < 0.3


def test_subspaces_find_subspaces(index, lifted, lift_points):
    queries = sfumato.Subspaces(lifted.views[:100], np.random.default_rng(9).standard_normal((100, 2, 48)))
    found, share = recall(index, queries, lifted.code)
    assert found >= 0.9
    assert share < 0.8


def far_views(lifted):
    return lifted.points[:100] + 0.15 * np.random.default_rng(1).standard_normal((100, 48))


def test_more_effort_looks_at_more_and_all_of_it_is_exact(lifted):
    weak, queries = sfumato.search.build(lifted.code, params={"cells": 256, "filed": 1}), far_views(lifted)
    results = [recall(weak, queries, lifted.code, effort=effort) for effort in (0, 0.3, 0.6, 1)]
    assert results == sorted(results)
    assert results[0][0] < 0.5, "one probe and little filing must miss"
    assert results[3] == (1.0, 1.0)


def test_batches_threads_and_single_queries_agree(index, lifted):
    whole = index.search(lifted.views[:150], 3)
    single = [index.search(lifted.views[i : i + 1], 3) for i in range(20)]
    np.testing.assert_array_equal(whole[1][:20], np.concatenate([ids for _, ids in single]))
    threaded = InvertedIndex(
        index.entries, index.metric, InvertedParams(threads=3), index.centres, index.axes, index.parts
    )
    np.testing.assert_array_equal(threaded.search(lifted.views[:150], 3)[1], whole[1])


def test_the_same_seed_gives_the_same_index(lifted):
    first, again = (sfumato.search.build(lifted.code[:500], params={"cells": 32, "seed": 4}) for _ in range(2))
    np.testing.assert_array_equal(first.centres, again.centres)
    np.testing.assert_array_equal(first.parts[0].members, again.parts[0].members)


def test_many_small_additions_stay_few_parts_and_are_found(lifted):
    index = sfumato.search.build(lifted.code[:100], params={"cells": 64, "filed": 16})
    for first in range(100, 400, 20):
        index.add(lifted.code[first : first + 20])
    assert len(index.parts) < 6
    assert (index.search(lifted.points[:400], 1, effort=0.8)[0][:, 0] < 1e-6).all()
    assert sum(map(len, index.parts)) == 400


def test_memory_is_what_it_says(index):
    own = sum(array.nbytes for array in index.arrays().values())
    assert index.nbytes == own + 9 * 2500
    per_entry = (index.nbytes - index.centres.nbytes - index.axes.axes.nbytes) / 2500
    assert per_entry < 24 * 4 + 64 + 128 + 9 + 2


def test_angles(lift_points):
    lifted = lift_points(3000, n=24)
    linear = sfumato.Subspaces(np.zeros((3000, 24)), np.stack([lifted.points, lifted.code.basis[:, 0]], axis=1))
    index = sfumato.search.build(linear, "inverted", "angle", {"cells": 128, "filed": 16, "points": lifted.points})
    exact = sfumato.search.build(linear, "exact", "angle")
    for queries in (lifted.views[:100], linear[:100]):
        true = exact.search(queries, 1)
        found = index.search(queries, 1, effort=0.4)
        assert (found[0][:, 0] <= true[0][:, 0] + 1e-6).mean() >= 0.9
        np.testing.assert_array_equal(index.search(queries, 1, effort=1)[1], true[1])


@pytest.mark.parametrize(
    "params", [{"cells": 0}, {"filed": 0}, {"seed": -1}, {"cells": 1.5}, {"points": np.zeros(3)}, {"threads": 0}]
)
def test_parameters_that_can_not_be(params):
    with pytest.raises(InputError):
        InvertedParams(**params)


def test_lifted_sift_of_sample_photos():
    from sfumato.images.samples import sample_image, sample_names

    found = [sfumato.extract(sample_image(name), max_features=700).descriptors for name in sample_names()[:2]]
    decoys = sfumato.load_decoys()
    with pytest.warns(EvaluationOnlyWarning):
        private = [sfumato.conceal(rows, "sub-hybrid-2", decoys, evaluation_seed=i) for i, rows in enumerate(found)]
    index = sfumato.search.build(private, params={"points": decoys.descriptors[:20_000], "cells": 512, "filed": 64})
    rng = np.random.default_rng(0)
    views = np.maximum(np.concatenate(found) + 0.02 * rng.standard_normal((sum(map(len, found)), 128)), 0)
    exact = sfumato.search.build(private, "exact").search(views, 1)
    distances, ids = index.search(views, 1)
    assert (distances[:, 0] <= exact[0][:, 0] + 1e-6).mean() > 0.9
    assert (ids[:, 0] == np.arange(len(views))).mean() > 0.7


@pytest.mark.parametrize("with_points", [False, True])
def test_subspaces_far_from_0_are_found_as_well(with_points):
    rng = np.random.default_rng(0)
    points = (100 + 0.1 * rng.standard_normal((3000, 32))).astype(np.float32)
    entries = sfumato.conceal(points, "random-2")
    index = sfumato.search.build(entries, params={"points": points[::2]} if with_points else None)
    views = points[:200] + 0.002 * rng.standard_normal((200, 32)).astype(np.float32)
    exact = sfumato.search.build(entries, "exact").search(views, 1)
    found = index.search(views, 1, effort=0.5)
    assert (found[0][:, 0] <= exact[0][:, 0] + 1e-4).mean() > 0.9


def test_queries_of_more_dimensions_than_a_code_has_axes(lift_points):
    """Kernels have room for 32 directions of a query; a query of 60 must not write beyond it."""
    lifted = lift_points(300, n=70)
    index = sfumato.search.build(lifted.code, params={"cells": 16, "filed": 8, "threads": 1})
    rng = np.random.default_rng(0)
    queries = sfumato.Subspaces(lifted.points[:5], rng.normal(size=(5, 60, 70)))
    assert index.axes.heads(queries.origin, queries.basis).shape == (5, 33, 32)
    distances, ids = index.search(queries, k=2, effort=0.5)
    assert (ids >= 0).all()
    pairs = sfumato.squared_distances(queries, lifted.code)
    np.testing.assert_allclose(distances**2, np.take_along_axis(pairs, ids, axis=1), atol=1e-5)
