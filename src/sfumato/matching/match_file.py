# SPDX-License-Identifier: Apache-2.0
"""Match files: hloc's matches.h5 with the distances and with what made it; see docs/matches.md.

Reads ours and hloc's own. Trusts no file: links, other files' data, foreign filters, arrays larger than the file can
hold and numbers that are no rows are refused. Holds no descriptor of any kind.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.matching.mutual import MatchParams
from sfumato.types.scene import Matches

FORMAT, VERSION = "sfumato-matches", 1
MATCHES, SCORES, DISTANCES = "matches0", "matching_scores0", "distances"
FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
MOST_SHRUNK = 1100
"""No filter of these makes data smaller than one 1,032nd."""
LARGEST_TABLE = 2**30


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a match file was made with: parameters, and of each image its number of features and checksum."""

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
    """Open a match file; matches are read when they are asked for.

    Raises FileError for a file that is missing, damaged, hostile or of another kind or version.
    """
    return MatchFile(path)


class MatchFile(Mapping[tuple[str, str], Matches]):
    """A read-only mapping of pairs of image names to Matches, in either order of the two names.

    Asked for (b, a) where (a, b) is stored, it swaps the columns. ``purpose`` is what the file was made with, None for
    one that hloc wrote: its pairs are then listed as it spells them, with - for /, and distances are derived from its
    scores, d = 2 sqrt(1 - score), score 1 being distance 0.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import h5py

        self.path = Path(path)
        if not self.path.is_file():
            raise FileError(f"{self.path}: no such match file; check the path")
        try:
            self._file = h5py.File(self.path, "r", locking="best-effort")
        except (OSError, RuntimeError, ValueError) as cause:
            raise FileError(f"{self.path} is not a complete HDF5 file: match again, with --overwrite") from cause
        try:
            with self._told():
                self.purpose = self._read_purpose()
        except BaseException:
            self.close()
            raise
        self._names = {group_name(name): name for name in self.purpose.images} if self.purpose else {}

    def __getitem__(self, pair: tuple[str, str]) -> Matches:
        place = self._find(pair)
        if place is None:
            raise KeyError(pair)
        (first, second), swapped = place
        with self._told(f", pair {first} {second}"):
            matches = self._read(first, second)
        if not swapped:
            return matches
        order = np.argsort(matches.indices[:, 1], kind="stable")
        return Matches(matches.indices[order, ::-1], matches.distances[order])

    def __contains__(self, pair: object) -> bool:
        return self._find(pair) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        with self._told():
            for first in self._file:
                for second in self._group(self._file, first):
                    yield self._names.get(first, first), self._names.get(second, second)

    def __len__(self) -> int:
        with self._told():
            return sum(len(self._group(self._file, first)) for first in self._file)

    __eq__ = object.__eq__  # a comparison by content would read everything
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"MatchFile({str(self.path)!r})"

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "MatchFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def whole_pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs whose lists are there and of the right length; nothing in them is read."""
        with self._told():
            for first in self._file:
                outer = self._group(self._file, first)
                for second in outer:
                    if self._is_whole(outer, first, second):
                        yield self._names.get(first, first), self._names.get(second, second)

    def _is_whole(self, outer: Any, first: str, second: str) -> bool:
        """Tell whether a pair has its lists, of the right length; quick, for there may be very many."""
        import h5py

        try:
            place, lists = outer.id, []
            for key in (second, MATCHES, SCORES if self.purpose is None else DISTANCES):
                if place.links.get_info(key.encode()).type != h5py.h5l.TYPE_HARD:
                    return False
                found = h5py.h5o.open(place, key.encode())
                if place is outer.id and isinstance(found, h5py.h5g.GroupID):
                    place = found
                elif isinstance(found, h5py.h5d.DatasetID) and len(found.shape) == 1:
                    lists.append(found.shape[0])
                else:
                    return False
        except (KeyError, RuntimeError, ValueError):
            return False
        expected = lists[0] if self.purpose is None else self.purpose.images.get(self._names.get(first, ""), (-1,))[0]
        return len(lists) == 2 and lists[0] == expected

    def _find(self, pair: object) -> tuple[tuple[str, str], bool] | None:
        """Return the groups that hold a pair, and whether it is stored the other way round."""
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            return None
        first, second = (name.replace("/", "-") for name in pair)
        if self._names and (self._names.get(first) != pair[0] or self._names.get(second) != pair[1]):
            return None  # another image of the same spelling
        with self._told():
            for swapped, (outer, inner) in enumerate(((first, second), (second, first))):
                if outer in self._file and inner in self._group(self._file, outer):
                    return (outer, inner), bool(swapped)
        return None

    def _read(self, first: str, second: str) -> Matches:
        group = self._group(self._group(self._file, first), second)
        rows = self._array(group, MATCHES, "iu")
        found = np.flatnonzero(rows != -1)
        partners = rows[found].astype(np.int64)
        if (partners < 0).any():
            raise InputError(f"{MATCHES} holds negative rows: hloc's int16 overflows above 32,767 keypoints")
        if self.purpose is None:
            scores = self._array(group, SCORES, "f")
            if len(scores) != len(rows) or np.isnan(scores).any():
                raise InputError(f"{SCORES} must be a number for each of the {len(rows)} rows")
            distances = 2 * np.sqrt(1 - np.clip(scores[found].astype(np.float64), 0, 1))
        else:
            counts = [self.purpose.images[self._names[name]][0] for name in (first, second)]
            if len(rows) != counts[0] or (partners >= counts[1]).any():
                raise InputError(f"{MATCHES} does not fit images of {counts[0]} and {counts[1]} features")
            distances = self._array(group, DISTANCES, "f")
        return Matches(np.stack([found, partners], axis=1), distances.astype(np.float32))

    def _group(self, parent: Any, name: str) -> Any:
        import h5py

        if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
            raise InputError(f"{name!r:.80} is a link to somewhere else: links are refused")
        group = parent[name]
        if not isinstance(group, h5py.Group):
            raise InputError(f"{name!r:.80} is not a group: this is no match file")
        return group

    def _array(self, group: Any, key: str, kinds: str) -> NDArray[Any]:
        """Read a dataset of one dimension after checking that the file really holds what it declares."""
        import h5py

        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise InputError(f"{key} is missing or a link")
        data = group[key]
        if not isinstance(data, h5py.Dataset) or data.dtype.kind not in kinds or len(data.shape) != 1:
            raise InputError(f"{key} is not a list of numbers")
        if data.is_virtual or data.external:
            raise InputError(f"{key} lies in another file: that is refused")
        plan = data.id.get_create_plist()
        used = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
        if not used <= set(FILTERS):
            raise InputError(f"{key} is packed in a way other than {', '.join(FILTERS.values())}")
        stored = min(data.id.get_storage_size(), self.path.stat().st_size)
        if data.size * data.dtype.itemsize > stored * (MOST_SHRUNK if used else 1):
            raise InputError(f"{key} declares {data.size} numbers, the file holds only {stored} bytes of them")
        return np.asarray(data[()])

    def _read_purpose(self) -> Purpose | None:
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
        found = self._file.attrs.get_id(key)
        if found.dtype.kind != "S" or found.shape != () or found.dtype.itemsize > LARGEST_TABLE:
            raise InputError(f"the attribute {key} is not a text")
        return bytes(self._file.attrs[key]).decode("ascii")

    @contextmanager
    def _told(self, where: str = "") -> Iterator[None]:
        """Say in which file and pair something went wrong; a damaged file fails in many ways inside h5py."""
        try:
            if not self._file:
                raise FileError(f"the match file {self.path} is closed; load it again")
            yield
        except InputError as cause:
            raise FileError(f"{self.path}{where}: {cause}") from cause
        except SfumatoError:
            raise
        except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError, SystemError) as cause:
            raise FileError(f"{self.path}{where} is damaged: {cause}") from cause


def _parse(parameters: str, images: str, recipes: str) -> Purpose:
    try:
        found = json.loads(parameters), json.loads(images), json.loads(recipes)
        MatchParams(**found[0])
        table = {name: (int(count), str(checksum)) for name, (count, checksum) in found[1].items()}
        if len({group_name(name) for name in table}) != len(table):
            raise InputError("two of its images are spelt alike")
        return Purpose(found[0], table, tuple(str(recipe) for recipe in found[2]))
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as cause:
        raise InputError("what it was made with cannot be read") from cause


def purpose_texts(purpose: Purpose) -> dict[str, str]:
    """Return the root attributes of a match file."""
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "parameters": json.dumps(purpose.parameters, sort_keys=True),
        "images": json.dumps({name: list(facts) for name, facts in sorted(purpose.images.items())}),
        "recipes": json.dumps(sorted(purpose.recipes)),
    }
