# SPDX-License-Identifier: Apache-2.0
"""Attack every image of an archive with what the attacker knows, and score it where the clear features are at hand.

Knows which knowledge belongs to which image. Keeps distances and confidences; recovered descriptors are handed on,
image by image, to whoever wants to see pictures of them, and forgotten.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.attacks.knowledge import Attack, Companions, Knowledge, Recovered, run_attack
from sfumato.attacks.liftings.neighbours import NEIGHBOURS, Recover, oracle, oracle_sphere
from sfumato.attacks.liftings.oracle_curves import Curve, encoder_curves, mean_curve, oracle_curve
from sfumato.attacks.registry import ATTACKS, applicable
from sfumato.attacks.seals.attacks import LARGEST_POOL, thinned
from sfumato.concealment.resolve import Resolved
from sfumato.errors import ArchiveError, InputError, suggest
from sfumato.features.hloc import UNTOLD
from sfumato.geometry.model import Model, read_model, refuse_other_keypoints
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Matches

# ----------------------------------------------------------------
# Where companions come from: a second archive of the same photos, matches, or a COLMAP model of concealed images
# All of it is what a server has. Knows keypoints, matches, tracks and archives; never a clear descriptor.


Archive = Mapping[str, ConcealedFeatures]

SAME_KEYPOINT_PX = 0.01
SAME_ANGLE = 0.1


def companions_from_archive(features: ConcealedFeatures, other: ConcealedFeatures) -> Companions:
    """Return the companions that the same image of a second archive gives: rows with the same keypoint.

    Where the rows are in another order or number, place, scale and angle of the keypoints tell which is which.
    """
    _refuse_other_space(features.subspaces, other.subspaces)
    if np.array_equal(features.keypoints, other.keypoints):
        rows: NDArray[np.intp] = np.arange(len(features))
        return Companions(rows=rows.astype(np.int32), subspaces=other.subspaces)
    rows, others = _same_keypoints(features.keypoints, other.keypoints)
    return Companions(rows=rows.astype(np.int32), subspaces=other.subspaces[others])


def companions_from_matches(
    name: str, matches: Mapping[tuple[str, str], Matches], archive: Archive, *, nearest_only: bool = False
) -> Companions:
    """Return the companions of the image ``name`` in all images it was matched with.

    With ``nearest_only`` each row keeps the partner at the least distance, as ``Knowledge.partners`` wants it.
    """
    rows, subspaces, distances = [], [], []
    for first, second in matches:
        if name in (first, second) and first != second:
            found = matches[first, second]
            side = 0 if name == first else 1
            other = archive[second if name == first else first]
            rows.append(found.indices[:, side])
            subspaces.append(other.subspaces[found.indices[:, 1 - side]])
            distances.append(found.distances)
    if not rows:
        return _nobody(archive[name].subspaces)
    every, joined = np.concatenate(rows), _join(subspaces)
    if nearest_only:
        order = np.lexsort((np.concatenate(distances), every))
        kept = order[np.r_[True, np.diff(every[order]) > 0]] if len(order) else order
        every, joined = every[kept], joined[kept]
    return Companions(rows=every.astype(np.int32), subspaces=joined)


def companions_from_model(name: str, model: Model | str | os.PathLike[str], archive: Archive) -> Companions:
    """Return the other observations of every track of a COLMAP model that the image ``name`` has part in.

    ``model`` may be its folder, ``archive`` is what it was made from: point2D row i is feature row i.

    Raises InputError for an image that is not in the model, or has other keypoints there.
    """
    known = model if isinstance(model, Model) else read_model(model)
    if name not in known:
        raise InputError(f"image {name!r:.80} is not in the model, which has {len(known.names)} images")
    features = archive[name]
    refuse_other_keypoints(name, known, features.keypoints)
    sight = known.sight(name)
    row_of: NDArray[np.int64] = np.full(len(known.landmarks), -1, np.int64)
    row_of[sight.landmarks] = sight.keypoints
    rows, subspaces = [], []
    for other in known.names:
        seen = known.sight(other)
        shared = (row_of[seen.landmarks] >= 0) & (other != name)
        if shared.any():
            there = archive[other]
            refuse_other_keypoints(other, known, there.keypoints)
            rows.append(row_of[seen.landmarks[shared]])
            subspaces.append(there.subspaces[seen.keypoints[shared]])
    if not rows:
        return _nobody(features.subspaces)
    return Companions(rows=np.concatenate(rows).astype(np.int32), subspaces=_join(subspaces))


def _same_keypoints(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of equal keypoints (x, y, scale, angle) of both sides; one that stands twice counts once."""
    units = np.array([SAME_KEYPOINT_PX, SAME_KEYPOINT_PX, SAME_KEYPOINT_PX, SAME_ANGLE])
    known: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(np.rint(second / units).astype(np.int64).tolist()):
        known.setdefault(tuple(key), row)
    keys = [tuple(key) for key in np.rint(first / units).astype(np.int64).tolist()]
    rows = [row for row, key in enumerate(keys) if key in known]
    return np.array(rows, np.intp), np.array([known[keys[row]] for row in rows], np.intp)


