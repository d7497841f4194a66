# SPDX-License-Identifier: Apache-2.0
"""The definition, held against exact arithmetic, the papers' other forms, and its own properties."""

import warnings
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sfumato
from sfumato.errors import InputError, RankError, VoidDistanceWarning
from sfumato.subspace import reference

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")

ANGLES = [10.0**-k for k in range(3, 13)]


class Flat(NamedTuple):
    """Subspaces in float64, as given: (N, n) and (N, m, n)."""

    origin: np.ndarray
    basis: np.ndarray


class Pairs(NamedTuple):
    """Pairs of lifted clear descriptors."""

    clear0: np.ndarray
    clear1: np.ndarray
    side0: Flat
    side1: Flat


def lift(rng: np.random.Generator, clear: np.ndarray, m: int) -> Flat:
    """A canonical subspace of random directions through each clear descriptor."""
    return Flat(*reference.canonicalise(clear, rng.normal(size=(len(clear), m, clear.shape[1]))))


def make_pairs(seed: int, count: int, n: int, m0: int, m1: int) -> Pairs:
    rng = np.random.default_rng(seed)
    clear0, clear1 = rng.normal(size=(2, count, n))
    return Pairs(clear0, clear1, lift(rng, clear0, m0), lift(rng, clear1, m1))


@st.composite
def pairs(draw, *, meet: bool = False) -> Pairs:
    """Generic pairs of any dimensions, m = 0 included; ``meet`` allows so many that they must intersect."""
    n = draw(st.integers(2, 24))
    m0 = draw(st.integers(0, n - 1))
    m1 = draw(st.integers(0, n - 1 if meet else max(0, n - m0 - 2)))
    made = make_pairs(draw(st.integers(0, 2**32)), draw(st.integers(1, 4)), n, m0, m1)
    if not meet:  # two random subspaces may be nearly parallel; that case has its own tests
        assume(smallest_sine(made.side0.basis, made.side1.basis) > 1e-2)
    return made


def smallest_sine(basis0: np.ndarray, basis1: np.ndarray) -> float:
    """The sine of the smallest angle between a direction of one and a direction of the other."""
    cosines = np.linalg.svd(np.einsum("nki,nli->nkl", basis0, basis1), compute_uv=False)
    return float(np.sqrt(np.clip(1 - cosines**2, 0, 1)).min(initial=1.0))


def diagonal(side0, side1) -> np.ndarray:
    return np.diagonal(reference.squared_distances(side0, side1))


def squared(vectors: np.ndarray) -> np.ndarray:
    return np.einsum("ni,ni->n", vectors, vectors)


def exact_squared_distance(origin0, basis0, origin1, basis1) -> float:
    """The same by rational arithmetic: exact for the numbers given, no roots, no rounding."""

    def dot(u, v):
        return sum((x * y for x, y in zip(u, v, strict=True)), Fraction(0))

    def without(vector, span):
        for s in span:
            factor = dot(vector, s) / dot(s, s)
            vector = [x - factor * y for x, y in zip(vector, s, strict=True)]
        return vector

    span: list[list[Fraction]] = []
    for row in [*basis0, *basis1]:
        rest = without([Fraction(float(x)) for x in row], span)
        if any(rest):
            span.append(rest)
    rest = without([Fraction(float(y)) - Fraction(float(x)) for x, y in zip(origin0, origin1, strict=True)], span)
    return float(dot(rest, rest))


# ---------------------------------------------------------------- what a distance must be


@given(pairs(meet=True))
def test_the_lifted_set_contains_the_clear_descriptor(pair: Pairs):
    inside = reference.point_squared_distances(pair.clear0, *pair.side0)
    np.testing.assert_allclose(np.diagonal(inside), 0, atol=1e-24 * (1 + squared(pair.clear0).max()))
    stored = sfumato.Subspaces(*pair.side0)
    np.testing.assert_allclose(diagonal(stored, pair.clear0), 0, atol=1e-11 * (1 + squared(pair.clear0).max()))


