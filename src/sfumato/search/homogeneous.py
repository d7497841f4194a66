# SPDX-License-Identifier: Apache-2.0
"""Affine subspaces of R^n as linear ones of R^(n + 1), so that what is made for linear ones can find them.

{ p + B c } becomes the span of (B, 0) and (p - centre, scale). Angles between such spans are no distances of the affine
subspaces: candidates found through them must be measured. The hashing paper leaves affine subspaces open.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Chart:
    """Where R^n lies in R^(n + 1): ``centre`` (n,) float64 goes to the last axis, at height ``scale``."""

    centre: NDArray[np.float64]
    scale: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale: expected a positive length, got {self.scale}")

    @staticmethod
    def of(origin: NDArray[np.float32], basis: NDArray[np.float32], scale: float | None = None) -> "Chart":
        """Return a chart for subspaces (N, n), (N, m, n): their mean, and the root mean square distance from it."""
        centre = origin.mean(axis=0, dtype=np.float64) if len(origin) else np.zeros(origin.shape[1])
        if scale is None:
            offset = without(origin - centre, basis)
            scale = float(np.sqrt(np.mean(np.einsum("ni,ni->n", offset, offset)))) if len(origin) else 1.0
        return Chart(centre, scale or 1.0)

    def lift(self, origin: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return orthonormal bases (N, m + 1, n + 1) of the linear spans of affine subspaces in canonical form."""
        count, m, n = basis.shape
        lifted = np.zeros((count, m + 1, n + 1), np.float32)
        lifted[:, :m, :n] = basis
        lifted[:, m, :n] = without(origin - self.centre, basis)
        lifted[:, m, n] = self.scale
        lifted[:, m] /= np.linalg.norm(lifted[:, m], axis=1, keepdims=True)
        return lifted

    def __repr__(self) -> str:
        return f"Chart(R^{len(self.centre)}, scale {self.scale:.4g})"


def without(offset: NDArray[np.float64], basis: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return offsets (N, n) less their part in orthonormal bases (N, m, n)."""
    if basis.shape[1] == 0:
        return offset
    result: NDArray[np.float64] = offset - np.einsum("nm,nmi->ni", np.einsum("nmi,ni->nm", basis, offset), basis)
    return result
