# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato evaluate search`` and ``patches``: nearest-subspace search, and patch benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.tables import Table
from sfumato.cli.evaluate import DecoyFile, EvaluationOptions, RecipeOptions, read_decoys, read_numbers, report
from sfumato.cli.options import Descriptor, Weights, complete_recipe, split_names
from sfumato.errors import InputError, suggest
from sfumato.experiments.patches.evaluate import PatchProtocol, draw_bars, evaluate_patches, patch_table
from sfumato.experiments.patches.sources import PatchSourceParams, open_patches
from sfumato.experiments.search.descriptors import (
    DescriptorProtocol,
    descriptor_search_table,
    draw_recall,
    evaluate_descriptors,
    read_search_pairs,
)
from sfumato.experiments.search.faces import (
    FaceSearchProtocol,
    FaceSubspaceParams,
    draw_success,
    evaluate_face_search,
    face_search_table,
    read_face_pictures,
)
from sfumato.experiments.search.repatching import (
    RepatchProtocol,
    draw_photos,
    draw_repatched,
    evaluate_repatch,
    prepare_repatch,
    repatching_table,
)
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_paths
from sfumato.types.record import Record

DATASETS = ("repatch", "yale", "descriptors")
FACES, REPATCH, DESCRIPTORS, PATCHES = FaceSearchProtocol(), RepatchProtocol(), DescriptorProtocol(), PatchProtocol()


def search(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="repatch: a folder of photos. yale: an npz file with image and subject, or a folder with a folder of "
            "pictures for each person. descriptors: photos, patches, or a file of pairs. Default: sample photos.",
        ),
    ] = None,
    dataset: Annotated[str, typer.Option(help=f"What to measure: {', '.join(DATASETS)}.")] = "descriptors",
    methods: Annotated[
        str | None,
        typer.Option(help="Search methods, with commas, e.g. 'exact,projector flat'. Default: all."),
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="repatch, yale: entries compared exactly for each query, e.g. 5,10,20.")
    ] = None,
    efforts: Annotated[str | None, typer.Option(help="descriptors: efforts from 0 to 1, e.g. 0.01,0.1.")] = None,
    photos: Annotated[
        int | None, typer.Option(help="repatch: make only this many photos again, the first ones.")
    ] = None,
    splits: Annotated[int, typer.Option(help="yale: number of random splits of the images.")] = FACES.splits,
    images: Annotated[int, typer.Option(help="yale: images of each person that span a subspace.")] = FACES.faces.images,
    crop: Annotated[
        str | None,
        typer.Option(help="yale: width x height to crop and shrink the pictures of a folder to, e.g. 19x23."),
    ] = None,
    entries: Annotated[int | None, typer.Option(help="descriptors: number of entries. Default: all.")] = None,
    queries: Annotated[int, typer.Option(help="descriptors: number of queries.")] = DESCRIPTORS.queries,
    query_kind: Annotated[
        str, typer.Option(help="descriptors: query with points (clear) or subspaces (lifted).")
    ] = DESCRIPTORS.kind_of_queries,
    recipe: Annotated[
        str, typer.Option(help="descriptors: recipe of the database.", autocompletion=complete_recipe)
    ] = DESCRIPTORS.recipe,
    decoys: DecoyFile = None,
    seed: Annotated[int, typer.Option(help="Of splits, pixels, lines and liftings.")] = 0,
    options: EvaluationOptions = EvaluationOptions(),
) -> None:
    """Measure nearest-subspace search: Grassmannian hashing, projectors, exact search and ours.

    repatch makes photos again from the patches of one of them (Figures 1 and 2 of the hashing paper), yale finds people
    under changing light (its Figure 4), descriptors weighs recall against speed on lifted descriptors. What was
    measured before is not measured again; an interrupted run resumes.

    Example: sfumato evaluate search yale_b_24x21.npz --dataset yale --candidates 5,10,20 -o results/
    """
    if dataset not in DATASETS:
        raise InputError(f"--dataset: {dataset!r:.80} is none of {', '.join(DATASETS)}{suggest(dataset, DATASETS)}")
    names = None if methods is None else split_names(methods)
    limits = None if candidates is None else tuple(int(n) for n in read_numbers(candidates, int, "--candidates"))
    stem, records, figures = options.output / f"search-{dataset}", list[Record](), list[Path]()
    bar, overwrite = options.bar("searching"), options.overwrite
    table: Table
    if dataset == "yale":
        protocol = FaceSearchProtocol(
            methods=FACES.methods if names is None else names,
            candidates=FACES.candidates if limits is None else limits,
            splits=splits,
            seed=seed,
            faces=FaceSubspaceParams(images=images),
        )
        if data is None:
            raise InputError("yale: name a file such as yale_b_24x21.npz, or a folder with a folder for each person")
        pictures = read_face_pictures(data, _size(crop))
        records = evaluate_face_search(pictures, options.output, protocol, progress=bar, overwrite=overwrite)
        table = face_search_table(records)
        figures += draw_success(records, stem, "People found under changing light")
    elif dataset == "repatch":
        settings = RepatchProtocol(
            methods=REPATCH.methods if names is None else names,
            candidates=REPATCH.candidates if limits is None else limits,
            photos=photos,
            seed=seed,
        )
        repatchers = prepare_repatch(data or next(iter(sample_paths().values())).parent, settings)
        records = evaluate_repatch(repatchers, options.output, progress=bar, overwrite=overwrite)
        table = repatching_table(records)
        figures += draw_photos(repatchers, options.output, stem)
        figures.append(draw_repatched(repatchers, stem.with_name(f"{stem.name}-photos.png")))
    else:
        plan = DescriptorProtocol(
            methods=DESCRIPTORS.methods if names is None else names,
            efforts=DESCRIPTORS.efforts if efforts is None else read_numbers(efforts, float, "--efforts"),
            recipe=recipe,
            kind_of_queries=query_kind,
            entries=entries,
            queries=queries,
            seed=seed,
        )
        records = evaluate_descriptors(
            read_search_pairs(data), options.output, plan, read_decoys(decoys), progress=bar, overwrite=overwrite
        )
        table = descriptor_search_table(records)
        figures += draw_recall(records, stem, f"{recipe}, {query_kind}")
    report(records, table, stem, figures, as_json=options.as_json)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdigit() for side in sides):
        raise InputError(f"--crop: expected width x height, such as 19x23, got {text!r:.80}")
    return int(sides[0]), int(sides[1])


