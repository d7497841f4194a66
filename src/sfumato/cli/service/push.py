# SPDX-License-Identifier: Apache-2.0
"""Commands of devices that use a server: push, pull and jobs."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.device import ReleaseOptions, describe_release
from sfumato.cli.options import (
    AsJson,
    ExtractorName,
    LocalOptions,
    Quiet,
    Workers,
    complete_recipe,
    outcome_facts,
    printable,
    progress_bar,
    quantity,
    tell,
    warn_about,
)
from sfumato.cli.service.connect import (
    PlaceName,
    SecretFile,
    ServerOptions,
    has_positions_here,
    job_bars,
    open_place,
    pushed_path,
)
from sfumato.cli.service.maps import remember_conditions, sealing_place
from sfumato.client.answers import JobState
from sfumato.client.jobs import MapJob
from sfumato.client.places import Place
from sfumato.client.settings import refuse_device_key
from sfumato.concealment.keys import read_key
from sfumato.concealment.resolve import resolve_ahead
from sfumato.device import conceal_photos, holds_photos
from sfumato.errors import ArchiveError, FileError, InputError, ServerError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import open_file
from sfumato.geometry.model_folder import refuse_taken
from sfumato.store.archive import load
from sfumato.store.layout import ARCHIVE
from sfumato.types.recipe import DEFAULT

FINGERPRINT = re.compile("@[0-9a-f]+")
"""The name of a key within a recipe."""
MARK_AT = 68
"""Where SQLite keeps the number that says whose file it is."""


def push(
    photos: Annotated[
        Path, typer.Argument(help="A folder of photos, a photo, features of another program; or an archive (.sfm).")
    ],
    place: PlaceName,
    server: ServerOptions = ServerOptions(),
    recipe: Annotated[
        str, typer.Option(help="For photos: how to conceal, as in sfumato conceal.", autocompletion=complete_recipe)
    ] = DEFAULT,
    decoys: Annotated[Path | None, typer.Option(help="For photos: decoys, as in sfumato conceal.")] = None,
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    secret_file: SecretFile = None,
    with_cameras: Annotated[
        bool,
        typer.Option(
            "--with-cameras",
            help="For photos: let the focal length that EXIF gives go with each photo, and nothing else of EXIF.",
        ),
    ] = False,
    cameras: Annotated[
        Path | None, typer.Option(help="Cameras to send along: a line 'name MODEL width height parameters...' each.")
    ] = None,
    options: ReleaseOptions = ReleaseOptions(),
    release: Annotated[
        bool,
        typer.Option(
            "--release/--no-release",
            help="Also release positions of what several photos of the place see, as 'sfumato release' does: without, "
            "no map can be made of these photos.",
        ),
    ] = True,
    archive: Annotated[
        Path | None,
        typer.Option(
            help="For photos: where to keep what was concealed. Default: a file per place beside the device key."
        ),
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Send concealed features of photos to a place of a server. The photos, their names and your key stay here.

    Photos are extracted and concealed here, as 'sfumato conceal' does, sealed for the place. What was concealed is kept
    in a file on this device, so that no photo is ever released a second time: run the command again after a break, or
    with more photos, and it sends what the server does not have. An archive is sent as it is, without sizes and angles.

    Positions stay here. Then the server matches, and this device checks what it found: positions of what three photos
    of the place see go to the server, for its map, and nothing else. Conditions of the release (--rule, --limit,
    --never) are remembered: later pushes, and 'sfumato map --server', keep to each until another is named.

    The place is made if it is missing and the key may. Names are replaced by ids; the table of names stays beside the
    device key.

    Example: sfumato push photos/ --server http://127.0.0.1:8765 --place kitchen
    Example: sfumato push private.sfm --place kitchen --cameras cameras.txt
    """
    is_quiet = quiet or as_json
    is_archive = has_archive(photos)
    if is_archive:
        _refuse_for_archive(photos, recipe, decoys, archive, with_cameras=with_cameras)
    with server.connect(secret_file) as client:
        target = open_place(client, place)
        concealed: dict[str, Any] = {}
        path, is_new = photos, False
        if not is_archive:
            path, sealed_for = archive or pushed_path(target.id), sealing_place(recipe, target)
            is_new = target.prepare()  # a wrong address or key, and a place that is missing, show before long work
            _make_private(path.parent)
            with _advise(path):
                outcome = conceal_photos(
                    photos,
                    path,
                    recipe=recipe,
                    secret=None if secret_file is None else read_key(secret_file),
                    place=sealed_for,
                    decoys=decoys,
                    with_cameras=with_cameras,
                    local=local.params,
                    extractor=extractor,
                    workers=workers,
                    progress=progress_bar("concealing", None, quiet=is_quiet),
                )
            warn_about(outcome)
            concealed = {**outcome_facts(outcome), "recipe": outcome.recipe, "archive": str(path)}
        sent = target.push(path, cameras, progress=progress_bar("sending", None, quiet=is_quiet))
        released = None
        if has_positions_here(path):
            conditions = remember_conditions(path, options if release else None)
            with job_bars(quiet=is_quiet) as show:
                released = None if conditions is None else target.release(
                    path, conditions.params, secret=None if secret_file is None else read_key(secret_file),
                    never=conditions.never, progress=show,
                )  # fmt: skip
    for name, reason in sent.unreadable.items():
        print(printable(f"not sent, {name}: {reason}"), file=sys.stderr)
    released_line, released_facts = ("", None) if released is None else describe_release(released)
    facts = {
        "sent": sent.sent,
        "already there": len(sent.present),
        "bytes": sent.bytes,
        "not sent": sent.unreadable,
        "place": target.title,
        "place id": target.id,
        "new place": is_new or sent.is_new_place,
        "server": client.transport.url,
        "concealed": concealed or None,
        "released": None if released is None else {**(released_facts or {}), "bytes": released.bytes},
    }
    there = f", {len(sent.present)} already there" if sent.present else ""
    kept = f"; what was concealed is kept in {path}" if concealed else ""
    size = f" ({decimal(sent.bytes)})" if sent.sent else ""
    line = f"{quantity(len(sent.sent), 'image')} sent{size}{there}: {target.title} at {client.transport.url}{kept}"
    line += "" if released is None else f"; {released_line} ({decimal(released.bytes)})"
    tell(printable(line), facts, as_json=as_json)
    if sent.unreadable or (released is not None and released.kept_back):
        raise typer.Exit(1)


