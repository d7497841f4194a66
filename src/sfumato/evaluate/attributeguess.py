# SPDX-License-Identifier: Apache-2.0
"""Ways to guess what kind of person a template stands for: neighbours, a trained classifier, decoys taken away.

The attacker knows templates, the recipe, faces of other people with their labels, and (to take decoys away) the public
decoy database. Knows subspaces and class numbers; not which faces are attacked.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.types.concealed import Subspaces

Floats = NDArray[np.float32]
Classes = NDArray[np.int64]

NEIGHBOURS = 10
"""K of section 4.2.2 of the paper."""

INSIDE = 3e-3
"""A decoy this near to a subspace lies in it: rounding is a thousandth of that, chance several hundred times."""

AT_ONCE = 256

RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
"""Penalties that are tried, as shares of the mean variance of a feature."""


def squared_distances_to(points: Floats, subspaces: Subspaces) -> Floats:
    """Return squared distances (N, P) of subspaces to points (P, n) in float32 (Eq. 1), not below 0."""
    length = np.einsum("pi,pi->p", points, points)
    squared: Floats = length[None] - 2 * subspaces.origin @ points.T
    squared += np.einsum("ni,ni->n", subspaces.origin, subspaces.origin)[:, None]
    for k in range(subspaces.dim):
        squared -= (subspaces.basis[:, k] @ points.T) ** 2
    return np.maximum(squared, 0, out=squared)


def neighbour_guesses(
    subspaces: Subspaces, points: Floats, labels: Classes, *, neighbours: int = NEIGHBOURS
) -> Classes:
    """Return the commonest label (N,) among the clear faces nearest to each subspace; of a tie, that of the nearest.

    Raises InputError if there are fewer faces than neighbours.
    """
    if len(points) < neighbours:
        raise InputError(f"{neighbours} neighbours wanted, but there are only {len(points)} faces to compare with")
    count = int(labels.max(initial=0)) + 1
    found = np.empty(len(subspaces), np.int64)
    for start in range(0, len(subspaces), AT_ONCE):
        block = slice(start, start + AT_ONCE)
        squared = squared_distances_to(points, subspaces[block])
        near = np.argpartition(squared, neighbours - 1, axis=1)[:, :neighbours]
        ranked = np.take_along_axis(near, np.argsort(np.take_along_axis(squared, near, 1), axis=1), 1)
        votes = np.zeros((len(ranked), count))
        for rank in range(neighbours):  # a vote less one rank's worth of a thousandth: the nearer settles ties
            votes[np.arange(len(ranked)), labels[ranked[:, rank]]] += 1 - 1e-3 * rank / neighbours
        found[block] = votes.argmax(axis=1)
    return found


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LinearGuess:
    """A linear classifier of features: ``weights`` (d + 1, C), the last row a constant."""

    weights: NDArray[np.float64]

    def guess(self, features: NDArray[Any]) -> Classes:
        """Return the class (N,) of each row of features (N, d)."""
        told: Classes = (features @ self.weights[:-1] + self.weights[-1]).argmax(axis=1)
        return told


def train_guess(features: NDArray[Any], labels: Classes, held: float = 0.2) -> LinearGuess:
    """Fit one-of-C targets by least squares, with the penalty that is best on the last ``held`` of the rows.

    Raises InputError without rows.
    """
    if len(features) < 2 or len(features) != len(labels):
        raise InputError(f"{len(features)} rows with {len(labels)} labels: nothing to learn from")
    edge = max(1, round(len(features) * (1 - held)))
    scored = []
    for ridge in RIDGES:
        model = _fit(features[:edge], labels[:edge], ridge, int(labels.max()) + 1)
        right = (model.guess(features[edge:]) == labels[edge:]).mean() if edge < len(features) else 0.0
        scored.append((float(right), ridge))
    return _fit(features, labels, max(scored)[1], int(labels.max()) + 1)


def _fit(features: NDArray[Any], labels: Classes, ridge: float, count: int) -> LinearGuess:
    rows = features.astype(np.float64)
    centre, targets = rows.mean(axis=0), np.eye(count)[labels]
    share = targets.mean(axis=0)
    scatter = (rows - centre).T @ (rows - centre)
    scatter[np.diag_indices_from(scatter)] += ridge * np.trace(scatter) / len(scatter) + 1e-12
    weights = np.linalg.solve(scatter, (rows - centre).T @ (targets - share))
    return LinearGuess(np.vstack([weights, share - centre @ weights]))


def template_features(subspaces: Subspaces) -> Floats:
    """Return what a template shows at once (N, n): its origin, a function of the subspace alone.

    Faces and decoys are nearly orthogonal to each other, so that the point nearest to 0 is nearly their mean.
    """
    return subspaces.origin


def stripped_features(subspaces: Subspaces, decoys: Decoys | None, count: int) -> Floats:
    """Return, for each template, its unit point that is orthogonal to the decoys in it, and their labels (N, n + L).

    Decoys lie in the subspace exactly (section 3.2 of the paper): whoever has the database sees them. Other people's
    embeddings are nearly orthogonal to the face: the point of the subspace with no part along any of them is near it.
    Where decoys have labels the last L columns count those found, which tells much if decoys were chosen by label.
    """
    if decoys is None or count == 0:
        return _unit(subspaces.origin)
    names = np.unique(decoys.labels) if decoys.labels is not None else np.zeros(0)
    features = np.zeros((len(subspaces), subspaces.ambient_dim + len(names)), np.float32)
    for start in range(0, len(subspaces), AT_ONCE):
        some = subspaces[start : start + AT_ONCE]
        entries, inside = found_decoys(some, decoys, count)
        points = orthogonal_points(some, decoys.descriptors[entries] * inside[:, :, None])
        features[start : start + AT_ONCE, : subspaces.ambient_dim] = points
        if decoys.labels is not None:
            told = (decoys.labels[entries][:, :, None] == names) & inside[:, :, None]
            features[start : start + AT_ONCE, subspaces.ambient_dim :] = told.sum(axis=1)
    return features


def found_decoys(subspaces: Subspaces, decoys: Decoys, count: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the ``count`` decoys (N, count) nearest to each subspace, and which of them lie in it."""
    squared = squared_distances_to(decoys.descriptors, subspaces)
    entries = np.argpartition(squared, count - 1, axis=1)[:, :count]
    return entries, exact_distances(decoys.descriptors[entries], subspaces) < INSIDE


