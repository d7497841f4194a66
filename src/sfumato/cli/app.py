# SPDX-License-Identifier: Apache-2.0
"""The application: its commands and their groups, one line for an error, and logging.

Modules of commands are named here and imported when they are needed: a command starts without the libraries of others.
"""

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sfumato import __version__
from sfumato.cli import exit_code
from sfumato.cli.options import expand_groups, printable
from sfumato.errors import SfumatoError

AS_IT_WAS, NOTHING_CHANGED, NOTHING_WRITTEN = "the gallery is as it was", "nothing was changed", "nothing was written"
INDEX_AS_IT_WAS = "the index is as it was"
CONCEALED = "what was finished is in the archive; run the same command again, without --overwrite, to go on"
MATCHED = (
    "the pairs matched so far are kept beside the output; run the same command again, without --overwrite, to go on"
)
MEASURED = "what was measured is kept in the output folder; run the same command again, without --overwrite, to go on"
READ = "what was read is kept beside the output; run the same command again, without --overwrite, to go on"
SENT = "what was concealed and sent is kept; run the same command again to go on"
LEARNED = "what was learned is kept beside the output; run the same command again with --resume to go on"


@dataclass(frozen=True, slots=True)
class Command:
    """``words`` as they are typed, the ``module`` of ``sfumato.cli`` with the ``function``, and the message after an
    interruption."""

    words: str
    module: str
    function: str
    on_interrupt: str

    @property
    def group(self) -> str:
        """The group of the command, or an empty text."""
        return self.words.rpartition(" ")[0]

    @property
    def name(self) -> str:
        """Its name within the group."""
        return self.words.rpartition(" ")[2]

    def load(self) -> Any:
        """Import the module, and return the function."""
        return getattr(import_module(f"sfumato.cli.{self.module}"), self.function)

    @property
    def help(self) -> str:
        """The text of --help: the docstring of the function, for the terminal to wrap."""
        return flowed(self.load().__doc__ or "")


