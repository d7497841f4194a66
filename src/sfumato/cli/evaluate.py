# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato evaluate homography``, ``map`` and ``localize``: what concealed features are still good for."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.matching import HomographyProtocol, draw_accuracy, evaluate_homography, homography_table
from sfumato.auditing.subjects import DISTANCES, PARTS
from sfumato.auditing.tables import Table
from sfumato.cli.options import (
    Descriptor,
    Detector,
    FileOptions,
    Recipes,
    Weights,
    printable,
    progress_bar,
    show_table,
    split_names,
)
from sfumato.concealment.decoys import Decoys, load_decoys
from sfumato.errors import InputError
from sfumato.experiments.data.generated import open_posed_images, open_sequences
from sfumato.experiments.maps.localization import LocalizeProtocol, evaluate_localization, localization_table
from sfumato.experiments.maps.mapping import MapProtocol, evaluate_map, map_table
from sfumato.features.local import LocalParams
from sfumato.files.atomic import write_text
from sfumato.types.progress import StageProgress
from sfumato.types.record import Record

HOMOGRAPHY, MAP, LOCALIZE, LOCAL = HomographyProtocol(), MapProtocol(), LocalizeProtocol(), LocalParams()

Seeds = Annotated[
    str, typer.Option(help="Number of seeds of the liftings (3 means 0, 1 and 2), or a list of seeds, e.g. 7,8 or 7,")
]
DecoyFile = Annotated[
    Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="A folder for results, records, table and figure.")]
