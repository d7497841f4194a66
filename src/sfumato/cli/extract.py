# SPDX-License-Identifier: Apache-2.0
"""sfumato extract: pictures in, clear features in hloc's format out. For the device, to score attacks against."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.options import (
    AsJson,
    ContrastThreshold,
    Descriptor,
    Detector,
    ExtractorName,
    MaxFeatures,
    Quiet,
    Weights,
    Workers,
)
from sfumato.cli.output import human_size, outcome_facts, progress_bar, tell, warn_about
from sfumato.device import Outcome, open_source, read_features
from sfumato.errors import FileError
from sfumato.features.hlocwriter import WARNING, write_hloc
from sfumato.features.local import LocalParams
from sfumato.types.clear import Features

LOCAL = LocalParams()


def run(
    source: Annotated[
        Path, typer.Argument(help="A folder of photos, a photo, an hloc features.h5, or a COLMAP database.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The features file to write, e.g. clear.h5.")],
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Extract clear features, in hloc's format: keep the file on the device that owns the photos.

    It is what 'sfumato attack --clear' scores against; give the same options as to 'sfumato conceal', so that row i of
    one stands for row i of the other. Unreadable images are named and left out.

    Example: sfumato extract photos/ -o clear.h5 --max-features 1000
    """
    local = LocalParams(
        detector=detector,
        descriptor=descriptor,
        weights=weights,
        max_features=max_features,
        contrast_threshold=contrast_threshold,
    )
    if output.name.endswith(".sfm.h5"):
        raise FileError(f"{output}: .sfm.h5 is for archives of concealed features; name clear ones otherwise")
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    outcome = Outcome()
    opened = open_source(source, params=local, extractor=extractor, workers=workers)
    bar = progress_bar("extracting", len(opened.names), quiet=quiet or as_json)
    write_hloc(output, at_least_one(read_features([opened], outcome, bar), outcome))
    warn_about(outcome)
    print(f"warning: {output} holds {WARNING}", file=sys.stderr)
    size = output.stat().st_size
    facts = {**outcome_facts(outcome), "output": str(output), "bytes": size, "clear": True}
    line = f"{outcome.features} clear features of {outcome.images} images: {output} ({human_size(size)})"
    tell(line, facts, as_json=as_json)


def at_least_one(images: Iterable[tuple[str, Features]], outcome: Outcome) -> Iterator[tuple[str, Features]]:
    """Pass images on, and refuse to end without any: a file of nothing looks like success."""
    yield from images
    if not outcome.images:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(outcome.unreadable.items())[:3])
        raise FileError(f"nothing to write: no image could be read. {reasons}")
