# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, how errors become one clear line, and where logging goes."""

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
from sfumato.cli.options import expand_groups, printable
from sfumato.errors import SfumatoError

# ----------------------------------------------------------------
# Which commands there are, in which module each is, and how --help groups them
# Modules are named here and imported when they are needed: a command starts without the libraries of all others.


AS_IT_WAS, NOTHING_CHANGED, NOTHING_WRITTEN = "the gallery is as it was", "nothing was changed", "nothing was written"
INDEX_AS_IT_WAS = "the index is as it was"
CONCEALED = "what was finished is kept beside the archive; run the same command again, without --overwrite, to go on"
MATCHED = (
    "the pairs matched so far are kept beside the output; run the same command again, without --overwrite, to go on"
)
MEASURED = "what was measured is kept in the output folder; run the same command again, without --overwrite, to go on"
LEARNED = "what was learned is kept beside the output; run the same command again with --resume to go on"


@dataclass(frozen=True, slots=True)
class Command:
    """``words`` as they are typed, the ``module`` of ``sfumato.cli`` and the ``function`` in it, and what is said when
    it is ``interrupted``."""

    words: str
    module: str
    function: str
    interrupted: str

    @property
    def group(self) -> str:
        """The group that the command is of, or nothing."""
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
        """What --help tells: the docstring of the function, as the terminal is to wrap it."""
        return flowed(self.load().__doc__ or "")


def flowed(text: str) -> str:
    """Return a text with a line a paragraph; examples, and lines that are indented or of a list, stay as they are.

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
    Command("extract", "device", "extract", NOTHING_WRITTEN),
    Command("conceal", "device", "conceal", CONCEALED),
    Command("match", "match", "match", MATCHED),
    Command("map", "map", "map_", "nothing was written; a map that was there is as it was"),
    Command("enroll", "faces", "enroll", AS_IT_WAS),
    Command("renew", "faces", "renew", AS_IT_WAS),
    Command("revoke", "faces", "revoke", AS_IT_WAS),
    Command("calibrate", "faces", "calibrate", AS_IT_WAS),
    Command("verify", "faces", "verify", NOTHING_CHANGED),
    Command("identify", "faces", "identify", NOTHING_CHANGED),
    Command("inspect", "inspect", "inspect", NOTHING_CHANGED),
    Command("decoys build", "decoys", "build", NOTHING_WRITTEN),
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
)

GROUPS = {
    "decoys": (
        "Decoy databases: real-looking descriptors that hide the clear ones.",
        "sfumato decoys build photos/ -o decoys.npz --size 65536",
        "sfumato conceal mine/ -o private.sfm.h5 --recipe sub-hybrid-2 --decoys decoys.npz",
    ),
    "evaluate": (
        "Measure what concealing keeps, costs and hides: records, a table and a figure.",
        "sfumato evaluate homography --recipes raw,sub-hybrid-2 -o results/",
        "sfumato evaluate leakage photos/ --recipes raw,sub-hybrid-2 -o leakage/",
    ),
    "export": (
        "Files for other programs, and what an owner chooses to publish.",
        "sfumato export hloc private.sfm.h5 matches.h5 -o hloc/",
    ),
    "index": (
        "Indexes of concealed features, asked for the nearest entries of others.",
        "sfumato index build private.sfm.h5 -o x.index",
        "sfumato index search x.index query.sfm.h5 -k 5 -o nearest.csv",
    ),
    "train": (
        "Networks that attack and encoders, learned from other people's photos.",
        "sfumato train inverter photos/ -o inverter.safetensors --minutes 15",
        "sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors",
    ),
}
"""What each group is for, and examples."""

PANELS = {
    "Start here": ("audit", "conceal", "inspect"),
    "On the device that owns the photos": ("extract", "decoys", "invert"),
    "On a server, with concealed features": ("match", "map", "localize", "index", "export"),
    "Faces": ("enroll", "verify", "identify", "calibrate", "renew", "revoke"),
    "Attacking and measuring": ("attack", "evaluate", "report", "train"),
}
"""How --help groups the commands; one that is new stands by itself until it is named here."""


def asked_for(arguments: Sequence[str]) -> tuple[Command, ...]:
    """Return the command that arguments name, none for --version, or all: for help, and for what is misspelt.

    >>> [command.words for command in asked_for(["-v", "index", "add", "x.index"])]
    ['index add']
    >>> len(asked_for(["--help"])) == len(asked_for(["indx"])) == len(COMMANDS)
    True
    """
    if "--version" in arguments:
        return ()
    named = [word for word in arguments if word not in ("-v", "--verbose")][:2]
    for count in (1, 2):
        found = tuple(command for command in COMMANDS if command.words == " ".join(named[:count]))
        if found and len(named) >= count:
            return found
    return COMMANDS


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sfumato {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, never a value.")] = False,
) -> None:
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {printable(message)}\n"
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def explained(command: Callable[..., None], interrupted: str) -> Callable[..., None]:
    """Let errors made on purpose end a command with one line and exit code 1, Ctrl-C with another and 130."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except SfumatoError as error:
            print(printable(f"error: {error}"), file=sys.stderr)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as stop:
            print(f"interrupted: {interrupted}", file=sys.stderr)
            raise typer.Exit(130) from stop
        except MemoryError as stop:
            print("error: this takes more memory than there is; try fewer features, photos or answers", file=sys.stderr)
            raise typer.Exit(1) from stop
        except BrokenPipeError as stop:  # whoever read our output went away
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from stop

    return wrapped


