# SPDX-License-Identifier: Apache-2.0
"""sfumato index: build, search, add, remove. Concealed features in, an index or the nearest entries out."""

import csv
import io
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from sfumato.cli.options import AsJson, Quiet, one_of, printable, progress_bar, quantity, tell
from sfumato.codebooks import build_index
from sfumato.files.atomic import file_lock, write_text
from sfumato.search.archives import ImageAnswer, add_images, place_of, remove_images, search_images, votes
from sfumato.search.factory import KINDS, load, refuse_existing
from sfumato.search.index import Index
from sfumato.store.archive import load as load_archive

SHOWN = 3

IndexFile = Annotated[Path, typer.Argument(help="The index, e.g. x.index.")]


def build(
    archive: Annotated[Path, typer.Argument(help="The archive to index, e.g. private.sfm.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The index to write, e.g. x.index.")],
    kind: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(KINDS)}. Default: sketch for sealed archives, inverted for others.",
            autocompletion=one_of(KINDS),
        ),
    ] = None,
    points: Annotated[
        Path | None,
        typer.Option(help="For inverted: a decoys file from which the cells are made. SIFT and RootSIFT need none."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make an index of all features of an archive, which is then searched for the nearest of others.

    The kind sketch is the fast one for sealed features, inverted for others; exact compares with every entry; grassmann
    and projector are published methods to compare with, not for sealed features.

    Example: sfumato index build private.sfm -o x.index
    """
    with load_archive(archive) as images:
        bar = progress_bar("reading", len(images), quiet=quiet or as_json)
        index = build_index(images, output, kind, decoys=points, overwrite=overwrite, progress=bar)
    _tell_index(index, output, as_json, f"{quantity(len(index), 'feature')} of {quantity(_images(index), 'image')}")


def search(
    index_file: IndexFile,
    queries: Annotated[Path, typer.Argument(help="The archive of queries, e.g. query.sfm.")],
    k: Annotated[int, typer.Option("-k", help="Number of nearest entries per feature.")] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A table to write, a line per entry, e.g. x.csv.")
    ] = None,
    effort: Annotated[
        float | None, typer.Option(help="From 0 to 1: more finds more and takes longer. Default: that of the kind.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a table that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the nearest entries of every feature of an archive of queries.

    Prints for each query the images that most of its features are nearest to; the table has every entry: query,
    feature, rank, image, feature there, distance.

    Example: sfumato index search x.index query.sfm -k 5 -o nearest.csv
    """
    if output is not None:
        refuse_existing(output, [index_file, queries], overwrite=overwrite)
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

    Example: sfumato index add x.index more.sfm
    """
    with file_lock(index_file), load_archive(archive) as images:
        index = load(index_file)
        bar = progress_bar("reading", len(images), quiet=quiet or as_json)
        count = add_images(index, images, progress=bar)
        index.save(index_file)
    _tell_index(index, index_file, as_json, f"{quantity(count, 'feature')} added, {len(index)} in all")


def remove(
    index_file: IndexFile,
    names: Annotated[list[str], typer.Argument(help="The images to take out.")],
    as_json: AsJson = False,
) -> None:
    """Take images out of an index: they are not found any more. Build it anew to get back the space.

    Example: sfumato index remove x.index db/1.jpg
    """
    with file_lock(index_file):
        index = load(index_file)
        count = remove_images(index, names)
        index.save(index_file)
    _tell_index(index, index_file, as_json, f"{quantity(count, 'feature')} removed, {len(index)} left")


def _images(index: Index) -> int:
    return len(index.entries.names)


def _tell_index(index: Index, path: Path, as_json: bool, what: str) -> None:
    size = path.stat().st_size
    form = "bits" if index.entries.is_bits else "dimensions"
    facts = {"kind": index.kind, "metric": index.metric, "entries": len(index), form: index.dim,
             "images": _images(index), "bytes": size, "output": str(path)}  # fmt: skip
    tell(f"{what}, {index.kind}, {decimal(size)}: {path}", facts, as_json=as_json)


def _tell_answers(index: Index, answers: list[ImageAnswer], output: Path | None, as_json: bool) -> None:
    images_by_query = {answer.name: votes(index, answer) for answer in answers}
    if not as_json:
        for name, images in images_by_query.items():
            named = ", ".join(f"{image} ({count})" for image, count in images[:SHOWN]) or "nothing"
            print(printable(f"{name}: nearest to {named}"))
    stats = [answer.stats for answer in answers]
    queries, empty = sum(stat.queries for stat in stats), sum(stat.empty for stat in stats)
    facts = {
        "queries": {name: dict(images[:10]) for name, images in images_by_query.items()},
        "features": queries,
        "looked at": sum(stat.looked_at for stat in stats),
        "compared exactly": sum(stat.evaluated for stat in stats),
        "without answer": empty,
        "output": None if output is None else str(output),
    }
    if empty:
        print(f"{quantity(empty, 'feature')} found no entry: a greater --effort looks further", file=sys.stderr)
    where = "" if output is None else f": {output}"
    tell(f"{quantity(queries, 'feature')} of {quantity(len(answers), 'image')} searched{where}", facts, as_json=as_json)


def _table(index: Index, answers: list[ImageAnswer]) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(["query", "feature", "rank", "image", "image feature", "distance"])
    for answer in answers:
        for feature, (distances, ids) in enumerate(zip(answer.distances, answer.ids, strict=True)):
            for rank, (distance, entry) in enumerate(zip(distances, ids, strict=True), 1):
                if entry >= 0:
                    writer.writerow([answer.name, feature, rank, *place_of(index, int(entry)), f"{distance:.7g}"])
    return lines.getvalue()
