# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.search.grassmann.index import Chart, residual
from sfumato.types.concealed import Subspaces


def affine(count=6, m=2, n=9, seed=0):
    rng = np.random.default_rng(seed)
    return Subspaces(rng.normal(size=(count, n)) + 3, rng.normal(size=(count, m, n)))


@pytest.mark.parametrize("m", [0, 1, 3])
def test_a_span_holds_exactly_the_points_of_its_subspace(m):
    given = affine(m=m)
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
    given, chart = affine(), Chart(np.ones(9), 2.0)
    again = Subspaces(given.origin + given.basis[:, 0], given.basis[:, ::-1])
    first, second = (chart.lift(one.origin, one.basis).astype(float) for one in (given, again))
    assert np.allclose(
        np.matmul(first.transpose(0, 2, 1), first), np.matmul(second.transpose(0, 2, 1), second), atol=1e-5
    )


def test_a_chart_is_fitted_to_entries():
    given = affine(count=50)
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
