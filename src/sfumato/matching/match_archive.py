# SPDX-License-Identifier: Apache-2.0
"""From an archive and a list of pairs to a match file: resumable, with whatever could not be matched named.

Never imports the clear types.
"""

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.errors import InputError, SfumatoError, WorkerError
from sfumato.matching.many import IN_FLIGHT, match_pairs
from sfumato.matching.match_writer import MatchWriter
from sfumato.matching.mutual import MatchParams, match
from sfumato.matching.pairs import Pair, PairList, refuse_unknown
from sfumato.store import Archive


@dataclass(slots=True)
class MatchOutcome:
    """What became of a list of pairs: matched now, there already, and those that could not be matched with reasons."""

    pairs: int = 0
    matches: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failed: dict[Pair, str] = field(default_factory=dict)

    @property
    def pairs_per_second(self) -> float:
        """Pairs matched a second; 0 if there were none."""
        return self.pairs / self.seconds if self.pairs and self.seconds else 0.0


def check_device(device: str | None, executor: Executor | None = None) -> None:
    """Refuse a device that is not here, or not where the executor works, before any pair is tried."""
    if device is None:
        return
    if executor is None:
        nothing = np.zeros((0, 1), np.float32)
        match(nothing, nothing, device=device)
        return
    try:
        executor.submit(check_device, device).result()
    except SfumatoError:
        raise
    except Exception as cause:  # whatever ended it
        raise WorkerError(f"no worker could say whether it has the device {device!r:.80}: {cause!s:.400}") from cause


def match_to_file(
    archive: Archive,
    pairs: PairList,
    output: str | os.PathLike[str],
    params: MatchParams | None = None,
    executor: Executor | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, total: items,
    in_flight: int = IN_FLIGHT,
) -> MatchOutcome:
    """Match pairs of images of an archive into a match file; pairs that are in it already are skipped.

    A pair that cannot be matched is named in the outcome and does not stop the others. Interrupted, it goes on where
    it stopped when called again. ``progress`` wraps the pairs and is told how many there will be.

    Raises InputError for a device that is not there, FileError if the file cannot be written or was made in another
    way, WorkerError if a worker died.
    """
    params = params or MatchParams()
    if not len(pairs):
        count = len(pairs.names)
        raise InputError(f"nothing to match: {count} {'images make' if count != 1 else 'image makes'} no pair")
    refuse_unknown(pairs.names, archive)
    check_device(params.device, executor)
    outcome = MatchOutcome()

    def failed(pair: Pair, problem: SfumatoError) -> None:
        outcome.failed[pair] = str(problem)

    with MatchWriter(output, archive, params, overwrite=overwrite) as writer:
        writer.expect(pairs.names)
        outcome.skipped = sum(pair in writer.done for pair in pairs) if len(writer.done) else 0
        total = len(pairs) - outcome.skipped
        stream = match_pairs(
            archive,
            pairs,
            executor,
            mutual=params.mutual,
            ratio=params.ratio,
            max_distance=params.max_distance,
            threads=params.threads,
            device=params.device,
            skip=writer.done,
            failed=failed,
            progress=lambda items: progress(items, total),
            in_flight=in_flight,
        )
        started = time.perf_counter()
        with closing(stream):
            for pair, matches in stream:
                writer.add(pair, matches)
                outcome.pairs += 1
                outcome.matches += len(matches)
        outcome.seconds = time.perf_counter() - started
    return outcome
