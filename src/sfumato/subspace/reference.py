# SPDX-License-Identifier: Apache-2.0
"""Affine subspaces and their distances in float64: the definition that tests hold everything fast against.

A set of N subspaces of dimension m in R^n is ``origin`` (N, n) and ``basis`` (N, m, n):
row i is { origin[i] + c @ basis[i] }. In canonical form the basis rows are orthonormal and the origin is
the point of the subspace nearest to 0, hence orthogonal to the basis. Equation numbers are those of the
affine subspace embedding paper; "S" marks its supplement.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError, RankError, VoidDistanceWarning

Array = NDArray[np.float64]

INDEPENDENT = 1e-6
"""A unit vector nearer than this to the span of others adds no direction: rounding to float32, in which descriptors are
stored, turns a direction by about 1e-7."""

ROUNDING = 1e-13
"""The rounding error that float64 leaves of a vector of length 1 when all of it is removed."""

PAIRS_AT_ONCE = 20_000


class Affine(Protocol):
    """Anything with an origin and a basis, such as ``sfumato.Subspaces``."""

    @property
    def origin(self) -> NDArray[Any]: ...
    @property
    def basis(self) -> NDArray[Any]: ...


def gram_schmidt(vectors: ArrayLike) -> tuple[Array, Array]:
    """Orthonormalise rows: ``vectors`` (N, m, n) to basis (N, m, n) and independence (N,).

    Independence is the least sine of the angle between a row and the span of the rows before it: 0 where
    the rows do not span m dimensions (the basis row is then zero), 1 for orthogonal rows.
    """
    rows = np.array(vectors, dtype=np.float64)
    if rows.ndim != 3:
        raise InputError(f"basis: expected shape (N, m, n), got {rows.shape}")
    count, m, n = rows.shape
    independence = np.ones(count)
    _normalise(rows)
    if 8 < m <= n:
        return _gram_schmidt_lapack(rows)
    for j in range(m):
        row, before = rows[:, j], rows[:, :j]
        for _ in range(2 if j else 0):  # the second pass removes what rounding left of the first
            row -= np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", before, row), before)
        residual = np.sqrt(_squared_norm(row))
        independence = np.minimum(independence, residual)
        row /= np.where(residual > INDEPENDENT, residual, np.inf)[:, None]
    return rows, independence


def _normalise(rows: Array) -> None:
    """Scale rows (N, m, n) to unit length in place; zero rows stay zero."""
    lengths = np.sqrt(np.einsum("nki,nki->nk", rows, rows))[:, :, None]
    if not ((lengths > 1e-150) & (lengths < 1e150)).all():  # the squares of such numbers are lost
        largest = np.abs(rows).max(axis=2, keepdims=True, initial=0.0)
        rows /= np.where(largest > 0, largest, 1)
        lengths = np.sqrt(np.einsum("nki,nki->nk", rows, rows))[:, :, None]
    rows /= np.where(lengths > 0, lengths, 1)


def _gram_schmidt_lapack(rows: Array) -> tuple[Array, Array]:
    """Do the same for many unit rows, where LAPACK's elimination is faster."""
    factors = np.linalg.qr(rows.transpose(0, 2, 1))
    pivots = np.einsum("nkk->nk", factors.R)  # |pivot|: the sine of the angle to the rows before
    basis = factors.Q.transpose(0, 2, 1) * np.where(np.abs(pivots) > INDEPENDENT, np.sign(pivots), 0.0)[:, :, None]
    return np.ascontiguousarray(basis), np.abs(pivots).min(axis=1, initial=1.0)


