# SPDX-License-Identifier: Apache-2.0
"""Maps and poses by a server: what ``sfumato map`` and ``localize`` do with --server, told in the same words."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from operator import length_hint
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli import exit_code
from sfumato.cli.device import ReleaseOptions, describe_release
from sfumato.cli.options import printable, progress_bar, quantity, tell
from sfumato.cli.service.connect import (
    ID,
    MapServerOptions,
    QueryServerOptions,
    has_positions_here,
    job_bars,
    open_place,
    pushed_path,
    refuse_local,
)
from sfumato.client.jobs import MapJob
from sfumato.client.places import Place
from sfumato.concealment.keys import read_key
from sfumato.concealment.resolve import resolve_ahead
from sfumato.device import conceal_photos, holds_photos, local_params_of
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import read_text, write_text
from sfumato.geometry.localization import LocalizeParams
from sfumato.geometry.model_folder import OTHERS, refuse_taken
from sfumato.geometry.queries import Localizations, check_poses_output, save_localizations
from sfumato.store.archive import load
from sfumato.types.recipe import DEFAULT

if TYPE_CHECKING:
    from sfumato.cli.map import DeviceKeyOptions, MapOptions

CONDITIONS = ".release"
"""End of the name of a file beside an archive: under which conditions its positions may leave."""


def map_at_server(
    remote: MapServerOptions,
    output: Path | None,
    options: "MapOptions",
    local: Mapping[str, object],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Let a server make a map, follow the job, and report as ``sfumato map`` does; with ``output`` fetch the map."""
    from sfumato.cli.map import DEFAULTS, report_facts

    refuse_local({**local, "--threads": None if options.threads == DEFAULTS.threads else options.threads})
    params = options.params  # checked
    if output is not None:
        if not remote.wait:
            raise InputError("-o fetches the finished map, and --detach does not wait for it: give one of the two")
        refuse_taken(output, overwrite=options.overwrite)
    with remote.connect(remote.secret_file) as client:
        place = open_place(client, remote.place)
        if remote.release:
            _release_more(place, remote, quiet=quiet or as_json)
        job = place.build_map(
            pairs=remote.pairs, mapper=params.mapper, tries=params.tries, seed=params.seed,
            refine_intrinsics=bool(params.refine_intrinsics), shared_camera=params.shared_camera,
        )  # fmt: skip
        where = f"{place.title} at {client.transport.url}"
        if not remote.wait:
            queued = {"job": job.number, "state": job.state.state, "place": place.title, "place id": place.id}
            tell(printable(f"job {job.number} is queued for {where}: sfumato jobs --follow"), queued, as_json=as_json)
            return
        figures, number = wait_for_map(job, quiet=quiet or as_json)
        if number is not None and output is not None:
            place.pull(output, number, overwrite=options.overwrite)
    facts: dict[str, Any] = {**figures, "output": None if output is None or number is None else str(output)}
    facts |= {"job": job.number, "map": number}
    for other in facts["other models"]:  # the server's folder is nobody's business
        other["folder"] = f"{'' if output is None else f'{output}/'}{OTHERS}/{Path(other['folder']).name}"
    guessed = int(facts["guessed cameras"])
    if guessed:
        print(
            f"cameras: focal lengths of {guessed} of {quantity(facts['images'], 'image')} guessed as 1.2 times the "
            f"longer side, adjusted while mapping; push with --cameras or --with-cameras if they are known",
            file=sys.stderr,
        )
    report_facts(facts, f"map {number} of {where}" if output is None else str(output), as_json=as_json)
    if number is None or facts["unreadable"]:
        raise typer.Exit(1)


def _release_more(place: Place, remote: MapServerOptions, *, quiet: bool) -> None:
    """Release what photos that came since see too, of those that this device pushed; say it on standard error.

    The conditions are those of the last push; where it had --no-release, nothing leaves here either.
    """
    path = pushed_path(place.id)
    conditions = recall_conditions(path)
    if conditions is None or not has_positions_here(path):
        return
    secret = None if remote.secret_file is None else read_key(remote.secret_file)
    with job_bars(quiet=quiet) as show:
        outcome = place.release(
            path, conditions.params, secret=secret, pairs=remote.pairs, never=conditions.never, progress=show
        )
    line, _ = describe_release(outcome)
    print(printable(line), file=sys.stderr)


def remember_conditions(archive: Path, options: ReleaseOptions | None) -> ReleaseOptions | None:
    """Write down under which conditions positions of an archive may leave; None if they may not. Return them.

    One that is not named now is as it was named before: a mask that was given once is not forgotten.
    """
    before, usual = recall_conditions(archive), ReleaseOptions()
    if options is not None and before is not None:
        names = [entry.name for entry in fields(options) if getattr(options, entry.name) == getattr(usual, entry.name)]
        options = replace(options, **{name: getattr(before, name) for name in names})
    facts = None if options is None else {
        "rule": options.rule, "limit": options.limit,
        "never": None if options.never is None else str(options.never.absolute()),
    }  # fmt: skip
    write_text(Path(f"{archive}{CONDITIONS}"), json.dumps(facts), private=True)
    return options


