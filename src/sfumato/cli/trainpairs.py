# SPDX-License-Identifier: Apache-2.0
"""sfumato train pairs: photos in, a file of clear descriptors of the same points out, to train encoders with."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.cli.options import AsJson, ContrastThreshold, Descriptor, Detector, MaxFeatures, Quiet, Weights
from sfumato.cli.output import human_size, progress_bar, tell
from sfumato.errors import FileError
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.learn.pairfile import save_pairs
from sfumato.learn.pairs import PairParams, pairs_from_photos
from sfumato.matching.executors import local_processes

DEFAULTS = PairParams()


def run(
    photos: Annotated[list[Path], typer.Argument(help="Folders of photos, none that you measure with.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. pairs.npz. It is clear.")],
    per_folder: Annotated[
        int | None, typer.Option(min=1, help="So many photos of each folder, evenly chosen. Default: all.")
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="Pairs at most, an equal share of each photo; 0 for all.")] = 0,
    views: Annotated[int, typer.Option(min=1, help="Warped views of each photo.")] = DEFAULTS.views,
    detector: Detector = DEFAULTS.local.detector,
    descriptor: Descriptor = DEFAULTS.local.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = DEFAULTS.local.max_features,
    contrast_threshold: ContrastThreshold = DEFAULTS.local.contrast_threshold,
    seed: Annotated[int, typer.Option(help="Decides the views.")] = DEFAULTS.seed,
    workers: Annotated[int, typer.Option(min=1, help="Photos at once; the result is the same.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make pairs of descriptors of one point from photos and warped views of them: what 'train ninja' learns use from.

    'train ninja --patches FOLDER' does the same each time it is run; a file of pairs serves several lambdas. It holds
    clear descriptors: keep it where the photos are, and never publish it.

    Example: sfumato train pairs photos/ -o pairs.npz && sfumato train ninja --patches pairs.npz -o ninja.safetensors
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    chosen = [path for folder in photos for path in evenly([path for _, path in list_images(folder)], per_folder)]
    local = LocalParams(
        detector=detector, descriptor=descriptor, weights=weights, max_features=max_features,
        contrast_threshold=contrast_threshold,
    )  # fmt: skip
    params = PairParams(views=views, seed=seed, most=most, local=local)
    bar = progress_bar("warping", len(chosen), quiet=quiet or as_json)
    if workers > 1:
        with local_processes(workers) as executor:
            pairs = pairs_from_photos(chosen, params, executor=executor, progress=bar)
    else:
        pairs = pairs_from_photos(chosen, params, progress=bar)
    save_pairs(output, pairs)
    groups, points, size = len(np.unique(pairs.groups)), len(np.unique(pairs.points)), output.stat().st_size
    facts = {"output": str(output), "bytes": size, "pairs": len(pairs), "points": points, "photos": groups}
    line = f"{len(pairs)} pairs of {points} points of {groups} of {len(chosen)} photos"
    tell(f"{line}: {output} ({human_size(size)}; clear, keep it private)", facts, as_json=as_json)


def evenly(paths: list[Path], count: int | None) -> list[Path]:
    """Return ``count`` of the paths, the first and the last among them; all if None or fewer."""
    if count is None or count >= len(paths):
        return paths
    return [paths[place] for place in np.linspace(0, len(paths) - 1, count).astype(int)]
