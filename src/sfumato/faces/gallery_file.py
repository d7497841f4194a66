# SPDX-License-Identifier: Apache-2.0
"""Files of galleries: SQLite, a row for each template, read with checks, changed by one writer at a time.

The server's side: concealed templates and nothing clear. The format is in docs/reference/file_formats.md. A change
writes the rows it changes and no others. A release is noted, with the digest of its template, before the template is
written: whatever ends a process, the file knows every template that may be on the disk.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, SfumatoError
from sfumato.faces.compare import Threshold
from sfumato.faces.gallery import (
    Gallery,
    GalleryFacts,
    already_enrolled,
    not_enrolled,
    refuse_other_directions,
    refuse_same_keys,
    subspaces_of,
)
from sfumato.files.sqlite import Database, FileKind, Row, explain, open_reader, open_writer
from sfumato.types.concealed import Bits, Code, ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import CHECKSUM_DIGITS, Recipe

KIND = FileKind(
    "a gallery",
    mark=0x53664761,  # "SfGa"
    version=2,
    tables=(
        "CREATE TABLE gallery (number INTEGER PRIMARY KEY, people INTEGER NOT NULL, releases INTEGER NOT NULL, "
        "facts TEXT NOT NULL, digest BLOB NOT NULL)",
        "CREATE TABLE releases (person TEXT NOT NULL, number INTEGER NOT NULL, code BLOB NOT NULL, "
        "digest BLOB NOT NULL, PRIMARY KEY (person, number)) WITHOUT ROWID",
        "CREATE TABLE templates (number INTEGER PRIMARY KEY, person TEXT NOT NULL UNIQUE, dtype TEXT NOT NULL, "
        "code BLOB NOT NULL, digest BLOB NOT NULL)",
    ),
    advice="nothing was changed. If the file is damaged restore a copy: templates made again would be a second release",
    earlier=(
        b"\x89HDF\r\n\x1a\n",
        "this is a gallery of an earlier version (HDF5), which this version cannot take over: go on with the version "
        "that made it, or enroll its people in a new file and delete this one and every copy of it, because two "
        "templates of one person reveal the face",
    ),
    page_bytes=32768,
)
MISSING, EMPTY = "no such gallery; sfumato enroll makes one", "nobody was enrolled yet; sfumato enroll does it"
DTYPE, BIT_DTYPE, NO_DTYPE = "<f4", "|u1", "|V0"
"""Of a lifted and of a sealed template, and of the zeros in the place of one that was revoked. To delete the row would
move others to other pages, and SQLite leaves what it moved where it was, to be read for ever."""
KEY_BYTES = CHECKSUM_DIGITS // 2
"""Of the fingerprint before the bits of a template that is sealed under a key of its own."""
AT_ONCE = 4096
"""Templates that are read at once."""

LIVING = f"SELECT number, person, dtype, code, digest FROM templates WHERE dtype <> '{NO_DTYPE}'"
KEYS = {"id", "recipe", "extractor", "dimensions", "thresholds"}
RELEASED = b""
"""In the place of the digest of a template that is still to be written."""


def load_gallery(path: str | os.PathLike[str], people: Collection[str] | None = None) -> Gallery:
    """Read a gallery, or of ``people`` alone: their rows and no others.

    Raises InputError if one of ``people`` is not enrolled, FileError for a file that is missing, damaged, hostile, or
    of another kind or version.
    """
    source = Path(path)
    if source.is_dir():
        raise FileError(f"{source} is a folder: name the gallery's file, for example {source / 'gallery.sqlite'}")
    if not source.is_file():
        raise FileError(f"{source}: {MISSING}")
    with open_reader(source, KIND) as database:
        database.pin()
        head = _read_head(database)
        if head is None:
            raise FileError(f"{source}: {EMPTY}")
        facts = head.facts
        if people is not None:
            templates = _read_people(database, facts, people)
            return Gallery(templates, _counts(database, facts, people), facts.thresholds, facts.id, facts.dimensions)
        with explain(source, KIND):
            counts, templates = _counts(database, facts), _read_all(database, head)
            if sum(counts.values()) != head.releases or not counts.keys() >= set(templates.ids):
                raise InputError("a release is missing: it was damaged or changed")
            return Gallery(templates, counts, facts.thresholds, facts.id, facts.dimensions)


def people_in(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the ids of the people who are enrolled in a gallery's file, for whoever may see all of them."""
    with open_reader(Path(path), KIND) as database:
        names = database.rows(f"SELECT person FROM templates WHERE dtype <> '{NO_DTYPE}'")
    return tuple(name for (name,) in names if isinstance(name, str))


