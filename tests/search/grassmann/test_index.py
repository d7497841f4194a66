# SPDX-License-Identifier: Apache-2.0
"""Searches of the kind grassmann, and affine subspaces as linear ones."""

import math

import numpy as np
import pytest

from sfumato.errors import FileError, InputError
from sfumato.search import build, load
from sfumato.search.factory import part_of, read_arrays, write_arrays
from sfumato.search.grassmann.index import Chart, GrassmannParams, residual
from sfumato.types.concealed import Subspaces


def linear(count, dim, n=16, seed=0):
    return Subspaces(np.zeros((count, n)), np.random.default_rng(seed).normal(size=(count, dim, n)))


def affine(count, m, n=16, seed=0):
    rng = np.random.default_rng(seed)
    return Subspaces(rng.normal(size=(count, n)) + 1, rng.normal(size=(count, m, n)))


def moved(given, amount, seed=1):
    rng = np.random.default_rng(seed)
    origin = given.origin + amount * rng.normal(size=given.origin.shape) * given.origin.any()
    return Subspaces(origin, given.basis + amount * rng.normal(size=given.basis.shape))


@pytest.mark.parametrize("rule", ["quantile", "quantised"])
def test_near_linear_subspaces_are_found(rule):
    entries = linear(600, 3)
    index = build(entries, "grassmann", "angle", {"rule": rule, "width": 0.3, "key_length": 5})
    shuffled = np.random.default_rng(2).permutation(600)[:100]
    distances, ids, stats = index.search_counted(moved(entries[shuffled], 0.05), k=1)
    assert np.mean(ids[:, 0] == shuffled) > 0.9
    truth = build(entries, "exact", "angle").search(moved(entries[shuffled], 0.05), k=1)[0]
    right = ids[:, 0] == shuffled
    assert np.allclose(distances[right], truth[right], atol=1e-5)
    assert stats.evaluated < 600 * 100 / 2


@pytest.mark.parametrize("m", [0, 2])
def test_affine_subspaces_by_homogeneous_coordinates(m):
    entries = affine(600, m)
    index = build(entries, "grassmann", params={"tables": 40})
    found = index.search(moved(entries[:100], 0.05 if m else 0.2), k=3)
    truth = build(entries, "exact").search(moved(entries[:100], 0.05 if m else 0.2), k=3)
    assert np.mean(found[1][:, 0] == truth[1][:, 0]) > 0.85
    points = entries.origin[:100] + 0.05
    assert np.mean(index.search(points, k=1)[1] == build(entries, "exact").search(points, k=1)[1]) > 0.3


def test_the_printed_rule_is_a_scan_in_disguise():
    """In R^60 every bit of every entry is 0: all keys are equal, and candidates are the first entries there are."""
    entries = linear(300, 4, n=60)
    for theta0 in (math.pi / 8, math.pi / 6):
        index = build(entries, "grassmann", "angle", GrassmannParams.published(theta0, candidates=30))
        assert (index.hasher.key_length, index.hasher.tables) == (3, 20)
        assert len(np.unique(index._keys(range(300)))) == 1
        asked = index.candidates(linear(5, 4, n=60, seed=3))
        assert all(rows.tolist() == [*range(30)] for rows in asked)
    default = build(entries, "grassmann", "angle", {"key_length": 3, "probes": 1, "candidates": 30})
    assert min(len(np.unique(column)) for column in default._keys(range(300)).T) == 8
    close = moved(entries[200:250], 0.03)
    assert np.mean(default.search(close, k=1)[1][:, 0] == np.arange(200, 250)) > 0.8
    assert np.mean(index.search(close, k=1)[1][:, 0] == np.arange(200, 250)) == 0


def test_in_low_dimension_the_printed_rule_does_hash():
    entries = linear(500, 1, n=3)
    index = build(entries, "grassmann", "angle", GrassmannParams.published(math.pi / 6, candidates=500))
    assert len(np.unique(index._keys(range(500)))) > 4
    found = index.search_counted(moved(entries[:50], 0.001), k=1)
    assert np.mean(found[1][:, 0] == np.arange(50)) > 0.9


def test_the_cap_and_the_filter_of_algorithm_2():
    entries = linear(300, 4, n=60)
    close = moved(entries[200:220], 0.03)
    params = GrassmannParams.published(within=0.8, candidates=1)
    distances, ids, stats = build(entries, "grassmann", "angle", params).search_counted(close, k=1)
    assert ids[:, 0].tolist() == [*range(200, 220)]  # nothing else is within c R
    assert np.all(distances[:, 0] <= 0.8)
    assert stats.evaluated == sum(range(201, 221))  # in the order of the entries, up to the one that counts
    nobody = build(entries, "grassmann", "angle", GrassmannParams.published(within=1e-6)).search_counted(close, k=1)
    assert nobody[2].empty == 20
    assert np.all(np.isinf(nobody[0]))


def test_effort_is_a_share_of_the_entries():
    index = build(linear(200, 2), "grassmann", "angle", {"key_length": 2, "probes": 3})
    queries = linear(30, 2, seed=5)
    looked = [index.search_counted(queries, 1, effort)[2].evaluated for effort in (0.0, 0.05, 0.5)]
    assert looked[0] == 30
    assert looked[1] == 300
    assert looked[1] < looked[2] <= 3000


