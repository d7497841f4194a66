# SPDX-License-Identifier: Apache-2.0
"""Decoy databases: real-looking descriptors that lie beside the clear one in every subspace; pools to draw from; files.

A database is public. Its file format is in docs/reference/file_formats.md. Files are lossless: a database that is read
has the checksum of the one that was written. Nothing is unpickled, and nothing larger than the file is allocated.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.randomness import Draws
from sfumato.errors import DecoyError, FileError, InputError, SfumatoError
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import Extractor, Setting, is_label

DEFAULT_PARTS = 16


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Decoys:
    """A database of decoys, split in disjoint parts.

    ``descriptors`` (N, n) float32 and their ``extractor``; part s holds the entries
    ``permutation[s N / parts : (s + 1) N / parts]``; ``labels`` (N,) integers or texts, or None; ``made``: the
    settings of its build.
    """

    descriptors: NDArray[np.float32]
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)
    permutation: NDArray[np.int32] | None = None
    parts: int = DEFAULT_PARTS
    labels: NDArray[Any] | None = None
    made: Mapping[str, Setting] = field(default_factory=dict)
    checksum: str = field(init=False)

    def __post_init__(self) -> None:
        descriptors = frozen_array(self.descriptors, "decoys", (None, None))
        kind = self.extractor if isinstance(self.extractor, Extractor) else Extractor(self.extractor)
        object.__setattr__(self, "extractor", kind)
        count = len(descriptors)
        if count == 0 or descriptors.shape[1] == 0:
            raise DecoyError(f"decoys: need at least one entry of one dimension, got {descriptors.shape}")
        if isinstance(self.parts, bool) or not isinstance(self.parts, int) or self.parts < 1:
            raise DecoyError(f"decoys: parts must be a positive integer, got {self.parts!r:.80}")
        order = np.arange(count) if self.permutation is None else self.permutation
        permutation = frozen_array(order, "permutation", (count,), np.int32)
        if not np.array_equal(np.sort(permutation), np.arange(count)):
            raise DecoyError(f"permutation: every number from 0 to {count - 1} must stand in it once")
        object.__setattr__(self, "made", Extractor("decoys", self.made).settings)  # the same rules, the same copy
        object.__setattr__(self, "descriptors", descriptors)
        object.__setattr__(self, "permutation", permutation)
        object.__setattr__(self, "parts", min(self.parts, count))
        object.__setattr__(self, "labels", None if self.labels is None else checked_labels(self.labels, count))
        object.__setattr__(self, "checksum", self._checksum())

    def _checksum(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for array in (self.descriptors, self.permutation, self.labels):
            little = (
                b"" if array is None else np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()
            )
            digest.update(len(little).to_bytes(8, "little") + little)
        digest.update(f"{self.parts} {self.extractor.name}".encode())
        return digest.hexdigest()

    @property
    def part_starts(self) -> NDArray[np.int64]:
        """Where each part begins in ``permutation``, (parts + 1,)."""
        return np.arange(self.parts + 1, dtype=np.int64) * len(self) // self.parts

    def __len__(self) -> int:
        return len(self.descriptors)

    def __repr__(self) -> str:
        labels = "" if self.labels is None else f", {np.unique(self.labels).size} labels"
        shape = f"{len(self)} x {self.descriptors.shape[1]}"
        return f"Decoys({shape} {self.extractor.name}, {self.parts} parts{labels})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Pool:
    """The decoys that each descriptor may get: ``sizes`` (N,), and the entry at each position below the size.

    Positions count through ``order`` from ``start`` (N,), stepping over the ``skipped`` (N,) entries that begin at
    position ``hole`` (N,).
    """

    order: NDArray[np.integer[Any]]
    start: NDArray[np.int64]
    sizes: NDArray[np.int64]
    hole: NDArray[np.int64]
    skipped: NDArray[np.int64]

    def entries(self, rows: NDArray[np.intp], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the entries (N, k) at ``positions`` (N, k) of the pools of ``rows``."""
        beyond = positions >= self.hole[rows, None]
        index = self.start[rows, None] + positions + np.where(beyond, self.skipped[rows, None], 0)
        entries: NDArray[np.int64] = self.order[index].astype(np.int64)
        return entries


def as_rootsift(decoys: Decoys) -> Decoys:
    """Return SIFT decoys as RootSIFT decoys: the square root of each, scaled to unit sum, has unit norm."""
    exact = decoys.descriptors.astype(np.float64)
    rooted = np.sqrt(exact / exact.sum(axis=1, keepdims=True)).astype(np.float32)
    made = {**decoys.made, "rooted_from": decoys.checksum}
    return Decoys(rooted, Extractor("rootsift"), decoys.permutation, decoys.parts, decoys.labels, made)


