# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.search.entries import pair_distances
from sfumato.search.grassmann.index import Chart
from sfumato.search.projector.embedding import Sketch
from sfumato.search.projector.index import ProjectorPoints
from sfumato.types.concealed import Subspaces


def linear(count, dim, n=12, seed=0):
    spans = np.linalg.qr(np.random.default_rng(seed).normal(size=(count, n, dim)))[0].transpose(0, 2, 1)
    return np.zeros((count, n), np.float32), spans.astype(np.float32)


def affine(count, m, n=12, seed=0):
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
    entries, queries = linear(60, 3), linear(9, 1, seed=1)
    points = ProjectorPoints.fit([entries], 12, None, None, centred=centred)
    found = squared(points.queries(*queries), points.entries(*entries))
    assert np.array_equal(np.argsort(found, axis=1), np.argsort(exact("angle", queries, entries), axis=1))


def test_entries_of_mixed_dimensions_are_ordered_too():
    parts, queries = [linear(30, 2), linear(30, 5, seed=3)], linear(9, 1, seed=1)
    points = ProjectorPoints.fit(parts, 12, None, None, centred=True)
    found = np.concatenate([squared(points.queries(*queries), points.entries(*part)) for part in parts], axis=1)
    truth = np.concatenate([exact("angle", queries, part) for part in parts], axis=1)
    assert np.array_equal(np.argsort(found, axis=1)[:, :10], np.argsort(truth, axis=1)[:, :10])


@pytest.mark.parametrize("m", [0, 1, 3])
def test_the_order_of_points_by_distance(m):
    entries, queries = affine(60, m), affine(9, 0, seed=1)
    points = ProjectorPoints.fit([entries], 12, Chart.of(*entries), None, centred=True)
    found = squared(points.queries(*queries), points.entries(*entries))
    order, truth = np.argsort(found, axis=1), np.argsort(exact("distance", queries, entries), axis=1)
    assert np.array_equal(order[:, :10], truth[:, :10])


def test_a_sketch_puts_the_nearest_first_most_often():
    entries = affine(300, 2)
    queries = entries[0][:40] + 0.1 * np.random.default_rng(5).normal(size=(40, 12)).astype(np.float32)
    asked = queries, np.zeros((40, 0, 12), np.float32)
    sketch = Sketch.draw(512, 13, np.random.default_rng(0))
    points = ProjectorPoints.fit([entries], 12, Chart.of(*entries), sketch, centred=True)
    found = squared(points.queries(*asked), points.entries(*entries))
    assert np.mean(np.argsort(found, axis=1)[:, :10] == np.arange(40)[:, None], axis=None) * 10 > 0.8


def test_nothing_and_zero_vectors():
    points = ProjectorPoints.fit([], 12, None, None, centred=True)
    entries = linear(3, 2)
    assert points.entries(entries[0][:0], entries[1][:0]).shape == (0, points.length)
    chart = ProjectorPoints.fit([affine(5, 1)], 12, Chart(np.zeros(12), 1.0), None, centred=True)
    zero = np.zeros((1, 12), np.float32), np.zeros((1, 0, 12), np.float32)
    assert np.isfinite(chart.queries(*zero)).all()


@pytest.mark.parametrize("name", ["mean", "centre", "first"])
def test_restored_points_are_checked(name):
    entries = affine(20, 1)
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
