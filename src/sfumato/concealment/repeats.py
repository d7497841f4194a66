# SPDX-License-Identifier: Apache-2.0
"""Repeats: features of one photo that look alike, as windows, bricks and letters do.

Codes tell near descriptors from far ones, so repeats show in them, and chaff of noise has none: whoever sees two codes
that are alike sees two real features. So features with many repeats are left out: what repeats says least about a place
and most about a photo, down to the letters of a page. For the groups of few that stay there are echoes, as many as
chaff: groups of chaff with the same distances between their descriptors and the same places relative to each other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.randomness import NoiseStream
from sfumato.concealment.seal import BANDWIDTHS, kind_of
from sfumato.types.clear import Features

REACH = 1.7
"""In bandwidths: nearer descriptors look alike. 0.595 of their bits agree, more than of 10,000 unrelated ones."""
APART = 3.0
"""Pixels; features nearer than that are views of one spot, which noise has as photos do."""
MOST_REPEATS = 16
"""A feature that looks like more others is left out, so that groups of those that stay are small."""
SLACK, MANY = 1e-3, 200
"""Pairs farther than REACH by SLACK, in squared distance, and rows near to MANY others, are not measured again."""
ROWS_AT_ONCE, PAIRS_AT_ONCE = 512, 100_000
GRID, TRIES = 12, 6

Floats = NDArray[np.float32]


def find_repeats(features: Features) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return how many others each row looks like, those at its own spot left out; and the pairs (P, 2) of rows, in both
    orders, that look like ``MOST_REPEATS`` others at most.

    Near pairs are measured again one by one: products of matrices differ from machine to machine, chaff must not.
    """
    descriptors, places = features.descriptors, features.keypoints[:, :2]
    reach = REACH * BANDWIDTHS.get(kind_of(features.extractor.name), BANDWIDTHS["sift"])
    squared = np.einsum("ni,ni->n", descriptors, descriptors)
    counts, pairs = np.zeros(len(features), np.intp), [np.zeros((0, 2), np.intp)]
    for start in range(0, len(features), ROWS_AT_ONCE):
        stop = start + ROWS_AT_ONCE
        products = descriptors[start:stop] @ descriptors.T
        near = squared[start:stop, None] + squared - 2 * products < reach**2 + SLACK
        many = near.sum(axis=1) > MANY
        counts[start:stop][many] = MANY
        rows, others = np.nonzero(near & ~many[:, None])
        for part in np.array_split(np.column_stack([start + rows, others]), 1 + len(rows) // PAIRS_AT_ONCE):
            apart = np.square(places[part[:, 0]] - places[part[:, 1]]).sum(axis=1) >= APART**2
            is_near = np.square(descriptors[part[:, 0]] - descriptors[part[:, 1]]).sum(axis=1) < reach**2
            alike = part[apart & is_near]
            counts += np.bincount(alike[:, 0], minlength=len(counts))
            pairs.append(alike[counts[alike[:, 0]] <= MOST_REPEATS])
    few = np.concatenate(pairs)
    return counts, few[(counts[few] <= MOST_REPEATS).all(axis=1)]


def drop_repeats(features: Features) -> tuple[Features, NDArray[np.intp]]:
    """Return features without those that look like too many others, and the pairs that are left."""
    counts, pairs = find_repeats(features)
    stays = counts <= MOST_REPEATS
    row = np.cumsum(stays) - 1
    return features.take(stays), row[pairs]


def group_rows(keypoints: Floats, pairs: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return groups of rows that repeats connect, with all rows at their spots, the largest first."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(keypoints)
    _, first, spots = np.unique(keypoints[:, :2], axis=0, return_index=True, return_inverse=True)
    links = np.concatenate([pairs, np.column_stack([np.arange(count), first[spots.ravel()]])])
    graph = coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), (count, count))
    _, labels = connected_components(graph, directed=False)
    rows = np.flatnonzero(np.isin(labels, labels[pairs[:, 0]]))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    groups = np.split(rows, np.flatnonzero(np.diff(labels[rows])) + 1)
    return sorted((group for group in groups if len(group)), key=len, reverse=True)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Echoes:
    """Groups of chaff that repeat each other as groups of a photo do: keypoints (E, 4) and descriptors (E, n)."""

    keypoints: Floats
    descriptors: Floats


def echo_groups(
    features: Features, pairs: NDArray[np.intp], noise: Features, times: int, stream: NoiseStream
) -> Echoes:
    """Return echoes of each group that pairs of a photo connect, ``times`` each, around descriptors of ``noise``.

    The differences between the descriptors of a group are put in another order, which keeps every distance. Places are
    mirrored at random and moved elsewhere.
    """
    keypoints, descriptors = features.keypoints, features.descriptors
    groups = group_rows(keypoints, pairs)
    points, values = [keypoints[:0]], [descriptors[:0]]
    low, high = noise.keypoints[:, :2].min(axis=0), noise.keypoints[:, :2].max(axis=0)
    bases = np.argsort(stream.uniform(len(noise)))

    def cell_of(places: Floats) -> tuple[NDArray[np.intp], ...]:
        return tuple(((places - low) / np.maximum(high - low, 1) * (GRID - 1e-3)).astype(np.intp).T.clip(0, GRID - 1))

    cells = np.zeros((GRID, GRID))
    for group in groups:
        np.add.at(cells, cell_of(keypoints[group, :2]), 1)
    for number, group in enumerate(times * groups):
        base, width = noise.descriptors[bases[number % len(bases)]], descriptors.shape[1]
        values.append(base + (descriptors[group] - descriptors[group[0]])[:, np.argsort(stream.uniform(width))])
        places = keypoints[group, :2] * np.where(stream.uniform(2) < 0.5, -1, 1).astype(np.float32)
        least, most = low - places.min(axis=0), high - places.max(axis=0)
        tries = [np.clip(places + least + (most - least) * stream.uniform(2), low, high) for _ in range(TRIES)]
        moved = keypoints[group].copy()
        moved[:, :2] = min(tries, key=lambda places: cells[cell_of(places)].sum())
        np.add.at(cells, cell_of(moved[:, :2]), 1)
        points.append(moved)
    return Echoes(np.concatenate(points), np.concatenate(values).astype(np.float32))
