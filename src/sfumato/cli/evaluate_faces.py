# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate faces, attributes and releases: how well templates verify, and what they give away."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.runner import load_records
from sfumato.auditing.subjects import DISTANCES
from sfumato.cli.evaluate import Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.options import AsJson, Quiet, Recipes, printable, progress_bar
from sfumato.concealment.decoys import Decoys
from sfumato.errors import InputError
from sfumato.experiments.data.face_benchmarks import (
    FacePairs,
    embed_benchmark,
    read_benchmark,
    read_face_pairs,
    read_labelled_faces,
)
from sfumato.experiments.faces import attributes as guessing
from sfumato.experiments.faces import protection as protecting
from sfumato.experiments.faces import releases as repeated
from sfumato.experiments.faces import verification as verifying
from sfumato.experiments.faces.figures import draw_attributes, draw_balance, draw_curves, weigh
from sfumato.experiments.faces.lifting import DECOY_COUNT, read_face_decoys
from sfumato.faces.enrollment import refuse_decoys
from sfumato.features.embeddings import read_embeddings
from sfumato.features.faces import FaceParams, OnnxNetwork
from sfumato.types.clear import Embeddings

FACES, ATTRIBUTES, RELEASES = verifying.FaceProtocol(), guessing.AttributeProtocol(), repeated.ReleaseProtocol()

FaceDecoys = Annotated[
    Path | None,
    typer.Option(
        "--decoys", help="Embeddings of other people (npz, csv), or a file of 'sfumato decoys build --faces'."
    ),
]
DecoyCount = Annotated[int, typer.Option(help="How many to draw from a file of embeddings.")]
Network = Annotated[Path | None, typer.Option(help="For .bin files: an ArcFace-style ONNX file. Extra 'face'.")]


