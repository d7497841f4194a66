# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato evaluate faces``, ``attributes``, ``releases`` and ``protection``: templates of faces."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.subjects import DISTANCES
from sfumato.cli.evaluate import RecipeOptions, read_numbers, report
from sfumato.cli.options import printable, split_names
from sfumato.experiments.data.face_benchmarks import LabelledFaces, open_face_pairs, read_labelled_faces
from sfumato.experiments.faces.attributes import AttributeProtocol, age_groups, attribute_table, evaluate_attributes
from sfumato.experiments.faces.figures import draw_attributes, draw_balance_below, draw_protection, draw_verification
from sfumato.experiments.faces.lifting import DECOY_COUNT, read_face_decoys, read_other_people
from sfumato.experiments.faces.protection import ProtectionProtocol, evaluate_protection, protection_table
from sfumato.experiments.faces.releases import POLICIES, ReleaseProtocol, evaluate_releases, release_table
from sfumato.experiments.faces.verification import (
    VerificationProtocol,
    evaluate_verification,
    verification_table,
    with_intervals,
)
from sfumato.features.embeddings import read_column, read_embeddings

FACES, ATTRIBUTES, RELEASES = VerificationProtocol(), AttributeProtocol(), ReleaseProtocol()
PROTECTION = ProtectionProtocol()

FaceDecoys = Annotated[
    Path | None,
    typer.Option(
        "--decoys", help="Embeddings of other people (npz, csv), or a file of 'sfumato decoys build --faces'."
    ),
]
DecoyCount = Annotated[int, typer.Option(help="Number of faces to draw from a file of embeddings.")]
Network = Annotated[Path | None, typer.Option(help="For .bin files: an ArcFace-style ONNX file. Extra 'face'.")]


def faces(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS",
            help="npz with embedding, left, right, same, fold; LFW's pairs.txt; or a benchmark such as agedb_30.bin.",
        ),
    ],
    distance: Annotated[
        str, typer.Option(help="p-to-s (the probe clear, the template lifted), s-to-s (both), or p-to-s,s-to-s.")
    ] = ",".join(DISTANCES),
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    embeddings: Annotated[
        Path | None, typer.Option(help="For pairs.txt: embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ] = None,
    network: Network = None,
    strangers: Annotated[
        int,
        typer.Option(help="Also compare this many other pairs of different people, by their names: for low rates."),
    ] = FACES.strangers,
    halves: Annotated[
        bool,
        typer.Option("--halves", help="s-to-s: the two sides draw from different halves of the decoys, as in use."),
    ] = False,
    options: RecipeOptions = RecipeOptions(recipes=",".join(FACES.recipes)),
) -> None:
    """Measure how well concealed faces are verified (section 4.2.1 and Figure 3 of the paper).

    The threshold comes from the other folds, the accuracy from the fold held out. The table shows mean
    accuracy, equal error rate, and true accepts, with 95 % intervals, at false-accept rates that this many pairs can
    resolve. Decoys must be other people. All sealed faces are under one key, as if every impostor had the victim's; the
    last columns are impostors without it.

    Benchmark files are pickles; they are read as data and nothing in them is ever run.

    Example: sfumato evaluate faces lfw.npz --recipes raw,hybrid-2 --decoys strangers.npz --seeds 5 -o results/
    """
    face_pairs, lost = open_face_pairs(pairs, embeddings, network, options.bar("describing"))
    for line in lost:
        print(printable(f"left out: {line}"), file=sys.stderr)
    protocol = VerificationProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        strangers=strangers,
        halves=halves,
    )
    records = evaluate_verification(
        face_pairs,
        options.output,
        protocol,
        None if decoys is None else read_face_decoys(decoys, decoy_count),
        progress=options.bar("verifying"),
        overwrite=options.overwrite,
    )
    stem = options.output / "faces"
    figures = (*draw_verification(records, options.output, stem), *draw_balance_below(options.output))
    table = verification_table(records)
    report(records, table, stem, figures, as_json=options.as_json, shown={"": with_intervals(table)})


