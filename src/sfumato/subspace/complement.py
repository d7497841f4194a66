# SPDX-License-Identifier: Apache-2.0
"""Orthonormal bases of the complements of many subspaces, fast: the dual form of large subspaces (Eq. 9).

Knows arrays only. ``reference.complement`` is the definition; any orthonormal basis of the complement will do.
"""

import numpy as np
from numpy.typing import NDArray

AT_ONCE_BYTES = 64 << 20


def complement_basis(basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return orthonormal bases (N, n - m, n) of the complements of orthonormal bases (N, m, n).

    What is left of n - m arbitrary fixed directions outside the subspace spans its complement; a subspace to which
    they happen to be nearly parallel is left to LAPACK.
    """
    from sfumato.subspace.reference import complement

    count, m, n = basis.shape
    result = np.empty((count, n - m, n), np.float32)
    if m == n or count == 0:
        return result
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n))).Q[: n - m]
    at_once = max(1, AT_ONCE_BYTES // (8 * n * n))
    for start in range(0, count, at_once):
        rows = basis[start : start + at_once].astype(np.float64)
        left = np.broadcast_to(directions, (len(rows), n - m, n))
        for _ in range(2):
            left = left - (left @ rows.transpose(0, 2, 1)) @ rows
        factors = np.linalg.qr(left.transpose(0, 2, 1))
        weak = np.abs(np.einsum("nkk->nk", factors.R)).min(axis=1) < 1e-6
        found = factors.Q.transpose(0, 2, 1)
        if weak.any():
            found = found.copy()
            found[weak] = complement(rows[weak])
        result[start : start + at_once] = found
    return result
