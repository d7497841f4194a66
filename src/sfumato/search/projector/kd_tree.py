# SPDX-License-Identifier: Apache-2.0
"""The kd-tree of the published baseline, searched best first with a tolerance, counting the points it looks at.

The tree is scipy's cKDTree; scipy's own search does not tell how much it looked at, so it is done here on the same tree
by the same rule. A node is left out if it is farther than the best found so far divided by 1 + eps. Knows points only.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PUBLISHED_EPS = 10.0
"""What both papers used: the answer may be 11 times as far as the nearest."""
PUBLISHED_LEAF = 1
"""Points in a leaf of the ANN library, where nothing else is said."""


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

    made = cKDTree(points, leafsize=leaf, balanced_tree=False)
    rows: list[tuple[float, ...]] = []
    waiting = [(made.tree, -1, 0)]
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
    return FlatTree(axis, columns[1], lesser, greater, start, end, made.indices.astype(np.int64), made.mins, made.maxes)


def nearest(
    tree: FlatTree, points: NDArray[Any], queries: NDArray[Any], k: int, eps: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows (Q, k), nearest first, -1 where there are none, and how many points each query looked at (Q,)."""

    from sfumato.search.projector.kernels import search_tree

    rows = np.full((len(queries), k), -1, np.int64)
    looked = np.zeros(len(queries), np.int64)
    search_tree(*tree, np.asarray(points, float), np.asarray(queries, float), eps, rows, looked)
    return rows, looked
