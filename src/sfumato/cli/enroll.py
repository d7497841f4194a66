# SPDX-License-Identifier: Apache-2.0
"""sfumato enroll, renew and revoke: who is in a gallery, as concealed templates only."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.complete import complete_lifting
from sfumato.cli.faceoptions import (
    DecoysPath,
    FaceExtractor,
    GalleryPath,
    Largest,
    Network,
    Row,
    labels_of,
    read,
    read_decoys,
)
from sfumato.cli.options import AsJson, Labels
from sfumato.cli.output import printable, tell
from sfumato.errors import InputError
from sfumato.faces import enroll
from sfumato.faces.gallery import Gallery
from sfumato.faces.read import one_face
from sfumato.types.embeddings import Embeddings

Picture = Annotated[Path, typer.Argument(help="A picture, a folder of pictures, or embeddings (.npz, .csv).")]
AllowSimilar = Annotated[
    bool, typer.Option("--allow-similar", help="Also who looks like somebody enrolled: for different people.")
]
Id = Annotated[str | None, typer.Option("--id", help="Whom the one face belongs to. Default: the names in the file.")]


UNCOMPARED = "this gallery has no threshold for p-to-s, so that nobody checked"
CALIBRATE = "choose one with 'sfumato calibrate' before you go on"


def run(
    faces: Picture,
    gallery: GalleryPath,
    one: Id = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="For a new gallery: how to conceal. Default: hybrid-2 with decoys, random-2 without.",
            autocompletion=complete_lifting,
        ),
    ] = None,
    decoys: DecoysPath = None,
    row: Row = None,
    labels: Labels = None,
    allow_similar: AllowSimilar = False,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
) -> None:
    """Enroll people: a concealed template of each goes into the gallery, which is made if it is missing.

    An id that is enrolled is refused: two independent templates of one face reveal it to whoever holds both. Use
    'sfumato renew' for a newer photo, 'sfumato revoke' to remove somebody. All are enrolled or none. The same photo
    under another id is always refused, another photo of the same face once 'sfumato calibrate' gave a threshold.

    Example: sfumato enroll alice.jpg --gallery gallery.h5 --id alice
    """
    found = named(faces, one, row, network, largest, extractor)
    params = enroll.EnrollParams(
        recipe=recipe,
        decoys=read_decoys(decoys),
        labels=labels_of(labels, found.names),
        allow_similar=allow_similar,
    )
    done = enroll.enroll(gallery, found, params)
    for name in done.released_before:
        _say(f"warning: {name} was enrolled before: who kept that template and has this one knows the face")
    if not done.compared:
        _say(f"warning: {UNCOMPARED} whether two of these faces are one person's, but for the same photo; {CALIBRATE}")
    if done.gallery.recipe.decoys is None and recipe is None and len(done.gallery) == len(done.ids):
        _say("note: without decoys a template hides gender and race badly; see 'sfumato decoys build --faces'")
    _tell("enrolled", done.ids, done.gallery, gallery, as_json=as_json)


def renew(
    faces: Picture,
    gallery: GalleryPath,
    one: Id = None,
    decoys: DecoysPath = None,
    row: Row = None,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Also a photo that the old template rejects: for one person.")
    ] = False,
    allow_similar: AllowSimilar = False,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
) -> None:
    """Replace templates by those of newer photos, along the same directions: old and new never meet in the face.

    With a threshold ('sfumato calibrate') a photo that the old template would reject is refused, and one that looks
    like somebody else; the same photo as somebody else's always. With --decoys also a face that is among them.

    Example: sfumato renew alice-2026.jpg --gallery gallery.h5 --id alice
    """
    params = enroll.RenewParams(
        decoys=read_decoys(decoys), allow_different=allow_different, allow_similar=allow_similar
    )
    done = enroll.renew(gallery, named(faces, one, row, network, largest, extractor), params)
    if not done.compared:
        _say(f"warning: {UNCOMPARED} whether the new photo is of the same person; {CALIBRATE}")
    _tell("renewed", done.ids, done.gallery, gallery, as_json=as_json)


def revoke(
    ids: Annotated[list[str], typer.Argument(help="Whom to remove.")],
    gallery: GalleryPath,
    as_json: AsJson = False,
) -> None:
    """Remove people from a gallery. That they were in it is remembered: a new template of them would be the second.

    Example: sfumato revoke alice --gallery gallery.h5
    """
    gone = tuple(dict.fromkeys(ids))
    _tell("revoked", gone, enroll.revoke(gallery, gone), gallery, as_json=as_json)


def named(
    path: Path, one: str | None, row: str | None, network: Path | None, largest: bool, extractor: str | None
) -> Embeddings:
    """Read faces and give them the ids they are to have."""
    faces = read(path, network, largest, extractor)
    if one is None:
        found = faces.embeddings if row is None else one_face(faces, row, path)
        if len(set(found.names)) < len(found):
            raise InputError(f"{path}: some faces have the same name; names become ids and must differ")
        return found
    return Embeddings(one_face(faces, row, path).values, (one,), faces.embeddings.extractor)


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _tell(verb: str, ids: tuple[str, ...], now: Gallery, path: Path, *, as_json: bool) -> None:
    who = printable(ids[0]) if len(ids) == 1 else f"{len(ids)} people"
    facts = {verb: list(ids), "people": len(now), "recipe": str(now.recipe), "gallery": str(path)}
    tell(f"{who} {verb} with {now.recipe}: {path} holds {len(now)} concealed templates", facts, as_json=as_json)