@dataclass(frozen=True, slots=True)
class _Head:
    """The one row about a gallery: the numbers of ``people`` and of ``releases``, and its ``facts``."""

    people: int
    releases: int
    facts: GalleryFacts


class GalleryWriter:
    """A gallery's file, open for changes; the first turn makes it if it is missing, for its owner alone to read.

    Changes belong in a ``turn``, and are written at its end, all or none. Writers of all processes take turns.

    Raises FileError for a file that cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._database: Database | None = None
        self._version = 0
        if self.path.is_dir():
            raise FileError(f"{self.path} is a folder: name the gallery's file")
        if os.path.lexists(self.path):
            self._open()
            self._version = self._data_version()

    def _open(self) -> Database:
        if self._database is None:
            self._database = open_writer(self.path, KIND, private=True)
            # Nothing of a removed template stays; a release is on the disk before its template is written.
            for setting in ("secure_delete=ON", "synchronous=FULL"):
                self._database.rows(f"PRAGMA {setting}")
        return self._database

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Write everything in the block or nothing of it; the value tells whether others wrote since the last turn."""
        is_new = self._database is None
        database = self._open()
        with database.transaction():
            if database.is_replaced:
                raise FileError(
                    f"{self.path}: the gallery was replaced or removed meanwhile; nothing was changed, try again"
                )
            before, self._version = self._version, self._data_version()
            yield self.facts is not None if is_new else before != self._version

    def _data_version(self) -> int:
        ((version,),) = self._open().rows("PRAGMA data_version")
        return int(version)

    @property
    def facts(self) -> GalleryFacts | None:
        """The facts of the gallery; None before the first person."""
        head = self._head
        return None if head is None else head.facts

    @property
    def people(self) -> int:
        """The number of people who are enrolled."""
        head = self._head
        return 0 if head is None else head.people

    @property
    def _head(self) -> _Head | None:
        return None if self._database is None else _read_head(self._database)

    def need_facts(self) -> GalleryFacts:
        """Return the facts; raise FileError if there is no gallery."""
        return self._need_head().facts

    def blocks(self) -> Iterator[ConcealedTemplates]:
        """Yield the templates, in order, some thousands at a time."""
        facts = self.facts
        if self._database is not None and facts is not None:
            for rows in _row_blocks(self._database):
                with explain(self.path, KIND):
                    templates = _templates(facts, rows)
                yield templates

    def templates(self, people: Collection[str]) -> ConcealedTemplates:
        """Return the templates of people; raise InputError for someone who is not enrolled."""
        return _read_people(self._open(), self.need_facts(), people)

    def releases(self, people: Collection[str]) -> dict[str, dict[int, bytes]]:
        """Return the releases of each id by their number: the digest of a template still to be written, or nothing."""
        facts = self.facts
        known = {} if self._database is None or facts is None else _read_releases(self._database, facts, people)
        return {person: known.get(person, {}) for person in people}

    def refuse_enrolled(self, people: Iterable[str]) -> None:
        """Raise InputError if one of these people is enrolled."""
        facts = self.facts
        if self._database is not None and facts is not None:
            enrolled = [person for person in people if _is_enrolled(self._database, facts, person)]
            if enrolled:
                raise already_enrolled(enrolled, facts.recipe)

    # --- changes, each in a turn

    def begin(self, facts: GalleryFacts) -> None:
        """Write the facts of a new gallery; nothing if it has some."""
        if self.facts is None:
            self._write_head(_Head(0, 0, facts))

    def reserve(self, templates: ConcealedTemplates, numbers: Sequence[int]) -> None:
        """Note which templates are going to be written, and the number of each among the person's releases."""
        self._note(templates.ids, numbers, [template_digest(code) for code in code_rows(templates)])

    def add(self, new: ConcealedTemplates, numbers: Sequence[int] | None = None) -> None:
        """Enroll people; ``numbers`` of their releases, by default the next ones.

        Raises InputError for enrolled ids and for templates that do not fit.
        """
        facts = self.need_facts()
        facts.refuse_other(new)
        self.refuse_enrolled(new.ids)
        if numbers is None:
            numbers = [len(known) + 1 for known in self.releases(new.ids).values()]
        self._note(new.ids, numbers, [RELEASED] * len(new))
        self._put(facts, [(person, _dtype(facts), code) for person, code in zip(new.ids, code_rows(new), strict=True)])
        self._count(people=len(new))

    def replace(self, new: ConcealedTemplates) -> None:
        """Replace templates by newer ones: sealed ones, which count as a release, or lifted ones along the same lines.

        Raises InputError for other directions, and for a sealed template under the key of the one it replaces.
        """
        facts, before = self.need_facts(), self.templates(new.ids)
        facts.refuse_other(new)
        if facts.recipe.is_sealed:
            refuse_same_keys(before, new)
            numbers = [len(known) + 1 for known in self.releases(new.ids).values()]
            self._note(new.ids, numbers, [RELEASED] * len(new))
        else:
            refuse_other_directions(before, new)
        self._put(facts, [(person, _dtype(facts), code) for person, code in zip(new.ids, code_rows(new), strict=True)])

    def revoke(self, people: Collection[str]) -> None:
        """Remove people; the gallery remembers that they were in it. Raises InputError for someone who is not."""
        self.templates(people)
        facts = self.need_facts()
        self._put(facts, [(person, NO_DTYPE, bytes(_code_bytes(facts))) for person in people])
        self._count(people=-len(people))

    def set_threshold(self, threshold: Threshold) -> None:
        """Put a threshold in the place of the one for the same comparison."""
        head = self._need_head()
        self._write_head(replace(head, facts=head.facts.with_threshold(threshold)))

    def _put(self, facts: GalleryFacts, rows: Sequence[tuple[str, str, bytes]]) -> None:
        """Write rows of a person, a type and a code; what the person had before is overwritten where it is."""
        self._open().many(
            "INSERT INTO templates (person, dtype, code, digest) VALUES (?, ?, ?, ?) ON CONFLICT (person) DO UPDATE "
            "SET dtype = excluded.dtype, code = excluded.code, digest = excluded.digest",
            [(*row, _template_digest(facts, *row)) for row in rows],
        )

    def _note(self, people: Sequence[str], numbers: Sequence[int], codes: Sequence[bytes]) -> None:
        facts, known = self.need_facts(), self.releases(people)
        rows = [(*row, _release_digest(facts, *row)) for row in zip(people, numbers, codes, strict=True)]
        self._open().many("INSERT OR REPLACE INTO releases VALUES (?, ?, ?, ?)", rows)
        self._count(releases=sum(number not in known[person] for person, number, *_ in rows))

    def _count(self, *, people: int = 0, releases: int = 0) -> None:
        head = self._need_head()
        self._write_head(replace(head, people=head.people + people, releases=head.releases + releases))

    def _need_head(self) -> _Head:
        head = self._head
        if head is None:
            raise FileError(f"{self.path}: {MISSING if self._database is None else EMPTY}")
        return head

    def _write_head(self, head: _Head) -> None:
        facts = head.facts
        content = json.dumps({
            "id": facts.id.hex(),
            "recipe": facts.recipe.to_json(),
            "extractor": facts.extractor.to_json(),
            "dimensions": facts.dimensions,
            "thresholds": [threshold.to_dict() for threshold in facts.thresholds],
        }, sort_keys=True)  # fmt: skip
        row = head.people, head.releases, content
        self._open().rows("INSERT OR REPLACE INTO gallery VALUES (1, ?, ?, ?, ?)", (*row, _head_digest(*row)))

    def close(self) -> None:
        """Close the file; what was removed is removed from the disk too, unless somebody is reading it."""
        if self._database is not None:
            with suppress(SfumatoError):
                self._database.rows("PRAGMA busy_timeout=0")
                self._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
            self._database.close()

    def __enter__(self) -> "GalleryWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GalleryWriter({str(self.path)!r})"


