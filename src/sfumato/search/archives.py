# SPDX-License-Identifier: Apache-2.0
"""Indexes of archives: every entry is a feature of an image, and its id says which.

The id of feature f of image number i is i * 2 ** 32 + f; the names of the images stand in the index. Knows concealed
features only.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.search.entries import Entries
from sfumato.search.factory import build, load, load_entries
from sfumato.search.index import Index, SearchStats
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import Progress

Images = Mapping[str, ConcealedFeatures]

FEATURES = 32
"""Bits of an id that count features; those above count images."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ImageAnswer:
    """The nearest entries of each feature of an image: ``distances`` and ``ids`` (F, k), inf and -1 for none."""

    name: str
    distances: NDArray[np.float32]
    ids: NDArray[np.int64]
    stats: SearchStats

    def __repr__(self) -> str:
        return f"Answer({self.name!r:.80}, {len(self.ids)} features)"


def index_images(
    images: Images, kind: str | None = None, params: Any = None, *, progress: Progress = lambda items: items
) -> Index:
    """Return an index of all features of all images; images without features are passed over.

    ``kind``: by default the fast one, "sketch" for sealed images and "inverted" for others.

    Raises InputError where there is no feature at all, and where images hold different descriptors.
    """
    names, parts = _read(images, progress)
    if not parts:
        raise InputError("images: there is no feature to index")
    index = build(parts, kind, "distance", params, np.concatenate(_ids(parts, 0)))
    index.entries.names = names
    return index


def add_images(index: Index, images: Images, *, progress: Progress = lambda items: items) -> int:
    """Add the features of other images and return how many; InputError for a name that is there already."""
    known = set(_present(index)) & set(images)
    if known:
        raise InputError(
            f"{sorted(known)[0]!r:.200} is in the index already, {len(known)} names are; remove them first"
        )
    names, parts = _read(images, progress)
    if not parts:
        return 0
    added = index.add(parts, np.concatenate(_ids(parts, len(index.entries.names))))
    index.entries.names = [*index.entries.names, *names]
    return len(added)


def remove_images(index: Index, names: Sequence[str]) -> int:
    """Take out all features of some images and return how many; InputError for a name that is not there."""
    present = _present(index)
    for name in names:
        if name not in present:
            raise InputError(f"{name!r:.200} is not in the index{suggest(name, present)}")
    numbers = np.array([present[name] for name in set(names)], np.int64)
    ids = np.concatenate([np.zeros(0, np.int64), *(segment.ids for segment in index.entries.segments)])
    return index.remove(ids[np.isin(ids >> FEATURES, numbers)])


def search_images(
    index: Index, images: Images, k: int = 5, effort: float | None = None, *, progress: Progress = lambda items: items
) -> Iterator[ImageAnswer]:
    """Give for each image the nearest entries of its features."""
    for name in progress(images):
        features = images[name]
        if len(features) == 0:
            yield ImageAnswer(name, np.zeros((0, k), np.float32), np.zeros((0, k), np.int64), SearchStats())
        else:
            yield ImageAnswer(name, *index.search_counted(features, k, effort))


def place_of(index: Index, entry: int) -> tuple[str, int]:
    """Return the image and the number of the feature that an id stands for."""
    number = entry >> FEATURES
    names = index.entries.names
    return (names[number] if 0 <= number < len(names) else ""), entry & (2**FEATURES - 1)


def votes(index: Index, answer: ImageAnswer) -> list[tuple[str, int]]:
    """Return images with how many features of a query have their nearest entry there, most first."""
    nearest = answer.ids[:, 0]
    numbers, counts = np.unique(nearest[nearest >= 0] >> FEATURES, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(place_of(index, int(numbers[i]) << FEATURES)[0], int(counts[i])) for i in order]


def _read(images: Images, progress: Progress) -> tuple[list[str], list[ConcealedFeatures]]:
    """Return names and features of the images that have any."""
    features_of = [(name, features) for name in progress(images) for features in [images[name]] if len(features)]
    return [name for name, _ in features_of], [features for _, features in features_of]


def _ids(parts: list[ConcealedFeatures], first: int) -> list[NDArray[np.int64]]:
    return [(number << FEATURES) + np.arange(len(part)) for number, part in enumerate(parts, first)]


def _present(index: Index) -> dict[str, int]:
    """Return the images that have an entry left, by name, with their numbers."""
    entries = index.entries
    parts = (segment.ids[entries.alive[segment.start : segment.stop]] for segment in entries.segments)
    numbers = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]) >> FEATURES)
    return {entries.names[number]: int(number) for number in numbers if number < len(entries.names)}


# --- the summary of an index: counts and sizes, never a value of an entry


LEFT_OUT = ("threads", "points")
"""Params that say nothing about the file: the first is the machine's, the second is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSummary:
    """An index in counts: ``entries`` that can be found, ``removed`` that cannot; ``dim`` is n.

    ``subspaces`` says how many entries have which dimension m, ``images`` how many belong to which image, where images
    are named; ``first_id`` and ``last_id`` are -1 where there is no entry. Where ``is_bits``, entries are codes of
    ``dim`` bits, and there are no subspaces. ``extractor`` is what the descriptors are
    and ``space`` where they live, as recipes tell it; empty texts where that was not said.
    """

    size_bytes: int
    kind: str
    metric: str
    params: Mapping[str, Any]
    dim: int
    is_bits: bool
    entries: int
    removed: int
    subspaces: Mapping[int, int]
    images: Mapping[str, int]
    first_id: int
    last_id: int
    extractor: str
    space: str


def summarise(path: str | os.PathLike[str], *, check: bool = False) -> IndexSummary:
    """Return what an index holds. ``check`` reads all of it, as ``sfumato.search.load`` does, and verifies it.

    Raises FileError for a file that is missing, damaged or of another version; without ``check`` not all damage shows.
    """
    if check:
        load(path)
    kind_type, metric, params, entries = load_entries(path)
    names = [field.name for field in fields(params) if field.name not in LEFT_OUT]
    alive, source = entries.alive_ids(), entries.source
    return IndexSummary(
        size_bytes=Path(path).stat().st_size,
        kind=kind_type.kind,
        metric=metric,
        params={name: getattr(params, name) for name in names},
        dim=entries.dim,
        is_bits=entries.is_bits,
        entries=len(entries),
        removed=entries.total - len(entries),
        subspaces=_dimensions(entries),
        images=_images(entries),
        first_id=int(alive.min()) if alive.size else -1,
        last_id=int(alive.max()) if alive.size else -1,
        extractor="" if source is None else source.extractor.name,
        space="" if source is None else source.space,
    )


def _dimensions(entries: Entries) -> dict[int, int]:
    counts = Counter[int]()
    for segment in [] if entries.is_bits else entries.segments:
        counts[segment.dim] += int(np.count_nonzero(entries.alive[segment.start : segment.stop]))
    return {dim: count for dim, count in sorted(counts.items()) if count}


def _images(entries: Entries) -> dict[str, int]:
    if not entries.names:
        return {}
    numbers, counts = np.unique(entries.alive_ids() >> FEATURES, return_counts=True)
    known = {int(number): int(count) for number, count in zip(numbers, counts, strict=True)}
    return {name: known[number] for number, name in enumerate(entries.names) if number in known}
