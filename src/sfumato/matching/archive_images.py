# SPDX-License-Identifier: Apache-2.0
"""Images of one archive, ready to be matched: the facts in their headers, and a cache of prepared features.

Reads concealed features and hands out matches. Never imports the clear types.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from cachetools import LRUCache

from sfumato.errors import InputError, suggest
from sfumato.hamming.search import BitSet
from sfumato.matching.mutual import MatchParams, Prepared, Side, check_pair, match_prepared, prepare_side, side_of
from sfumato.matching.pairs import Pair
from sfumato.store.archive import Archive
from sfumato.subspace.subspace_set import Frame, SubspaceSet
from sfumato.types.scene import Matches

CACHE_BYTES = 512 * 2**20
"""Bytes of the prepared images in memory: about twenty of 8,000 features at m = 2, five hundred of sealed ones."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Facts of an image that matching needs beside its features: their ``count``, and what tells it from others."""

    count: int
    dim: int
    ambient_dim: int
    recipe: str
    checksum: str

    def is_void_with(self, other: "ImageFacts") -> bool:
        """Tell whether subspaces of the two always meet, so that their distances say nothing."""
        return bool(self.dim and other.dim) and self.dim + other.dim >= self.ambient_dim


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _PreparedImage:
    features: Prepared
    side: Side  # without rows: the extractor and the recipe


class ArchiveImages:
    """Images of one archive; headers stay in memory once read, prepared features within ``budget`` bytes.

    May be used by several threads.
    """

    def __init__(self, archive: Archive, budget: int = CACHE_BYTES) -> None:
        self.archive = archive
        self.reads = 0
        self._facts: dict[str, ImageFacts] = {}
        budget = max(budget, 2)
        self._cache: LRUCache[str, _PreparedImage] = LRUCache(
            budget, getsizeof=lambda image: min(_bytes_of(image.features), budget // 2)  # both images of a pair fit
        )  # fmt: skip
        self._frames: dict[int, Frame] = {}  # one for all images of a dimension: each is projected once
        self._lock = threading.Lock()

    def facts(self, name: str) -> ImageFacts:
        """Return what the header of an image says; raises InputError for an unknown one, ArchiveError for damage."""
        facts = self._facts.get(name)
        if facts is None:
            if name not in self.archive:
                raise InputError(f"no image {name!r:.200} in {self.archive.path}{suggest(name, self.archive)}")
            header = self.archive.header(name)
            facts = ImageFacts(header.count, header.dim, header.ambient_dim, str(header.recipe), header.checksum)
            self._facts[name] = facts
        return facts

    def match(self, pair: Pair, params: MatchParams) -> Matches:
        """Match two images; raises ArchiveError naming one that is damaged."""
        a, b = self._get(pair[0]), self._get(pair[1])
        try:
            check_pair(a.side, b.side)
        except InputError as cause:
            raise InputError(f"images {pair[0]!r:.200} and {pair[1]!r:.200}: {cause}") from cause
        if len(a.features) == 0 or len(b.features) == 0:
            return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
        matches = match_prepared(a.features, b.features, params, a.side.recipe)
        if isinstance(a.features, SubspaceSet) and a.features.frame is not None:
            self._frames.setdefault(a.features.origin.shape[1], a.features.frame)
        for name, image in zip(pair, (a, b), strict=True):  # matching adds to what is prepared
            self._keep(name, image)
        return matches

    def _get(self, name: str) -> _PreparedImage:
        with self._lock:
            image = self._cache.get(name)
        if image is not None:
            return image
        self.facts(name)
        side = side_of(self.archive[name], name)
        features = prepare_side(side)
        if isinstance(features, SubspaceSet):
            features.frame = self._frames.get(side.code.ambient_dim)
        image = _PreparedImage(features, Side(side.code[:0], side.extractor, side.recipe))
        self.reads += 1
        self._keep(name, image)
        return image

    def _keep(self, name: str, image: _PreparedImage) -> None:
        with self._lock:
            self._cache.pop(name, None)  # its size may have changed
            self._cache[name] = image


def _bytes_of(value: Any) -> int:
    """Return the bytes of the arrays in a value at present."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, BitSet):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, list(value.values())))  # others may be adding
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if is_dataclass(value):
        return sum(_bytes_of(getattr(value, field.name)) for field in fields(value))
    return int(getattr(value, "nbytes", 0))
