# SPDX-License-Identifier: Apache-2.0
"""Commands for those who run a server: its API keys and its places, over HTTP or in its data folder."""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import AsJson, printable, quantity, tell
from sfumato.cli.service.connect import ID, SecretFile, ServerOptions, open_place
from sfumato.client.names import PLACE_ID
from sfumato.errors import FileError, InputError, MissingDependency

if TYPE_CHECKING:
    from sfumato.server.database import Store

PLACE_VERBS = ("read", "upload", "map", "landmarks", "localize", "export", "poses")
DAY_SECONDS = 86_400.0
MOST_PLACES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ServerOptions):
    """Options that say which server is looked after."""

    data: Annotated[
        Path | None,
        typer.Option(help="The server's data folder, on its own machine: needs no API key. In place of --server."),
    ] = None

    def store(self) -> "Store":
        """Return the database in the data folder."""
        if self.server is not None:
            raise InputError("--data is a folder of this machine, --server an address: give one of the two")
        return open_store(self.data or Path())


def need_server_extra() -> None:
    """Raise MissingDependency, without loading anything, if the libraries of a server are not installed."""
    for name in ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client"):
        if find_spec(name) is None:
            raise MissingDependency(
                f"this needs {name}, which is not installed: pip install 'sfumato[server]', or "
                "in a clone: pip install '.[server]'"
            )


def open_store(data: Path) -> "Store":
    """Return the database of a data folder; raises FileError if there is none, never makes one."""
    need_server_extra()
    from sfumato.server.database import FILE, Store

    if not (data / FILE).is_file():
        raise FileError(
            f"{data} holds no data of a server ({FILE} is missing): name the folder of sfumato serve --data"
        )
    return Store(data.absolute())


# --- API keys


