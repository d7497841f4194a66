# SPDX-License-Identifier: Apache-2.0
"""Kd-tree of the published baseline, searched best first with a tolerance; counts the points it compares.

The tree is scipy's cKDTree. Scipy's own search does not say how many points it compared, so this one searches the same
tree by the same rule: a node is skipped if it is farther than the best so far divided by 1 + eps.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PUBLISHED_EPS = 10.0
"""The tolerance of both papers: the answer may be 11 times as far as the nearest."""
PUBLISHED_LEAF = 1
"""Points in a leaf of the ANN library, by default."""


class FlatTree(NamedTuple):
    """A kd-tree as arrays: ``axis`` (-1 for a leaf), ``split``, ``lesser`` and ``greater`` children of each node.

    Of a leaf ``order[start:end]`` are the rows in it; ``low`` and ``high`` (n,) bound all points.
    """

    axis: NDArray[np.int64]
    split: NDArray[np.float64]
    lesser: NDArray[np.int64]
    greater: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    order: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def grow(points: NDArray[Any], leaf: int = PUBLISHED_LEAF) -> FlatTree:
    """Build the tree of points (N, n), N at least 1, with scipy."""
    from scipy.spatial import cKDTree

    built = cKDTree(points, leafsize=leaf, balanced_tree=False)
    rows: list[tuple[float, ...]] = []
    waiting = [(built.tree, -1, 0)]
    while waiting:
        node, parent, side = waiting.pop()
        number = len(rows)
        rows.append((node.split_dim, node.split, -1, -1, node.start_idx, node.end_idx))
        if parent >= 0:
            changed = list(rows[parent])
            changed[2 + side] = number
            rows[parent] = tuple(changed)
        if node.split_dim >= 0:
            waiting += [(node.greater, number, 1), (node.lesser, number, 0)]
    columns = np.array(rows, float).T
    axis, lesser, greater, start, end = (columns[i].astype(np.int64) for i in (0, 2, 3, 4, 5))
    return FlatTree(
        axis, columns[1], lesser, greater, start, end, built.indices.astype(np.int64), built.mins, built.maxes
    )


def nearest(
    tree: FlatTree, points: NDArray[Any], queries: NDArray[Any], k: int, eps: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows (Q, k), nearest first, -1 for none, and how many points each query compared (Q,)."""
    from sfumato.search.projector.kernels import search_tree

    rows = np.full((len(queries), k), -1, np.int64)
    visits = np.zeros(len(queries), np.int64)
    search_tree(*tree, np.asarray(points, float), np.asarray(queries, float), eps, rows, visits)
    return rows, visits
