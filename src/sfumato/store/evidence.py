# SPDX-License-Identifier: Apache-2.0
"""Evidence: what a server says of matches, for devices that are asked for positions.

It names matched rows of pairs of images. Of images that the device does not have it shows the claimed rows: their bits,
which must be near, and their tags, which prove them real. A device believes nothing of it unchecked
(``device.claims``); here only its form is checked. Never imports the clear types.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.types.concealed import Bits, ConcealedFeatures, RowTags

Rows = NDArray[np.int64]
Pair = tuple[str, str]
KIND = "evidence of matches"
LARGEST_ROW = 10**8
"""Rows of an image have smaller numbers."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ClaimedRows:
    """Rows of a photo: their ``numbers`` (K,), ascending, with ``code`` and ``tags``; ``count``: all rows it has."""

    numbers: Rows
    code: Bits
    tags: RowTags
    count: int

    def __post_init__(self) -> None:
        if not len(self.numbers) == len(self.code) == len(self.tags) <= self.count <= LARGEST_ROW:
            raise InputError("evidence: numbers, bits and tags of the rows of a photo do not fit each other")
        ascends = not len(self.numbers) or (self.numbers[0] >= 0 and (np.diff(self.numbers) > 0).all())
        if not ascends or (len(self.numbers) and self.numbers[-1] >= self.count):
            raise InputError("evidence: rows of a photo must ascend and be below their count")

    @classmethod
    def of(cls, features: ConcealedFeatures, numbers: Rows | None = None) -> "ClaimedRows | None":
        """Return rows of an image, by default all; None for one without tags, which stands for nothing."""
        if features.tags is None or not isinstance(features.code, Bits):
            return None
        numbers = np.arange(len(features)) if numbers is None else numbers
        tags = RowTags(features.tags.photo, features.tags.rows[numbers])
        return cls(numbers, features.code[numbers], tags, len(features))

    def find(self, rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the place of each row among these, and whether it is there."""
        if not len(self.numbers):
            return np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
        at = np.minimum(np.searchsorted(self.numbers, rows), len(self.numbers) - 1)
        return at, self.numbers[at] == rows

    def __repr__(self) -> str:
        return f"ClaimedRows({len(self.numbers)} of {self.count} rows)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Evidence:
    """Claimed matches: rows (M, 2) by pairs of images; and what is shown of images that the device does not have."""

    claims: Mapping[Pair, Rows]
    others: Mapping[str, ClaimedRows] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Evidence({len(self.claims)} pairs, rows of {len(self.others)} other photos)"


def gather_evidence(
    claims: Iterator[tuple[Pair, Rows]], images: Mapping[str, ConcealedFeatures], own: Collection[str]
) -> Evidence:
    """Return the evidence for a device that has the images ``own``: of their pairs, and of pairs of their partners.

    A partner is an image of which at least one row is matched with a row of an own one.
    """
    of_pair, names = {pair: rows for pair, rows in claims if len(rows)}, set(own)
    near = names | {name for pair in of_pair if names & set(pair) for name in pair}
    of_pair = {pair: rows for pair, rows in of_pair.items() if near >= set(pair)}
    used: dict[str, list[Rows]] = {}
    for pair, rows in of_pair.items():
        for side, name in enumerate(pair):
            used.setdefault(name, []).append(rows[:, side])
    others = {
        name: shown
        for name in sorted(used.keys() - names)
        if (shown := ClaimedRows.of(images[name], np.unique(np.concatenate(used[name])))) is not None
    }
    return Evidence(of_pair, others)


def save_evidence(path: str | os.PathLike[str], evidence: Evidence) -> None:
    """Write evidence to a file; raises FileError if it cannot be written."""
    names = sorted({name for pair in evidence.claims for name in pair} | evidence.others.keys())
    number = {name: place for place, name in enumerate(names)}
    claims, others = list(evidence.claims.items()), list(evidence.others.items())
    width = others[0][1].code.packed.shape[1] if others else 0
    arrays = {
        "pairs": np.array([[number[a], number[b], len(rows)] for (a, b), rows in claims], "<i4").reshape(-1, 3),
        "claims": np.concatenate([np.zeros((0, 2), "<u4"), *(rows.astype("<u4") for _, rows in claims)]),
        "others": np.array([[number[name], len(rows.numbers), rows.count] for name, rows in others], "<i4").reshape(
            -1, 3
        ),
        "photos": np.array([list(bytes.fromhex(rows.tags.photo)) for _, rows in others], np.uint8).reshape(-1, 16),
        "numbers": np.concatenate([np.zeros(0, "<u4"), *(rows.numbers.astype("<u4") for _, rows in others)]),
        "bits": np.concatenate([np.zeros((0, width), np.uint8), *(rows.code.packed for _, rows in others)]),
        "tags": np.concatenate([np.zeros((0, 8), np.uint8), *(rows.tags.rows for _, rows in others)]),
    }
    save_checkpoint(path, arrays, {"kind": KIND, "images": names})


def load_evidence(path: str | os.PathLike[str]) -> Evidence:
    """Read evidence, which may come from anyone; raises FileError for what has not its form."""
    arrays, facts = load_checkpoint(path, KIND)
    try:
        names = [str(name) for name in facts["images"]]
        tables = [_whole_numbers(arrays[name]) for name in ("pairs", "claims", "others", "numbers")]
        pairs, claims, table, numbers = tables
        if any(one.size and not 0 <= one.min() <= one.max() <= LARGEST_ROW for one in tables):
            raise ValueError("a number in its tables is out of range")
        if claims.shape[1:] != (2,) or numbers.ndim != 1 or len(set(names)) != len(names):
            raise ValueError("its tables do not fit each other")
        if pairs[:, 2].sum() != len(claims) or table[:, 1].sum() != len(numbers):
            raise ValueError("its tables do not fit each other")
        rows = np.split(claims, np.cumsum(pairs[:, 2])[:-1]) if len(pairs) else []
        of_pair = {(names[a], names[b]): part for (a, b, _), part in zip(pairs, rows, strict=True)}
        ends, others = np.cumsum(table[:, 1]), dict[str, ClaimedRows]()
        for (image, length, count), end, photo in zip(table, ends, arrays["photos"], strict=True):
            part = slice(int(end - length), int(end))
            tags = RowTags(photo.tobytes().hex(), arrays["tags"][part])
            others[names[image]] = ClaimedRows(numbers[part], Bits(arrays["bits"][part]), tags, int(count))
    except (InputError, IndexError, KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: this evidence cannot be read ({cause!s:.200}): ask the server again") from cause
    if len(of_pair) != len(pairs) or any((second, first) in of_pair for first, second in of_pair):
        raise FileError(f"{path}: this evidence has a pair twice, or of one image: ask the server again")
    if len(others) != len(table):
        raise FileError(f"{path}: this evidence shows an image twice: ask the server again")
    return Evidence(of_pair, others)


def _whole_numbers(array: NDArray[Any]) -> Rows:
    if array.dtype.kind not in "iu":
        raise ValueError("its tables are not of whole numbers")
    return array.astype(np.int64)
