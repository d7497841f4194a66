# SPDX-License-Identifier: Apache-2.0
import numpy as np

from sfumato.search.inverted.kernels import encode_rows


def encoded(heads, width):
    count, stack = heads.shape[:2]
    rows, scales = np.zeros((count, stack, width), np.int16), np.zeros((count, 2), np.float32)
    norms = np.zeros(count, np.float32)
    encode_rows(heads, rows, scales, norms)
    return rows[:, 0] * scales[:, :1], rows[:, 1:] * scales[:, 1, None, None], norms


def test_directions_are_orthonormal_and_the_origin_orthogonal():
    heads = np.random.default_rng(0).standard_normal((4, 4, 32)).astype(np.float32)
    for width in (16, 32):
        origin, basis, norms = encoded(heads, width)
        np.testing.assert_allclose(np.einsum("qri,qsi->qrs", basis, basis), np.tile(np.eye(3), (4, 1, 1)), atol=1e-3)
        np.testing.assert_allclose(np.einsum("qri,qi->qr", basis, origin), 0, atol=2e-3)
        np.testing.assert_allclose((origin**2).sum(axis=1), norms, rtol=1e-3)


def test_what_spans_fewer_dimensions_is_zero():
    heads = np.zeros((1, 4, 32), np.float32)
    heads[0, 0, 0], heads[0, 1, 1], heads[0, 2, 1] = 3, 2, -1
    origin, basis, norms = encoded(heads, 16)
    np.testing.assert_allclose(origin[0], heads[0, 0, :16], rtol=1e-3)
    np.testing.assert_allclose(basis[0], [np.eye(16)[1], np.zeros(16), np.zeros(16)], atol=1e-3)
    np.testing.assert_allclose(norms, 9, rtol=1e-6)