def exact_distances(points: Floats, subspaces: Subspaces) -> NDArray[np.float64]:
    """Return the distances (N, k) of points (N, k, n) to their subspaces in float64: products lose the last digits."""
    offset = points.astype(np.float64) - subspaces.origin[:, None]
    basis = subspaces.basis.astype(np.float64)
    offset -= np.matmul(np.matmul(offset, basis.transpose(0, 2, 1)), basis)
    return np.asarray(np.linalg.norm(offset, axis=2))


def orthogonal_points(subspaces: Subspaces, others: Floats) -> Floats:
    """Return the point (N, n) of each subspace least along ``others`` (N, k, n), zeros left aside, at unit norm."""
    along = np.einsum("nki,nji->nkj", others, subspaces.basis)
    wanted = -np.einsum("nki,ni->nk", others, subspaces.origin)
    inverse = np.linalg.pinv(along.astype(np.float64), rcond=1e-3)
    coefficients = np.einsum("njk,nk->nj", inverse, wanted)
    return _unit(subspaces.origin + np.einsum("nj,nji->ni", coefficients, subspaces.basis))


def confusion(guessed: Classes, truth: Classes, count: int) -> NDArray[np.int64]:
    """Return how often (C, C) each guess, a row, met each truth, a column."""
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (guessed, truth), 1)
    return table


def accuracy(table: NDArray[np.int64]) -> float:
    """Return the share of guesses that are right."""
    return float(np.trace(table) / max(1, table.sum()))


def relabelled_accuracy(table: NDArray[np.int64]) -> float:
    """Return the share that is right when every guess is read as the truth it meets most often.

    A classifier that is nearly always wrong tells as much as one that is nearly always right. The relabelling is the
    best on the faces attacked themselves, hence never below the majority, and a little more than an attacker has.

    >>> relabelled_accuracy(np.array([[1, 9], [8, 2]]))
    0.85
    """
    return float(table.max(axis=1).sum() / max(1, table.sum()))


def majority(table: NDArray[np.int64]) -> float:
    """Return what someone gets right who always names the commonest class."""
    return float(table.sum(axis=0).max() / max(1, table.sum()))


def _unit(rows: NDArray[Any]) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    result: Floats = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return result