def orthonormalise(vectors: ArrayLike, names: ArrayLike | None = None) -> Array:
    """Return an orthonormal basis (N, m, n) of the spans of the rows ``vectors`` (N, m, n).

    Raises RankError naming the subspaces whose rows are linearly dependent, by ``names`` (N,) if given.
    """
    basis, independence = gram_schmidt(vectors)
    dependent = np.flatnonzero(~(independence > INDEPENDENT))  # so that NaN is caught too
    if dependent.size:
        first = dependent[0] if names is None else np.asarray(names)[dependent[0]]
        raise RankError(
            f"basis: the {basis.shape[1]} rows of {dependent.size} subspaces are linearly dependent, "
            f"the first is subspace {first}"
        )
    return basis


def canonical_origin(point: ArrayLike, basis: ArrayLike) -> Array:
    """Return the point nearest to 0 of each subspace through ``point`` (N, n) with orthonormal ``basis``."""
    points = _float64(point)
    nearest = _residual(points, _float64(basis))
    noise = _squared_norm(nearest) <= ROUNDING**2 * _squared_norm(points)  # the subspace passes through 0
    return np.where(noise[:, None], 0.0, nearest)


def canonicalise(origin: ArrayLike, basis: ArrayLike, names: ArrayLike | None = None) -> tuple[Array, Array]:
    """Bring subspaces given by any point and any independent directions to canonical form."""
    orthonormal = orthonormalise(basis, names)
    return canonical_origin(origin, orthonormal), orthonormal


def project(points: ArrayLike, origin: ArrayLike, basis: ArrayLike) -> Array:
    """Return the orthogonal projection of points (N, n) on subspaces (N), row on row (Eq. 1)."""
    p, b = _float64(origin), _float64(basis)
    offset = _float64(points) - p
    return p + _combine(np.einsum("nki,ni->nk", b, offset), b)


def complement(basis: ArrayLike) -> Array:
    """Return an orthonormal basis (N, n - m, n) of the complement of each basis: the dual form."""
    b = _float64(basis)
    count, m, n = b.shape
    if count == 0 or m == 0:
        return np.broadcast_to(np.eye(n)[None], (count, n, n))[:, : n - m].copy()
    return np.linalg.qr(b.transpose(0, 2, 1), mode="complete").Q.transpose(0, 2, 1)[:, m:]


def closest_points(origin0: ArrayLike, basis0: ArrayLike, origin1: ArrayLike, basis1: ArrayLike) -> tuple[Array, Array]:
    """Return the closest points x, y (N, n) of two lists of subspaces, pair by pair (Eq. 3).

    Both orthonormal; their dimensions may differ. Where the two share a direction there are many closest
    pairs; the one nearest to the origins is returned. Solved as least squares in the coefficients, whose
    condition is the square root of that of Eq. 5: two directions at angle t count as shared for t < 1e-6,
    as in ``squared_distances``.
    """
    p, b, q, c = (_float64(a) for a in (origin0, basis0, origin1, basis1))
    m0, joint = b.shape[1], np.concatenate([b, -c], axis=1)
    if joint.shape[1] == 0 or len(p) == 0:
        return p.copy(), q.copy()
    inverse = np.linalg.pinv(joint, rcond=INDEPENDENT / 2)  # (N, n, m0 + m1); singular values sqrt(1 ± cos t)
    solution = np.einsum("nik,ni->nk", inverse, q - p)
    alpha, beta = solution[:, :m0], solution[:, m0:]
    return p + _combine(alpha, b), q + _combine(beta, c)


def solve_primal(basis0: Array, basis1: Array, offset: Array) -> tuple[Array, Array]:
    """Solve Eq. 5, pair by pair, for the coefficients alpha (N, m0) and beta (N, m1) of the closest points.

    The matrix [[I, -DE'], [ED', -I]] is singular where the two share a direction: least squares, least norm.
    """
    m0, m1 = basis0.shape[1], basis1.shape[1]
    if m0 + m1 == 0:
        return np.zeros((len(offset), 0)), np.zeros((len(offset), 0))
    cross = np.einsum("nki,nli->nkl", basis0, basis1)  # D E'
    matrix = np.zeros((len(offset), m0 + m1, m0 + m1))
    matrix[:, :m0, :m0] = np.eye(m0)
    matrix[:, :m0, m0:] = -cross
    matrix[:, m0:, :m0] = cross.transpose(0, 2, 1)
    matrix[:, m0:, m0:] = -np.eye(m1)
    right = np.einsum("nki,ni->nk", np.concatenate([basis0, basis1], axis=1), offset)
    solution = np.einsum("nkl,nl->nk", np.linalg.pinv(matrix, rcond=INDEPENDENT**2), right)
    return solution[:, :m0], solution[:, m0:]