def has_archive(path: Path) -> bool:
    """Tell whether a file is an archive of concealed features, by its content.

    Raises FileError for a file that is not there, InputError for one that could be a device key.
    """
    if path.is_dir():
        return False
    with open_file(path, 2**62) as file:
        head = file.read(100)
    if head[MARK_AT : MARK_AT + 4] == ARCHIVE.mark.to_bytes(4, "big"):
        return True
    if not holds_photos(path):
        refuse_device_key(path)
    return False


def _refuse_for_archive(
    path: Path, recipe: str, decoys: Path | None, archive: Path | None, *, with_cameras: bool
) -> None:
    """Raise InputError for options that belong to photos."""
    options = {"--recipe": recipe != DEFAULT, "--decoys": decoys is not None, "--archive": archive is not None,
               "--with-cameras": with_cameras}  # fmt: skip
    for option, is_set in options.items():
        if is_set:
            raise InputError(f"{option} is for photos, and the features in {path} are concealed already")


@contextmanager
def _advise(path: Path) -> Iterator[None]:
    """Say what to do where photos were concealed in another way before: a push never starts anew."""
    try:
        yield
    except ArchiveError as problem:
        _, begun, reason = str(problem).partition(" was begun ")
        if not begun:
            raise
        options = options_of(path)
        raise ArchiveError(
            f"{path} was begun {reason.partition(': ')[0]}: give the options of the first push again"
            f"{f' ({options})' if options else ', which had none for photos'}, and the same device key; a second "
            f"release of a photo tells more than one"
        ) from problem


