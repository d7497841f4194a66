# SPDX-License-Identifier: Apache-2.0
"""Match files: hloc's matches.h5 with the distances and with what made it; see docs/matches.md.

Reads ours and hloc's own. Trusts no file: links, other files' data, foreign filters, arrays larger than the file can
hold and numbers that are no rows are refused. Holds no descriptor of any kind.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.files.hdf5 import Hdf5File, find_array, find_group
from sfumato.matching.mutual import MatchParams
from sfumato.types.scene import Matches

FORMAT, VERSION = "sfumato-matches", 1
MATCHES, SCORES, DISTANCES = "matches0", "matching_scores0", "distances"
LARGEST_TABLE = 2**30
ADVICE = "match again, with --overwrite"


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
    if safe in ("", ".") or "\0" in safe or any("\ud800" <= letter <= "\udfff" for letter in safe):
        raise InputError(f"no match file can hold an image called {name!r:.80}: rename it")
    return safe


def scores_of(distances: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return hloc's score of nearest neighbours, (similarity + 1) / 2 of unit vectors, which is 1 - d^2 / 4, from 0."""
    return np.clip(1 - np.square(distances.astype(np.float64)) / 4, 0, 1).astype(np.float16)


def load_matches(path: str | os.PathLike[str]) -> "MatchFile":
    """Open a match file; matches are read on access.

    Raises FileError for a file that is missing, damaged, hostile or of another kind or version.
    """
    return MatchFile(path)