def faces(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS",
            help="npz with embedding, left, right, same, fold; LFW's pairs.txt; or a benchmark such as agedb_30.bin.",
        ),
    ],
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(FACES.recipes),
    distance: Annotated[
        str, typer.Option(help="p-to-s (the probe clear, the template lifted), s-to-s (both), or p-to-s,s-to-s.")
    ] = ",".join(DISTANCES),
    seeds: Seeds = "1",
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    embeddings: Annotated[
        Path | None, typer.Option(help="For pairs.txt: embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ] = None,
    network: Network = None,
    strangers: Annotated[
        int,
        typer.Option(help="Also compare so many other pairs of different people, by their names: for low rates."),
    ] = FACES.strangers,
    halves: Annotated[
        bool,
        typer.Option("--halves", help="s-to-s: the two sides draw from different halves of the decoys, as in use."),
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how well concealed faces are verified (section 4.2.1 and Figure 3 of the paper).

    The threshold comes from the other folds, the accuracy from the fold held out. Reported are mean accuracy, equal
    error rate, and true accepts at false-accept rates that the number of pairs can tell. Decoys must be other people.
    Benchmark files are pickles; they are read as data and nothing in them is ever run.

    Example: sfumato evaluate faces lfw.npz --recipes raw,hybrid-2 --decoys strangers.npz --seeds 5 -o results/
    """
    hidden = quiet or as_json
    records = verifying.evaluate_faces(
        _read_pairs(pairs, embeddings, network, hidden),
        output,
        verifying.FaceProtocol(
            recipes=words(recipes),
            distances=words(distance),
            seeds=read_seeds(seeds),
            strangers=strangers,
            halves=halves,
        ),
        None if decoys is None else read_face_decoys(decoys, decoy_count),
        progress=progress_bar("verifying", None, quiet=hidden),
        overwrite=overwrite,
    )
    stem = output / "faces"
    lines = [
        (f"{record.params['recipe']} {record.params['distance']}", *kept)
        for record in records
        if record.seed in (None, records[-1].seed) and (kept := verifying.read_distances(record, output)) is not None
    ]
    figures = [*(draw_curves(lines, stem, "Face verification") if lines else ()), *_draw_balance(output)]
    report(records, verifying.verification_table(records), stem, figures, as_json=as_json)


def attributes(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="npz with embedding and lists of labels; or see --labels.")
    ],
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(ATTRIBUTES.recipes),
    attribute: Annotated[str, typer.Option(help="Labels to guess.")] = ",".join(ATTRIBUTES.attributes),
    seeds: Seeds = "1",
    labels: Annotated[
        Path | None, typer.Option(help="A csv table of labels by name, its first line the titles, as FairFace's.")
    ] = None,
    decoy_faces: Annotated[int, typer.Option(help="Faces that become decoys.")] = ATTRIBUTES.decoys,
    attacker_faces: Annotated[int, typer.Option(help="Faces whose labels the attacker knows.")] = ATTRIBUTES.attacker,
    attacked_faces: Annotated[int, typer.Option(help="Faces that are concealed and attacked.")] = ATTRIBUTES.attacked,
    attacked_prefix: Annotated[
        str, typer.Option(help="Attack faces whose names begin so, e.g. val/ of FairFace. Default: any.")
    ] = "",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what templates tell about gender, race and the like (section 4.2.2 and Figure 4 of the paper).

    Faces are dealt to three sides that share none. The attacks: the 10 nearest clear faces, as they vote and under the
    best relabelling; a classifier trained on templates of the same recipe; the same once the decoys, which are public,
    are taken away. Leakage is the most of all, to be read beside the majority.

    Example: sfumato evaluate attributes utkface.npz --recipes raw,hybrid-2,hybrid-labels-2 -o results/
    """
    protocol = guessing.AttributeProtocol(
        recipes=words(recipes),
        attributes=words(attribute),
        seeds=read_seeds(seeds),
        decoys=decoy_faces,
        attacker=attacker_faces,
        attacked=attacked_faces,
        attacked_prefix=attacked_prefix,
    )
    records = guessing.evaluate_attributes(
        read_labelled_faces(embeddings, protocol.attributes, labels),
        output,
        protocol,
        progress=progress_bar("guessing", None, quiet=quiet or as_json),
        overwrite=overwrite,
    )
    stem = output / "attributes"
    drawn = [record for record in records if record.scores]
    figures = [*(draw_attributes(drawn, stem, "What templates tell") if drawn else ()), *_draw_balance(output)]
    report(records, guessing.attribute_table(records), stem, figures, as_json=as_json)


def releases(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="Embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ],
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(RELEASES.recipes),
    policy: Annotated[
        str, typer.Option(help=f"What a device does at every release: {', '.join(repeated.POLICIES)}.")
    ] = ",".join(RELEASES.policies),
    count: Annotated[str, typer.Option(help="Numbers of releases after which the attacker guesses.")] = ",".join(
        map(str, RELEASES.releases)
    ),
    seeds: Seeds = "1",
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how many releases, of several photos of one face, reveal it (section 5 of the paper).

    The attacker keeps every template and looks for where they nearly meet, or takes the public decoys away. Reported is
    how far the guess is from the enrolled photo, and how often it passes for the person, compared clear with a photo
    that was never released, at one false accept in a thousand.

    Example: sfumato evaluate releases lfw.npz --recipes hybrid-2 --decoys strangers.npz -o results/
    """
    protocol = repeated.ReleaseProtocol(
        recipes=words(recipes), policies=words(policy), seeds=read_seeds(seeds), releases=_numbers(count)
    )
    found = read_embeddings(embeddings)
    records = repeated.evaluate_releases(
        found,
        output,
        protocol,
        _other_people(decoys, decoy_count, found),
        progress=progress_bar("releasing", None, quiet=quiet or as_json),
        overwrite=overwrite,
    )
    report(records, repeated.release_table(records), output / "releases", (), as_json=as_json)


def protection(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="Embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ],
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(RELEASES.recipes),
    seeds: Seeds = "1",
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure unlinkability, renewability and revocation of templates, in the sense of ISO/IEC 24745.

    Everyone with three photos is enrolled in two places and renewed once, each time with another photo. Reported is how
    far templates of one person give themselves away (0 not at all, 1 always), how well old and renewed ones verify, how
    many replaced templates still pass, and how many points where old and new meet.

    Example: sfumato evaluate protection lfw.npz --recipes hybrid-2 --decoys strangers.npz -o results/
    """
    found = read_embeddings(embeddings)
    records = protecting.evaluate_protection(
        found,
        output,
        protecting.ProtectionProtocol(recipes=words(recipes), seeds=read_seeds(seeds)),
        _other_people(decoys, decoy_count, found),
        progress=progress_bar("linking", None, quiet=quiet or as_json),
        overwrite=overwrite,
    )
    report(records, protecting.protection_table(records), output / "protection", (), as_json=as_json)


def _read_pairs(path: Path, embeddings: Path | None, network: Path | None, hidden: bool) -> FacePairs:
    """Read pairs of embeddings; pictures of a benchmark file are described first."""
    if path.suffix != ".bin":
        return read_face_pairs(path, embeddings)
    if network is None:
        raise InputError(f"{path}: its pictures need a network: --network arcface.onnx")
    benchmark = read_benchmark(path)
    pairs, lost = embed_benchmark(
        benchmark, OnnxNetwork(FaceParams(network=network)), progress_bar("describing", None, quiet=hidden)
    )
    for line in lost:
        print(printable(f"left out: {line}"), file=sys.stderr)
    return pairs


def _other_people(path: Path | None, count: int, faces: Embeddings) -> Decoys | None:
    """Read decoys, if a file is named; a face that is to be measured and is one of them is refused."""
    decoys = None if path is None else read_face_decoys(path, count)
    refuse_decoys(faces, decoys)
    return decoys


def _draw_balance(output: Path) -> tuple[Path, ...]:
    """Draw accuracy against leakage where the folder holds both kinds of records."""
    if not all((output / name).is_dir() for name in ("faces", "attributes")):
        return ()
    verified, attacked = (load_records(output / name) for name in ("faces", "attributes"))
    shared = {record.params["recipe"] for record in verified if record.scores}
    if not any(record.params["recipe"] in shared and record.scores for record in attacked):
        return ()
    return draw_balance(weigh(verified, attacked), output / "faces-balance", "Verification against leakage")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words(text))
    except ValueError as cause:
        raise InputError(f"--count: expected numbers with commas, got {text!r:.80}") from cause
