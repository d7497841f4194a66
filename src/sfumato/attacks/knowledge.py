# SPDX-License-Identifier: Apache-2.0
"""Knowledge of an attacker, the recovery an attack returns, and a cache of what is made of knowledge.

A clear descriptor appears here as an oracle's answer (``Knowledge.clear``) or as a guess (``Recovery``); neither is
ever shown: a repr has shapes only.
"""

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.concealed import Bits, Code, ConcealedFeatures, Subspaces

MEANINGS = {
    "public": "public descriptors of other photos",
    "decoys": "the decoy database",
    "releases": "further releases of the same descriptors",
    "partners": "matched features",
    "tracks": "tracks of a map",
    "clear": "an oracle that knows the clear descriptors",
    "seeds": "seeds the lifting may have used",
    "decoder": "a decoder trained on public photos",
    "encoder": "the encoder that was used",
    "point_decoder": "a decoder trained for the encoder alone",
    "pool": "all codes released under the same key",
    "pairs": "clear descriptors with their codes under the same key",
    "told": "an oracle that knows the clear descriptors of all codes",
}
"""Fields of Knowledge, in words."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Companions:
    """Further subspaces that hold (nearly) the same descriptors: second releases, matched partners, tracks.

    ``subspaces`` M of them; ``rows`` (M,) int32, the row of the attacked features each belongs to. A row may have
    several companions, or none.
    """

    rows: NDArray[np.int32]
    subspaces: Subspaces

    def __post_init__(self) -> None:
        if not isinstance(self.subspaces, Subspaces):
            raise InputError(f"companions: expected Subspaces, got {type(self.subspaces).__name__}")
        rows = frozen_array(self.rows, "rows of companions", (len(self.subspaces),), np.int32)
        if rows.size and rows.min() < 0:
            raise InputError("rows of companions: a row is a number from 0")
        object.__setattr__(self, "rows", rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Companions({self.subspaces!r} of {np.unique(self.rows).size} rows)"


def rows_of(code: Code) -> NDArray[np.float32]:
    """Return what attackers compute with, (N, n): points as they are, and each bit as plus or minus 1 / sqrt(B)."""
    if not isinstance(code, Bits):
        return code.origin
    signs = np.unpackbits(code.packed, axis=1).astype(np.float32)
    signs -= np.float32(0.5)
    signs *= np.float32(2 / np.sqrt(code.ambient_dim))
    signs.setflags(write=False)
    return signs


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class KnownPairs:
    """Clear ``descriptors`` (K, n) and the ``codes`` (K, B) that a key the attacker lacks made of them."""

    descriptors: NDArray[np.float32]
    codes: NDArray[np.float32]

    def __post_init__(self) -> None:
        descriptors = frozen_array(self.descriptors, "descriptors of known pairs", (None, None))
        object.__setattr__(self, "descriptors", descriptors)
        object.__setattr__(self, "codes", frozen_array(self.codes, "codes of known pairs", (len(descriptors), None)))

    def __len__(self) -> int:
        return len(self.descriptors)

    def __repr__(self) -> str:
        return f"KnownPairs({len(self)} of {self.descriptors.shape[1]} numbers and {self.codes.shape[1]} bits)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Knowledge:
    """Knowledge of the attacker beside the concealed features; None or empty is what he does not know.

    ``public`` (V, n) descriptors of other photos; ``decoys`` (W, n) the database used for lifting; ``releases`` hold
    exactly the same descriptors, ``partners`` (one a row at most) and ``tracks`` nearly; ``clear`` (N, n) answers an
    oracle's questions, row by row; ``seeds`` may have made the draws; ``decoder`` maps Subspaces to (N, n);
    ``encoder`` maps descriptors (N, n) to the space (N, n') that encoded features live in, ``point_decoder`` points
    (N, n') of it back to descriptors. Of sealed features ``encoder`` is what came before the seal, ``pool`` (P, B)
    are codes released under the same key, of these and of other photos, ``pairs`` some with their clear descriptors,
    and ``told`` all of them: an oracle's answer to how codes correspond to descriptors.

    Of encoded features ``public``, ``decoys`` and ``clear`` are still descriptors before any encoder.
    """

    public: NDArray[np.float32] | None = None
    decoys: NDArray[np.float32] | None = None
    releases: Companions | None = None
    partners: Companions | None = None
    tracks: Companions | None = None
    clear: NDArray[np.float32] | None = None
    seeds: tuple[int, ...] = ()
    decoder: Callable[[Subspaces], NDArray[np.float32]] | None = None
    encoder: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
    point_decoder: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
    pool: NDArray[np.float32] | None = None
    pairs: KnownPairs | None = None
    told: KnownPairs | None = None

    def __post_init__(self) -> None:
        for name in ("public", "decoys", "clear", "pool"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, frozen_array(value, name, (None, None)))
        for name in ("releases", "partners", "tracks"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Companions):
                raise InputError(f"{name}: expected Companions, got {type(value).__name__}")
        if self.partners is not None and np.unique(self.partners.rows).size < len(self.partners):
            raise InputError("partners: a row has at most one matched partner; put several into tracks")
        for name in ("decoder", "encoder", "point_decoder"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InputError(f"{name}: expected a function, got {type(value).__name__}")
        object.__setattr__(self, "seeds", tuple(whole_number(seed, "seeds") for seed in self.seeds))

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the fields that are known."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return tuple(name for name, value in values.items() if value is not None and not _is_empty_tuple(value))

    def only(self, names: Iterable[str]) -> "Knowledge":
        """Return these fields alone, all others as not known."""
        hidden = {field.name: field.default for field in fields(self) if field.name in set(self.known) - set(names)}
        return replace(self, **hidden) if hidden else self  # type: ignore[arg-type]

    def clear_dim(self, features: ConcealedFeatures) -> int:
        """Return the dimension of clear descriptors: that of the features, or before an encoder that of known ones."""
        if features.recipe.has_encoder:
            for array in (self.clear, self.public, self.decoys):
                if array is not None:
                    return int(array.shape[1])
        return features.code.ambient_dim

    def check(self, features: ConcealedFeatures) -> None:
        """Raise InputError where the knowledge is about other descriptors than these features'."""
        n, count, clear_dim = features.code.ambient_dim, len(features), self.clear_dim(features)
        for name in ("public", "decoys", "clear"):
            array = getattr(self, name)
            if array is not None and array.shape[1] != clear_dim:
                raise InputError(f"{name} has {array.shape[1]} dimensions, the concealed descriptors {clear_dim}")
        for name in ("releases", "partners", "tracks"):
            others = getattr(self, name)
            if others is not None and len(others) and others.subspaces.ambient_dim != n:
                raise InputError(f"{name} has {others.subspaces.ambient_dim} dimensions, the concealed descriptors {n}")
            if others is not None and len(others) and others.rows.max() >= count:
                raise InputError(f"{name} names row {others.rows.max()}, but there are {count} rows")
        if self.pool is not None and self.pool.shape[1] != n:
            raise InputError(f"pool has codes of {self.pool.shape[1]} bits, the features of {n}")
        if self.clear is not None and len(self.clear) != count:
            raise InputError(f"clear has {len(self.clear)} rows, the concealed features {count}")

    def __repr__(self) -> str:
        sizes = [(n, getattr(self, n)) for n in self.known]
        return f"Knowledge({', '.join(f'{n} {len(v)}' if hasattr(v, '__len__') else n for n, v in sizes)})"


def _is_empty_tuple(value: object) -> bool:
    return isinstance(value, tuple) and not value


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Recovery:
    """Guesses at the clear descriptors: ``descriptors`` (N, n) float32 and ``confidence`` (N,) from 0 to 1.

    Every row has a guess. Confidence 0: nothing better is known than the subspace itself. Where a lifting after an
    encoder was attacked, ``inside`` (N, n') are the recovered points of the space that was lifted, else None.
    """

    descriptors: NDArray[np.float32]
    confidence: NDArray[np.float32]
    inside: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        descriptors = frozen_array(self.descriptors, "recovered descriptors", (None, None))
        confidence = frozen_array(self.confidence, "confidence", (len(descriptors),))
        if confidence.size and not (confidence.min() >= 0 and confidence.max() <= 1):
            raise InputError("confidence: expected numbers from 0 to 1")
        object.__setattr__(self, "descriptors", descriptors)
        object.__setattr__(self, "confidence", confidence)
        if self.inside is not None:
            inside = frozen_array(self.inside, "points inside", (len(descriptors), None))
            object.__setattr__(self, "inside", inside)

    def __len__(self) -> int:
        return len(self.descriptors)

    def __repr__(self) -> str:
        return f"Recovery({len(self)} x {self.descriptors.shape[1]}, {(self.confidence > 0).sum()} with a guess)"


def fallback(subspaces: Subspaces) -> Recovery:
    """Return what the subspace alone says: its point nearest to 0, scaled to unit norm, with confidence 0."""
    norms = np.linalg.norm(subspaces.origin.astype(np.float64), axis=1, keepdims=True)
    guesses = subspaces.origin / np.where(norms > 0, norms, 1)
    return Recovery(guesses.astype(np.float32), np.zeros(len(subspaces), np.float32))


Value = TypeVar("Value")


class IdentityCache:
    """Results for the last ``size`` questions.

    What a question is about is kept alive, so that its place in memory is not taken by something else.
    """

    def __init__(self, size: int) -> None:
        self._results: LRUCache[Hashable, tuple[tuple[Any, ...], Any]] = LRUCache(size)
        self._lock = threading.RLock()

    def get(self, about: tuple[Any, ...], make: Callable[[], Value], *, key: Hashable = None) -> Value:
        """Return what was made for these objects and this key, or make it; one thread at a time makes something."""
        full_key = (key, *map(_identity, about))
        with self._lock:
            if full_key not in self._results:
                self._results[full_key] = about, make()
            value: Value = self._results[full_key][1]
            return value

    def replace(self, about: tuple[Any, ...], value: object, *, key: Hashable = None) -> None:
        """Put a better result in place of the one there is."""
        with self._lock:
            self._results[(key, *map(_identity, about))] = about, value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._results.clear()


def _identity(thing: Any) -> Hashable:
    if isinstance(thing, np.ndarray):
        return thing.__array_interface__["data"][0], thing.shape, thing.strides
    return id(thing)
