# SPDX-License-Identifier: Apache-2.0
"""sfumato verify: is this face the one that was enrolled?"""

from pathlib import Path
from typing import Annotated

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
from sfumato.faces.galleryfile import load_gallery
from sfumato.faces.verify import verify

REJECTED = 3


def run(
    probe: Annotated[Path, typer.Argument(help="A picture, or embeddings (.npz, .csv).")],
    gallery: GalleryPath,
    one: Annotated[str, typer.Option("--id", help="Who it should be.")],
    comparison: Comparison = POINT,
    decoys: DecoysPath = None,
    row: Row = None,
    labels: Labels = None,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
) -> None:
    """Accept or reject a face as somebody enrolled: distance, threshold, and the false-accept rate it stands for.

    Exit code 0 if accepted, 3 if rejected. The threshold is the gallery's ('sfumato calibrate').

    Example: sfumato verify probe.jpg --gallery gallery.h5 --id alice
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
    found = verify(asked, people, one)
    limit = found.threshold
    facts = {
        "id": one,
        "accepted": found.accepted,
        "distance": found.distance,
        "threshold": limit.distance,
        "false accept rate": limit.measured_rate,
        "comparison": limit.comparison,
    }
    tell(
        f"{'accepted' if found.accepted else 'rejected'} as {printable(one)}: distance {found.distance:.4f}, threshold "
        f"{limit.distance:.4f} ({limit.comparison}), which accepts {limit.measured_rate:.2g} of strangers",
        facts,
        as_json=as_json,
    )
    if not found.accepted:
        raise typer.Exit(REJECTED)
