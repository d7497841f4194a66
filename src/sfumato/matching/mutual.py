# SPDX-License-Identifier: Apache-2.0
"""Matches between two sets of concealed features: mutual nearest, ratio and threshold, exact.

Subspaces and points are compared by distance, bits by the number that differ. Never imports the clear types.
"""

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, VoidDistanceWarning
from sfumato.hamming.search import BitSet, search_bits
from sfumato.subspace.fast import Neighbours, exact_distances, prepare, search, thread_count
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import Bits, Code, ConcealedFeatures, Points, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import SIFT_BANDWIDTH, Recipe
from sfumato.types.scene import Matches

MOST_ANSWERS = 2**27
"""Beyond this many, answers that cannot be found are refused instead of padded."""

# --- what may be matched: concealed features, subspaces, or points given as plain arrays


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Side:
    """One side of a comparison: ``code``, and where it comes from."""

    code: Code
    extractor: Extractor | None = None
    recipe: Recipe | None = None

    @property
    def subspaces(self) -> Subspaces:
        """The code of a side that is not bits; raises InputError for bits."""
        if isinstance(self.code, Bits):
            raise InputError("expected subspaces or points, got the bits of a seal")
        return self.code

    @property
    def dim(self) -> int:
        """The dimension of its subspaces; 0 of points and bits."""
        return self.code.dim

    @property
    def ambient_dim(self) -> int:
        """The dimension of the space they live in, or the number of bits."""
        return self.code.ambient_dim

    def __len__(self) -> int:
        return len(self.code)


Prepared = SubspaceSet | BitSet
"""One side, ready to be searched many times."""


def side_of(value: Any, name: str) -> Side:
    """Return concealed features, subspaces, bits, or points (N, n) as a side."""
    if isinstance(value, ConcealedFeatures):
        return Side(value.code, value.extractor, value.recipe)
    if isinstance(value, Subspaces | Bits):
        return Side(value)
    if hasattr(value, "descriptors") or not (hasattr(value, "__array__") or isinstance(value, list | tuple)):
        raise InputError(
            f"{name}: expected ConcealedFeatures, Subspaces, Bits or points of shape (N, n), got "
            f"{type(value).__name__}; of clear features give the descriptors"
        )
    points = frozen_array(value, name, (None, None))
    if points.shape[1] == 0:
        raise InputError(f"{name}: points need at least one dimension")
    return Side(Points(points))


def prepare_side(side: Side) -> Prepared:
    """Return a side ready to be searched."""
    if isinstance(side.code, Bits):
        return BitSet(side.code.packed)
    return prepare(side.code.origin, side.code.basis)


def check_pair(a: Side, b: Side) -> None:
    """Refuse sides that live in different spaces: of other dimensions, of other descriptors, or of other encoders.

    Plain arrays do not say through which encoders they went: their caller must know.
    """
    if a.extractor is not None and b.extractor is not None and not a.extractor.matches(b.extractor):
        raise InputError(
            f"a and b hold different descriptors: {a.extractor.name} and {b.extractor.name}; extract both alike"
        )
    if a.recipe is not None and b.recipe is not None and a.recipe.space != b.recipe.space:
        raise InputError(
            f"these features live in different spaces: {space_name(a)} and {space_name(b)}. "
            f"{_difference(a.recipe, b.recipe)}"
        )
    if isinstance(a.code, Bits) != isinstance(b.code, Bits):
        raise InputError("a and b live in different spaces: one is the bits of a seal, and the other is not")
    if a.ambient_dim != b.ambient_dim:
        units = "bits" if isinstance(a.code, Bits) else "dimensions"
        raise InputError(f"a and b live in different spaces: {a.ambient_dim} and {b.ambient_dim} {units}")


