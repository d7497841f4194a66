# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate patches: how well patches are told apart, matched and retrieved, in records, a table and bars."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.evaluate import DecoyFile, Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.options import AsJson, Descriptor, Quiet, Recipes, Weights
from sfumato.cli.output import progress_bar
from sfumato.concealment.decoyfile import load_decoys
from sfumato.evaluate.patches import evaluate_patches, table_of
from sfumato.evaluate.patchfigure import draw_bars
from sfumato.evaluate.patchjudge import PatchProtocol
from sfumato.evaluate.patchsources import SourceParams, open_patches
from sfumato.features.local import LocalParams

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
    report(records, table_of(records), stem, figures, as_json=as_json)
