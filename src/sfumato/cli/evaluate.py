# SPDX-License-Identifier: Apache-2.0
"""Commands ``sfumato evaluate homography``, ``map`` and ``localize``: what concealed features are still good for."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sfumato.auditing.matching import HomographyProtocol, draw_accuracy, evaluate_homography, homography_table
from sfumato.auditing.subjects import DISTANCES, PARTS, settled
from sfumato.auditing.tables import Table
from sfumato.cli.options import (
    Descriptor,
    FileOptions,
    PhotoExtractor,
    Recipes,
    Weights,
    one_of,
    printable,
    progress_bar,
    show_table,
    split_names,
)
from sfumato.concealment.decoys import Decoys, load_decoys
from sfumato.errors import InputError
from sfumato.experiments.data.folders import PosedImages, UnposedImages
from sfumato.experiments.data.generated import open_scenes, open_sequences
from sfumato.experiments.maps.localization import (
    LocalizeProtocol,
    NoReferenceMap,
    evaluate_localization,
    localization_table,
)
from sfumato.experiments.maps.mapping import CAMERAS, MapProtocol, evaluate_map, map_table, map_tables
from sfumato.experiments.maps.scene import short_name
from sfumato.features.local import LocalParams, extractor_of
from sfumato.files.atomic import write_text
from sfumato.types.progress import StageProgress
from sfumato.types.record import Record

HOMOGRAPHY, MAP, LOCALIZE, LOCAL = HomographyProtocol(), MapProtocol(), LocalizeProtocol(), LocalParams()
CLEAR_RATIO = 0.8
"""Clear descriptors are matched with the usual ratio test too (Lowe 2004), as programs do."""

Seeds = Annotated[
    str, typer.Option(help="Number of seeds of the liftings (3 means 0, 1 and 2), or a list of seeds, e.g. 7,8 or 7,")
]
DecoyFile = Annotated[
    Path | None, typer.Option(help="Decoys made by 'sfumato decoys build'. Default: the bundled ones, for SIFT.")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="A folder for results, records, table and figure.")]
SceneFolders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="DIR",
        help="Folders of photos, each of one scene; posed ones have images/ and cameras.json. Default: a room.",
    ),
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

    extractor: PhotoExtractor = LOCAL.extractor
    descriptor: Descriptor = LOCAL.descriptor
    weights: Weights = None
    max_features: Annotated[
        int, typer.Option("--max-features", "--features", help="Keep this many features of each image.")
    ] = LOCAL.max_features
    decoys: DecoyFile = None

    @property
    def params(self) -> LocalParams:
        """The settings of extraction, checked."""
        return LocalParams(
            extractor=self.extractor,
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
    correct mutual nearest matches, at 1 to 10 pixels, beside matches and correct matches. Clear descriptors are matched
    with the ratio test as well. Pairs measured before are not
    measured again; an interrupted run resumes.

    Example: sfumato evaluate homography hpatches/ --recipes raw,sub-hybrid-2 --seeds 5 -o results/
    """
    protocol = HomographyProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        parts=parts,
        clear_ratio=CLEAR_RATIO,
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
    table = homography_table(records)
    kind = extractor_of(protocol.local).name
    names = {str(settled(name, kind)): short_name(name) for name in protocol.recipes}
    brief = table.without("descriptor").without_single_seeds().rename(names)
    title = f"{local.descriptor}, accuracy within so many pixels"
    report(records, table, stem, figures, as_json=options.as_json, shown={title: brief})


def map_(
    data: SceneFolders = None,
    mapper: Annotated[str, typer.Option(help="The mapper, as in sfumato map.")] = MAP.mapper,
    cameras: Annotated[
        str,
        typer.Option(
            help="guessed: focal lengths from EXIF or guessed, as a user has them; known: those of cameras.json.",
            autocompletion=one_of(CAMERAS),
        ),
    ] = MAP.cameras,
    local: ImageOptions = ImageOptions(),
    options: RecipeOptions = RecipeOptions(recipes=",".join(MAP.recipes)),
) -> None:
    """Measure what concealing costs a map (section 4.1.3 of the paper), beside plain COLMAP on the same photos.

    The photos of each folder are extracted, concealed, matched and mapped as a user does it, and the map is compared
    with the one that plain COLMAP makes of the same photos, and with the truth where the folder has it. The tables show
    images, points, tracks, differences and speed. What was measured before is not measured again.

    Example: sfumato evaluate map photos/castle photos/bridge --recipes raw,default,sub-hybrid-2 -o results/
    """
    protocol = MapProtocol(
        recipes=options.recipe_names,
        seeds=options.seed_numbers,
        mapper=mapper,
        local=local.params,
        cameras=cameras,
    )
    records: list[Record] = []
    for name, images in _open_scenes(data, options.output).items():
        results = evaluate_map(
            images,
            options.output,
            protocol,
            read_decoys(local.decoys),
            name=name,
            progress=stages(options.is_silent),
            overwrite=options.overwrite,
        )
        for result in results:
            row = f"{name}: {result.record.params['row']}"
            if result.reason:
                print(printable(f"{row}: no map: {result.reason}"), file=sys.stderr)
            elif result.unregistered:
                print(printable(f"{row}: not in the map: {', '.join(result.unregistered)}"), file=sys.stderr)
            if result.doubt:
                print(printable(f"{row}: doubt: {result.doubt}"), file=sys.stderr)
        records += [result.record for result in results]
    table, tables = map_table(records), map_tables(records)
    report(records, table, options.output / "map", (), as_json=options.as_json, shown=tables)


