# SPDX-License-Identifier: Apache-2.0
"""Pairs of images to match: lists of pairs of names, without repeats, in an order that reuses images.

Knows names only, no archive and no features. Long lists are counted and walked through, never held as texts.
"""

import os
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.files.atomic import open_text
from sfumato.types.arrays import whole_number

Pair = tuple[str, str]
Rows = NDArray[np.int64]

TILE = 16
"""Images of a list are taken this many against this many: a reader that caches as many reads each of them rarely."""
SHOWN = 5
LARGEST = 2**32
"""Bytes of a list of pairs."""

RULES = {"exhaustive": "exhaustive", "sequential": "sequential:10", "votes": "votes:20"}
"""Names of the rules by which pairs are chosen, with an example of each."""
PairsLike = str | os.PathLike[str] | Iterable[Pair]
"""A rule, the path of a file with two names per line, or pairs of names."""


def parse_rule(pairs: object) -> tuple[str, int]:
    """Return the name of a rule and its number; an empty name for what is no rule: a path, or pairs.

    >>> parse_rule("sequential:10"), parse_rule("exhaustive"), parse_rule("pairs.txt")
    (('sequential', 10), ('exhaustive', 0), ('', 0))

    Raises InputError for a rule with a wrong number.
    """
    name, colon, number = pairs.partition(":") if isinstance(pairs, str) else ("", "", "")
    if name not in RULES:
        return "", 0
    if name == "exhaustive" and not colon:
        return name, 0
    if name == "exhaustive" or not (number.isascii() and number.isdigit() and int(number) > 0):
        raise InputError(f"pairs: expected {RULES[name]!r} or the like, got {pairs!r:.80}")
    return name, int(number)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PairList:
    """Pairs of different images, each once; its length is known and it can be walked through more than once.

    ``names`` are the images that take part, sorted. ``duplicates`` counts the pairs that were named again, the
    other way round included, and ``selves`` the pairs of an image with itself; both are left out.
    """

    names: tuple[str, ...]
    count: int
    rows: Callable[[], Iterator[tuple[int, int]]]
    duplicates: int = 0
    selves: int = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Pair]:
        return ((self.names[i], self.names[j]) for i, j in self.rows())

    def __repr__(self) -> str:
        return f"PairList({self.count} pairs of {len(self.names)} images)"


