# SPDX-License-Identifier: Apache-2.0
"""sfumato identify: who of the enrolled comes nearest to a face?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.faceoptions import (
    Asked,
    Comparison,
    DecoysPath,
    FaceExtractor,
    GalleryPath,
    Largest,
    Network,
    Row,
    ask,
)
from sfumato.cli.options import AsJson, Labels
from sfumato.cli.output import printable, tell
from sfumato.faces.compare import POINT
from sfumato.faces.gallery import Gallery
from sfumato.faces.galleryfile import load_gallery
from sfumato.faces.identify import Candidate, Identifier


def run(
    probe: Annotated[Path, typer.Argument(help="A picture, or embeddings (.npz, .csv).")],
    gallery: GalleryPath,
    k: Annotated[int, typer.Option("-k", "--nearest", help="How many candidates.")] = 5,
    comparison: Comparison = POINT,
    decoys: DecoysPath = None,
    row: Row = None,
    labels: Labels = None,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
) -> None:
    """Name the enrolled people nearest to a face, nearest first, exactly.

    With a threshold ('sfumato calibrate') each is marked as accepted or not. Among many people some are accepted by
    chance: their number times the false-accept rate.

    Example: sfumato identify probe.jpg --gallery gallery.h5 -k 5
    """
    people = load_gallery(gallery)
    options = Asked(
        comparison=comparison,
        decoys=decoys,
        row=row,
        labels=labels,
        network=network,
        largest=largest,
        extractor=extractor,
    )
    asked = ask(probe, people, options)
    nearest = Identifier(people.templates).identify(asked, k)[0]
    facts = _facts(nearest, people, comparison)
    lines = [
        f"{place}. {printable(one['id'])}: distance {one['distance']:.4f}{_mark(one['accepted'])}"
        for place, one in enumerate(facts["candidates"], 1)
    ]
    chance = "" if facts["expected by chance"] is None else f", {facts['expected by chance']:.2g} expected by chance"
    tell("\n".join([*lines, f"{len(nearest)} of {len(people)} people ({comparison}){chance}"]), facts, as_json=as_json)


def _facts(nearest: list[Candidate], people: Gallery, comparison: str) -> dict[str, Any]:
    limit = next((one for one in people.thresholds if one.comparison == comparison), None)
    candidates = [
        {"id": one.id, "distance": one.distance, "accepted": None if limit is None else limit.accepts(one.distance)}
        for one in nearest
    ]
    return {
        "candidates": candidates,
        "people": len(people),
        "comparison": comparison,
        "threshold": None if limit is None else limit.distance,
        "expected by chance": None if limit is None else limit.measured_rate * len(people),
    }


def _mark(accepted: bool | None) -> str:
    return "" if accepted is None else ", accepted" if accepted else ", rejected"