def localize(
    data: SceneFolders = None,
    distance: Annotated[
        str, typer.Option(help="s-to-s (both concealed), p-to-s (concealed query, public map), or p-to-s,s-to-s.")
    ] = ",".join(LOCALIZE.distances),
    local: ImageOptions = ImageOptions(),
    options: RecipeOptions = RecipeOptions(recipes=",".join(LOCALIZE.recipes)),
) -> None:
    """Measure what concealing costs localization (appendix C of the paper).

    Each image in turn is left out, concealed, and localized in a map of the others, triangulated from their true poses,
    or, without cameras.json, from those that plain COLMAP finds. The table shows how many are localized, how many poses
    are false (more than 5 degrees or a tenth of the scene off), median errors, and recall where metres are known.

    Example: sfumato evaluate localize photos/castle fountain-P11/ --recipes raw,default -o results/
    """
    protocol = LocalizeProtocol(
        recipes=options.recipe_names,
        distances=split_names(distance),
        seeds=options.seed_numbers,
        local=local.params,
    )
    records: list[Record] = []
    for name, images in _open_scenes(data, options.output).items():
        try:
            records += evaluate_localization(
                images,
                options.output,
                protocol,
                read_decoys(local.decoys),
                name=name,
                progress=stages(options.is_silent),
                overwrite=options.overwrite,
            )
        except NoReferenceMap as problem:
            print(printable(f"left out: {problem}"), file=sys.stderr)
    table = localization_table(records)
    report(records, table, options.output / "localize", (), as_json=options.as_json, shown={"": table})


def _open_scenes(folders: list[Path] | None, output: Path) -> dict[str, PosedImages | UnposedImages]:
    """Read folders of photos, or render a room; photos that cannot be read are named on standard error."""
    scenes = open_scenes(folders or (), output)
    for name, images in scenes.items():
        for photo, problem in images.unreadable.items() if isinstance(images, UnposedImages) else ():
            print(printable(f"{name}: left out {photo}: {problem}"), file=sys.stderr)
    return scenes


def read_decoys(path: Path | None) -> Decoys | None:
    """Read a decoys file, if there is one; without one SIFT gets the bundled decoys."""
    return None if path is None else load_decoys(path)


def stages(hidden: bool) -> StageProgress:
    """Return a progress that shows one bar per stage."""
    return lambda stage, items, total: progress_bar(stage, total, quiet=hidden)(items)


def report(
    records: Sequence[Record],
    table: Table,
    stem: Path,
    figures: Sequence[Path],
    *,
    as_json: bool,
    shown: Mapping[str, Table] | None = None,
) -> None:
    """Write the table beside the records, print the table or the records, and name left-out samples.

    ``shown``: tables by title, in place of the table, for pages and, as wide as 80 letters, for terminals.

    Raises InputError, and writes no table, if nothing was measured.
    """
    dropped = list(dict.fromkeys(line for record in records for line in record.dropped))
    for line in dropped:
        print(printable(f"left out: {line}"), file=sys.stderr)
    if not any(record.scores for record in records):
        raise InputError(f"{stem.parent}: nothing could be measured, so no table is written; see what was left out")
    parts = {"": table} if shown is None else shown
    text = "\n".join(
        f"{title}:\n\n{part.to_markdown()}" if title else part.to_markdown() for title, part in parts.items()
    )
    write_text(stem.with_name(f"{stem.name}.md"), text, with_folder=True)
    write_text(stem.with_name(f"{stem.name}.csv"), table.to_csv(), with_folder=True)
    if as_json:
        print(json.dumps([json.loads(record.to_json()) for record in records], indent=2, sort_keys=True))
        return
    if shown is None:
        show_table(table)
    else:
        for title, part in shown.items():
            if title:
                print(f"{title}:")
            folded = part.fold() if part.columns[0] == "scene" else part
            for piece in folded.split(keys=2 if "distance" in folded.columns else 1):
                show_table(piece)
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
