# SPDX-License-Identifier: Apache-2.0
"""Match files: hloc's matches.h5 with the distances and with what made it; see docs/reference/file_formats.md.

Reads ours, whose digests are checked, and hloc's own. Trusts no file: ``files.hdf5`` refuses what hloc never writes,
and numbers that are no rows are refused here. Holds no descriptor of any kind.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError
from sfumato.files.hdf5 import SIGNATURE, Arrays, GroupContent, Hdf5Reader, Hdf5Writer
from sfumato.matching.mutual import MatchParams
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Matches

FORMAT, VERSION = "sfumato-matches", 2
MATCHES, SCORES, DISTANCES = "matches0", "matching_scores0", "distances"
DIGEST = "digest"
ADVICE = "match again, with --overwrite"

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Parameters that a match file was made with, and the number of features and the checksum of each image."""

    parameters: Mapping[str, Any]
    images: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    recipes: tuple[str, ...] = ()


def parameters_of(params: MatchParams) -> dict[str, Any]:
    """Return what decides the matches; where and how fast they are computed does not."""
    ratio, limit = (None if value is None else float(value) for value in (params.ratio, params.max_distance))
    return {"mutual": bool(params.mutual), "ratio": ratio, "max_distance": limit}


def group_name(name: str) -> str:
    """Return what hloc calls the group of an image: its name with - for /.

    >>> group_name("db/1.jpg")
    'db-1.jpg'
    """
    safe = name.replace("/", "-")
    if safe in ("", ".", "..") or "\0" in safe or any("\ud800" <= letter <= "\udfff" for letter in safe):
        raise InputError(f"no match file can hold an image called {name!r:.80}: rename it")
    return safe


def bits_of(recipe: Recipe) -> int | None:
    """Return the number of bits of a sealed feature, None where features are not sealed."""
    return recipe.links[-1].dim if recipe.is_sealed else None


def scores_of(distances: NDArray[np.float32], bits: int | None = None) -> NDArray[np.float16]:
    """Return hloc's score of nearest neighbours, from 0 to 1.

    Of unit vectors (similarity + 1) / 2, which is 1 - d^2 / 4; of sealed features the share of the ``bits`` that agree.

    >>> scores_of(np.array([0, 1, 2])).tolist(), scores_of(np.array([0, 128]), 512).tolist()
    ([1.0, 0.75, 0.0], [1.0, 0.75])
    """
    numbers = distances.astype(np.float64)
    return np.clip(1 - (np.square(numbers) / 4 if bits is None else numbers / bits), 0, 1).astype(np.float16)


# --- reading


def load_matches(path: str | os.PathLike[str]) -> "MatchFile":
    """Open a match file; matches are read on access.

    Raises FileError for a file that is missing, damaged, hostile or of another kind or version.
    """
    return MatchFile(path)