def options_of(path: Path) -> str:
    """Return the options with which photos were concealed into an archive, those that are not the usual ones."""
    with load(path) as archive:
        headers = archive.summary().images
    if not headers:
        return ""
    settings, usual = headers[0].extractor.settings, LocalParams()
    names = ("extractor", "descriptor", "max_features", "contrast_threshold")
    words = [
        f"--{name.replace('_', '-')} {settings[name]}"
        for name in names
        if name in settings and settings[name] != getattr(usual, name)
    ]
    recipe = FINGERPRINT.sub("", str(headers[0].recipe))
    words += [] if recipe == str(resolve_ahead(DEFAULT)) else [f"--recipe {recipe}"]
    words += ["--with-cameras"] if any(header.focal_px is not None for header in headers) else []
    return " ".join(words)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as cause:
        raise FileError(f"{folder}: cannot be made: {cause.strerror or cause}; name a file with --archive") from cause


def pull(
    place: PlaceName,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the map to write, e.g. model/.")],
    server: ServerOptions = ServerOptions(),
    number: Annotated[
        int | None, typer.Option("--map", help="The number of the map. Default: the one that queries meet.")
    ] = None,
    secret_file: SecretFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the map that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a map from a server, to localize without it: 'sfumato localize photo.jpg model/'.

    The folder is one that 'sfumato map' would have written, and its images have their names back, as far as this device
    knows them. Needs a key with the scope export.

    Example: sfumato pull --server http://127.0.0.1:8765 --place kitchen -o model/
    """
    refuse_taken(output, overwrite=overwrite)
    with server.connect(secret_file) as client:
        target = open_place(client, place)
        found = target.pull(output, number, overwrite=overwrite)
    figures = found.figures
    facts = {"map": found.number, "place": target.title, "place id": target.id, "figures": dict(figures)}
    line = f"map {found.number} of {target.title}, {figures.get('registered')} images, {figures.get('points')} points"
    tell(printable(f"{line}: {output}"), {**facts, "output": str(output)}, as_json=as_json)


def jobs(
    server: ServerOptions = ServerOptions(),
    place: Annotated[str | None, typer.Option(help="Only jobs of this place.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for the jobs that have not ended.")] = False,
    cancel: Annotated[int | None, typer.Option(help="Cancel the job with this number.")] = None,
    limit: Annotated[int, typer.Option(help="Show this many, the newest first.", min=1, max=500)] = 20,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the jobs of a server, follow them, or cancel one.

    Example: sfumato jobs --server http://127.0.0.1:8765
    Example: sfumato jobs --place kitchen --follow
    Example: sfumato jobs --cancel 3
    """
    with server.connect(secret_file) as client:
        target: Place | None = None if place is None else open_place(client, place)
        if cancel is not None:
            job = next((job for job in client.jobs(target, limit=500) if job.number == cancel), None)
            if job is None:
                raise InputError(f"the server has no job {cancel}, or this key may not see it: sfumato jobs lists them")
            state = job.cancel()
            tell(
                f"{state}: it ends within seconds" if not state.has_ended else str(state),
                _facts(state),
                as_json=as_json,
            )
            return
        found = client.jobs(target, limit=limit)
        failures = _follow(found, quiet=quiet or as_json) if follow else 0
        states = [job.state for job in found]
    lines = [f"{state} ({state.place_name or f'id:{state.place}'})" for state in states]
    tell(printable_lines(lines) or "no jobs", {"jobs": [_facts(state) for state in states]}, as_json=as_json)
    if failures:
        raise typer.Exit(1)


def _follow(listed: list[MapJob], *, quiet: bool) -> int:
    """Wait for all jobs that have not ended, the oldest first; return how many of them failed."""
    failures = 0
    for job in reversed(listed):
        if job.state.has_ended:
            continue
        try:
            with job_bars(quiet=quiet) as show:
                job.wait(show)
        except ServerError as problem:
            if problem.code != "job_cancelled":
                print(printable(f"error: {problem}"), file=sys.stderr)
                failures += 1
    return failures


def printable_lines(lines: list[str]) -> str:
    """Return lines without anything that acts on a terminal."""
    return "\n".join(map(printable, lines))


def _facts(state: JobState) -> dict[str, Any]:
    names = ("id", "number", "kind", "place", "place_name", "state", "stage", "done", "total", "reason", "map")
    return {name.replace("_", " "): getattr(state, name) for name in names}
