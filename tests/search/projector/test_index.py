# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.search import build, load
from sfumato.search.file import read_arrays, write_arrays
from sfumato.search.projector.index import ProjectorParams
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