class PlainCommand(TyperCommand):
    """A command whose usage names all arguments alike: NAME, [NAME] for one that may be left out, NAME... for many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arguments = [one for one in self.params if one.param_type_name == "argument"]
        for one in self._arguments:
            one.metavar = one.metavar or str(one.name).upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in its usage."""
        names = [(f"{one.metavar}..." if one.nargs != 1 else f"{one.metavar}", one.required) for one in self._arguments]
        return ["[OPTIONS]", *(name if is_required else f"[{name}]" for name, is_required in names)]


def make_app(commands: Iterable[Command] = COMMANDS) -> typer.Typer:
    """Return an application of these commands; their modules are imported."""
    made = typer.Typer(
        name="sfumato",
        help="Private visual features: still matched, mapped and recognised, no longer turned back into the picture.",
        epilog="Start with: sfumato audit. Then: sfumato conceal photos/ -o private.sfm.h5; sfumato match "
        "private.sfm.h5 --exhaustive -o matches.h5",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_options)
    order = {name: (place, title) for place, (title, name) in enumerate(
        (title, name) for title, names in PANELS.items() for name in names
    )}  # fmt: skip
    groups: dict[str, typer.Typer] = {}
    for command in sorted(commands, key=lambda one: order.get(one.words, (len(order), ""))[0]):
        panel = order.get(command.group or command.words, (0, "Others"))[1]
        if command.group and command.group not in groups:
            groups[command.group] = make_group(*GROUPS[command.group])
            made.add_typer(groups[command.group], name=command.group, rich_help_panel=panel)
        if command.group:
            add = groups[command.group].command(command.name, cls=PlainCommand, help=command.help)
        else:
            add = made.command(command.name, cls=PlainCommand, help=command.help, rich_help_panel=panel)
        add(explained(expand_groups(command.load()), command.interrupted))
    return made


def make_group(summary: str, *examples: str) -> typer.Typer:
    """Return a group of commands; without a command it shows its help, which ends with examples."""
    lines = "\n".join(f"Example: {example}" for example in examples)
    return typer.Typer(help=f"{summary}\n\n{lines}", no_args_is_help=True)


def __getattr__(name: str) -> Any:
    """Make the application of all commands when it is first asked for."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = make_app()
    return globals()["app"]


def main() -> None:
    """Run the command."""
    completing = any(name.endswith("_COMPLETE") for name in os.environ)
    make_app(COMMANDS if completing else asked_for(sys.argv[1:]))()
