# SPDX-License-Identifier: Apache-2.0
"""sfumato evaluate: how much of their use concealed features keep, in records, a table and a figure."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sfumato.auditing.attack_task import VARIANTS
from sfumato.auditing.leakage import DIRECT, LeakageProtocol, Order, count_workers, evaluate_on, leakage_table
from sfumato.auditing.matching import HomographyProtocol, draw_accuracy, evaluate_homography, homography_table
from sfumato.auditing.subjects import DISTANCES, PARTS
from sfumato.auditing.tables import Table
from sfumato.auditing.toolbox import Toolbox
from sfumato.cli.options import (
    ALL,
    AsJson,
    Descriptor,
    Detector,
    MaxFeatures,
    Quiet,
    Recipes,
    Weights,
    one_of,
    printable,
    progress_bar,
    several_of,
)
from sfumato.concealment.decoy_file import load_decoys
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, read_homography_folder, read_posed_folder
from sfumato.experiments.data.generated import make_homography_folder, make_room_folder
from sfumato.experiments.frontier.sheets import draw_leakage, draw_sheets
from sfumato.experiments.maps import localization, mapping
from sfumato.experiments.maps.localization import LocalizeProtocol, evaluate_localization
from sfumato.experiments.maps.mapping import MapProtocol, evaluate_map
from sfumato.experiments.maps.scene import Progress
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_text
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths
from sfumato.types.record import Record

PROTOCOL, LOCAL = HomographyProtocol(), LocalParams()
MAP, LOCALIZE = MapProtocol(), LocalizeProtocol()

Seeds = Annotated[
    str, typer.Option(help="How many seeds of the liftings (3 means 0, 1 and 2), or which: a list, e.g. 7,8 or 7,")
]
DecoyFile = Annotated[
    Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="A folder for results, records, table and figure.")]
PosedFolder = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="Posed images: images/ and cameras.json. Default: a room that is made up."),
]
Features = Annotated[int, typer.Option("--max-features", "--features", help="Keep the strongest of each image.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Measure again what was measured before.")]


def homography(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Sequences laid out as HPatches or Oxford. Default: sample photos seen through known homographies.",
        ),
    ] = None,
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(PROTOCOL.recipes),
    distance: Annotated[
        str, typer.Option(help="p-to-s (image 1 clear, the other lifted), s-to-s (both lifted), or p-to-s,s-to-s.")
    ] = ",".join(DISTANCES),
    seeds: Seeds = "1",
    parts: Annotated[
        str,
        typer.Option(
            help=f"Parts of the decoys that two images draw, for sub-* and s-to-s: {', '.join(PARTS)} (of both cases)."
        ),
    ] = PROTOCOL.parts,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    max_features: MaxFeatures = LOCAL.max_features,
    decoys: DecoyFile = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure how accurately images related by a homography are matched (section 4.1.2 of the paper).

    Image 1 of each sequence is matched with every other one. Reported is the mean over pairs of the share of correct
    mutual nearest matches, at 1 to 10 pixels, beside matches and correct matches. Pairs measured before are not
    measured again; an interrupted run goes on where it stopped.

    Example: sfumato evaluate homography hpatches/ --recipes raw,sub-hybrid-2 --seeds 5 -o results/
    """
    protocol = HomographyProtocol(
        recipes=words(recipes),
        distances=words(distance),
        seeds=read_seeds(seeds),
        parts=parts,
        local=LocalParams(detector=detector, descriptor=descriptor, weights=weights, max_features=max_features),
    )
    place = data or make_homography_folder(output / "generated", np.random.default_rng(0))
    records = evaluate_homography(
        read_homography_folder(place),
        output,
        protocol,
        None if decoys is None else load_decoys(decoys),
        progress=progress_bar("matching", None, quiet=quiet or as_json),
        overwrite=overwrite,
    )
    stem = output / f"homography-{descriptor}"
    drawn = [record for record in records if record.scores]
    figures = draw_accuracy(drawn, stem, f"Matching accuracy, {descriptor}") if drawn else ()
    report(records, homography_table(records), stem, figures, as_json=as_json)