def attributes(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="npz with embedding and lists of labels; or see --labels.")
    ],
    attribute: Annotated[str, typer.Option(help="Labels to guess.")] = ",".join(ATTRIBUTES.attributes),
    labels: Annotated[
        Path | None, typer.Option(help="A csv table of labels by name, its first line the titles, as FairFace's.")
    ] = None,
    decoy_faces: Annotated[int, typer.Option(help="Faces that become decoys.")] = ATTRIBUTES.decoys,
    attacker_faces: Annotated[int, typer.Option(help="Faces whose labels the attacker knows.")] = ATTRIBUTES.attacker,
    attacked_faces: Annotated[int, typer.Option(help="Faces that are concealed and attacked.")] = ATTRIBUTES.attacked,
    attacked_prefix: Annotated[
        str, typer.Option(help="Attack only faces whose names begin with this, e.g. val/ of FairFace.")
    ] = "",
    options: RecipeOptions = RecipeOptions(recipes=",".join(ATTRIBUTES.recipes)),
) -> None:
    """Measure what templates reveal about gender, race and the like (section 4.2.2 and Figure 4 of the paper).

    Faces are dealt to three sides that share none. The attacks: the 10 nearest faces, as they vote and under the best
    relabelling; a classifier trained on templates of the same recipe; a classifier once the decoys, which are public,
    are removed, or the seal is inverted. Sealed templates are attacked without the key and with it. Leakage is the
    strongest attack, to be read beside the majority. An age in years counts as one of four groups.

    Example: sfumato evaluate attributes utkface.npz --recipes raw,hybrid-2,hybrid-labels-2 -o results/
    """
    protocol = AttributeProtocol(
        recipes=options.recipe_names,
        attributes=split_names(attribute),
        seeds=options.seed_numbers,
        decoys=decoy_faces,
        attacker=attacker_faces,
        attacked=attacked_faces,
        attacked_prefix=attacked_prefix,
    )
    records = evaluate_attributes(
        _read_labels(embeddings, protocol.attributes, labels),
        options.output,
        protocol,
        progress=options.bar("guessing"),
        overwrite=options.overwrite,
    )
    stem = options.output / "attributes"
    measured = [record for record in records if record.scores]
    figures = draw_attributes(measured, stem, "What templates tell") if measured else ()
    figures = (*figures, *draw_balance_below(options.output))
    report(records, attribute_table(records), stem, figures, as_json=options.as_json)


def _read_labels(path: Path, attributes: Sequence[str], table: Path | None) -> LabelledFaces:
    """Read faces with their labels; ages that are numbers of years become groups."""
    source = read_labelled_faces(path, attributes, table)
    if table is not None or "age" not in source.labels:
        return source
    years = read_column(path, "age")
    return (
        LabelledFaces(source.faces, {**source.labels, "age": age_groups(years)}) if years.dtype.kind in "iu" else source
    )


def releases(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="Embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ],
    policy: Annotated[
        str, typer.Option(help=f"Policy of a device at every release: {', '.join(POLICIES)}.")
    ] = ",".join(RELEASES.policies),
    count: Annotated[str, typer.Option(help="Numbers of releases after which the attacker guesses.")] = ",".join(
        map(str, RELEASES.releases)
    ),
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    options: RecipeOptions = RecipeOptions(recipes=",".join(RELEASES.recipes)),
) -> None:
    """Measure how many releases, of several photos of one face, reveal it (section 5 of the paper).

    The attacker keeps every template and looks for where they nearly meet, or removes the public decoys. The table
    shows the distance of the guess from the enrolled photo, and how often it passes for the person, compared clear with
    a photo that was never released, at one false accept in a thousand.

    Example: sfumato evaluate releases lfw.npz --recipes hybrid-2 --decoys strangers.npz -o results/
    """
    faces = read_embeddings(embeddings)
    protocol = ReleaseProtocol(
        recipes=options.recipe_names,
        policies=split_names(policy),
        seeds=options.seed_numbers,
        releases=tuple(int(number) for number in read_numbers(count, int, "--count")),
    )
    records = evaluate_releases(
        faces,
        options.output,
        protocol,
        read_other_people(decoys, decoy_count, faces),
        progress=options.bar("releasing"),
        overwrite=options.overwrite,
    )
    report(records, release_table(records), options.output / "releases", (), as_json=options.as_json)


def protection(
    embeddings: Annotated[
        Path, typer.Argument(metavar="EMBEDDINGS", help="Embeddings with names such as Aaron_Sorkin_0002 (npz, csv).")
    ],
    decoys: FaceDecoys = None,
    decoy_count: DecoyCount = DECOY_COUNT,
    options: RecipeOptions = RecipeOptions(recipes=",".join(PROTECTION.recipes)),
) -> None:
    """Measure what ISO/IEC 24745 asks of templates: irreversible, unlinkable, renewable, and fit for verification.

    Everyone with three photos is enrolled in two places and renewed ten times, sealed templates with a key for each
    person and with one for all. The table shows how far templates of one person can be linked (0 not at all, 1 always),
    true accepts with 95 % intervals, the accuracy of renewals, how many replaced templates still pass, and how many
    faces computed from the database, from an old and a new template, or with the key pass elsewhere for the person. A
    master probe is no face and near most faces: the last columns are the share of people that the best one opens.

    Example: sfumato evaluate protection lfw.npz --recipes hybrid-2 --decoys strangers.npz -o results/
    """
    faces, stem = read_embeddings(embeddings), options.output / "protection"
    records = evaluate_protection(
        faces,
        options.output,
        ProtectionProtocol(recipes=options.recipe_names, seeds=options.seed_numbers),
        read_other_people(decoys, decoy_count, faces),
        progress=options.bar("linking"),
        overwrite=options.overwrite,
    )
    table, figures = protection_table(records), draw_protection(records, options.output, stem)
    report(records, table, stem, figures, as_json=options.as_json, shown={"": with_intervals(table)})