def solve_dual(complement0: Array, origin0: Array, complement1: Array, origin1: Array) -> tuple[Array, Array]:
    """Solve the dual system, Eq. 9 and S3, pair by pair, for the closest points x, y (N, n).

    3 n - m0 - m1 unknowns. Singular once m0 + m1 > n, where two generic subspaces meet: least squares.
    """
    k0, k1, n = complement0.shape[1], complement1.shape[1], complement0.shape[2]
    matrix = np.zeros((len(origin0), k0 + k1 + n, n + k0 + k1))
    matrix[:, :k0, :n] = complement0
    matrix[:, k0 : k0 + k1, :n] = complement1
    matrix[:, k0 : k0 + k1, n + k0 :] = np.eye(k1)
    matrix[:, k0 + k1 :, n : n + k0] = complement0.transpose(0, 2, 1)
    matrix[:, k0 + k1 :, n + k0 :] = -complement1.transpose(0, 2, 1)
    right = np.zeros((len(origin0), k0 + k1 + n))
    right[:, :k0] = np.einsum("nki,ni->nk", complement0, origin0)
    right[:, k0 : k0 + k1] = np.einsum("nki,ni->nk", complement1, origin1)
    solution = np.einsum("nkl,nl->nk", np.linalg.pinv(matrix, rcond=INDEPENDENT**2), right)
    x, nu = solution[:, :n], solution[:, n + k0 :]
    return x, x + _combine(nu, complement1)


def point_squared_distances(points: ArrayLike, origin: ArrayLike, basis: ArrayLike) -> Array:
    """Return squared point-to-subspace distances (N_points, N_subspaces), primal form (Eq. 1)."""
    x, p, b = _float64(points), _float64(origin), _float64(basis)
    return _in_blocks(x, p, b.shape[1] * b.shape[2], lambda i, j: _squared_norm(_residual(x[i] - p[j], b[j])))


def point_squared_distances_dual(points: ArrayLike, origin: ArrayLike, complements: ArrayLike) -> Array:
    """Return the same from the dual form (Eq. 10, S7): the length of the offset inside the complement."""
    x, p, z = _float64(points), _float64(origin), _float64(complements)

    def evaluate(i: NDArray[np.intp], j: NDArray[np.intp]) -> Array:
        return _squared_norm(np.einsum("nki,ni->nk", z[j], x[i] - p[j]))

    return _in_blocks(x, p, z.shape[1] * z.shape[2], evaluate)


def squared_distances(a: Affine | ArrayLike, b: Affine | ArrayLike) -> Array:
    """Return squared distances (N_a, N_b) in float64 between subspaces or points (N, n) on either side.

    The distance of two subspaces is the least distance of a point of one to a point of the other (Eq. 2):
    the part of the offset of their origins outside the span of both bases. Directions that agree within
    1e-6 count as shared. Meant for small inputs. Warns if the dimensions of two subspaces add up to n or more:
    then they always meet.

    >>> import numpy as np
    >>> squared_distances(np.zeros((1, 3)), np.array([[3.0, 4.0, 0.0]]))
    array([[25.]])
    """
    (p, basis0), (q, basis1) = _parts(a, "a"), _parts(b, "b")
    if p.shape[1] != q.shape[1]:
        raise InputError(f"a and b live in different spaces: {p.shape[1]} and {q.shape[1]} dimensions")
    if min(basis0.shape[1], basis1.shape[1]) and basis0.shape[1] + basis1.shape[1] >= p.shape[1]:
        warnings.warn(
            f"subspaces of dimension {basis0.shape[1]} and {basis1.shape[1]} always meet in R^{p.shape[1]}, "
            f"at distance 0; compare points with subspaces, or lift to fewer dimensions",
            VoidDistanceWarning,
            stacklevel=2,
        )
    return _squared_distances(p, basis0, q, basis1)