@given(pairs(meet=True))
def test_distance_is_at_most_the_clear_distance(pair: Pairs):
    clear = reference.squared_distances(pair.clear0, pair.clear1)
    np.testing.assert_allclose(clear, squared_apart(pair.clear0, pair.clear1), rtol=1e-12)
    both = reference.squared_distances(pair.side0, pair.side1)
    half = reference.squared_distances(pair.side0, pair.clear1)
    assert (half <= clear * (1 + 1e-12)).all()
    assert (both <= half * (1 + 1e-12) + 1e-24).all()
    assert (both >= 0).all()


def squared_apart(points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
    return ((points0[:, None] - points1[None]) ** 2).sum(axis=2)


@given(pairs())
def test_distance_is_symmetric(pair: Pairs):
    forth = reference.squared_distances(pair.side0, pair.side1)
    back = reference.squared_distances(pair.side1, pair.side0)
    assert forth.shape == (len(pair.clear0), len(pair.clear1))
    np.testing.assert_allclose(forth, back.T, rtol=1e-9, atol=1e-18)


@given(pairs(), st.integers(0, 2**32))
def test_distance_is_a_function_of_the_sets_alone(pair: Pairs, seed: int):
    """Any point of the subspace as origin, any invertible recombination of the basis."""
    rng = np.random.default_rng(seed)

    def other(side: Flat) -> Flat:
        count, m, _ = side.basis.shape
        mixing = rng.normal(size=(count, m, m)) + 3 * np.eye(m) * np.sign(rng.normal())
        point = side.origin + np.einsum("nk,nki->ni", 10 * rng.normal(size=(count, m)), side.basis)
        assume(m == 0 or np.linalg.cond(mixing).max() < 1e3)
        return Flat(point, np.einsum("nkl,nli->nki", mixing, side.basis))

    given0, given1 = other(pair.side0), other(pair.side1)
    wanted = diagonal(pair.side0, pair.side1)
    canonical = diagonal(Flat(*reference.canonicalise(*given0)), Flat(*reference.canonicalise(*given1)))
    np.testing.assert_allclose(canonical, wanted, rtol=1e-6, atol=1e-12)
    off_centre = diagonal(Flat(given0.origin, pair.side0.basis), Flat(given1.origin, pair.side1.basis))
    np.testing.assert_allclose(off_centre, wanted, rtol=1e-6, atol=1e-12)
    stored = diagonal(sfumato.Subspaces(*given0), sfumato.Subspaces(*given1))
    np.testing.assert_allclose(stored, wanted, rtol=1e-3, atol=1e-3)


@given(pairs(), st.floats(-3, 3), st.integers(0, 2**32))
def test_distance_scales_and_does_not_see_shifts_and_rotations(pair: Pairs, power: float, seed: int):
    rng = np.random.default_rng(seed)
    n = pair.clear0.shape[1]
    rotation, shift, scale = np.linalg.qr(rng.normal(size=(n, n))).Q, rng.normal(size=n), 10**power
    moved = [Flat(scale * (o + shift) @ rotation, b @ rotation) for o, b in (pair.side0, pair.side1)]
    np.testing.assert_allclose(diagonal(*moved), scale**2 * diagonal(pair.side0, pair.side1), rtol=1e-6, atol=1e-12)


# ---------------------------------------------------------------- every form gives one number


@given(pairs())
def test_primal_dual_and_residual_form_agree(pair: Pairs):
    (p, b), (q, c) = pair.side0, pair.side1
    wanted = diagonal(pair.side0, pair.side1)
    alpha, beta = reference.solve_primal(b, c, q - p)
    x, y = p + np.einsum("nk,nki->ni", alpha, b), q + np.einsum("nk,nki->ni", beta, c)
    np.testing.assert_allclose(squared(y - x), wanted, rtol=1e-7, atol=1e-14)
    dual0, dual1 = reference.solve_dual(reference.complement(b), p, reference.complement(c), q)
    np.testing.assert_allclose(squared(dual1 - dual0), wanted, rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(dual0, x, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(dual1, y, rtol=1e-5, atol=1e-7)
    near0, near1 = reference.closest_points(p, b, q, c)
    np.testing.assert_allclose(near0, x, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(near1, y, rtol=1e-5, atol=1e-7)


@given(pairs())
def test_block_inverse_of_the_paper_agrees(pair: Pairs):
    """Eq. 6, with M = -D E'."""
    (p, b), (q, c) = pair.side0, pair.side1
    assume(b.shape[1] > 0 and c.shape[1] > 0)
    for i in range(len(p)):
        cross = -b[i] @ c[i].T
        schur = np.linalg.inv(np.eye(len(b[i])) - cross @ cross.T)
        right0, right1 = b[i] @ (q[i] - p[i]), c[i] @ (q[i] - p[i])
        alpha = schur @ right0 + schur @ cross @ right1
        beta = -cross.T @ schur @ right0 - (cross.T @ schur @ cross + np.eye(len(c[i]))) @ right1
        solved = reference.solve_primal(b[i : i + 1], c[i : i + 1], (q - p)[i : i + 1])
        np.testing.assert_allclose(solved[0][0], alpha, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(solved[1][0], beta, rtol=1e-6, atol=1e-8)


@given(pairs())
def test_matrix_product_form_agrees(pair: Pairs):
    """d^2 = |p|^2 + |q|^2 - 2 p.q - |b|^2 - u' S^-1 u.

    With a = B'q, b = C'p, M = B'C, u = a + M b, S = I - M M'.
    """
    for i in range(len(pair.clear0)):
        p, basis0, q, basis1 = (
            pair.side0.origin[i],
            pair.side0.basis[i],
            pair.side1.origin[i],
            pair.side1.basis[i],
        )
        a, b, cross = basis0 @ q, basis1 @ p, basis0 @ basis1.T
        u, schur = a + cross @ b, np.eye(len(basis0)) - cross @ cross.T
        value = p @ p + q @ q - 2 * p @ q - b @ b - u @ np.linalg.solve(schur, u)
        wanted = diagonal(pair.side0, pair.side1)[i]
        np.testing.assert_allclose(value, wanted, rtol=1e-8, atol=1e-9 * (1 + p @ p + q @ q))


@given(pairs(meet=True))
def test_point_to_subspace_forms_agree(pair: Pairs):
    primal = reference.point_squared_distances(pair.clear1, *pair.side0)
    dual = reference.point_squared_distances_dual(
        pair.clear1, pair.side0.origin, reference.complement(pair.side0.basis)
    )
    np.testing.assert_allclose(primal, dual, rtol=1e-9, atol=1e-24)
    np.testing.assert_allclose(reference.squared_distances(pair.clear1, pair.side0), primal, rtol=1e-9, atol=1e-24)
    np.testing.assert_allclose(reference.squared_distances(pair.side0, pair.clear1), primal.T, rtol=1e-9, atol=1e-24)
    foot = reference.project(pair.clear1, *pair.side0)
    np.testing.assert_allclose(squared(pair.clear1 - foot), np.diagonal(primal), rtol=1e-9, atol=1e-24)
    x, p, basis = pair.clear1[0], pair.side0.origin[0], pair.side0.basis[0]
    product_form = x @ x - 2 * x @ p + p @ p - (basis @ x) @ (basis @ x)
    np.testing.assert_allclose(product_form, primal[0, 0], rtol=1e-9, atol=1e-10)


@given(pairs(meet=True))
def test_closest_points_realise_the_distance_and_are_seen_at_right_angles(pair: Pairs):
    (p, b), (q, c) = pair.side0, pair.side1
    x, y = reference.closest_points(p, b, q, c)
    far = 1 + np.abs(x).max() + np.abs(y).max()
    np.testing.assert_allclose(squared(y - x), diagonal(pair.side0, pair.side1), rtol=1e-6, atol=1e-12 * far**2)
    for basis in (b, c):
        np.testing.assert_allclose(np.einsum("nki,ni->nk", basis, y - x), 0, atol=1e-9 * far)
    np.testing.assert_allclose(reference.project(x, p, b), x, atol=1e-12 * far)
    np.testing.assert_allclose(reference.project(y, q, c), y, atol=1e-12 * far)


@given(st.integers(0, 2**32), st.integers(1, 12), st.data())
def test_subspaces_with_too_many_dimensions_always_meet(seed: int, n: int, data):
    m0 = data.draw(st.integers(0, n))
    m1 = data.draw(st.integers(n - m0, n))
    pair = make_pairs(seed, 3, n, m0, m1)
    assume(np.linalg.svd(np.concatenate([pair.side0.basis, pair.side1.basis], axis=1))[1].min() > 1e-3)
    np.testing.assert_allclose(diagonal(pair.side0, pair.side1), 0, atol=1e-18)
    x, y = reference.solve_dual(
        reference.complement(pair.side0.basis), pair.side0.origin,
        reference.complement(pair.side1.basis), pair.side1.origin,
    )  # fmt: skip
    np.testing.assert_allclose(x, y, atol=1e-7)


# ---------------------------------------------------------------- exact answers, degenerate pairs


small = st.integers(-3, 3)


@given(st.data())
def test_exact_rational_arithmetic_agrees_shared_directions_included(data):
    n = data.draw(st.integers(1, 5))
    m0, m1 = data.draw(st.integers(0, min(n, 2))), data.draw(st.integers(0, min(n, 2)))
    row = st.lists(small, min_size=n, max_size=n)
    origin0, origin1 = data.draw(row), data.draw(row)
    basis0 = np.array(data.draw(st.lists(row, min_size=m0, max_size=m0)), float).reshape(1, m0, n)
    basis1 = np.array(data.draw(st.lists(row, min_size=m1, max_size=m1)), float).reshape(1, m1, n)
    try:
        side0 = Flat(*reference.canonicalise(np.array([origin0], float), basis0))
        side1 = Flat(*reference.canonicalise(np.array([origin1], float), basis1))
    except RankError:
        ranks = [np.linalg.matrix_rank(basis[0]) if basis.size else 0 for basis in (basis0, basis1)]
        assert ranks[0] < m0 or ranks[1] < m1
        return
    wanted = exact_squared_distance(origin0, basis0[0], origin1, basis1[0])
    np.testing.assert_allclose(diagonal(side0, side1), [wanted], rtol=1e-12, atol=1e-20)
    x, y = reference.closest_points(*side0, *side1)
    np.testing.assert_allclose(squared(y - x), [wanted], rtol=1e-9, atol=1e-18)
    alpha, beta = reference.solve_primal(side0.basis, side1.basis, side1.origin - side0.origin)
    assert np.isfinite(alpha).all()
    assert np.isfinite(beta).all()


def leaning(angle: float, n: int = 8, extra: int = 1, seed: int = 0) -> tuple[Flat, Flat]:
    """Two subspaces with one pair of directions at this angle, the others at right angles, turned at random.

    The offset is 3 across the leaning pair, in its plane, and 4 outside everything: the squared distance is
    16 when the two directions differ and 25 when they are shared.
    """
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n))).Q
    rows0, rows1 = np.zeros((1 + extra, n)), np.zeros((1 + extra, n))
    rows0[0, 0] = 1
    rows1[0, :2] = np.cos(angle), np.sin(angle)
    for k in range(extra):
        rows0[1 + k, 2 + k] = rows1[1 + k, 2 + extra + k] = 1
    offset = np.zeros(n)
    offset[1], offset[-1] = 3, 4
    return Flat(np.zeros((1, n)), rows0[None] @ rotation), Flat(offset[None] @ rotation, rows1[None] @ rotation)


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize("angle", ANGLES)
def test_nearly_shared_directions_have_the_known_answer(angle: float, extra: int):
    side0, side1 = leaning(angle, extra=extra)
    wanted = 25.0 if angle <= reference.INDEPENDENT / 3 else 16.0
    if angle == reference.INDEPENDENT:  # on the edge either answer is right, nothing between
        assert min(abs(diagonal(side0, side1)[0] - value) for value in (16, 25)) < 1e-3
        return
    tolerance = 1e-13 / angle if wanted == 16 else 20 * angle
    np.testing.assert_allclose(diagonal(side0, side1), [wanted], rtol=max(tolerance, 1e-12))
    np.testing.assert_allclose(diagonal(side1, side0), [wanted], rtol=max(tolerance, 1e-12))
    x, y = reference.closest_points(*side0, *side1)
    np.testing.assert_allclose(squared(y - x), [wanted], rtol=max(tolerance, 1e-8))


@pytest.mark.parametrize("angle", ANGLES[:3])
def test_nearly_shared_directions_agree_with_rational_arithmetic(angle: float):
    for seed in range(5):
        side0, side1 = leaning(angle, n=6, seed=seed)
        wanted = exact_squared_distance(side0.origin[0], side0.basis[0], side1.origin[0], side1.basis[0])
        np.testing.assert_allclose(diagonal(side0, side1), [wanted], rtol=1e-12 / angle)


@given(st.integers(0, 2**32), st.floats(-14, 0), st.integers(1, 5), st.integers(1, 5))
def test_degenerate_pairs_are_finite_and_bounded(seed: int, power: float, m0: int, m1: int):
    """One direction of each side agrees up to a slip of any size: finite, and below the clear distance."""
    rng = np.random.default_rng(seed)
    clear0, clear1 = rng.normal(size=(2, 3, 16))
    basis0, basis1 = rng.normal(size=(3, m0, 16)), rng.normal(size=(3, m1, 16))
    basis1[:, -1] = basis0[:, 0] + 10**power * rng.normal(size=(3, 16))
    side0, side1 = (
        Flat(*reference.canonicalise(clear0, basis0)),
        Flat(*reference.canonicalise(clear1, basis1)),
    )
    for forward, backward in ((side0, side1), (sfumato.Subspaces(*side0), sfumato.Subspaces(*side1))):
        values = reference.squared_distances(forward, backward)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert (values <= squared_apart(clear0, clear1) * (1 + 1e-5) + 1e-9).all()
    x, y = reference.closest_points(*side0, *side1)
    np.testing.assert_allclose(squared(y - x), diagonal(side0, side1), rtol=1e-3, atol=1e-6)
    for part in reference.solve_primal(side0.basis, side1.basis, side1.origin - side0.origin):
        assert np.isfinite(part).all()
    for point in reference.solve_dual(
        reference.complement(side0.basis), side0.origin, reference.complement(side1.basis), side1.origin
    ):
        assert np.isfinite(point).all()


@pytest.mark.parametrize("m", [1, 2, 4])
def test_a_subspace_and_its_parallel(m: int):
    pair = make_pairs(5, 3, 10, m, m)
    step = np.linalg.svd(pair.side0.basis)[2][:, -1]  # a unit vector at right angles to the basis
    parallel = Flat(pair.side0.origin + 2 * step, pair.side0.basis)
    np.testing.assert_allclose(diagonal(pair.side0, parallel), 4, rtol=1e-12)
    np.testing.assert_allclose(diagonal(pair.side0, pair.side0), 0, atol=1e-28)
    x, y = reference.closest_points(*pair.side0, *parallel)
    np.testing.assert_allclose(y - x, 2 * step, atol=1e-12)


def test_random_lifting_is_a_near_isometry():
    """E[d^2(D, E) / |d - e|^2] = 1 - 2 m / n."""
    for n, m in ((16, 2), (32, 2), (32, 8)):
        pair = make_pairs(6, 2000, n, m, m)
        x, y = reference.closest_points(*pair.side0, *pair.side1)
        ratio = squared(y - x) / squared(pair.clear1 - pair.clear0)
        error = ratio.std() / np.sqrt(len(ratio))
        assert abs(ratio.mean() - (1 - 2 * m / n)) < 5 * error
        assert error < 0.005


# ---------------------------------------------------------------- the pieces


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 24), st.data())
def test_gram_schmidt(seed: int, count: int, n: int, data):
    m = data.draw(st.integers(0, n))
    rows = np.random.default_rng(seed).normal(size=(count, m, n))
    kept = rows.copy()
    basis, independence = reference.gram_schmidt(rows)
    np.testing.assert_array_equal(rows, kept)
    assume((independence > 1e-4).all())
    np.testing.assert_allclose(basis @ basis.transpose(0, 2, 1), np.broadcast_to(np.eye(m), (count, m, m)), atol=1e-12)
    inside = np.einsum("nkl,nli->nki", np.einsum("nki,nli->nkl", rows, basis), basis)
    np.testing.assert_allclose(inside, rows, atol=1e-10)
    for j in range(m):  # row j lies in the span of the first j + 1, in its own direction
        np.testing.assert_allclose(np.einsum("nli,ni->nl", basis[:, j + 1 :], rows[:, j]), 0, atol=1e-9)
        assert (np.einsum("ni,ni->n", basis[:, j], rows[:, j]) > 0).all()


