# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.search.inverted.byte_products import COARSE_STEPS, FINE_STEPS
from sfumato.search.inverted.codes import COARSE, HEAD, Axes, encode, encode_queries
from sfumato.search.inverted.point_kernels import PLANE, POINT, bound_planes


@pytest.mark.parametrize(("width", "steps"), [(COARSE, COARSE_STEPS), (HEAD, FINE_STEPS)])
@pytest.mark.parametrize("ones0", [POINT, PLANE])
@pytest.mark.parametrize("count", [1, 64, 150])
def test_bounds_are_the_distances_on_the_axes(lift_points, width, steps, ones0, count):
    given = lift_points(200, n=48).subspaces
    queries = lift_points(3, n=48, m=len(ones0), seed=5).subspaces
    axes = Axes.of(given.origin, linear=False)
    codes = encode(axes, given.origin, given.basis, width)
    flat = codes.reshape(-1), codes.reshape(-1).view(np.float32), codes.shape[1]
    rows, scales, norms = encode_queries(axes.heads(queries.origin, queries.basis), width)
    chosen, near = np.random.default_rng(0).permutation(200)[:count].astype(np.int32), np.full(160, np.nan, np.float32)
    for i in range(3):
        bound_planes(flat, (rows.reshape(-1), scales), i, ones0, chosen, steps, near)
        assert np.isnan(near[count:]).all(), "nothing is written beyond"
        whole = sfumato.Subspaces(*axes.project(queries.origin[i : i + 1], queries.basis[i : i + 1], width))
        others = sfumato.Subspaces(*axes.project(given.origin[chosen], given.basis[chosen], width))
        np.testing.assert_allclose(near[:count] + norms[i], sfumato.squared_distances(whole, others)[0], atol=0.05)
