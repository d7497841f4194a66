# SPDX-License-Identifier: Apache-2.0
"""Tasks of HPatches: verification, matching and retrieval of patches.

Every task gets a function that returns the distances of pairs of rows, so that clear, lifted and encoded descriptors
are treated alike. No matrix of all distances is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.subspace.fast import exact_distances, prepare
from sfumato.training.patch_sets import area_under_curve, average_precision, fpr95
from sfumato.types.concealed import Points, Subspaces

Rows = NDArray[np.int64]
Distance = Callable[[Rows, Rows], NDArray[np.float64]]
"""Distances (M,) of row i (M,) of the first side to row j (M,) of the second."""

PAIRS_AT_ONCE = 200_000


def distance_between(first: Subspaces | ArrayLike, second: Subspaces | ArrayLike) -> Distance:
    """Return the distance of rows of two sides, each points (N, n) or Subspaces: Euclidean, exact in float64.

    Points with points, points with subspaces (Eq. 1 of the affine subspace paper) or subspaces with subspaces (Eq. 2).
    """
    a, b = (prepare(side.origin, side.basis) for side in (_as_subspaces(first), _as_subspaces(second)))
    if a.origin.shape[1] != b.origin.shape[1]:
        raise InputError(f"the two sides have {a.origin.shape[1]} and {b.origin.shape[1]} dimensions")
    exact = exact_distances(a, b)

    def distances(i: Rows, j: Rows) -> NDArray[np.float64]:
        result = np.empty(len(i))
        for start in range(0, len(i), PAIRS_AT_ONCE):
            block = slice(start, start + PAIRS_AT_ONCE)
            result[block] = np.sqrt(exact(np.asarray(i[block], np.int64), np.asarray(j[block], np.int64)))
        return result

    return distances


def _as_subspaces(side: Subspaces | ArrayLike) -> Subspaces:
    if isinstance(side, Subspaces):
        return side
    points = np.asarray(side, np.float32)
    if points.ndim != 2:
        raise InputError(f"expected Subspaces or points (N, n), got shape {points.shape}")
    return Points(points)


SKEW = 5
"""False pairs for one true pair in the skewed list (HPatches: 0.2 million to a million)."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Labels:
    """Labels of P patches: ``points``, ``groups`` and ``views`` (P,), as in PatchSet."""

    points: NDArray[np.int64]
    groups: NDArray[np.int32]
    views: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchPairRows:
    """N true pairs and as many false ones of either kind: rows (N, 2) of ``true``, ``same_group``, ``other_group``."""

    true: Rows
    same_group: Rows
    other_group: Rows


def draw_pairs(labels: Labels, count: int, rng: np.random.Generator) -> PatchPairRows:
    """Draw true pairs, two views of a point, and false pairs with the same first patch: of its group, of other groups.

    Views are drawn as in HPatches: two different ones; the false second patch is of the second view where its group is
    the same. With one group alone there is no pair of other groups; nothing to draw from gives none at all.
    """
    order, starts, sizes = _by_key(labels.points)
    several = np.flatnonzero(sizes > 1)
    if not len(several) or not count:
        empty = np.zeros((0, 2), np.int64)
        return PatchPairRows(empty, empty, empty)
    point = rng.choice(several, count)
    at0 = rng.integers(sizes[point])
    at1 = (at0 + rng.integers(1, sizes[point])) % sizes[point]
    first, second = order[starts[point] + at0], order[starts[point] + at1]
    true = np.stack([first, second], axis=1)
    pictures = _numbered(labels.groups, labels.views)
    inside = _draw_other(labels, pictures, second, rng)
    beside = rng.integers(len(labels), size=count)
    for _ in range(100):
        clash = labels.groups[beside] == labels.groups[first]
        if not clash.any():
            break
        beside[clash] = rng.integers(len(labels), size=int(clash.sum()))
    fits = labels.groups[beside] != labels.groups[first]
    return PatchPairRows(
        true,
        np.stack([first, inside], axis=1)[inside >= 0],
        np.stack([first, beside], axis=1)[fits],
    )


def pair_distances(distance: Distance, pairs: PatchPairRows) -> dict[str, NDArray[np.float64]]:
    """Return the distances (N,) of true pairs and of the false ones of either kind, by name."""
    rows = {"true": pairs.true, "same group": pairs.same_group, "other group": pairs.other_group}
    return {name: distance(pair[:, 0], pair[:, 1]) for name, pair in rows.items() if len(pair)}