def _difference(a: Recipe, b: Recipe) -> str:
    """Return why two recipes lead to different spaces, and what to do."""
    same = "conceal both with one recipe"
    if a.is_sealed != b.is_sealed:
        return f"One is sealed and the other is not: {same}"
    if not a.is_sealed or [link.identity for link in a.encoders[:-1]] != [link.identity for link in b.encoders[:-1]]:
        if not (a.has_encoder and b.has_encoder):
            return f"One went through an encoder and the other did not: {same}"
        return "Their encoders differ: conceal both with one file of an encoder, whose checksum follows the @"
    ours, theirs = a.links[-1], b.links[-1]
    if ours.dim != theirs.dim:
        return f"They are sealed with {ours.dim} and {theirs.dim} bits: {same}"
    if ours.bandwidth != theirs.bandwidth:
        widths = " and ".join(f"{link.bandwidth or SIFT_BANDWIDTH:g}" for link in (ours, theirs))
        name = f"sealed-{ours.dim}:{ours.bandwidth or SIFT_BANDWIDTH:g}"
        return f"They are sealed with different bandwidths, {widths}: conceal both with one, for example {name}"
    return (
        f"They are sealed under different device keys, with the fingerprints {ours.checksum or 'not stated'} and "
        f"{theirs.checksum or 'not stated'}: conceal both with one key (--secret-file) and for one place (--place)"
    )


def space_name(side: Side) -> str:
    """Return in words where a side lives: the encoders it went through, or none."""
    links = () if side.recipe is None else side.recipe.encoders
    return "+".join(str(link) for link in links) or "no encoder"


def warn_if_void(a: Side | Prepared, b: Side | Prepared) -> None:
    """Warn where subspaces are so large that all of them meet."""
    dims, n = (a.dim, b.dim), a.ambient_dim
    if min(dims) and sum(dims) >= n:
        warnings.warn(
            f"subspaces of dimension {dims[0]} and {dims[1]} meet in R^{n}: their distance is 0 whatever they stand "
            f"for; compare points with subspaces, or lift to fewer dimensions",
            VoidDistanceWarning,
            stacklevel=3,
        )


# --- the distance within which two sealed features match: nearer than unrelated ones come by chance


FALSE_ALARMS = 0.1
"""Unrelated features expected as near as a match, among all candidates. Their bits agree like throws of a coin."""


def chance_limit(recipe: Recipe | None, count: int) -> float | None:
    """Return the number of different bits up to which sealed features match, one of ``count`` candidates.

    None for other recipes.

    >>> chance_limit(Recipe.of("sealed-512"), 2000), chance_limit(Recipe.of("random-2"), 2000)
    (211.0, None)
    """
    if recipe is None or not recipe.is_sealed:
        return None
    return float(chance_bits(int(recipe.links[-1].dim or 0), count))


# --- the ratio test: where several features look alike, neither is matched


SEALED_RATIO, LIFTED_RATIO, ENCODED_RATIO = 0.94, 0.95, 0.9
"""Of sealed and of lifted features, and of those that an encoder alone changed: more pairs of hard photos are verified
than with every mutual nearest (benchmarks/front_end.py), and maps of few photos are right (benchmarks/mapping.py)."""


def default_ratio(recipe: Recipe | None) -> float:
    """Return how many times as far as the second nearest a match may be, by default; 1 asks nothing.

    >>> [default_ratio(Recipe.of(name)) for name in ("sealed-512", "sub-hybrid-2", "ninja-sift-1.0", "raw")]
    [0.94, 0.95, 0.9, 1.0]
    """
    if recipe is None or recipe.is_clear:
        return 1.0
    if recipe.is_sealed:
        return SEALED_RATIO
    return ENCODED_RATIO if recipe.lifting is None else LIFTED_RATIO