@pytest.mark.parametrize("m", [2, 8, 9, 20])
def test_independence_is_the_sine_of_the_smallest_angle(m: int):
    rows = np.repeat(np.eye(m, 24)[None], 3, axis=0)
    rows[1, -1] = rows[1, 0] * np.cos(0.3) + rows[1, -1] * np.sin(0.3)
    rows[2, -1] = rows[2, 0]
    basis, independence = reference.gram_schmidt(rows)
    np.testing.assert_allclose(independence, [1, np.sin(0.3), 0], atol=1e-12)
    assert not basis[2, -1].any()


@pytest.mark.parametrize("m", [3, 8, 12])
@pytest.mark.parametrize("slip", [1e-2, 1e-4, 1e-5])
def test_nearly_dependent_rows_become_orthonormal_to_the_last_digits(m: int, slip: float):
    rows = np.random.default_rng(14).normal(size=(50, m, 20))
    rows[:, 1:] = rows[:, :1] + slip * rows[:, 1:]
    basis = reference.orthonormalise(rows)
    np.testing.assert_allclose(basis @ basis.transpose(0, 2, 1) - np.eye(m), 0, atol=1e-13)


@pytest.mark.parametrize("m", [1, 2, 5, 9, 16])
@pytest.mark.parametrize("slip", [0.0, 1e-15, 1e-9, 3e-7])
def test_rank_deficient_rows_are_detected(m: int, slip: float):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(4, m, 20))
    rows[[1, 3], -1] = rows[[1, 3], :-1].sum(axis=1) + slip * np.eye(20)[0]
    if m == 1:
        rows[[1, 3]] = 0
    with pytest.raises(RankError, match=rf"{m} rows of 2 .*subspace 1"):
        reference.orthonormalise(rows)
    with pytest.raises(RankError, match="subspace 30"):
        reference.orthonormalise(rows, names=[10, 30, 50, 70])
    assert reference.orthonormalise(rows[[0, 2]]).shape == (2, m, 20)


