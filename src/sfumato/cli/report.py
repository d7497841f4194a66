# SPDX-License-Identifier: Apache-2.0
"""``sfumato report``: records of evaluations as one page, without measuring anything."""

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.options import AsJson
from sfumato.cli.output import human_size, tell
from sfumato.errors import FileError, InputError
from sfumato.evaluate.auditreference import DESCRIPTOR, references_for
from sfumato.evaluate.results import load_records
from sfumato.report.page import make_page
from sfumato.report.standings import standings_of
from sfumato.types.record import Record
from sfumato.whole import write_text


def run(
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
        raise FileError(f"{place}: can not be read: {cause.strerror or cause}") from cause
    except (InputError, UnicodeDecodeError) as cause:
        raise FileError(f"{place}: not a record of sfumato evaluate: {cause}") from cause