@lru_cache(maxsize=4096)
def chance_bits(bits: int, count: int) -> int:
    """Return how many of ``bits`` may differ so that ``count`` unrelated codes hardly hold one as near.

    >>> chance_bits(512, 2000)
    211
    """
    from scipy.special import bdtr

    differing = np.arange(bits + 1)
    rare = bdtr(differing, bits, 0.5) * max(1, count) <= FALSE_ALARMS  # so few bits differ, or fewer
    return max(0, int(rare.sum()) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchParams:
    """Conditions of a match. ``ratio`` and ``max_distance`` apply to distances, not to their squares; None takes the
    default of the recipe, a ratio of 1 and a distance of inf ask nothing.

    With ``mutual``, each of two matched rows is the nearest of the other, and a ratio is asked of both directions;
    without, every row of the first side is matched with its nearest. ``threads``: None means all cores.
    """

    mutual: bool = True
    ratio: float | None = None
    max_distance: float | None = None
    threads: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not (_is_number(self.ratio) and 0 < self.ratio <= 1):
            raise InputError(f"ratio: expected a number above 0 and at most 1, got {self.ratio!r:.80}")
        if self.max_distance is not None and not (_is_number(self.max_distance) and self.max_distance >= 0):
            raise InputError(f"max_distance: expected a number of 0 or more, got {self.max_distance!r:.80}")
        for name in ("ratio", "max_distance"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _as_float(getattr(self, name)))
        thread_count(self.threads)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _as_float(value: Any) -> float:
    """Return a number as a plain float, infinite where no float is as large."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def match(
    a: Any,
    b: Any,
    mutual: bool = True,
    ratio: float | None = None,
    max_distance: float | None = None,
    *,
    threads: int | None = None,
    device: str | None = None,
) -> Matches:
    """Match two sets of concealed features, exactly.

    ``a`` and ``b``: ConcealedFeatures, Subspaces, Bits, or points of shape (N, n), clear descriptors that stay on the
    device; dimensions of subspaces may differ. The distance is the least distance of a point of one to a point of the
    other (Eq. 2), and of bits the number that differ.
    ``mutual``: each of two matched rows is the nearest of the other; otherwise every row of ``a`` gets its nearest.
    ``ratio``: the nearest must be at most this many times as far as the second nearest, from both sides if mutual;
    by default 0.94 for sealed features, 0.95 for lifted, 0.9 for encoded ones. Plain Subspaces, Bits
    and arrays do not say what they are: their default is 1 (every nearest counts).
    ``max_distance``: and at most this far. By default sealed ConcealedFeatures match only where they are nearer than
    unrelated ones come by chance (``inf`` takes all). ``threads``: None takes all cores.
    ``device``: a torch device such as "cuda" does the products there, not for bits; the result is the same.

    Raises InputError for sides of different spaces or descriptors. Warns (VoidDistanceWarning) where subspaces are so
    large that all of them meet.

    >>> import numpy as np
    >>> match(np.eye(3), np.eye(3)[::-1]).indices.tolist()
    [[0, 2], [1, 1], [2, 0]]
    """
    params = MatchParams(mutual=mutual, ratio=ratio, max_distance=max_distance, threads=threads, device=device)
    side0, side1 = side_of(a, "a"), side_of(b, "b")
    check_pair(side0, side1)
    warn_if_void(side0, side1)
    return match_prepared(prepare_side(side0), prepare_side(side1), params, side0.recipe or side1.recipe)


def nearest(
    queries: Any,
    references: Any,
    k: int = 2,
    *,
    threads: int | None = None,
    device: str | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the distances and rows (N, k) of the k nearest references of each query, nearest first, exactly.

    Either side may be ConcealedFeatures, Subspaces, Bits or points of shape (N, n). The distance of bits is the number
    that differ. Where there are fewer than k references, the distance is inf and the row -1.

    >>> import numpy as np
    >>> nearest(np.zeros((1, 2)), np.array([[3.0, 4.0], [0.0, 1.0]]), k=2)[1].tolist()
    [[1, 0]]
    """
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k < 2**31:
        raise InputError(f"k: expected a whole number of 1 or more, below 2 ** 31, got {k!r:.80}")
    side0, side1 = side_of(queries, "queries"), side_of(references, "references")
    check_pair(side0, side1)
    if k > len(side1) and int(k) * len(side0) > MOST_ANSWERS:
        raise InputError(
            f"k: {k} answers for {len(side0)} queries are more than memory should hold, and there are {len(side1)} "
            f"references; ask for {max(1, len(side1))} at most"
        )
    warn_if_void(side0, side1)
    params = MatchParams(threads=threads, device=device)
    return nearest_prepared(prepare_side(side0), prepare_side(side1), int(k), params)


def nearest_prepared(
    queries: Prepared, references: Prepared, k: int, params: MatchParams
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the same as ``nearest`` for sides that were prepared before, so that many questions share the work."""
    result = run_search(queries, references, (k, 0), params)
    missing = k - result.rows0.shape[1]
    distances = np.pad(np.sqrt(result.squared0).astype(np.float32), ((0, 0), (0, missing)), constant_values=np.inf)
    return distances, np.pad(result.rows0, ((0, 0), (0, missing)), constant_values=-1)


def match_prepared(a: Prepared, b: Prepared, params: MatchParams, recipe: Recipe | None = None) -> Matches:
    """Match two sides that were prepared before, so that many pairs of one image share the work.

    ``recipe`` gives what the params do not say: its ratio, and for sealed features the distance where chance begins.
    """
    if params.max_distance is None:
        params = replace(params, max_distance=chance_limit(recipe, max(len(a), len(b))))
    if params.ratio is None:
        params = replace(params, ratio=default_ratio(recipe))
    count = 1 if params.ratio == 1 else 2
    return select(run_search(a, b, (count, count if params.mutual else 0), params, limit_of(params)), params)


def run_search(
    a: Prepared, b: Prepared, keep: tuple[int, int], params: MatchParams, limit: float = np.inf
) -> Neighbours:
    """Search with the compiled kernels, or on a torch device."""
    if isinstance(a, BitSet) or isinstance(b, BitSet):
        if not (isinstance(a, BitSet) and isinstance(b, BitSet)):
            raise InputError("one side is the bits of a seal, and the other is not")
        if params.device is not None:
            raise InputError(f"bits are matched by the processor: leave out the device {params.device!r:.80}")
        return search_bits(a, b, keep, threads=params.threads, limit=limit)
    if params.device is None:
        return search(a, b, keep, threads=params.threads, limit=limit)
    from sfumato.subspace import torch_search

    sides = (a.origin, a.basis, b.origin, b.basis)
    parts = torch_search.search(*sides, keep, device=params.device, limit=limit, exact=exact_distances(a, b))
    return Neighbours(*parts)


def limit_of(params: MatchParams) -> float:
    """Return the squared distance beyond which nothing decides a match: a nearest, or a second nearest of a ratio."""
    if params.max_distance is None:
        return np.inf
    farthest = params.max_distance / (params.ratio or 1)
    return farthest * farthest * (1 + 1e-9)


def select(result: Neighbours, params: MatchParams) -> Matches:
    """Choose the matches among the nearest of each row."""
    squared, other = result.squared0, result.rows0
    if other.size == 0:
        return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
    rows, first = np.arange(len(other)), other[:, 0]
    good: NDArray[np.bool_] = first >= 0
    if params.mutual:
        good &= result.rows1[first, 0] == rows
    if params.max_distance is not None:
        good &= np.sqrt(squared[:, 0]) <= params.max_distance
    if params.ratio is not None:
        good &= passes_ratio(squared, params.ratio)
        if params.mutual:
            good &= passes_ratio(result.squared1, params.ratio)[first]
    pairs = np.stack([rows[good], first[good]], axis=1)
    return Matches(pairs.astype(np.int32), np.sqrt(squared[good, 0]).astype(np.float32))


def passes_ratio(squared: NDArray[np.float64], ratio: float) -> NDArray[np.bool_]:
    """Tell which rows have a nearest at most ``ratio`` times as far as the second nearest, or no second.

    Two that are both at distance 0 cannot be told apart: they pass no ratio below 1.
    """
    if squared.shape[1] < 2 or ratio == 1:
        return np.ones(len(squared), bool)
    passed: NDArray[np.bool_] = np.sqrt(squared[:, 0]) <= ratio * np.sqrt(squared[:, 1])
    return passed & (squared[:, 1] > 0)
