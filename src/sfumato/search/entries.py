# SPDX-License-Identifier: Apache-2.0
"""Entries of an index: subspaces in segments of one dimension m each, or bits; their ids, and which were removed.

A row is a number an entry keeps for life: 0 to ``total`` - 1 in the order of adding. Rows of removed entries stay, and
are passed over. Subspaces and bits are not copied, or are mapped from a file; bits stay packed, in ``origin``, beside
an empty ``basis``. Knows nothing about how entries are found. Never imports the clear types: clear descriptors come as
arrays, on the device that made them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import FileError, InputError, suggest
from sfumato.matching.mutual import Side, side_of
from sfumato.subspace.fast import INDISTINCT, load_kernels
from sfumato.subspace.subspace_set import read_only
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.concealed import Bits, ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor

# --- what may be indexed and searched for: concealed features, subspaces, points, bits, or a list of these


Floats = NDArray[np.float32]
Numbers = NDArray[Any]
"""Float32 of subspaces, or the bytes of bits."""

LARGEST_K = 2**31 - 1


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Block:
    """Subspaces of one dimension m: ``origin`` (N, n), ``basis`` (N, m, n), ``places`` (N,) in what was given.

    Of bits, ``origin`` is (N, B / 8) uint8 and the basis (N, 0, B / 8).
    """

    origin: Numbers
    basis: Numbers
    places: NDArray[np.int64]

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    @property
    def is_bits(self) -> bool:
        """Whether these are bits."""
        return self.origin.dtype == np.uint8

    def __len__(self) -> int:
        return len(self.origin)

    def __repr__(self) -> str:
        if self.is_bits:
            return f"Block({len(self)} of {8 * self.origin.shape[1]} bits)"
        return f"Block({len(self)} of dimension {self.dim} in R^{self.origin.shape[1]})"


@dataclass(frozen=True, slots=True)
class DescriptorSpace:
    """Kind of the descriptors behind subspaces, and the encoders they went through."""

    extractor: Extractor
    space: str

    def check(self, other: "DescriptorSpace | None") -> None:
        """Refuse descriptors of another kind or encoder; plain arrays say nothing about theirs."""
        if other is None:
            return
        if not self.extractor.matches(other.extractor):
            raise InputError(
                f"the index holds descriptors of {self.extractor.name}, these are of {other.extractor.name}"
            )
        if self.space != other.space:
            raise InputError(f"the index lives in the space {self.space!r:.80}, these in {other.space!r:.80}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SubspaceBlocks:
    """Subspaces by dimension: a block for each, their ``count``, the dimension n, and the space they are of.

    Bits are one block, and n is their number.
    """

    blocks: tuple[Block, ...]
    count: int
    dim: int
    source: DescriptorSpace | None = None
    is_bits: bool = False

    @property
    def space(self) -> str:
        """What these are, in words."""
        return space_name(self.dim, self.is_bits)


def space_name(dim: int, is_bits: bool) -> str:
    """Return in words where entries or queries live."""
    return f"codes of {dim} bits" if is_bits else f"subspaces of R^{dim}"


def read_blocks(value: Any, name: str, metric: str = "distance") -> SubspaceBlocks:
    """Return ``value`` in blocks of one dimension m each, ready for a metric.

    Raises InputError for parts of different spaces; for the metric angle also for bits, for zero vectors and for
    subspaces that do not pass through 0.
    """
    if _is_list(value):
        sides = [side_of(part, f"{name}[{number}]") for number, part in enumerate(value)]
    else:
        sides = [side_of(value, name)]
    spaces = {(side.ambient_dim, isinstance(side.code, Bits)) for side in sides}
    if len(spaces) != 1:
        names = " and ".join(sorted(space_name(*space) for space in spaces))
        raise InputError(f"{name}: expected parts of one space, got {names}; index them apart")
    (dim, is_bits), source = spaces.pop(), _source(sides, name)
    starts = np.concatenate([[0], np.cumsum([len(side) for side in sides])]).astype(np.int64)
    parts = [(*_arrays(side), int(at)) for side, at in zip(sides, starts, strict=False)]
    if metric == "angle":
        if is_bits:
            raise InputError(f"{name}: bits have no angle, they are compared by the number that differ; use distance")
        parts = [_linear(part, name) for part in parts]
    blocks = [
        _merge([part for part in parts if part[1].shape[1] == m]) for m in sorted({part[1].shape[1] for part in parts})
    ]
    return SubspaceBlocks(tuple(blocks), int(starts[-1]), dim, source, is_bits)


def _arrays(side: Side) -> tuple[Numbers, Numbers]:
    """Return the origins and bases of a side; of bits, themselves and no basis."""
    if isinstance(side.code, Bits):
        packed = side.code.packed
        return packed, np.zeros((len(packed), 0, packed.shape[1]), np.uint8)
    return side.code.origin, side.code.basis


def _is_list(value: Any) -> bool:
    """Tell a list of parts from a list of points."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    first = value[0]
    return isinstance(first, Subspaces | Bits | ConcealedFeatures) or getattr(first, "ndim", 0) == 2


