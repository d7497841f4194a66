# SPDX-License-Identifier: Apache-2.0
"""Retrieval: the pairs of images worth matching, chosen by name or by votes of their concealed features.

Each subspace votes for the words of a codebook it passes nearest to, and bits vote for images (``bit_votes``). A global
descriptor of the clear features would do better, and would itself reveal what the picture shows. What the decoys of an
image vote for is noise; most of it is known in advance (``Codebook.background``) and taken out. Never imports the clear
types.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.matching.bit_votes import BitVotes, collect
from sfumato.matching.codebook import Codebook, load_codebook
from sfumato.matching.mutual import MatchParams, Side, prepare_side, run_search, side_of, space_name
from sfumato.matching.pairs import (
    RULES,
    PairList,
    PairsLike,
    exhaustive,
    list_pairs,
    parse_rule,
    read_pairs,
    refuse_unknown,
    sequential,
)
from sfumato.subspace.fast import prepare
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import Bits
from sfumato.types.progress import Progress

Floats = NDArray[np.float32]

USUAL_COUNT = 20
"""Images that each is compared with, where votes choose them and nobody says how many."""
VOTES = 16
"""Words each subspace votes for. Clear descriptors want one; decoys draw the nearest votes away."""
ROWS_AT_ONCE = 256
"""Images whose scores with all others are in memory at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalParams:
    """Settings of votes: the words each subspace votes for; ``threads`` and ``device`` as in ``sfumato.match``."""

    votes: int = VOTES
    threads: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if whole_number(self.votes, "votes") < 1:
            raise InputError(f"votes: expected 1 or more words for each subspace, got {self.votes}")
        MatchParams(threads=self.threads, device=self.device)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Signatures:
    """Votes of several images: ``shares`` (N, K) float32, rows of sum 1; 0 where an image has no features.

    ``unreadable`` names images that could not be read, with reasons; they have no row.
    """

    names: tuple[str, ...]
    shares: Floats
    codebook: Codebook
    unreadable: Mapping[str, str] = field(default_factory=dict)
    cache: dict[str, "_Answers"] = field(default_factory=dict, init=False)

    @property
    def featureless(self) -> tuple[str, ...]:
        """The images without features; nothing can be said of them."""
        return tuple(name for name, row in zip(self.names, self.shares, strict=True) if not row.any())

    def __repr__(self) -> str:
        return f"Signatures({len(self.names)} images, {self.shares.shape[1]} words)"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class PairChoice:
    """The ``pairs`` to match, and the images that votes left out: without features, or unreadable and why."""

    pairs: PairList
    featureless: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"PairChoice({self.pairs!r})"


def choose_pairs(
    images: Mapping[str, Any],
    pairs: PairsLike = "exhaustive",
    codebook: Codebook | None = None,
    params: RetrievalParams | None = None,
    *,
    progress: Progress = iter,
) -> PairChoice:
    """Return the pairs of images to match.

    ``pairs``: "exhaustive", "sequential:10", "votes:20" (as ``shortlist``, for which the other parameters are), the
    path of a file with two names per line, or an iterable of pairs of names.

    Raises InputError for another rule and for names that are not among the images, FileError for a file.

    >>> sorted(choose_pairs(dict.fromkeys("abc"), "sequential:1").pairs)
    [('a', 'b'), ('b', 'c')]
    """
    rule, count = parse_rule(pairs)
    if rule == "votes":
        return shortlist(images, count, codebook, params, progress=progress)
    if rule == "exhaustive":
        return PairChoice(exhaustive(images))
    if rule == "sequential":
        return PairChoice(sequential(images, count))
    if isinstance(pairs, str) and not os.path.exists(pairs):
        rules = ", ".join(map(repr, RULES.values()))
        raise FileError(f"{pairs}: no such file of pairs, and not one of the rules {rules}{suggest(pairs, RULES)}")
    if isinstance(pairs, str | os.PathLike):
        return PairChoice(read_pairs(pairs, images))
    if isinstance(pairs, PairList):
        refuse_unknown(pairs.names, images)
        return PairChoice(pairs)
    if not isinstance(pairs, Iterable):
        raise InputError(f"pairs: expected a rule, a path or pairs of names, got {type(pairs).__name__}")
    return PairChoice(list_pairs(pairs, images))


def shortlist(
    images: Mapping[str, Any],
    count: int,
    codebook: Codebook | None = None,
    params: RetrievalParams | None = None,
    *,
    progress: Progress = iter,
) -> PairChoice:
    """Return each image with the ``count`` others that vote most like it; a pair that either side names is in, once.

    ``images`` is an archive, or a mapping of names to ConcealedFeatures; they are read one at a time, once. Of each
    stay in memory 8 bytes per word of the codebook, and of sealed ones their bits (``bit_votes``), which need no
    codebook. Without a ``codebook`` SIFT and RootSIFT get the bundled one. Where ``count`` takes in all other images
    there is nothing to choose: every pair is returned and nothing is read.

    Raises InputError for a codebook of another kind of descriptor, or of sealed features, and if no two images have
    features or votes.
    """
    count = _positive(count)
    if count >= len(images) - 1:
        return PairChoice(exhaustive(images))
    voters: Signatures | BitVotes
    if is_sealed(images):
        refuse_codebook(codebook)
        voters = collect(images)
        rows = _rows_of_bits(voters, count, None if params is None else params.threads, progress)
    else:
        voters = sign(images, codebook, params, progress=progress)
        rows = nearest_images(voters, voters, count)
    names = voters.names
    pairs = list_pairs((names[i], names[j]) for i, j in _either_way(rows))
    if not len(pairs):
        raise InputError(
            f"no shortlist of {len(images)} images: {len(voters.featureless)} have no features and "
            f"{len(voters.unreadable)} cannot be read"
        )
    return PairChoice(pairs, voters.featureless, voters.unreadable)


