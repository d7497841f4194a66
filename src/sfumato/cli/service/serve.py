# SPDX-License-Identifier: Apache-2.0
"""sfumato serve and sfumato server doctor: start a server, and look whether it and its data are well.

The command becomes the server's own program: this process has the clear side loaded, and a server never has.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import AsJson, Quiet, printable, progress_bar, quantity, tell
from sfumato.cli.service.admin import AdminOptions, need_server_extra, open_store
from sfumato.errors import FileError, SfumatoError

PRIVATE = ("SFUMATO_KEY", "SFUMATO_API_KEY", "SFUMATO_SERVER")
"""Settings of devices, which a server has no use for."""


def serve(
    data: Annotated[Path, typer.Option(help="The folder of all that the server keeps; made if it is missing.")],
    host: Annotated[str, typer.Option(help="The address to listen at. Another than this machine's needs TLS.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port to listen at.", min=1, max=65535)] = 8765,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate for TLS (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate (PEM).")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine ends TLS, as nginx does.")
    ] = False,
    engines: Annotated[int, typer.Option(help="Processes that answer queries.", min=1, max=64)] = 1,
    config: Annotated[Path | None, typer.Option(help="A TOML file with a table of limits: \\[limits].")] = None,
) -> None:
    """Start a server of places, maps and localization that cannot see: it takes concealed features alone.

    It prints its address and, the first time, the key of the administrator, once. Devices then send photos with
    'sfumato push', and ask with 'sfumato localize'. The page is at the same address. Ctrl-C ends it; jobs go on when it
    is started again.

    Example: sfumato serve --data sfumato-data
    Example: sfumato serve --data /srv/sfumato --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    need_server_extra()
    words = ["--data", str(data), "--host", host, "--port", str(port), "--engines", str(engines)]
    for option, path in (("--tls-cert", tls_cert), ("--tls-key", tls_key), ("--config", config)):
        words += [] if path is None else [option, str(path)]
    words += ["--behind-proxy"] if behind_proxy else []
    environment = {name: value for name, value in os.environ.items() if name not in PRIVATE}
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: the folder that it is started in is no place to load modules from
    os.execve(sys.executable, [sys.executable, "-P", "-m", "sfumato.server", *words], environment)


# --- health


