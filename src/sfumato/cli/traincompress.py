# SPDX-License-Identifier: Apache-2.0
"""sfumato train compress: other people's photos or features in, the principal components of their descriptors out."""

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
    MaxFeatures,
    Quiet,
    Weights,
    Workers,
)
from sfumato.cli.output import human_size, progress_bar, tell, warn_about
from sfumato.device import Outcome, open_source, read_features
from sfumato.errors import FileError, InputError
from sfumato.features.local import LocalParams
from sfumato.learn.compress import learn_compress
from sfumato.learn.encoder import save_encoder

LOCAL = LocalParams()


def run(
    sources: Annotated[
        list[Path], typer.Argument(help="Folders of photos of other people, photos, features.h5 files, databases.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. mine.safetensors.")],
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Learn the principal components of descriptors, for recipes such as compress-48:FILE+sub-hybrid-2.

    All components are written, the strongest first; the recipe says how many are kept. Fewer match worse, cost less and
    tell less. Before a lifting they take away what the vertex attack rests on. Alone they are a weak concealment: a
    linear map of what is kept undoes them ('sfumato train decoder --recipe compress-48:FILE' measures it). For SIFT
    components come with the package, and compress-48 names them. Never use photos you measure with.

    Example: sfumato train compress photos/ -o mine.safetensors --descriptor rootsift
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    local = LocalParams(
        detector=detector, descriptor=descriptor, weights=weights, max_features=max_features,
        contrast_threshold=contrast_threshold,
    )  # fmt: skip
    opened = [open_source(path, params=local, extractor=extractor, workers=workers) for path in sources]
    outcome = Outcome()
    bar = progress_bar("reading", sum(len(source.names) for source in opened), quiet=quiet or as_json)
    images = [features for _, features in read_features(opened, outcome, bar) if len(features)]
    warn_about(outcome)
    if not images:
        raise InputError("no image of these has a feature: give other photos")
    kind = images[0].extractor
    if not all(features.extractor.matches(kind) for features in images):
        raise InputError("these are descriptors of different kinds: learn from one kind at a time")
    card = {"images": outcome.images, "settings": dict(kind.settings), "data": [path.name for path in sources]}
    learned = learn_compress(np.concatenate([features.descriptors for features in images]), kind.name, card)
    encoder = save_encoder(output, learned)
    size, kept = output.stat().st_size, encoder.card["kept"]
    facts = {"output": str(output), "bytes": size, "checksum": encoder.checksum, **encoder.card}
    shares = ", ".join(f"{dim}: {100 * share:.0f} %" for dim, share in kept.items())
    tell(
        f"{encoder.output_dim} components of {encoder.card['descriptors']} {kind.name} descriptors of {outcome.images} "
        f"images; spread kept by {shares}: {output} ({human_size(size)})",
        facts,
        as_json=as_json,
    )