def recall_conditions(archive: Path) -> ReleaseOptions | None:
    """Return the conditions of the last push of an archive; None if there was none, or it released nothing.

    Raises FileError for a file that cannot be read.
    """
    path = Path(f"{archive}{CONDITIONS}")
    if not path.is_file():
        return None
    try:
        facts = json.loads(read_text(path))
        if facts is None:
            return None
        never = None if facts["never"] is None else Path(facts["never"])
        return ReleaseOptions(rule=str(facts["rule"]), limit=float(facts["limit"]), never=never)
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: it is damaged: push again, with the conditions of the release") from cause


def wait_for_map(job: MapJob, *, quiet: bool) -> tuple[dict[str, Any], int | None]:
    """Wait for a job with a bar for each stage; return the figures and the number of its map, None if there is none."""
    try:
        with job_bars(quiet=quiet) as show:
            state = job.wait(show)
    except KeyboardInterrupt as stop:
        print(
            f"interrupted: job {job.number} goes on at the server; sfumato jobs --follow shows it, sfumato jobs "
            f"--cancel {job.number} ends it",
            file=sys.stderr,
        )
        raise typer.Exit(exit_code()) from stop
    if state.figures is None:
        raise InputError(f"job {job.number} is done, and the server says nothing of it: update the older program")
    return dict(state.figures), state.map


def localize_at_server(
    queries: Path,
    remote: QueryServerOptions,
    device: "DeviceKeyOptions",
    local: Mapping[str, object],
    *,
    cameras: Path | None,
    candidates: int | None,
    params: LocalizeParams,
    output: Path | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Let a server localize queries, write the poses and report, as ``sfumato localize`` does with a map on disk."""
    from sfumato.cli.map import read_query_cameras, report_poses

    refuse_local(local)
    if output is not None:
        inputs = {"the archive of queries": queries, "the list of cameras": cameras}
        check_poses_output(output, None, inputs, overwrite=overwrite)
    listed, marked = ({}, frozenset()) if cameras is None else read_query_cameras(cameras, queries)
    camera_of = {name: camera for name, camera in listed.items() if name not in marked}
    is_quiet = quiet or as_json
    with remote.connect(device.secret_file) as client, ExitStack() as stack:
        place, unreadable = open_place(client, device.place), dict[str, str]()
        if holds_photos(queries):
            archive, unreadable = stack.enter_context(
                _concealed(queries, place, remote, device.secret_file, quiet=is_quiet)
            )
        else:
            archive = queries
            if remote.recipe != DEFAULT or remote.with_cameras or remote.send_positions:
                raise InputError(
                    f"--recipe, --with-cameras and --send-positions are for photos, and the features in {queries} are "
                    f"concealed already"
                )
        outcome: Localizations = place.localize_archive(
            archive, camera_of, params, candidates=candidates, listable=output is not None,
            progress=lambda items: progress_bar("localizing", length_hint(items), quiet=is_quiet)(items),
        )  # fmt: skip
    outcome.unreadable |= unreadable
    if output is not None:
        save_localizations(output, outcome, params, {"map": "concealed"})
    report_poses(outcome, listed, output, as_json=as_json)
    if outcome.unreadable or outcome.unlisted or not outcome.poses:
        raise typer.Exit(1)


@contextmanager
def _concealed(
    photos: Path, place: Place, remote: QueryServerOptions, secret_file: Path | None, *, quiet: bool
) -> Iterator[tuple[Path, dict[str, str]]]:
    """Give an archive of the queries in photos, concealed as the place's were, and the photos that cannot be read.

    The device decides how: by what it pushed there, or by --recipe. What a server says counts for nothing here.
    """
    recipe, settings = remote.recipe, LocalParams()
    kept = pushed_path(place.id)
    if recipe == DEFAULT and kept.is_file():
        with load(kept) as archive:
            header = next((archive.header(name) for name in archive), None)
        if header is not None:
            recipe, settings = str(header.recipe), local_params_of(header.extractor)
    with TemporaryDirectory(prefix="sfumato-") as folder:
        path = Path(folder) / "queries.sfm"
        outcome = conceal_photos(
            photos,
            path,
            recipe=recipe,
            secret=None if secret_file is None else read_key(secret_file),
            place=sealing_place(recipe, place),
            with_cameras=remote.with_cameras,
            positions=True if remote.send_positions and resolve_ahead(recipe).is_sealed else None,
            local=settings,
            progress=progress_bar("concealing", None, quiet=quiet),
        )
        yield path, outcome.unreadable


def sealing_place(recipe: str, place: Place) -> str | None:
    """Return the name of a place for a sealed recipe, whose key is derived from it; None for other recipes.

    Raises InputError for a place of which the name is not known.
    """
    if not resolve_ahead(recipe).is_sealed:
        return None
    if place.name is None:
        raise InputError(
            f"photos are sealed for a place by its name, and this device does not know that of {ID}{place.id}: give "
            f"the name with --place"
        )
    return place.name
