# SPDX-License-Identifier: Apache-2.0
"""Options of commands that talk to a server, and what such commands share: the place, a bar for each stage of a job."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli.options import complete_recipe
from sfumato.client.settings import URL_VARIABLE, check_url, read_api_key
from sfumato.concealment.keys import device_key_path, read_key
from sfumato.errors import InputError
from sfumato.types.recipe import DEFAULT

if TYPE_CHECKING:
    from sfumato.client.answers import JobState
    from sfumato.client.places import Client, Place

ID = "id:"
"""What stands before the id of a place where no name is meant."""

SecretFile = Annotated[
    Path | None, typer.Option(help="The device key that names and codes are made with. Default: yours.")
]
PlaceName = Annotated[
    str,
    typer.Option(
        help="The place, by the name that you gave it, the same on all your devices; the server gets an id made from "
        f"it with the device key. Or {ID} and the id itself."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options that say which server is meant."""

    server: Annotated[
        str | None,
        typer.Option(
            help="The server's address, e.g. https://maps.example. Default: $SFUMATO_SERVER. The API key comes from "
            "$SFUMATO_API_KEY, or from sfumato/servers.toml in your folder of settings."
        ),
    ] = None
    allow_http: Annotated[
        bool,
        typer.Option("--allow-http", help="Send the API key to another machine without TLS: others can read it."),
    ] = False
    ca_file: Annotated[Path | None, typer.Option(help="Certificates (PEM) to trust in place of the usual ones.")] = None

    @property
    def url(self) -> str:
        """The address of the server; raises InputError if none is named."""
        url = self.server or os.environ.get(URL_VARIABLE)
        if not url:
            raise InputError(
                f"name a server: --server http://127.0.0.1:8765, or ${URL_VARIABLE}; sfumato serve starts one"
            )
        return check_url(url, allow_http=self.allow_http)

    def connect(self, secret_file: Path | None = None) -> "Client":
        """Return a client; the device key is read only if a name is to be replaced, or a file names one."""
        from sfumato.client.places import Client

        for name in ("httpx2", "httpcore2", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)  # their lines hold ids and settings
        url = self.url
        secret = None if secret_file is None else read_key(secret_file)
        return Client(url, read_api_key(url), secret=secret, allow_http=self.allow_http, ca_file=self.ca_file)

    def is_meant(self, has_no_other: bool) -> bool:
        """Tell whether a command that also works without a server is to use one.

        It is where --server says so, and where the command names nothing else and the environment has a server.
        """
        return self.server is not None or (has_no_other and bool(os.environ.get(URL_VARIABLE)))

    def refuse(self) -> None:
        """Raise InputError for options that need a server where none is meant."""
        for entry in fields(self):
            if getattr(self, entry.name) != entry.default:
                names = {"wait": "detach", "release": "no-release"}
                name = names.get(entry.name, entry.name.replace("_", "-"))
                if os.environ.get(URL_VARIABLE):
                    raise InputError(
                        f"--{name} is for the server of ${URL_VARIABLE}, and a file or folder of this machine is named "
                        f"too: leave one of the two out; sfumato push sends an archive to a server"
                    )
                raise InputError(f"--{name} is for a server: name it with --server, or ${URL_VARIABLE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapServerOptions(ServerOptions):
    """Options of a map that a server makes."""

    place: Annotated[
        str | None, typer.Option(help="With --server: the place whose images are mapped, as in sfumato push.")
    ] = None
    wait: Annotated[
        bool, typer.Option("--wait/--detach", help="With --server: wait for the map, or leave once it is queued.")
    ] = True
    pairs: Annotated[
        str, typer.Option(help="With --server: what to compare: auto, exhaustive, sequential:10 or votes:20.")
    ] = "auto"
    release: Annotated[
        bool,
        typer.Option(
            "--release/--no-release",
            help="With --server: first release what newer photos see too, of the photos that this device pushed.",
        ),
    ] = True
    secret_file: SecretFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryServerOptions(ServerOptions):
    """Options of queries that a server answers."""

    recipe: Annotated[
        str,
        typer.Option(
            help="For photos with --server: how those of the place were concealed. Default: as your own push did.",
            autocompletion=complete_recipe,
        ),
    ] = DEFAULT
    with_cameras: Annotated[
        bool,
        typer.Option(
            "--with-cameras",
            help="For photos with --server: let the focal length that EXIF gives go with each query; it may tell the "
            "camera model. Default: it is estimated.",
        ),
    ] = False

    send_positions: Annotated[
        bool,
        typer.Option(
            "--send-positions",
            help="For photos with --server: send the positions of all features too, and let the server solve the pose. "
            "Default: codes alone are sent, points of the map come back, and the pose is solved here.",
        ),
    ] = False


def open_place(client: "Client", place: str | None) -> "Place":
    """Return the place of a name, or of an id after ``id:``; raises InputError if none is named."""
    if not place or not place.strip():
        raise InputError("name a place: --place kitchen, the name that sfumato push was given")
    if place.startswith(ID):
        return client.place(id=place.removeprefix(ID))
    return client.place(place)


def pushed_path(place: str) -> Path:
    """Return where the concealed features of the photos that were pushed to a place are kept on this device."""
    return device_key_path().parent / "pushed" / f"{place}.sfm"


def refuse_local(options: Mapping[str, object]) -> None:
    """Raise InputError for an option that is for work on this machine, where a server is to do it."""
    for option, value in options.items():
        if value is not None:
            advice = "send it with sfumato push" if option in ("ARCHIVE", "--cameras") else "leave it out"
            raise InputError(f"{option} is for maps on this machine, and --server names another: {advice}")


@contextmanager
def job_bars(*, quiet: bool) -> Iterator[Callable[["JobState"], None]]:
    """Give a function that shows the states of a job: on a terminal, a bar for each stage."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console, tasks = Console(stderr=True), dict[str, TaskID]()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:

        def show(state: "JobState") -> None:
            title = state.stage if state.state == "running" and state.stage else state.state
            if title in ("queued", "running") and title not in tasks:
                tasks[title] = bars.add_task(title, total=1)
            elif state.state == "running" and state.stage:
                task = tasks.get(title) or bars.add_task(title, total=state.total or None)
                tasks[title] = task
                bars.update(task, completed=state.done, total=state.total or None)
            for other in tasks:
                if other != title or state.has_ended:
                    total = next((task.total for task in bars.tasks if task.id == tasks[other]), None)
                    bars.update(tasks[other], completed=total or 1, total=total or 1)

        yield show


def has_positions_here(archive: Path) -> bool:
    """Tell whether this device has positions of an archive that stayed home."""
    from sfumato.device import positions_path

    return positions_path(archive).is_file()