@pytest.mark.parametrize("m", [3, 12])
def test_more_rows_than_dimensions_zero_rows_and_nan_are_detected(m: int):
    with pytest.raises(RankError):
        reference.orthonormalise(np.random.default_rng(8).normal(size=(2, m, m - 1)))
    for bad in (0.0, np.nan):
        rows = np.random.default_rng(8).normal(size=(2, m, 20))
        rows[1, 1] = bad
        with pytest.raises(RankError, match="subspace 1"):
            reference.orthonormalise(rows)


def test_gram_schmidt_needs_three_axes():
    with pytest.raises(InputError, match="shape"):
        reference.orthonormalise(np.ones((2, 3)))


@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1.0, 1e100, 1e300])
def test_rows_of_any_length_are_normalised(scale: float):
    rows = np.random.default_rng(9).normal(size=(2, 3, 8))
    np.testing.assert_allclose(reference.orthonormalise(rows * scale), reference.orthonormalise(rows), atol=1e-12)


@given(pairs(meet=True))
def test_canonical_origin_is_the_point_nearest_to_zero(pair: Pairs):
    origin, basis = pair.side0
    scale = np.linalg.norm(pair.clear0, axis=1, keepdims=True)
    np.testing.assert_allclose(np.einsum("nki,ni->nk", basis, origin) / scale, 0, atol=1e-15)
    np.testing.assert_allclose(origin, reference.project(np.zeros_like(origin), *pair.side0), atol=1e-13)
    zero = reference.point_squared_distances(np.zeros((1, origin.shape[1])), pair.clear0, basis)[0]
    np.testing.assert_allclose(squared(origin), zero, rtol=1e-9, atol=1e-24)


