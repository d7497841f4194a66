# SPDX-License-Identifier: Apache-2.0
"""The images of one archive, ready to be matched: what their headers say, and the last few prepared ones.

Reads concealed features and hands out matches. Never imports the clear types.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from sfumato.errors import InputError, suggest
from sfumato.matching.match import MatchParams, match_prepared
from sfumato.matching.pairs import Pair
from sfumato.matching.sides import Side, check_pair, side_of
from sfumato.store import Archive
from sfumato.subspace.fast import prepare
from sfumato.subspace.prepared import Frame, Prepared
from sfumato.types.scene import Matches

CACHE_BYTES = 512 * 2**20
"""How much the prepared images that are kept may take: some twenty of 8,000 features at m = 2."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What matching must know of an image beside its features: ``count`` of them, and what tells it from others."""

    count: int
    dim: int
    ambient_dim: int
    recipe: str
    checksum: str

    def is_void_with(self, other: "ImageFacts") -> bool:
        """Tell whether subspaces of the two meet whatever they stand for, so that distances say nothing."""
        return bool(self.dim and other.dim) and self.dim + other.dim >= self.ambient_dim


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Kept:
    prepared: Prepared
    side: Side  # without rows: where they come from


class ArchiveImages:
    """Images of one archive; headers are kept once read, prepared features within ``budget`` bytes.

    May be used by several threads.
    """

    def __init__(self, archive: Archive, budget: int = CACHE_BYTES) -> None:
        self.archive = archive
        self.budget = budget
        self.reads = 0
        self._facts: dict[str, ImageFacts] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._frames: dict[int, Frame] = {}  # one for all images of a dimension: each is projected once
        self._lock = threading.Lock()

    def facts(self, name: str) -> ImageFacts:
        """Return what the header of an image says; raises InputError for an unknown one, ArchiveError for damage."""
        found = self._facts.get(name)
        if found is None:
            if name not in self.archive:
                raise InputError(f"no image {name!r:.200} in {self.archive.path}{suggest(name, self.archive)}")
            header = self.archive.header(name)
            found = ImageFacts(header.count, header.dim, header.ambient_dim, str(header.recipe), header.checksum)
            self._facts[name] = found
        return found

    def match(self, pair: Pair, params: MatchParams) -> Matches:
        """Match two images; raises ArchiveError naming one that is damaged."""
        a, b = self._get(pair[0]), self._get(pair[1])
        try:
            check_pair(a.side, b.side)
        except InputError as cause:
            raise InputError(f"images {pair[0]!r:.200} and {pair[1]!r:.200}: {cause}") from cause
        if len(a.prepared) == 0 or len(b.prepared) == 0:
            return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
        matches = match_prepared(a.prepared, b.prepared, params, a.side.recipe)
        if a.prepared.frame is not None:
            self._frames.setdefault(a.prepared.origin.shape[1], a.prepared.frame)
        return matches

    def _get(self, name: str) -> _Kept:
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
                return kept
        self.facts(name)
        side = side_of(self.archive[name], name)
        nothing = Side(
            np.zeros((0, side.origin.shape[1]), np.float32),
            np.zeros((0, *side.basis.shape[1:]), np.float32),
            side.extractor,
            side.recipe,
        )
        kept = _Kept(prepare(side.origin, side.basis), nothing)
        kept.prepared.frame = self._frames.get(side.origin.shape[1])
        with self._lock:
            self.reads += 1
            self._kept[name] = kept
            while len(self._kept) > 2 and sum(_bytes_of(k.prepared) for k in self._kept.values()) > self.budget:
                self._kept.popitem(last=False)
        return kept


def _bytes_of(value: Any) -> int:
    """Return what the arrays in a value take, whatever it keeps by now."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, list(value.values())))  # others may be adding
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if is_dataclass(value):
        return sum(_bytes_of(getattr(value, field.name)) for field in fields(value))
    return int(getattr(value, "nbytes", 0))
