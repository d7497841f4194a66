# SPDX-License-Identifier: Apache-2.0
"""Commands for faces: enroll, renew and revoke people in a gallery, verify, identify and calibrate."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.options import (
    AsJson,
    FaceOptions,
    GalleryPath,
    Labels,
    Quiet,
    complete_face_recipe,
    printable,
    progress_bar,
    quantity,
    read_labels,
    tell,
)
from sfumato.concealment.faces import FACE_RECIPE
from sfumato.concealment.keys import read_key
from sfumato.errors import InputError, NotEnrolledError, suggest
from sfumato.faces import calibration, enrollment, probe
from sfumato.faces.calibration import DEFAULTS
from sfumato.faces.compare import BITS, POINT
from sfumato.faces.gallery_file import people_in

LIFTED = "Lifted galleries"
REJECTED = 3
"""Exit code of verify for a face that is rejected."""
UNCOMPARED = "this gallery has no threshold for {}, so nobody checked"
CALIBRATE = "choose one with 'sfumato calibrate' before you go on"

Faces = Annotated[Path, typer.Argument(help="A picture, a folder of pictures, or embeddings (.npz, .csv).")]
Face = Annotated[Path, typer.Argument(help="A picture, or embeddings (.npz, .csv).")]
AllowSimilar = Annotated[
    bool,
    typer.Option(
        "--allow-similar",
        help="Allow faces that look like someone enrolled: for different people.",
        rich_help_panel=LIFTED,
    ),
]
PersonId = Annotated[str | None, typer.Option("--id", help="The id of the one face. Default: the names in the file.")]
Row = Annotated[str | None, typer.Option(help="For files of embeddings: the name of the row to use.")]
DecoysPath = Annotated[
    Path | None,
    typer.Option(
        "--decoys",
        help="Decoys made by 'sfumato decoys build --faces'; all liftings but random need them.",
        rich_help_panel=LIFTED,
    ),
]
Comparison = Annotated[
    str | None,
    typer.Option(
        "--distance",
        help="Of lifted galleries: p-to-s compares the probe clear, s-to-s conceals it first. Default: p-to-s.",
        rich_help_panel=LIFTED,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="The file of the person's key. Default: below the folder of settings, made by 'enroll'."),
]
OldKeyFile = Annotated[
    Path | None,
    typer.Option(help="The file of the key that was in use, if --key-file names another for the new one."),
]
KeyOf = Annotated[str | None, typer.Option(help="Use the key of this id, of those that are on this device.")]
SecretFile = Annotated[
    Path | None,
    typer.Option(help="The device key, for --shared-key and liftings. Default: this user's, made at first use."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Options of commands that take the key of a person."""

    key_file: KeyFile = None
    secret_file: SecretFile = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of the functions that take a key."""
        secret = None if self.secret_file is None else read_key(self.secret_file)
        return {"key": self.key_file, "secret": secret}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Options of commands that compare one face with a gallery."""

    comparison: Comparison = None
    decoys: DecoysPath = None
    row: Row = None
    labels: Labels = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``verify`` and ``identify``."""
        labels = None if self.labels is None else read_labels(self.labels)
        return {"comparison": self.comparison, "decoys": self.decoys, "row": self.row, "labels": labels}


def enroll(
    faces: Faces,
    gallery: GalleryPath,
    person: PersonId = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help=f"For a new gallery: how to conceal. Default: {FACE_RECIPE}; hybrid-2 with --decoys.",
            autocompletion=complete_face_recipe,
        ),
    ] = None,
    shared_key: Annotated[
        bool,
        typer.Option(
            "--shared-key",
            help="For a new gallery: one key for all. 'identify' needs it; read 'sfumato help faces' first.",
        ),
    ] = False,
    keys: KeyOptions = KeyOptions(),
    decoys: DecoysPath = None,
    row: Row = None,
    labels: Labels = None,
    allow_similar: AllowSimilar = False,
    options: FaceOptions = FaceOptions(),
    as_json: AsJson = False,
) -> None:
    """Enroll people: a concealed template of each goes into the gallery, which is made if it is missing.

    Each person gets a key, a file that stays on this device. The gallery holds bits that nobody can read without it.
    Use 'sfumato renew' for a new key and photo, 'sfumato revoke' to remove someone. All are enrolled or none.

    With --recipe hybrid-2 and the like, faces are lifted instead, as published. Then two independent templates of one
    face reveal it to anyone who has both: the same photo under another id is always refused, another photo of the same
    face once 'sfumato calibrate' gave a threshold.

    Example: sfumato enroll alice.jpg --gallery gallery.sqlite --id alice
    """
    result = enrollment.enroll(
        faces,
        gallery,
        ids=person,
        recipe=recipe,
        decoys=decoys,
        row=row,
        labels=None if labels is None else read_labels(labels),
        allow_similar=allow_similar,
        shared_key=shared_key,
        **keys.settings,
        **options.settings,
    )
    for name in result.released_before:
        _warn(
            f"{name} was enrolled before, or almost: anyone who has that template and this one knows the face, and the "
            f"gallery counts both"
        )
    if not result.compared:
        problem = f"{UNCOMPARED.format(POINT)} whether two of these faces are of one person"
        _warn(f"{problem}, except for the same photo; {CALIBRATE}")
    _print_result("enrolled", result, gallery, as_json=as_json)


def renew(
    faces: Faces,
    gallery: GalleryPath,
    person: PersonId = None,
    decoys: DecoysPath = None,
    row: Row = None,
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Allow a photo that the old template rejects: for one person.")
    ] = False,
    allow_similar: AllowSimilar = False,
    keys: KeyOptions = KeyOptions(),
    old_key_file: OldKeyFile = None,
    options: FaceOptions = FaceOptions(),
    as_json: AsJson = False,
) -> None:
    """Replace templates by those of newer photos, under a new key: the old template and the old key are worthless then.

    A photo that the old template would reject is refused, and every photo if the old key is not here
    (--allow-different). A gallery with one key for all keeps that key: there the old template stays good.

    Lifted templates are replaced along the same directions: old and new never meet in the face. With a threshold
    ('sfumato calibrate') a photo that the old template would reject is refused, and one that looks like someone else;
    the same photo as someone else's always. With --decoys also a face that is among them.

    Example: sfumato renew alice-2026.jpg --gallery gallery.sqlite --id alice
    """
    with _near_names(gallery):
        result = enrollment.renew(
            faces,
            gallery,
            ids=person,
            decoys=decoys,
            row=row,
            allow_different=allow_different,
            allow_similar=allow_similar,
            old_key=old_key_file,
            **keys.settings,
            **options.settings,
        )
    if not result.compared:
        comparison = BITS if result.recipe.is_sealed else POINT
        _warn(f"{UNCOMPARED.format(comparison)} whether the new photo is of the same person; {CALIBRATE}")
    _print_result("renewed", result, gallery, as_json=as_json)


def revoke(
    ids: Annotated[list[str], typer.Argument(help="The people to remove.")],
    gallery: GalleryPath,
    as_json: AsJson = False,
) -> None:
    """Remove people from a gallery, and their keys from this device.

    The gallery remembers who was in it: a new lifted template of the same person would be the second one.

    Example: sfumato revoke alice --gallery gallery.sqlite
    """
    with _near_names(gallery):
        result = enrollment.revoke(ids, gallery)
    _print_result("revoked", result, gallery, as_json=as_json)


def verify(
    face: Face,
    gallery: GalleryPath,
    person: Annotated[str, typer.Option("--id", help="The id of the person it should be.")],
    keys: KeyOptions = KeyOptions(),
    key_of: KeyOf = None,
    options: ProbeOptions = ProbeOptions(),
    faces: FaceOptions = FaceOptions(),
    as_json: AsJson = False,
) -> None:
    """Accept or reject a face as someone enrolled: distance, threshold, and the false-accept rate behind it.

    The face is sealed under the person's key, which must be on this device. Exit code 0 if accepted, 3 if rejected. The
    threshold is the gallery's ('sfumato calibrate'), else the usual one of the network.

    Example: sfumato verify probe.jpg --gallery gallery.sqlite --id alice
    """
    settings = {**keys.settings, **options.settings, **faces.settings}
    with _near_names(gallery):
        decision = probe.verify(face, gallery, person, key_of=key_of, **settings)
    limit = decision.threshold
    facts = {
        "id": person,
        "accepted": decision.accepted,
        "distance": decision.distance,
        "threshold": limit.distance,
        "false accept rate": limit.measured_rate,
        "comparison": limit.comparison,
        "same key": decision.same_key,
    }
    whom = "strangers' faces under this key" if limit.comparison == BITS else "strangers"
    line = (
        f"{'accepted' if decision.accepted else 'rejected'} as {printable(person)}: distance {decision.distance:.4f}, "
        f"threshold {limit.distance:.4f} ({limit.comparison}), which accepts {limit.measured_rate:.2g} of {whom}"
    )
    if not decision.same_key:
        line = f"rejected as {printable(person)}: sealed under another key than the template, so that nothing can agree"
    tell(line, facts, as_json=as_json)
    if not decision.accepted:
        raise typer.Exit(REJECTED)


def identify(
    face: Face,
    gallery: GalleryPath,
    k: Annotated[int, typer.Option("-k", "--nearest", help="Number of candidates.")] = 5,
    secret_file: SecretFile = None,
    options: ProbeOptions = ProbeOptions(),
    faces: FaceOptions = FaceOptions(),
    as_json: AsJson = False,
) -> None:
    """Name the enrolled people nearest to a face, nearest first, exactly.

    For galleries with one key for all ('enroll --shared-key') and for lifted ones. Where each person has a key nobody
    can search: that is what the keys are for.

    With a threshold ('sfumato calibrate') each is marked as accepted or rejected. Among many people some are accepted
    by chance: their number times the false-accept rate.

    Example: sfumato identify probe.jpg --gallery gallery.sqlite -k 5
    """
    secret = None if secret_file is None else read_key(secret_file)
    result = probe.identify(face, gallery, k, secret=secret, **options.settings, **faces.settings)
    marks = {None: "", True: ", accepted", False: ", rejected"}
    lines = [
        f"{rank}. {printable(candidate.id)}: distance {candidate.distance:.4f}{marks[result.accepts(candidate)]}"
        for rank, candidate in enumerate(result.candidates, 1)
    ]
    expected = result.expected_by_chance
    chance = "" if expected is None else f", {expected:.2g} expected by chance"
    lines.append(f"{len(result.candidates)} of {result.people} people ({result.comparison}){chance}")
    facts = {
        "candidates": [
            {"id": candidate.id, "distance": candidate.distance, "accepted": result.accepts(candidate)}
            for candidate in result.candidates
        ],
        "people": result.people,
        "comparison": result.comparison,
        "threshold": None if result.threshold is None else result.threshold.distance,
        "expected by chance": expected,
    }
    tell("\n".join(lines), facts, as_json=as_json)


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
        typer.Option(help="A table 'name,person'. Default: names without the number at their end, as LFW has them."),
    ] = None,
    labels: Labels = None,
    pairs: Annotated[int, typer.Option(help="Compare at most this many pairs of strangers.")] = DEFAULTS.pairs,
    seed: Annotated[int, typer.Option(help="Seed that draws the pairs.")] = DEFAULTS.seed,
    options: FaceOptions = FaceOptions(),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose the distance up to which a probe is accepted, and store it with the gallery.

    The faces are concealed as the gallery's are, sealed ones under the same key, and different people compared; nothing
    of them is kept. A rate of 0.001 needs 10,000 pairs of different people, 0.0001 ten times as many.

    Example: sfumato calibrate strangers.npz --gallery gallery.sqlite --rate 0.001
    """
    threshold = calibration.calibrate(
        faces,
        gallery,
        rate=rate,
        comparison=comparison,
        decoys=decoys,
        people=None if people is None else read_labels(people),
        labels=None if labels is None else read_labels(labels),
        pairs=pairs,
        seed=seed,
        progress=progress_bar("faces", None, quiet=quiet or as_json),
        **options.settings,
    )
    tell(
        f"threshold for {threshold.comparison}: {threshold.distance:.4f}, at which {threshold.measured_rate:.3g} of "
        f"{threshold.impostor_pairs} pairs of strangers ({threshold.people} people) are accepted; stored in {gallery}",
        {**threshold.to_dict(), "gallery": str(gallery)},
        as_json=as_json,
    )


@contextmanager
def _near_names(gallery: Path) -> Iterator[None]:
    """Name the nearest id of a gallery if somebody is not enrolled: whoever types commands may read the file."""
    try:
        yield
    except NotEnrolledError as problem:
        raise InputError(f"{problem}{suggest(problem.person, people_in(gallery))}") from problem


def _warn(line: str) -> None:
    print(printable(f"warning: {line}"), file=sys.stderr)


def _print_result(verb: str, result: enrollment.Enrollment, path: Path, *, as_json: bool) -> None:
    ids, people, recipe = result.ids, result.people, str(result.recipe)
    who = printable(ids[0]) if len(ids) == 1 else f"{len(ids)} people"
    facts = {verb: list(ids), "people": people, "recipe": recipe, "gallery": str(path)}
    how = "" if verb == "revoked" else f" with {recipe}"
    line = f"{who} {verb}{how}: {path} holds {quantity(people, 'concealed template')}"
    if result.keys is not None:
        facts["keys"] = str(result.keys)
        line += f"\n{'key' if len(ids) == 1 else 'keys'}: {printable(result.keys)} (keep it; no server may have it)"
    tell(line, facts, as_json=as_json)
