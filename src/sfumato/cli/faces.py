# SPDX-License-Identifier: Apache-2.0
"""sfumato enroll, renew and revoke: who is in a gallery, as concealed templates only."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.options import (
    AsJson,
    Asked,
    Comparison,
    DecoysPath,
    FaceExtractor,
    GalleryPath,
    Labels,
    Largest,
    Network,
    Quiet,
    Row,
    ask,
    complete_lifting,
    labels_of,
    printable,
    read,
    read_decoys,
    tell,
)
from sfumato.errors import InputError
from sfumato.faces import enrollment as enrolling
from sfumato.faces.calibration import CalibrateParams, calibrate_gallery
from sfumato.faces.compare import POINT
from sfumato.faces.decide import Candidate, Identifier
from sfumato.faces.decide import verify as verify_template
from sfumato.faces.gallery import Gallery
from sfumato.faces.gallery_file import load_gallery
from sfumato.faces.probe import one_face
from sfumato.types.clear import Embeddings

Picture = Annotated[Path, typer.Argument(help="A picture, a folder of pictures, or embeddings (.npz, .csv).")]
AllowSimilar = Annotated[
    bool, typer.Option("--allow-similar", help="Also who looks like somebody enrolled: for different people.")
]
Id = Annotated[str | None, typer.Option("--id", help="Whom the one face belongs to. Default: the names in the file.")]


UNCOMPARED = "this gallery has no threshold for p-to-s, so that nobody checked"
CALIBRATE = "choose one with 'sfumato calibrate' before you go on"


def enroll(
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
    params = enrolling.EnrollParams(
        recipe=recipe,
        decoys=read_decoys(decoys),
        labels=labels_of(labels, found.names),
        allow_similar=allow_similar,
    )
    done = enrolling.enroll(gallery, found, params)
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
    params = enrolling.RenewParams(
        decoys=read_decoys(decoys), allow_different=allow_different, allow_similar=allow_similar
    )
    done = enrolling.renew(gallery, named(faces, one, row, network, largest, extractor), params)
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
    _tell("revoked", gone, enrolling.revoke(gallery, gone), gallery, as_json=as_json)


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


# ----------------------------------------------------------------
# sfumato verify: is this face the one that was enrolled?


REJECTED = 3


def verify(
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
    found = verify_template(asked, people, one)
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


# ----------------------------------------------------------------
# sfumato identify: who of the enrolled comes nearest to a face?


def identify(
    probe: Annotated[Path, typer.Argument(help="A picture, or embeddings (.npz, .csv).")],
    gallery: GalleryPath,
    k: Annotated[int, typer.Option("-k", "--nearest", help="How many candidates.")] = 5,
    comparison: Comparison = POINT,
    decoys: DecoysPath = None,
    row: Row = None,
    labels: Labels = None,
    network: Network = None,
    largest: Largest = False,
    extractor: FaceExtractor = None,
    as_json: AsJson = False,
) -> None:
    """Name the enrolled people nearest to a face, nearest first, exactly.

    With a threshold ('sfumato calibrate') each is marked as accepted or not. Among many people some are accepted by
    chance: their number times the false-accept rate.

    Example: sfumato identify probe.jpg --gallery gallery.h5 -k 5
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
    nearest = Identifier(people.templates).identify(asked, k)[0]
    facts = _facts(nearest, people, comparison)
    lines = [
        f"{place}. {printable(one['id'])}: distance {one['distance']:.4f}{_mark(one['accepted'])}"
        for place, one in enumerate(facts["candidates"], 1)
    ]
    chance = "" if facts["expected by chance"] is None else f", {facts['expected by chance']:.2g} expected by chance"
    tell("\n".join([*lines, f"{len(nearest)} of {len(people)} people ({comparison}){chance}"]), facts, as_json=as_json)


def _facts(nearest: list[Candidate], people: Gallery, comparison: str) -> dict[str, Any]:
    limit = next((one for one in people.thresholds if one.comparison == comparison), None)
    candidates = [
        {"id": one.id, "distance": one.distance, "accepted": None if limit is None else limit.accepts(one.distance)}
        for one in nearest
    ]
    return {
        "candidates": candidates,
        "people": len(people),
        "comparison": comparison,
        "threshold": None if limit is None else limit.distance,
        "expected by chance": None if limit is None else limit.measured_rate * len(people),
    }


def _mark(accepted: bool | None) -> str:
    return "" if accepted is None else ", accepted" if accepted else ", rejected"


# ----------------------------------------------------------------
# sfumato calibrate: choose a gallery's threshold from faces of other people


DEFAULTS = CalibrateParams()


def calibrate(
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
