# SPDX-License-Identifier: Apache-2.0
"""Shortlists: the images of a map that a query is compared with, named, chosen by votes, or all of a small map.

Server side: names, and votes of concealed features. Never imports the clear types.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sfumato.errors import FileError, InputError
from sfumato.files.atomic import open_text
from sfumato.geometry.maps import Map
from sfumato.matching.bit_votes import check_sealed_alike
from sfumato.matching.codebook import Codebook, load_codebook
from sfumato.matching.mutual import side_of
from sfumato.matching.pairs import parse_rule
from sfumato.matching.retrieval import USUAL_COUNT, candidates, is_sealed, refuse_codebook, sign
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import Bits, ConcealedFeatures
from sfumato.types.progress import Progress

SMALL_MAP = 100
"""Largest map whose images are all tried where no shortlist is given; of a larger one votes choose."""

SHOWN = 5

CandidateChoice = Callable[[str, ConcealedFeatures], Sequence[str]]
"""Given the name of a query and its features, the images of the map to compare it with."""


CandidatesLike = str | os.PathLike[str] | Mapping[str, Sequence[str]]
"""A rule, the path of a file with a query and an image of the map per line, or images of the map by query."""


def choose_candidates(
    map_: Map,
    pairs: CandidatesLike = "exhaustive",
    codebook: Codebook | None = None,
    *,
    progress: Progress = iter,
) -> CandidateChoice:
    """Return the choice of images of a map to compare queries with.

    ``pairs``: "exhaustive" for all images of a map of up to 100, and for the 20 that vote most like a query of a larger
    one; "votes:20" for these 20 of any map; the path of a file with a query and an image of the map per line; or a
    mapping of queries to names.
    """
    if isinstance(pairs, Mapping):
        names = {query: tuple(images) for query, images in pairs.items()}
        return lambda name, query: names.get(name, ())
    rule, count = parse_rule(pairs)
    if rule == "votes":
        return _by_votes(map_, count, codebook, progress=progress)
    if rule == "sequential":
        raise InputError(f"pairs: {pairs!r:.80} is for videos; compare queries by 'exhaustive', 'votes:20' or a file")
    if rule and len(map_) > SMALL_MAP:
        return _by_votes(map_, USUAL_COUNT, codebook, progress=progress)
    return (lambda name, query: map_.names) if rule else _by_pairs(pairs)


def _by_votes(
    map_: Map,
    count: int,
    codebook: Codebook | None = None,
    *,
    progress: Progress = iter,
) -> CandidateChoice:
    """Compare with the ``count`` images of the map that vote most like the query; see ``matching.retrieval``.

    Without a ``codebook``, the bundled one of the map's descriptors. Images of the map that cannot be read are named
    in the map.
    """
    if whole_number(count, "retrieval") < 1:
        raise InputError(f"retrieval: expected 1 image or more, got {count}")
    if is_sealed(map_.landmarks()):
        refuse_codebook(codebook)
        return _by_bits(map_, count, progress=progress)
    references = sign(map_.landmarks(), codebook or _bundled_codebook(map_), progress=progress)
    map_.damaged.update(references.unreadable)

    def shortlist(name: str, query: ConcealedFeatures) -> Sequence[str]:
        return candidates(sign({name: query}, references.codebook), references, count)[name]

    return shortlist


def _by_bits(map_: Map, count: int, *, progress: Progress = iter) -> CandidateChoice:
    """Compare with the ``count`` images of a sealed map that hold most of the nearest bits of a query."""
    votes = map_.votes(progress=progress)

    def shortlist(name: str, query: ConcealedFeatures) -> Sequence[str]:
        check_sealed_alike(votes.side, side_of(query, "query"), name)
        assert isinstance(query.code, Bits)
        return [votes.names[number] for number in votes.nearest_images(query.code, count)]

    return shortlist


def _bundled_codebook(map_: Map) -> Codebook | None:
    """Return the codebook of a map's public points; concealed landmarks say themselves what they need."""
    return load_codebook(map_.extractor.name) if map_.is_public and map_.extractor else None


def _by_pairs(path: str | os.PathLike[str]) -> CandidateChoice:
    """Compare with the images that a file names; a query it does not name gets none."""
    pairs = read_shortlists(path)
    return lambda name, query: pairs.get(name, ())


def read_shortlists(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """Read hloc's pairs of a query and an image of the map, ``query image`` per line, # for comments; repeats count
    once.

    Unlike the pairs that are matched to make a map, these have a direction: ``a b`` does not say that b is a query.

    Raises FileError naming all wrong lines at once.
    """
    path, wrong, count = Path(path), [], 0
    candidates_of: dict[str, dict[str, None]] = {}
    with open_text(path, errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) == 2:
                candidates_of.setdefault(words[0], {})[words[1]] = None
                continue
            count += 1
            if count <= SHOWN:
                wrong.append(f"line {number} has {len(words)} words")
    if wrong:
        more = f" and {count - SHOWN} more" if count > SHOWN else ""
        raise FileError(
            f"{path}: {', '.join(wrong)}{more}: expected a query and an image of the map; names with spaces cannot be "
            f"listed"
        )
    return {query: tuple(images) for query, images in candidates_of.items()}
