# SPDX-License-Identifier: Apache-2.0
"""sfumato match: an archive of concealed features in, matches of its image pairs out, as hloc reads them."""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli.options import AsJson, Quiet, human_size, printable, progress_bar, tell
from sfumato.codebooks import codebook_for
from sfumato.errors import InputError
from sfumato.matching.executors import TlsFiles, dask_cluster, local_processes
from sfumato.matching.journal import refuse_inputs
from sfumato.matching.many import IN_FLIGHT
from sfumato.matching.match_archive import MatchOutcome, check_device, match_to_file
from sfumato.matching.mutual import MatchParams
from sfumato.matching.pairs import exhaustive, read_pairs, sequential
from sfumato.matching.retrieval import RetrievalParams, Shortlist, shortlist
from sfumato.store import Archive, load

DEFAULTS = MatchParams()
Progress = Callable[[Iterable[Any]], Iterable[Any]]


def match(
    archive: Annotated[Path, typer.Argument(help="The archive, e.g. private.sfm.h5.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The match file to write, e.g. matches.h5.")],
    pairs: Annotated[Path | None, typer.Option(help="A file with two image names a line, as hloc writes it.")] = None,
    all_pairs: Annotated[bool, typer.Option("--exhaustive", help="Every image with every other.")] = False,
    following: Annotated[
        int | None, typer.Option("--sequential", help="Each image with the so many next ones by name, as in a video.")
    ] = None,
    likely: Annotated[
        int | None,
        typer.Option(
            "--retrieval",
            help="Each image with the so many that look most like it, concealed as they are. Needs a codebook of their "
            "kind, which SIFT and RootSIFT have; not for sealed archives, as only who has the key could make one.",
        ),
    ] = None,
    codebook: Annotated[
        Path | None,
        typer.Option(
            help="For --retrieval: a decoys file of the same kind of descriptor. SIFT and RootSIFT need none."
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(help="For --retrieval of encoded features: the encoder's file. Bundled ones are found without."),
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
        bool,
        typer.Option("--overwrite", help="Start anew instead of adding what is missing; replaces a match file only."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Match the images of an archive, pair by pair, without a clear descriptor.

    Pairs that are in the match file already are skipped; an interrupted run goes on where it stopped. The file is
    hloc's matches.h5 with the distances added: see docs/matches.md.

    Say which pairs: --exhaustive for up to some hundred images, --sequential for a video, --pairs for a list of your
    own, and for many images that are not sealed --retrieval.

    Example: sfumato match private.sfm.h5 --exhaustive -o matches.h5
    Example: sfumato match video.sfm.h5 --sequential 10 -o matches.h5
    Example: sfumato match lifted.sfm.h5 --retrieval 20 -o matches.h5
    """
    params = MatchParams(mutual=mutual, ratio=ratio, max_distance=max_distance, threads=threads, device=device)
    hidden = quiet or as_json
    refuse_inputs(output, {"the archive": archive, "the list of pairs": pairs, "the codebook": codebook,
                           "the encoder": encoder})  # fmt: skip
    if likely is not None:
        check_device(device)
    with load(archive) as opened:
        choice = Choice(pairs, all_pairs, following, likely, codebook, encoder)
        found = choose_pairs(opened, choice, params, progress_bar("looking", None, quiet=hidden, unit="images"))
        wanted = found.pairs
        with hands(workers, dask, TlsFiles(authority=dask_ca, certificate=dask_cert, key=dask_key)) as (pool, ahead):
            outcome = match_to_file(
                opened,
                wanted,
                output,
                params,
                pool,
                overwrite=overwrite,
                progress=lambda items, total: progress_bar("matching", total, quiet=hidden, unit="pairs")(items),
                in_flight=ahead,
            )
    report(found, outcome, output, as_json=as_json)
    if outcome.failed or found.unreadable:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Choice:
    """How the pairs were asked for; one of the first four."""

    pairs: Path | None = None
    exhaustive: bool = False
    sequential: int | None = None
    retrieval: int | None = None
    codebook: Path | None = None
    encoder: Path | None = None


def choose_pairs(
    archive: Archive, choice: Choice, params: MatchParams = DEFAULTS, progress: Progress = iter
) -> Shortlist:
    """Return the one list of pairs that was asked for, and the images that a shortlist left out."""
    asked = [name for name, given in (("--pairs", choice.pairs is not None), ("--exhaustive", choice.exhaustive),
                                      ("--sequential", choice.sequential is not None),
                                      ("--retrieval", choice.retrieval is not None)) if given]  # fmt: skip
    if len(asked) != 1:
        count = len(archive)
        raise InputError(
            f"say which images to match, with one of --pairs FILE, --exhaustive ({count * (count - 1) // 2} pairs of "
            f"these {count} images), --sequential N or --retrieval N; {' and '.join(asked) or 'none of them'} was given"
        )
    for option, given in (("--codebook", choice.codebook), ("--encoder", choice.encoder)):
        if given is not None and choice.retrieval is None:
            raise InputError(f"{option} is for --retrieval, which was not asked for")
    if choice.retrieval is not None:
        chooses = choice.retrieval < len(archive) - 1  # otherwise every pair is meant
        codebook = codebook_for(archive, choice.codebook, choice.encoder) if chooses else None
        settings = RetrievalParams(threads=params.threads, device=params.device)
        return shortlist(archive, choice.retrieval, codebook, settings, progress=progress)
    if choice.pairs is not None:
        return Shortlist(read_pairs(choice.pairs, archive))
    return Shortlist(exhaustive(archive) if choice.sequential is None else sequential(archive, choice.sequential))


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


def counted(count: int, noun: str, plural: str = "s") -> str:
    """Return how many there are of something: 1 pair, 2 pairs."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{plural}"


def report(found: Shortlist, outcome: MatchOutcome, output: Path, *, as_json: bool) -> None:
    """Name what could not be matched on standard error, and say what was."""
    pairs = found.pairs
    for name, reason in found.unreadable.items():
        print(printable(f"left out {name}: {reason}"), file=sys.stderr)
    for name in found.featureless:
        print(printable(f"left out {name}: it has no features"), file=sys.stderr)
    for reason, count in Counter(outcome.failed.values()).items():
        print(printable(f"{counted(count, 'pair')} not matched: {reason}"), file=sys.stderr)
    size = output.stat().st_size if (outcome.pairs or outcome.skipped) and output.exists() else 0
    mean = outcome.matches / outcome.pairs if outcome.pairs else 0.0
    left_out = len(found.featureless) + len(found.unreadable)
    notes = "".join(
        f", {what}"
        for count, what in (
            (outcome.skipped, f"{counted(outcome.skipped, 'pair')} already there"),
            (pairs.duplicates, f"{pairs.duplicates} named twice"),
            (pairs.selves, f"{pairs.selves} of an image with itself left out"),
            (len(outcome.failed), f"{len(outcome.failed)} failed"),
            (left_out, f"{counted(left_out, 'image')} left out"),
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
        "featureless": list(found.featureless),
        "unreadable": dict(found.unreadable),
        "output": str(output),
        "bytes": size,
    }
    where = f"{output} ({human_size(size)})" if size else "nothing was written"
    tell(
        f"{counted(outcome.pairs, 'pair')} with {counted(outcome.matches, 'match', 'es')} ({mean:.1f} a pair, "
        f"{outcome.pairs_per_second:.1f} pairs/s){notes}: {where}",
        facts,
        as_json=as_json,
    )
