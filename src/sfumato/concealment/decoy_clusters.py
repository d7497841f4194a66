# SPDX-License-Identifier: Apache-2.0
"""Clustering of descriptors to a decoy database: spherical k-means (section 4.1.1 of the paper), by faiss.

Two levels for large databases: the descriptors are first split into cells, then each cell into centroids in proportion
to its descriptors. A flat k-means of 1 M descriptors to 65,536 centroids takes hours of two cores; this
takes about a minute, for a slightly larger quantisation error (benchmarks/decoys.py measures both).
"""

from collections.abc import Iterable, MutableMapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import DEFAULT_PARTS, Decoys, checked_labels, decode_bytes, round_to_bytes
from sfumato.errors import DecoyError
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor, Setting
from sfumato.types.progress import Progress, identity

Floats = NDArray[np.float32]

FLAT_LIMIT = 4096
DEFAULT_SIZE = 65_536
ROWS_AT_ONCE = 2**16


class RowTable(Protocol):
    """Rows (N, n) of float32, in memory or on the disk, read by a slice, a mask or a list of indices."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and of columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Floats: ...


def build_decoys(
    descriptors: Features | ArrayLike | Iterable[Features],
    size: int = DEFAULT_SIZE,
    *,
    parts: int = DEFAULT_PARTS,
    labels: ArrayLike | None = None,
    extractor: Extractor | None = None,
    iterations: int = 10,
    seed: int = 0,
    progress: Progress = identity,
) -> Decoys:
    """Cluster descriptors (N, n), or those of many images, to a database of ``size`` decoys in ``parts`` parts.

    Duplicates are removed, before and after. With ``labels`` (N,) the clusters of each label are built apart, in
    proportion. Unit-norm descriptors are clustered on the sphere; SIFT kinds are rounded to bytes, as SIFT is. The
    seed makes the build repeatable; a decoy database is public and holds no secret.

    Raises DecoyError if there are fewer distinct descriptors than ``size``.
    """
    check_settings(size, parts, iterations, seed)
    rows, kind = _gather(descriptors)
    tags = np.zeros(len(rows), np.int64) if labels is None else checked_labels(labels, len(rows))
    rows, tags = _distinct(rows, tags)
    return cluster_rows(
        rows,
        size,
        parts=parts,
        tags=None if labels is None else tags,
        extractor=extractor or kind,
        iterations=iterations,
        seed=seed,
        cells={},
        progress=progress,
    )


def cluster_rows(
    rows: RowTable,
    size: int,
    *,
    parts: int,
    tags: NDArray[Any] | None,
    extractor: Extractor,
    iterations: int,
    seed: int,
    cells: MutableMapping[int, Floats],
    progress: Progress,
) -> Decoys:
    """Cluster distinct rows (N, n), which may be on the disk, with their labels ``tags`` (N,).

    ``cells`` holds the centroids of cells that are done already, and takes those of the others.

    Raises DecoyError if there are fewer rows than ``size``.
    """
    if len(rows) < size:
        raise DecoyError(f"{size} decoys need at least as many distinct descriptors, there are {len(rows)}")
    spherical = all(np.abs(np.linalg.norm(rows[block], axis=1) - 1).max() < 1e-3 for block in _blocks(len(rows)))
    generator = np.random.default_rng(seed)
    owner_of = np.zeros(len(rows), np.int64) if tags is None else tags
    centroids, owners = _cluster_by_label(rows, owner_of, size, spherical, iterations, generator, cells, progress)
    if extractor.name in ("sift", "rootsift") and spherical:
        for _ in range(4):  # rounding once more changes a row in 100,000; then none
            centroids = decode_bytes(round_to_bytes(centroids))
    centroids, owners = _distinct(centroids, owners)
    made: dict[str, Setting] = {
        "descriptors": len(rows), "wanted": size, "iterations": iterations, "seed": seed, "spherical": spherical
    }  # fmt: skip
    permutation = generator.permutation(len(centroids)).astype(np.int32)
    return Decoys(centroids, extractor, permutation, parts, None if tags is None else owners, made)


def draw_descriptors(
    descriptors: Features | ArrayLike | Iterable[Features],
    size: int = DEFAULT_SIZE,
    *,
    parts: int = DEFAULT_PARTS,
    extractor: Extractor | None = None,
    seed: int = 0,
) -> Decoys:
    """Draw ``size`` distinct descriptors at random, as they are: a public set for attacks, in the form of a database.

    Centroids are smoother than descriptors; a search for a clear descriptor needs real ones.

    Raises DecoyError if there are fewer distinct descriptors than ``size``.
    """
    check_settings(size, parts, 1, seed)
    rows, kind = _gather(descriptors)
    rows, _ = _distinct(rows, np.zeros(len(rows), np.int64))
    return draw_rows(rows, size, parts=parts, extractor=extractor or kind, seed=seed)


def draw_rows(rows: RowTable, size: int, *, parts: int, extractor: Extractor, seed: int) -> Decoys:
    """Draw ``size`` of distinct rows (N, n), which may be on the disk.

    Raises DecoyError if there are fewer.
    """
    if len(rows) < size:
        raise DecoyError(f"size: {size} descriptors are needed, there are only {len(rows)} distinct ones")
    generator = np.random.default_rng(seed)
    drawn = rows[np.sort(generator.choice(len(rows), size, replace=False))]
    permutation = generator.permutation(size).astype(np.int32)
    made: dict[str, Setting] = {"descriptors": len(rows), "wanted": size, "seed": seed, "drawn": True}
    return Decoys(drawn, extractor, permutation, parts, None, made)


def check_settings(size: int, parts: int, iterations: int, seed: int) -> None:
    """Raise DecoyError for settings of a build that make no sense."""
    if size < 1 or parts < 1 or iterations < 1 or seed < 0:
        raise DecoyError(
            f"size, parts and iterations must be positive, seed not negative: got {size}, {parts}, {iterations}, {seed}"
        )


def _gather(source: Features | ArrayLike | Iterable[Features]) -> tuple[Floats, Extractor]:
    """Return all descriptors (N, n) and their one extractor."""
    if isinstance(source, Features):
        return source.descriptors, source.extractor
    if isinstance(source, np.ndarray) or not isinstance(source, Iterable):
        return frozen_array(source, "descriptors", (None, None)), Extractor()
    sets: list[Any] = list(source)
    if not sets:
        raise DecoyError("there are no descriptors to build decoys from")
    if not all(isinstance(features, Features) for features in sets):
        return frozen_array(sets, "descriptors", (None, None)), Extractor()
    kinds = {(features.extractor.name, features.descriptors.shape[1]) for features in sets}
    if len(kinds) > 1:
        raise DecoyError(f"descriptors of different kinds cannot share a database: {sorted(kinds)}")
    return np.concatenate([features.descriptors for features in sets]), sets[0].extractor


def _distinct(rows: Floats, tags: NDArray[Any]) -> tuple[Floats, NDArray[Any]]:
    """Drop rows that repeat an earlier one; the order of the others stays."""
    as_one = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 4)))[:, 0]
    first = np.sort(np.unique(as_one, return_index=True)[1])
    return rows[first], tags[first]


def _cluster_by_label(
    rows: RowTable,
    tags: NDArray[Any],
    size: int,
    spherical: bool,
    iterations: int,
    generator: np.random.Generator,
    finished: MutableMapping[int, Floats],
    progress: Progress,
) -> tuple[Floats, NDArray[Any]]:
    """Split every label into cells and every cell into centroids; return the centroids and their labels."""
    jobs: list[tuple[NDArray[np.intp], int, Any]] = []
    names, of_label = np.unique(tags, return_inverse=True)
    for number, share in enumerate(_shares(np.bincount(of_label), size)):
        if share:
            members = np.flatnonzero(of_label == number)
            jobs += [(cell, count, names[number]) for cell, count in _cells(rows, members, share, spherical, generator)]
    seeds = [_draw_seed(generator) for _ in jobs]
    centroids = []
    for number, (cell, count, _) in enumerate(progress(jobs)):
        if number not in finished:
            finished[number] = _kmeans(rows[cell], count, spherical, iterations, seeds[number])
        centroids.append(finished[number])
    owners = np.concatenate([np.full(count, name) for _, count, name in jobs])
    return np.concatenate(centroids), owners


def _cells(
    rows: RowTable, members: NDArray[np.intp], size: int, spherical: bool, generator: np.random.Generator
) -> list[tuple[NDArray[np.intp], int]]:
    """Split descriptors, ``members`` of the rows, into about sqrt(size) cells, each with its share of the centroids."""
    if size <= FLAT_LIMIT:
        return [(members, size)]
    import faiss

    count = int(np.sqrt(size))
    sample = members[np.sort(generator.choice(len(members), min(len(members), 100 * count), replace=False))]
    coarse = _kmeans(rows[sample], count, spherical, 10, _draw_seed(generator))
    index = faiss.IndexFlatIP(rows.shape[1]) if spherical else faiss.IndexFlatL2(rows.shape[1])
    index.add(coarse)
    cell_of = np.concatenate([index.search(rows[members[block]], 1)[1][:, 0] for block in _blocks(len(members))])
    shares = _shares(np.bincount(cell_of, minlength=count), size)
    order = np.argsort(cell_of, kind="stable")
    starts = np.searchsorted(cell_of[order], np.arange(count + 1))
    return [(members[order[starts[cell] : starts[cell + 1]]], share) for cell, share in enumerate(shares) if share]


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]


def _draw_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(1, 2**31 - 1))


def _kmeans(rows: Floats, count: int, spherical: bool, iterations: int, seed: int) -> Floats:
    """Return ``count`` centroids of rows; the rows themselves if there are only that many."""
    import faiss

    if len(rows) == count:
        return rows
    model = faiss.Kmeans(
        rows.shape[1], count, niter=iterations, spherical=spherical, seed=seed,
        min_points_per_centroid=1, max_points_per_centroid=len(rows),
    )  # fmt: skip
    model.train(rows)
    return np.asarray(model.centroids, np.float32).reshape(count, -1)


def _shares(counts: NDArray[np.intp], size: int) -> list[int]:
    """Divide ``size`` in proportion to ``counts``, none above its count, by largest remainders."""
    exact = counts * (size / max(1, counts.sum()))
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: size - shares.sum()]] += 1
    return [int(share) for share in shares]