def flowed(text: str) -> str:
    """Return a text with one line per paragraph; examples, lists and indented lines stay as they are.

    >>> flowed("It does this\\nand that.\\n\\nExample: a\\nExample: b")
    'It does this and that.\\n\\nExample: a\\nExample: b'
    """
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if lines and _flows(lines[-1]) and _flows(line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _flows(line: str) -> bool:
    return bool(line) and not line.startswith((" ", "- ", "* ", "Example"))


COMMANDS = (
    Command(
        "audit", "audit", "audit", "what was measured is kept beside the report; run the same command again to go on"
    ),
    Command("help", "help", "help_", NOTHING_CHANGED),
    Command("extract", "device", "extract", NOTHING_WRITTEN),
    Command("conceal", "device", "conceal", CONCEALED),
    Command("release", "device", "release", "what was released is in the archive; run the same command again to go on"),
    Command("cameras", "device", "cameras", NOTHING_WRITTEN),
    Command("match", "match", "match", MATCHED),
    Command("map", "map", "map_", "nothing was written; a map that was there is as it was"),
    Command("enroll", "faces", "enroll", AS_IT_WAS),
    Command("renew", "faces", "renew", AS_IT_WAS),
    Command("revoke", "faces", "revoke", AS_IT_WAS),
    Command("calibrate", "faces", "calibrate", AS_IT_WAS),
    Command("verify", "faces", "verify", NOTHING_CHANGED),
    Command("identify", "faces", "identify", NOTHING_CHANGED),
    Command("inspect", "inspect", "inspect", NOTHING_CHANGED),
    Command("decoys build", "decoys", "build", READ),
    Command("evaluate homography", "evaluate", "homography", MEASURED),
    Command("evaluate map", "evaluate", "map_", MEASURED),
    Command("evaluate localize", "evaluate", "localize", MEASURED),
    Command("evaluate leakage", "evaluate_leakage", "leakage", MEASURED),
    Command("evaluate patches", "evaluate_search", "patches", MEASURED),
    Command("evaluate search", "evaluate_search", "search", MEASURED),
    Command("evaluate faces", "evaluate_faces", "faces", MEASURED),
    Command("evaluate attributes", "evaluate_faces", "attributes", MEASURED),
    Command("evaluate releases", "evaluate_faces", "releases", MEASURED),
    Command("evaluate protection", "evaluate_faces", "protection", MEASURED),
    Command("evaluate tradeoff", "evaluate_leakage", "tradeoff", MEASURED),
    Command("evaluate frontier", "evaluate_leakage", "frontier", MEASURED),
    Command("report", "audit", "report", NOTHING_WRITTEN),
    Command("attack", "attack", "attack", "the pictures painted so far are kept, the results are not"),
    Command("localize", "map", "localize_", NOTHING_WRITTEN),
    Command("export colmap", "export", "colmap", NOTHING_WRITTEN),
    Command("export hloc", "export", "hloc", NOTHING_WRITTEN),
    Command("export public", "export", "public", "nothing was published"),
    Command("index build", "index", "build", NOTHING_WRITTEN),
    Command("index search", "index", "search", NOTHING_WRITTEN),
    Command("index add", "index", "add", INDEX_AS_IT_WAS),
    Command("index remove", "index", "remove", INDEX_AS_IT_WAS),
    Command("invert", "invert", "invert", NOTHING_WRITTEN),
    Command("train inverter", "train", "inverter", LEARNED),
    Command("train decoder", "train", "decoder", LEARNED),
    Command("train compress", "train", "compress", NOTHING_WRITTEN),
    Command("train pairs", "train", "pairs", NOTHING_WRITTEN),
    Command("train ninja", "train_ninja", "ninja", LEARNED),
    Command("serve", "service.serve", "serve", "no server was started"),
    Command("push", "service.push", "push", SENT),
    Command("pull", "service.push", "pull", "nothing was written; a map that was there is as it was"),
    Command("jobs", "service.push", "jobs", "the jobs of the server go on"),
    Command("server key create", "service.admin", "create_key", NOTHING_CHANGED),
    Command("server key list", "service.admin", "list_keys", NOTHING_CHANGED),
    Command("server key revoke", "service.admin", "revoke_key", NOTHING_CHANGED),
    Command("server place create", "service.admin", "create_place", NOTHING_CHANGED),
    Command("server place list", "service.admin", "list_places", NOTHING_CHANGED),
    Command("server place delete", "service.admin", "delete_place", NOTHING_CHANGED),
    Command("server doctor", "service.serve", "doctor", NOTHING_CHANGED),
)

GROUPS = {
    "decoys": (
        "Decoy databases: real-looking descriptors that hide the clear ones.",
        "sfumato decoys build photos/ -o decoys.safetensors --size 256000",
        "sfumato conceal mine/ -o private.sfm --recipe sub-hybrid-2 --decoys decoys.safetensors",
    ),
    "evaluate": (
        "Measure what concealing keeps, costs and hides: records, a table and a figure.",
        "sfumato evaluate homography --recipes raw,sub-hybrid-2 -o results/",
        "sfumato evaluate leakage photos/ --recipes raw,sub-hybrid-2 -o leakage/",
    ),
    "export": (
        "Files for other programs, and what an owner chooses to publish.",
        "sfumato export hloc private.sfm matches.h5 -o hloc/",
        "sfumato export colmap private.sfm matches.h5 -o database.db",
    ),
    "index": (
        "Indexes of concealed features, asked for the nearest entries of others.",
        "sfumato index build private.sfm -o x.index",
        "sfumato index search x.index query.sfm -k 5 -o nearest.csv",
    ),
    "server": (
        "Run a server: its keys, its places and its health.",
        "sfumato server doctor --data sfumato-data",
    ),
    "server key": (
        "API keys of a server: who may do what at which place.",
        "sfumato server key create localize --place kitchen --label phone",
    ),
    "server place": (
        "Places of a server; it knows them by ids, your devices by their names.",
        "sfumato server place list",
    ),
    "train": (
        "Networks that attack and encoders, learned from other people's photos.",
        "sfumato train inverter photos/ -o inverter.safetensors --minutes 15",
        "sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors",
    ),
}
"""Purpose of each group, and examples."""

PANELS = {
    "Start here": ("audit", "conceal", "inspect", "help"),
    "On the device that owns the photos": ("release", "cameras", "extract", "decoys", "invert"),
    "On a server, with concealed features": ("match", "map", "localize", "index", "export"),
    "The service": ("serve", "push", "jobs", "pull", "server"),
    "Faces": ("enroll", "verify", "identify", "calibrate", "renew", "revoke"),
    "Attacking and measuring": ("attack", "evaluate", "report", "train"),
}
"""Panels of --help; a command that is not named here stands by itself."""


def select_commands(arguments: Sequence[str]) -> tuple[Command, ...]:
    """Return the command that arguments name, none for --version, or all for help and misspelt names.

    >>> [command.words for command in select_commands(["-v", "index", "add", "x.index"])]
    ['index add']
    >>> [command.words for command in select_commands(["server", "key", "list"])]
    ['server key list']
    >>> len(select_commands(["--help"])) == len(select_commands(["indx"])) == len(COMMANDS)
    True
    """
    if "--version" in arguments:
        return ()
    words = [word for word in arguments if word not in ("-v", "--verbose")][:3]
    for count in (1, 2, 3):
        selection = tuple(command for command in COMMANDS if command.words == " ".join(words[:count]))
        if selection and len(words) >= count:
            return selection
    return COMMANDS


def _show_version(is_set: bool) -> None:
    if is_set:
        print(f"sfumato {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, never a value.")] = False,
) -> None:
    warnings.formatwarning = _format_once()
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def _format_once() -> Callable[..., str]:
    """Return a way to show each warning as one line, and a second time not at all."""
    shown = set[str]()

    def show(message: Warning | str, *_args: Any, **_kwargs: Any) -> str:
        line = f"warning: {printable(message)}\n"
        if line in shown:
            return ""
        shown.add(line)
        return line

    return show


