# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, how errors become one clear line, and where logging goes."""

import logging
import sys
from typing import Annotated

import typer

from sfumato import __version__
from sfumato.cli import conceal, decoys, inspect
from sfumato.errors import SfumatoError

app = typer.Typer(
    name="sfumato",
    help="Private visual features: still matched, mapped and recognised, no longer turned back into the picture.",
    epilog="Start with: sfumato conceal photos/ -o private.sfm.h5, then sfumato inspect private.sfm.h5",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sfumato {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, never a value.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


app.command("conceal")(conceal.run)
app.command("inspect")(inspect.run)
app.add_typer(decoys.app, name="decoys")


def main() -> None:
    """Run the command; errors made on purpose end with one line and exit code 1, Ctrl-C with 130."""
    try:
        app()
    except SfumatoError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept; run the same command again to go on", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