def test_a_subspace_through_zero_has_its_origin_there():
    basis = reference.orthonormalise(np.random.default_rng(10).normal(size=(5, 3, 8)))
    for m, points in ((3, basis.sum(axis=1)), (8, np.ones((5, 8)))):
        whole = basis if m == 3 else np.broadcast_to(np.linalg.qr(np.ones((8, 8)) + np.eye(8)).Q, (5, 8, 8))
        assert not reference.canonical_origin(points, whole).any()


@given(pairs(meet=True))
def test_complement_is_the_dual_form(pair: Pairs):
    origin, basis = pair.side0
    rest = reference.complement(basis)
    count, m, n = basis.shape
    assert rest.shape == (count, n - m, n)
    whole = np.concatenate([basis, rest], axis=1)
    np.testing.assert_allclose(whole @ whole.transpose(0, 2, 1), np.broadcast_to(np.eye(n), (count, n, n)), atol=1e-12)
    np.testing.assert_allclose(np.einsum("nki,ni->nk", rest, pair.clear0 - origin), 0, atol=1e-12)


def test_projecting_twice_is_projecting_once():
    pair = make_pairs(11, 5, 12, 3, 0)
    once = reference.project(pair.clear1, *pair.side0)
    np.testing.assert_allclose(reference.project(once, *pair.side0), once, atol=1e-13)