class MatchFile(Mapping[Pair, Matches]):
    """A read-only mapping of pairs of image names to Matches, in either order of the two names.

    Asked for (b, a) where (a, b) is stored, it swaps the columns. ``provenance`` is what the file was made with, None
    for one that hloc wrote: its pairs are then listed as it spells them, with - for /, and distances are derived from
    its scores, d = 2 sqrt(1 - score), score 1 being distance 0.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = Hdf5Reader(path, "match file", ADVICE)
        try:
            with self._file.explain():
                self.provenance, self._count = _read_provenance(self._file.texts())
        except BaseException:
            self.close()
            raise
        self._names = {group_name(name): name for name in self.provenance.images} if self.provenance else {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "MatchFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, pair: Pair) -> Matches:
        for swapped, groups in enumerate(self._groups(pair)):
            with self._file.explain(f", pair {groups[0]} {groups[1]}"):
                content = self._file.read("/".join(groups), self._lists, texts=self.provenance is not None)
                if content is None:
                    continue
                matches = self._parse(groups, content)
            if not swapped:
                return matches
            order = np.argsort(matches.indices[:, 1], kind="stable")
            return Matches(matches.indices[order, ::-1], matches.distances[order])
        with self._file.explain():
            if any(pair == one for one in self.listed_pairs()):
                raise InputError(f"the pair {pair[0]!r:.80} {pair[1]!r:.80} is listed and not there")
        raise KeyError(pair)

    def __contains__(self, pair: object) -> bool:
        with self._file.explain():
            return any(self._file.read("/".join(groups)) is not None for groups in self._groups(pair))

    def __iter__(self) -> Iterator[Pair]:
        with self._file.explain():
            for first, second in self._walk():
                yield self._names.get(first, first), self._names.get(second, second)

    def __len__(self) -> int:
        with self._file.explain():
            return sum(1 for _ in self._walk())

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"MatchFile({str(self.path)!r})"

    def listed_pairs(self) -> Iterator[Pair]:
        """Yield all pairs that the file names, also where pairs are missing or damaged."""
        with self._file.explain():
            outer = [member.name for member in next(self._file.members([""])) if member.kind == "group"]
            for first, inner in zip(outer, self._file.members(outer), strict=True):
                for member in inner:
                    yield self._names.get(first, first), self._names.get(member.name, member.name)

    def arrays(self, pair: Pair) -> Arrays:
        """Return the lists of a pair as they are stored, in the order of the two names in which they are.

        Raises InputError if they are damaged, FileError if the file cannot be read any further.
        """
        groups = group_name(pair[0]), group_name(pair[1])
        content = self._file.read("/".join(groups), self._lists, texts=self.provenance is not None)
        if content is None:
            raise InputError(f"there is no pair {pair[0]!r:.80} {pair[1]!r:.80}")
        self._parse(groups, content)
        return content.arrays

    @property
    def _lists(self) -> tuple[str, ...]:
        return (MATCHES, SCORES) if self.provenance is None else (MATCHES, SCORES, DISTANCES)

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Yield the two groups of each pair; raise InputError if a pair of ours is missing."""
        members, count = next(self._file.members([""])), 0
        wrong = [member for member in members if member.kind != "group"]
        if wrong:
            raise InputError(f"{wrong[0].name!r:.80} is not a group of matches")
        outer = [member.name for member in members]
        for first, inner in zip(outer, self._file.members(outer), strict=True):
            for member in inner:
                if member.kind != "group":
                    raise InputError(f"{first!r:.80} {member.name!r:.80} are no matches of a pair")
                if self.provenance is not None and not {first, member.name} <= self._names.keys():
                    raise InputError(f"{first!r:.80} {member.name!r:.80} are no images that it was made from")
                yield group_name(first), group_name(member.name)
                count += 1
        if self._count not in (None, count):
            raise InputError(f"{count} of {self._count} pairs are there")

    def _groups(self, pair: object) -> list[tuple[str, str]]:
        """Return the groups that may hold a pair: as it is named, and the other way round."""
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            return []
        try:
            first, second = map(group_name, pair)
        except InputError:
            return []
        if self._names and (self._names.get(first) != pair[0] or self._names.get(second) != pair[1]):
            return []  # another image of the same spelling
        return [(first, second), (second, first)]

    def _parse(self, groups: tuple[str, str], content: GroupContent) -> Matches:
        rows, scores = _list(content, MATCHES, "iu"), _list(content, SCORES, "f")
        matched = np.flatnonzero(rows != -1)
        partners = rows[matched].astype(np.int64)
        if (partners < 0).any():
            raise InputError(f"{MATCHES} holds negative rows: hloc's int16 overflows above 32,767 keypoints")
        if len(scores) != len(rows) or np.isnan(scores).any():
            raise InputError(f"{SCORES} must be a number for each of the {len(rows)} rows")
        if self.provenance is None:
            distances = 2 * np.sqrt(1 - np.clip(scores[matched].astype(np.float64), 0, 1))
            return Matches(np.stack([matched, partners], axis=1), distances.astype(np.float32))
        distances = _list(content, DISTANCES, "f")
        names = [self._names.get(group, "") for group in groups]
        if content.texts.get(DIGEST) != digest_pair((names[0], names[1]), content.arrays):
            raise InputError("the digest of its matches is wrong: they were damaged or changed")
        counts = [self.provenance.images.get(name, (0,))[0] for name in names]
        if len(rows) != counts[0] or (partners >= counts[1]).any():
            raise InputError(f"{MATCHES} does not fit images of {counts[0]} and {counts[1]} features")
        return Matches(np.stack([matched, partners], axis=1), distances.astype(np.float32))


def _list(content: GroupContent, key: str, kinds: str) -> NDArray[Any]:
    data = content.array(key)
    if data.dtype.kind not in kinds or data.ndim != 1:
        raise InputError(f"{key} is not a list of numbers")
    return data


def _read_provenance(texts: Mapping[str, str | None]) -> tuple[Provenance | None, int | None]:
    """Return what a file was made with and its number of pairs, None for both in a file of hloc."""
    if "format" not in texts:
        return None, None
    if texts["format"] != FORMAT:
        raise InputError("this is another kind of file, not matches")
    if texts.get("version") != str(VERSION):
        raise InputError(f"it has another version of the format, this Sfumato reads {VERSION}")
    signed = {key: texts.get(key) or "" for key in ("format", "version", "parameters", "images", "recipes", "pairs")}
    if texts.get(DIGEST) != _digest_texts(signed):
        raise InputError("the digest of what it was made with is wrong: it was damaged or changed")
    try:
        settings, facts, recipes = (json.loads(signed[key]) for key in ("parameters", "images", "recipes"))
        MatchParams(**settings)
        table = {name: (int(count), str(checksum)) for name, (count, checksum) in facts.items()}
        if len({group_name(name) for name in table}) != len(table):
            raise InputError("two of its images are spelt alike")
        return Provenance(settings, table, tuple(str(recipe) for recipe in recipes)), int(signed["pairs"])
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise InputError("what it was made with cannot be read") from cause


# --- writing


