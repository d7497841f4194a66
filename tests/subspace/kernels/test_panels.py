# SPDX-License-Identifier: Apache-2.0
"""Rounded panels: projected, made orthonormal again, and no farther from that than they say."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sfumato.subspace import reference
from sfumato.subspace.kernels.panels import AT_ONCE, NO_BOUND, UNIT, VOID, make_panel, scales_of

N = 24


def rotation(rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(N, N))).Q


def make(rng, count=70, m=3, head=8, scale=5.0, **options):
    origin, basis = reference.canonicalise(
        scale * rng.normal(size=(count, N)) / N, rng.normal(size=(count, m, N)) * 3 * 0.9 ** np.arange(N)
    )
    origin, basis, mean = origin.astype(np.float32), basis.astype(np.float32), 0.1 * rng.normal(size=N)
    axes = None if head is None else rotation(rng)[:, :head].astype(np.float32)
    reach = float(np.linalg.norm(origin - mean, axis=1).max()) * (1 + 1e-6)
    return (origin, basis, mean, axes), make_panel(
        origin, basis, mean, axes, scale=reach, round_to=options.pop("round_to", 2), **options
    )


def definition(origin, basis, mean, axes, scale) -> tuple[np.ndarray, np.ndarray]:
    """The projected subspaces in float64: origins in units of the scale, and orthonormal bases."""
    axes = np.eye(N) if axes is None else axes.astype(float)
    rows = reference.orthonormalise(basis.astype(float) @ axes)
    return reference.canonical_origin((origin - mean) @ axes / scale, rows), rows


def test_rounding_moves_no_vector_farther_than_stated():
    for head, m, scale in itertools.product([5, 8, 23, None], [0, 1, 4], [1.0, 1e-6, 1e6]):
        check_rounding(head, m, scale)


def check_rounding(head, m, scale):
    inputs, panel = make(np.random.default_rng(m), m=m, head=head, scale=scale)
    origin, rows = definition(*inputs, panel.scale)
    width = origin.shape[1]
    assert panel.values.shape == (70, m + 1, width + width % 2)
    assert (panel.values[:, :, width:] == 0).all()
    found = panel.values[:, :, :width] / UNIT
    assert np.linalg.norm(found[:, 0] - origin, axis=1).max() <= panel.origin_error
    assert np.linalg.norm(found[:, 1:] - rows, axis=2).max(initial=0) <= panel.basis_error
    assert max(panel.origin_error, panel.basis_error) < 1e-3
    np.testing.assert_allclose(
        panel.norms, (origin**2).sum(axis=1) * panel.scale**2, rtol=1e-4, atol=1e-6 * panel.scale**2
    )
    gram = found[:, 1:] @ found[:, 1:].transpose(0, 2, 1)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(m), gram.shape), atol=3 * panel.basis_error)
    np.testing.assert_allclose(
        found[:, 1:] @ found[:, 0, :, None], 0, atol=3 * (panel.basis_error + panel.origin_error)
    )


def test_padding_holds_nothing():
    _, panel = make(np.random.default_rng(1), count=70, head=5, round_to=16, pad_rows=8)
    assert panel.values.shape == (72, 4, 16)
    assert (panel.values[70:] == 0).all()
    assert (panel.norms[70:] == 0).all()


def test_threads_change_nothing():
    inputs, panel = make(np.random.default_rng(2), count=2 * AT_ONCE + 7)
    with ThreadPoolExecutor(2) as pool:
        other = make_panel(*inputs, scale=panel.scale, round_to=2, run=pool.map)
    np.testing.assert_array_equal(panel.values, other.values)
    np.testing.assert_array_equal(panel.norms, other.norms)
    assert (panel.origin_error, panel.basis_error) == (other.origin_error, other.basis_error)


@pytest.mark.parametrize("left", [0.0, 0.5 * VOID, 2 * VOID])
def test_a_direction_lost_in_the_projection_gives_no_bound(left):
    rng = np.random.default_rng(3)
    axes = rotation(rng)
    basis = np.stack([axes[:, 0], left * axes[:, 1] + np.sqrt(1 - left**2) * axes[:, 20]])[None].astype(np.float32)
    origin = axes[None, :, 2].astype(np.float32)
    panel = make_panel(origin, basis, np.zeros(N), axes[:, :8].astype(np.float32), scale=1.001, round_to=2)
    assert (panel.norms[0] == NO_BOUND) == (left < VOID)


def test_swapped_sides_have_swapped_scales():
    (_, a), (_, b) = make(np.random.default_rng(4), m=1), make(np.random.default_rng(5), m=3, scale=2.0)
    one, other = scales_of(a, b, 1, 3), scales_of(b, a, 3, 1)
    assert other == (one[0], one[2], one[1], *one[3:])
    assert one[1] * UNIT**2 == pytest.approx(a.scale)
    assert one[2] * UNIT**2 == pytest.approx(b.scale)


def test_points_and_the_dual_form_have_no_growing_error():
    (_, a), (_, b) = make(np.random.default_rng(6), m=0), make(np.random.default_rng(7), m=3)
    primal, dual = scales_of(a, b, 0, 3), scales_of(a, b, 0, 3, dual=True)
    assert primal[4] == -1
    assert dual[4] == 1
    assert primal[:4] == dual[:4]