def verification(distances: Mapping[str, NDArray[np.floating[Any]]]) -> dict[str, float]:
    """Return FPR@95, area and average precision of telling true from false pairs, by where the false come from.

    ``distances`` are as ``pair_distances`` gives them, the true ones called "true". ``balanced`` lists have as
    many false as true pairs; those of ``verification``, HPatches' figure, five times as many.
    """
    true, false = distances.get("true"), {name: values for name, values in distances.items() if name != "true"}
    if true is None or not false:
        return {}
    figures = {}
    for name, values in false.items():
        figures[f"verification, {name}"] = average_precision(*_listed(true[: max(1, len(values) // SKEW)], values))
        figures[f"balanced, {name}"] = average_precision(*_listed(true, values))
        figures[f"area, {name}"] = area_under_curve(*_listed(true, values))
    figures["verification"] = float(np.mean([figures[f"verification, {name}"] for name in false]))
    figures["fpr95"] = fpr95(*_listed(true, np.concatenate(list(false.values()))))
    return figures


def matching(distance: Distance, labels: Labels) -> NDArray[np.float64]:
    """Return the average precision of matching the reference picture of a group with each other picture of it.

    Each reference patch (view 0) is matched with its nearest; matches are ranked by distance, and all reference patches
    that the other picture also shows are to be found. One figure for each pair of pictures, (K,).
    """
    figures = []
    for group in np.unique(labels.groups):
        rows = np.flatnonzero(labels.groups == group)
        reference = rows[labels.views[rows] == 0]
        for view in np.unique(labels.views[rows]):
            target = rows[labels.views[rows] == view]
            shown = reference[np.isin(labels.points[reference], labels.points[target])]
            if view == 0 or not len(shown):
                continue
            nearest, found = _nearest(distance, shown, target)
            figures.append(average_precision(found, labels.points[shown] == labels.points[nearest], len(shown)))
    return np.array(figures, np.float64)


def retrieval(
    distance: Distance, labels: Labels, queries: int, distractors: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the average precision of each query, a reference patch: its other views among reference patches of others.

    Both are drawn from ``rng``; distractors of the query's own group are left out, as in HPatches.
    """
    reference = np.flatnonzero(labels.views == 0)
    order, starts, sizes = _by_key(labels.points)
    names = labels.points[order[starts]]
    asked = reference[sizes[np.searchsorted(names, labels.points[reference])] > 1]
    asked = rng.permutation(asked)[:queries]
    others = rng.permutation(reference)[:distractors]
    figures = []
    for query in asked:
        place = int(np.searchsorted(names, labels.points[query]))
        own = order[starts[place] : starts[place] + sizes[place]]
        true = own[own != query]
        false = others[labels.groups[others] != labels.groups[query]]
        listed = np.concatenate([true, false])
        found = distance(np.full(len(listed), query), listed)
        figures.append(average_precision(found, np.arange(len(listed)) < len(true)))
    return np.array(figures, np.float64)


def _nearest(distance: Distance, queries: Rows, targets: Rows) -> tuple[Rows, NDArray[np.float64]]:
    """Return the nearest target of each query and its distance, some queries at a time."""
    nearest, found = np.empty(len(queries), np.int64), np.empty(len(queries))
    step = max(1, PAIRS_AT_ONCE // max(1, len(targets)))
    for start in range(0, len(queries), step):
        some = queries[start : start + step]
        block = distance(np.repeat(some, len(targets)), np.tile(targets, len(some))).reshape(len(some), -1)
        best = block.argmin(axis=1)
        nearest[start : start + step] = targets[best]
        found[start : start + step] = block[np.arange(len(some)), best]
    return nearest, found


def _draw_other(labels: Labels, pictures: Rows, second: Rows, rng: np.random.Generator) -> Rows:
    """Return for each patch another one of the same picture that shows another point; -1 where there is none."""
    order, starts, sizes = _by_key(pictures)
    place = np.searchsorted(pictures[order[starts]], pictures[second])
    drawn = np.full(len(second), -1, np.int64)
    todo = np.arange(len(second))
    for _ in range(100):
        tried = order[starts[place[todo]] + rng.integers(sizes[place[todo]])]
        good = labels.points[tried] != labels.points[second[todo]]
        drawn[todo[good]] = tried[good]
        todo = todo[~good]
        if not len(todo):
            break
    return drawn


def _by_key(keys: NDArray[np.int64]) -> tuple[Rows, Rows, Rows]:
    """Return an order of rows by key, where each key starts in it, and how many rows it has."""
    order = np.argsort(keys, kind="stable")
    _, starts, sizes = np.unique(keys[order], return_index=True, return_counts=True)
    return order, starts, sizes


def _numbered(groups: NDArray[np.int32], views: NDArray[np.int32]) -> Rows:
    """Return one number for each picture: a group and a view."""
    numbers: Rows = groups.astype(np.int64) * (int(views.max(initial=0)) + 1) + views
    return numbers


def _listed(true: NDArray[Any], false: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    return np.concatenate([true, false]), np.arange(len(true) + len(false)) < len(true)