def _join(parts: list[Subspaces]) -> Subspaces:
    dims = {(part.dim, part.ambient_dim) for part in parts}
    if len(dims) > 1:
        raise InputError(f"companions of different dimensions cannot be joined: {sorted(dims)}")
    return Subspaces(np.concatenate([part.origin for part in parts]), np.concatenate([part.basis for part in parts]))


def _nobody(like: Subspaces) -> Companions:
    return Companions(rows=np.zeros(0, np.int32), subspaces=like[:0])


def _refuse_other_space(first: Subspaces, second: Subspaces) -> None:
    if first.ambient_dim != second.ambient_dim:
        raise InputError(
            f"the releases have {first.ambient_dim} and {second.ambient_dim} dimensions: not the same descriptors"
        )


# ----------------------------------------------------------------
# How near recovered descriptors come to the clear ones. Knows distances, not attacks, and keeps no descriptor


WITHIN = (0.02, 0.1, 0.3)
"""Distances, where descriptors have unit norm: broken, recognisably near, still useful to an inverter."""


def recovery_distances(recovered: Recovered, clear: ArrayLike) -> NDArray[np.float64]:
    """Return the distance (N,) of each recovered descriptor to its clear one, ``clear`` (N, n)."""
    truth = frozen_array(clear, "clear descriptors", recovered.descriptors.shape)
    distances: NDArray[np.float64] = np.linalg.norm(recovered.descriptors.astype(np.float64) - truth, axis=1)
    return distances


def summarise_distances(distances: NDArray[np.float64]) -> dict[str, float]:
    """Return count, mean and median of distances (N,), and the share within each of ``WITHIN``; NaN of nothing."""
    count = len(distances)
    shares = {f"within {limit}": float((distances <= limit).mean()) if count else float("nan") for limit in WITHIN}
    middle = (float(distances.mean()), float(np.median(distances))) if count else (float("nan"), float("nan"))
    return {"count": float(count), "mean": middle[0], "median": middle[1], **shares}


def score_recovery(recovered: Recovered, clear: ArrayLike) -> dict[str, float]:
    """Score an attack against the clear descriptors (N, n): count, mean and median distance, shares within.

    >>> guess = Recovered(np.eye(2, 4), np.ones(2))
    >>> score_recovery(guess, np.eye(2, 4))["within 0.02"]
    1.0
    """
    return summarise_distances(recovery_distances(recovered, clear))


Seen = Callable[[str, str, ConcealedFeatures, Recovered], None]
Progress = Callable[[Iterable[Any]], Iterable[Any]]

SAME_PLACE_PX = 0.01

ORACLES: dict[str, Callable[[int], Recover]] = {
    "oracle": oracle,
    "oracle-projected": partial(oracle, projected=True),
    "oracle-sphere": oracle_sphere,
    "oracle-base": partial(oracle, database="base"),
    "oracle-encoded": partial(oracle, database="encoded"),
}
"""Attacks that are told how many neighbours they may ask about, and how each asks."""

