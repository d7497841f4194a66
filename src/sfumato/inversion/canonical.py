# SPDX-License-Identifier: Apache-2.0
"""Canonical inputs of networks: a list of numbers that depends on the subspace alone, not on its basis.

A subspace has many bases, and a network given one of them would have to learn that the others mean the same. Here the
basis is brought into one gauge, fixed by a public frame of directions. Numpy only, so that networks run without torch.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import Subspaces

DEGENERATE = 1e-4
"""A frame direction whose projection on a subspace is this short fixes no direction of it to float32 precision."""
ROWS_AT_ONCE = 4096


def frame_of(descriptors: ArrayLike) -> NDArray[np.float32]:
    """Return the frame (n, n) of public descriptors (N, n): orthonormal rows, the strongest direction first.

    The first row is the direction of the mean, where there is one; the others are the principal directions across it,
    largest variance first. The entry of largest size in each row is positive, so that the signs are determined.

    Raises InputError for no descriptors and for values that are not finite.
    """
    rows = frozen_array(descriptors, "descriptors", (None, None)).astype(np.float64)
    count, n = rows.shape
    if count == 0 or n == 0:
        raise InputError("a frame needs at least one descriptor: give those of public photos")
    mean = rows.mean(axis=0)
    spread = (rows - mean).T @ (rows - mean) / count  # (n, n)
    length = float(np.linalg.norm(mean))
    if length > 1e-6 * float(np.sqrt(np.square(rows).sum(axis=1).mean())) + 1e-30:
        along = mean / length
        spread = spread - np.outer(along, along @ spread)
        spread = spread - np.outer(spread @ along, along)
        spread += (2 * np.abs(np.trace(spread)) + 1) * np.outer(along, along)  # puts the mean first
    directions = np.linalg.eigh((spread + spread.T) / 2)[1][:, ::-1].T
    largest = np.abs(directions).argmax(axis=1)
    signs = np.sign(directions[np.arange(n), largest])
    frame: NDArray[np.float32] = (directions * signs[:, None]).astype(np.float32)
    return frame


def frame_for(descriptors: ArrayLike, released: Subspaces) -> NDArray[np.float32]:
    """Return the frame of descriptors, or that of what is released where an encoder maps to another space."""
    rows = frozen_array(descriptors, "descriptors", (None, None))
    return frame_of(rows if rows.shape[1] == released.ambient_dim else released.origin)


def canonical_input(subspaces_or_points: Subspaces | ArrayLike, frame: ArrayLike) -> NDArray[np.float32]:
    """Return (N, (m + 1) n) float32: the point nearest to 0, then the basis in the gauge of ``frame`` (n, n).

    Basis row i is the part of the projection of frame row i on the subspace that is orthogonal to the rows before, with
    a positive product with it: a QR decomposition with positive signs. So the result is a function of the set of points
    alone, and continuous in it wherever the first m frame rows project to independent directions; rows where they do
    not take the next frame rows instead. Points (m = 0), in whatever space, are returned as they are; a frame is not
    needed for them.

    Raises InputError if subspaces and frame live in spaces of different dimension.
    """
    if not isinstance(subspaces_or_points, Subspaces):
        points: NDArray[np.float32] = frozen_array(subspaces_or_points, "points", (None, None))
        return points
    subspaces = subspaces_or_points
    if subspaces.dim == 0:
        return subspaces.origin
    n = subspaces.ambient_dim
    fixed = frozen_array(frame, "frame", (n, n)).astype(np.float64)
    result = np.empty((len(subspaces), subspaces.dim + 1, n), np.float32)
    for start in range(0, len(subspaces), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        result[block, 0] = subspaces.origin[block]
        result[block, 1:] = _in_gauge(subspaces.basis[block].astype(np.float64), fixed)
    return result.reshape(len(subspaces), input_dim(n, subspaces.dim))


def input_dim(n: int, m: int) -> int:
    """Return the length of ``canonical_input`` for a subspace of dimension m in R^n.

    >>> input_dim(128, 2)
    384
    """
    return (m + 1) * n


def as_subspaces(inputs: ArrayLike, n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return origins (N, n) and bases (N, m, n) of canonical inputs (N, (m + 1) n)."""
    rows = np.asarray(inputs, np.float32)
    if rows.ndim != 2 or n < 1 or rows.shape[1] % n or rows.shape[1] == 0:
        raise InputError(f"inputs: expected (N, (m + 1) {n}), got {rows.shape}")
    stacked = rows.reshape(len(rows), rows.shape[1] // n, n)  # (N, m + 1, n)
    return stacked[:, 0], stacked[:, 1:]


def _in_gauge(basis: NDArray[np.float64], frame: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bases (N, m, n) of the same spans in the gauge of the frame."""
    m = basis.shape[1]
    projections = np.matmul(frame[:m], basis.transpose(0, 2, 1))  # (N, m, m): frame rows in coordinates of the basis
    coefficients, triangle = np.linalg.qr(projections.transpose(0, 2, 1))
    pivots = np.diagonal(triangle, axis1=1, axis2=2)  # (N, m)
    signs = np.where(pivots < 0, -1.0, 1.0)
    turned: NDArray[np.float64] = np.matmul((coefficients * signs[:, None]).transpose(0, 2, 1), basis)
    for row in np.flatnonzero(np.abs(pivots).min(axis=1) < DEGENERATE):
        turned[row] = _by_later_rows(basis[row], frame)
    return turned


def _by_later_rows(basis: NDArray[np.float64], frame: NDArray[np.float64]) -> NDArray[Any]:
    """Gram-Schmidt over all frame rows, passing those that add no direction; their projections span the subspace."""
    projections = frame @ basis.T  # (n, m)
    units: list[NDArray[np.float64]] = []
    for least in (DEGENERATE, 0.0):
        for row in projections:
            rest = row - sum((row @ unit) * unit for unit in units)
            length = np.linalg.norm(rest)
            if length > least and len(units) < len(basis):
                rest /= length
                rest -= sum((rest @ unit) * unit for unit in units)
                units.append(rest / np.linalg.norm(rest))
    return np.array(units) @ basis