def create_key(
    scopes: Annotated[
        list[str],
        typer.Argument(
            help=f"What the key may do: {', '.join(PLACE_VERBS)} at the place of --place, or everywhere as "
            "landmarks:*; admin; metrics."
        ),
    ],
    place: Annotated[str | None, typer.Option(help=f"The place they are for, by its name, or {ID} and its id.")] = None,
    label: Annotated[str, typer.Option(help="A word to know the key by; the server sees it.")] = "",
    days: Annotated[float | None, typer.Option(help="How many days it is valid. Default: until it is revoked.")] = None,
    admin: AdminOptions = AdminOptions(),
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key; it is printed once, and the server keeps a digest of it alone.

    A phone that only asks where it is needs landmarks; localize lets it send the positions of its features too. Give
    upload and map to devices that send photos, export to those that pull maps, poses to whom may see where people
    stood.

    Example: sfumato server key create landmarks --place kitchen --label phone
    Example: sfumato server key create read upload map landmarks --place kitchen --days 90
    Example: sfumato server key create admin --data sfumato-data
    """
    seconds = None if days is None else days * DAY_SECONDS
    if admin.data is not None:
        from sfumato.server import places as store_places
        from sfumato.server.access import make_key

        store = admin.store()
        try:
            target = None if place is None else _id_of(place)
            allowed = _scopes(scopes, target)
            key = make_key(store, allowed, label=label, seconds=seconds)
            known = {row.id for row in store_places.list_places(store)} if target else set()
        finally:
            store.close()
    else:
        with admin.connect(secret_file) as client:
            target = None if place is None else open_place(client, place).id
            allowed = _scopes(scopes, target)
            key = client.make_key(allowed, label=label, seconds=seconds)
            known = {one.id for one in client.places()} if target else set()
    if target is not None and target not in known:
        print(
            printable(f"the server has no place {place} yet: make it, or revoke this key if the name is misspelt"),
            file=sys.stderr,
        )
    tell(key, {"key": key, "scopes": allowed}, as_json=as_json)


def _scopes(words: Iterable[str], place: str | None) -> list[str]:
    """Return scopes as the server has them; raises InputError for one that does not say where."""
    result = []
    for word in words:
        if word not in PLACE_VERBS:
            result.append(word)
        elif place is None:
            raise InputError(f"{word}: where? Give --place NAME, or {word}:* for all places")
        else:
            result.append(f"{word}:{place}")
    return result


def _id_of(place: str) -> str:
    """Return the id of a place on the machine of a server, where names mean nothing."""
    if not place.startswith(ID) or not PLACE_ID.match(place.removeprefix(ID)):
        raise InputError(
            f"names become ids on devices, with a device key that no server has: give {ID} and the id that "
            f"sfumato push shows with --json, or use --server on a device"
        )
    return place.removeprefix(ID)


def list_keys(admin: AdminOptions = AdminOptions(), as_json: AsJson = False) -> None:
    """List the API keys of a server: ids, scopes and days, never the keys.

    Example: sfumato server key list --server http://127.0.0.1:8765
    """
    reveal: Callable[[str], str] = str
    if admin.data is not None:
        from sfumato.server import access

        store = admin.store()
        try:
            rows = access.list_keys(store)
        finally:
            store.close()
    else:
        with admin.connect() as client:
            rows, reveal = client.list_keys(), client.names.reveal
    lines = [printable(_key_line(row, reveal)) for row in rows]
    tell("\n".join(lines) or "no keys", {"keys": rows}, as_json=as_json)


def _key_line(row: dict[str, Any], reveal: Callable[[str], str]) -> str:
    expires, last = row.get("expires"), row.get("last_day")
    is_over = expires is not None and float(expires) < time.time()
    state = "revoked" if row.get("revoked") else "expired" if is_over else "valid"
    scopes = " ".join(reveal(str(scope)) for scope in row.get("scopes", ()))
    until = "" if expires is None or is_over else f" until {time.strftime('%Y-%m-%d', time.gmtime(float(expires)))}"
    label = f" ({row['label']})" if row.get("label") else ""
    return f"{row.get('id')}{label}: {state}{until}, last used {last or 'never'}: {scopes}"


def revoke_key(
    key: Annotated[str, typer.Argument(help="The id of the key, as list shows it: the eight characters after sfm_.")],
    admin: AdminOptions = AdminOptions(),
    as_json: AsJson = False,
) -> None:
    """Revoke an API key, at once and for ever.

    Example: sfumato server key revoke abcdefgh --server http://127.0.0.1:8765
    """
    if admin.data is not None:
        from sfumato.server import access

        store = admin.store()
        try:
            if not access.revoke_key(store, key):
                raise InputError(f"there is no key {key!r:.20}: sfumato server key list shows all")
        finally:
            store.close()
    else:
        with admin.connect() as client:
            client.revoke_key(key)
    tell(f"key {printable(key)} is revoked", {"revoked": key}, as_json=as_json)


# --- places


def create_place(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=f"The name of the place, or {ID} and its id.")],
    admin: AdminOptions = AdminOptions(),
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a place; the server knows it by an id that this device makes from the name.

    Example: sfumato server place create kitchen --server http://127.0.0.1:8765
    """
    if admin.data is not None:
        from sfumato.server.places import make_place

        store, key = admin.store(), _id_of(place)
        try:
            make_place(store, key, MOST_PLACES)
        finally:
            store.close()
    else:
        with admin.connect(secret_file) as client:
            target = open_place(client, place)
            target.create()
            key = target.id
    tell(printable(f"place {place}: {ID}{key}"), {"place": place, "place id": key}, as_json=as_json)


def list_places(admin: AdminOptions = AdminOptions(), secret_file: SecretFile = None, as_json: AsJson = False) -> None:
    """List the places of a server, by name where this device knows it.

    Example: sfumato server place list --server http://127.0.0.1:8765
    """
    rows: list[tuple[str, str | None, int, int, bool]]
    if admin.data is not None:
        from sfumato.server import places

        store = admin.store()
        try:
            rows = [(row.id, None, row.images, row.bytes, row.current_map is not None)
                    for row in places.list_places(store)]  # fmt: skip
        finally:
            store.close()
    else:
        with admin.connect(secret_file) as client:
            rows = [(one.id, one.name, one.images, one.bytes, one.has_map) for one in client.places()]
    lines = [
        f"{name or f'{ID}{key}'}: {quantity(images, 'image')}, {decimal(size)}, {'a map' if has_map else 'no map yet'}"
        for key, name, images, size, has_map in rows
    ]
    names = ("id", "name", "images", "bytes", "map")
    facts = {"places": [dict(zip(names, row, strict=True)) for row in rows]}
    tell("\n".join(map(printable, lines)) or "no places", facts, as_json=as_json)


def delete_place(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=f"The name of the place, or {ID} and its id.")],
    admin: AdminOptions = AdminOptions(),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a place with its images and maps from a server. Copies of its disk are not reached.

    What this device concealed for the place is kept: a second release of the photos would tell more than one.

    Example: sfumato server place delete kitchen --server http://127.0.0.1:8765 --yes
    """
    if not yes and not typer.confirm(f"Remove {printable(place)} with all its images and maps?", err=True):
        raise InputError("nothing was removed")
    if admin.data is not None:
        from sfumato.server import blobs, places

        store, key = admin.store(), _id_of(place)
        try:
            try:
                places.delete_place(store, key)
            except (places.Missing, places.Conflict) as problem:
                raise InputError(str(problem)) from problem
            blobs.drop_place(store.folder, key)
        finally:
            store.close()
    else:
        with admin.connect(secret_file) as client:
            target = open_place(client, place)
            target.delete()
            key = target.id
    tell(printable(f"place {place} is removed"), {"removed": place, "place id": key}, as_json=as_json)
