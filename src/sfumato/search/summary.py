# SPDX-License-Identifier: Apache-2.0
"""What the file of an index holds, in counts and sizes; never a value of an entry."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.search.archives import FEATURES
from sfumato.search.build import load, load_entries
from sfumato.search.entries import Entries

LEFT_OUT = ("threads", "points")
"""Params that say nothing about the file: the first is the machine's, the second is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSummary:
    """An index in counts: ``entries`` that can be found, ``removed`` that can not; ``dim`` is n.

    ``subspaces`` says how many entries have which dimension m, ``images`` how many belong to which image, where images
    are named; ``first_id`` and ``last_id`` are -1 where there is no entry. ``extractor`` is what the descriptors are
    and ``space`` where they live, as recipes tell it; empty texts where that was not said.
    """

    size_bytes: int
    kind: str
    metric: str
    params: Mapping[str, Any]
    dim: int
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
    chosen, metric, params, entries = load_entries(path)
    names = [field.name for field in fields(params) if field.name not in LEFT_OUT]
    alive, source = entries.alive_ids(), entries.source
    return IndexSummary(
        size_bytes=Path(path).stat().st_size,
        kind=chosen.kind,
        metric=metric,
        params={name: getattr(params, name) for name in names},
        dim=entries.dim,
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
    found = Counter[int]()
    for segment in entries.segments:
        found[segment.dim] += int(np.count_nonzero(entries.alive[segment.start : segment.stop]))
    return {dim: count for dim, count in sorted(found.items()) if count}


def _images(entries: Entries) -> dict[str, int]:
    if not entries.names:
        return {}
    numbers, counts = np.unique(entries.alive_ids() >> FEATURES, return_counts=True)
    known = {int(number): int(count) for number, count in zip(numbers, counts, strict=True)}
    return {name: known[number] for number, name in enumerate(entries.names) if number in known}