def _squared_distances(p: Array, basis0: Array, q: Array, basis1: Array) -> Array:
    if basis0.shape[1] < basis1.shape[1]:  # the smaller basis is orthonormalised for each pair
        return _squared_distances(q, basis1, p, basis0).T.copy()

    def evaluate(i: NDArray[np.intp], j: NDArray[np.intp]) -> Array:
        offset = _residual(q[j] - p[i], basis0[i])
        if basis1.shape[1] == 0:
            return _squared_norm(offset)
        outside = _residual_rows(basis1[j], basis0[i])
        return _squared_norm(_residual(offset, outside))

    return _in_blocks(p, q, (basis0.shape[1] + basis1.shape[1]) * p.shape[1], evaluate)


def _residual_rows(rows: Array, basis: Array) -> Array:
    """Return an orthonormal basis of ``rows`` outside ``basis``; shared directions become zero."""
    outside = rows.copy()
    for _ in range(3):  # the rest of a direction may be as short as 1e-6, and rounding must be small beside it
        outside -= np.einsum("nlk,nki->nli", np.einsum("nli,nki->nlk", outside, basis), basis)
    _, lengths, right = np.linalg.svd(outside, full_matrices=False)
    return np.where(lengths[:, :, None] > INDEPENDENT, right, 0.0)


def _residual(offset: Array, basis: Array) -> Array:
    """Return offsets (N, n) less their part in bases (N, m, n); removed twice against rounding."""
    for _ in range(2):
        offset = offset - _combine(np.einsum("nki,ni->nk", basis, offset), basis)
    return offset


def _combine(coefficients: Array, rows: Array) -> Array:
    """Return sums (N, n) of rows (N, m, n) weighted by coefficients (N, m)."""
    result: Array = np.einsum("nk,nki->ni", coefficients, rows)
    return result


def _squared_norm(vectors: Array) -> Array:
    result: Array = np.einsum("ni,ni->n", vectors, vectors)
    return result


def _in_blocks(first: Array, second: Array, width: int, evaluate: Callable[..., Array]) -> Array:
    """Fill (len(first), len(second)) with ``evaluate(i, j)``, a block of pairs at a time."""
    result = np.zeros((len(first), len(second)))
    if result.size == 0:
        return result
    at_once = max(1, PAIRS_AT_ONCE * 512 // (512 + width))
    for start in range(0, result.size, at_once):
        flat = np.arange(start, min(start + at_once, result.size))
        result.flat[flat] = evaluate(*np.divmod(flat, len(second)))
    return result


def _float64(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)


def _parts(side: Affine | ArrayLike, name: str) -> tuple[Array, Array]:
    """Return origin (N, n) and basis (N, m, n) of subspaces, or of points as subspaces of dimension 0."""
    if hasattr(side, "origin") and hasattr(side, "basis"):
        return _float64(side.origin), _float64(side.basis)
    try:
        points = np.asarray(side)
    except (TypeError, ValueError) as cause:
        raise InputError(
            f"{name}: expected Subspaces or points of shape (N, n), got rows of different lengths"
        ) from cause
    if points.dtype.kind not in "fiub" or points.ndim != 2 or points.shape[1] == 0:
        raise InputError(f"{name}: expected Subspaces or points of shape (N, n), got {points.dtype} {points.shape}")
    if not np.isfinite(points).all():
        raise InputError(f"{name}: expected finite points, got NaN or infinity")
    return _float64(points), np.zeros((len(points), 0, points.shape[1]))
