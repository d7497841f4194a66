# SPDX-License-Identifier: Apache-2.0
"""Matching of sets of dictionary entries, which the recipe ``subset`` releases as their hulls.

Anyone with the dictionary, which is public, reads a set back from its hull: its entries are at distance 0. Knows
subspaces and the entries of a dictionary as arrays; never the clear types.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.matching.mutual import nearest
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import Subspaces
from sfumato.types.scene import Matches

Floats = NDArray[np.float32]

INSIDE = 3e-3
"""An entry this near to a hull is one of its set: ten times what float16 leaves."""

WAYS = ("distance", "common")
AT_ONCE = 2**22


def read_sets(hulls: Subspaces, dictionary: Floats) -> NDArray[np.int64]:
    """Return the sets (N, m + 1), sorted, whose hulls these subspaces of dimension m are; entries of (k, n).

    Raises InputError where a hull is not that of entries of this dictionary.
    """
    if len(hulls) == 0:
        return np.empty((0, hulls.dim + 1), np.int64)
    distances, rows = nearest(hulls, dictionary, k=hulls.dim + 1)
    wrong = ~(distances <= INSIDE).all(axis=1)
    if wrong.any():
        raise InputError(
            f"{int(wrong.sum())} of {len(hulls)} subspaces are no hulls of entries of this dictionary: give the decoys "
            f"the features were concealed with"
        )
    return np.sort(rows, axis=1)


def match_sets(sets0: NDArray[np.int64], sets1: NDArray[np.int64], dictionary: Floats, by: str = "distance") -> Matches:
    """Match sets (N, w) of entries of a dictionary (k, n), each the nearest of the other; ties are no matches.

    By ``distance``: the least of an entry of one to an entry of the other. By ``common``: the number of entries in
    common, at least one; 1 / number stands for a distance.

    Raises InputError for another way, and for entries that the dictionary does not have.
    """
    if by not in WAYS:
        raise InputError(f"by: expected one of {', '.join(WAYS)}, got {by!r:.80}")
    entries = frozen_array(dictionary, "dictionary", (None, None))
    for sets in (sets0, sets1):
        if sets.ndim != 2 or (sets.size and not 0 <= sets.min() <= sets.max() < len(entries)):
            raise InputError(f"sets: expected rows of entries below {len(entries)}")
    if not len(sets0) or not len(sets1):
        return Matches(np.empty((0, 2), np.int32), np.empty(0, np.float32))
    costs = _common(sets0, sets1) if by == "common" else _least_distances(sets0, sets1, entries)
    return _mutual(costs)


def _least_distances(sets0: NDArray[np.int64], sets1: NDArray[np.int64], entries: Floats) -> Floats:
    """Return the least squared distances (N0, N1) between entries of two sets."""
    (count0, size0), (count1, size1) = sets0.shape, sets1.shape
    right = entries[sets1.ravel()]
    squares = np.einsum("ni,ni->n", entries, entries)
    result = np.empty((count0, count1), np.float32)
    step = max(1, AT_ONCE // (size0 * len(right)))
    for start in range(0, count0, step):
        block = sets0[start : start + step]
        products = entries[block.ravel()] @ right.T
        products *= -2
        products += squares[sets1.ravel()]
        products += squares[block.ravel()][:, None]
        result[start : start + step] = products.reshape(len(block), size0, count1, size1).min(axis=(1, 3))
    result[result < 1e-6] = 0  # the same entry, up to rounding
    return result


def _common(sets0: NDArray[np.int64], sets1: NDArray[np.int64]) -> Floats:
    """Return 1 / number (N0, N1) of entries that two sets have in common, squared; infinite without any."""
    shared = np.zeros((len(sets0), len(sets1)), np.float32)
    order = np.argsort(sets1, axis=None, kind="stable")
    ranked, owners = sets1.ravel()[order], order // sets1.shape[1]
    for column in sets0.T:
        first, last = np.searchsorted(ranked, column, "left"), np.searchsorted(ranked, column, "right")
        counts = last - first
        rows = np.repeat(np.arange(len(sets0)), counts)
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        np.add.at(shared, (rows, owners[np.repeat(first, counts) + steps]), 1)
    with np.errstate(divide="ignore"):
        return (1 / np.square(shared)).astype(np.float32)


def _mutual(costs: Floats) -> Matches:
    """Return pairs of which each is the one and only nearest of the other; costs are squared distances (N0, N1)."""
    best0, best1 = costs.min(axis=1), costs.min(axis=0)
    candidates = (costs == best0[:, None]) & (costs == best1[None]) & np.isfinite(costs)
    alone = (costs == best0[:, None]).sum(axis=1)[:, None] == 1
    alone = alone & ((costs == best1[None]).sum(axis=0)[None] == 1)
    rows, columns = np.nonzero(candidates & alone)
    indices = np.stack([rows, columns], axis=1).astype(np.int32)
    return Matches(indices, np.sqrt(costs[rows, columns]))