Part = tuple[Numbers, Numbers, int]
"""Origins, bases, and the number of the first."""


def _merge(parts: list[Part]) -> Block:
    """Return parts of one dimension m as a block; one alone is not copied."""
    places = [np.arange(start, start + len(origin)) for origin, _, start in parts]
    if len(parts) == 1:
        return Block(parts[0][0], parts[0][1], places[0])
    origins, bases = [origin for origin, _, _ in parts], [basis for _, basis, _ in parts]
    return Block(np.concatenate(origins), np.concatenate(bases), np.concatenate(places))


def _linear(part: Part, name: str) -> Part:
    """Return linear subspaces as they are, and points as the lines from 0 through them."""
    origin, basis, start = part
    lengths = np.sqrt(np.einsum("ni,ni->n", origin, origin, dtype=np.float64))
    if basis.shape[1]:
        affine = np.flatnonzero(lengths > 1e-6)
        if affine.size:
            raise InputError(
                f"{name}: the metric angle is for subspaces through 0, {affine.size} pass beside it, the first is "
                f"number {start + affine[0]}; use the metric distance"
            )
        return np.zeros_like(origin), basis, start
    zero = np.flatnonzero(lengths < 1e-30)
    if zero.size:
        raise InputError(
            f"{name}: a zero vector has no angle to anything; {zero.size} are zero, the first is number "
            f"{start + zero[0]}"
        )
    return np.zeros_like(origin), (origin / lengths[:, None]).astype(np.float32)[:, None], start


def _source(sides: list[Side], name: str) -> DescriptorSpace | None:
    """Return the space of all sides; InputError where they differ."""
    space: DescriptorSpace | None = None
    for number, side in enumerate(sides):
        if side.extractor is None or side.recipe is None:
            continue
        side_space = DescriptorSpace(side.extractor, side.recipe.space)
        if space is None:
            space = side_space
        elif not space.extractor.matches(side_space.extractor) or space.space != side_space.space:
            raise InputError(
                f"{name}[{number}] holds descriptors of {side_space.extractor.name} in the space "
                f"{side_space.space!r:.80}, others of {space.extractor.name} in {space.space!r:.80}: index them apart"
            )
    return space


def check_k(k: Any) -> int:
    """Return k as a plain integer of 1 or more."""
    number = whole_number(k, "k")
    if not 1 <= number <= LARGEST_K:
        raise InputError(f"k: expected a whole number of 1 or more, below 2 ** 31, got {number}")
    return number


def check_effort(effort: Any) -> float | None:
    """Return an effort from 0 to 1, or None for the default of the kind."""
    if effort is None:
        return None
    if isinstance(effort, bool) or not isinstance(effort, int | float | np.integer | np.floating):
        raise InputError(f"effort: expected a number from 0 to 1, or None, got {effort!r:.80}")
    if not 0 <= effort <= 1:
        raise InputError(f"effort: expected a number from 0 to 1, got {effort!r:.80}")
    return float(effort)