def pair_arrays(matches: Matches, count: int, bits: int | None) -> Arrays:
    """Return the lists of a pair whose first image has ``count`` features, as a match file holds them."""
    order = np.argsort(matches.indices[:, 0], kind="stable")
    first, second = matches.indices[order].T
    distances = matches.distances[order]
    rows, scores = np.full(count, -1, np.int32), np.zeros(count, np.float16)
    rows[first], scores[first] = second, scores_of(distances, bits)
    return {MATCHES: rows, SCORES: scores, DISTANCES: distances}


def write_pairs(file: Hdf5Writer, provenance: Provenance, pairs: Iterable[tuple[Pair, Arrays]]) -> None:
    """Write the lists of pairs, in their order, and what they were made with."""
    count = 0
    for pair, arrays in pairs:
        file.add("/".join(map(group_name, pair)), arrays, {"": {DIGEST: digest_pair(pair, arrays)}})
        count += 1
    texts = {
        "format": FORMAT,
        "version": str(VERSION),
        "parameters": json.dumps(provenance.parameters, sort_keys=True),
        "images": json.dumps({name: list(facts) for name, facts in sorted(provenance.images.items())}),
        "recipes": json.dumps(sorted(provenance.recipes)),
        "pairs": str(count),
    }
    file.add("", {}, {"": {**texts, DIGEST: _digest_texts(texts)}})


def digest_pair(pair: Pair, arrays: Arrays) -> str:
    """Return the digest of the names and lists of a pair."""
    state = hashlib.blake2b(json.dumps(pair).encode("ascii"), digest_size=16, person=b"sfumato-matches")
    for key in (MATCHES, SCORES, DISTANCES):
        array = arrays[key]
        state.update(f"{key} {array.dtype.str} {array.shape}".encode("ascii"))
        state.update(np.ascontiguousarray(array).data)
    return state.hexdigest()


def _digest_texts(texts: Mapping[str, str]) -> str:
    raw = json.dumps(texts, sort_keys=True).encode("ascii")
    return hashlib.blake2b(raw, digest_size=16, person=b"sfumato-matches").hexdigest()


# --- what a match file may replace: match files, and nothing that somebody may still need


OTHERS = b"sfumato-archive", b"sfumato-public-points"
WINDOW = 2**20


def part_of(target: Path) -> Path:
    """Return the file beside a match file that keeps the pairs of an unfinished run."""
    return target.with_name(target.name + ".part")


def refuse_inputs(output: str | os.PathLike[str], inputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Refuse to write to a file that is read: ``inputs`` are files by what they are, None for one that is absent."""
    target = Path(os.path.realpath(output))
    for what, path in inputs.items():
        for place in (target, part_of(target)):
            if path is not None and _is_same(place, Path(path)):
                raise FileError(f"cannot write to {output}: it is {what}, {path}; choose another output")


def _is_same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # one of them is not there
        return False


def refuse_irreplaceable(path: Path, target: Path) -> None:
    """Refuse to replace what is no match file, ours or hloc's, whole or cut off. ``path`` is how its user calls it."""
    if not target.exists() or target.stat().st_size == 0:
        return
    if not is_match_file(target):
        raise FileError(
            f"{path} is something else than matches: only a match file is ever replaced; choose another output, or "
            f"move it away"
        )


def is_match_file(target: Path) -> bool:
    """Tell whether a file holds matches, ours or hloc's, whole or cut off; judged by what it holds, not its name."""
    try:
        with target.open("rb") as raw:
            if raw.read(len(SIGNATURE)) != SIGNATURE:
                return False
    except OSError as cause:
        raise FileError(f"cannot read {target}: {cause.strerror}; check its permissions") from cause
    try:
        with Hdf5Reader(target, "match file", ADVICE) as file:
            texts = file.texts()
            return texts["format"] == FORMAT if "format" in texts else _holds_pairs(file, bool(texts))
    except (FileError, InputError):
        return _was_match_file(target)


def _holds_pairs(file: Hdf5Reader, has_attributes: bool) -> bool:
    """Tell whether everything in a file is a pair of hloc's; an empty file is one without pairs."""
    outer = next(file.members([""]))
    if not outer:
        return not has_attributes
    if any(member.kind != "group" for member in outer):
        return False
    for group, inner in zip(outer, file.members(member.name for member in outer), strict=True):
        if not inner or any(member.kind != "group" for member in inner):
            return False
        names = (f"{group.name}/{member.name}" for member in inner)
        if not all(any(one.name == MATCHES for one in lists) for lists in file.members(names)):
            return False
    return True


def _was_match_file(target: Path) -> bool:
    """Tell whether a file that HDF5 cannot open was a match file, by words only those hold."""
    words = dict.fromkeys((FORMAT.encode(), MATCHES.encode(), SCORES.encode(), *OTHERS), False)
    with target.open("rb") as raw:
        before = b""
        while window := raw.read(WINDOW):
            for word in words:
                words[word] |= word in before + window
            before = window[-64:]
    if any(words[other] for other in OTHERS):
        return False
    return words[FORMAT.encode()] or (words[MATCHES.encode()] and words[SCORES.encode()])
