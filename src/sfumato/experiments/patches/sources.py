# SPDX-License-Identifier: Apache-2.0
"""Sources of labelled patches: UBC's PhotoTour, HPatches, or photos from which patches are generated.

The files in a folder decide its kind. A source has samples, one per level or one per subset of UBC; patches are read
and described one sample at a time. Descriptors here are clear and never written.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import Sample, digest_data, short_digest
from sfumato.errors import InputError
from sfumato.experiments.patches.protocols import Labels
from sfumato.features.cut_patches import describe_cut_patches
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.training.pairs import patches_of_photos
from sfumato.training.patch_sets import (
    INFO,
    LETTERS,
    LEVELS,
    PatchPairs,
    PatchSet,
    is_ubc_folder,
    list_hpatches,
    number_apart,
    read_hpatches,
    read_ubc,
    read_ubc_pairs,
)
from sfumato.training.views import ViewParams
from sfumato.types.progress import Progress, identity

GENERATOR = 1
"""Counts the changes of what is generated from photos."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchDescriptors:
    """Clear ``descriptors`` (P, n) of the patches of one sample, with their ``labels``.

    ``pairs`` are those to tell apart, if the data lists them.
    """

    labels: Labels
    descriptors: NDArray[np.float32]
    pairs: PatchPairs | None = None

    def __repr__(self) -> str:
        return f"PatchDescriptors({len(self.labels)} patches, clear)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PatchSource:
    """Labelled patches: ``kind`` is ubc, hpatches or photos; ``read`` gives the patches of a sample, by its key.

    They come in parts, so that not all of them are in memory at once, with the pairs to tell apart, if the data has a
    list of them.
    """

    kind: str
    samples: tuple[Sample, ...]
    read: Callable[[str], tuple[Iterable[PatchSet], PatchPairs | None]]

    def __repr__(self) -> str:
        return f"PatchSource({self.kind}, {', '.join(sample.key for sample in self.samples)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSourceParams:
    """Choice of patches: ``seed`` for generated ones, at most ``limit`` photos or sequences and ``points`` of each.

    None stands for all.
    """

    seed: int = 0
    limit: int | None = None
    points: int | None = None
    views: ViewParams = ViewParams()  # noqa: RUF009 (frozen)


def open_patches(
    place: str | os.PathLike[str], params: PatchSourceParams | None = None, *, progress: Progress = identity
) -> PatchSource:
    """Return the patches in a folder: of UBC (one subset or several), of HPatches, or generated from its photos.

    Raises FileError or ImageError if there are none, or a file cannot be read.
    """
    settings, folder = params or PatchSourceParams(), Path(place)
    subsets = [folder] if is_ubc_folder(folder) else []
    if not subsets and folder.is_dir():
        subsets = sorted(inside for inside in folder.iterdir() if inside.is_dir() and is_ubc_folder(inside))
    if subsets:
        return _open_ubc(subsets)
    sequences = list_hpatches(folder)[: settings.limit]
    return _open_hpatches(folder, sequences, settings) if sequences else _open_photos(folder, settings, progress)


class PatchReader:
    """Descriptors of patches by sample; the last sample alone stays in memory."""

    def __init__(self, source: PatchSource, local: LocalParams) -> None:
        self._source, self._local = source, local
        self._last: tuple[str, PatchDescriptors] | None = None

    def __getitem__(self, key: str) -> PatchDescriptors:
        if self._last is None or self._last[0] != key:
            self._last = None
            parts, pairs = self._source.read(key)
            labels, rows = [], []
            for part in parts:
                labels.append(Labels(part.points, part.groups, part.views))
                rows.append(describe_cut_patches(part.patches, self._local))
            if not sum(map(len, rows)):
                raise InputError(f"{key}: there is no patch in it")
            self._last = key, PatchDescriptors(_joined(labels), np.concatenate(rows), pairs)
        return self._last[1]

    def __repr__(self) -> str:
        return f"PatchReader({self._source!r})"


def _joined(labels: list[Labels]) -> Labels:
    """Return the labels of several parts as one; points and groups of different parts stay different."""
    return Labels(
        number_apart([one.points for one in labels]),
        number_apart([one.groups for one in labels]).astype(np.int32),
        np.concatenate([one.views for one in labels]),
    )


def _open_ubc(subsets: list[Path]) -> PatchSource:
    places = {place.name: place for place in subsets}

    def read(key: str) -> tuple[list[PatchSet], PatchPairs]:
        pairs = read_ubc_pairs(places[key])
        used, rows = np.unique(pairs.rows, return_inverse=True)
        return [read_ubc(places[key], used)], PatchPairs(rows.reshape(-1, 2), pairs.same)

    samples = []
    for name, place in places.items():
        files = [place / INFO, *sorted(place.glob("m50_*.txt")), *sorted(place.glob("patches*.bmp"))]
        samples.append(Sample(name, short_digest([digest_data(path) for path in files])))
    return PatchSource("ubc", tuple(samples), read)


def _open_hpatches(folder: Path, sequences: list[Path], params: PatchSourceParams) -> PatchSource:
    def read(key: str) -> tuple[Iterable[PatchSet], None]:
        return (read_hpatches(folder, key, [place.name], most=params.points) for place in sequences), None

    samples = []
    for level in LEVELS:
        stripes = [path for place in sequences for path in sorted(place.glob(f"{LETTERS[level]}?.png"))]
        files = [*(place / "ref.png" for place in sequences), *stripes]
        samples.append(Sample(level, short_digest([params.points, *(digest_data(path) for path in files)])))
    return PatchSource("hpatches", tuple(samples), read)


def _open_photos(folder: Path, params: PatchSourceParams, progress: Progress) -> PatchSource:
    photos = [path for _, path in list_images(folder)][: params.limit]
    local = LocalParams(max_features=params.points or 600)

    @cache
    def made() -> dict[str, PatchSet]:
        return patches_of_photos(photos, params.seed, params.views, local, progress=progress)

    drawn = [GENERATOR, params.seed, params.points, repr(params.views)]
    digest = short_digest([*drawn, *(digest_data(path) for path in photos)])
    samples = tuple(Sample(level, digest) for level in LEVELS)
    return PatchSource("photos", samples, lambda key: ([made()[key]], None))
