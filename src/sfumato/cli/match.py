# SPDX-License-Identifier: Apache-2.0
"""sfumato match: an archive of concealed features in, matches of its image pairs out, as hloc reads them."""

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from sfumato.cli.options import AsJson, Quiet, printable, quantity, stage_bars, tell
from sfumato.codebooks import codebook_for
from sfumato.errors import InputError
from sfumato.matching.batch import IN_FLIGHT, MatchOutcome, match_archive
from sfumato.matching.codebook import Codebook
from sfumato.matching.executors import TlsFiles, dask_cluster
from sfumato.matching.mutual import ENCODED_RATIO, LIFTED_RATIO, SEALED_RATIO, MatchParams
from sfumato.matching.pairs import PairsLike
from sfumato.store.archive import Archive, load

DEFAULTS = MatchParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Options that choose pairs of images; exactly one of the first four."""

    pairs: Annotated[Path | None, typer.Option(help="A file with two image names per line, as hloc writes it.")] = None
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Every image with every other.")] = False
    sequential: Annotated[
        int | None, typer.Option(help="Each image with this many next ones by name, as in a video.")
    ] = None
    retrieval: Annotated[
        int | None,
        typer.Option(help="Each image with this many that look most like it, by votes of the concealed features."),
    ] = None
    codebook: Annotated[
        Path | None,
        typer.Option(
            help="For --retrieval: a decoys file of the same kind of descriptor. SIFT and RootSIFT need none."
        ),
    ] = None
    encoder: Annotated[
        Path | None,
        typer.Option(help="For --retrieval of encoded features: the encoder's file. Bundled ones are known."),
    ] = None

    def choose(self, archive: Archive) -> PairsLike:
        """Return the one choice of pairs that was made."""
        choices: dict[str, PairsLike] = {}
        if self.pairs is not None:
            choices["--pairs"] = self.pairs
        if self.exhaustive:
            choices["--exhaustive"] = "exhaustive"
        if self.sequential is not None:
            choices["--sequential"] = f"sequential:{self.sequential}"
        if self.retrieval is not None:
            choices["--retrieval"] = f"votes:{self.retrieval}"
        if len(choices) != 1:
            count = len(archive)
            raise InputError(
                f"say which images to match, with one of --pairs FILE, --exhaustive ({count * (count - 1) // 2} pairs "
                f"of these {count} images), --sequential N or --retrieval N; {' and '.join(choices) or 'none'} given"
            )
        return next(iter(choices.values()))

    def codebook_for(self, archive: Archive) -> Codebook | None:
        """Return the codebook of the votes; None where there are no votes, or the bundled one will do."""
        for option, path in (("--codebook", self.codebook), ("--encoder", self.encoder)):
            if path is not None and self.retrieval is None:
                raise InputError(f"{option} is for --retrieval, which is not set")
        return None if self.retrieval is None else codebook_for(archive, self.codebook, self.encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """Options that say what counts as a match, and where it is computed."""

    mutual: Annotated[
        bool, typer.Option("--mutual/--one-way", help="Only pairs of features that are nearest to each other.")
    ] = DEFAULTS.mutual
    ratio: Annotated[
        float | None,
        typer.Option(
            help="At most this many times as far as the second nearest; 1 asks nothing. Default: "
            f"{SEALED_RATIO} for sealed features, {LIFTED_RATIO} for lifted and "
            f"{ENCODED_RATIO} for encoded ones."
        ),
    ] = DEFAULTS.ratio
    max_distance: Annotated[float | None, typer.Option(help="No farther than this.")] = DEFAULTS.max_distance
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process. Default: all cores, 1 with workers.")
    ] = DEFAULTS.threads
    device: Annotated[str | None, typer.Option(help="cuda, or cpu. Default: this machine's cores.")] = DEFAULTS.device

    @property
    def params(self) -> MatchParams:
        """Return the settings of matching, checked."""
        return MatchParams(
            mutual=self.mutual,
            ratio=self.ratio,
            max_distance=self.max_distance,
            threads=self.threads,
            device=self.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options that say who does the work."""

    workers: Annotated[int, typer.Option(help="Processes of this machine.")] = 1
    dask: Annotated[
        str | None, typer.Option(help="Address of a dask scheduler, e.g. tls://host:8786: its workers do the work.")
    ] = None
    dask_ca: Annotated[str | None, typer.Option(help="For tls://: certificate of the authority.")] = None
    dask_cert: Annotated[str | None, typer.Option(help="For tls://: own certificate.")] = None
    dask_key: Annotated[str | None, typer.Option(help="For tls://: own key.")] = None

    @contextmanager
    def open(self) -> Iterator[tuple[Executor | None, int | None]]:
        """Give the executor of a cluster and the number of parcels under way; None for processes of this machine."""
        tls = TlsFiles(authority=self.dask_ca, certificate=self.dask_cert, key=self.dask_key)
        if self.dask is not None and self.workers != 1:
            raise InputError("--workers are processes of this machine, --dask brings its own: give one of the two")
        if self.dask is None and tls != TlsFiles():
            raise InputError("--dask-ca, --dask-cert and --dask-key need --dask with the address of a scheduler")
        if self.dask is None:
            yield None, None
            return
        with dask_cluster(self.dask, tls) as (executor, cores):
            if not logging.getLogger().isEnabledFor(logging.INFO):  # what matters comes as an error of ours
                for name in ("distributed", "distributed.client"):
                    logging.getLogger(name).setLevel(logging.CRITICAL)
            yield executor, max(IN_FLIGHT, 4 * cores)


