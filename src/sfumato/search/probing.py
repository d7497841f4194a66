# SPDX-License-Identifier: Apache-2.0
"""Which cells are nearest to a query: first on the axes of the codes, a quarter of the memory, then exactly.

Knows arrays only.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.search.cells import file_under, offsets_from
from sfumato.search.codes import HEAD, Axes
from sfumato.subspace.fast import load_kernels

Floats = NDArray[np.float32]

FEWEST = 1024
"""Fewer cells than this are compared whole."""

TAKEN, LEAST_TAKEN = 4, 32
"""For every cell wanted so many are taken by the axes, and at least so many in all."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class CellFinder:
    """Centres (K, n), as they are and ``centred``, seen from the mean; these on the axes of the codes: ``heads``
    (HEAD, K); and their squared ``norms`` (K,)."""

    centres: Floats
    axes: Axes
    centred: Floats
    heads: Floats
    norms: Floats

    @staticmethod
    def of(centres: Floats, axes: Axes) -> "CellFinder":
        """Return a finder of these centres."""
        centred = np.ascontiguousarray(centres - axes.mean)
        heads = np.ascontiguousarray((centred @ axes.axes).T)
        return CellFinder(centres, axes, centred, heads, np.einsum("ki,ki->k", centred, centred))

    def nearest(self, origin: Floats, basis: Floats, wanted: int) -> NDArray[np.int32]:
        """Return the cells (Q, wanted) nearest to subspaces (Q, n), (Q, m, n), nearest first."""
        taken = max(LEAST_TAKEN, TAKEN * wanted)
        if len(self.centres) < max(FEWEST, 4 * taken) or self.centres.shape[1] <= HEAD:
            return file_under(self.centres, self.axes.mean, origin, basis, wanted, in_order=True)
        stack = np.concatenate([offsets_from(self.axes.mean, origin, basis)[:, None], basis], axis=1)
        likely = self._likely(stack, taken)
        from sfumato.search.cellscan import order_cells

        result = np.empty((len(origin), wanted), np.int32)
        order_cells(stack, self.centred, self.norms, likely, result)
        return result

    def _likely(self, stack: Floats, taken: int) -> NDArray[np.int32]:
        """Return the cells (Q, taken) nearest on the axes, in no order."""
        load_kernels()
        from sfumato.search.cellscan import nearest_cells

        count, rows, n = stack.shape
        result = np.zeros((count, taken), np.int32)
        nearest_cells((stack.reshape(-1, n) @ self.axes.axes) @ self.heads, self.norms, rows, taken, False, result)
        return result
