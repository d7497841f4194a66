# SPDX-License-Identifier: Apache-2.0
"""What a network sees depends on the subspace, not on how it is written down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError
from sfumato.inversion.canonical import as_subspaces, canonical_input, frame_of, input_dim
from sfumato.types.concealed import Subspaces

N, DIMS = 16, 3


def some_subspaces(rng: np.random.Generator, count: int = 20, m: int = DIMS, n: int = N) -> Subspaces:
    return Subspaces(rng.normal(size=(count, n)), rng.normal(size=(count, m, n)))


def some_frame(seed: int = 0, n: int = N) -> np.ndarray:
    return frame_of(np.random.default_rng(seed).normal(0.3, 1, (200, n)) * np.linspace(2, 1, n))


def test_a_frame_is_orthonormal_and_starts_with_the_mean():
    rows = np.random.default_rng(1).normal(1, 0.5, (300, N)) * np.linspace(2, 1, N)
    frame = frame_of(rows)
    assert np.abs(frame @ frame.T - np.eye(N)).max() < 1e-5
    assert frame[0] @ rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0)) == pytest.approx(1, abs=1e-5)
    across = (rows - rows.mean(axis=0)) @ frame[1:].T
    variances = across.var(axis=0)
    assert (np.diff(variances) < 1e-5).all()
    assert np.array_equal(frame, frame_of(rows))


def test_a_frame_of_few_or_centred_rows_is_whole():
    for rows in (np.ones((1, 5)), np.zeros((3, 5)), np.array([[1.0, 0, 0], [-1.0, 0, 0]])):
        frame = frame_of(rows)
        assert np.abs(frame @ frame.T - np.eye(len(frame))).max() < 1e-5
    with pytest.raises(InputError, match="at least"):
        frame_of(np.empty((0, 5)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_any_origin_and_any_basis_of_one_subspace_look_the_same(seed: int, m: int):
    rng = np.random.default_rng(seed)
    one = some_subspaces(rng, m=m)
    moved = one.origin + np.einsum("nm,nmi->ni", rng.normal(size=(len(one), m)), one.basis)
    turned = np.einsum("nkm,nmi->nki", rng.normal(size=(len(one), m, m)) + 3 * np.eye(m), one.basis)
    frame = some_frame()
    seen, again = canonical_input(one, frame), canonical_input(Subspaces(moved, turned), frame)
    # float32 directions, divided by how well the frame fixes them
    strength = np.linalg.svd(np.einsum("fi,nmi->nfm", frame[:m], one.basis), compute_uv=False)[:, -1]
    assert (np.abs(seen - again).max(axis=1) < 1e-4 / strength + 1e-4).all()


def test_signs_of_the_basis_do_not_show():
    one = some_subspaces(np.random.default_rng(2))
    flipped = Subspaces(one.origin, -one.basis[:, ::-1])
    frame = some_frame()
    assert np.abs(canonical_input(one, frame) - canonical_input(flipped, frame)).max() < 1e-4


def test_another_subspace_looks_different():
    rng = np.random.default_rng(3)
    one, frame = some_subspaces(rng), some_frame()
    other = Subspaces(one.origin, one.basis + 0.2 * rng.normal(size=one.basis.shape))
    assert np.abs(canonical_input(one, frame) - canonical_input(other, frame)).max(axis=1).min() > 0.05


def test_it_is_continuous():
    rng = np.random.default_rng(4)
    one, frame = some_subspaces(rng), some_frame()
    step = rng.normal(size=one.basis.shape)
    changes = [
        np.abs(canonical_input(Subspaces(one.origin, one.basis + size * step), frame) - canonical_input(one, frame))
        for size in (1e-2, 1e-3, 1e-4)
    ]
    shares = [np.median(change.max(axis=1)) for change in changes]
    assert shares[0] > shares[1] > shares[2]
    assert shares[2] < 2e-3


def test_it_still_spans_the_subspace_and_is_orthonormal():
    one, frame = some_subspaces(np.random.default_rng(5)), some_frame()
    origin, basis = as_subspaces(canonical_input(one, frame), N)
    assert np.array_equal(origin, one.origin)
    gram = np.einsum("nki,nli->nkl", basis, basis)
    assert np.abs(gram - np.eye(DIMS)).max() < 1e-5
    inside = np.einsum("nki,nmi->nkm", basis, one.basis)
    assert np.abs(np.einsum("nkm,nlm->nkl", inside, inside) - np.eye(DIMS)).max() < 1e-5
    assert (np.einsum("fi,nfi->nf", frame[:DIMS], basis) > 0).all()
    assert input_dim(N, DIMS) == canonical_input(one, frame).shape[1]


def test_a_subspace_across_the_first_frame_rows_has_a_gauge_all_the_same():
    frame = np.eye(6, dtype=np.float32)
    basis = np.zeros((1, 2, 6))
    basis[0, 0, 2] = basis[0, 1, 4] = 1  # orthogonal to frame rows 0 and 1
    mixed = np.array([[[0.6, 0.8], [-0.8, 0.6]]]) @ basis
    seen = canonical_input(Subspaces(np.zeros((1, 6)), basis), frame)
    again = canonical_input(Subspaces(np.zeros((1, 6)), mixed), frame)
    assert np.abs(seen - again).max() < 1e-6
    assert np.array_equal(as_subspaces(seen, 6)[1], basis)


def test_points_are_seen_as_they_are():
    points = np.random.default_rng(6).normal(size=(4, 9)).astype(np.float32)
    frame = some_frame()
    assert np.array_equal(canonical_input(points, frame), points)
    assert np.array_equal(canonical_input(Subspaces(points, np.zeros((4, 0, 9))), frame), points)


def test_nothing_in_nothing_out():
    nothing = Subspaces(np.empty((0, N)), np.empty((0, 2, N)))
    assert canonical_input(nothing, some_frame()).shape == (0, 3 * N)


def test_another_dimension_is_told():
    with pytest.raises(InputError, match="frame"):
        canonical_input(some_subspaces(np.random.default_rng(7)), np.eye(N + 1))
    with pytest.raises(InputError, match="inputs"):
        as_subspaces(np.zeros((2, 10)), 4)