# --- rows


def code_rows(templates: ConcealedTemplates) -> list[bytes]:
    """Return each template as it is stored: the origin, then the basis, (m + 1, n) float32; or fingerprint and bits."""
    if isinstance(templates.code, Bits):
        keys = [bytes.fromhex(key) for key in templates.keys] or [b""] * len(templates)
        return [key + row.tobytes() for key, row in zip(keys, templates.code.packed, strict=True)]
    code = subspaces_of(templates)
    rows = np.concatenate([code.origin[:, None], code.basis], axis=1).astype(DTYPE, copy=False)
    return [row.tobytes() for row in rows]


def template_digest(code: bytes) -> bytes:
    """Return the digest by which a release remembers a template that is going to be written."""
    return _digest(code)


def _dtype(facts: GalleryFacts) -> str:
    return BIT_DTYPE if facts.recipe.is_sealed else DTYPE


def _code_bytes(facts: GalleryFacts) -> int:
    if facts.recipe.is_sealed:
        return (facts.recipe.links[-1].dim or 0) // 8 + (KEY_BYTES if facts.has_personal_keys else 0)
    return 4 * (facts.recipe.dim + 1) * facts.dimensions


def _templates(facts: GalleryFacts, rows: Sequence[Row]) -> ConcealedTemplates:
    """Return rows (number, person, dtype, code, digest) as templates; raise InputError if they were changed."""
    codes = np.empty((len(rows), _code_bytes(facts)), np.uint8)
    for place, (_, person, dtype, code, digest) in zip(codes, rows, strict=True):
        is_typed = isinstance(person, str) and dtype == _dtype(facts) and isinstance(code, bytes)
        if not is_typed or len(code) != len(place):
            raise InputError("a template has another size or type than the gallery's")
        if digest != _template_digest(facts, person, dtype, code):
            raise InputError("the checksum of a template is wrong: it was damaged or changed")
        place[:] = np.frombuffer(code, np.uint8)
    return _decode(facts, tuple(row[1] for row in rows), codes)


