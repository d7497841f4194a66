# SPDX-License-Identifier: Apache-2.0
"""What an attacker knows, what an attack returns, and the one way of running it.

Knows no attack. A clear descriptor appears here as an oracle's answer (``Knowledge.clear``) or as a guess
(``Recovered``); neither is ever shown: a repr tells shapes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.recipe import Recipe

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
"""The fields of Knowledge, in words."""


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
    """What the attacker knows beside the concealed features; None or empty is what he does not know.

    ``public`` (V, n) descriptors of other photos; ``decoys`` (W, n) the database used for lifting; ``releases`` hold
    exactly the same descriptors, ``partners`` (one a row at most) and ``tracks`` nearly; ``clear`` (N, n) answers an
    oracle's questions, row by row; ``seeds`` may have made the draws; ``decoder`` maps Subspaces to (N, n);
    ``encoder`` maps descriptors (N, n) to the space (N, n') that encoded features live in, ``point_decoder`` points
    (N, n') of it back to descriptors. Of sealed features ``encoder`` is what came before the seal, ``pool`` (P, B)
    are codes released under the same key, of these and of other photos, ``pairs`` some with their clear descriptors,
    and ``told`` all of them, by which an oracle tells how codes lie to descriptors.

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
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, frozen_array(given, name, (None, None)))
        for name in ("releases", "partners", "tracks"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Companions):
                raise InputError(f"{name}: expected Companions, got {type(given).__name__}")
        if self.partners is not None and np.unique(self.partners.rows).size < len(self.partners):
            raise InputError("partners: a row has one matched partner at most; several belong in tracks")
        if self.decoder is not None and not callable(self.decoder):
            raise InputError(f"decoder: expected a function of subspaces, got {type(self.decoder).__name__}")
        for name in ("encoder", "point_decoder"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InputError(f"{name}: expected a function of descriptors, got {type(given).__name__}")
        object.__setattr__(self, "seeds", tuple(whole_number(seed, "seeds") for seed in self.seeds))

    @property
    def known(self) -> tuple[str, ...]:
        """The names of what is given."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) not in _NOTHING)

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
        return features.subspaces.ambient_dim

    def fits(self, features: ConcealedFeatures) -> None:
        """Raise InputError where the knowledge is about other descriptors than these features'."""
        n, count, before = features.subspaces.ambient_dim, len(features), self.clear_dim(features)
        for name in ("public", "decoys", "clear"):
            array = getattr(self, name)
            if array is not None and array.shape[1] != before:
                raise InputError(f"{name} has {array.shape[1]} dimensions, the concealed descriptors {before}")
        for name in ("releases", "partners", "tracks"):
            others = getattr(self, name)
            if others is not None and len(others) and others.subspaces.ambient_dim != n:
                raise InputError(f"{name} has {others.subspaces.ambient_dim} dimensions, the concealed descriptors {n}")
            if others is not None and len(others) and others.rows.max() >= count:
                raise InputError(f"{name} speaks of row {others.rows.max()}, there are {count}")
        if self.pool is not None and self.pool.shape[1] != n:
            raise InputError(f"pool has codes of {self.pool.shape[1]} bits, the features of {n}")
        if self.clear is not None and len(self.clear) != count:
            raise InputError(f"clear has {len(self.clear)} rows, the concealed features {count}")

    def __repr__(self) -> str:
        sizes = [(n, getattr(self, n)) for n in self.known]
        return f"Knowledge({', '.join(f'{n} {len(v)}' if hasattr(v, '__len__') else n for n, v in sizes)})"


class _Nothing:
    """Compares an array, None or a tuple with nothing, without asking the array for its values."""

    def __contains__(self, value: object) -> bool:
        return value is None or value == () if not isinstance(value, np.ndarray) else False


_NOTHING = _Nothing()


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Recovered:
    """Guesses at the clear descriptors: ``descriptors`` (N, n) float32 and ``confidence`` (N,) from 0 to 1.

    Every row has a guess. Confidence 0 says that nothing better is known than the subspace itself. Where a lifting
    after an encoder was attacked, ``inside`` (N, n') are the points found in the space that was lifted, else None.
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
            inside = frozen_array(self.inside, "points found", (len(descriptors), None))
            object.__setattr__(self, "inside", inside)

    def __len__(self) -> int:
        return len(self.descriptors)

    def __repr__(self) -> str:
        return f"Recovered({len(self)} x {self.descriptors.shape[1]}, {(self.confidence > 0).sum()} with a guess)"


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: its name, the fields of Knowledge it ``needs``, what it ``assumes`` in a sentence, what it does.

    ``encoded`` is what it needs on features that went through an encoder, None if it does not work there: it then
    knows the space of clear descriptors only, or finds points of the encoder's. ``only_encoded``: it is for them alone.
    ``lifted`` says whether encoded features must have been lifted after it, or must not; None: either will do.
    ``sealed`` is what it needs on features under a key, None if it does not work there: all that go by distances to
    clear or encoded descriptors would need the key. ``helped_by`` are fields it also works without, and uses where
    they are known.
    """

    name: str
    needs: tuple[str, ...]
    assumes: str
    recover: Callable[[ConcealedFeatures, Knowledge], Recovered]
    encoded: tuple[str, ...] | None = None
    only_encoded: bool = False
    helped_by: tuple[str, ...] = ()
    lifted: bool | None = None
    sealed: tuple[str, ...] | None = None
    only_sealed: bool = False

    def __post_init__(self) -> None:
        unknown = set(self.needs) | set(self.encoded or ()) | set(self.helped_by) | set(self.sealed or ())
        unknown -= set(MEANINGS)
        if unknown:
            raise InputError(f"attack {self.name} needs {', '.join(sorted(unknown))}, which is no kind of knowledge")
        if "clear" in self.helped_by:
            raise InputError(f"attack {self.name}: who uses clear descriptors needs them, and says so")

    def needs_on(self, recipe: Recipe) -> tuple[str, ...] | None:
        """Return the fields of Knowledge it needs on features of a recipe; None if it is not for such."""
        if recipe.is_sealed:
            return self.sealed
        if self.only_sealed:
            return None
        if recipe.has_encoder:
            return self.encoded if self.lifted in (None, recipe.lifting is not None) else None
        return None if self.only_encoded else self.needs

    def uses_on(self, recipe: Recipe, knowledge: Knowledge) -> tuple[str, ...]:
        """Return the fields it is handed of some knowledge: those it needs, and what is known of those that help."""
        known = knowledge.known
        wanted = (*(self.needs_on(recipe) or ()), *self.helped_by)
        return tuple(name for name in dict.fromkeys(wanted) if name in known)


def run_attack(attack: Attack, features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Run an attack on the concealed features of one image, with what it needs and is helped by; it sees no more.

    Raises InputError if something it needs is not known, or is about other descriptors, and for an attack that is not
    for features of this recipe.
    """
    needs = attack.needs_on(features.recipe)
    if needs is None:
        if features.recipe.is_sealed or attack.only_sealed:
            raise InputError(
                f"the attack {attack.name} is not for {'' if features.recipe.is_sealed else 'un'}sealed features"
            )
        others = "did not go" if attack.only_encoded and not features.recipe.has_encoder else "went"
        lifting = "" if attack.lifted is None else " and were not lifted" if attack.lifted else " and were then lifted"
        raise InputError(f"the attack {attack.name} is not for features that {others} through an encoder{lifting}")
    missing = [name for name in needs if name not in knowledge.known]
    if missing:
        told = " and ".join(f"{MEANINGS[name]} ({name})" for name in missing)
        raise InputError(f"the attack {attack.name} needs {told}")
    knowledge.fits(features)
    if len(features) == 0:
        return Recovered(np.empty((0, knowledge.clear_dim(features)), np.float32), np.empty(0, np.float32))
    recovered = attack.recover(features, knowledge.only(attack.uses_on(features.recipe, knowledge)))
    wanted = (len(features), knowledge.clear_dim(features))
    blind = features.recipe.has_encoder and knowledge.clear is None  # then nobody knows the dimension
    if recovered.descriptors.shape != wanted and not (blind and len(recovered) == len(features)):
        raise InputError(f"the attack {attack.name} returned {recovered.descriptors.shape}")
    return recovered


def fallback(subspaces: Subspaces) -> Recovered:
    """Return what the subspace alone says: its point nearest to 0, scaled to unit norm, with confidence 0."""
    norms = np.linalg.norm(subspaces.origin.astype(np.float64), axis=1, keepdims=True)
    guesses = subspaces.origin / np.where(norms > 0, norms, 1)
    return Recovered(guesses.astype(np.float32), np.zeros(len(subspaces), np.float32))
