# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate tradeoff: matching accuracy against leakage, one point a recipe."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.cli.complete import one_of, several_of
from sfumato.cli.evaluate import DecoyFile, Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.leakage import ATTACKS
from sfumato.cli.options import AsJson, Descriptor, Quiet, Recipes, Weights
from sfumato.cli.output import progress_bar
from sfumato.concealment.decoyfile import load_decoys
from sfumato.evaluate.attackers import Toolbox
from sfumato.evaluate.generated import make_homography_folder
from sfumato.evaluate.homography import evaluate_homography
from sfumato.evaluate.leakage import LeakageProtocol
from sfumato.evaluate.leakageworkers import Order, count_workers, evaluate_on
from sfumato.evaluate.pairs import HomographyProtocol
from sfumato.evaluate.tradeoff import draw_tradeoff, table_of, weigh
from sfumato.features.local import LocalParams
from sfumato.images.folders import read_homography_folder
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths


def tradeoff(
    photos: Annotated[Path | None, typer.Argument(help="Photos to attack. Default: sample photos.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Sequences laid out as HPatches or Oxford, to match. Default: generated ones."),
    ] = None,
    output: Output = Path("tradeoff"),
    recipes: Recipes = "raw,random-2,sub-hybrid-2,sub-hybrid-4",
    attacks: Annotated[
        str,
        typer.Option(
            help="all, or a list, e.g. vertex,nearest,decoder,direct.", autocompletion=several_of(one_of(ATTACKS))
        ),
    ] = "all",
    seeds: Seeds = "1",
    limit: Annotated[int | None, typer.Option(help="Attack the first so many photos only.")] = None,
    max_features: Annotated[int, typer.Option(help="Of each photo that is attacked.")] = 1000,
    pair_features: Annotated[int, typer.Option(help="Of each image that is matched.")] = 2000,
    descriptor: Descriptor = "sift",
    weights: Weights = None,
    decoys: DecoyFile = None,
    public: Annotated[Path | None, typer.Option(help="Descriptors of other photos, for the attacker.")] = None,
    models: Annotated[Path | None, typer.Option(help="A folder of inverters and decoders, for the attacker.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes for the attacks. Default: one a core.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Weigh what a recipe keeps of matching against the most that any attack sees through it.

    Runs 'evaluate homography' and 'evaluate leakage' for the same recipes in one folder, and joins them. An attack that
    needs a trained network runs only where --models has one for the very recipe: without, a recipe looks better than it
    is. Inverters and decoders for an encoder are made by 'sfumato train inverter --recipe ninja:FILE'.

    Example: sfumato evaluate tradeoff photos/ --recipes raw,ninja-sift-1.0,sub-hybrid-2 --models models/ -o tradeoff/
    """
    local = LocalParams(descriptor=descriptor, weights=weights, max_features=max_features)
    protocol = HomographyProtocol(
        recipes=words(recipes),
        distances=("s-to-s",),
        seeds=read_seeds(seeds),
        local=LocalParams(descriptor=descriptor, weights=weights, max_features=pair_features),
    )
    place = pairs or make_homography_folder(output / "generated", np.random.default_rng(0))
    hidden = quiet or as_json
    use = evaluate_homography(
        read_homography_folder(place),
        output,
        protocol,
        None if decoys is None else load_decoys(decoys),
        progress=progress_bar("matching", None, quiet=hidden),
        overwrite=overwrite,
    )
    named = sample_paths() if photos is None else dict(list_images(photos))
    order = Order(
        photos=tuple(named.items())[:limit],
        protocol=LeakageProtocol(
            recipes=words(recipes),
            attacks=() if attacks == "all" else words(attacks),
            seeds=read_seeds(seeds),
            local=local,
        ),
        toolbox=Toolbox(decoys=decoys, public=public, models=models),
    )
    works = order.plan()
    bar = progress_bar("attacking", None, quiet=hidden)
    leaks = evaluate_on(count_workers(workers, works), order, works, output, progress=bar, overwrite=overwrite)
    standings = weigh(use, leaks)
    stem = output / f"tradeoff-{descriptor}"
    figures = draw_tradeoff(standings, stem, f"Use against leakage, {descriptor}")
    report([*use, *leaks], table_of(standings), stem, figures, as_json=as_json)
