# SPDX-License-Identifier: Apache-2.0
"""Options that the commands for faces share, and how they become settings."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from sfumato.cli.options import read_labels
from sfumato.cli.output import printable, progress_bar
from sfumato.concealment.decoyfile import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.errors import FileError
from sfumato.faces.gallery import Gallery
from sfumato.faces.probe import make_probe
from sfumato.faces.read import Faces, one_face, read_faces
from sfumato.features.embeddingfile import read_column
from sfumato.features.face import FaceParams
from sfumato.types.templates import ConcealedTemplates

GalleryPath = Annotated[Path, typer.Option("--gallery", "-g", help="The gallery's file, e.g. gallery.h5.")]
Network = Annotated[
    Path | None, typer.Option(help="For pictures: an ArcFace-style ONNX file. Default: dlib's network. Extra 'face'.")
]
Largest = Annotated[bool, typer.Option("--largest", help="For pictures: of several faces take the largest.")]
FaceExtractor = Annotated[
    str | None, typer.Option("--extractor", help="For files of embeddings: which network made them, e.g. arcface.")
]
Row = Annotated[str | None, typer.Option(help="For files of embeddings: the name of the row to use.")]
DecoysPath = Annotated[
    Path | None, typer.Option("--decoys", help="Decoys made by 'sfumato decoys build --faces'; all kinds but random.")
]
Comparison = Annotated[
    str,
    typer.Option("--distance", help="p-to-s: the probe is compared clear. s-to-s: it is concealed first."),
]


def read(path: Path, network: Path | None, largest: bool, extractor: str | None, *, quiet: bool = True) -> Faces:
    """Read pictures or embeddings; what can not be used is named on standard error."""
    params = FaceParams(network=network, largest=largest)
    faces = read_faces(path, params, extractor=extractor, progress=progress_bar("faces", None, quiet=quiet))
    for reason in faces.unusable.values():
        print(printable(f"skipped {reason}"), file=sys.stderr)
    return faces


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of a command that holds one face against a gallery."""

    comparison: str
    decoys: Path | None
    row: str | None
    labels: Path | None
    network: Path | None
    largest: bool
    extractor: str | None


def ask(path: Path, people: Gallery, asked: Asked) -> NDArray[np.float32] | ConcealedTemplates:
    """Read the one face of a file and bring it to the form that a comparison with a gallery wants."""
    face = one_face(read(path, asked.network, asked.largest, asked.extractor), asked.row, path)
    return make_probe(face, people, asked.comparison, read_decoys(asked.decoys), labels_of(asked.labels, face.names))


def read_decoys(path: Path | None) -> Decoys | None:
    """Read a decoys file, if one is named; the bundled one is for SIFT and never meant."""
    return None if path is None else load_decoys(path)


def labels_of(table: Path | None, names: tuple[str, ...]) -> list[str] | None:
    """Return the label of each name from a table, if one is given."""
    if table is None:
        return None
    known = read_labels(table)
    missing = [name for name in names if name not in known]
    if missing:
        raise FileError(f"{table}: no label for {len(missing)} faces, the first is {printable(missing[0])}")
    return [known[name] for name in names]


def labels_in(path: Path, column: str) -> list[str]:
    """Return an array of a file of embeddings as labels; raises FileError if it has none of that name."""
    try:
        return [str(label) for label in read_column(path, column)]
    except FileError as cause:
        raise FileError(
            f"{cause}; name a list of an npz file, one label for each face, or give a table with --labels"
        ) from cause
