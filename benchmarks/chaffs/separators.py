# SPDX-License-Identifier: Apache-2.0
"""Separators that need no network: statistics of rows, and trees whose numbers are higher for rows that are real."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import sfumato
from chaffs.sources import Mixture

Floats = np.ndarray


def area_under_curve(scores: Floats, is_real: Floats) -> float:
    """Return how often a real row has a higher score than one of chaff; ties count half."""
    from scipy.stats import rankdata

    count = int(is_real.sum())
    below = rankdata(scores)[is_real].sum() - count * (count + 1) / 2
    return float(below / (count * (len(scores) - count)))


def statistics_of(mixture: Mixture) -> Floats:
    """Return statistics (N, F) of where each feature lies among the others."""
    from scipy.spatial import cKDTree

    places, size = mixture.places, np.array(mixture.size)
    tree, usual = cKDTree(places), np.sqrt(size.prod() / len(places))
    reach, near = tree.query(places, min(17, len(places)))
    around = places[near[:, 1:9]] - places[:, None]
    squared = (around**2).sum(axis=2)
    spread = np.einsum("nki,nkj->nij", around, around) / np.maximum(squared.sum(axis=1), 1e-9)[:, None, None]
    flat = np.sqrt((spread[:, 0, 0] - spread[:, 1, 1]) ** 2 + 4 * spread[:, 0, 1] ** 2)  # 1: all on one line
    lean = np.linalg.norm(around.mean(axis=1), axis=1) / usual
    turn = (around[:, 0] * around[:, 1]).sum(axis=1) / np.maximum(np.sqrt(squared[:, 0] * squared[:, 1]), 1e-9)
    counts = [tree.query_ball_point(places, share * usual, return_length=True) for share in (0.5, 1, 2, 4, 8)]
    edges = np.minimum(places + 0.5, size - 0.5 - places)
    return np.column_stack([
        reach[:, [1, 2, 3, 4, 6, 8, -1]] / usual, reach[:, 1], reach[:, 2], (reach[:, 1:] < 1e-3).sum(axis=1),
        flat, lean, turn, *counts, edges, edges.min(axis=1), (places + 0.5) % 1, np.full(len(places), usual),
    ])  # fmt: skip


def code_statistics(mixture: Mixture) -> Floats:
    """Return how near the nearest other codes are (N, 3), and how far away the nearest two of them lie."""
    assert mixture.codes is not None
    bits, near = sfumato.nearest(mixture.codes, mixture.codes, min(4, len(mixture.codes)), threads=1)
    itself = near == np.arange(len(near))[:, None]
    itself[~itself.any(axis=1), -1] = True  # so many twins that the row itself is not among them
    bits, near = (table[~itself].reshape(len(near), -1) for table in (bits, near))
    away = np.linalg.norm(mixture.places[near[:, :2]] - mixture.places[:, None], axis=2)
    return np.column_stack([bits, away])


@dataclass
class Trees:
    """Boosted trees: each asks the same few questions of every row, and has a value for each set of answers."""

    count: int = 120
    depth: int = 4
    rate: float = 0.15
    bins: int = 24
    edges: list[Floats] = field(default_factory=list)
    trees: list[tuple[list[tuple[int, int]], Floats]] = field(default_factory=list)

    def learn(self, columns: Floats, is_real: Floats) -> "Trees":
        """Learn to tell real rows from statistics (N, F); both kinds weigh the same."""
        shares = np.linspace(0, 1, self.bins + 1)[1:-1]
        self.edges = [np.unique(np.quantile(column, shares)) for column in columns.T]
        binned, weight = self._bin(columns), np.where(is_real, 0.5 / is_real.mean(), 0.5 / (1 - is_real.mean()))
        answer = np.zeros(len(columns))
        for _ in range(self.count):
            chance = 1 / (1 + np.exp(-answer))
            pull, curve = weight * (is_real - chance), weight * chance * (1 - chance)
            leaf, questions = np.zeros(len(columns), np.intp), list[tuple[int, int]]()
            for _ in range(self.depth):
                questions.append(self._best_question(binned, leaf, pull, curve))
                leaf = 2 * leaf + (binned[:, questions[-1][0]] > questions[-1][1])
            sums = (np.bincount(leaf, part, 2**self.depth) for part in (pull, curve))
            values = self.rate * np.divide(*(part + extra for part, extra in zip(sums, (0, 10.0), strict=True)))
            self.trees.append((questions, values))
            answer += values[leaf]
        return self

    def score(self, columns: Floats) -> Floats:
        """Return the log odds (N,) that rows are real."""
        binned, answer = self._bin(columns), np.zeros(len(columns))
        for questions, values in self.trees:
            leaf = np.zeros(len(columns), np.intp)
            for column, edge in questions:
                leaf = 2 * leaf + (binned[:, column] > edge)
            answer += values[leaf]
        return answer

    def _bin(self, columns: Floats) -> Floats:
        found = [np.searchsorted(edges, column) for edges, column in zip(self.edges, columns.T, strict=True)]
        return np.stack(found, axis=1)

    def _best_question(self, binned: Floats, leaf: Floats, pull: Floats, curve: Floats) -> tuple[int, int]:
        """Return the column and the edge that divide all leaves best."""
        leaves, best, question = int(leaf.max()) + 1, -1.0, (0, 0)
        for column in range(binned.shape[1]):
            index = leaf * self.bins + binned[:, column]
            pulls, curves = (
                np.bincount(index, part, leaves * self.bins).reshape(leaves, self.bins).cumsum(axis=1)
                for part in (pull, curve)
            )
            left, right = pulls**2 / (curves + 10), (pulls[:, -1:] - pulls) ** 2 / (curves[:, -1:] - curves + 10)
            gains = (left + right).sum(axis=0)
            if gains.max() > best:
                best, question = float(gains.max()), (column, int(gains.argmax()))
        return question


def learn_trees(mixtures: Sequence[Mixture], columns_of: Callable[[Mixture], Floats], args: Any) -> Trees:
    """Return trees that learned from all rows of mixtures, or from a part that chance chooses."""
    columns = np.concatenate([columns_of(mixture) for mixture in mixtures])
    is_real = np.concatenate([mixture.is_real for mixture in mixtures])
    rows = np.random.default_rng(args.seed).permutation(len(columns))[: args.rows]
    return Trees(count=5 if args.small else 120).learn(columns[rows], is_real[rows])
