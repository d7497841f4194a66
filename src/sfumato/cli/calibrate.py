# SPDX-License-Identifier: Apache-2.0
"""sfumato calibrate: choose a gallery's threshold from faces of other people."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.faceoptions import (
    Comparison,
    DecoysPath,
    FaceExtractor,
    GalleryPath,
    Largest,
    Network,
    labels_of,
    read,
    read_decoys,
)
from sfumato.cli.options import AsJson, Labels, Quiet
from sfumato.cli.output import tell
from sfumato.faces.calibrate import CalibrateParams, calibrate_gallery

DEFAULTS = CalibrateParams()


def run(
    faces: Annotated[
        Path, typer.Argument(help="Faces of many people, none of them enrolled: pictures or embeddings (.npz, .csv).")
    ],
    gallery: GalleryPath,
    rate: Annotated[float, typer.Option(help="The share of strangers that may be accepted.")] = DEFAULTS.rate,
    comparison: Comparison = DEFAULTS.comparison,
    decoys: DecoysPath = None,
    people: Annotated[
        Path | None,
        typer.Option(help="A table 'name,person'. Default: names without a number behind, as LFW has them."),
    ] = None,
    labels: Labels = None,
    pairs: Annotated[int, typer.Option(help="Compare so many pairs of strangers at most.")] = DEFAULTS.pairs,
    seed: Annotated[int, typer.Option(help="Which pairs are compared.")] = DEFAULTS.seed,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose the distance up to which a probe is accepted, and store it with the gallery.

    The faces are concealed as the gallery's are, and different people compared; nothing of them is kept. A rate of
    0.001 needs 10,000 pairs of different people, 0.0001 ten times as many.

    Example: sfumato calibrate strangers.npz --gallery gallery.h5 --rate 0.001
    """
    found = read(faces, network, largest, extractor, quiet=quiet or as_json).embeddings
    chosen = calibrate_gallery(
        gallery,
        found,
        read_decoys(decoys),
        CalibrateParams(rate=rate, comparison=comparison, pairs=pairs, seed=seed),
        people=labels_of(people, found.names),
        labels=labels_of(labels, found.names),
    )
    tell(
        f"threshold for {chosen.comparison}: {chosen.distance:.4f}, at which {chosen.measured_rate:.3g} of "
        f"{chosen.impostor_pairs} pairs of strangers ({chosen.people} people) are accepted; stored in {gallery}",
        {**chosen.to_dict(), "gallery": str(gallery)},
        as_json=as_json,
    )
