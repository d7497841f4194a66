# SPDX-License-Identifier: Apache-2.0
"""sfumato decoys: build a decoy database from photos, faces, or features somebody already has."""

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
    Network,
    Quiet,
    Weights,
    Workers,
    human_size,
    labels_in,
    labels_of,
    outcome_facts,
    progress_bar,
    read_labels,
    tell,
    warn_about,
)
from sfumato.cli.options import read as read_faces_shown
from sfumato.concealment.decoy_clusters import DEFAULT_SIZE, build_decoys, draw_descriptors
from sfumato.concealment.decoy_file import save_decoys
from sfumato.concealment.decoys import DEFAULT_PARTS, Decoys
from sfumato.concealment.faces import FaceDecoysParams, build_face_decoys
from sfumato.device import Outcome, open_source, read_features
from sfumato.errors import FileError
from sfumato.features.local import LocalParams
from sfumato.types.clear import Features

LOCAL = LocalParams()


def build(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. decoys.npz.")],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of photos, photos, hloc features.h5 files, COLMAP databases."),
    ] = None,
    faces: Annotated[
        Path | None,
        typer.Option(help="Instead: decoys for faces, from pictures of faces or embeddings (.npz, .csv), or a folder."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help=f"How many decoys; the paper uses 256000. Default: {DEFAULT_SIZE}; of faces, all of them."),
    ] = None,
    parts: Annotated[int, typer.Option(help="Disjoint parts, one of them for each image.")] = DEFAULT_PARTS,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    contrast_threshold: ContrastThreshold = LOCAL.contrast_threshold,
    extractor: ExtractorName = None,
    labels: Labels = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="With --faces FILE.npz: the array of the file that holds the labels, e.g. gender."),
    ] = None,
    network: Network = None,
    drawn: Annotated[
        bool,
        typer.Option("--drawn", help="Draw real descriptors at random, do not cluster: a public set for attacks."),
    ] = False,
    spread: Annotated[
        bool,
        typer.Option("--spread", help="With --faces and --size: take the faces that are least alike, do not cluster."),
    ] = False,
    iterations: Annotated[int, typer.Option(help="Rounds of k-means.")] = 10,
    seed: Annotated[int, typer.Option(help="Makes the build repeatable; decoys are public.")] = 0,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build a decoy database by spherical k-means of the descriptors of other people's photos, or of their faces.

    Never use the photos you want to protect, nor those you measure with. A database is public: as many decoys as faces
    are the faces themselves, fewer are means of several.

    Example: sfumato decoys build photos/ -o decoys.npz --size 65536
    Example: sfumato decoys build --faces strangers.npz -o face-decoys.npz
    Example: sfumato decoys build --faces strangers.npz --size 2000 --spread -o face-decoys.npz
    """
    if output.exists() and not overwrite:
        raise FileError(f"{output} is already there: choose another file, or --overwrite to replace it")
    if not output.parent.is_dir():
        raise FileError(f"{output.parent} is not a folder: make it first")
    if (faces is None) == (not sources):
        raise FileError("name photos or features to build decoys from, or --faces with faces: one of the two")
    if drawn and (labels is not None or label_column is not None):
        raise FileError("--labels belong to decoys that are clustered: leave out --drawn")
    if label_column is not None and (faces is None or labels is not None):
        raise FileError("--label-column belongs to --faces, in the place of --labels")
    if spread and (faces is None or size is None):
        raise FileError("--spread belongs to --faces and --size: of many faces it takes the least alike")
    hidden = quiet or as_json
    if faces is not None:
        found = read_faces_shown(faces, network, largest=False, extractor=extractor, quiet=hidden).embeddings
        tags = labels_in(faces, label_column) if label_column else labels_of(labels, found.names)
        bar = progress_bar("clustering", None, quiet=hidden)
        params = FaceDecoysParams(size=size, parts=parts, iterations=iterations, seed=seed, drawn=drawn, spread=spread)
        _finish(build_face_decoys(found, params, labels=tags, progress=bar), output, len(found), as_json=as_json)
        return
    size = DEFAULT_SIZE if size is None else size
    local = LocalParams(
        detector=detector,
        descriptor=descriptor,
        weights=weights,
        max_features=max_features,
        contrast_threshold=contrast_threshold,
    )
    opened = [open_source(path, params=local, extractor=extractor, workers=workers) for path in sources or ()]
    named = None if labels is None else read_labels(labels)
    outcome = Outcome()
    bar = progress_bar("reading", sum(len(source.names) for source in opened), quiet=hidden)
    images = list(read_features(opened, outcome, bar))
    warn_about(outcome)
    usable = [features for _, features in images if len(features)]
    if drawn:
        decoys = draw_descriptors(usable, size, parts=parts, seed=seed)
    else:
        decoys = build_decoys(
            usable,
            size,
            parts=parts,
            labels=None if named is None else _label_rows(images, named, labels),
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


def _finish(decoys: Decoys, output: Path, faces: int, *, as_json: bool) -> None:
    """Write decoys made of faces, and say so."""
    save_decoys(output, decoys)
    facts = {"faces": faces, "decoys": len(decoys), "checksum": decoys.checksum, "output": str(output)}
    tell(
        f"{len(decoys)} decoys in {decoys.parts} parts from {faces} faces ({decoys.extractor.name}): {output} "
        f"({human_size(output.stat().st_size)})",
        facts,
        as_json=as_json,
    )


def _label_rows(found: list[tuple[str, Features]], named: dict[str, str], path: Path | None) -> list[str]:
    missing = [name for name, _ in found if name not in named]
    if missing:
        raise FileError(f"{path}: no label for {len(missing)} images, the first is {missing[0]}")
    counts = [len(features) for _, features in found]
    return [str(label) for label in np.repeat([named[name] for name, _ in found], counts)]
