# SPDX-License-Identifier: Apache-2.0
"""The application: its commands, how errors become one clear line, and where logging goes."""

import logging
import os
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from sfumato import __version__
from sfumato.cli import (
    attack,
    audit,
    calibrate,
    conceal,
    decoys,
    enroll,
    evaluate,
    evaluatefaces,
    evaluatepatches,
    evaluatesearch,
    export,
    extract,
    frontier,
    identify,
    index,
    inspect,
    invert,
    leakage,
    localize,
    match,
    report,
    tradeoff,
    train,
    traincompress,
    traindecoder,
    trainninja,
    trainpairs,
    verify,
)
from sfumato.cli import map as mapping
from sfumato.cli.output import printable
from sfumato.errors import SfumatoError

app = typer.Typer(
    name="sfumato",
    help="Private visual features: still matched, mapped and recognised, no longer turned back into the picture.",
    epilog="Start with: sfumato audit. Then: sfumato conceal photos/ -o private.sfm.h5; sfumato match private.sfm.h5 "
    "--exhaustive -o matches.h5",
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
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def command_group(summary: str, *examples: str) -> typer.Typer:
    """Return a group of commands; without a command it shows its help, which ends with examples."""
    lines = "\n".join(f"Example: {example}" for example in examples)
    return typer.Typer(help=f"{summary}\n\n{lines}", no_args_is_help=True)


decoy_commands = command_group(
    "Decoy databases: real-looking descriptors that hide the clear ones.",
    "sfumato decoys build photos/ -o decoys.npz --size 65536",
    "sfumato conceal mine/ -o private.sfm.h5 --recipe sub-hybrid-2 --decoys decoys.npz",
)
evaluate_commands = command_group(
    "Measure what concealing keeps, costs and hides: records, a table and a figure.",
    "sfumato evaluate homography --recipes raw,sub-hybrid-2 -o results/",
    "sfumato evaluate leakage photos/ --recipes raw,sub-hybrid-2 -o leakage/",
)
export_commands = command_group(
    "Files for other programs, and what an owner chooses to publish.",
    "sfumato export hloc private.sfm.h5 matches.h5 -o hloc/",
)
index_commands = command_group(
    "Indexes of concealed features, asked for the nearest entries of others.",
    "sfumato index build private.sfm.h5 -o x.index",
    "sfumato index search x.index query.sfm.h5 -k 5 -o nearest.csv",
)
train_commands = command_group(
    "Networks that attack and encoders, learned from other people's photos.",
    "sfumato train inverter photos/ -o inverter.safetensors --minutes 15",
    "sfumato train ninja --patches photos/ --lambda 1.0 -o ninja-sift-1.0.safetensors",
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


KEPT = "what was finished is kept beside the archive; run the same command again, without --overwrite, to go on"
app.command("audit")(explained(audit.run, audit.KEPT))
app.command("extract")(explained(extract.run, "nothing was written"))
app.command("conceal")(explained(conceal.run, KEPT))
KEPT_PAIRS = (
    "the pairs matched so far are kept beside the output; run the same command again, without --overwrite, to go on"
)
app.command("match")(explained(match.run, KEPT_PAIRS))
app.command("map")(explained(mapping.run, "nothing was written; a map that was there is as it was"))
UNCHANGED = "the gallery is as it was"
app.command("enroll")(explained(enroll.run, UNCHANGED))
app.command("renew")(explained(enroll.renew, UNCHANGED))
app.command("revoke")(explained(enroll.revoke, UNCHANGED))
app.command("calibrate")(explained(calibrate.run, UNCHANGED))
app.command("verify")(explained(verify.run, "nothing was changed"))
app.command("identify")(explained(identify.run, "nothing was changed"))
app.command("inspect")(explained(inspect.run, "nothing was changed"))
decoy_commands.command("build")(explained(decoys.build, "nothing was written"))
app.add_typer(decoy_commands, name="decoys")
evaluate_commands.command("homography")(explained(evaluate.homography, evaluate.KEPT))
evaluate_commands.command("map")(explained(evaluate.map_, evaluate.KEPT))
evaluate_commands.command("localize")(explained(evaluate.localize, evaluate.KEPT))
evaluate_commands.command("leakage")(explained(leakage.leakage, evaluate.KEPT))
evaluate_commands.command("patches")(explained(evaluatepatches.patches, evaluate.KEPT))
evaluate_commands.command("search")(explained(evaluatesearch.search, evaluate.KEPT))
evaluate_commands.command("faces")(explained(evaluatefaces.faces, evaluate.KEPT))
evaluate_commands.command("attributes")(explained(evaluatefaces.attributes, evaluate.KEPT))
evaluate_commands.command("releases")(explained(evaluatefaces.releases, evaluate.KEPT))
evaluate_commands.command("protection")(explained(evaluatefaces.protection, evaluate.KEPT))
evaluate_commands.command("tradeoff")(explained(tradeoff.tradeoff, evaluate.KEPT))
evaluate_commands.command("frontier")(explained(frontier.frontier, evaluate.KEPT))
app.add_typer(evaluate_commands, name="evaluate")
app.command("report")(explained(report.run, "nothing was written"))
app.command("attack")(explained(attack.run, "the pictures painted so far are kept, the results are not"))
app.command("localize")(explained(localize.run, "nothing was written"))
export_commands.command("hloc")(explained(export.hloc, "nothing was written"))
export_commands.command("public")(explained(export.public, "nothing was published"))
app.add_typer(export_commands, name="export")
index_commands.command("build")(explained(index.build, "nothing was written"))
index_commands.command("search")(explained(index.search, "nothing was written"))
index_commands.command("add")(explained(index.add, "the index is as it was"))
index_commands.command("remove")(explained(index.remove, "the index is as it was"))
app.add_typer(index_commands, name="index")
app.command("invert")(explained(invert.run, "nothing was written"))
train_commands.command("inverter")(explained(train.inverter, train.KEPT))
train_commands.command("decoder")(explained(traindecoder.run, traindecoder.KEPT))
train_commands.command("compress")(explained(traincompress.run, "nothing was written"))
train_commands.command("pairs")(explained(trainpairs.run, "nothing was written"))
train_commands.command("ninja")(explained(trainninja.run, trainninja.KEPT))
app.add_typer(train_commands, name="train")

PANELS = {
    "Start here": ("audit", "conceal", "inspect"),
    "On the device that owns the photos": ("extract", "decoys", "invert"),
    "On a server, with concealed features": ("match", "map", "localize", "index", "export"),
    "Faces": ("enroll", "verify", "identify", "calibrate", "renew", "revoke"),
    "Attacking and measuring": ("attack", "evaluate", "report", "train"),
}
"""How --help groups the commands; one that is new stands by itself until it is named here."""
ORDER = {
    name: (place, title) for place, (title, name) in enumerate((t, n) for t, names in PANELS.items() for n in names)
}
for command in app.registered_commands:
    command.rich_help_panel = ORDER.get(command.name or "", (0, "Others"))[1]
for group in app.registered_groups:
    group.rich_help_panel = ORDER.get(group.name or "", (0, "Others"))[1]
app.registered_commands.sort(key=lambda one: ORDER.get(one.name or "", (len(ORDER), ""))[0])


def main() -> None:
    """Run the command."""
    app()
