# SPDX-License-Identifier: Apache-2.0
"""sfumato export: concealed features and matches as hloc and COLMAP read them; and what an owner publishes."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from sfumato.cli.options import (
    AsJson,
    ExtractorName,
    LocalOptions,
    Quiet,
    Workers,
    printable,
    progress_bar,
    quantity,
    tell,
)
from sfumato.errors import InputError
from sfumato.features.sources import FeatureSource, open_source
from sfumato.geometry.hloc import HlocOutcome, export_hloc
from sfumato.geometry.mapping import export_colmap
from sfumato.publish import export_clear, publish_points
from sfumato.store.archive import load

WARNING = (
    "this publishes clear descriptors: anyone who has the file can reconstruct pictures of the place from them and the "
    "map, and a publication cannot be taken back. Concealed landmarks of the same points then protect nothing. Add "
    "--yes to publish"
)


def hloc(
    source: Annotated[
        Path, typer.Argument(help="The archive, e.g. private.sfm; with --clear photos or clear features.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to, e.g. hloc/.")],
    matches: Annotated[
        Path | None, typer.Argument(help="Matches of its images, e.g. matches.h5. Default: features only.")
    ] = None,
    with_subspaces: Annotated[
        bool, typer.Option("--with-subspaces", help="Add the subspaces, for a matcher of your own inside hloc.")
    ] = False,
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Write clear descriptors of photos or clear features. Keep them to yourself."),
    ] = False,
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write features.h5, matches.h5 and pairs.txt, on which unmodified hloc runs.

    From an archive no descriptor is written: hloc maps and localizes from keypoints and matches.
    See 'sfumato help own_features'.

    Example: sfumato export hloc private.sfm matches.h5 -o hloc/
    """
    if clear:
        if matches is not None or with_subspaces:
            raise InputError("--clear writes clear features alone: leave out the matches and --with-subspaces")
        images = open_source(source, params=local.params, extractor=extractor, workers=workers)
        bar = progress_bar("extracting", len(images), quiet=quiet or as_json)
        outcome, unreadable = export_clear(images, output, overwrite=overwrite, progress=bar)
        for name, reason in unreadable.items():
            print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
        _report(outcome, output, unreadable, what="clear features", as_json=as_json)
        return
    with load(source) as archive:
        bar = progress_bar("exporting", len(archive), quiet=quiet or as_json)
        outcome = export_hloc(
            archive, matches, output, with_subspaces=with_subspaces, overwrite=overwrite, progress=bar
        )
    _report(outcome, output, {}, what="features without descriptors", as_json=as_json)


def colmap(
    archive: Annotated[Path, typer.Argument(help="The archive, e.g. private.sfm.")],
    matches: Annotated[Path, typer.Argument(help="Matches of its images, e.g. matches.h5.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The database to write, e.g. database.db.")],
    cameras: Annotated[
        Path | None, typer.Option(help="A list of cameras, as 'sfumato map' takes it. Default: guessed from sizes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a COLMAP database with keypoints, cameras and matches, on which unmodified COLMAP verifies and maps.

    No descriptor is written: COLMAP's own matching finds nothing in it. See 'sfumato help own_features'.

    Example: sfumato export colmap private.sfm matches.h5 -o database.db
    """
    done = export_colmap(archive, matches, output, cameras)
    for name, reason in done.unreadable.items():
        print(printable(f"skipped {name}: {reason}"), file=sys.stderr)
    facts = {
        "images": done.images,
        "features": done.features,
        "pairs": done.pairs,
        "matches": done.matches,
        "guessed cameras": len(done.guessed),
        "unreadable": dict(done.unreadable),
        "output": str(output),
    }
    guessed = f", {quantity(len(done.guessed), 'camera')} guessed" if done.guessed else ""
    tell(
        f"{done.features} keypoints of {quantity(done.images, 'image')}, {quantity(done.pairs, 'pair')} with "
        f"{quantity(done.matches, 'match', 'es')}{guessed}: {output}",
        facts,
        as_json=as_json,
    )


def public(
    source: Annotated[Path, typer.Argument(help="The photos that were mapped, or their clear features.")],
    map_folder: Annotated[Path, typer.Option("--map", help="The map that was made from them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, e.g. public-points.sqlite.")],
    yes: Annotated[bool, typer.Option("--yes", help="Yes, publish these descriptors in the clear.")] = False,
    local: LocalOptions = LocalOptions(),
    extractor: ExtractorName = None,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Publish the clear descriptors of mapped points, so that others can be localized against them.

    Runs on the device that owns the photos. Queries stay concealed: they are compared point to subspace, which works at
    high dimensions too. Only features that see a mapped point are written, and only with --yes.

    Example: sfumato export public photos/ --map model/ -o public-points.sqlite --yes
    """
    if not yes:
        raise InputError(WARNING)
    images: FeatureSource = open_source(source, params=local.params, extractor=extractor, workers=workers)
    done = publish_points(
        images, map_folder, output, overwrite=overwrite,
        progress=progress_bar("extracting", None, quiet=quiet or as_json),
    )  # fmt: skip
    for name in done.missing:
        print(printable(f"not published {name}: it is in the map and not in {source}"), file=sys.stderr)
    for name, reason in done.unreadable.items():
        print(printable(f"not published {name}: {reason}"), file=sys.stderr)
    size = output.stat().st_size
    facts = {
        "images": done.images,
        "points": done.points,
        "descriptors": done.descriptors,
        "missing": done.missing,
        "unreadable": done.unreadable,
        "output": str(output),
        "bytes": size,
    }
    left = len(done.missing) + len(done.unreadable)
    note = f", {quantity(left, 'image')} of the map not published" if left else ""
    tell(
        f"published {done.descriptors} clear descriptors of {done.points} points in "
        f"{quantity(done.images, 'image')}{note}: {output} ({decimal(size)})",
        facts,
        as_json=as_json,
    )


def _report(outcome: HlocOutcome, output: Path, unreadable: dict[str, str], *, what: str, as_json: bool) -> None:
    for name in outcome.without_size:
        print(
            printable(f"size of {name} is not known: hloc's matchers ask for it, its mapping does not"), file=sys.stderr
        )
    facts = {
        "images": outcome.images,
        "features": outcome.features,
        "pairs": outcome.pairs,
        "matches": outcome.matches,
        "without size": outcome.without_size,
        "unreadable": unreadable,
        "files": [str(path) for path in outcome.files],
    }
    matched = quantity(outcome.matches, "match", "es")
    pairs = f", {quantity(outcome.pairs, 'pair')} with {matched}" if outcome.pairs else ""
    names = ", ".join(path.name for path in outcome.files)
    lost = f", {len(unreadable)} unreadable" if unreadable else ""
    tell(
        f"{outcome.features} {what} of {quantity(outcome.images, 'image')}{pairs}{lost}: {output} ({names})",
        facts,
        as_json=as_json,
    )
