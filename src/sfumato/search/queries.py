# SPDX-License-Identifier: Apache-2.0
"""What may be indexed and asked for: concealed features, subspaces, points, or a list of these of any dimensions.

Never imports the clear types: clear descriptors come as arrays, on the device that made them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.matching.sides import Side, side_of
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]

LARGEST_K = 2**31 - 1


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Block:
    """Subspaces of one dimension m: ``origin`` (N, n), ``basis`` (N, m, n), ``places`` (N,) in what was given."""

    origin: Floats
    basis: Floats
    places: NDArray[np.int64]

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    def __len__(self) -> int:
        return len(self.origin)

    def __repr__(self) -> str:
        return f"Block({len(self)} of dimension {self.dim} in R^{self.origin.shape[1]})"


@dataclass(frozen=True, slots=True)
class Source:
    """Of which descriptors subspaces are, and through which encoders they went."""

    extractor: Extractor
    space: str

    def check(self, other: "Source | None") -> None:
        """Refuse descriptors of another kind or encoder. Of plain arrays nothing is known."""
        if other is None:
            return
        if not self.extractor.matches(other.extractor):
            raise InputError(
                f"the index holds descriptors of {self.extractor.name}, these are of {other.extractor.name}"
            )
        if self.space != other.space:
            raise InputError(f"the index lives in the space {self.space!r:.80}, these in {other.space!r:.80}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Given:
    """Subspaces as given: a block for each dimension, how many there are, the dimension n, where they come from."""

    blocks: tuple[Block, ...]
    count: int
    dim: int
    source: Source | None = None


def read_given(value: Any, name: str, metric: str = "distance") -> Given:
    """Return ``value`` in blocks of one dimension m each, ready for a metric.

    Raises InputError for parts of different spaces; for the metric angle also for zero vectors and for subspaces that
    do not pass through 0.
    """
    if _is_list(value):
        sides = [side_of(part, f"{name}[{number}]") for number, part in enumerate(value)]
    else:
        sides = [side_of(value, name)]
    dims = {side.origin.shape[1] for side in sides}
    if len(dims) != 1:
        raise InputError(f"{name}: expected subspaces of one space, got {sorted(dims)} dimensions")
    starts = np.concatenate([[0], np.cumsum([len(side.origin) for side in sides])]).astype(np.int64)
    if metric == "angle":
        sides = [_linear(side, name, int(start)) for side, start in zip(sides, starts, strict=False)]
    blocks = [
        _merge([(side, int(start)) for side, start in zip(sides, starts, strict=False) if side.basis.shape[1] == m])
        for m in sorted({side.basis.shape[1] for side in sides})
    ]
    return Given(tuple(blocks), int(starts[-1]), dims.pop(), _source(sides, name))


def _is_list(value: Any) -> bool:
    """Tell a list of parts from a list of points."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    first = value[0]
    return isinstance(first, Subspaces | ConcealedFeatures) or getattr(first, "ndim", 0) == 2


def _merge(parts: list[tuple[Side, int]]) -> Block:
    """Return sides of one dimension m as a block; one alone is not copied."""
    places = [np.arange(start, start + len(side.origin)) for side, start in parts]
    if len(parts) == 1:
        return Block(parts[0][0].origin, parts[0][0].basis, places[0])
    origin = np.concatenate([side.origin for side, _ in parts])
    return Block(origin, np.concatenate([side.basis for side, _ in parts]), np.concatenate(places))


def _linear(side: Side, name: str, start: int) -> Side:
    """Return linear subspaces as they are, and points as the lines from 0 through them."""
    lengths = np.sqrt(np.einsum("ni,ni->n", side.origin, side.origin, dtype=np.float64))
    if side.basis.shape[1]:
        affine = np.flatnonzero(lengths > 1e-6)
        if affine.size:
            raise InputError(
                f"{name}: the metric angle is for subspaces through 0, {affine.size} pass beside it, the first is "
                f"number {start + affine[0]}; use the metric distance"
            )
        return Side(np.zeros_like(side.origin), side.basis, side.extractor, side.recipe)
    zero = np.flatnonzero(lengths < 1e-30)
    if zero.size:
        raise InputError(
            f"{name}: a zero vector has no angle to anything; {zero.size} are zero, the first is number "
            f"{start + zero[0]}"
        )
    lines = (side.origin / lengths[:, None]).astype(np.float32)[:, None]
    return Side(np.zeros_like(side.origin), lines, side.extractor, side.recipe)


def _source(sides: list[Side], name: str) -> Source | None:
    """Return where all sides come from; InputError where they differ."""
    found: Source | None = None
    for number, side in enumerate(sides):
        if side.extractor is None or side.recipe is None:
            continue
        mine = Source(side.extractor, side.recipe.space)
        if found is None:
            found = mine
        elif not found.extractor.matches(mine.extractor) or found.space != mine.space:
            raise InputError(
                f"{name}[{number}] holds descriptors of {mine.extractor.name} in the space {mine.space!r:.80}, others "
                f"of {found.extractor.name} in {found.space!r:.80}: make an index for each"
            )
    return found


def checked_k(k: Any) -> int:
    """Return k as a plain integer of 1 or more."""
    wanted = whole_number(k, "k")
    if not 1 <= wanted <= LARGEST_K:
        raise InputError(f"k: expected a whole number of 1 or more, below 2 ** 31, got {wanted}")
    return wanted


def checked_effort(effort: Any) -> float | None:
    """Return an effort from 0 to 1, or None for the default of the kind."""
    if effort is None:
        return None
    if isinstance(effort, bool) or not isinstance(effort, int | float | np.integer | np.floating):
        raise InputError(f"effort: expected a number from 0 to 1, or None, got {effort!r:.80}")
    if not 0 <= effort <= 1:
        raise InputError(f"effort: expected a number from 0 to 1, got {effort!r:.80}")
    return float(effort)
