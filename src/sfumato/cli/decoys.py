# SPDX-License-Identifier: Apache-2.0
"""Command decoys build: a decoy database from photos, features or faces."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import (
    AsJson,
    ExtractorName,
    Labels,
    LocalOptions,
    Network,
    Quiet,
    Workers,
    progress_bar,
    quantity,
    read_labels,
    stage_bars,
    tell,
    warn_about,
)
from sfumato.concealment.decoy_clusters import DEFAULT_SIZE
from sfumato.concealment.decoy_photos import build_photo_decoys
from sfumato.concealment.decoys import DEFAULT_PARTS, Decoys, save_decoys
from sfumato.concealment.faces import FaceDecoysParams, build_face_decoys
from sfumato.errors import FileError
from sfumato.faces.probe import read_faces, values_by_name
from sfumato.features.embeddings import read_column
from sfumato.features.faces import FaceParams
from sfumato.files.atomic import check_output


def build(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. decoys.safetensors.")],
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
        typer.Option(
            help=f"Number of decoys; 256000, as in the paper, match better. Default: {DEFAULT_SIZE}; for faces, all."
        ),
    ] = None,
    parts: Annotated[int, typer.Option(help="Disjoint parts; each image uses one of them.")] = DEFAULT_PARTS,
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    labels: Labels = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="With --faces FILE.npz: the array of the file that holds the labels, e.g. gender."),
    ] = None,
    network: Network = None,
    drawn: Annotated[
        bool,
        typer.Option(
            "--drawn", help="Draw real descriptors at random instead of clustering: a public set for attacks."
        ),
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
    are the faces themselves, fewer are means of several. Photos are read one after the other into a file beside the
    output; an interrupted run goes on where it stopped.

    Example: sfumato decoys build photos/ -o decoys.safetensors --size 256000
    Example: sfumato decoys build --faces strangers.npz -o face-decoys.safetensors
    Example: sfumato decoys build --faces strangers.npz --size 2000 --spread -o face-decoys.safetensors
    """
    check_output(output, overwrite=overwrite)
    if (faces is None) == (not sources):
        raise FileError("give either photos or features, or faces with --faces")
    if drawn and (labels is not None or label_column is not None):
        raise FileError("--labels are for decoys that are clustered: leave out --drawn")
    if label_column is not None and (faces is None or labels is not None):
        raise FileError("--label-column goes with --faces, in the place of --labels")
    if spread and (faces is None or size is None):
        raise FileError("--spread goes with --faces and --size: it takes the faces that are least alike")
    hidden = quiet or as_json
    table = None if labels is None else read_labels(labels)
    if faces is not None:
        reading = progress_bar("faces", None, quiet=hidden)
        embeddings = read_faces(faces, FaceParams(network=network), extractor=extractor, progress=reading)
        tags = _labels_in(faces, label_column) if label_column else values_by_name(table, embeddings.names, "label")
        params = FaceDecoysParams(size=size, parts=parts, iterations=iterations, seed=seed, drawn=drawn, spread=spread)
        decoys = build_face_decoys(
            embeddings, params, labels=tags, progress=progress_bar("clustering", None, quiet=hidden)
        )
        origin = f"{len(embeddings)} faces ({decoys.extractor.name})"
        save_decoys(output, decoys)
        _tell(decoys, output, origin, {"faces": len(embeddings)}, as_json=as_json)
        return
    outcome = build_photo_decoys(
        sources or (),
        output,
        size=DEFAULT_SIZE if size is None else size,
        parts=parts,
        labels=table,
        drawn=drawn,
        iterations=iterations,
        seed=seed,
        local=local.params,
        extractor=extractor,
        workers=workers,
        overwrite=overwrite,
        progress=stage_bars(quiet=hidden),
    )
    warn_about(outcome)
    assert outcome.decoys is not None
    before = f" ({outcome.resumed} read before)" if outcome.resumed else ""
    images = f"{quantity(outcome.images, 'image')}{before}"
    origin = f"{outcome.features} {outcome.decoys.extractor.name} descriptors of {images}"
    facts = {key: value for key, value in asdict(replace(outcome, decoys=None)).items() if key != "decoys"}
    _tell(outcome.decoys, output, origin, facts, as_json=as_json)


def _tell(decoys: Decoys, output: Path, origin: str, facts: dict[str, Any], *, as_json: bool) -> None:
    """Say what was written."""
    tell(
        f"{len(decoys)} decoys in {decoys.parts} parts from {origin}: {output} ({decimal(output.stat().st_size)})",
        {**facts, "decoys": len(decoys), "checksum": decoys.checksum, "output": str(output)},
        as_json=as_json,
    )


def _labels_in(path: Path, column: str) -> list[str]:
    """Return an array of a file of embeddings as labels; raise FileError if it has none of that name."""
    try:
        return [str(label) for label in read_column(path, column)]
    except FileError as cause:
        raise FileError(
            f"{cause}; name a list of an npz file, one label for each face, or give a table with --labels"
        ) from cause