def test_adding_removing_saving(tmp_path):
    entries, more = affine(300, 2), affine(50, 1, seed=9)
    index = build(entries, "grassmann", params={"tables": 30, "key_length": 4})
    new = index.add(more)
    index.add(affine(3, 2, seed=8))
    assert index.search(more, k=1)[1][:, 0].tolist() == new.tolist()
    assert sum(map(len, index.layers)) == 353
    assert index.remove(new[:5]) == 5
    assert not np.isin(index.search(more, k=3)[1], new[:5]).any()
    index.save(tmp_path / "x.index")
    again = load(tmp_path / "x.index")
    for queries in (more, entries[:20]):
        assert np.array_equal(index.search(queries, k=4)[1], again.search(queries, k=4)[1])
    again.add(affine(2, 2, seed=7))
    assert again.search(affine(2, 2, seed=7), k=1)[1][:, 0].tolist() == [353, 354]


def test_an_empty_index_and_duplicates():
    empty = build(linear(3, 2)[:0], "grassmann", "angle")
    assert empty.search(linear(2, 2), k=2)[1].tolist() == [[-1, -1]] * 2
    empty.add(linear(4, 2))
    assert empty.search(linear(4, 2), k=1)[1][:, 0].tolist() == [0, 1, 2, 3]
    same = Subspaces(np.zeros((5, 16)), np.repeat(linear(1, 2).basis, 5, axis=0))
    assert sorted(build(same, "grassmann", "angle").search(same[:1], k=5)[1][0].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["lines", "shifts", "centre", "rows 0", "starts 0"])
def test_hostile_files(tmp_path, name):
    build(affine(40, 1), "grassmann").save(tmp_path / "x.index")
    header, arrays = read_arrays(tmp_path / "x.index")
    assert name in part_of(arrays, "grassmann")
    arrays = {key: array.copy() for key, array in arrays.items()}
    wrong = arrays[f"grassmann/{name}"]
    wrong.flat[-1] = np.nan if wrong.dtype.kind == "f" else 4_000_000_000
    write_arrays(tmp_path / "y.index", header, arrays)
    with pytest.raises(FileError, match=r"y\.index"):
        load(tmp_path / "y.index")
    write_arrays(tmp_path / "z.index", {**header, "settings": {"scale": 1.0, "layers": [0, 50]}}, arrays)
    with pytest.raises(FileError):
        load(tmp_path / "z.index")


@pytest.mark.parametrize(
    "wrong", [{"rule": "printd"}, {"tables": 0}, {"key_length": 0}, {"candidates": 0}, {"within": -1.0}, {"probes": 0}]
)
def test_parameters_that_can_not_be(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        GrassmannParams(**wrong)


def test_queries_are_checked():
    index = build(linear(20, 2), "grassmann", "angle")
    with pytest.raises(InputError, match="zero vector"):
        index.search(np.zeros((1, 16)))
    with pytest.raises(InputError, match=r"R\^16"):
        index.search(np.ones((1, 5)))


# --- charts


def random_affine(count=6, m=2, n=9, seed=0):
    rng = np.random.default_rng(seed)
    return Subspaces(rng.normal(size=(count, n)) + 3, rng.normal(size=(count, m, n)))


@pytest.mark.parametrize("m", [0, 1, 3])
def test_a_span_holds_exactly_the_points_of_its_subspace(m):
    given = random_affine(m=m)
    chart = Chart(np.arange(9) / 9, 0.7)
    lifted = chart.lift(given.origin, given.basis).astype(float)
    assert lifted.shape == (6, m + 1, 10)
    assert np.allclose(np.matmul(lifted, lifted.transpose(0, 2, 1)), np.eye(m + 1), atol=1e-5)
    inside = given.origin + np.einsum("nm,nmi->ni", np.random.default_rng(1).normal(size=(6, m)), given.basis)
    for points, zero in ((inside, True), (inside + 0.5, False)):
        high = np.concatenate([points - chart.centre, np.full((6, 1), 0.7)], axis=1)
        left = high - np.einsum("nm,nmi->ni", np.einsum("nmi,ni->nm", lifted, high), lifted)
        assert np.allclose(left, 0, atol=1e-5) == zero


def test_the_same_subspace_about_another_point_has_the_same_span():
    given, chart = random_affine(), Chart(np.ones(9), 2.0)
    again = Subspaces(given.origin + given.basis[:, 0], given.basis[:, ::-1])
    first, second = (chart.lift(one.origin, one.basis).astype(float) for one in (given, again))
    assert np.allclose(
        np.matmul(first.transpose(0, 2, 1), first), np.matmul(second.transpose(0, 2, 1), second), atol=1e-5
    )


def test_a_chart_is_fitted_to_entries():
    given = random_affine(count=50)
    chart = Chart.of(given.origin, given.basis)
    assert np.allclose(chart.centre, given.origin.mean(axis=0), atol=1e-5)
    offsets = residual(given.origin - chart.centre, given.basis)
    assert chart.scale == pytest.approx(np.sqrt((offsets**2).sum(axis=1).mean()))
    assert Chart.of(given.origin[:0], given.basis[:0]).scale == 1
    assert Chart.of(given.origin[:1], given.basis[:1]).scale > 0
    assert Chart.of(given.origin, given.basis, 3.0).scale == 3
    assert "R^9" in repr(chart)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_is_a_length(scale):
    with pytest.raises(InputError, match="scale"):
        Chart(np.zeros(3), scale)
