# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, how errors become one clear line, and where logging goes."""

import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sfumato import __version__
from sfumato.cli.commands import COMMANDS, GROUPS, PANELS, Command, asked_for
from sfumato.cli.output import printable
from sfumato.errors import SfumatoError


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
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
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
        add(explained(command.load(), command.interrupted))
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
