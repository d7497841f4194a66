# SPDX-License-Identifier: Apache-2.0
"""Affine subspaces: the definition of their distances, and exact search at the speed of the machine.

>>> import numpy as np
>>> from sfumato.subspace import prepare, search
>>> points, none = np.eye(3, dtype=np.float32), np.zeros((3, 0, 3), np.float32)
>>> search(prepare(points, none), prepare(2 * points, none), keep=(1, 0)).rows0.ravel().tolist()
[0, 1, 2]
"""

from sfumato.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Affine": "reference",
        "Frame": "subspace_set",
        "Neighbours": "fast",
        "SmallBatchSearch": "small_batch",
        "SubspaceSet": "subspace_set",
        "canonicalise": "reference",
        "closest_points": "reference",
        "complement": "reference",
        "orthonormalise": "reference",
        "point_squared_distances": "reference",
        "point_squared_distances_dual": "reference",
        "prepare": "fast",
        "project": "reference",
        "search": "fast",
        "solve_dual": "reference",
        "solve_primal": "reference",
        "squared_distances": "reference",
    },
)
