# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate search: nearest-subspace search on photos, faces and descriptors, in records, tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.evaluate import DecoyFile, Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.options import AsJson, Descriptor, Quiet, Recipes, Weights, complete_recipe, progress_bar
from sfumato.concealment.decoy_file import load_decoys
from sfumato.errors import InputError, suggest
from sfumato.experiments.patches.evaluate import PatchProtocol, draw_bars, evaluate_patches, patch_table
from sfumato.experiments.patches.sources import SourceParams, open_patches
from sfumato.experiments.search import descriptors, repatching
from sfumato.experiments.search import faces as facesearch
from sfumato.experiments.search.descriptors import DescriptorProtocol
from sfumato.experiments.search.faces import FaceProtocol, FaceSearchProtocol, read_faces
from sfumato.experiments.search.repatching import RepatchProtocol
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_paths
from sfumato.training.pairs import DescriptorPairs, PairParams, is_pair_file, load_pairs, pairs_from_photos, read_pairs

DATASETS = ("repatch", "yale", "descriptors")
FACES, REPATCH, DESCRIPTORS = FaceSearchProtocol(), RepatchProtocol(), DescriptorProtocol()


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
    output: Output = Path("evaluation"),
    methods: Annotated[
        str | None,
        typer.Option(help="Which ways of searching, with commas, e.g. 'exact,projector flat'. Default: all."),
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="repatch, yale: entries compared exactly for each query, e.g. 5,10,20.")
    ] = None,
    efforts: Annotated[str | None, typer.Option(help="descriptors: efforts from 0 to 1, e.g. 0.01,0.1.")] = None,
    photos: Annotated[
        int | None, typer.Option(help="repatch: make the first so many photos again. Default: all.")
    ] = None,
    splits: Annotated[int, typer.Option(help="yale: how many random splits of the images.")] = FACES.splits,
    images: Annotated[int, typer.Option(help="yale: images of each person that span a subspace.")] = FACES.faces.images,
    crop: Annotated[
        str | None,
        typer.Option(help="yale: width x height to crop and shrink the pictures of a folder to, e.g. 19x23."),
    ] = None,
    entries: Annotated[int | None, typer.Option(help="descriptors: how many to index. Default: all.")] = None,
    queries: Annotated[int, typer.Option(help="descriptors: how many to ask for.")] = DESCRIPTORS.queries,
    query_kind: Annotated[
        str, typer.Option(help="descriptors: ask with points (clear) or subspaces (lifted).")
    ] = DESCRIPTORS.kind_of_queries,
    recipe: Annotated[
        str, typer.Option(help="descriptors: how the database is concealed.", autocompletion=complete_recipe)
    ] = DESCRIPTORS.recipe,
    decoys: DecoyFile = None,
    seed: Annotated[int, typer.Option(help="Of splits, pixels, lines and liftings.")] = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure nearest-subspace search: Grassmannian hashing, projectors, exact search and ours.

    repatch makes photos again from the patches of one of them (Figures 1 and 2 of the hashing paper), yale finds people
    under changing light (its Figure 4), descriptors weighs recall against speed on lifted descriptors. What was
    measured before is not measured again; an interrupted run goes on where it stopped.

    Example: sfumato evaluate search yale_b_24x21.npz --dataset yale --candidates 5,10,20 -o results/
    """
    if dataset not in DATASETS:
        raise InputError(f"--dataset: {dataset!r:.80} is none of {', '.join(DATASETS)}{suggest(dataset, DATASETS)}")
    chosen = {} if methods is None else {"methods": words(methods)}
    limits = {} if candidates is None else {"candidates": tuple(_numbers(candidates, int, "--candidates"))}
    bar, stem = progress_bar("searching", None, quiet=quiet or as_json), output / f"search-{dataset}"
    figures: list[Path] = []
    if dataset == "yale":
        faces = FaceProtocol(images=images)
        protocol = FaceSearchProtocol(**chosen, **limits, splits=splits, seed=seed, faces=faces)  # type: ignore[arg-type]
        people = read_faces(_needed(data), _size(crop))
        records = facesearch.evaluate_faces(people, output, protocol, progress=bar, overwrite=overwrite)
        table = facesearch.face_search_table(records)
        figures += facesearch.draw_success(records, stem, "People found under changing light")
    elif dataset == "repatch":
        wanted = RepatchProtocol(**chosen, **limits, photos=photos, seed=seed)  # type: ignore[arg-type]
        place = data or next(iter(sample_paths().values())).parent
        repatchers = repatching.prepare_repatch(place, wanted)
        records = repatching.evaluate_repatch(repatchers, output, progress=bar, overwrite=overwrite)
        table = repatching.repatching_table(records)
        figures += repatching.draw_photos(repatchers, output, stem)
        figures.append(repatching.draw_repatched(repatchers, stem.with_name(f"{stem.name}-photos.png")))
    else:
        shares = {} if efforts is None else {"efforts": tuple(_numbers(efforts, float, "--efforts"))}
        plan = DescriptorProtocol(
            **chosen,  # type: ignore[arg-type]
            **shares,  # type: ignore[arg-type]
            recipe=recipe,
            kind_of_queries=query_kind,
            entries=entries,
            queries=queries,
            seed=seed,
        )
        pairs = _pairs(data)
        lifted = None if decoys is None else load_decoys(decoys)
        records = descriptors.evaluate_descriptors(pairs, output, plan, lifted, progress=bar, overwrite=overwrite)
        table = descriptors.descriptor_search_table(records)
        figures += descriptors.draw_recall(records, stem, f"{recipe}, {query_kind}")
    report(records, table, stem, figures, as_json=as_json)


def _pairs(data: Path | None) -> DescriptorPairs:
    """Return pairs of descriptors of any kind from a file, SIFT of photos or patches otherwise."""
    if data is None:
        return pairs_from_photos(list(sample_paths().values()), PairParams())
    return load_pairs(data) if is_pair_file(data) else read_pairs(data)


def _needed(data: Path | None) -> Path:
    if data is None:
        raise InputError("yale: name a file such as yale_b_24x21.npz, or a folder with a folder for each person")
    return data


def _numbers(text: str, kind: type, option: str) -> list[float]:
    try:
        return [kind(word) for word in words(text)]
    except ValueError as cause:
        raise InputError(f"{option}: expected numbers with commas, got {text!r:.80}") from cause


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) != 2 or not all(side.isdigit() for side in sides):
        raise InputError(f"--crop: expected width x height, such as 19x23, got {text!r:.80}")
    return int(sides[0]), int(sides[1])


# ----------------------------------------------------------------
# sfumato evaluate patches: how well patches are told apart, matched and retrieved, in records, a table and bars


PROTOCOL = PatchProtocol()


def patches(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Patches of UBC PhotoTour (info.txt, m50_*.txt, patches*.bmp) or HPatches (ref.png, e1.png, ...), or "
            "photos, from which patches are generated.",
        ),
    ],
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(PROTOCOL.recipes),
    distance: Annotated[
        str, typer.Option(help="p-to-s (one patch clear, the other concealed), s-to-s (both), or p-to-s,s-to-s.")
    ] = ",".join(PROTOCOL.distances),
    seeds: Seeds = "1",
    descriptor: Descriptor = PROTOCOL.local.descriptor,
    weights: Weights = None,
    decoys: DecoyFile = None,
    pairs: Annotated[int, typer.Option(help="True pairs to tell apart, and as many false ones.")] = PROTOCOL.pairs,
    queries: Annotated[int, typer.Option(help="Patches to retrieve, at most.")] = PROTOCOL.queries,
    distractors: Annotated[int, typer.Option(help="Patches to retrieve them from.")] = PROTOCOL.distractors,
    limit: Annotated[int | None, typer.Option(help="Use the first so many photos or sequences only.")] = None,
    points: Annotated[
        int | None, typer.Option(help="Of each sequence use the first so many points; of a photo the strongest.")
    ] = None,
    data_seed: Annotated[int, typer.Option(help="The seed of patches generated from photos.")] = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how well concealed patches are told apart, matched and retrieved (the tasks of HPatches; FPR@95 of UBC).

    Photos are seen through known homographies, with other light, blur and noise, and a detector that is off a little
    (easy), more (hard) and much (tough). What was measured before is not measured again; an interrupted run goes on
    where it stopped.

    Example: sfumato evaluate patches photos/ --recipes raw,sub-hybrid-2,ninja:mine.safetensors -o results/
    """
    protocol = PatchProtocol(
        recipes=words(recipes),
        distances=words(distance),
        seeds=read_seeds(seeds),
        pairs=pairs,
        queries=queries,
        distractors=distractors,
        local=LocalParams(descriptor=descriptor, weights=weights),
        source=SourceParams(seed=data_seed, limit=limit, points=points),
    )
    hidden = quiet or as_json
    records = evaluate_patches(
        open_patches(data, protocol.source, progress=progress_bar("cutting patches", None, quiet=hidden)),
        output,
        protocol,
        None if decoys is None else load_decoys(decoys),
        progress=progress_bar("comparing", None, quiet=hidden),
        overwrite=overwrite,
    )
    stem = output / f"patches-{descriptor}"
    drawn = [record for record in records if record.scores]
    figures = draw_bars(drawn, stem, f"Patches, {descriptor}") if drawn else ()
    report(records, patch_table(records), stem, figures, as_json=as_json)