def full_pool(decoys: Decoys, rows: int) -> Pool:
    """Return the pool of all decoys for every descriptor."""
    sizes = np.full(rows, len(decoys), np.int64)
    zeros = np.zeros(rows, np.int64)
    return Pool(np.arange(len(decoys)), zeros, sizes, sizes, zeros)


def part_pool(decoys: Decoys, rows: int, draws: Draws) -> Pool:
    """Return the pool of one part of the database, drawn once for the image (section 4.1.1)."""
    assert decoys.permutation is not None
    part = (draws.of_image(rows) % np.uint64(decoys.parts)).astype(np.int64)
    starts = decoys.part_starts
    sizes = starts[part + 1] - starts[part]
    return Pool(decoys.permutation, starts[part], sizes, sizes, np.zeros(rows, np.int64))


def label_pool(decoys: Decoys, labels: NDArray[Any]) -> Pool:
    """Return the pools of decoys whose label differs from the descriptor's own (the paper's hybrid+, section 4.2.2)."""
    if decoys.labels is None:
        raise DecoyError("hybrid-labels needs decoys with labels: build them with labels, one for each descriptor")
    if len(labels) == 0:
        return full_pool(decoys, 0)
    if (decoys.labels.dtype.kind == "U") != (labels.dtype.kind == "U"):
        raise InputError("labels: the decoys have texts and the descriptors numbers, or the other way round")
    order = np.argsort(decoys.labels, kind="stable")
    ranked = decoys.labels[order]
    hole = np.searchsorted(ranked, labels, "left").astype(np.int64)
    skipped = np.searchsorted(ranked, labels, "right") - hole
    return Pool(order, np.zeros(len(labels), np.int64), len(decoys) - skipped, hole, skipped)


def checked_labels(labels: ArrayLike, count: int) -> NDArray[Any]:
    """Return labels (count,) as a read-only array of integers or texts."""
    array = np.array(labels)
    if array.shape != (count,) or (array.dtype.kind not in "iuU" and count):
        raise InputError(f"labels: expected {count} integers or texts, got {array.dtype} {array.shape}")
    if array.dtype.kind == "U" and not all(is_label(str(text)) for text in np.unique(array)):
        raise InputError("labels: texts must be short, not empty, and printable")
    is_text = array.dtype.kind == "U" and count
    result = np.array(array.tolist()) if is_text else array.astype(np.int64)  # as wide as the longest, as files have it
    result.setflags(write=False)
    return result


def collision_probability(part_size: int, *, features: int = 8000, decoys_each: int = 1) -> float:
    """Return the probability that a feature shares a decoy with one of ``features`` others from the same part.

    Each feature draws ``decoys_each`` of ``part_size`` entries without replacement. A shared decoy makes two
    subspaces meet, hence a wrong match at distance 0.

    >>> round(collision_probability(65536 // 16), 2), round(collision_probability(256000 // 16), 2)
    (0.86, 0.39)
    """
    if 2 * decoys_each > part_size:
        return 1.0
    avoided = math.comb(part_size - decoys_each, decoys_each) / math.comb(part_size, decoys_each)
    return 1 - avoided**features


# --- files

FORMAT, VERSION = "sfumato-decoys", "2"
BUNDLED = "decoys-sift-65536.safetensors"
HEADER_KEYS = {"encoding", "parts", "extractor", "made", "checksum", "labels"}
ARRAYS = {"entries": ("uint8", "float32"), "permutation": ("int32",), "labels": ("int64",)}
BYTE_SCALE = 512  # SIFT's own: unit norm is 512


def save_decoys(path: str | os.PathLike[str], decoys: Decoys) -> None:
    """Write a database, atomically. Entries that are bytes over a common norm, as SIFT is, take one byte per number."""
    codes = encode_bytes(decoys.descriptors)
    header: dict[str, Any] = {
        "encoding": "float32" if codes is None else "uint8",
        "parts": decoys.parts,
        "extractor": decoys.extractor.to_json(),
        "made": dict(decoys.made),
        "checksum": decoys.checksum,
        "labels": None,
    }
    arrays: dict[str, NDArray[Any]] = {
        "entries": decoys.descriptors.astype(np.float32) if codes is None else codes,
        "permutation": np.asarray(decoys.permutation, np.int32),
    }
    if decoys.labels is not None and decoys.labels.dtype.kind == "U":
        names, numbers = np.unique(decoys.labels, return_inverse=True)
        header["labels"], arrays["labels"] = [str(name) for name in names], numbers.astype(np.int64)
    elif decoys.labels is not None:
        arrays["labels"] = decoys.labels.astype(np.int64)
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    save_tensors(path, arrays, {"format": FORMAT, "version": VERSION, "header": text}, private=True)