def exhaustive(names: Iterable[str]) -> PairList:
    """Return every pair of images once, the earlier name first.

    >>> sorted(exhaustive(["b", "a", "c"]))
    [('a', 'b'), ('a', 'c'), ('b', 'c')]
    """
    ordered = _sorted_names(names)
    count = len(ordered)

    def rows() -> Iterator[tuple[int, int]]:
        for top in range(0, count, TILE):
            for left in range(top, count, TILE):
                for i in range(top, min(top + TILE, count)):
                    columns = range(max(left, i + 1), min(left + TILE, count))
                    for j in columns if i % 2 == 0 else reversed(columns):  # back and forth: the last are kept
                        yield i, j

    return PairList(ordered, count * (count - 1) // 2, rows)


def sequential(names: Iterable[str], overlap: int) -> PairList:
    """Return each image with the ``overlap`` next ones in the order of their names, as in a video.

    >>> list(sequential(["3.jpg", "1.jpg", "2.jpg"], 1))
    [('1.jpg', '2.jpg'), ('2.jpg', '3.jpg')]
    """
    ordered, overlap = _sorted_names(names), whole_number(overlap, "overlap")
    if overlap < 1:
        raise InputError(f"overlap: expected 1 or more following images, got {overlap}")
    last = len(ordered) - 1
    reach = min(overlap, max(last, 0))

    def rows() -> Iterator[tuple[int, int]]:
        return ((i, j) for i in range(last) for j in range(i + 1, min(i + reach, last) + 1))

    return PairList(ordered, reach * (last + 1) - reach * (reach + 1) // 2, rows)


def list_pairs(pairs: Iterable[Pair], known: Collection[str] | None = None) -> PairList:
    """Return pairs without repeats, each in the order in which it was first named, tile by tile.

    A pair takes 8 bytes. ``known`` are the images there are: names that are not among them are an InputError that
    names them all at once.
    """
    numbers: dict[str, int] = {}
    columns = array("i"), array("i")
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise InputError(f"pairs: expected pairs of image names, got {pair!r:.80}")
        for name, column in zip(pair, columns, strict=True):
            column.append(numbers.setdefault(name, len(numbers)))
    if known is not None:
        refuse_unknown(numbers, known)
    names = sorted(numbers)
    order = np.empty(len(names), np.int64)
    order[[numbers[name] for name in names]] = np.arange(len(names))
    rows = order[np.stack([np.asarray(column, np.int64) for column in columns], axis=1)]
    different = rows[rows[:, 0] != rows[:, 1]]
    codes = different.min(axis=1) * len(names) + different.max(axis=1)
    unique = _by_tiles(different[np.unique(codes, return_index=True)[1]]).astype(np.int32)

    def walk() -> Iterator[tuple[int, int]]:
        return (
            (int(i), int(j)) for start in range(0, len(unique), 4096) for i, j in unique[start : start + 4096].tolist()
        )

    selves = len(rows) - len(different)
    return PairList(tuple(names), len(unique), walk, duplicates=len(different) - len(unique), selves=selves)


def read_pairs(path: str | os.PathLike[str], known: Collection[str] | None = None) -> PairList:
    """Read hloc's pairs.txt: two names per line, separated by a space; empty lines and lines with # are comments.

    Raises FileError that names all wrong lines, or all images that are not ``known``, at once.
    """
    path, wrong, count = Path(path), [], 0

    def lines() -> Iterator[Pair]:
        nonlocal count
        with open_text(path, largest=LARGEST, errors="surrogateescape") as text:
            for number, line in enumerate(text, 1):
                words = line.split()
                if len(words) == 2 and not words[0].startswith("#"):
                    yield words[0], words[1]
                elif words and not words[0].startswith("#"):
                    count += 1
                    wrong.append(f"line {number} has {len(words)} words") if count <= SHOWN else None

    try:
        pairs = list_pairs(lines())
        if wrong:
            more = f" and {count - SHOWN} more" if count > SHOWN else ""
            raise InputError(
                f"{', '.join(wrong)}{more}: expected two image names per line; names with spaces cannot be listed"
            )
        if known is not None:
            refuse_unknown(pairs.names, known)
    except InputError as cause:
        raise FileError(f"{path}: {cause}") from cause
    return pairs


def refuse_unknown(names: Iterable[str], known: Collection[str]) -> None:
    """Raise InputError that names the images that are not among the known ones."""
    missing = sorted(name for name in names if name not in known)
    if missing:
        shown = ", ".join(f"{name!r:.200}{suggest(name, known)}" for name in missing[:SHOWN])
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(f"{len(missing)} of the images to match are not in the archive: {shown}{more}")


class PairSet:
    """A set of unordered pairs of names that takes 8 bytes per pair; made once."""

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._numbers: dict[str, int] = {}
        codes = array("q")
        for name0, name1 in pairs:
            i, j = (self._numbers.setdefault(name, len(self._numbers)) for name in (name0, name1))
            codes.append(_code(i, j))
        self._codes = np.unique(np.asarray(codes, np.int64))

    def __len__(self) -> int:
        return len(self._codes)

    def __contains__(self, pair: object) -> bool:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return False
        i, j = (self._numbers.get(name, -1) for name in pair)
        if i < 0 or j < 0:
            return False
        code = _code(i, j)
        place = int(np.searchsorted(self._codes, code))
        return place < len(self._codes) and int(self._codes[place]) == code


def _code(i: int, j: int) -> int:
    return (min(i, j) << 32) | max(i, j)


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InputError("names: expected several image names, got one text")
    return tuple(sorted(set(names)))


def _by_tiles(rows: Rows) -> Rows:
    """Order pairs so that neighbours share images: tile by tile, back and forth within a tile."""
    low, high = rows.min(axis=1), rows.max(axis=1)
    order = np.lexsort((np.where(low % 2 == 0, high, -high), low, high // TILE, low // TILE))
    return rows[order]
