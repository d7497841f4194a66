# SPDX-License-Identifier: Apache-2.0
"""Which images may show the same, told from concealed features alone: a shortlist, instead of every pair.

Each subspace votes for the words of a codebook it passes nearest to. A global descriptor of the clear features would do
better, and would itself tell what the picture shows. What the decoys of an image vote for is noise; most of it is known
in advance (``codebook.background``) and taken out. Never imports the clear types.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.files.atomic import write_file
from sfumato.matching.mutual import MatchParams, Side, run_search, side_of, tell_space
from sfumato.matching.pairs import PairList, exhaustive, listed
from sfumato.subspace.fast import prepare
from sfumato.subspace.prepared import Prepared
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.extractor import Extractor, Setting

# ----------------------------------------------------------------
# Codebooks: some thousand typical descriptors, the words that concealed features vote for when images are retrieved
# Public knowledge, made of decoys, which are public too. Knows arrays and its own small file; neither images nor where
# decoys come from. Never imports the clear types.


Floats = NDArray[np.float32]

FORMAT, VERSION = "sfumato-codebook", 1
BUNDLED = {"sift": "codebook-sift-1024.npz", "rootsift": "codebook-rootsift-1024.npz"}
SIZE = 1024
"""How many words; benchmarks/retrieval.py measures others."""
LEAST_SHARE = 8
"""At least so many descriptors for a word."""
ITERATIONS = 10
REACHES = (1, 4, 16)
"""To how many of its nearest words a decoy may draw votes; one background for each."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Codebook:
    """Words to vote for: ``words`` (K, n) float32, and of what ``extractor`` they are.

    ``background`` (B, K) float32: directions in which the votes of images differ because of their decoys, not of what
    they show. Each part of a decoy database gives some. ``made`` tells how the codebook was made. ``space`` is that of
    recipes: ``clear``, or the encoders the words went through.
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
        given = np.zeros((0, len(words)), np.float32) if self.background is None else self.background
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "background", frozen_array(given, "background", (None, len(words))))
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

    ``parts`` (N,) tells to which part of the database each belongs: an image draws its decoys from one part, and images
    of the same part would look alike. Descriptors of unit norm are clustered on the sphere. Fewer than 8 descriptors a
    word make fewer words. The same input and seed give the same codebook.
    """
    rows = frozen_array(descriptors, "descriptors", (None, None))
    if rows.size == 0:
        raise InputError(f"descriptors: expected at least one of one dimension, got {rows.shape}")
    wanted, seed = whole_number(size, "size"), whole_number(seed, "seed")
    if wanted < 1 or seed < 0:
        raise InputError(f"size must be positive and seed not negative, got {wanted} and {seed}")
    count = max(1, min(wanted, len(rows) // LEAST_SHARE))
    spherical = bool(np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-3)
    words = _kmeans(rows, count, spherical, seed)
    if spherical and rows.min() >= 0:
        words = _unit(_to_bytes(words))
    told: dict[str, Setting] = {
        "descriptors": len(rows),
        "iterations": ITERATIONS,
        "seed": seed,
        "spherical": spherical,
    }
    background = (
        None if parts is None else _background(rows, frozen_array(parts, "parts", (len(rows),), np.int64), words)
    )
    return Codebook(words, extractor, background, {**told, **(made or {})})


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
    place = resources.files("sfumato.matching") / "data" / BUNDLED[kind]
    try:
        return _parse(place.read_bytes())
    except (OSError, EOFError, SfumatoError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as cause:
        raise FileError(
            f"the bundled codebook {BUNDLED[kind]} cannot be read ({cause}): install sfumato again"
        ) from cause


def save_codebook(path: str | os.PathLike[str], codebook: Codebook) -> None:
    """Write a codebook, atomically: words as bytes where they are such, backgrounds in 16 bits."""
    codes = _to_bytes(codebook.words) if codebook.words.min() >= 0 else None
    exact = codes is not None and np.array_equal(_unit(codes), codebook.words)
    header = {
        "format": FORMAT, "version": VERSION, "extractor": codebook.extractor.to_json(), "made": dict(codebook.made),
        "space": codebook.space,
    }  # fmt: skip
    stream = io.BytesIO()
    np.savez(
        stream,
        allow_pickle=False,
        header=np.frombuffer(json.dumps(header, sort_keys=True).encode(), np.uint8),
        words=codes if exact and codes is not None else codebook.words,
        background=np.asarray(codebook.background, np.float16),
    )
    write_file(path, stream.getvalue())


def _parse(content: bytes) -> Codebook:
    with np.load(io.BytesIO(content), allow_pickle=False) as members:
        header: dict[str, Any] = json.loads(members["header"].tobytes())
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise FileError("it is no codebook of this version")
        words = members["words"]
        return Codebook(
            _unit(words) if words.dtype == np.uint8 else words,
            Extractor.from_json(header["extractor"]),
            members["background"].astype(np.float32),
            header["made"],
            str(header.get("space", "clear")),
        )


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
    found = []
    for reach in REACHES:
        votes = [np.bincount(near[parts == part, :reach].ravel(), minlength=len(words)) for part in np.unique(parts)]
        shares = np.array([vote / vote.sum() for vote in votes]) * len(words)
        found.append(shares - shares.mean(axis=0))
    return np.concatenate(found).astype(np.float32)


def _to_bytes(words: Floats) -> NDArray[np.uint8]:
    """Round non-negative words to bytes on SIFT's scale, 512 for unit norm."""
    largest = np.maximum(words.max(axis=1, keepdims=True), 1e-9).astype(np.float64)
    codes: NDArray[np.uint8] = np.rint(words * np.minimum(512, 255 / largest)).astype(np.uint8)
    return codes


def _unit(codes: NDArray[np.uint8]) -> Floats:
    squared = np.einsum("ni,ni->n", codes.astype(np.int64), codes.astype(np.int64))
    words: Floats = (codes / np.sqrt(np.maximum(squared, 1))[:, None]).astype(np.float32)
    return words


Progress = Callable[[Iterable[Any]], Iterable[Any]]

VOTES = 16
"""Words each subspace votes for. Clear descriptors want one; decoys draw the nearest votes away."""
ROWS_AT_ONCE = 256
"""Images whose scores with all others are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalParams:
    """How images vote: for how many words each subspace; ``threads`` and ``device`` as in ``sfumato.match``."""

    votes: int = VOTES
    threads: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if whole_number(self.votes, "votes") < 1:
            raise InputError(f"votes: expected 1 or more words for each subspace, got {self.votes}")
        MatchParams(threads=self.threads, device=self.device)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Signatures:
    """What several images voted for: ``shares`` (N, K) float32, rows of sum 1; 0 where an image has no features.

    ``unreadable`` names images that could not be read, with reasons; they have no row.
    """

    names: tuple[str, ...]
    shares: Floats
    codebook: Codebook
    unreadable: Mapping[str, str] = field(default_factory=dict)
    kept: dict[str, "_Answers"] = field(default_factory=dict, init=False)

    @property
    def featureless(self) -> tuple[str, ...]:
        """The images without features; nothing can be said of them."""
        return tuple(name for name, row in zip(self.names, self.shares, strict=True) if not row.any())

    def __repr__(self) -> str:
        return f"Signatures({len(self.names)} images, {self.shares.shape[1]} words)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Shortlist:
    """The ``pairs`` worth matching, and the images that are in none: without features, or not readable and why."""

    pairs: PairList
    featureless: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Shortlist({self.pairs!r})"


def shortlist(
    images: Mapping[str, Any],
    count: int,
    codebook: Codebook | None = None,
    params: RetrievalParams | None = None,
    *,
    progress: Progress = iter,
) -> Shortlist:
    """Return each image with the ``count`` others that vote most like it; a pair that either side names is in, once.

    ``images`` is an archive, or a mapping of names to ConcealedFeatures; they are read one at a time, once, and 8 bytes
    a word of the codebook are kept of each. Without a ``codebook`` SIFT and RootSIFT get the bundled one. Where
    ``count`` takes in all other images there is nothing to choose: every pair is returned and nothing is read.

    Raises InputError for a codebook of another kind of descriptor, and if no two images have features.
    """
    wanted = _positive(count)
    if wanted >= len(images) - 1:
        return Shortlist(exhaustive(images))
    found = sign(images, codebook, params, progress=progress)
    names = found.names
    pairs = listed((names[i], names[j]) for i, j in _either_way(nearest_images(found, found, wanted)))
    if not len(pairs):
        raise InputError(
            f"no shortlist of {len(images)} images: {len(found.featureless)} have no features and "
            f"{len(found.unreadable)} cannot be read"
        )
    return Shortlist(pairs, found.featureless, found.unreadable)


def candidates(queries: Signatures, references: Signatures, count: int) -> dict[str, tuple[str, ...]]:
    """Return for each query the names of the ``count`` references that vote most like it, best first.

    A query without features has none. Queries should be lifted to about the dimension of the references: others vote
    otherwise, whatever they show.
    """
    rows = nearest_images(queries, references, count).tolist()
    return {
        name: tuple(references.names[j] for j in row if j >= 0) for name, row in zip(queries.names, rows, strict=True)
    }


def sign(
    images: Mapping[str, Any],
    codebook: Codebook | None = None,
    params: RetrievalParams | None = None,
    *,
    progress: Progress = iter,
) -> Signatures:
    """Let every image vote, one after the other. Images are as in ``shortlist``, or points (N, n) with a codebook.

    Raises InputError, naming the image, for a codebook of another kind of descriptor.
    """
    params = params or RetrievalParams()
    names, rows, unreadable = [], [], {}
    words: Prepared | None = None
    for name in progress(list(images)):
        try:
            side = side_of(images[name], name)
        except FileError as problem:
            unreadable[name] = str(problem)
            continue
        codebook = codebook or _bundled(side, name)
        _check(side, name, codebook)
        words = words or prepare(codebook.words, np.zeros((len(codebook), 0, codebook.words.shape[1]), np.float32))
        names.append(name)
        rows.append(_vote(side, words, params))
    codebook = codebook or load_codebook("sift")  # there was nothing to read
    return Signatures(tuple(names), np.array(rows, np.float32).reshape(-1, len(codebook)), codebook, unreadable)


def nearest_images(queries: Signatures, references: Signatures, count: int) -> NDArray[np.int64]:
    """Return for each query the rows (Q, count) of the references that vote most like it, best first, -1 for none.

    Votes are compared as square roots of shares, less their mean over the references and less what decoys explain. A
    reference that is like everything counts for less. If the two are one and the same, no image is its own reference.
    """
    wanted = min(_positive(count), max(1, len(references.names)))
    if references.shares.shape[1] != queries.shares.shape[1]:
        raise InputError("queries and references voted for the words of different codebooks")
    found = np.full((len(queries.names), wanted), -1, np.int64)
    if not references.shares.any() or not len(found):
        return found
    if "answers" not in references.kept:  # for the next query
        references.kept["answers"] = _Answers.of(references)
    answers = references.kept["answers"]
    for start in range(0, len(found), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        scores = answers.scores(queries.shares[block])
        if queries is references:
            scores[np.arange(start, start + len(scores))[:, None] == answers.rows] = -np.inf
        scores[~queries.shares[block].any(axis=1)] = -np.inf
        found[block] = _best(scores, answers.rows, wanted)
    return found


def _either_way(rows: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of an image and one of its nearest, ``rows`` (N, count), each once whoever names it."""
    own = np.repeat(np.arange(len(rows)), rows.shape[1])[rows.ravel() >= 0]
    other = rows[rows >= 0]
    low, high = np.minimum(own, other), np.maximum(own, other)
    for code in np.unique(low * len(rows) + high).tolist():
        yield divmod(code, len(rows))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Answers:
    """References ready to be asked: the ``rows`` (R,) of those that voted, and their cleaned ``votes`` (R, K).

    What is taken off the square roots of shares: their ``mean`` (K,) and the orthonormal directions ``noise`` (B, K).
    """

    rows: NDArray[np.int64]
    votes: Floats
    mean: Floats
    noise: Floats

    @staticmethod
    def of(references: Signatures) -> "_Answers":
        rows = np.flatnonzero(references.shares.any(axis=1))
        shares, background = references.shares[rows], references.codebook.background
        assert background is not None  # a codebook always has one, if an empty one
        usual = np.maximum(shares.mean(axis=0, dtype=np.float64), 0.01 / shares.shape[1])
        # a change of a share s by d changes its root by d / (2 sqrt(s))
        _, sizes, directions = np.linalg.svd(background / np.sqrt(usual), full_matrices=False)
        noise = directions[sizes > 1e-6 * sizes.max(initial=1e-30)].astype(np.float32)
        mean = np.sqrt(shares).mean(axis=0)
        return _Answers(rows, _weighed(_cleaned(shares, mean, noise)), mean, noise)

    def scores(self, shares: Floats) -> Floats:
        """Return how much images (Q, K) vote like each of the references, (Q, R)."""
        result: Floats = _cleaned(shares, self.mean, self.noise) @ self.votes.T
        return result


def _cleaned(shares: Floats, mean: Floats, noise: Floats) -> Floats:
    left: Floats = np.sqrt(shares) - mean
    left -= (left @ noise.T) @ noise
    return left


def _weighed(cleaned: Floats) -> Floats:
    """Divide each image (N, K) by the geometric mean of its length and its usual score.

    Its usual score is the root mean square of its products with the others, of length 1 each. Length alone is too kind
    to images of few features, whose votes are mostly noise; the usual score alone too hard on those of large scenes.
    """
    norms = np.linalg.norm(cleaned, axis=1)
    units = cleaned / np.where(norms > 0, norms, 1)[:, None]
    total = np.einsum("nk,nk->n", cleaned @ (units.T @ units), cleaned, dtype=np.float64)
    usual = np.sqrt(np.maximum(total - norms**2, 0) / max(1, len(cleaned) - 1))
    scale = np.sqrt(norms * np.where(usual > 1e-6 * norms, usual, norms))
    result: Floats = (cleaned / np.where(scale > 0, scale, 1)[:, None]).astype(np.float32)
    return result


def _best(scores: Floats, rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the ``rows`` of the ``count`` highest scores of each line, highest first, -1 where there is none."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]  # of equals the first
    found = np.isfinite(np.take_along_axis(scores, order, axis=1))
    best = np.where(found, rows[order], -1)
    return np.pad(best, ((0, 0), (0, count - best.shape[1])), constant_values=-1)


def _vote(side: Side, words: Prepared, params: RetrievalParams) -> Floats:
    """Return the share (K,) of the votes of one image that each word got; 0 without features."""
    if not len(side.origin):
        return np.zeros(len(words), np.float32)
    settings = MatchParams(threads=params.threads, device=params.device)
    found = run_search(prepare(side.origin, side.basis), words, (params.votes, 0), settings)
    votes = np.bincount(found.rows0[found.rows0 >= 0], minlength=len(words))
    shares: Floats = (votes / max(1, votes.sum())).astype(np.float32)
    return shares


def _bundled(side: Side, name: str) -> Codebook:
    if side.extractor is None:
        raise InputError(f"image {name!r:.200} is plain points: give a codebook of the same space with --codebook")
    if side.recipe is not None and side.recipe.has_encoder:
        raise InputError(
            f"image {name!r:.200} lives in the space of {tell_space(side)}, the bundled codebook does not: give the "
            f"encoder with --encoder, or a codebook of that space"
        )
    return load_codebook(side.extractor.name)


def _check(side: Side, name: str, codebook: Codebook) -> None:
    mine, words = side.origin.shape[1], codebook.words.shape[1]
    if mine != words:
        raise InputError(f"image {name!r:.200} has {mine} dimensions, the codebook {words}: give one of its kind")
    if side.extractor is not None and not side.extractor.matches(codebook.extractor):
        raise InputError(
            f"image {name!r:.200} holds {side.extractor.name}, the codebook words of {codebook.extractor.name}: give "
            f"decoys of the same kind with --codebook"
        )
    if side.recipe is not None and side.recipe.space != codebook.space:
        raise InputError(
            f"image {name!r:.200} and the codebook live in different spaces: {tell_space(side)} and "
            f"{'no encoder' if codebook.space == 'clear' else codebook.space}: give the encoder with --encoder"
        )


def _positive(count: Any) -> int:
    wanted = whole_number(count, "count")
    if wanted < 1:
        raise InputError(f"count: expected 1 or more images for each, got {wanted}")
    return wanted