# --- metrics, in float64; equation numbers of "angle" are those of the Grassmannian hashing paper


METRICS = {
    "distance": "the least distance of a point of one subspace to a point of the other; points are of dimension 0, and "
    "of bits the number that differ",
    "angle": "the root of the sum of the squared principal angles, in radians, of linear subspaces; points are lines",
}

AT_ONCE = 65_536
"""Pairs whose angles are computed at once."""


def check_metric(name: Any) -> str:
    """Return the name of a metric; InputError with a suggestion for an unknown one."""
    if not isinstance(name, str) or name not in METRICS:
        close = suggest(name, METRICS) if isinstance(name, str) else ""
        raise InputError(f"metric: expected one of {', '.join(METRICS)}, got {name!r:.80}{close}")
    return name


def pair_distances(
    metric: str,
    first: tuple[Floats, Floats],
    second: tuple[Floats, Floats],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the distances of pairs (i, j) of rows of two sides, each an origin (N, n) and a basis (N, m, n)."""
    if metric == "angle":
        result = np.empty(len(i))
        for start in range(0, len(i), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            result[part] = angles(first[1][i[part]], second[1][j[part]])
        return result
    return np.sqrt(squared_pairs(first, second, i, j))


def squared_pairs(
    first: tuple[Floats, Floats], second: tuple[Floats, Floats], i: NDArray[np.int64], j: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return squared least distances of pairs; what float32 rounding leaves of 0 counts as 0, as in matching."""
    if len(i) == 0:
        return np.zeros(0)
    load_kernels()
    from sfumato.subspace.kernels.exact import exact_pairs

    sides = [read_only(part) for part in (*first, *second)]
    squared = exact_pairs(sides[0], sides[1], sides[2], sides[3], i, j)
    if first[1].shape[1] == second[1].shape[1] == 0:
        return squared
    lengths = (np.einsum("ni,ni->n", side[rows], side[rows], dtype=np.float64) for side, rows in
               ((first[0], i), (second[0], j)))  # fmt: skip
    return np.where(squared <= INDISTINCT**2 * np.maximum(*lengths), 0.0, squared)


def different_bits(
    first: NDArray[np.uint8], second: NDArray[np.uint8], i: NDArray[np.int64], j: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the number of different bits of pairs (i, j) of rows of two sides."""
    result = np.empty(len(i))
    for start in range(0, len(i), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        result[part] = np.bitwise_count(first[i[part]] ^ second[j[part]]).sum(axis=1, dtype=np.int64)
    return result


def angles(basis0: Floats, basis1: Floats) -> NDArray[np.float64]:
    """Return dist_G (N,) of linear subspaces (N, m0, n) and (N, m1, n), pair by pair (Eq. 1 and 2).

    The angles are those of the smaller subspace, min(m0, m1) of them, from their cosines (the singular values of the
    products of the bases) and their sines (those of what is left of the smaller outside the larger): an angle near 0
    has no digits in its cosine.
    """
    small, large = (np.asarray(basis, np.float64) for basis in (basis0, basis1))
    if small.shape[1] > large.shape[1]:
        small, large = large, small
    if small.shape[1] == 0 or len(small) == 0:
        return np.zeros(len(small))
    products = np.matmul(small, large.transpose(0, 2, 1))
    left = small - np.matmul(products, large)
    if small.shape[1] == 1:
        cosine, sine = np.linalg.norm(products[:, 0], axis=1), np.linalg.norm(left[:, 0], axis=1)
        return np.asarray(np.arctan2(sine, cosine))
    cosines = np.linalg.svd(products, compute_uv=False)
    sines = np.linalg.svd(left, compute_uv=False)[:, ::-1]
    result: NDArray[np.float64] = np.sqrt((np.arctan2(sines, cosines) ** 2).sum(axis=1))
    return result


Ints = NDArray[np.int64]

LARGEST_ID = 2**63 - 1
LARGEST = 2**31 - 1
"""Rows are kept in 32 bits by some kinds; larger databases go into shards."""

SKEWED = 1e-3
"""Products of the rows of a basis may be so far from those of orthonormal ones; float32 leaves far less."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Segment:
    """Rows ``start`` and following: ``origin`` (N, n), ``basis`` (N, m, n) float32 in canonical form, ``ids`` (N,).

    Of bits, ``origin`` is (N, B / 8) uint8 and the basis empty.
    """

    start: int
    origin: Numbers
    basis: Numbers
    ids: Ints

    @property
    def dim(self) -> int:
        """The dimension m of each subspace."""
        return int(self.basis.shape[1])

    @property
    def stop(self) -> int:
        """The first row after these."""
        return self.start + len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class Entries:
    """The entries of an index; ``dim`` is n, or the number of bits; ``segments`` in the order of their rows, ``alive``
    (total,) bool.
    """

    def __init__(self, dim: int, source: DescriptorSpace | None = None, *, is_bits: bool = False) -> None:
        self.dim, self.source, self.is_bits = dim, source, is_bits
        self.segments: list[Segment] = []
        self.alive: NDArray[np.bool_] = np.zeros(0, bool)
        self.next_id = 0
        self.names: list[str] = []
        """Images that entries are of, where they are: see ``sfumato.search.archives``."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.alive))

    def __repr__(self) -> str:
        if self.is_bits:
            return f"Entries({len(self)} of {self.dim} bits)"
        parts = ", ".join(f"{len(segment)} of dimension {segment.dim}" for segment in self.segments)
        return f"Entries({len(self)} in R^{self.dim}: {parts or 'none'})"

    @property
    def space(self) -> str:
        """What the entries are, in words."""
        return space_name(self.dim, self.is_bits)

    @property
    def total(self) -> int:
        """The number of rows, removed ones included."""
        return len(self.alive)

    @property
    def nbytes(self) -> int:
        """The bytes of the subspaces or codes themselves."""
        return sum(segment.origin.nbytes + segment.basis.nbytes for segment in self.segments)

    def add(self, blocks: SubspaceBlocks, ids: ArrayLike | None = None) -> tuple[Ints, range]:
        """Append subspaces; return their ids in the order given, and their rows. Nothing is changed by an error."""
        if (blocks.dim, blocks.is_bits) != (self.dim, self.is_bits):
            raise InputError(f"the index holds {self.space}, these are {blocks.space}")
        if self.total + blocks.count > LARGEST:
            raise InputError(f"an index holds at most {LARGEST} entries: put more into shards")
        if self.source is not None:
            self.source.check(blocks.source)
        new = self._new_ids(blocks.count, ids)
        first = self.total
        for block in blocks.blocks:
            self._append(block, new[block.places])
        self.alive = np.concatenate([self.alive, np.ones(blocks.count, bool)])
        self.source = self.source or blocks.source
        self.next_id = max(self.next_id, int(new.max(initial=-1)) + 1)
        return new, range(first, self.total)

    def state(self) -> tuple[Any, ...]:
        """Return what ``go_back`` needs to undo what is added from now on."""
        return list(self.segments), self.alive, self.next_id, self.source

    def go_back(self, state: tuple[Any, ...]) -> None:
        """Undo what was added since ``state``."""
        self.segments, self.alive, self.next_id, self.source = state

    def _new_ids(self, count: int, ids: ArrayLike | None) -> Ints:
        if ids is None:
            if self.next_id + count > LARGEST_ID:
                raise InputError("ids: there are no numbers left after the largest id; give ids of your own")
            return np.arange(self.next_id, self.next_id + count, dtype=np.int64)
        new = frozen_array(ids, "ids", (count,), np.int64)
        if new.size and not 0 <= new.min() <= new.max() < LARGEST_ID:
            raise InputError(f"ids: expected numbers from 0 to {LARGEST_ID - 1}")
        repeats = count - len(np.unique(new))
        if repeats:
            raise InputError(f"ids: {repeats} are given more than once; every entry needs an id of its own")
        known = sum(int(np.isin(part.ids[self.alive[part.start : part.stop]], new).sum()) for part in self.segments)
        if known:
            raise InputError(f"ids: {known} of {count} are in the index already; remove those entries first")
        return new

    def _append(self, block: Block, ids: Ints) -> None:
        """Append one block; small neighbours of the same dimension are merged, so that segments stay few."""
        if len(block) == 0:
            return
        start = self.segments[-1].stop if self.segments else 0
        new = Segment(start, read_only(block.origin), read_only(block.basis), ids)
        while self.segments and self.segments[-1].dim == new.dim and len(self.segments[-1]) <= 2 * len(new):
            last = self.segments.pop()
            new = Segment(
                last.start,
                read_only(np.concatenate([last.origin, new.origin])),
                read_only(np.concatenate([last.basis, new.basis])),
                np.concatenate([last.ids, new.ids]),
            )
        self.segments.append(new)

    def remove(self, ids: ArrayLike) -> Ints:
        """Take out entries by their ids; return their rows. Ids that are not there are passed over."""
        numbers = np.atleast_1d(np.asarray(ids))
        if numbers.size and numbers.dtype.kind not in "iu":
            raise InputError(f"ids: expected integers, got dtype {numbers.dtype}")
        parts = [part.start + np.flatnonzero(np.isin(part.ids, numbers)) for part in self.segments]
        rows = np.concatenate([np.zeros(0, np.int64), *parts])
        rows = np.asarray(rows[self.alive[rows]])
        self.alive = self.alive.copy()  # a search under way goes on with what it began with
        self.alive[rows] = False
        return rows

    def alive_ids(self) -> Ints:
        """Return the ids of the entries that were not removed, in the order of their rows."""
        return np.concatenate([np.zeros(0, np.int64), *(segment.ids for segment in self.segments)])[self.alive]

    def ids_of(self, rows: Ints) -> Ints:
        """Return the ids of rows; -1 for -1."""
        result = np.full(rows.shape, -1, np.int64)
        for segment in self.segments:
            inside = (rows >= segment.start) & (rows < segment.stop)
            result[inside] = segment.ids[rows[inside] - segment.start]
        return result

    def distances(self, metric: str, block: Block, i: Ints, rows: Ints) -> NDArray[np.float64]:
        """Return the exact distances of the queries ``i`` of a block to rows, pair by pair, in float64."""
        if len(self.segments) == 1:
            return self._of_segment(self.segments[0], metric, block, i, rows)
        result = np.empty(len(i))
        for segment in self.segments:
            inside = np.flatnonzero((rows >= segment.start) & (rows < segment.stop))
            if inside.size:
                result[inside] = self._of_segment(segment, metric, block, i[inside], rows[inside])
        return result

    def _of_segment(self, segment: Segment, metric: str, block: Block, i: Ints, rows: Ints) -> NDArray[np.float64]:
        places = np.ascontiguousarray(rows - segment.start)
        if self.is_bits:
            return different_bits(block.origin, segment.origin, i, places)
        return pair_distances(metric, (block.origin, block.basis), (segment.origin, segment.basis), i, places)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as named arrays, for a file."""
        named: dict[str, NDArray[Any]] = {"alive": self.alive.view(np.uint8)}
        for number, segment in enumerate(self.segments):
            named[f"origin {number}"] = _as_words(segment.origin) if self.is_bits else segment.origin
            named[f"ids {number}"] = segment.ids
            if not self.is_bits:
                named[f"basis {number}"] = segment.basis
        return named

    def settings(self) -> dict[str, Any]:
        """Return what is not an array, for the header of a file."""
        source = None if self.source is None else [self.source.extractor.to_json(), self.source.space]
        return {"dim": self.dim, "is_bits": self.is_bits, "segments": len(self.segments), "next_id": self.next_id,
                "source": source, "names": self.names}  # fmt: skip

    @staticmethod
    def restore(arrays: Mapping[str, NDArray[Any]], settings: Mapping[str, Any]) -> "Entries":
        """Return entries from a file; FileError where the parts do not fit each other."""
        source, dim = settings["source"], int(settings["dim"])
        space = None if source is None else DescriptorSpace(Extractor.from_json(source[0]), str(source[1]))
        entries = Entries(dim, space, is_bits=bool(settings["is_bits"]))
        for number in range(int(settings["segments"])):
            ids = arrays[f"ids {number}"]
            origin, basis = _restored_codes(arrays, number, dim, is_bits=entries.is_bits)
            if ids.dtype != np.int64 or ids.shape != (len(origin),):
                raise FileError(f"segment {number} has arrays of other shapes than it must")
            if ids.min(initial=0) < 0 or ids.max(initial=0) >= LARGEST_ID:
                raise FileError(f"segment {number} has invalid ids")
            start = entries.segments[-1].stop if entries.segments else 0
            entries.segments.append(Segment(start, read_only(origin), read_only(basis), ids))
        alive, total = arrays["alive"], entries.segments[-1].stop if entries.segments else 0
        if alive.shape != (total,) or alive.dtype != np.uint8 or total > LARGEST or alive.max(initial=0) > 1:
            raise FileError("the list of removed entries does not fit the entries")
        names = settings.get("names", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise FileError("the names of images are not texts")
        entries.names = names
        entries.alive, entries.next_id = alive.view(bool), int(settings["next_id"])
        largest = max((int(segment.ids.max(initial=-1)) for segment in entries.segments), default=-1)
        if not largest < entries.next_id <= LARGEST_ID:
            raise FileError("the next id is not beyond those that are there")
        return entries

    def refuse_nonsense(self) -> None:
        """Raise FileError unless all numbers are finite, bases orthonormal and ids different: reads everything once."""
        for number, segment in enumerate([] if self.is_bits else self.segments):  # any bits are codes
            for start in range(0, len(segment), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                origin, basis = segment.origin[part], segment.basis[part]
                products = np.matmul(basis, basis.transpose(0, 2, 1))
                if not (np.isfinite(origin).all() and np.abs(products - np.eye(segment.dim)).max(initial=0) < SKEWED):
                    raise FileError(f"segment {number} holds arrays that are not subspaces")
        ids = self.alive_ids()
        if len(np.unique(ids)) != len(ids):
            raise FileError("some ids stand for several entries")


def _as_words(packed: NDArray[np.uint8]) -> Numbers:
    """Return bits for a file: as words of 64, which lie there as compiled code wants to read them, or as bytes."""
    return packed if packed.shape[1] % 8 else np.ascontiguousarray(packed).view(np.uint64)


def _restored_codes(
    arrays: Mapping[str, NDArray[Any]], number: int, dim: int, *, is_bits: bool
) -> tuple[Numbers, Numbers]:
    """Return the origins and bases of a segment of a file; FileError where they have other shapes or types."""
    origin, wrong = arrays[f"origin {number}"], FileError(f"segment {number} has arrays of other shapes than it must")
    if is_bits:
        width = dim // 64 if dim % 64 == 0 else dim // 8
        if dim <= 0 or dim % 8 or origin.dtype != (np.uint8 if dim % 64 else np.uint64) or origin.shape[1:] != (width,):
            raise wrong
        packed = origin.view(np.uint8)
        return packed, np.zeros((len(packed), 0, packed.shape[1]), np.uint8)
    basis = arrays[f"basis {number}"]
    m = basis.shape[1] if basis.ndim == 3 else -1
    is_float = origin.dtype == basis.dtype == np.float32
    if not is_float or origin.shape != (len(basis), dim) or basis.shape[2:] != (dim,) or not 0 <= m <= dim:
        raise wrong
    return origin, basis