def load_decoys(path: str | os.PathLike[str] | None = None) -> Decoys:
    """Read a database made by ``sfumato decoys build``; without a path, the bundled one for SIFT.

    Raises FileError for a missing, damaged or hostile file, or one of another version.
    """
    if path is None:
        bundled = resources.files("sfumato.concealment") / "data" / BUNDLED
        with resources.as_file(bundled) as file:
            return load_decoys(file)
    try:
        arrays, texts = load_tensors(path, need_digest=True)
        header = _checked_header(arrays, texts)
        decoys = Decoys(
            decode_bytes(arrays["entries"]) if header["encoding"] == "uint8" else arrays["entries"],
            Extractor.from_json(header["extractor"]),
            arrays["permutation"],
            header["parts"],
            _labels(arrays.get("labels"), header["labels"]),
            header["made"],
        )
    except (SfumatoError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as cause:
        reason = str(cause).removeprefix(f"{path}: ")
        raise FileError(f"{path}: not a usable decoys file: {reason}; sfumato decoys build makes one") from cause
    if decoys.checksum != header["checksum"]:
        raise FileError(f"{path}: the contents do not match their checksum; the file is damaged: build it again")
    return decoys


def _checked_header(arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> dict[str, Any]:
    if texts.get("format") != FORMAT:
        raise FileError("it holds no decoys")
    if texts.get("version") != VERSION:
        raise FileError(f"it has version {texts.get('version')!r:.20}, this program reads {VERSION}: update it")
    header = json.loads(texts["header"])
    if not isinstance(header, dict) or set(header) != HEADER_KEYS or not isinstance(header["made"], dict):
        raise FileError("its header is incomplete")
    kinds = {name: str(array.dtype) for name, array in arrays.items()}
    if not {"entries", "permutation"} <= set(kinds) <= set(ARRAYS) or kinds["entries"] != header["encoding"]:
        raise FileError(f"it does not hold exactly {', '.join(ARRAYS)}, of which labels may be missing")
    wrong = [name for name, kind in kinds.items() if kind not in ARRAYS[name]]
    if wrong:
        raise FileError(f"{wrong[0]} has the wrong type of numbers")
    return header


def _labels(numbers: NDArray[np.int64] | None, names: Any) -> NDArray[Any] | None:
    """Return labels: none, numbers, or the texts that numbers stand for."""
    if numbers is None or names is None:
        return numbers
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise FileError("its labels are not texts")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(names):
        raise FileError("its labels are not those it names")
    return np.array(names, np.str_)[numbers]


def as_decoys(decoys: Decoys | str | os.PathLike[str] | None) -> Decoys | None:
    """Return decoys as they are, or read from a file that is named; None stays None."""
    return decoys if isinstance(decoys, Decoys | None) else load_decoys(decoys)


def bundled_decoys(extractor: Extractor) -> Decoys:
    """Return the decoys that come with the package, for SIFT or RootSIFT; they are read once.

    Raises DecoyError for other descriptors.
    """
    if extractor.name not in ("sift", "rootsift"):
        raise DecoyError(
            f"the bundled decoys are SIFT, these features are {extractor.name}: build decoys of the same kind with "
            f"sfumato decoys build and pass them with --decoys"
        )
    return _bundled(extractor.name)


@cache
def _bundled(name: str) -> Decoys:
    return load_decoys() if name == "sift" else as_rootsift(_bundled("sift"))


def encode_bytes(descriptors: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """Return the bytes (N, n) that ``decode_bytes`` turns into exactly these descriptors, or None."""
    if descriptors.min() < 0:
        return None
    codes = round_to_bytes(descriptors)
    return codes if np.array_equal(decode_bytes(codes), descriptors) else None


def round_to_bytes(descriptors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round non-negative descriptors (N, n) to bytes on SIFT's scale, or a smaller one where values exceed 255."""
    largest = np.maximum(descriptors.max(axis=1, keepdims=True), 1e-9).astype(np.float64)
    codes: NDArray[np.uint8] = np.rint(descriptors * np.minimum(BYTE_SCALE, 255 / largest)).astype(np.uint8)
    return codes


def decode_bytes(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return bytes (N, n) scaled to unit norm; sums are exact, so that every machine gives the same numbers."""
    squared = np.einsum("ni,ni->n", codes.astype(np.int64), codes.astype(np.int64))
    decoded: NDArray[np.float32] = (codes / np.sqrt(np.maximum(squared, 1))[:, None]).astype(np.float32)
    return decoded
