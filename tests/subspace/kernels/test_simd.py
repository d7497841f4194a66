# SPDX-License-Identifier: Apache-2.0
"""What is written as arithmetic of eight numbers is compiled to just that."""

import numpy as np
import pytest
from numba import njit, types
from numba.extending import intrinsic

from sfumato.subspace.kernels.simd import INT64, LANES, load_floats, load_ints, repeat


@intrinsic
def everything(_context, x, y, whole, number, out, few):
    """Fill out (8, 8) with one result a row, and few (8,) with bytes."""

    def generate(context, builder, found, args):
        x_data, y_data, whole_data, out_data, few_data = (
            context.make_array(found.args[k])(context, builder, args[k]).data for k in (0, 1, 2, 4, 5)
        )
        at = INT64(0)
        x, y, count = (
            load(builder, data, at)
            for load, data in ((load_floats, x_data), (load_floats, y_data), (load_ints, whole_data))
        )
        results = [
            x + y * 2.0,
            x - count,
            x / y,
            y.inverse(),
            x.least(y),
            x.greatest(0.0),
            y.where_above(1.0, -7.0)(x),
            repeat(builder, args[3]) * count,
        ]
        for row, result in enumerate(results):
            result.store(out_data, INT64(row * LANES))
        count.store_bytes(few_data, at)
        return context.get_dummy_value()

    return types.void(x, y, whole, number, out, few), generate


@pytest.fixture(scope="module")
def compiled():
    return njit(lambda x, y, whole, number, out, few: everything(x, y, whole, number, out, few))


def test_eight_at_once_are_one_by_one(compiled):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, LANES)).astype(np.float32)
    y += np.sign(y)
    whole = np.array([0, 1, 2, 127, 128, 200, 254, 255], np.int32)
    out, few = np.zeros((8, LANES), np.float32), np.zeros(LANES, np.uint8)
    compiled(x, y, whole, np.float32(0.5), out.reshape(-1), few)
    expected = [
        x + 2 * y,
        x - whole,
        x / y,
        1 / y,
        np.minimum(x, y),
        np.maximum(x, 0),
        np.where(y > 1, x, -7),
        whole / 2,
    ]
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(few, whole)
