# SPDX-License-Identifier: Apache-2.0
"""Shortlists: the images of a map that a query is compared with, named, chosen by votes, or all of a small map.

Server side: names, and votes of concealed features. Never imports the clear types.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from sfumato.errors import FileError, InputError
from sfumato.geometry.maps import Map
from sfumato.matching.codebook import Codebook, load_codebook
from sfumato.matching.pairs import parse_rule
from sfumato.matching.retrieval import candidates, sign
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.progress import Progress

SMALL_MAP = 100
"""Largest map whose images are all tried where no shortlist is given."""

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

    ``pairs``: "exhaustive" for all images of a small map, "votes:20" for the 20 that vote most like a query, the path
    of a file with a query and an image of the map per line, or a mapping of queries to names.
    """
    if isinstance(pairs, Mapping):
        names = {query: tuple(images) for query, images in pairs.items()}
        return lambda name, query: names.get(name, ())
    rule, count = parse_rule(pairs)
    if rule == "votes":
        return _by_votes(map_, count, codebook, progress=progress)
    if rule == "sequential":
        raise InputError(f"pairs: {pairs!r:.80} is for videos; compare queries by 'exhaustive', 'votes:20' or a file")
    return _every_image(map_.names) if rule else _by_pairs(pairs)


def _every_image(names: Collection[str]) -> CandidateChoice:
    """Compare with every image of a small map; a larger one is an InputError that says what to do."""
    if len(names) > SMALL_MAP:
        raise InputError(
            f"the map has {len(names)} images, too many to try all for every query: name those to try with --pairs "
            f"FILE, or find them with --retrieval 20"
        )
    all_names = tuple(names)
    return lambda name, query: all_names


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
    references = sign(map_.landmarks(), codebook or _bundled_codebook(map_), progress=progress)
    map_.damaged.update(references.unreadable)

    def shortlist(name: str, query: ConcealedFeatures) -> Sequence[str]:
        return candidates(sign({name: query}, references.codebook), references, count)[name]

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
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
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
    except OSError as cause:
        raise FileError(f"{path}: cannot read the pairs ({cause.strerror or cause}); check the path") from cause
    if wrong:
        more = f" and {count - SHOWN} more" if count > SHOWN else ""
        raise FileError(
            f"{path}: {', '.join(wrong)}{more}: expected a query and an image of the map; names with spaces cannot be "
            f"listed"
        )
    return {query: tuple(images) for query, images in candidates_of.items()}