@dataclass(slots=True)
class Diagnosis:
    """What was looked at, and what is wrong; ``remarks`` need nobody to act."""

    checks: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def doctor(
    admin: AdminOptions = AdminOptions(),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look whether a server is well: its data folder on its own machine, or, with --server, what it says of itself.

    Of a data folder the database is checked, every frame and every map is read and compared with its digest, released
    positions are counted, and what is left over, missing or short of space is named. Nothing is changed, and the server
    may run meanwhile.

    Example: sfumato server doctor --data sfumato-data
    Example: sfumato server doctor --server http://127.0.0.1:8765
    """
    diagnosis = Diagnosis()
    if admin.data is not None:
        _look_at_data(admin.data, diagnosis, quiet=quiet or as_json)
    if admin.data is None or admin.server is not None:
        _ask_server(admin, diagnosis)
    for remark in diagnosis.remarks:
        print(printable(remark), file=sys.stderr)
    for problem in diagnosis.problems:
        print(printable(f"problem: {problem}"), file=sys.stderr)
    checks = ", ".join(quantity(count, what.removesuffix("s")) for what, count in diagnosis.checks.items())
    state = quantity(len(diagnosis.problems), "problem") if diagnosis.problems else "all is well"
    facts = {"checks": diagnosis.checks, "problems": diagnosis.problems, "remarks": diagnosis.remarks}
    tell(f"{checks}: {state}", facts, as_json=as_json)
    if diagnosis.problems:
        raise typer.Exit(1)


def _look_at_data(data: Path, diagnosis: Diagnosis, *, quiet: bool) -> None:
    with closing(open_store(data)) as store:
        from sfumato.server import blobs, places
        from sfumato.server.limits import Limits

        _check_database(store, diagnosis)
        rows = [(place.id, image) for place in places.list_places(store) for image in _images(store, place.id)]
        for place, image in progress_bar("reading frames", len(rows), quiet=quiet)(rows):
            _check_frame(store, place, image, diagnosis)
        diagnosis.checks["images"] = len(rows)
        _check_maps(store, diagnosis)
        _name_leftovers(store, diagnosis)
        free, least = blobs.free_bytes(data), Limits().least_free_bytes
        if free < least:
            diagnosis.problems.append(f"{decimal(free)} are left on the disk, {decimal(least)} are needed: free space")


def _check_database(store: Any, diagnosis: Diagnosis) -> None:
    from sqlalchemy.exc import DatabaseError

    try:
        with store.read() as connection:
            answers = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check")]
            orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    except DatabaseError as cause:
        raise FileError(f"the database is damaged: {cause.orig}; restore it from a copy") from cause
    diagnosis.checks["database"] = 1
    diagnosis.problems += [f"database: {answer}; restore it from a copy" for answer in answers if answer != "ok"]
    if orphans:
        diagnosis.problems.append(f"database: {len(orphans)} rows refer to rows that are not there")


def _images(store: Any, place: str) -> Iterator[Any]:
    from sfumato.server import places

    after = ""
    while rows := places.list_images(store, place, after):
        yield from rows
        after = rows[-1].name


def _check_frame(store: Any, place: str, image: Any, diagnosis: Diagnosis) -> None:
    """Read a frame, compare it with its digest and its rules, and read the positions that were released later."""
    from sfumato.server import blobs, places
    from sfumato.store.frames import frame_digest

    where = f"image {image.name} of place {place}"
    try:
        if frame_digest(blobs.read_frame(store.folder, place, image.digest)) != image.digest:
            diagnosis.problems.append(f"{where}: its frame has another digest, it was damaged on the disk")
        elif int(places.read_features(store, place, image).is_shown.sum()) != image.released:
            diagnosis.problems.append(f"{where}: some of its released positions are missing; restore the database")
    except FileError:
        diagnosis.problems.append(f"{where}: its frame is missing or cannot be read")
    except SfumatoError as problem:
        diagnosis.problems.append(f"{where}: {problem}")


def _check_maps(store: Any, diagnosis: Diagnosis) -> None:
    from sfumato.server import blobs, places

    count = 0
    for place in places.list_places(store):
        for row in places.list_maps(store, place.id):
            count += 1
            path = blobs.map_path(store.folder, place.id, row.id, blobs.BUNDLE)
            where = f"map {row.number} of place {place.id}"
            names = blobs.damaged_files(path.parent)
            if names:  # engines read the model, pull the bundle
                diagnosis.problems.append(f"{where}: {', '.join(names)}: missing or damaged; make the map again")
            elif blobs.digest_file(path) != row.digest:
                diagnosis.problems.append(f"{where}: its bundle has another digest; make the map again")
    diagnosis.checks["maps"] = count


def _name_leftovers(store: Any, diagnosis: Diagnosis) -> None:
    """Count what belongs to nothing any more: the server removes most of it by itself."""
    from sfumato.server import blobs, jobs, places

    data, known = store.folder, places.known_frames(store)
    frames = [path for path in (data / blobs.FOLDER).glob("*/*/*") if (path.parts[-3], path.name) not in known]
    uploads = list((data / blobs.UPLOADS).glob("*.part"))
    active = {job.id for job in jobs.list_jobs(store, limit=10_000) if not job.has_ended}
    work = [path for path in (data / blobs.WORK).glob("*") if path.name not in active]
    published = {row.id for place in places.list_places(store) for row in places.list_maps(store, place.id)}
    maps = [path for path in (data / blobs.MAPS).glob("*/*") if path.name not in published | active]
    filled = {place for place, _ in known}
    matches = [path for path in (data / blobs.MATCHES).glob("*") if path.name not in filled]
    for paths, what, advice in (
        (uploads, "unfinished upload", "the server removes them after an hour"),
        (frames, "frame without an image", "the server removes them after an hour"),
        (matches, "folder of matches of a place without images", "the server removes them after an hour"),
        (work, "folder of a job that has ended", "remove them while the server is stopped"),
        (maps, "folder of a map that was never published", "remove them while the server is stopped"),
    ):
        if paths:
            diagnosis.remarks.append(
                f"left over: {len(paths)} x {what}, such as {paths[0].relative_to(data)}; {advice}"
            )


def _ask_server(admin: AdminOptions, diagnosis: Diagnosis) -> None:
    """Ask a server whether it is ready, and what it is."""
    with admin.connect() as client:
        diagnosis.problems += [f"not ready: {reason}" for reason in client.problems()]
        about = client.about()
    diagnosis.checks["server"] = 1
    diagnosis.remarks.append(f"{client.transport.url} is sfumato {about.get('version')}")
    if about.get("clear_modules"):
        diagnosis.problems.append("modules of the clear side are loaded in it: stop it")
