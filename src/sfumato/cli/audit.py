# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato audit``, from photos to one page that shows what a server could see of them, and ``report``."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from sfumato.auditing.run import AuditProtocol, data_folder, write_audit, write_report
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.options import (
    AsJson,
    Quiet,
    complete_recipes,
    printable,
    progress_bar,
    split_names,
    tell,
)
from sfumato.features.local import LocalParams
from sfumato.report.page import not_run
from sfumato.report.verdict import RecipeVerdict, verdicts_of

PROTOCOL = AuditProtocol()


def audit(
    photos: Annotated[
        Path | None, typer.Argument(help="A photo or a folder of photos. Default: sample photos.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page, a name that ends in .html; or a folder for report.html.")
    ] = Path("report"),
    recipes: Annotated[
        str,
        typer.Option(
            help="Recipes to compare, with commas. 'default' is the recipe of sfumato conceal.",
            autocompletion=complete_recipes,
        ),
    ] = ",".join(PROTOCOL.recipes),
    models: Annotated[
        Path | None,
        typer.Option(help="A folder of inverters and decoders made by sfumato train, for stronger attackers."),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="Descriptors of other photos for the attacker (sfumato decoys build). Default: bundled."),
    ] = None,
    max_features: Annotated[
        int, typer.Option(help="Keep this many features of each photo.")
    ] = PROTOCOL.local.max_features,
    side: Annotated[
        int, typer.Option(min=64, help="Downscale photos whose longer side exceeds this many pixels.")
    ] = PROTOCOL.side,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of liftings and generated views, so that figures can be repeated.")
    ] = 0,
    positions: Annotated[
        bool,
        typer.Option(
            "--positions",
            help="Audit archives made with 'conceal --positions': all positions of sealed features leave the device. "
            "Default: those of what several of these photos see, as 'sfumato release' lets them go.",
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one per core, as far as memory allows.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what a server could see of your photos: conceal, match, attack, and write one page.

    Each photo is concealed under each recipe, matched with a second view of itself, and attacked in every known way.
    The page has a verdict, the pictures a server could reconstruct beside the originals, matches, a plot and every
    figure. It needs no other file, and contains your photos: handle it as you handle them. Nothing is sent anywhere.

    Example: sfumato audit my_photos/ --recipes default,sub-hybrid-2,raw -o report.html
    """
    protocol = AuditProtocol(
        recipes=split_names(recipes),
        seed=seed,
        side=side,
        local=LocalParams(max_features=max_features),
        positions=positions,
    )
    if photos is None:
        note = "no photos were named: auditing sample photos, which takes minutes; yours: sfumato audit my_photos/"
        print(note, file=sys.stderr)
    page, results = write_audit(
        photos,
        output,
        protocol,
        Toolbox(models=models, public=public),
        workers=workers,
        stages=lambda title: progress_bar(title, None, quiet=quiet or as_json),
    )
    left_out, missed = list(results.records[0].dropped), not_run(results.records)
    for line in (*(f"left out: {one}" for one in left_out), *(f"could not be run: {one}" for one in missed)):
        print(printable(line), file=sys.stderr)
    verdicts = verdicts_of(results.records)
    words = ", ".join(f"{one.name} {one.level.word}" for one in verdicts)
    tell(
        f"{page} ({decimal(page.stat().st_size)}): {words}. Open it in a browser. It contains "
        f"{'the sample' if photos is None else 'your'} photos; so does {data_folder(page)}",
        {
            "page": str(page),
            "recipes": {one.name: verdict_facts(one) for one in verdicts},
            "left_out": left_out,
            "not_run": missed,
        },
        as_json=as_json,
    )


def verdict_facts(one: RecipeVerdict) -> dict[str, str | float | None]:
    """Return a verdict as plain values; ``leakage`` decided, ``leakage_here`` was measured now."""
    facts: dict[str, str | float | None] = {
        "verdict": one.level.word,
        "leakage": one.leakage,
        "recovered": one.recovered(),
    }
    return facts if one.reference is None else {**facts, "leakage_here": one.leakage_here, "rests_on": one.rests_on}


def report(
    records: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDS", help="Folders that evaluations wrote, or single records (.json)."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Make one page of records: verdicts, tables and how they were made, without pictures.

    Takes what sfumato evaluate leakage, homography and tradeoff wrote, so that figures over many photos can be read and
    sent around without the photos. sfumato audit makes the page with pictures.

    Example: sfumato report leakage/ evaluation/ -o report.html
    """
    measured = write_report(records, output)
    recipes = [one.name for one in verdicts_of(measured)]
    tell(
        f"{output} ({decimal(output.stat().st_size)}): {len(measured)} records of {', '.join(recipes)}",
        {"page": str(output), "records": len(measured), "recipes": recipes},
        as_json=as_json,
    )