def match(
    archive: Annotated[Path, typer.Argument(help="The archive, e.g. private.sfm.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The match file to write, e.g. matches.h5.")],
    choice: PairOptions = PairOptions(),
    matching: MatchOptions = MatchOptions(),
    work: WorkerOptions = WorkerOptions(),
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start over instead of adding what is missing; replaces a match file only."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Match the images of an archive, pair by pair, by their codes: no key and no position is needed.

    Pairs that are in the match file already are skipped; an interrupted run goes on where it stopped. The file is
    hloc's matches.h5 with the distances added: see 'sfumato help file_formats'.

    Choose the pairs: --exhaustive for up to a few hundred images, --sequential for a video, --pairs for a list of your
    own, --retrieval for many images.

    Example: sfumato match private.sfm --exhaustive -o matches.h5
    Example: sfumato match video.sfm --sequential 10 -o matches.h5
    Example: sfumato match private.sfm --retrieval 20 -o matches.h5
    """
    params = matching.params
    with load(archive) as images:
        pairs, codebook = choice.choose(images), choice.codebook_for(images)
        with work.open() as (executor, in_flight):
            outcome = match_archive(
                images,
                output,
                pairs,
                params,
                workers=work.workers,
                executor=executor,
                codebook=codebook,
                inputs={"the codebook": choice.codebook, "the encoder": choice.encoder},
                overwrite=overwrite,
                progress=stage_bars(quiet=quiet or as_json, unit="items"),
                in_flight=in_flight,
            )
    report(outcome, output, as_json=as_json)
    if outcome.failed or outcome.choice.unreadable:
        raise typer.Exit(1)


def report(outcome: MatchOutcome, output: Path, *, as_json: bool) -> None:
    """Name what could not be matched on standard error, and say what was."""
    choice, pairs = outcome.choice, outcome.choice.pairs
    for name, reason in choice.unreadable.items():
        print(printable(f"left out {name}: {reason}"), file=sys.stderr)
    for name in choice.featureless:
        print(printable(f"left out {name}: it has no features"), file=sys.stderr)
    for reason, count in Counter(outcome.failed.values()).items():
        print(printable(f"{quantity(count, 'pair')} not matched: {reason}"), file=sys.stderr)
    size = output.stat().st_size if (outcome.pairs or outcome.skipped) and output.exists() else 0
    mean = outcome.matches / outcome.pairs if outcome.pairs else 0.0
    left_out = len(choice.featureless) + len(choice.unreadable)
    notes = "".join(
        f", {note}"
        for count, note in (
            (outcome.skipped, f"{quantity(outcome.skipped, 'pair')} already there"),
            (pairs.duplicates, f"{pairs.duplicates} named twice"),
            (pairs.selves, f"{pairs.selves} of an image with itself left out"),
            (len(outcome.failed), f"{len(outcome.failed)} failed"),
            (left_out, f"{quantity(left_out, 'image')} left out"),
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
        "featureless": list(choice.featureless),
        "unreadable": dict(choice.unreadable),
        "output": str(output),
        "bytes": size,
    }
    where = f"{output} ({decimal(size)})" if size else "nothing was written"
    tell(
        f"{quantity(outcome.pairs, 'pair')} with {quantity(outcome.matches, 'match', 'es')} ({mean:.1f} per pair, "
        f"{outcome.pairs_per_second:.1f} pairs/s){notes}: {where}",
        facts,
        as_json=as_json,
    )