PosedFolder = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="Posed images: images/ and cameras.json. Default: a rendered room."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Measure again what was measured before.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions(FileOptions):
    """Options of an evaluation that keeps its results in a folder."""

    overwrite: Overwrite = False
    output: Output = Path("evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions(EvaluationOptions):
    """Options of an evaluation that compares recipes."""

    recipes: Recipes = "raw"
    seeds: Seeds = "1"

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """The recipes to compare."""
        return split_names(self.recipes)

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds of the liftings."""
        return read_seeds(self.seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """Options of the features of evaluated images."""

    detector: Detector = LOCAL.detector
    descriptor: Descriptor = LOCAL.descriptor
    weights: Weights = None
    max_features: Annotated[
        int, typer.Option("--max-features", "--features", help="Keep the strongest features of each image.")
    ] = LOCAL.max_features
    decoys: DecoyFile = None

    @property
    def params(self) -> LocalParams:
        """The settings of extraction, checked."""
        return LocalParams(
            detector=self.detector,
            descriptor=self.descriptor,
            weights=self.weights,
            max_features=self.max_features,
        )


def homography(
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="Sequences laid out as HPatches or Oxford. Default: sample photos seen through known homographies.",
        ),
    ] = None,
    distance: Annotated[
        str, typer.Option(help="p-to-s (image 1 clear, the other lifted), s-to-s (both lifted), or p-to-s,s-to-s.")
    ] = ",".join(DISTANCES),
    parts: Annotated[
        str,
        typer.Option(
            help=f"Parts of the decoys that two images draw, for sub-* and s-to-s: {', '.join(PARTS)} (of both cases)."
        ),
    ] = HOMOGRAPHY.parts,
    local: ImageOptions = ImageOptions(),
    options: RecipeOptions = RecipeOptions(recipes=",".join(HOMOGRAPHY.recipes)),
) -> None:
    """Measure how accurately images related by a homography are matched (section 4.1.2 of the paper).

    Image 1 of each sequence is matched with every other one. The table shows the mean over pairs of the share of
    correct mutual nearest matches, at 1 to 10 pixels, beside matches and correct matches. Pairs measured before are not
    measured again; an interrupted run resumes.

    Example: sfumato evaluate homography hpatches/ --recipes raw,sub-hybrid-2 --seeds 5 -o results/
    """
    protocol = HomographyProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        parts=parts,
        local=local.params,
    )
    records = evaluate_homography(
        open_sequences(data, options.output),
        options.output,
        protocol,
        read_decoys(local.decoys),
        progress=options.bar("matching"),
        overwrite=options.overwrite,
    )
    stem = options.output / f"homography-{local.descriptor}"
    measured = [record for record in records if record.scores]
    figures = draw_accuracy(measured, stem, f"Matching accuracy, {local.descriptor}") if measured else ()
    report(records, homography_table(records), stem, figures, as_json=options.as_json)


def map_(
    data: PosedFolder = None,
    mapper: Annotated[str, typer.Option(help="incremental, or global: all images at once.")] = MAP.mapper,
    local: ImageOptions = ImageOptions(),
    options: RecipeOptions = RecipeOptions(recipes=",".join(MAP.recipes)),
) -> None:
    """Measure what concealing costs a map (section 4.1.3 of the paper).

    All images are concealed, matched with each other, and mapped with the true intrinsics; the map is compared with the
    true poses. The table shows the figures of the paper's Table 1, verified matches and median errors.

    Example: sfumato evaluate map fountain-P11/ --recipes raw,sub-hybrid-2 -o results/
    """
    protocol = MapProtocol(recipes=options.recipe_names, seeds=options.seed_numbers, mapper=mapper, local=local.params)
    results = evaluate_map(
        open_posed_images(data, options.output),
        options.output,
        protocol,
        read_decoys(local.decoys),
        progress=stages(options.is_silent),
        overwrite=options.overwrite,
    )
    for result in results:
        recipe, missing = result.record.params["recipe"], ", ".join(result.unregistered)
        if result.reason:
            print(printable(f"{recipe}: no map: {result.reason}"), file=sys.stderr)
        elif missing:
            print(printable(f"{recipe}: not in the map: {missing}"), file=sys.stderr)
    records = [result.record for result in results]
    stem = options.output / f"map-{local.descriptor}"
    report(records, map_table(records), stem, (), as_json=options.as_json)


def localize(
    data: PosedFolder = None,
    distance: Annotated[
        str, typer.Option(help="p-to-s (concealed query, public map), s-to-s (both concealed), or p-to-s,s-to-s.")
    ] = ",".join(LOCALIZE.distances),
    local: ImageOptions = ImageOptions(),
    options: RecipeOptions = RecipeOptions(recipes=",".join(LOCALIZE.recipes)),
) -> None:
    """Measure what concealing costs localization (appendix C of the paper).

    Each image in turn is left out, concealed, and localized in a map of the others, triangulated from their true poses.
    The table shows the shares within (0.25 m, 2 deg), (0.5 m, 5 deg) and (5 m, 10 deg), and median errors.

    Example: sfumato evaluate localize fountain-P11/ --recipes raw,sub-hybrid-16 -o results/
    """
    protocol = LocalizeProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        local=local.params,
    )
    records = evaluate_localization(
        open_posed_images(data, options.output),
        options.output,
        protocol,
        read_decoys(local.decoys),
        progress=stages(options.is_silent),
        overwrite=options.overwrite,
    )
    stem = options.output / f"localize-{local.descriptor}"
    report(records, localization_table(records), stem, (), as_json=options.as_json)


def read_decoys(path: Path | None) -> Decoys | None:
    """Read a decoys file, if there is one; without one SIFT gets the bundled decoys."""
    return None if path is None else load_decoys(path)


def stages(hidden: bool) -> StageProgress:
    """Return a progress that shows one bar per stage."""
    return lambda stage, items, total: progress_bar(stage, total, quiet=hidden)(items)


def report(records: Sequence[Record], table: Table, stem: Path, figures: Sequence[Path], *, as_json: bool) -> None:
    """Write the table beside the records, print the table or the records, and name left-out samples.

    Raises InputError, and writes no table, if nothing was measured.
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
        show_table(table)
        names = ", ".join(path.name for path in (*figures, stem.with_name(f"{stem.name}.md")))
        print(f"{len(records)} records in {stem.parent}, with {names} and {stem.name}.csv")


def read_seeds(text: str) -> tuple[int, ...]:
    """Read a number of seeds, or a list of them with commas.

    >>> read_seeds("3"), read_seeds("7,")
    ((0, 1, 2), (7,))
    """
    try:
        numbers = tuple(int(word) for word in split_names(text))
    except ValueError as cause:
        raise InputError(f"--seeds: expected a number, or a list with commas, got {text!r:.80}") from cause
    if "," in text:
        return numbers
    if len(numbers) != 1 or not 1 <= numbers[0] <= 1000:
        raise InputError(f"--seeds: expected 1 to 1000 seeds, or a list with commas, got {text!r:.80}")
    return tuple(range(numbers[0]))


def read_numbers(text: str, kind: type[int] | type[float], option: str) -> tuple[float, ...]:
    """Read a list of numbers with commas; InputError names the option."""
    try:
        return tuple(kind(word) for word in split_names(text))
    except ValueError as cause:
        raise InputError(f"{option}: expected numbers with commas, got {text!r:.80}") from cause
