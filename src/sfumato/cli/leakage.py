# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate leakage: what every attack gets out of concealed features, in records, a table and pictures."""

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.complete import ALL, one_of, several_of
from sfumato.cli.evaluate import DecoyFile, Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.options import AsJson, Descriptor, Detector, Quiet, Recipes, Weights
from sfumato.cli.output import progress_bar
from sfumato.evaluate.attackers import Toolbox
from sfumato.evaluate.intruder import VARIANTS
from sfumato.evaluate.leakage import DIRECT, LeakageProtocol, table_of
from sfumato.evaluate.leakagesheets import draw_sheets
from sfumato.evaluate.leakageworkers import Order, count_workers, evaluate_on
from sfumato.evaluate.sheets import draw_leakage
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths

PROTOCOL = LeakageProtocol()
RECIPES = tuple(dict.fromkeys((*PROTOCOL.recipes, "default")))
"""Those of the paper, and the one that is used where nobody chooses."""
ATTACKS = (ALL, *VARIANTS, DIRECT)


def leakage(
    photos: Annotated[
        Path | None, typer.Argument(help="A photo or a folder of photos. Default: sample photos.")
    ] = None,
    output: Output = Path("leakage"),
    recipes: Recipes = ",".join(RECIPES),
    attacks: Annotated[
        str,
        typer.Option(
            help="all, or a list, e.g. vertex,nearest,direct. 'sfumato attack --list' explains them; NAME+decoys knows "
            "the decoys too; direct is an inverter trained on what the very recipe releases (see --models).",
            autocompletion=several_of(one_of(ATTACKS)),
        ),
    ] = "all",
    seeds: Seeds = "1",
    limit: Annotated[int | None, typer.Option(help="Attack the first so many photos only.")] = None,
    max_features: Annotated[int, typer.Option(help="Keep the strongest of each photo.")] = PROTOCOL.local.max_features,
    detector: Detector = PROTOCOL.local.detector,
    descriptor: Descriptor = PROTOCOL.local.descriptor,
    weights: Weights = None,
    decoys: DecoyFile = None,
    public: Annotated[
        Path | None,
        typer.Option(help="A decoys file of yet other photos: what the attacker searches. Default: the decoys."),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option(help="A folder of inverters and decoders made by sfumato train. Default: the bundled inverters."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes of this machine. Default: one a core and a photo, as far as the memory goes: each takes "
            "0.5 GB, and four times what decoys and public descriptors hold."
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what an attacker gets out of concealed features: descriptors and pictures.

    Each photo is concealed under each recipe and attacked in every way that the public descriptors, decoys and trained
    networks at hand allow. Reported are distances to the clear descriptors, and how near the painted picture comes to
    the photo: leakage is 0 for what the keypoints alone show and 1 for what clear descriptors show.

    Example: sfumato evaluate leakage photos/ --recipes raw,random-2,sub-hybrid-2 --public public.npz -o leakage/
    """
    protocol = LeakageProtocol(
        recipes=words(recipes),
        attacks=() if attacks == "all" else words(attacks),
        seeds=read_seeds(seeds),
        local=LocalParams(detector=detector, descriptor=descriptor, weights=weights, max_features=max_features),
    )
    named = sample_paths() if photos is None else dict(list_images(photos))
    toolbox = Toolbox(decoys=decoys, public=public, models=models)
    order = Order(photos=tuple(named.items())[:limit], protocol=protocol, toolbox=toolbox)
    works = order.plan()
    count = count_workers(workers, works)
    bar = progress_bar("attacking", None, quiet=quiet or as_json)
    records = evaluate_on(count, order, works, output, progress=bar, overwrite=overwrite)
    stem = output / f"leakage-{descriptor}"
    drawn = [record for record in records if any(score.name == "leakage" for score in record.scores)]
    figures = [*draw_leakage(drawn, stem, f"Leakage, {descriptor}")] if drawn else []
    figures += draw_sheets(works, output, descriptor)
    report(records, table_of(records), stem, figures, as_json=as_json)