def is_sealed(images: Mapping[str, Any]) -> bool:
    """Tell by the first image that can be read whether images are sealed."""
    for name in images:
        try:
            return isinstance(side_of(images[name], name).code, Bits)
        except FileError:
            continue
    return False


def refuse_codebook(codebook: object) -> None:
    """Raise InputError if something to make a codebook of is given where features are sealed."""
    if codebook is not None:
        raise InputError(
            "sealed features vote without a codebook, whose words only a holder of the key could seal: leave out "
            "--codebook and --encoder"
        )


def _rows_of_bits(voters: BitVotes, count: int, threads: int | None, progress: Progress) -> NDArray[np.int64]:
    """Return for each image the numbers (N, count) of those with most of its votes, -1 for none."""
    rows = np.full((len(voters.names), count), -1, np.int64)
    for number, _ in enumerate(progress(voters.names)):
        bits = Bits(voters.packed[voters.starts[number] : voters.starts[number + 1]])
        nearest = voters.nearest_images(bits, count, own=number, threads=threads)
        rows[number, : len(nearest)] = nearest
    return rows


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
    words: SubspaceSet | None = None
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
    count = min(_positive(count), max(1, len(references.names)))
    if references.shares.shape[1] != queries.shares.shape[1]:
        raise InputError("queries and references voted for the words of different codebooks")
    rows = np.full((len(queries.names), count), -1, np.int64)
    if not references.shares.any() or not len(rows):
        return rows
    if "answers" not in references.cache:  # for the next query
        references.cache["answers"] = _Answers.of(references)
    answers = references.cache["answers"]
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        scores = answers.scores(queries.shares[block])
        if queries is references:
            scores[np.arange(start, start + len(scores))[:, None] == answers.rows] = -np.inf
        scores[~queries.shares[block].any(axis=1)] = -np.inf
        rows[block] = _best(scores, answers.rows, count)
    return rows


def _either_way(rows: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Yield the pairs of an image and one of its nearest, ``rows`` (N, count), each once, whichever image names it."""
    own = np.repeat(np.arange(len(rows)), rows.shape[1])[rows.ravel() >= 0]
    other = rows[rows >= 0]
    low, high = np.minimum(own, other), np.maximum(own, other)
    for code in np.unique(low * len(rows) + high).tolist():
        yield divmod(code, len(rows))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class _Answers:
    """References ready to be compared with: the ``rows`` (R,) of those that voted, and their cleaned ``votes`` (R, K).

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
    """Return the ``rows`` of the ``count`` highest scores of each line, highest first, -1 where there are fewer."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]  # of equals the first
    is_there = np.isfinite(np.take_along_axis(scores, order, axis=1))
    best = np.where(is_there, rows[order], -1)
    return np.pad(best, ((0, 0), (0, count - best.shape[1])), constant_values=-1)


def _vote(side: Side, words: SubspaceSet, params: RetrievalParams) -> Floats:
    """Return the share (K,) of the votes of one image that each word got; 0 without features."""
    if not len(side):
        return np.zeros(len(words), np.float32)
    settings = MatchParams(threads=params.threads, device=params.device)
    nearest = run_search(prepare_side(side), words, (params.votes, 0), settings)
    votes = np.bincount(nearest.rows0[nearest.rows0 >= 0], minlength=len(words))
    shares: Floats = (votes / max(1, votes.sum())).astype(np.float32)
    return shares


def _bundled(side: Side, name: str) -> Codebook:
    if side.extractor is None:
        raise InputError(f"image {name!r:.200} is plain points: give a codebook of the same space with --codebook")
    if side.recipe is not None and side.recipe.has_encoder:
        raise InputError(
            f"image {name!r:.200} went through {space_name(side)}, the bundled codebook did not: give the encoder with "
            f"--encoder FILE (in Python: codebook=sfumato.codebook_for(archive, encoder=...))"
        )
    return load_codebook(side.extractor.name)


def _check(side: Side, name: str, codebook: Codebook) -> None:
    width, words = side.ambient_dim, codebook.words.shape[1]
    if width != words:
        raise InputError(f"image {name!r:.200} has {width} dimensions, the codebook {words}: give one of its kind")
    if side.extractor is not None and not side.extractor.matches(codebook.extractor):
        raise InputError(
            f"image {name!r:.200} holds {side.extractor.name}, the codebook words of {codebook.extractor.name}: give "
            f"decoys of the same kind with --codebook"
        )
    if side.recipe is not None and side.recipe.space != codebook.space:
        raise InputError(
            f"image {name!r:.200} and the codebook live in different spaces, {space_name(side)} and "
            f"{'no encoder' if codebook.space == 'clear' else codebook.space}: give the encoder with --encoder FILE"
        )


def _positive(count: Any) -> int:
    number = whole_number(count, "votes")
    if number < 1:
        raise InputError(f"votes: expected 1 or more images for each, got {number}")
    return number
