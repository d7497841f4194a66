# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate frontier: what recipes keep of matching and maps, against the worst of all attacks."""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.auditing.leakage import LeakageProtocol, Order, count_workers, evaluate_on
from sfumato.auditing.matching import HomographyProtocol, evaluate_homography
from sfumato.auditing.reference import FrontierPoint, write_frontier
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.evaluate import ATTACKS, DecoyFile, Output, Overwrite, Seeds, read_seeds, report, words
from sfumato.cli.options import (
    AsJson,
    Descriptor,
    Quiet,
    Recipes,
    Weights,
    complete_recipes,
    one_of,
    printable,
    progress_bar,
    several_of,
)
from sfumato.concealment.decoy_file import load_decoys
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, read_homography_folder, read_posed_folder
from sfumato.experiments.data.generated import make_homography_folder, make_room_folder
from sfumato.experiments.frontier.points import Measured, draw_frontier, frontier_table, locate
from sfumato.experiments.frontier.run import FrontierOrder, measure_frontier
from sfumato.experiments.frontier.tradeoff import draw_tradeoff, tradeoff_table, weigh
from sfumato.experiments.frontier.training import Budget
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_text
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths
from sfumato.types.record import Record, Value

BUDGET = Budget()


def frontier(
    photos: Annotated[Path | None, typer.Argument(help="Photos to attack. Default: sample photos.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help="Sequences laid out as HPatches or Oxford, to match. Default: generated ones."),
    ] = None,
    posed: Annotated[
        list[Path] | None, typer.Option(help="A folder of posed images to map, beside the room. May be repeated.")
    ] = None,
    room: Annotated[bool, typer.Option(help="Also map a room that is made up.")] = True,
    output: Output = Path("frontier"),
    recipes: Annotated[
        str, typer.Option(help="What to compare with raw.", autocompletion=complete_recipes)
    ] = "sub-hybrid-2,sub-hybrid-4,default",
    seeds: Seeds = "1",
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Releases are derived from a device key: a second one adds nothing.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Attack the first so many photos only.")] = None,
    limit_sequences: Annotated[int | None, typer.Option(help="Match the first so many sequences only.")] = None,
    max_features: Annotated[int, typer.Option(help="Of each photo that is attacked.")] = 1000,
    pair_features: Annotated[int, typer.Option(help="Of each image that is matched.")] = 2000,
    scene_features: Annotated[int, typer.Option(help="Of each image that is mapped.")] = 2000,
    descriptor: Descriptor = "sift",
    weights: Weights = None,
    decoys: DecoyFile = None,
    public: Annotated[
        Path | None, typer.Option(help="A decoys file of yet other photos: what the attacker searches.")
    ] = None,
    models: Annotated[Path | None, typer.Option(help="A folder of inverters and decoders, for the attacker.")] = None,
    train_photos: Annotated[
        list[Path] | None,
        typer.Option(help="Photos of other people, to train missing networks into --models. May be repeated."),
    ] = None,
    patch_steps: Annotated[int, typer.Option(help="Of each inverter that is trained.")] = BUDGET.patch_steps,
    refine_steps: Annotated[int, typer.Option(help="Of its refinement.")] = BUDGET.refine_steps,
    refine_photos: Annotated[
        int, typer.Option(help="Photos that its refinement is trained on.")
    ] = BUDGET.refine_photos,
    max_photos: Annotated[int, typer.Option(help="Photos that networks are trained on.")] = BUDGET.max_photos,
    decoder_steps: Annotated[int, typer.Option(help="Of each decoder that is trained.")] = BUDGET.decoder_steps,
    decoder_form: Annotated[
        str, typer.Option(help="auto searches the subspaces of liftings, stronger and far slower; or direct.")
    ] = BUDGET.decoder_form,
    workers: Annotated[int | None, typer.Option(help="Processes for the attacks. Default: one a core.")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Weigh what recipes keep of matching and maps against the worst of all attacks.

    The attacker knows the recipe, the decoys, the encoder, public descriptors, every release and every match, and has
    networks trained on the very recipe; not the secret, the seed or the descriptors. Oracles are told and do not count.
    Networks that are missing in --models are trained on --train-photos, all with the same number of steps; without such
    photos the table names who is missing. frontier.json has the points so far after every recipe, also if interrupted.

    Example: sfumato evaluate frontier photos/ --pairs hpatches/ --models models/ --train-photos others/ -o frontier/
    """
    local = LocalParams(descriptor=descriptor, weights=weights, max_features=max_features)
    scenes = scenes_of(posed or [], output, room=room)
    sequences = read_homography_folder(pairs or make_homography_folder(output / "generated", np.random.default_rng(0)))
    named = sample_paths() if photos is None else dict(list_images(photos))
    order = FrontierOrder(
        photos=tuple(named.items())[:limit],
        sequences=tuple(sequences)[:limit_sequences],
        scenes=scenes,
        recipes=words(recipes),
        seeds=read_seeds(seeds),
        toolbox=Toolbox(decoys=decoys, public=public, models=models),
        train_photos=tuple(path for place in train_photos or [] for _, path in list_images(place)),
        budget=Budget(
            patch_steps=patch_steps, refine_steps=refine_steps, refine_photos=refine_photos, max_photos=max_photos,
            decoder_steps=decoder_steps, decoder_form=decoder_form, local=local,
        ),
        local=local,
        pair_features=pair_features,
        scene_features=scene_features,
        workers=workers,
    )  # fmt: skip
    made: dict[str, Value] = {
        "photos": len(order.photos), "sequences": len(order.sequences), "seeds": len(order.seeds), "keyed": keyed,
        "max_features": max_features, "pair_features": pair_features, "scene_features": scene_features,
        "patch_steps": patch_steps, "refine_steps": refine_steps, "decoder_steps": decoder_steps,
    }  # fmt: skip
    stem, hidden, done = output / f"frontier-{descriptor}", quiet or as_json, Measured(pairs=())
    steps = measure_frontier(
        order,
        output,
        report=lambda line: None if hidden else print(printable(line), file=sys.stderr),
        bar=lambda title: progress_bar(title, None, quiet=hidden),
        overwrite=overwrite,
    )
    for done in steps:
        points = locate(done, keyed=keyed)
        write_frontier(output / "frontier.json", points, made)
        write_tables(points, stem)
        figures = draw_frontier(points, stem, f"Use against the worst of all attacks, {descriptor}")
    report(records_of(done), frontier_table(points, short=True), stem, figures, as_json=as_json)
    write_tables(points, stem)


def write_tables(points: list[FrontierPoint], stem: Path) -> None:
    """Write all figures as markdown and comma-separated values; a terminal shows fewer."""
    table = frontier_table(points)
    write_text(stem.with_name(f"{stem.name}.md"), table.to_markdown(), with_folder=True)
    write_text(stem.with_name(f"{stem.name}.csv"), table.to_csv(), with_folder=True)


def scenes_of(folders: list[Path], output: Path, *, room: bool) -> dict[str, PosedImages]:
    """Read folders of posed images by their names, after the generated room.

    Raises InputError for two folders of one name.
    """
    found = (
        {"room": read_posed_folder(make_room_folder(output / "generated-room", np.random.default_rng(0)))}
        if room
        else {}
    )
    for folder in folders:
        name = folder.resolve().name
        if name in found:
            raise InputError(f"--posed: two folders are called {name}: rename one")
        found[name] = read_posed_folder(folder)
    return found


def records_of(measured: Measured) -> list[Record]:
    """Return all records behind a frontier, each once."""
    maps = [record for records in measured.scenes.values() for record in records]
    return list(dict.fromkeys((*measured.pairs, *maps, *measured.leakage, *measured.matched)))


# ----------------------------------------------------------------
# sfumato evaluate tradeoff: matching accuracy against leakage, one point a recipe


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
    report([*use, *leaks], tradeoff_table(standings), stem, figures, as_json=as_json)
