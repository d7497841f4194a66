# SPDX-License-Identifier: Apache-2.0
"""Frames, panels and complements are made once, also by two threads at once."""

import contextlib
import threading

import numpy as np
import pytest

from sfumato.subspace import reference, subspace_set
from sfumato.subspace.subspace_set import SAMPLE, Frame, SubspaceSet, complement_basis, read_only


def make(count: int = 40, m: int = 2, n: int = 12, seed: int = 0) -> SubspaceSet:
    rng = np.random.default_rng(seed)
    spread = 3 * 0.7 ** np.arange(n)
    sides = reference.canonicalise(1 + spread * rng.normal(size=(count, n)), rng.normal(size=(count, m, n)))
    return SubspaceSet(*(np.ascontiguousarray(part, np.float32) for part in sides))


def test_axes_are_orthonormal_and_the_first_varies_most():
    points = make(3 * SAMPLE, 0).origin
    frame = Frame.of(points[: 2 * SAMPLE], points[2 * SAMPLE :])
    axes = frame.axes(12).astype(float)
    np.testing.assert_allclose(axes.T @ axes, np.eye(12), atol=1e-6)
    variance = ((points - frame.mean) @ axes).var(axis=0)
    assert (np.diff(variance) < 0.1 * variance[0]).all()
    assert variance[0] > 10 * variance[-1]
    np.testing.assert_array_equal(frame.axes(5), frame.axes(12)[:, :5])
    assert frame.axes(5).flags.c_contiguous


def test_all_threads_get_the_same_axes(monkeypatch):
    """The two panels of a bound must be projected alike: eigenvectors are known but for their signs."""
    frame, meet, calls, whole = Frame.of(make().origin), threading.Barrier(2), [], np.linalg.eigh

    def eigh(matrix):
        calls.append(0)
        found = whole(matrix)
        sign = -1 if len(calls) > 1 else 1
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(1)
        return type(found)(found.eigenvalues, sign * found.eigenvectors)

    monkeypatch.setattr(np.linalg, "eigh", eigh)
    seen: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: seen.append(frame.axes(6))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    seen.append(frame.axes(6))
    np.testing.assert_array_equal(seen[0], seen[2])
    np.testing.assert_array_equal(seen[1], seen[2])


def test_panels_are_kept():
    side = make()
    frame = Frame.of(side.origin)
    assert side.panel(frame, 6) is side.panel(frame, 6)
    assert side.panel(frame, 6) is not side.panel(frame, 8)
    assert side.panel(frame, 6) is not side.panel(Frame.of(side.origin), 6)


def test_the_scale_reaches_the_farthest_origin():
    side = make()
    frame = Frame.of(side.origin)
    farthest = np.linalg.norm(side.origin - frame.mean, axis=1).max()
    assert farthest <= side.scale(frame) < 1.001 * farthest
    assert SubspaceSet(side.origin[:0], side.basis[:0]).scale(frame) == 1.0
    same = SubspaceSet(np.ones((3, 12), np.float32), np.zeros((3, 0, 12), np.float32))
    assert same.scale(Frame.of(same.origin)) == 1.0


@pytest.mark.parametrize(("count", "kept"), [(100, 40), (40, 40), (7, 7), (1, 1)])
def test_samples_are_spread(count, kept):
    side = make()
    side.panel(Frame.of(side.origin), None)
    sample = side.sample(count)
    assert len(sample) == len(sample.basis) == kept
    rows = [int(np.flatnonzero((side.origin == row).all(axis=1))[0]) for row in sample.origin]
    np.testing.assert_array_equal(sample.basis, side.basis[rows])
    assert rows == sorted(set(rows))


@pytest.mark.parametrize("m", [7, 11, 12])
def test_the_dual_form_is_the_same_subspace(m):
    side, points = make(m=m), np.random.default_rng(3).normal(size=(20, 12))
    frame = Frame.of(side.origin)
    origin, complement, zero = side.dual_form(frame)
    assert (zero == 0).all()
    found = reference.point_squared_distances_dual(points - frame.mean, origin, complement)
    np.testing.assert_allclose(found, reference.point_squared_distances(points, *(side.origin, side.basis)), atol=1e-4)


def test_nothing_shows_the_values():
    side = make()
    frame = Frame.of(side.origin)
    side.panel(frame, 6)
    shown = repr((side, frame, side.panel(frame, 6)))
    assert "array" not in shown
    assert "1." not in shown


def test_what_a_search_asks_of_the_origins_is_computed_once():
    rng = np.random.default_rng(0)
    side = SubspaceSet(
        read_only(rng.normal(size=(7, 5)).astype(np.float32)), read_only(np.zeros((7, 0, 5), np.float32))
    )
    assert side.largest() == np.abs(side.origin).max()
    assert np.allclose(side.squared_norms(), (side.origin.astype(float) ** 2).sum(axis=1))
    assert side.squared_norms() is side.squared_norms()
    none = SubspaceSet(side.origin[:0], side.basis[:0])
    assert (none.largest(), none.squared_norms().shape) == (0.0, (0,))


# --- complements


def orthonormal(rng: np.random.Generator, count: int, m: int, n: int) -> np.ndarray:
    return reference.orthonormalise(rng.normal(size=(count, m, n))).astype(np.float32)


def check_complement(basis: np.ndarray) -> None:
    count, m, n = basis.shape
    bases = complement_basis(basis)
    assert bases.dtype == np.float32
    assert bases.shape == (count, n - m, n)
    bases = bases.astype(float)
    identity = np.broadcast_to(np.eye(n - m), (count, n - m, n - m))
    np.testing.assert_allclose(bases @ bases.transpose(0, 2, 1), identity, atol=1e-6)
    np.testing.assert_allclose(bases @ basis.transpose(0, 2, 1), 0, atol=1e-6)


@pytest.mark.parametrize(("m", "n"), [(3, 5), (4, 5), (5, 5), (1, 1), (0, 4), (9, 16), (100, 128)])
def test_orthonormal_and_orthogonal_to_the_subspace(monkeypatch, m, n):
    monkeypatch.setattr(subspace_set, "AT_ONCE_BYTES", 8 * n * n * 4)  # several parts, the last not full
    check_complement(orthonormal(np.random.default_rng(m), 11, m, n))


def test_none():
    assert complement_basis(np.zeros((0, 3, 5), np.float32)).shape == (0, 2, 5)


@pytest.mark.parametrize("angle", [0.0, 1e-7, 1e-3])
def test_a_subspace_that_holds_the_very_directions_tried(angle):
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8))).Q  # those of complement_basis
    rng = np.random.default_rng(1)
    basis = orthonormal(rng, 3, 5, 8)
    basis[1] = reference.orthonormalise((directions[:5] + angle * rng.normal(size=(5, 8)))[None])[0]
    check_complement(basis)
