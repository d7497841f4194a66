# SPDX-License-Identifier: Apache-2.0
"""sfumato localize: concealed queries and a map in, camera poses out."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.codebook import codebook_for
from sfumato.cli.match import counted
from sfumato.cli.options import AsJson, Quiet
from sfumato.cli.output import printable, progress_bar, tell
from sfumato.errors import InputError, suggest
from sfumato.geometry.cameras import read_cameras
from sfumato.geometry.localize import LocalizeParams
from sfumato.geometry.maps import Map, load_map
from sfumato.geometry.queries import (
    QueriesOutcome,
    check_output,
    localize_queries,
    save_outcome,
    summarise,
)
from sfumato.geometry.shortlist import Shortlist, by_pairs, by_votes, every_image
from sfumato.store import load
from sfumato.types.scene import Camera

DEFAULTS = LocalizeParams()
SHOWN = 5


def run(
    queries: Annotated[Path, typer.Argument(help="The archive of queries, e.g. query.sfm.h5.")],
    map_folder: Annotated[Path, typer.Option("--map", help="The map: a folder made by 'sfumato map'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The list of poses to write, e.g. poses.txt.")],
    cameras: Annotated[
        Path | None,
        typer.Option(help="A line 'name MODEL width height parameters...' a query, as hloc has it. Default: guessed."),
    ] = None,
    public: Annotated[
        Path | None, typer.Option(help="Match with these public points instead of the map's concealed landmarks.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="A file with a query and an image of the map a line: what to compare.")
    ] = None,
    retrieval: Annotated[
        int | None, typer.Option(help="Compare each query with the so many likeliest images of the map.")
    ] = None,
    codebook: Annotated[
        Path | None,
        typer.Option(help="For --retrieval: a decoys file of the same descriptor. SIFT and RootSIFT need none."),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="For --retrieval of encoded features: the encoder's file. Bundled ones are found without."),
    ] = None,
    max_error: Annotated[float, typer.Option(help="Pixels within which a point is an inlier.")] = DEFAULTS.max_error_px,
    min_inliers: Annotated[int, typer.Option(help="Report no pose with fewer.")] = DEFAULTS.min_inliers,
    ratio: Annotated[
        float | None, typer.Option(help="Matches at most this times as far as the second nearest, e.g. 0.9.")
    ] = DEFAULTS.ratio,
    seed: Annotated[int, typer.Option(help="Makes the estimation repeatable.")] = DEFAULTS.seed,
    threads: Annotated[int | None, typer.Option(help="Default: the cores there are.")] = DEFAULTS.threads,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a list of poses that is there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find where pictures were taken, from their concealed features and a map.

    A query is compared with images of the map: those that --pairs names, the likeliest ones with --retrieval N, or all
    of a small map. The poses are written as hloc writes them (name qw qx qy qz tx ty tz, camera from world), and beside
    them a .json with inliers, and the reason for each query that has no pose. No pose is ever borrowed from the map. A
    camera with which much less agrees than with another focal length is doubted, and the query named.

    Example: sfumato localize query.sfm.h5 --cameras cameras.txt --map model/ -o poses.txt
    """
    params = LocalizeParams(max_error_px=max_error, min_inliers=min_inliers, ratio=ratio, seed=seed, threads=threads)
    read = {"the archive of queries": queries, "the list of cameras": cameras, "the file of public points": public,
            "the list of pairs": pairs, "the codebook": codebook, "the encoder": encoder}  # fmt: skip
    check_output(output, map_folder, read, overwrite=overwrite)
    given = {} if cameras is None else read_cameras(cameras)
    with ExitStack() as files:
        archive = files.enter_context(load(queries))
        map_ = files.enter_context(load_map(map_folder, public=public))
        outcome = localize_queries(
            archive,
            given,
            map_,
            choose_shortlist(map_, pairs, retrieval, (codebook, encoder), quiet=quiet or as_json),
            params,
            listable=True,
            progress=progress_bar("localizing", len(archive), quiet=quiet or as_json),
        )
        save_outcome(output, outcome, params, {"map": "public points" if map_.is_public else "concealed"})
    report(outcome, given, output, as_json=as_json)
    if outcome.unreadable or outcome.unlisted or outcome.damaged or not outcome.poses:
        raise typer.Exit(1)


def choose_shortlist(
    map_: Map,
    pairs: Path | None,
    retrieval: int | None,
    words: tuple[Path | None, Path | None] = (None, None),
    *,
    quiet: bool = True,
) -> Shortlist:
    """Return the one way of choosing images of the map that was asked for; ``words``: files of decoys and encoder."""
    if pairs is not None and retrieval is not None:
        raise InputError("--pairs names the images to compare with, --retrieval finds them: give one of the two")
    for option, given in zip(("--codebook", "--encoder"), words, strict=True):
        if given is not None and retrieval is None:
            raise InputError(f"{option} is for --retrieval, which was not asked for")
    if pairs is not None:
        return by_pairs(pairs)
    if retrieval is None:
        return every_image(map_.names)
    codebook = codebook_for(map_.landmarks(), *words)
    return by_votes(map_, retrieval, codebook, progress=progress_bar("voting", len(map_), quiet=quiet))


def report(outcome: QueriesOutcome, given: Mapping[str, Camera], output: Path, *, as_json: bool) -> None:
    """Name the queries without a pose, or with a doubtful one, on standard error, and say what was written."""
    warn_of_guesses(outcome, given)
    for name, reason in outcome.reasons.items():
        print(printable(f"no pose for {name}: {reason}"), file=sys.stderr)
    for name, doubt in outcome.doubts.items():
        print(printable(f"camera of {name} in doubt: {doubt}"), file=sys.stderr)
    for name, reason in outcome.damaged.items():
        print(printable(f"not compared with {name} of the map: {reason}"), file=sys.stderr)
    facts = {**summarise(outcome), "output": str(output), "table": str(output.with_suffix(".json"))}
    notes = "".join(
        f", {what}"
        for count, what in (
            (len(outcome.guessed), f"{counted(len(outcome.guessed), 'camera')} guessed from the image size"),
            (len(outcome.doubts), f"{counted(len(outcome.doubts), 'camera')} in doubt, their poses may be far off"),
            (len(outcome.strangers), f"{counted(len(outcome.strangers), 'candidate')} not in the map"),
            (len(outcome.unlisted), f"{len(outcome.unlisted)} left out because of their names"),
            (len(outcome.unreadable), f"{len(outcome.unreadable)} unreadable"),
            (len(outcome.damaged), f"{counted(len(outcome.damaged), 'damaged image')} of the map left out"),
        )
        if count
    )
    many = f"{facts['queries']} {'query' if facts['queries'] == 1 else 'queries'}"
    if facts["localized"]:
        line = f"{facts['localized']} of {many} localized (median {facts['median inliers']:.0f} inliers)"
    else:
        line = f"nothing was localized, 0 of {many}"
    tell(f"{line}{notes}: {output}", facts, as_json=as_json)


def warn_of_guesses(outcome: QueriesOutcome, given: Mapping[str, Camera]) -> None:
    """Name queries that have no camera where cameras were given."""
    if not given or not outcome.guessed:
        return
    spare = set(given) - set(outcome.results)
    told = ", ".join(f"{name!r:.80}{suggest(name, spare)}" for name in outcome.guessed[:SHOWN])
    more = f" and {len(outcome.guessed) - SHOWN} more" if len(outcome.guessed) > SHOWN else ""
    print(printable(f"no camera is given of {told}{more}: guessed from the image size"), file=sys.stderr)
