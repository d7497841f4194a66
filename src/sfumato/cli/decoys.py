# SPDX-License-Identifier: Apache-2.0
"""sfumato decoys: build a decoy database from photos or from features somebody already has."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.cli.options import (
    AsJson,
    ContrastThreshold,
    Descriptor,
    Detector,
    ExtractorName,
    Labels,
    MaxFeatures,
    Quiet,
    Weights,
    Workers,
    read_labels,
)
from sfumato.cli.output import human_size, outcome_facts, progress_bar, tell, warn_about
from sfumato.concealment.cluster import DEFAULT_SIZE, build_decoys, draw_descriptors
from sfumato.concealment.decoyfile import save_decoys
from sfumato.concealment.decoys import DEFAULT_PARTS
from sfumato.device import Outcome, open_source, read_features
from sfumato.errors import FileError
from sfumato.features.local import LocalParams
from sfumato.types.clear import Features

LOCAL = LocalParams()


def build(
    sources: Annotated[
        list[Path], typer.Argument(help="Folders of photos, photos, hloc features.h5 files, COLMAP databases.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. decoys.npz.")],
    size: Annotated[int, typer.Option(help="How many decoys; the paper uses 256000.")] = DEFAULT_SIZE,
    parts: Annotated[int, typer.Option(help="Disjoint parts, one of them for each image.")] = DEFAULT_PARTS,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    labels: Labels = None,
    drawn: Annotated[
        bool,
        typer.Option("--drawn", help="Draw real descriptors at random, do not cluster: a public set for attacks."),
    ] = False,
    iterations: Annotated[int, typer.Option(help="Rounds of k-means.")] = 10,
    seed: Annotated[int, typer.Option(help="Makes the build repeatable; decoys are public.")] = 0,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build a decoy database by spherical k-means of the descriptors of other people's photos.

    Never use the photos you want to protect, nor those you measure with.

    Example: sfumato decoys build photos/ -o decoys.npz --size 65536
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    hidden = quiet or as_json
    local = LocalParams(
        detector=detector,
        descriptor=descriptor,
        weights=weights,
        max_features=max_features,
        contrast_threshold=contrast_threshold,
    )
    opened = [open_source(path, params=local, extractor=extractor, workers=workers) for path in sources]
    if drawn and labels is not None:
        raise FileError("--labels belong to decoys that are clustered: leave out --drawn")
    named = None if labels is None else read_labels(labels)
    outcome = Outcome()
    bar = progress_bar("reading", sum(len(source.names) for source in opened), quiet=hidden)
    found = list(read_features(opened, outcome, bar))
    warn_about(outcome)
    usable = [features for _, features in found if len(features)]
    if drawn:
        decoys = draw_descriptors(usable, size, parts=parts, seed=seed)
    else:
        decoys = build_decoys(
            usable,
            size,
            parts=parts,
            labels=None if named is None else _label_rows(found, named, labels),
            iterations=iterations,
            seed=seed,
            progress=progress_bar("clustering", None, quiet=hidden),
        )
    save_decoys(output, decoys)
    bytes_written = output.stat().st_size
    facts = {**outcome_facts(outcome), "decoys": len(decoys), "checksum": decoys.checksum, "output": str(output)}
    tell(
        f"{len(decoys)} decoys in {decoys.parts} parts from {outcome.features} {decoys.extractor.name} descriptors of "
        f"{outcome.images} images: {output} ({human_size(bytes_written)})",
        facts,
        as_json=as_json,
    )


def _label_rows(found: list[tuple[str, Features]], named: dict[str, str], path: Path | None) -> list[str]:
    missing = [name for name, _ in found if name not in named]
    if missing:
        raise FileError(f"{path}: no label for {len(missing)} images, the first is {missing[0]}")
    counts = [len(features) for _, features in found]
    return [str(label) for label in np.repeat([named[name] for name, _ in found], counts)]