# ---------------------------------------------------------------- sizes and refusals


@pytest.mark.parametrize("m0", [0, 2])
@pytest.mark.parametrize("m1", [0, 3])
def test_empty_sides_give_empty_results(m0: int, m1: int):
    none = Flat(np.zeros((0, 6)), np.zeros((0, m0, 6)))
    some = make_pairs(12, 4, 6, m1, m1).side0
    assert reference.squared_distances(none, some).shape == (0, 4)
    assert reference.squared_distances(some, none).shape == (4, 0)
    assert reference.squared_distances(none, none).shape == (0, 0)
    assert reference.point_squared_distances(np.zeros((0, 6)), *some).shape == (0, 4)
    assert reference.point_squared_distances(np.zeros((2, 6)), *none).shape == (2, 0)
    assert reference.complement(none.basis).shape == (0, 6 - m0, 6)
    for point in reference.closest_points(*none, *none):
        assert point.shape == (0, 6)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    pair = make_pairs(13, 9, 8, 2, 3)
    whole = reference.squared_distances(pair.side0, pair.side1)
    points = reference.point_squared_distances(pair.clear1, *pair.side0)
    monkeypatch.setattr(reference, "PAIRS_AT_ONCE", 7)
    np.testing.assert_allclose(reference.squared_distances(pair.side0, pair.side1), whole, rtol=1e-12)
    np.testing.assert_allclose(reference.point_squared_distances(pair.clear1, *pair.side0), points, rtol=1e-12)
    for i in range(9):
        for j in range(9):
            one = reference.squared_distances(
                Flat(pair.side0.origin[i : i + 1], pair.side0.basis[i : i + 1]),
                Flat(pair.side1.origin[j : j + 1], pair.side1.basis[j : j + 1]),
            )
            np.testing.assert_allclose(one[0, 0], whole[i, j], rtol=1e-9)