def patches(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Patches of UBC PhotoTour (info.txt, m50_*.txt, patches*.bmp) or HPatches (ref.png, e1.png, ...), or "
            "photos, from which patches are generated.",
        ),
    ],
    distance: Annotated[
        str, typer.Option(help="p-to-s (one patch clear, the other concealed), s-to-s (both), or p-to-s,s-to-s.")
    ] = ",".join(PATCHES.distances),
    descriptor: Descriptor = PATCHES.local.descriptor,
    weights: Weights = None,
    decoys: DecoyFile = None,
    pairs: Annotated[int, typer.Option(help="True pairs to tell apart, and as many false ones.")] = PATCHES.pairs,
    queries: Annotated[int, typer.Option(help="Patches to retrieve, at most.")] = PATCHES.queries,
    distractors: Annotated[int, typer.Option(help="Patches to retrieve them from.")] = PATCHES.distractors,
    limit: Annotated[int | None, typer.Option(help="Use only this many photos or sequences, the first ones.")] = None,
    points: Annotated[
        int | None, typer.Option(help="Use this many points: the first of each sequence, the strongest of each photo.")
    ] = None,
    data_seed: Annotated[int, typer.Option(help="The seed of patches generated from photos.")] = 0,
    options: RecipeOptions = RecipeOptions(recipes=",".join(PATCHES.recipes)),
) -> None:
    """Measure how well concealed patches are told apart, matched and retrieved (the tasks of HPatches; FPR@95 of UBC).

    Photos are seen through known homographies, with other light, blur and noise, and a detector that is off a little
    (easy), more (hard) and much (tough). What was measured before is not measured again; an interrupted run resumes.

    Example: sfumato evaluate patches photos/ --recipes raw,sub-hybrid-2,ninja:mine.safetensors -o results/
    """
    protocol = PatchProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        pairs=pairs,
        queries=queries,
        distractors=distractors,
        local=LocalParams(descriptor=descriptor, weights=weights),
        source=PatchSourceParams(seed=data_seed, limit=limit, points=points),
    )
    records = evaluate_patches(
        open_patches(data, protocol.source, progress=options.bar("cutting patches")),
        options.output,
        protocol,
        read_decoys(decoys),
        progress=options.bar("comparing"),
        overwrite=options.overwrite,
    )
    stem = options.output / f"patches-{descriptor}"
    measured = [record for record in records if record.scores]
    figures = draw_bars(measured, stem, f"Patches, {descriptor}") if measured else ()
    report(records, patch_table(records), stem, figures, as_json=options.as_json)
