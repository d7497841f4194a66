# SPDX-License-Identifier: Apache-2.0
"""Index of the kind "sketch", for bits: the first 128 bits of every code are compared, then whole codes that are near.

Bits of a seal are throws of a coin, which a related descriptor repeats with the same probability whichever bit it is.
So 128 of them tell nearly as much as all: by default one in 300 of unrelated codes is near by its sketch, and nine in
ten of those that are near enough to match. A quarter of the bytes is read, in order. Tables and cells do worse: figures
are in docs/results/search.md.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.hamming.search import BitSet
from sfumato.search.entries import Block, Entries, Segment
from sfumato.search.exact import merge_answers
from sfumato.search.index import Candidates, Index
from sfumato.subspace.fast import load_compiled, thread_count
from sfumato.subspace.subspace_set import read_only

Ints = NDArray[np.int64]

SKETCH = 128
"""Bits of a sketch: with 64 as many answers need several times as many whole codes, with 256 the scan takes twice as
long."""

EFFORT, LEAST_SHARE = 0.5, 1e-5
"""Of unrelated codes, the share LEAST_SHARE ** (1 - effort) is compared as a whole: one in 316 by default."""

SPARE = 8
"""Unrelated codes, for each answer, that are compared as a whole at least: answers are not left empty."""

MOST_SHARE = 0.02
"""From this share on, the exact scan is about as fast."""

FARTHEST = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchParams:
    """``threads``: None means all cores."""

    threads: int | None = None

    def __post_init__(self) -> None:
        thread_count(self.threads)


class SketchIndex(Index):
    """An index of bits by their sketches. ``effort`` e compares as whole codes 10 ** (-5 (1 - e)) of unrelated ones.

    At 1 every code is compared, and so are all codes where they are few or of no more than 128 bits.
    """

    kind = "sketch"
    params_type = SketchParams
    takes_subspaces, takes_bits = False, True

    def __init__(self, entries: Entries, metric: str, params: SketchParams) -> None:
        super().__init__(entries, metric, params)
        self._sketches: dict[int, NDArray[np.uint16]] = {}

    @classmethod
    def build(cls, entries: Entries, metric: str, params: Any) -> "SketchIndex":
        """Return an index of entries; sketches are made at the first search."""
        return cls(entries, metric, params)

    @classmethod
    def restore(
        cls, entries: Entries, metric: str, params: Any, arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]
    ) -> "SketchIndex":
        """Return the index of entries from a file."""
        return cls(entries, metric, params)

    def on_add(self, rows: range) -> None:
        """Forget the sketches: segments may have been merged."""
        self._sketches = {}

    def limit(self, k: int, effort: float | None) -> int | None:
        """Return how many bits of near sketches differ at most; None where all codes are to be compared."""
        share = LEAST_SHARE ** (1 - (EFFORT if effort is None else effort))
        share = max(share, SPARE * k / max(1, len(self)))
        return None if share > MOST_SHARE or self.dim <= SKETCH else sketch_limit(share)

    def propose(self, block: Block, k: int, effort: float | None) -> Candidates:
        """Return the entries whose sketches are near those of the queries."""
        limit = self.limit(k, effort)
        if limit is None:
            return self.exact.propose(block, k, effort)
        i, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for segment in self.entries.segments:
            heads = segment.origin[:, : SKETCH // 8]
            for query, code in enumerate(block.origin[:, : SKETCH // 8]):
                near = np.flatnonzero(np.bitwise_count(heads ^ code).sum(axis=1, dtype=np.int64) <= limit)
                i.append(np.full(len(near), query))
                rows.append(near + segment.start)
        return Candidates(np.concatenate(i), np.concatenate(rows), len(block) * len(self))

    def search_block(
        self, block: Block, k: int, effort: float | None
    ) -> tuple[NDArray[np.float64], Ints, tuple[int, int]]:
        """Return the nearest of each query among the codes whose sketches are near."""
        limit = self.limit(k, effort)
        if limit is None:
            return self.exact.search_block(block, k, effort)
        made = self._sketches  # a search under way keeps what it began with
        parts, evaluated = [], 0
        for segment in self.entries.segments:
            if segment.start not in made:
                made[segment.start] = sketch_blocks(segment.origin)
            answers, compared = self._scan(segment, made[segment.start], block, k, limit)
            parts += answers
            evaluated += compared
        return *merge_answers(parts, k), (len(block) * len(self), evaluated)

    def _scan(
        self, segment: Segment, blocks: NDArray[np.uint16], block: Block, k: int, limit: int
    ) -> tuple[list[tuple[NDArray[np.float64], Ints]], int]:
        """Return an answer (Q, k) of each thread's share of a segment, and how many codes were compared."""
        scan_sketches = load_compiled(_load_scan)
        from sfumato.search.sketch_kernel import BLOCKS_AT_ONCE, WORDS

        words, codes = BitSet(block.origin).words, BitSet(segment.origin).words.view(np.uint64)
        sides = read_only(words.view(np.uint64)), read_only(words[:, :WORDS]), read_only(codes), blocks
        alive = read_only(self.entries.alive[segment.start : segment.stop])
        workers = max(1, min(thread_count(self.params.threads), len(blocks) // BLOCKS_AT_ONCE))
        cuts = np.linspace(0, len(blocks), workers + 1).astype(int).tolist()

        def work(number: int) -> tuple[NDArray[np.float64], Ints, int]:
            best, where = np.full((len(block), k), FARTHEST, np.int32), np.full((len(block), k), -1, np.int64)
            compared = scan_sketches(*sides, alive, limit, cuts[number], cuts[number + 1], best, where)
            is_missing = where < 0
            return np.where(is_missing, np.inf, best), np.where(is_missing, -1, where + segment.start), compared

        if workers == 1:
            answers = [work(0)]
        else:
            with ThreadPoolExecutor(workers) as pool:
                answers = list(pool.map(work, range(workers)))
        return [answer[:2] for answer in answers], sum(answer[2] for answer in answers)


def _load_scan() -> Callable[..., int]:
    from sfumato.search.sketch_kernel import scan_sketches

    return scan_sketches  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def sketch_limit(share: float) -> int:
    """Return the most different bits that this share of unrelated sketches, throws of a coin, does not exceed.

    >>> sketch_limit(0.5), sketch_limit(1e-3)
    (63, 46)
    """
    from scipy.special import bdtr

    return max(0, int((bdtr(np.arange(SKETCH + 1), SKETCH, 0.5) <= share).sum()) - 1)


def sketch_blocks(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the sketches of codes (N, B / 8) as the compiled scan reads them, (N / 32, 8, 32) words, filled up."""
    from sfumato.search.sketch_kernel import LANES, WORDS

    words = BitSet(packed).words[:, :WORDS]
    words = np.pad(words, ((0, -len(words) % LANES), (0, 0)))
    return read_only(words.reshape(-1, LANES, WORDS).transpose(0, 2, 1))
