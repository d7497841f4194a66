# SPDX-License-Identifier: Apache-2.0
"""sfumato match: an archive of concealed features in, matches of its image pairs out, as hloc reads them."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.options import AsJson, Quiet
from sfumato.cli.output import human_size, printable, progress_bar, tell
from sfumato.errors import InputError
from sfumato.matching.executors import TlsFiles, dask_cluster, local_processes
from sfumato.matching.many import IN_FLIGHT
from sfumato.matching.match import MatchParams
from sfumato.matching.pairs import PairList, exhaustive, read_pairs, sequential
from sfumato.matching.tofile import MatchOutcome, match_to_file
from sfumato.store import Archive, load

DEFAULTS = MatchParams()


def run(
    archive: Annotated[Path, typer.Argument(help="The archive, e.g. private.sfm.h5.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The match file to write, e.g. matches.h5.")],
    pairs: Annotated[Path | None, typer.Option(help="A file with two image names a line, as hloc writes it.")] = None,
    all_pairs: Annotated[bool, typer.Option("--exhaustive", help="Every image with every other.")] = False,
    following: Annotated[
        int | None, typer.Option("--sequential", help="Each image with the so many next ones by name, as in a video.")
    ] = None,
    mutual: Annotated[
        bool, typer.Option("--mutual/--one-way", help="Only pairs of features that are nearest to each other.")
    ] = DEFAULTS.mutual,
    ratio: Annotated[
        float | None, typer.Option(help="At most this times as far as the second nearest, e.g. 0.8.")
    ] = DEFAULTS.ratio,
    max_distance: Annotated[float | None, typer.Option(help="No farther than this.")] = DEFAULTS.max_distance,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process. Default: the cores there are, 1 with workers.")
    ] = DEFAULTS.threads,
    device: Annotated[str | None, typer.Option(help="cuda, or cpu. Default: this machine's cores.")] = DEFAULTS.device,
    workers: Annotated[int, typer.Option(help="Processes of this machine.")] = 1,
    dask: Annotated[
        str | None, typer.Option(help="Address of a dask scheduler, e.g. tls://host:8786: its workers do the work.")
    ] = None,
    dask_ca: Annotated[str | None, typer.Option(help="For tls://: certificate of the authority.")] = None,
    dask_cert: Annotated[str | None, typer.Option(help="For tls://: own certificate.")] = None,
    dask_key: Annotated[str | None, typer.Option(help="For tls://: own key.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start anew instead of adding what is missing.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Match the images of an archive, pair by pair, without a clear descriptor.

    Pairs that are in the match file already are skipped; an interrupted run goes on where it stopped. The file is
    hloc's matches.h5 with the distances added: see docs/matches.md.

    Example: sfumato match private.sfm.h5 --exhaustive -o matches.h5
    """
    params = MatchParams(mutual=mutual, ratio=ratio, max_distance=max_distance, threads=threads, device=device)
    with load(archive) as opened:
        wanted = choose_pairs(opened, pairs, all_pairs, following)
        with hands(workers, dask, TlsFiles(authority=dask_ca, certificate=dask_cert, key=dask_key)) as (pool, ahead):
            outcome = match_to_file(
                opened,
                wanted,
                output,
                params,
                pool,
                overwrite=overwrite,
                progress=lambda items, total: progress_bar(
                    "matching", total, quiet=quiet or as_json, unit="pairs"
                )(items),
                in_flight=ahead,
            )  # fmt: skip
    report(wanted, outcome, output, as_json=as_json)
    if outcome.failed:
        raise typer.Exit(1)


def choose_pairs(archive: Archive, pairs: Path | None, all_pairs: bool, following: int | None) -> PairList:
    """Return the one list of pairs that was asked for."""
    asked = [name for name, given in (("--pairs", pairs is not None), ("--exhaustive", all_pairs),
                                      ("--sequential", following is not None)) if given]  # fmt: skip
    if len(asked) != 1:
        count = len(archive)
        raise InputError(
            f"say which images to match, with one of --pairs FILE, --exhaustive ({count * (count - 1) // 2} pairs of "
            f"these {count} images) or --sequential N; {' and '.join(asked) or 'none of them'} was given"
        )
    if pairs is not None:
        return read_pairs(pairs, archive)
    return exhaustive(archive) if following is None else sequential(archive, following)


@contextmanager
def hands(workers: int, dask: str | None, tls: TlsFiles) -> Iterator[tuple[Executor | None, int]]:
    """Give who does the work, None for this process, and how many parcels may be under way."""
    if workers < 1:
        raise InputError(f"--workers: expected 1 or more, got {workers}")
    if dask is not None and workers != 1:
        raise InputError("--workers are processes of this machine, --dask brings its own: give one of the two")
    if dask is None and tls != TlsFiles():
        raise InputError("--dask-ca, --dask-cert and --dask-key need --dask with the address of a scheduler")
    if dask is not None:
        with dask_cluster(dask, tls) as (executor, cores):
            if not logging.getLogger().isEnabledFor(logging.INFO):  # what matters comes as an error of ours
                for name in ("distributed", "distributed.client"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
            yield executor, max(IN_FLIGHT, 4 * cores)
    elif workers > 1:
        with local_processes(workers) as executor:
            yield executor, max(IN_FLIGHT, 4 * workers)
    else:
        yield None, IN_FLIGHT


def report(pairs: PairList, outcome: MatchOutcome, output: Path, *, as_json: bool) -> None:
    """Name what could not be matched on standard error, and say what was."""
    for reason, count in Counter(outcome.failed.values()).items():
        print(printable(f"{count} pairs not matched: {reason}"), file=sys.stderr)
    size = output.stat().st_size if output.exists() else 0
    mean = outcome.matches / outcome.pairs if outcome.pairs else 0.0
    notes = "".join(
        f", {count} {what}"
        for count, what in (
            (outcome.skipped, "pairs already there"),
            (pairs.duplicates, "named twice"),
            (pairs.selves, "of an image with itself left out"),
            (len(outcome.failed), "failed"),
        )
        if count
    )
    facts: dict[str, Any] = {
        "pairs": outcome.pairs,
        "matches": outcome.matches,
        "matches per pair": round(mean, 1),
        "pairs per second": round(outcome.pairs_per_second, 2),
        "skipped": outcome.skipped,
        "duplicates": pairs.duplicates,
        "selves": pairs.selves,
        "failed": [[*pair, reason] for pair, reason in outcome.failed.items()],
        "output": str(output),
        "bytes": size,
    }
    where = f"{output} ({human_size(size)})" if size else "nothing was written"
    tell(
        f"{outcome.pairs} pairs with {outcome.matches} matches ({mean:.1f} a pair, "
        f"{outcome.pairs_per_second:.1f} pairs/s){notes}: {where}",
        facts,
        as_json=as_json,
    )
