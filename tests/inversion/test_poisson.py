# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.inversion.paint import divergence, solve_poisson


def differences(picture):
    right, down = np.zeros_like(picture), np.zeros_like(picture)
    right[:, :-1], down[:-1] = np.diff(picture, axis=1), np.diff(picture, axis=0)
    return right, down


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (24, 31)])
def test_a_picture_comes_back_from_its_differences(shape):
    picture = np.random.default_rng(0).random(shape).astype(np.float32)
    found = solve_poisson(*differences(picture), mean=float(picture.mean()))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, picture, atol=1e-4)


def test_what_flows_over_the_border_does_not_count():
    right, down = differences(np.random.default_rng(1).random((8, 9)).astype(np.float32))
    changed = right.copy(), down.copy()
    changed[0][:, -1], changed[1][-1] = 5, -7
    np.testing.assert_allclose(solve_poisson(*changed), solve_poisson(right, down), atol=1e-6)


def test_differences_that_no_picture_has_are_met_in_least_squares():
    rng = np.random.default_rng(2)
    right, down = (rng.normal(0, 1, (6, 5)).astype(np.float32) for _ in range(2))
    found = solve_poisson(right, down)
    columns = [np.concatenate([part.ravel() for part in differences(unit.reshape(6, 5))]) for unit in np.eye(30)]
    wanted = right.copy(), down.copy()
    wanted[0][:, -1], wanted[1][-1] = 0, 0
    target = np.concatenate([part.ravel() for part in wanted])
    best = np.linalg.lstsq(np.array(columns).T, target, rcond=None)[0].reshape(6, 5)
    np.testing.assert_allclose(found, best - best.mean(), atol=1e-4)
    assert abs(divergence(right, down).sum()) < 1e-4