def explain_errors(command: Callable[..., None], on_interrupt: str) -> Callable[..., None]:
    """Wrap a command: our own errors end it with one line and exit code 1, Ctrl-C and SIGTERM with another line."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except SfumatoError as error:
            print(printable(f"error: {error}"), file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            print(f"interrupted: {on_interrupt}", file=sys.stderr)
            raise typer.Exit(exit_code()) from stop
        except MemoryError as stop:
            print("error: not enough memory; try fewer features, photos or answers", file=sys.stderr)
            raise typer.Exit(1) from stop
        except BrokenPipeError as stop:  # the reader of our output went away
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from stop

    return wrapped


class PlainCommand(TyperCommand):
    """A command whose usage shows arguments as NAME, [NAME] if optional, NAME... for several."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arguments = [param for param in self.params if param.param_type_name == "argument"]
        for argument in self._arguments:
            argument.metavar = argument.metavar or str(argument.name).upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in its usage."""
        names = [(f"{arg.metavar}{'' if arg.nargs == 1 else '...'}", arg.required) for arg in self._arguments]
        return ["[OPTIONS]", *(name if is_required else f"[{name}]" for name, is_required in names)]


def make_app(commands: Iterable[Command] = COMMANDS) -> typer.Typer:
    """Return an application of these commands; their modules are imported."""
    application = typer.Typer(
        name="sfumato",
        help="Private visual features: still matched, mapped and recognised, no longer turned back into the picture.",
        epilog="Start with: sfumato audit. Then: sfumato conceal photos/ -o private.sfm; sfumato match "
        "private.sfm --exhaustive -o matches.h5",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    application.callback()(_options)
    order = {name: (place, title) for place, (title, name) in enumerate(
        (title, name) for title, names in PANELS.items() for name in names
    )}  # fmt: skip
    groups = {"": application}
    for command in sorted(commands, key=lambda command: order.get(command.words, (len(order), ""))[0]):
        panel = order.get(command.words.split()[0], (0, "Others"))[1]
        add_groups(groups, command.group, panel)
        add = groups[command.group].command(
            command.name, cls=PlainCommand, help=command.help, rich_help_panel=None if command.group else panel
        )
        add(explain_errors(expand_groups(command.load()), command.on_interrupt))
    return application


def add_groups(groups: dict[str, typer.Typer], words: str, panel: str) -> None:
    """Make the group of some words, and the groups it is in, where they are missing."""
    if words in groups:
        return
    parent, _, name = words.rpartition(" ")
    add_groups(groups, parent, panel)
    groups[words] = make_group(*GROUPS[words])
    groups[parent].add_typer(groups[words], name=name, rich_help_panel=None if parent else panel)


def make_group(summary: str, *examples: str) -> typer.Typer:
    """Return a group of commands; without a command it shows its help, which ends with examples."""
    lines = "\n".join(f"Example: {example}" for example in examples)
    return typer.Typer(help=f"{summary}\n\n{lines}", no_args_is_help=True)


def __getattr__(name: str) -> Any:
    """Make the application of all commands at first use."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = make_app()
    return globals()["app"]


def main() -> None:
    """Run the command."""
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    make_app(COMMANDS if completes else select_commands(sys.argv[1:]))()