def _decode(facts: GalleryFacts, ids: tuple[str, ...], codes: NDArray[np.uint8]) -> ConcealedTemplates:
    """Return stored codes (N, size) as templates."""
    codes.setflags(write=False)
    if facts.recipe.is_sealed:
        start = KEY_BYTES if facts.has_personal_keys else 0
        keys = tuple(code[:start].tobytes().hex() for code in codes) if start else ()
        return ConcealedTemplates(ids, Bits(codes[:, start:]), facts.recipe, facts.extractor, keys)
    values = codes.view(DTYPE).reshape(len(ids), facts.recipe.dim + 1, facts.dimensions)
    return ConcealedTemplates(ids, Subspaces(values[:, 0], values[:, 1:]), facts.recipe, facts.extractor)


def _row_blocks(database: Database) -> Iterator[list[Row]]:
    last = -(2**63)
    while rows := database.rows(f"{LIVING} AND number > ? ORDER BY number LIMIT ?", (last, AT_ONCE)):
        last = rows[-1][0]
        yield rows


def _read_all(database: Database, head: _Head) -> ConcealedTemplates:
    """Return all templates, in the memory that they take, and that of a block."""
    facts, count = head.facts, head.people
    if count * _code_bytes(facts) > database.size_bytes:
        raise InputError("it declares more templates than it can hold")
    whole = _arrays(_decode(facts, (), np.empty((0, _code_bytes(facts)), np.uint8)).code)
    arrays = [np.empty((count, *array.shape[1:]), array.dtype) for array in whole]
    ids, keys = list[str](), list[str]()
    for block in (_templates(facts, rows) for rows in _row_blocks(database)):
        place = slice(len(ids), len(ids) + len(block))
        ids += block.ids
        keys += block.keys
        if len(ids) > count:
            break
        for array, part in zip(arrays, _arrays(block.code), strict=True):
            array[place] = part
    if len(ids) != count:
        raise InputError("it holds more or fewer templates than it counts: it was damaged or changed")
    for array in arrays:
        array.setflags(write=False)
    code = Bits(*arrays) if facts.recipe.is_sealed else Subspaces(*arrays)
    return ConcealedTemplates(tuple(ids), code, facts.recipe, facts.extractor, tuple(keys))


def _arrays(code: Code) -> tuple[NDArray[Any], ...]:
    return (code.packed,) if isinstance(code, Bits) else (code.origin, code.basis)


def _read_people(database: Database, facts: GalleryFacts, people: Collection[str]) -> ConcealedTemplates:
    for person in people:
        if not _is_enrolled(database, facts, person):
            raise not_enrolled(person, is_known=bool(_read_releases(database, facts, (person,))))
    rows = [row for person in people for row in database.rows(f"{LIVING} AND person = ?", (person,))]
    with explain(database.path, KIND):
        if [row[1] for row in rows] != list(people):
            raise InputError("its list of people is damaged")
        return _templates(facts, rows)