def map_(
    data: PosedFolder = None,
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(MAP.recipes),
    seeds: Seeds = "1",
    features: Features = LOCAL.max_features,
    mapper: Annotated[str, typer.Option(help="incremental, or global: all images at once.")] = MAP.mapper,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    decoys: DecoyFile = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what concealing costs a map (section 4.1.3 of the paper).

    All images are concealed, matched each with every other, and mapped with the true intrinsics; the map is compared
    with the true poses. Reported are the figures of the paper's Table 1, verified matches and median errors.

    Example: sfumato evaluate map fountain-P11/ --recipes raw,sub-hybrid-2 -o results/
    """
    protocol = MapProtocol(
        recipes=words(recipes),
        seeds=read_seeds(seeds),
        mapper=mapper,
        local=LocalParams(detector=detector, descriptor=descriptor, weights=weights, max_features=features),
    )
    results = evaluate_map(
        posed_images(data, output),
        output,
        protocol,
        None if decoys is None else load_decoys(decoys),
        progress=stages(quiet or as_json),
        overwrite=overwrite,
    )
    for result in results:
        if result.reason:
            print(printable(f"{result.record.params['recipe']}: no map: {result.reason}"), file=sys.stderr)
        elif result.unregistered:
            names = ", ".join(result.unregistered)
            print(printable(f"{result.record.params['recipe']}: not in the map: {names}"), file=sys.stderr)
    records = [result.record for result in results]
    report(records, mapping.map_table(records), output / f"map-{descriptor}", (), as_json=as_json)


def localize(
    data: PosedFolder = None,
    output: Output = Path("evaluation"),
    recipes: Recipes = ",".join(LOCALIZE.recipes),
    distance: Annotated[
        str, typer.Option(help="p-to-s (concealed query, public map), s-to-s (both concealed), or p-to-s,s-to-s.")
    ] = ",".join(LOCALIZE.distances),
    seeds: Seeds = "1",
    features: Features = LOCAL.max_features,
    detector: Detector = LOCAL.detector,
    descriptor: Descriptor = LOCAL.descriptor,
    weights: Weights = None,
    decoys: DecoyFile = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what concealing costs localization (appendix C of the paper).

    Each image in turn is left out, concealed, and localized in a map of the others, triangulated from their true poses.
    Reported are the shares within (0.25 m, 2 deg), (0.5 m, 5 deg) and (5 m, 10 deg), and median errors.

    Example: sfumato evaluate localize fountain-P11/ --recipes raw,sub-hybrid-16 -o results/
    """
    protocol = LocalizeProtocol(
        recipes=words(recipes),
        distances=words(distance),
        seeds=read_seeds(seeds),
        local=LocalParams(detector=detector, descriptor=descriptor, weights=weights, max_features=features),
    )
    records = evaluate_localization(
        posed_images(data, output),
        output,
        protocol,
        None if decoys is None else load_decoys(decoys),
        progress=stages(quiet or as_json),
        overwrite=overwrite,
    )
    report(records, localization.localization_table(records), output / f"localize-{descriptor}", (), as_json=as_json)


def posed_images(data: Path | None, output: Path) -> PosedImages:
    """Read a folder of posed images; without one, make a room and take its pictures."""
    return read_posed_folder(data or make_room_folder(output / "generated-room", np.random.default_rng(0)))


def stages(hidden: bool) -> Progress:
    """Show a bar for every stage that has something to do."""
    return lambda stage, items, total: progress_bar(stage, total, quiet=hidden)(items)


def report(records: Sequence[Record], table: Table, stem: Path, figures: Sequence[Path], *, as_json: bool) -> None:
    """Write the table beside the records, print it or the records, and name what was left out.

    Raises InputError, and writes no table, where nothing was measured.
    """
    dropped = list(dict.fromkeys(line for record in records for line in record.dropped))
    for line in dropped:
        print(printable(f"left out: {line}"), file=sys.stderr)
    if not any(record.scores for record in records):
        raise InputError(f"{stem.parent}: nothing could be measured, so no table is written; see what was left out")
    write_text(stem.with_name(f"{stem.name}.md"), table.to_markdown(), with_folder=True)
    write_text(stem.with_name(f"{stem.name}.csv"), table.to_csv(), with_folder=True)
    if as_json:
        print(json.dumps([json.loads(record.to_json()) for record in records], indent=2, sort_keys=True))
    else:
        show(table)
        names = ", ".join(path.name for path in (*figures, stem.with_name(f"{stem.name}.md")))
        print(f"{len(records)} records in {stem.parent}, with {names} and {stem.name}.csv")


def show(table: Table) -> None:
    """Print a table as wide as it is; a terminal that is narrower wraps it."""
    from rich.console import Console

    console = Console()
    Console(width=None if console.is_terminal else 240).print(table.to_rich())


def words(text: str) -> tuple[str, ...]:
    """Read a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_seeds(text: str) -> tuple[int, ...]:
    """Read a number of seeds, or a list of them with commas.

    >>> read_seeds("3"), read_seeds("7,")
    ((0, 1, 2), (7,))
    """
    try:
        numbers = tuple(int(word) for word in words(text))
    except ValueError as cause:
        raise InputError(f"--seeds: expected a number, or a list with commas, got {text!r:.80}") from cause
    if "," in text:
        return numbers
    if len(numbers) != 1 or not 1 <= numbers[0] <= 1000:
        raise InputError(f"--seeds: expected 1 to 1000 seeds, or a list with commas, got {text!r:.80}")
    return tuple(range(numbers[0]))


# ----------------------------------------------------------------
# sfumato evaluate leakage: what every attack gets out of concealed features, in records, a table and pictures


LEAKAGE_PROTOCOL = LeakageProtocol()
RECIPES = tuple(dict.fromkeys((*LEAKAGE_PROTOCOL.recipes, "default")))
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
    max_features: Annotated[
        int, typer.Option(help="Keep the strongest of each photo.")
    ] = LEAKAGE_PROTOCOL.local.max_features,
    detector: Detector = LEAKAGE_PROTOCOL.local.detector,
    descriptor: Descriptor = LEAKAGE_PROTOCOL.local.descriptor,
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
    report(records, leakage_table(records), stem, figures, as_json=as_json)
