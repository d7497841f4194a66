# SPDX-License-Identifier: Apache-2.0
"""The complement is the reference's, by whatever basis."""

import numpy as np
import pytest

from sfumato.subspace import reference
from sfumato.subspace import reference as complement


def orthonormal(rng: np.random.Generator, count: int, m: int, n: int) -> np.ndarray:
    return reference.orthonormalise(rng.normal(size=(count, m, n))).astype(np.float32)


def check(basis: np.ndarray) -> None:
    count, m, n = basis.shape
    found = complement.complement_basis(basis)
    assert found.dtype == np.float32
    assert found.shape == (count, n - m, n)
    found = found.astype(float)
    np.testing.assert_allclose(
        found @ found.transpose(0, 2, 1), np.broadcast_to(np.eye(n - m), (count, n - m, n - m)), atol=1e-6
    )
    np.testing.assert_allclose(found @ basis.transpose(0, 2, 1), 0, atol=1e-6)


@pytest.mark.parametrize(("m", "n"), [(3, 5), (4, 5), (5, 5), (1, 1), (0, 4), (9, 16), (100, 128)])
def test_orthonormal_and_orthogonal_to_the_subspace(monkeypatch, m, n):
    monkeypatch.setattr(complement, "AT_ONCE_BYTES", 8 * n * n * 4)  # several parts, the last not full
    check(orthonormal(np.random.default_rng(m), 11, m, n))


def test_none():
    assert complement.complement_basis(np.zeros((0, 3, 5), np.float32)).shape == (0, 2, 5)


@pytest.mark.parametrize("angle", [0.0, 1e-7, 1e-3])
def test_a_subspace_that_holds_the_very_directions_tried(angle):
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8))).Q  # those of complement_basis
    rng = np.random.default_rng(1)
    basis = orthonormal(rng, 3, 5, 8)
    basis[1] = reference.orthonormalise((directions[:5] + angle * rng.normal(size=(5, 8)))[None])[0]
    check(basis)
