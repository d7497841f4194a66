# SPDX-License-Identifier: Apache-2.0
"""Searches of the kind projector, and subspaces as points."""

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.search import build, load
from sfumato.search.entries import pair_distances
from sfumato.search.factory import read_arrays, write_arrays
from sfumato.search.grassmann.index import Chart
from sfumato.search.projector.embedding import Sketch
from sfumato.search.projector.index import ProjectorParams, ProjectorPoints
from sfumato.types.concealed import Subspaces

METHODS = ["flat", "hnsw", "ivf", "kdtree"]


def linear(count, dim, n=12, seed=0):
    return Subspaces(np.zeros((count, n)), np.random.default_rng(seed).normal(size=(count, dim, n)))


def affine(count, m, n=12, seed=0):
    rng = np.random.default_rng(seed)
    return Subspaces(rng.normal(size=(count, n)) + 1, rng.normal(size=(count, m, n)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("metric", ["angle", "distance"])
def test_points_find_the_nearest_subspace(method, metric):
    entries = linear(400, 3) if metric == "angle" else affine(400, 2)
    queries = np.random.default_rng(1).normal(size=(60, 12)) + (metric == "distance")
    truth = build(entries, "exact", metric).search(queries, k=1)
    index = build(entries, "projector", metric, {"method": method, "eps": 0.0, "candidates": 20, "probes": 20})
    found = index.search(queries, k=1)
    assert np.mean(found[1] == truth[1]) > (0.99 if method in ("flat", "kdtree") else 0.9)
    same = found[1] == truth[1]
    assert np.allclose(found[0][same], truth[0][same], atol=1e-5)


def test_the_flat_embedding_needs_one_candidate_for_points():
    entries, queries = affine(300, 2), np.random.default_rng(1).normal(size=(50, 12)) + 1
    one = build(entries, "projector", params={"candidates": 1, "sketch": 0}).search_counted(queries, 1)
    assert np.array_equal(one[1], build(entries, "exact").search(queries, k=1)[1])
    assert one[2].evaluated == 50


def test_as_published_looks_at_little_and_errs():
    entries, queries = linear(1000, 4, n=25), np.random.default_rng(1).normal(size=(100, 25))
    truth = build(entries, "exact", "angle").search(queries, k=1)[1]
    recall, looked = {}, {}
    for eps in (10.0, 0.0):
        index = build(entries, "projector", "angle", ProjectorParams.published(eps=eps))
        found = index.search_counted(queries, 1)
        recall[eps], looked[eps] = np.mean(found[1] == truth), found[2].looked_at / 100
        assert found[2].evaluated == 100
    assert recall[0.0] == 1
    assert recall[10.0] < 0.5
    assert looked[10.0] < looked[0.0] / 2


def test_subspace_queries_are_mended_by_exact_ranking():
    entries = affine(300, 2)
    rng = np.random.default_rng(3)
    inside = entries.origin[:50] + 0.02 * rng.normal(size=(50, 12))
    queries = Subspaces(inside, rng.normal(size=(50, 2, 12)))
    truth = build(entries, "exact").search(queries, k=1)[1]
    recall = [
        np.mean(build(entries, "projector").search(queries, 1, effort)[1] == truth) for effort in (0.01, 0.5, 1.0)
    ]
    assert recall[0] < recall[1] <= recall[2] == 1


def test_large_databases_are_sketched():
    entries = affine(200, 2)
    exact, sketched = (build(entries, "projector", params={"sketch": length}) for length in (None, 64))
    assert exact.embedding.sketch is None
    assert sketched.embedding.length == 65
    queries = entries.origin[:50] + 0.02
    assert np.mean(sketched.search(queries, 1, 0.2)[1] == exact.search(queries, 1)[1]) > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_adding_removing_saving(tmp_path, method):
    index = build(affine(200, 2), "projector", params={"method": method, "eps": 0.0, "probes": 56})
    more = affine(30, 1, seed=4)
    new = index.add(more)
    points = more.origin
    assert np.mean(index.search(points, k=1)[1][:, 0] == new) > 0.9
    index.remove(new[:5])
    assert not np.isin(index.search(points, k=3)[1], new[:5]).any()
    index.save(tmp_path / "x.index")
    again = load(tmp_path / "x.index")
    assert np.mean(index.search(points, k=3)[1] == again.search(points, k=3)[1]) > 0.95


def test_an_empty_index():
    for method in METHODS:
        index = build(affine(3, 1)[:0], "projector", params={"method": method})
        assert index.search(np.ones((2, 12)), k=2)[1].tolist() == [[-1, -1]] * 2
        index.add(affine(5, 1))
        assert index.search(affine(5, 1).origin, k=1)[1][:, 0].tolist() == [0, 1, 2, 3, 4]


def test_hostile_files(tmp_path):
    build(affine(20, 1), "projector").save(tmp_path / "x.index")
    header, arrays = read_arrays(tmp_path / "x.index")
    for name, change in (("points", np.nan), ("mean", np.nan)):
        changed = {key: array.copy() for key, array in arrays.items()}
        changed[f"projector/{name}"].flat[0] = change
        write_arrays(tmp_path / "y.index", header, changed)
        with pytest.raises(FileError):
            load(tmp_path / "y.index")
    fewer = {**arrays, "projector/points": arrays["projector/points"][:-1]}
    write_arrays(tmp_path / "y.index", header, fewer)
    with pytest.raises(FileError, match="shape"):
        load(tmp_path / "y.index")


@pytest.mark.parametrize(
    "wrong", [{"method": "flatt"}, {"sketch": -1}, {"candidates": 0}, {"eps": -1.0}, {"leaf": 0}, {"lists": 0}]
)
def test_parameters_that_can_not_be(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ProjectorParams(**wrong)


# --- subspaces as points


def random_linear(count, dim, n=12, seed=0):
    spans = np.linalg.qr(np.random.default_rng(seed).normal(size=(count, n, dim)))[0].transpose(0, 2, 1)
    return np.zeros((count, n), np.float32), spans.astype(np.float32)


def random_affine(count, m, n=12, seed=0):
    rng = np.random.default_rng(seed)
    made = Subspaces(rng.normal(size=(count, n)) + 2, rng.normal(size=(count, m, n)))
    return made.origin, made.basis


def squared(u, v):
    return ((u[:, None].astype(float) - v[None]) ** 2).sum(axis=2)


def exact(metric, queries, entries):
    i, j = (part.ravel() for part in np.indices((len(queries[0]), len(entries[0]))))
    return pair_distances(metric, queries, entries, i, j).reshape(len(queries[0]), -1)


@pytest.mark.parametrize("centred", [True, False])
def test_the_order_of_lines_by_angle(centred):
    entries, queries = random_linear(60, 3), random_linear(9, 1, seed=1)
    points = ProjectorPoints.fit([entries], 12, None, None, centred=centred)
    found = squared(points.queries(*queries), points.entries(*entries))
    assert np.array_equal(np.argsort(found, axis=1), np.argsort(exact("angle", queries, entries), axis=1))


def test_entries_of_mixed_dimensions_are_ordered_too():
    parts, queries = [random_linear(30, 2), random_linear(30, 5, seed=3)], random_linear(9, 1, seed=1)
    points = ProjectorPoints.fit(parts, 12, None, None, centred=True)
    found = np.concatenate([squared(points.queries(*queries), points.entries(*part)) for part in parts], axis=1)
    truth = np.concatenate([exact("angle", queries, part) for part in parts], axis=1)
    assert np.array_equal(np.argsort(found, axis=1)[:, :10], np.argsort(truth, axis=1)[:, :10])


@pytest.mark.parametrize("m", [0, 1, 3])
def test_the_order_of_points_by_distance(m):
    entries, queries = random_affine(60, m), random_affine(9, 0, seed=1)
    points = ProjectorPoints.fit([entries], 12, Chart.of(*entries), None, centred=True)
    found = squared(points.queries(*queries), points.entries(*entries))
    order, truth = np.argsort(found, axis=1), np.argsort(exact("distance", queries, entries), axis=1)
    assert np.array_equal(order[:, :10], truth[:, :10])


def test_a_sketch_puts_the_nearest_first_most_often():
    entries = random_affine(300, 2)
    queries = entries[0][:40] + 0.1 * np.random.default_rng(5).normal(size=(40, 12)).astype(np.float32)
    asked = queries, np.zeros((40, 0, 12), np.float32)
    sketch = Sketch.draw(512, 13, np.random.default_rng(0))
    points = ProjectorPoints.fit([entries], 12, Chart.of(*entries), sketch, centred=True)
    found = squared(points.queries(*asked), points.entries(*entries))
    assert np.mean(np.argsort(found, axis=1)[:, :10] == np.arange(40)[:, None], axis=None) * 10 > 0.8


def test_nothing_and_zero_vectors():
    points = ProjectorPoints.fit([], 12, None, None, centred=True)
    entries = random_linear(3, 2)
    assert points.entries(entries[0][:0], entries[1][:0]).shape == (0, points.length)
    chart = ProjectorPoints.fit([random_affine(5, 1)], 12, Chart(np.zeros(12), 1.0), None, centred=True)
    zero = np.zeros((1, 12), np.float32), np.zeros((1, 0, 12), np.float32)
    assert np.isfinite(chart.queries(*zero)).all()


@pytest.mark.parametrize("name", ["mean", "centre", "first"])
def test_restored_points_are_checked(name):
    entries = random_affine(20, 1)
    sketch = Sketch.draw(16, 13, np.random.default_rng(0))
    points = ProjectorPoints.fit([entries], 12, Chart.of(*entries), sketch, centred=True)
    good = points.arrays()
    again = ProjectorPoints.restore(good, points.settings(), 12, affine=True)
    assert np.array_equal(again.entries(*entries), points.entries(*entries))
    for wrong in (good[name][..., :-1], good[name] * np.nan):
        with pytest.raises(FileError):
            ProjectorPoints.restore({**good, name: wrong}, points.settings(), 12, affine=True)
    with pytest.raises(FileError, match="length"):
        ProjectorPoints.restore(good, {**points.settings(), "largest": float("nan")}, 12, affine=True)
