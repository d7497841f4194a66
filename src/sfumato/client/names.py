# SPDX-License-Identifier: Apache-2.0
"""Opaque names: what a server gets in place of the names that people chose, and the table that stays on the device.

A file name tells a date, the name of a place often more. An id is a keyed digest of a name: all devices that have one
device key make the same ids, and nobody without it can try names.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from sfumato.concealment.keys import device_key, device_key_path
from sfumato.errors import FileError, InputError
from sfumato.files.atomic import file_lock, read_text, write_text

ID_BYTES = 16
PLACE_ID = re.compile(r"[0-9a-f]{8,64}\Z")
IMAGE_ID = re.compile(r"[0-9a-f]{16,64}\Z")
WORD = re.compile(r"\b[0-9a-f]{32}\b")
"""An id within a sentence."""
VERSION = 1

Table = dict[str, dict[str, str]]
"""Names by ids: of places under an empty text, of images under the id of their place."""


def names_path() -> Path:
    """Return the path of this user's table of names: beside the device key, ``device.names``."""
    return device_key_path().with_suffix(".names")


class NameTable:
    """Ids of names under a device key, and names of ids as far as this device knows them.

    ``secret``: the device key, by default this user's, which is read, or made, when the first name is to be replaced.
    ``path``: the file of the table, readable by its owner alone; by default the one beside the device key.

    >>> table = NameTable(bytes(range(32)), "/nowhere/device.names")
    >>> table.place_id("kitchen") == NameTable(bytes(range(32))).place_id("kitchen ")
    True
    >>> len(table.image_id(table.place_id("kitchen"), "IMG_0001.jpg"))
    32
    """

    def __init__(self, secret: bytes | None = None, path: str | os.PathLike[str] | None = None) -> None:
        self.secret = secret
        self._key: bytes | None = None
        self._path = None if path is None else Path(path)
        self._table: Table | None = None
        self._recent: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"NameTable({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The file of the table."""
        return names_path() if self._path is None else self._path

    def place_id(self, name: str) -> str:
        """Return the id of a place; raises InputError for an empty name."""
        if not isinstance(name, str) or not name.strip():
            raise InputError("a place needs a name, the same on all devices that share it (--place)")
        return self._digest(b"sfumato place id", name.strip(), b"")

    def image_id(self, place: str, name: str) -> str:
        """Return the id of an image at a place, which is an id; the same photo has other ids at other places."""
        return self._digest(b"sfumato image id", name, place.encode() + b"\0")

    def _digest(self, person: bytes, name: str, before: bytes) -> str:
        if self._key is None:
            secret = device_key() if self.secret is None else self.secret
            hashed = hashlib.blake2b(secret, digest_size=32).digest()
            self._key = hashlib.blake2b(key=hashed, person=b"sfumato names", digest_size=32).digest()
        data = before + name.encode("utf-8", "surrogateescape")
        key = hashlib.blake2b(data, key=self._key, person=person, digest_size=ID_BYTES).hexdigest()
        self._recent[key] = name
        return key

    # --- the table

    def remember(self, names: Mapping[str, str], place: str = "") -> None:
        """Add names by their ids, of images of a place or of places; the file is written only if there is news.

        Raises FileError if it cannot be read or written.
        """
        if all(self._read().get(place, {}).get(key) == name for key, name in names.items()):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path):
            table = _read_table(self.path)  # another process may have added to it
            table.setdefault(place, {}).update(names)
            text = json.dumps({"version": VERSION, "names": table}, indent=1, sort_keys=True)
            write_text(self.path, text + "\n", private=True)
        self._table = table

    def forget(self, place: str) -> None:
        """Drop a place and its images from the table."""
        if place not in self._read() and place not in self._read().get("", {}):
            return
        with file_lock(self.path):
            table = _read_table(self.path)
            table.pop(place, None)
            table.get("", {}).pop(place, None)
            text = json.dumps({"version": VERSION, "names": table}, indent=1, sort_keys=True)
            write_text(self.path, text + "\n", private=True)
        self._table = table

    def place_name(self, place: str) -> str | None:
        """Return the name of a place, or None if this device never used it."""
        return self._read().get("", {}).get(place)

    def image_names(self, place: str) -> dict[str, str]:
        """Return the names of the images of a place by their ids."""
        return dict(self._read().get(place, {}))

    def reveal(self, text: str) -> str:
        """Return a text in which every id that this device knows is replaced by its name."""
        parts = [self._recent, *self._read().values()]
        return WORD.sub(lambda word: next((part[word[0]] for part in parts if word[0] in part), word[0]), text)

    def _read(self) -> Table:
        if self._table is None:
            self._table = _read_table(self.path)
        return self._table


def _read_table(path: Path) -> Table:
    if not path.exists():
        return {}
    try:
        content = json.loads(read_text(path))
        table = content["names"]
        is_right = content["version"] == VERSION and all(
            isinstance(word, str) for part in table.values() for pair in part.items() for word in pair
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise FileError(
            f"{path}: this is no table of names; move it away, and names come back with the next push"
        ) from cause
    if not is_right:
        raise FileError(f"{path}: this table of names is of another version; update sfumato, or move it away")
    return {place: dict(part) for place, part in table.items()}


def translate(values: object, name_of: Callable[[str], str]) -> object:
    """Return plain values with every text, keys of mappings too, passed through a function."""
    if isinstance(values, str):
        return name_of(values)
    if isinstance(values, list):
        return [translate(value, name_of) for value in values]
    if isinstance(values, dict):
        return {name_of(str(key)): translate(value, name_of) for key, value in values.items()}
    return values
