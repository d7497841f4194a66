# SPDX-License-Identifier: Apache-2.0
"""Codebooks: about a thousand typical descriptors, the words that concealed features vote for in retrieval.

Public knowledge, made of decoys, which are public too. Knows arrays and its own small file; neither images nor where
decoys come from. Never imports the clear types.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.extractor import Extractor, Setting

Floats = NDArray[np.float32]

FORMAT, VERSION = "sfumato-codebook", "2"
BUNDLED = {kind: f"codebook-{kind}-1024.safetensors" for kind in ("sift", "rootsift")}
SIZE = 1024
"""Number of words; benchmarks/retrieval.py measures others."""
LEAST_SHARE = 8
"""Fewest descriptors per word."""
ITERATIONS = 10
REACHES = (1, 4, 16)
"""To how many of its nearest words a decoy may draw votes; one background for each."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Codebook:
    """Words to vote for: ``words`` (K, n) float32, and of what ``extractor`` they are.

    ``background`` (B, K) float32: directions in which the votes of images differ because of their decoys, not because
    of what they show. Each part of a decoy database gives some. ``made`` says how the codebook was made. ``space`` is
    that of recipes: ``clear``, or the encoders the words went through.
    """

    words: Floats
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)
    background: Floats | None = None
    made: Mapping[str, Setting] = field(default_factory=dict)
    space: str = "clear"

    def __post_init__(self) -> None:
        words = frozen_array(self.words, "words", (None, None))
        if words.size == 0:
            raise InputError(f"words: expected at least one of one dimension, got {words.shape}")
        background = np.zeros((0, len(words)), np.float32) if self.background is None else self.background
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "background", frozen_array(background, "background", (None, len(words))))
        object.__setattr__(self, "made", Extractor("codebook", self.made).settings)  # the same rules, the same copy

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Codebook({len(self)} words of {self.extractor.name}, {self.words.shape[1]} dimensions)"


def make_codebook(
    descriptors: ArrayLike,
    extractor: Extractor,
    parts: ArrayLike | None = None,
    *,
    size: int = SIZE,
    seed: int = 0,
    made: Mapping[str, Setting] | None = None,
) -> Codebook:
    """Cluster public descriptors (N, n), a decoy database for one, to a codebook.

    ``parts`` (N,) says to which part of the database each belongs: an image draws its decoys from one part, and images
    of the same part would look alike. Descriptors of unit norm are clustered on the sphere. Fewer than 8 descriptors a
    word make fewer words. The same input and seed give the same codebook.
    """
    rows = frozen_array(descriptors, "descriptors", (None, None))
    if rows.size == 0:
        raise InputError(f"descriptors: expected at least one of one dimension, got {rows.shape}")
    size, seed = whole_number(size, "size"), whole_number(seed, "seed")
    if size < 1 or seed < 0:
        raise InputError(f"size must be positive and seed not negative, got {size} and {seed}")
    count = max(1, min(size, len(rows) // LEAST_SHARE))
    spherical = bool(np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-3)
    words = _kmeans(rows, count, spherical, seed)
    if spherical and rows.min() >= 0:
        words = _unit(_to_bytes(words))
    settings: dict[str, Setting] = {
        "descriptors": len(rows),
        "iterations": ITERATIONS,
        "seed": seed,
        "spherical": spherical,
    }
    background = (
        None if parts is None else _background(rows, frozen_array(parts, "parts", (len(rows),), np.int64), words)
    )
    return Codebook(words, extractor, background, {**settings, **(made or {})})


def load_codebook(kind: str) -> Codebook:
    """Return the codebook that comes with the package, for ``sift`` or ``rootsift``.

    >>> load_codebook("sift")
    Codebook(1024 words of sift, 128 dimensions)

    Raises InputError for another kind of descriptor.
    """
    if kind not in BUNDLED:
        raise InputError(
            f"the bundled codebooks are for {' and '.join(BUNDLED)}, not for {kind!r:.80}: give decoys of that kind "
            f"with --codebook (sfumato decoys build makes them)"
        )
    try:
        with resources.as_file(resources.files("sfumato.matching") / "data" / BUNDLED[kind]) as place:
            return read_codebook(place)
    except FileError as cause:
        raise FileError(f"a bundled codebook cannot be read ({cause}): install sfumato again") from cause


def save_codebook(path: str | os.PathLike[str], codebook: Codebook) -> None:
    """Write a codebook, atomically: words as bytes where they are such, backgrounds in 16 bits."""
    codes = _to_bytes(codebook.words) if codebook.words.min() >= 0 else None
    exact = codes is not None and np.array_equal(_unit(codes), codebook.words)
    header = {"extractor": codebook.extractor.to_json(), "made": dict(codebook.made), "space": codebook.space}
    arrays: dict[str, NDArray[Any]] = {
        "words": codes if exact and codes is not None else codebook.words,
        "background": np.asarray(codebook.background, np.float16),
    }
    save_tensors(path, arrays, {"format": FORMAT, "version": VERSION, "header": json.dumps(header, sort_keys=True)})


def read_codebook(path: str | os.PathLike[str]) -> Codebook:
    """Read a codebook from its file; raises FileError if it is missing, damaged, hostile or something else."""
    arrays, texts = load_tensors(path, need_digest=True)
    try:
        if (texts.get("format"), texts.get("version")) != (FORMAT, VERSION) or set(arrays) != {"words", "background"}:
            raise InputError("it is not a codebook of this version")
        header = json.loads(texts["header"])
        words = arrays["words"]
        return Codebook(
            _unit(words) if words.dtype == np.uint8 else words,
            Extractor.from_json(header["extractor"]),
            arrays["background"].astype(np.float32),
            header["made"],
            str(header["space"]),
        )
    except (SfumatoError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise FileError(f"{path}: not a usable codebook: {cause}") from cause


def _kmeans(rows: Floats, count: int, spherical: bool, seed: int) -> Floats:
    import faiss

    model = faiss.Kmeans(rows.shape[1], count, niter=ITERATIONS, spherical=spherical, seed=seed + 1,
                         min_points_per_centroid=1)  # fmt: skip
    model.train(rows)
    return np.asarray(model.centroids, np.float32).reshape(count, -1)


def _background(rows: Floats, parts: NDArray[np.int64], words: Floats) -> Floats:
    """Return how the votes that the entries of each part draw differ from those of all, in units of a mean word."""
    import faiss

    index = faiss.IndexFlatL2(words.shape[1])
    index.add(words)
    near = index.search(rows, min(max(REACHES), len(words)))[1]
    backgrounds = []
    for reach in REACHES:
        votes = [np.bincount(near[parts == part, :reach].ravel(), minlength=len(words)) for part in np.unique(parts)]
        shares = np.array([vote / vote.sum() for vote in votes]) * len(words)
        backgrounds.append(shares - shares.mean(axis=0))
    return np.concatenate(backgrounds).astype(np.float32)


def _to_bytes(words: Floats) -> NDArray[np.uint8]:
    """Round non-negative words to bytes on SIFT's scale, 512 for unit norm."""
    largest = np.maximum(words.max(axis=1, keepdims=True), 1e-9).astype(np.float64)
    codes: NDArray[np.uint8] = np.rint(words * np.minimum(512, 255 / largest)).astype(np.uint8)
    return codes


def _unit(codes: NDArray[np.uint8]) -> Floats:
    squared = np.einsum("ni,ni->n", codes.astype(np.int64), codes.astype(np.int64))
    words: Floats = (codes / np.sqrt(np.maximum(squared, 1))[:, None]).astype(np.float32)
    return words