SAME_KIND = {
    "public": "the public descriptors are {0}, the features are {1}: build them from other photos with sfumato decoys "
    "build",
    "decoys": "the decoys are {0}, the features are {1}: give the decoys the features were concealed with",
    "clear": "the clear features are {0}, the concealed ones {1}: extract them with the options of sfumato conceal",
}
"""What must be of the same kind as the attacked features, and what is said if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Materials:
    """What the attacker has for all images: ``general`` knowledge, and by image ``clear`` features (an oracle's, and
    the score's), a second ``release``, ``matches`` between images and the ``model`` folder of a map.

    ``kinds`` says of which extractor public descriptors, decoys and clear features are, by the keys of ``SAME_KIND``,
    so that those of another kind than the attacked are refused."""

    general: Knowledge = field(default_factory=Knowledge)
    clear: Mapping[str, Features] | None = None
    release: Archive | None = None
    matches: Mapping[tuple[str, str], Matches] | None = None
    model: str | Path | None = None
    kinds: Mapping[str, Extractor] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class Outcome:
    """What an attack came to: ``images`` attacked, what was ``used`` of the knowledge about any of them, ``confidence``
    of each feature, ``distances`` to the clear ones where they are known, and those ``inside`` the space that was
    lifted where an encoder came before."""

    attack: Attack
    images: int = 0
    used: tuple[str, ...] = ()
    confidence: list[NDArray[np.float32]] = field(default_factory=list)
    distances: list[NDArray[np.float64]] = field(default_factory=list)
    inside: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """The attack in plain numbers, no descriptor among them."""
        sure = np.concatenate([np.empty(0, np.float32), *self.confidence])
        facts: dict[str, Any] = {
            "attack": self.attack.name,
            "knowledge": list(self.used if self.images else self.attack.needs),
            "assumes": self.attack.assumes,
            "images": self.images,
            "features": len(sure),
            "with a guess": int((sure > 0).sum()),
            "confident": int((sure > 0.5).sum()),
        }
        if self.distances:
            facts |= summarise_distances(np.concatenate(self.distances))
        if self.inside:
            facts["lifted space"] = summarise_distances(np.concatenate(self.inside))
        return facts

    def __repr__(self) -> str:
        return f"Outcome({self.attack.name}, {self.images} images)"


def choose_attacks(names: Iterable[str], neighbours: int = NEIGHBOURS) -> dict[str, Attack]:
    """Return attacks by name; the oracle is asked about so many neighbours.

    Raises InputError for a name that no attack has, and suggests one, and if there is no name.
    """
    chosen: dict[str, Attack] = {}
    for name in names:
        if name not in ATTACKS:
            raise InputError(
                f"no attack is called {name!r:.80}{suggest(name, ATTACKS)}; there are {', '.join(ATTACKS)}"
            )
        chosen[name] = ATTACKS[name]
        if name in ORACLES:
            chosen[name] = replace(ATTACKS[name], recover=ORACLES[name](neighbours))
    if not chosen:
        raise InputError(f"no attack was named; there are {', '.join(ATTACKS)}")
    return chosen


def attack_archive(
    archive: Archive,
    names: Iterable[str] | None,
    materials: Materials,
    *,
    neighbours: int = NEIGHBOURS,
    seen: Seen | None = None,
    progress: Progress = iter,
) -> tuple[list[Outcome], dict[str, str]]:
    """Run attacks on every image, by name or (None) all that the materials allow.

    Returns what each came to, in the order of the table, and the images that could not be used with the reason.
    ``seen`` is called with attack, image name, concealed features and what was recovered.
    """
    chosen = choose_attacks(ATTACKS if names is None else names, neighbours)
    model = None if materials.model is None else read_model(materials.model)
    outcomes = {name: Outcome(attack) for name, attack in chosen.items()}
    if any("pool" in attack.needs for attack in chosen.values()):
        materials = replace(materials, general=replace(materials.general, pool=pool_of(archive)))
    left_out: dict[str, str] = {}
    for name in progress(list(archive)):
        try:
            features = archive[name]
            knowledge = knowledge_of(name, features, archive, materials, model)
        except (ArchiveError, InputError) as problem:
            left_out[name] = str(problem)
            continue
        allowed = applicable(features, knowledge) if names is None else tuple(chosen)
        for attack in (chosen[each] for each in allowed):
            recovered = run_attack(attack, features, knowledge)
            outcome = outcomes[attack.name]
            outcome.images += 1
            outcome.used = tuple(dict.fromkeys((*outcome.used, *attack.uses_on(features.recipe, knowledge))))
            outcome.confidence.append(recovered.confidence)
            if knowledge.clear is not None:
                outcome.distances.append(recovery_distances(recovered, knowledge.clear))
                outcome.inside += distances_inside(recovered, knowledge)
            if seen is not None:
                seen(attack.name, name, features, recovered)
    ran = [outcome for outcome in outcomes.values() if outcome.images or names is not None]
    return ran, left_out


def pool_of(archive: Archive) -> NDArray[np.float32] | None:
    """Return all codes (P, B) of an archive that was sealed, evenly thinned out where they are many; else None.

    An image that cannot be read, or was sealed under another key, adds nothing: it is named where it is attacked.
    """
    codes, key = list[NDArray[np.float32]](), ""
    names = list(archive)
    share = max(1, LARGEST_POOL // max(1, len(names)))
    for name in names:
        try:
            features = archive[name]
        except ArchiveError:
            continue
        if not features.recipe.is_sealed:
            return None
        if len(features) and features.recipe.space == (key or features.recipe.space):
            key = features.recipe.space
            rows = features.subspaces.origin
            codes.append(rows if len(names) * len(rows) <= LARGEST_POOL else thinned(rows, share))
    if not codes:
        return None
    pool = np.concatenate(codes)
    pool.setflags(write=False)  # so that it is handed on as it is, and known again
    return pool


def distances_inside(recovered: Recovered, knowledge: Knowledge) -> list[NDArray[np.float64]]:
    """Return, where a lifting after an encoder was attacked, the distances (N,) to the clear ones in that space."""
    if recovered.inside is None or knowledge.encoder is None or knowledge.clear is None:
        return []
    found = Recovered(recovered.inside, recovered.confidence)
    return [recovery_distances(found, knowledge.encoder(knowledge.clear))]


def archive_curves(archive: Archive, materials: Materials) -> dict[str, Curve]:
    """Return how near oracles come over the number of neighbours, over the rows of all images that have some.

    Of encoded features the three of NinjaDesc's Figure 11, of others "oracle".

    Raises InputError without public and clear descriptors; an image that cannot be used stops it.
    """
    found: dict[str, list[Curve]] = {}
    for name in archive:
        features = archive[name]
        known = knowledge_of(name, features, archive, materials, None)
        if known.public is None or known.clear is None:
            raise InputError("the curves of an oracle need public and clear descriptors")
        if not len(features):
            continue
        if features.recipe.has_encoder:
            curves = encoder_curves(features, known)
        else:
            curves = {"oracle": oracle_curve(features.subspaces, known.clear, known.public)}
        for title, curve in curves.items():
            found.setdefault(title, []).append(curve)
    return {title: mean_curve(curves) for title, curves in found.items()}


def knowledge_of(
    name: str, features: ConcealedFeatures, archive: Archive, materials: Materials, model: Model | None
) -> Knowledge:
    """Return what is known about one image.

    Raises InputError where the clear features are not those that were concealed, or were encoded by another encoder,
    or something known is of another kind of descriptor.
    """
    refuse_other_kinds(features.extractor, materials.kinds)
    found: dict[str, Any] = {}
    encoder = materials.general.encoder
    before = features.recipe.links[:-1] if features.recipe.is_sealed else features.recipe.links
    if isinstance(encoder, Resolved) and encoder.recipe.space != (Recipe(links=before).space if before else ""):
        raise InputError(f"it was made by {features.recipe}, not by the encoder that is known, {encoder.recipe.space}")
    nobody = Companions(rows=np.empty(0, np.int32), subspaces=features.subspaces[:0])
    if materials.clear is not None:
        found["clear"] = _clear_rows(name, features, materials.clear)
    if materials.release is not None:
        there = name in materials.release
        found["releases"] = companions_from_archive(features, materials.release[name]) if there else nobody
    if materials.matches is not None:
        found["partners"] = companions_from_matches(name, materials.matches, archive, nearest_only=True)
        found["tracks"] = companions_from_matches(name, materials.matches, archive)
    if model is not None:
        found["tracks"] = companions_from_model(name, model, archive) if name in model else nobody
    return replace(materials.general, **found)


def refuse_other_kinds(attacked: Extractor, kinds: Mapping[str, Extractor]) -> None:
    """Raise InputError where something that must be of the attacked kind of descriptor is known to be of another."""
    for what, kind in kinds.items():
        told = kind.name not in UNTOLD and attacked.name not in UNTOLD
        if told and not kind.matches(attacked):
            raise InputError(SAME_KIND[what].format(kind.name, attacked.name))


def _clear_rows(name: str, features: ConcealedFeatures, clear: Mapping[str, Features]) -> NDArray[np.float32]:
    """Return the clear descriptors of an image, after checking that they are of its kind and at its keypoints."""
    if name not in clear:
        raise InputError("it is not among the clear features")
    known = clear[name]
    refuse_other_kinds(features.extractor, {"clear": known.extractor})
    same = len(known) == len(features) and bool(
        (np.abs(known.keypoints[:, :2] - features.keypoints[:, :2]) <= SAME_PLACE_PX).all()
    )
    if not same:
        raise InputError(
            f"its {len(known)} clear features are not the {len(features)} that were concealed: extract them with the "
            f"options of sfumato conceal"
        )
    return known.descriptors