def _is_enrolled(database: Database, facts: GalleryFacts, person: str) -> bool:
    """Tell whether an id has a template; raise FileError if the releases say something else."""
    rows = database.rows("SELECT dtype FROM templates WHERE person = ?", (person,))
    releases = _read_releases(database, facts, (person,)).get(person, {})
    if len(rows) != (RELEASED in releases.values()):
        with explain(database.path, KIND):
            raise InputError("its list of people is damaged")
    return rows not in ([], [(NO_DTYPE,)])


def _read_releases(
    database: Database, facts: GalleryFacts, people: Iterable[str] | None = None
) -> dict[str, dict[int, bytes]]:
    """Return the releases of each id by their number; raise FileError if one was changed or is missing."""
    query = "SELECT person, number, code, digest FROM releases"
    if people is None:
        rows = database.rows(f"{query} ORDER BY person, number")
    else:
        rows = [
            row for person in people for row in database.rows(f"{query} WHERE person = ? ORDER BY number", (person,))
        ]
    releases: dict[str, dict[int, bytes]] = {}
    with explain(database.path, KIND):
        for person, number, code, digest in rows:
            if not (isinstance(person, str) and isinstance(number, int) and isinstance(code, bytes)):
                raise InputError("a release has another type than the gallery's")
            numbers = releases.setdefault(person, {})
            if digest != _release_digest(facts, person, number, code) or number != len(numbers) + 1:
                raise InputError("the checksum of a release is wrong: it was damaged or changed")
            numbers[number] = code
    return releases


def _counts(database: Database, facts: GalleryFacts, people: Iterable[str] | None = None) -> dict[str, int]:
    return {person: len(numbers) for person, numbers in _read_releases(database, facts, people).items()}


def _read_head(database: Database) -> _Head | None:
    """Return the facts of a gallery and its counts, None if nobody was ever enrolled in it."""
    rows = database.rows("SELECT number, people, releases, facts, digest FROM gallery LIMIT 2")
    if not rows:
        return None
    with explain(database.path, KIND):
        (number, people, releases, content, digest), *more = rows
        are_typed = isinstance(people, int) and isinstance(releases, int) and isinstance(content, str)
        if more or number != 1 or not are_typed or digest != _head_digest(people, releases, content):
            raise InputError("the checksum of its facts is wrong: it was damaged or changed")
        if min(people, releases - people) < 0:
            raise InputError("its counts cannot be right")
        return _Head(people, releases, _parse_facts(content))


def _parse_facts(content: str) -> GalleryFacts:
    try:
        values: Any = json.loads(content)
        if not isinstance(values, Mapping) or set(values) != KEYS or not isinstance(values["thresholds"], list):
            raise InputError("its facts cannot be read")
        return GalleryFacts(
            id=bytes.fromhex(values["id"]),
            recipe=Recipe.from_json(str(values["recipe"])),
            extractor=Extractor.from_json(str(values["extractor"])),
            dimensions=values["dimensions"],
            thresholds=tuple(Threshold.from_dict(value) for value in values["thresholds"]),
        )
    except SfumatoError:
        raise
    except (ValueError, TypeError, RecursionError) as cause:
        raise InputError("its facts cannot be read") from cause


def _head_digest(people: int, releases: int, facts: str) -> bytes:
    return _digest("gallery", str(people), str(releases), facts)


def _template_digest(facts: GalleryFacts, person: str, dtype: str, code: bytes) -> bytes:
    return _digest("template", facts.id, person, dtype, code)


def _release_digest(facts: GalleryFacts, person: str, number: int, code: bytes) -> bytes:
    return _digest("release", facts.id, person, str(number), code)


def _digest(*parts: str | bytes) -> bytes:
    """Return a digest of several texts or bytes, each with its length; the last one is the long one."""
    *first, last = (part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts)
    head = b"".join([len(part).to_bytes(8, "little") + part for part in first]) + len(last).to_bytes(8, "little")
    digest = hashlib.blake2b(head, digest_size=32, person=b"sfumato-gallery")
    digest.update(last)
    return digest.digest()
