# SPDX-License-Identifier: Apache-2.0
"""Votes of sealed features: the images that hold the nearest codes of a sample of an image's own.

Bits vote without a codebook, whose words only a holder of the key could seal. A sample of an image's codes is compared
with all codes of all images, exactly; each votes for the images of its nearest ones, if they are nearer than chance
brings unrelated ones. Fewer bits, or words of bits that must agree, were tried: they are faster and find far less
(docs/how_to/match_and_search.md). Never imports the clear types.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.hamming.search import BitSet, search_bits
from sfumato.matching.mutual import Side, chance_bits, check_pair, side_of
from sfumato.types.concealed import Bits
from sfumato.types.progress import Progress

SAMPLE, NEAREST = 600, 6
"""Codes of an image that vote, and the nearest each votes for. Chosen on photos of five planes, of four landmarks and
of Lund among 600 others; measured on other scenes (benchmarks/retrieval.py)."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BitVotes:
    """All codes of some images: ``packed`` (M, B / 8) uint8, and the rows of each, ``starts`` (N + 1,).

    ``side`` tells what they are, without rows; ``unreadable`` names images that could not be read, with reasons.
    """

    names: tuple[str, ...]
    packed: NDArray[np.uint8]
    starts: NDArray[np.int64]
    side: Side
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def featureless(self) -> tuple[str, ...]:
        """The images without features; nothing can be said of them."""
        return tuple(name for name, count in zip(self.names, np.diff(self.starts), strict=True) if not count)

    def nearest_images(self, bits: Bits, count: int, own: int = -1, threads: int | None = None) -> list[int]:
        """Return the numbers of the ``count`` images with most votes of some codes, best first; none without a vote.

        ``own`` is the number of an image that is not counted.
        """
        if not len(bits) or not len(self.packed):
            return []
        sample = bits[np.linspace(0, len(bits) - 1, min(SAMPLE, len(bits))).astype(np.intp)]
        limit = chance_bits(bits.ambient_dim, len(self.packed)) ** 2
        rows = search_bits(
            BitSet(self.packed), BitSet(sample.packed), (0, NEAREST), threads=threads, limit=limit
        ).rows1  # fmt: skip
        images = np.searchsorted(self.starts, rows, side="right") - 1
        images[(rows < 0) | (images == own)] = -1
        images.sort(axis=1)
        is_first = np.diff(images, axis=1, prepend=-1) > 0  # one vote of a code for an image
        votes = np.bincount(images[is_first], minlength=len(self.names))
        order = np.argsort(-votes, kind="stable")[:count]
        return [int(number) for number in order if votes[number]]

    def __repr__(self) -> str:
        return f"BitVotes({len(self.names)} images, {len(self.packed)} codes)"


def collect(images: Mapping[str, Any], *, progress: Progress = iter) -> BitVotes:
    """Read the codes of all images of an archive, or of a mapping of names to sealed features.

    Raises InputError for images of different keys or kinds.
    """
    names, parts, unreadable = list[str](), list[NDArray[np.uint8]](), dict[str, str]()
    first: Side | None = None
    for name in progress(list(images)):
        try:
            side = side_of(images[name], name)
        except FileError as problem:
            unreadable[name] = str(problem)
            continue
        first = first or side
        check_sealed_alike(first, side, name)
        names.append(name)
        parts.append(side.code.packed if isinstance(side.code, Bits) else np.zeros((0, 1), np.uint8))
    if first is None:
        raise InputError(f"no shortlist: none of {len(images)} images can be read")
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return BitVotes(tuple(names), np.concatenate(parts), starts, rowless(first), unreadable)


def rowless(side: Side) -> Side:
    """Return what a side is, without its rows."""
    return Side(side.code[:0], side.extractor, side.recipe)


def check_sealed_alike(first: Side, other: Side, name: str) -> None:
    """Raise InputError, naming the image, for features that cannot be compared with the first ones."""
    try:
        check_pair(first, other)
    except InputError as cause:
        raise InputError(f"image {name!r:.200}: {cause}") from cause
