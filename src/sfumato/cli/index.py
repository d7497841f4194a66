# SPDX-License-Identifier: Apache-2.0
"""sfumato index: build, search, add, remove. Concealed features in, an index or the nearest entries out."""

import csv
import io
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.match import counted
from sfumato.cli.options import AsJson, Quiet, human_size, one_of, printable, progress_bar, tell
from sfumato.codebooks import first_header
from sfumato.concealment.decoy_file import load_decoys
from sfumato.device import bundled_decoys
from sfumato.errors import DecoyError, FileError, InputError
from sfumato.files.atomic import locked, write_text
from sfumato.search.archives import Answer, add_images, index_images, place_of, remove_images, search_images, votes
from sfumato.search.factory import KINDS, load
from sfumato.search.index import Index
from sfumato.store import load as load_archive

SHOWN = 3

IndexFile = Annotated[Path, typer.Argument(help="The index, e.g. x.index.")]


def build(
    archive: Annotated[Path, typer.Argument(help="The archive to index, e.g. private.sfm.h5.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The index to write, e.g. x.index.")],
    kind: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.", autocompletion=one_of(KINDS))] = "inverted",
    points: Annotated[
        Path | None,
        typer.Option(help="For inverted: a decoys file to make the cells of. SIFT and RootSIFT need none."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make an index of all features of an archive, to be asked for the nearest of others.

    The kind inverted is the fast one; exact compares with every entry; grassmann and projector are published methods to
    compare with.

    Example: sfumato index build private.sfm.h5 -o x.index
    """
    _refuse(output, overwrite, archive, points)
    if points is not None and kind != "inverted":
        raise InputError(f"--points is for the kind inverted, not for {kind}")
    with load_archive(archive) as images:
        params = {"points": _public_points(images, points)} if kind == "inverted" else None
        index = index_images(
            images, kind, params, progress=progress_bar("reading", len(images), quiet=quiet or as_json)
        )
    index.save(output)
    _tell_index(index, output, as_json, f"{counted(len(index), 'feature')} of {counted(_images(index), 'image')}")


def search(
    index_file: IndexFile,
    queries: Annotated[Path, typer.Argument(help="The archive of queries, e.g. query.sfm.h5.")],
    k: Annotated[int, typer.Option("-k", help="How many of the nearest entries of each feature.")] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A table to write, a line for every entry found, e.g. x.csv.")
    ] = None,
    effort: Annotated[
        float | None, typer.Option(help="From 0 to 1: more finds more and takes longer. Default: that of the kind.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a table that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the nearest entries of every feature of an archive of queries.

    Tells for each query the images that most of its features are nearest to; the table has every entry: query, feature,
    rank, image, feature there, distance.

    Example: sfumato index search x.index query.sfm.h5 -k 5 -o nearest.csv
    """
    if output is not None:
        _refuse(output, overwrite, index_file, queries)
    index = load(index_file)
    with load_archive(queries) as images:
        bar = progress_bar("searching", len(images), quiet=quiet or as_json)
        answers = list(search_images(index, images, k, effort, progress=bar))
    if output is not None:
        write_text(output, _table(index, answers))
    _tell_answers(index, answers, output, as_json)


def add(
    index_file: IndexFile,
    archive: Annotated[Path, typer.Argument(help="The archive with more images.")],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Add the images of an archive to an index, without building it anew.

    Example: sfumato index add x.index more.sfm.h5
    """
    with locked(index_file), load_archive(archive) as images:
        index = load(index_file)
        bar = progress_bar("reading", len(images), quiet=quiet or as_json)
        count = add_images(index, images, progress=bar)
        index.save(index_file)
    _tell_index(index, index_file, as_json, f"{counted(count, 'feature')} added, {len(index)} in all")


def remove(
    index_file: IndexFile,
    names: Annotated[list[str], typer.Argument(help="The images to take out.")],
    as_json: AsJson = False,
) -> None:
    """Take images out of an index: they are not found any more. Build it anew to get back the space.

    Example: sfumato index remove x.index db/1.jpg
    """
    with locked(index_file):
        index = load(index_file)
        count = remove_images(index, names)
        index.save(index_file)
    _tell_index(index, index_file, as_json, f"{counted(count, 'feature')} removed, {len(index)} left")


def _refuse(output: Path, overwrite: bool, *read: Path | None) -> None:
    """Refuse to replace what is there unless asked, and what is read in any case."""
    for path in read:
        if path is not None and output.exists() and path.exists() and output.samefile(path):
            raise InputError(f"{output} is read by this command: choose another output")
    if output.exists() and not overwrite:
        raise FileError(f"{output} exists: choose another path, or --overwrite")


def _public_points(images: Any, given: Path | None) -> Any:
    """Return public descriptors like the hidden ones, from a file or bundled; None where there are none."""
    if given is not None:
        return load_decoys(given).descriptors
    header = first_header(images)
    if header is None or header.recipe.has_encoder:
        return None
    try:
        points = bundled_decoys(header).descriptors
    except DecoyError:
        return None
    return points if points.shape[1] == header.ambient_dim else None


def _images(index: Index) -> int:
    return len(index.entries.names)


def _tell_index(index: Index, path: Path, as_json: bool, what: str) -> None:
    size = path.stat().st_size
    facts = {"kind": index.kind, "metric": index.metric, "entries": len(index), "dimensions": index.dim,
             "images": _images(index), "bytes": size, "output": str(path)}  # fmt: skip
    tell(f"{what}, {index.kind}, {human_size(size)}: {path}", facts, as_json=as_json)


def _tell_answers(index: Index, answers: list[Answer], output: Path | None, as_json: bool) -> None:
    found = {answer.name: votes(index, answer) for answer in answers}
    if not as_json:
        for name, images in found.items():
            named = ", ".join(f"{image} ({count})" for image, count in images[:SHOWN]) or "nothing"
            print(printable(f"{name}: nearest to {named}"))
    stats = [answer.stats for answer in answers]
    queries, empty = sum(one.queries for one in stats), sum(one.empty for one in stats)
    facts = {
        "queries": {name: dict(images[:10]) for name, images in found.items()},
        "features": queries,
        "looked at": sum(one.looked_at for one in stats),
        "compared exactly": sum(one.evaluated for one in stats),
        "without answer": empty,
        "output": None if output is None else str(output),
    }
    if empty:
        print(f"{counted(empty, 'feature')} found no entry: a greater --effort looks further", file=sys.stderr)
    where = "" if output is None else f": {output}"
    tell(f"{counted(queries, 'feature')} of {counted(len(answers), 'image')} searched{where}", facts, as_json=as_json)


def _table(index: Index, answers: list[Answer]) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["query", "feature", "rank", "image", "image feature", "distance"])
    for answer in answers:
        for feature, (distances, ids) in enumerate(zip(answer.distances, answer.ids, strict=True)):
            for rank, (distance, entry) in enumerate(zip(distances, ids, strict=True), 1):
                if entry >= 0:
                    writer.writerow([answer.name, feature, rank, *place_of(index, int(entry)), f"{distance:.7g}"])
    return lines.getvalue()