class MatchFile(Hdf5File, Mapping[tuple[str, str], Matches]):
    """A read-only mapping of pairs of image names to Matches, in either order of the two names.

    Asked for (b, a) where (a, b) is stored, it swaps the columns. ``provenance`` is what the file was made with, None
    for one that hloc wrote: its pairs are then listed as it spells them, with - for /, and distances are derived from
    its scores, d = 2 sqrt(1 - score), score 1 being distance 0.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "match file", ADVICE)
        try:
            with self._explain_damage():
                self.provenance = self._read_provenance()
        except BaseException:
            self.close()
            raise
        self._names = {group_name(name): name for name in self.provenance.images} if self.provenance else {}

    def __getitem__(self, pair: tuple[str, str]) -> Matches:
        place = self._find(pair)
        if place is None:
            raise KeyError(pair)
        (first, second), swapped = place
        with self._explain_damage(f", pair {first} {second}"):
            matches = self._read(first, second)
        if not swapped:
            return matches
        order = np.argsort(matches.indices[:, 1], kind="stable")
        return Matches(matches.indices[order, ::-1], matches.distances[order])

    def __contains__(self, pair: object) -> bool:
        return self._find(pair) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with self._explain_damage():
            for first in self._file:
                for second in find_group(self._file, first):
                    yield self._names.get(first, first), self._names.get(second, second)

    def __len__(self) -> int:
        with self._explain_damage():
            return sum(len(find_group(self._file, first)) for first in self._file)

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"MatchFile({str(self.path)!r})"

    def intact_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs whose lists are there and of the right length; nothing in them is read."""
        with self._explain_damage():
            for first in self._file:
                outer = find_group(self._file, first)
                for second in outer:
                    if self._is_intact(outer, first, second):
                        yield self._names.get(first, first), self._names.get(second, second)

    def _is_intact(self, outer: Any, first: str, second: str) -> bool:
        """Tell whether a pair has its lists, of the right length; quick, for there may be very many."""
        import h5py

        try:
            place, lists = outer.id, []
            for key in (second, MATCHES, SCORES if self.provenance is None else DISTANCES):
                if place.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
                    return False
                member = h5py.h5o.open(place, key.encode())
                if place is outer.id and isinstance(member, h5py.h5g.GroupID):
                    place = member
                elif isinstance(member, h5py.h5d.DatasetID) and len(member.shape) == 1:
                    lists.append(member.shape[0])
                else:
                    return False
        except (KeyError, RuntimeError, ValueError):
            return False
        expected = (
            lists[0] if self.provenance is None else self.provenance.images.get(self._names.get(first, ""), (-1,))[0]
        )
        return len(lists) == 2 and lists[0] == expected

    def _find(self, pair: object) -> tuple[tuple[str, str], bool] | None:
        """Return the groups that hold a pair, and whether it is stored the other way round."""
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            return None
        first, second = (name.replace("/", "-") for name in pair)
        if self._names and (self._names.get(first) != pair[0] or self._names.get(second) != pair[1]):
            return None  # another image of the same spelling
        with self._explain_damage():
            for swapped, (outer, inner) in enumerate(((first, second), (second, first))):
                if outer in self._file and inner in find_group(self._file, outer):
                    return (outer, inner), bool(swapped)
        return None

    def _read(self, first: str, second: str) -> Matches:
        group = find_group(find_group(self._file, first), second)
        rows = self._list(group, MATCHES, "iu")
        matched = np.flatnonzero(rows != -1)
        partners = rows[matched].astype(np.int64)
        if (partners < 0).any():
            raise InputError(f"{MATCHES} holds negative rows: hloc's int16 overflows above 32,767 keypoints")
        if self.provenance is None:
            scores = self._list(group, SCORES, "f")
            if len(scores) != len(rows) or np.isnan(scores).any():
                raise InputError(f"{SCORES} must be a number for each of the {len(rows)} rows")
            distances = 2 * np.sqrt(1 - np.clip(scores[matched].astype(np.float64), 0, 1))
        else:
            counts = [self.provenance.images[self._names[name]][0] for name in (first, second)]
            if len(rows) != counts[0] or (partners >= counts[1]).any():
                raise InputError(f"{MATCHES} does not fit images of {counts[0]} and {counts[1]} features")
            distances = self._list(group, DISTANCES, "f")
        return Matches(np.stack([matched, partners], axis=1), distances.astype(np.float32))

    def _list(self, group: Any, key: str, kinds: str) -> NDArray[Any]:
        """Read a dataset of one dimension after checking that the file really holds what it declares."""
        data = find_array(group, key, self.path.stat().st_size)
        if data.dtype.kind not in kinds or len(data.shape) != 1:
            raise InputError(f"{key} is not a list of numbers")
        return np.asarray(data[()])

    def _read_provenance(self) -> Provenance | None:
        if "format" not in self._file.attrs:
            return None
        if self._text("format") != FORMAT:
            raise InputError("this is another kind of file, not matches")
        if self._text("version") != str(VERSION):
            raise InputError(f"it has another version of the format, this Sfumato reads {VERSION}: use another")
        return _parse(self._text("parameters"), self._text("images"), self._text("recipes"))

    def _text(self, key: str) -> str:
        if key not in self._file.attrs:
            raise InputError(f"the attribute {key} is missing")
        attribute = self._file.attrs.get_id(key)
        if attribute.dtype.kind != "S" or attribute.shape != () or attribute.dtype.itemsize > LARGEST_TABLE:
            raise InputError(f"the attribute {key} is not a text")
        return bytes(self._file.attrs[key]).decode("ascii")


def _parse(parameters: str, images: str, recipes: str) -> Provenance:
    try:
        settings, facts, texts = json.loads(parameters), json.loads(images), json.loads(recipes)
        MatchParams(**settings)
        table = {name: (int(count), str(checksum)) for name, (count, checksum) in facts.items()}
        if len({group_name(name) for name in table}) != len(table):
            raise InputError("two of its images are spelt alike")
        return Provenance(settings, table, tuple(str(recipe) for recipe in texts))
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise InputError("what it was made with cannot be read") from cause


def provenance_texts(provenance: Provenance) -> dict[str, str]:
    """Return the root attributes of a match file."""
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "parameters": json.dumps(provenance.parameters, sort_keys=True),
        "images": json.dumps({name: list(facts) for name, facts in sorted(provenance.images.items())}),
        "recipes": json.dumps(sorted(provenance.recipes)),
    }
