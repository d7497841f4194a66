# SPDX-License-Identifier: Apache-2.0
"""Attacks on archives: each image with what is known about it, scored where the clear features are known.

Distances and confidences are kept; recovered descriptors are handed on, image by image, and forgotten.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato import __version__
from sfumato.attacks.knowledge import Companions, Knowledge, Recovery, rows_of
from sfumato.attacks.liftings.neighbours import NEIGHBOURS
from sfumato.attacks.liftings.oracle_curves import OracleCurve, encoder_curves, mean_curve, oracle_curve
from sfumato.attacks.registry import ATTACKS, Attack, AttackId, applicable_attacks, choose_attacks, run_attack
from sfumato.attacks.seals.attacks import LARGEST_POOL, thinned
from sfumato.concealment.resolve import ResolvedRecipe
from sfumato.errors import ArchiveError, InputError
from sfumato.geometry.model import Model, read_model, refuse_other_keypoints
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import GENERIC_EXTRACTORS, Extractor
from sfumato.types.progress import Progress
from sfumato.types.recipe import Recipe
from sfumato.types.record import Record, Score, describe_machine
from sfumato.types.scene import Matches

Archive = Mapping[str, ConcealedFeatures]
OnRecovery = Callable[[str, str, ConcealedFeatures, Recovery], None]
"""Called with attack, image name, concealed features and what was recovered."""

WITHIN: tuple[float, ...] = (0.02, 0.1, 0.3)
"""Distances, where descriptors have unit norm: broken, recognisably near, still useful to an inverter."""

SAME_PLACE_PX, SAME_ANGLE = 0.01, 0.1
"""How far apart equal keypoints may be, in pixels and degrees, after rounding in files."""

SAME_KIND = {
    "public": "the public descriptors are {0}, the features are {1}: build them from other photos with sfumato decoys "
    "build",
    "decoys": "the decoys are {0}, the features are {1}: give the decoys the features were concealed with",
    "clear": "the clear features are {0}, the concealed ones {1}: extract them with the options of sfumato conceal",
}
"""Inputs that must be of the same kind as the attacked features, and the message if they are not."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Materials:
    """Inputs of the attacker for all images: ``general`` knowledge, and by image ``clear`` features (an oracle's, and
    the score's), a second ``release``, ``matches`` between images and the ``model`` folder of a map.

    ``kinds``: the extractors of public descriptors, decoys and clear features, by the keys of ``SAME_KIND``; those of
    another kind than the attacked features are refused.
    """

    general: Knowledge = field(default_factory=Knowledge)
    clear: Mapping[str, Features] | None = None
    release: Archive | None = None
    matches: Mapping[tuple[str, str], Matches] | None = None
    model: str | Path | None = None
    kinds: Mapping[str, Extractor] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class AttackSummary:
    """Results of one attack: ``images`` attacked, the knowledge ``used`` on any of them, ``confidence`` of each
    feature, ``distances`` to the clear ones where they are known, and those ``inside`` the space that was lifted where
    an encoder came before."""

    attack: Attack
    images: int = 0
    used: tuple[str, ...] = ()
    confidence: list[NDArray[np.float32]] = field(default_factory=list)
    distances: list[NDArray[np.float64]] = field(default_factory=list)
    inside: list[NDArray[np.float64]] = field(default_factory=list)
    recipe: str = ""
    descriptor: str = ""
    seconds: float = 0.0

    def add(self, features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
        """Attack one image, note how near that came, and return what was recovered."""
        start = time.perf_counter()
        recovery = run_attack(self.attack, features, knowledge)
        self.seconds += time.perf_counter() - start
        self.images += 1
        self.used = tuple(dict.fromkeys((*self.used, *self.attack.uses_on(features.recipe, knowledge))))
        self.recipe, self.descriptor = str(features.recipe), features.extractor.name
        self.confidence.append(recovery.confidence)
        if knowledge.clear is not None:
            self.distances.append(recovery_distances(recovery, knowledge.clear))
            self.inside += distances_inside(recovery, knowledge)
        return recovery

    @property
    def facts(self) -> dict[str, Any]:
        """The attack in plain numbers, no descriptor among them."""
        confidence = np.concatenate([np.empty(0, np.float32), *self.confidence])
        facts: dict[str, Any] = {
            "attack": self.attack.name,
            "knowledge": list(self.used if self.images else self.attack.needs),
            "assumes": self.attack.assumes,
            "images": self.images,
            "features": len(confidence),
            "with a guess": int((confidence > 0).sum()),
            "confident": int((confidence > 0.5).sum()),
        }
        if self.distances:
            facts |= summarise_distances(np.concatenate(self.distances))
        if self.inside:
            facts["lifted space"] = summarise_distances(np.concatenate(self.inside))
        return facts

    def record(self, left_out: Mapping[str, str]) -> Record:
        """Return the results as a record, with the images that could not be used."""
        facts = self.facts
        figures = {name: facts[name] for name in ("images", "features", "with a guess", "confident")}
        figures |= {
            name: facts[name] for name in ("mean", "median", *(f"within {limit}" for limit in WITHIN)) if name in facts
        }
        figures |= {f"lifted {name}": value for name, value in facts.get("lifted space", {}).items() if name != "count"}
        return Record(
            task="attack",
            scores=tuple(
                Score(name, float(value), samples=facts["features"])
                for name, value in figures.items()
                if np.isfinite(value)
            ),
            params={
                "recipe": self.recipe,
                "attack": self.attack.name,
                "knows": ", ".join(facts["knowledge"]),
                "descriptor": self.descriptor,
                **AttackId(self.attack.name).facts.params,
            },
            commit=f"sfumato {__version__}",
            machine=describe_machine(),
            seconds=self.seconds,
            dropped=tuple(f"{name}: {reason}" for name, reason in left_out.items()),
        )

    def __repr__(self) -> str:
        return f"AttackSummary({self.attack.name}, {self.images} images)"


def attack_archive(
    archive: Archive,
    names: Iterable[str] | None,
    materials: Materials,
    *,
    neighbours: int = NEIGHBOURS,
    on_recovery: OnRecovery | None = None,
    progress: Progress = iter,
) -> tuple[list[AttackSummary], dict[str, str]]:
    """Run attacks on every image, by name or (None) all that fit and the materials allow.

    Returns the results of each, in the order of the registry, and the images that could not be used with the reason.

    Raises InputError for an attack by name that does not exist, does not fit or lacks something it needs.
    """
    attacks = choose_attacks(ATTACKS if names is None else names, neighbours)
    model = None if materials.model is None else read_model(materials.model)
    summaries = {name: AttackSummary(attack) for name, attack in attacks.items()}
    if any("pool" in attack.needs for attack in attacks.values()):
        materials = replace(materials, general=replace(materials.general, pool=pool_of(archive)))
    left_out: dict[str, str] = {}
    for name in progress(list(archive)):
        try:
            features = archive[name]
            knowledge = knowledge_of(name, features, archive, materials, model)
        except (ArchiveError, InputError) as problem:
            left_out[name] = str(problem)
            continue
        for attack in applicable_attacks(features, knowledge) if names is None else attacks:
            recovery = summaries[attack].add(features, knowledge)
            if on_recovery is not None:
                on_recovery(attack, name, features, recovery)
    return [one for one in summaries.values() if one.images or names is not None], left_out


def pool_of(archive: Archive) -> NDArray[np.float32] | None:
    """Return all codes (P, B) of a sealed archive, evenly thinned where they are many; None if it is not sealed.

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
            rows = rows_of(features.code)
            codes.append(rows if len(names) * len(rows) <= LARGEST_POOL else thinned(rows, share))
    if not codes:
        return None
    pool = np.concatenate(codes)
    pool.setflags(write=False)  # caches know a read-only array again
    return pool


def knowledge_of(
    name: str, features: ConcealedFeatures, archive: Archive, materials: Materials, model: Model | None
) -> Knowledge:
    """Return what is known about one image.

    Raises InputError where the clear features are not those that were concealed, or were encoded by another encoder,
    or something known is of another kind of descriptor.
    """
    refuse_other_kinds(features.extractor, materials.kinds)
    values: dict[str, Any] = {}
    encoder = materials.general.encoder
    before = features.recipe.links[:-1] if features.recipe.is_sealed else features.recipe.links
    if isinstance(encoder, ResolvedRecipe) and encoder.recipe.space != (Recipe(links=before).space if before else ""):
        raise InputError(f"it was made by {features.recipe}, not by the known encoder {encoder.recipe.space}")
    if materials.clear is not None:
        values["clear"] = _clear_rows(name, features, materials.clear)
    if materials.release is not None:
        is_there = name in materials.release
        values["releases"] = (
            companions_from_archive(features, materials.release[name]) if is_there else no_companions(features)
        )
    if materials.matches is not None:
        values["partners"] = companions_from_matches(name, materials.matches, archive, nearest_only=True)
        values["tracks"] = companions_from_matches(name, materials.matches, archive)
    if model is not None:
        values["tracks"] = companions_from_model(name, model, archive) if name in model else no_companions(features)
    return replace(materials.general, **values)


def refuse_other_kinds(attacked: Extractor, kinds: Mapping[str, Extractor]) -> None:
    """Raise InputError where something that must be of the attacked kind of descriptor is known to be of another."""
    for name, kind in kinds.items():
        both_known = kind.name not in GENERIC_EXTRACTORS and attacked.name not in GENERIC_EXTRACTORS
        if both_known and not kind.matches(attacked):
            raise InputError(SAME_KIND[name].format(kind.name, attacked.name))


def _clear_rows(name: str, features: ConcealedFeatures, clear: Mapping[str, Features]) -> NDArray[np.float32]:
    """Return the clear descriptors of an image, after checking that they are of its kind and at its keypoints."""
    if name not in clear:
        raise InputError("it is not among the clear features")
    own = clear[name]
    refuse_other_kinds(features.extractor, {"clear": own.extractor})
    if not features.is_shown.all():
        raise InputError(
            "where positions stay home rows lie in an order under the key, and nobody can compare them with clear "
            "features without it: to score attacks, conceal with --positions (positions=True)"
        )
    is_same = len(own) == len(features) and bool(
        (np.abs(own.keypoints[:, :2] - features.keypoints[:, :2]) <= SAME_PLACE_PX).all()
    )
    if not is_same:
        raise InputError(
            f"its {len(own)} clear features are not the {len(features)} that were concealed: extract them with the "
            f"options of sfumato conceal"
        )
    return own.descriptors


# --- distances to the clear descriptors


def recovery_distances(recovery: Recovery, clear: ArrayLike) -> NDArray[np.float64]:
    """Return the distance (N,) of each recovered descriptor to its clear one, ``clear`` (N, n)."""
    truth = frozen_array(clear, "clear descriptors", recovery.descriptors.shape)
    distances: NDArray[np.float64] = np.linalg.norm(recovery.descriptors.astype(np.float64) - truth, axis=1)
    return distances


def distances_inside(recovery: Recovery, knowledge: Knowledge) -> list[NDArray[np.float64]]:
    """Return, where a lifting after an encoder was attacked, the distances (N,) to the clear ones in that space."""
    if recovery.inside is None or knowledge.encoder is None or knowledge.clear is None:
        return []
    points = Recovery(recovery.inside, recovery.confidence)
    return [recovery_distances(points, knowledge.encoder(knowledge.clear))]


def summarise_distances(distances: NDArray[np.float64]) -> dict[str, float]:
    """Return count, mean and median of distances (N,), and the share within each of ``WITHIN``; NaN of nothing."""
    count = len(distances)
    shares = {f"within {limit}": float((distances <= limit).mean()) if count else float("nan") for limit in WITHIN}
    middle = (float(distances.mean()), float(np.median(distances))) if count else (float("nan"), float("nan"))
    return {"count": float(count), "mean": middle[0], "median": middle[1], **shares}


def score_recovery(recovery: Recovery, clear: ArrayLike) -> dict[str, float]:
    """Score a recovery against the clear descriptors (N, n): count, mean and median distance, shares within some.

    >>> guess = Recovery(np.eye(2, 4), np.ones(2))
    >>> score_recovery(guess, np.eye(2, 4))["within 0.02"]
    1.0
    """
    return summarise_distances(recovery_distances(recovery, clear))


# --- oracles over the number of neighbours


def archive_curves(archive: Archive, materials: Materials) -> dict[str, OracleCurve]:
    """Return how near oracles come over the number of neighbours, over the rows of all images that have some.

    Encoded features have the three curves of NinjaDesc's Figure 11, others one, "oracle".

    Raises InputError without public and clear descriptors, and for an image that cannot be used.
    """
    by_title: dict[str, list[OracleCurve]] = {}
    for name in archive:
        features = archive[name]
        knowledge = knowledge_of(name, features, archive, materials, None)
        if knowledge.public is None or knowledge.clear is None:
            raise InputError("the curves of an oracle need public and clear descriptors")
        if not len(features):
            continue
        if features.recipe.has_encoder:
            curves = encoder_curves(features, knowledge)
        else:
            curves = {"oracle": oracle_curve(features.subspaces, knowledge.clear, knowledge.public)}
        for title, curve in curves.items():
            by_title.setdefault(title, []).append(curve)
    return {title: mean_curve(curves) for title, curves in by_title.items()}


# --- companions: a second release, matches, or tracks of a COLMAP model; all of it is what a server has


def companions_from_archive(features: ConcealedFeatures, other: ConcealedFeatures) -> Companions:
    """Return the companions that the same image of a second archive gives: rows with the same keypoint.

    Where the rows differ in order or number, they are paired by position, scale and angle of the keypoints.
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
            pair = matches[first, second]
            side = 0 if name == first else 1
            other = archive[second if name == first else first]
            rows.append(pair.indices[:, side])
            subspaces.append(other.subspaces[pair.indices[:, 1 - side]])
            distances.append(pair.distances)
    if not rows:
        return no_companions(archive[name])
    all_rows, joined = np.concatenate(rows), _join(subspaces)
    if nearest_only:
        order = np.lexsort((np.concatenate(distances), all_rows))
        nearest = order[np.r_[True, np.diff(all_rows[order]) > 0]] if len(order) else order
        all_rows, joined = all_rows[nearest], joined[nearest]
    return Companions(rows=all_rows.astype(np.int32), subspaces=joined)


def companions_from_model(name: str, model: Model | str | os.PathLike[str], archive: Archive) -> Companions:
    """Return the other observations of every track of a COLMAP model that the image ``name`` has part in.

    ``model`` may be its folder, ``archive`` is what it was made from: point2D row i is feature row i.

    Raises InputError for an image that is not in the model, or has other keypoints there.
    """
    views = model if isinstance(model, Model) else read_model(model)
    if name not in views:
        raise InputError(f"image {name!r:.80} is not in the model, which has {len(views.names)} images")
    features = archive[name]
    refuse_other_keypoints(name, views, features.keypoints)
    sight = views.sight(name)
    row_of: NDArray[np.int64] = np.full(len(views.landmarks), -1, np.int64)
    row_of[sight.landmarks] = sight.keypoints
    rows, subspaces = [], []
    for other in views.names:
        view = views.sight(other)
        shared = (row_of[view.landmarks] >= 0) & (other != name)
        if shared.any():
            refuse_other_keypoints(other, views, archive[other].keypoints)
            rows.append(row_of[view.landmarks[shared]])
            subspaces.append(archive[other].subspaces[view.keypoints[shared]])
    if not rows:
        return no_companions(features)
    return Companions(rows=np.concatenate(rows).astype(np.int32), subspaces=_join(subspaces))


def no_companions(features: ConcealedFeatures) -> Companions:
    """Return companions of no row."""
    return Companions(rows=np.zeros(0, np.int32), subspaces=features.subspaces[:0])


def _same_keypoints(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of equal keypoints (x, y, scale, angle) of both sides; one that stands twice counts once."""
    units = np.array([SAME_PLACE_PX, SAME_PLACE_PX, SAME_PLACE_PX, SAME_ANGLE])
    row_of: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(np.rint(second / units).astype(np.int64).tolist()):
        row_of.setdefault(tuple(key), row)
    keys = [tuple(key) for key in np.rint(first / units).astype(np.int64).tolist()]
    rows = [row for row, key in enumerate(keys) if key in row_of]
    return np.array(rows, np.intp), np.array([row_of[keys[row]] for row in rows], np.intp)


def _join(parts: list[Subspaces]) -> Subspaces:
    dims = {(part.dim, part.ambient_dim) for part in parts}
    if len(dims) > 1:
        raise InputError(f"companions of different dimensions cannot be joined: {sorted(dims)}")
    return Subspaces(np.concatenate([part.origin for part in parts]), np.concatenate([part.basis for part in parts]))


def _refuse_other_space(first: Subspaces, second: Subspaces) -> None:
    if first.ambient_dim != second.ambient_dim:
        raise InputError(
            f"the releases have {first.ambient_dim} and {second.ambient_dim} dimensions: not the same descriptors"
        )