@pytest.mark.parametrize(
    ("a", "b", "token"),
    [
        (np.zeros((1, 3)), np.zeros((1, 4)), "3 and 4"),
        (np.zeros(3), np.zeros((1, 3)), r"^a: .*\(N, n\).*float64 \(3,\)"),
        (np.zeros((1, 3)), np.zeros((1, 0)), "^b: .*Subspaces"),
        (np.zeros((1, 3)), [["x"]], "^b: .*Subspaces"),
        ([[1, 2], [3]], np.zeros((1, 2)), "^a: .*lengths"),
        (np.full((1, 3), np.nan), np.zeros((1, 3)), "^a: .*NaN"),
        (object(), np.zeros((1, 3)), "^a: .*Subspaces"),
    ],
)
def test_squared_distances_refuses(a, b, token: str):
    with pytest.raises(InputError, match=token):
        reference.squared_distances(a, b)


def test_public_name_takes_subspaces_and_points():
    subspaces = sfumato.Subspaces(np.zeros((2, 3)), np.array([[[1.0, 0, 0]], [[0, 1.0, 0]]]))
    np.testing.assert_allclose(sfumato.squared_distances(subspaces, [[3, 4, 5]]), [[41], [34]])
    assert sfumato.squared_distances(subspaces, subspaces).dtype == np.float64


def test_subspaces_that_always_meet_are_warned_about():
    rng = np.random.default_rng(0)
    half, point = lift(rng, rng.normal(size=(2, 8)), 4), rng.normal(size=(2, 8))
    with pytest.warns(VoidDistanceWarning, match="meet"):
        assert reference.squared_distances(half, half).max() < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reference.squared_distances(point, half).min() > 0
