# SPDX-License-Identifier: Apache-2.0
"""``sfumato audit``: from photos to one page that shows what a server could see of them."""

import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.leakage import LeakageProtocol, Order
from sfumato.auditing.reference import DESCRIPTOR, references_for
from sfumato.auditing.run import SAMPLES, AuditProtocol, run_audit, with_public
from sfumato.auditing.runner import load_records
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.evaluate import words
from sfumato.cli.options import AsJson, Quiet, complete_recipes, human_size, printable, progress_bar, tell
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_text
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths
from sfumato.report.page import make_page, not_run
from sfumato.report.verdict import Standing, standings_of
from sfumato.types.record import Record

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
            help="What to compare, with commas. 'default' is the recipe used where nobody chooses.",
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
    max_features: Annotated[int, typer.Option(help="Keep the strongest of each photo.")] = PROTOCOL.local.max_features,
    side: Annotated[int, typer.Option(min=64, help="Reduce larger photos to so many pixels.")] = PROTOCOL.side,
    seed: Annotated[
        int, typer.Option(min=0, help="Of liftings and generated views, so that figures can be made again.")
    ] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one a core, as far as memory goes.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show what a server could see of your photos: conceal, match, attack, and write one page.

    Each photo is concealed under each recipe, matched with a second view of itself, and attacked in every way at hand.
    The page has a verdict, the pictures a server could paint beside the originals, matches, a plot and every figure. It
    needs nothing else to be read, and contains your photos: treat it as you treat them. Nothing is sent anywhere.

    Example: sfumato audit my_photos/ --recipes default,sub-hybrid-2,raw -o report.html
    """
    protocol = AuditProtocol(recipes=words(recipes), seed=seed, side=side, local=LocalParams(max_features=max_features))
    page = page_at(output)
    data = page.with_name(f"{page.stem}-data")
    samples = sample_paths()
    given = (
        {name: samples[name] for name in SAMPLES if name in samples} if photos is None else dict(list_images(photos))
    )
    toolbox = Toolbox(models=models, public=public)
    check_ahead(given, protocol, toolbox)
    audit = run_audit(
        given,
        data,
        protocol,
        toolbox,
        workers=workers,
        stages=lambda title: progress_bar(title, None, quiet=quiet or as_json),
    )
    text = make_page(audit.records, audit.pictures, date.today().isoformat())
    write_text(page, text, with_folder=True)
    left_out, missed = list(audit.records[0].dropped), not_run(audit.records)
    for line in (*(f"left out: {one}" for one in left_out), *(f"could not be run: {one}" for one in missed)):
        print(printable(line), file=sys.stderr)
    standings = standings_of(audit.records)
    verdicts = ", ".join(f"{one.name} {one.level.word}" for one in standings)
    tell(
        f"{page} ({human_size(len(text))}): {verdicts}. Open it in a browser. It contains your photos; so does {data}",
        {
            "page": str(page),
            "recipes": {one.name: facts_of(one) for one in standings},
            "left_out": left_out,
            "not_run": missed,
        },
        as_json=as_json,
    )


def check_ahead(photos: Mapping[str, Path], protocol: AuditProtocol, toolbox: Toolbox) -> None:
    """Open what the attacker is given and try each recipe on a row, before a photo is read or a folder made.

    Raises InputError, RecipeError or FileError for what would fail later.
    """
    attacks = LeakageProtocol(recipes=protocol.settled(), seeds=(protocol.seed,), local=protocol.local)
    Order(photos=tuple(photos.items())[:1], protocol=attacks, toolbox=with_public(toolbox)).plan()


def page_at(output: Path) -> Path:
    """Return where the page goes: the name that was given, or report.html in a folder of that name.

    Raises InputError for a name that is neither.
    """
    is_page = output.suffix.lower() in (".html", ".htm")
    page = output if is_page and not output.is_dir() else output / "report.html"
    if output.suffix and not is_page and not output.is_dir():
        raise InputError(
            f"--output {output}: the page is HTML: give a name that ends in .html, or a folder, which must be there if "
            f"its name has an ending"
        )
    return page


def facts_of(one: Standing) -> dict[str, str | float | None]:
    """Return where a recipe stands as plain values; ``leakage`` decided, ``leakage_here`` was measured now."""
    found: dict[str, str | float | None] = {
        "verdict": one.level.word,
        "leakage": one.leakage,
        "recovered": one.recovered(),
    }
    return found if one.reference is None else {**found, "leakage_here": one.leakage_here, "rests_on": one.rests_on}


# ----------------------------------------------------------------
# ``sfumato report``: records of evaluations as one page, without measuring anything


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
    found = [record for place in records for record in read_records(place)]
    text = make_page(with_references(found), when=date.today().isoformat())
    write_text(output, text, with_folder=True)
    recipes = [one.name for one in standings_of(found)]
    tell(
        f"{output} ({human_size(len(text))}): {len(found)} records of {', '.join(recipes)}",
        {"page": str(output), "records": len(found), "recipes": recipes},
        as_json=as_json,
    )


def with_references(records: list[Record]) -> list[Record]:
    """Return records with what the package knows of their sealed recipes, unless an audit has brought that along."""
    told = {str(one.params.get("recipe")) for one in records if one.task == "reference"}
    recipes = [
        str(one.params.get("recipe"))
        for one in records
        if one.task in ("leakage", "homography") and one.params.get("descriptor") == DESCRIPTOR
    ]
    return [*records, *references_for(one for one in recipes if one not in told)]


def read_records(place: Path) -> list[Record]:
    """Read all records below a folder, or a single one; FileError names what is none."""
    if place.is_dir():
        return load_records(place)
    try:
        return [Record.from_json(place.read_text(encoding="utf-8"))]
    except OSError as cause:
        raise FileError(f"{place}: cannot be read: {cause.strerror or cause}") from cause
    except (InputError, UnicodeDecodeError) as cause:
        raise FileError(f"{place}: not a record of sfumato evaluate: {cause}") from cause
