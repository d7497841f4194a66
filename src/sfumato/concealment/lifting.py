# SPDX-License-Identifier: Apache-2.0
"""Concealment of features, the one crossing from clear to concealed: encoders first, then at most one lifting.

Encoders move descriptors to another space; lifting turns them into affine subspaces (sections 3.2 and 4.1.1 of the
paper).

Each descriptor d becomes a subspace through d that also holds decoys w_i (directions w_i - d), random directions, or
both. The result is a function of the subspace alone: its point nearest to 0, and an orthonormal basis turned by
a random rotation. The translation vector of Eq. 7 would leave a box around d; a basis in sampling order, the
directions w_i - d.
"""

import os
import warnings
from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys, checked_labels, full_pool, label_pool, part_pool
from sfumato.concealment.draw_decoys import Supply, decoys_for
from sfumato.concealment.keys import sealing_key
from sfumato.concealment.randomness import Draws, KeyedDraws, SeededDraws, SystemDraws, normal, uniform
from sfumato.concealment.resolve import ResolvedRecipe, choose_bandwidth, encode_decoys, encode_points, resolve
from sfumato.concealment.rows import make_tags, photo_name, row_order
from sfumato.concealment.seal import UNNAMED, checked_key
from sfumato.concealment.subset import release_subsets
from sfumato.errors import DecoyError, EvaluationOnlyWarning, InputError, RecipeError
from sfumato.subspace.reference import canonical_origin, gram_schmidt
from sfumato.types.arrays import frozen_array, whole_number
from sfumato.types.clear import Features
from sfumato.types.concealed import Bits, Code, ConcealedFeatures, Points, Subspaces
from sfumato.types.recipe import DEFAULT, KINDS, Link, Recipe

ATTEMPTS = 16
WELL_SPREAD = 1e-3
"""Directions closer than this to dependence are drawn again."""

BLOCK_BYTES = 2**21


@overload
def conceal(
    features_or_points: Features,
    recipe: Recipe | str = DEFAULT,
    decoys: Decoys | None = None,
    *,
    labels: ArrayLike | None = None,
    frames: bool | None = None,
    secret: bytes | None = None,
    place: str | None = None,
    evaluation_seed: int | None = None,
    positions: bool | None = None,
) -> ConcealedFeatures: ...
@overload
def conceal(
    features_or_points: ArrayLike,
    recipe: Recipe | str = DEFAULT,
    decoys: Decoys | None = None,
    *,
    labels: ArrayLike | None = None,
    secret: bytes | None = None,
    place: str | None = None,
    evaluation_seed: int | None = None,
) -> Code: ...
def conceal(
    features_or_points: Features | ArrayLike,
    recipe: Recipe | str = DEFAULT,
    decoys: Decoys | None = None,
    *,
    labels: ArrayLike | None = None,
    frames: bool | None = None,
    secret: bytes | None = None,
    place: str | None = None,
    evaluation_seed: int | None = None,
    positions: bool | None = None,
) -> ConcealedFeatures | Code:
    """Conceal the features of one image, or points (N, n).

    By default it is sealed (``sealed-512``), which needs ``secret``. The positions of sealed features stay home: their
    rows lie in an order under the key, which ``order_rows`` gives, with tags by which devices know them. ``positions``:
    True releases all, so that row i stands for row i of what came in, as it does for recipes without a seal, and
    outlines of the photo show. ``frames``: whether sizes and angles go with them, which serve inverters alone; None:
    unless it is sealed.

    ``recipe`` may begin with encoders (``ninja-sift-2.5``, ``ninja:FILE``); without a lifting after them the result is
    points of the encoder's space, subspaces of dimension 0. An encoder draws nothing: the same descriptor gives the
    same point on every device, and ``secret`` and ``evaluation_seed`` have no effect. With a lifting, the
    decoys, clear ones, go through the same encoders. A recipe that ends with ``sealed-512`` needs ``secret``: features
    match if they were sealed under the same one, with the same bandwidth. Without one in the recipe it is that of the
    kind of descriptor; for kinds that nobody measured it is estimated from these features, with a warning that names
    it.
    ``place`` seals under the key of that place.

    ``decoys`` are needed by every lifting but random. ``labels`` (N,) belong to hybrid-labels. With ``secret`` (a
    device key of at least 16 unguessable bytes) the same descriptor always gives the same subspace, so that a second
    release adds nothing; without, every call draws anew from the operating system, equal descriptors within one call
    sharing one subspace. ``evaluation_seed`` makes the draws repeatable for anyone, protects nobody, warns, and is
    stored in the recipe. Of a Recipe only the links are used: seed, key and decoys are noted anew.

    Raises RecipeError, DecoyError or InputError for what does not fit, FileError for an encoder's file.

    >>> import numpy as np
    >>> conceal(np.eye(3, 8), "random-2")
    Subspaces(3 of dimension 2 in R^8)
    """
    if evaluation_seed is not None:
        evaluation_seed = whole_number(evaluation_seed, "evaluation_seed")
    if isinstance(features_or_points, Features):
        resolved = resolve_for(recipe, features_or_points, secret=secret, place=place, evaluation_seed=evaluation_seed)
        return conceal_features(
            features_or_points,
            resolved,
            decoys,
            labels=labels,
            frames=frames,
            secret=secret,
            place=place,
            evaluation_seed=evaluation_seed,
            positions=positions,
        )
    points = frozen_array(features_or_points, "points", (None, None))
    resolved = resolve_for(recipe, points, secret=secret, place=place, evaluation_seed=evaluation_seed)
    return _apply(resolved, points, decoys, labels, _choose_draws(resolved.recipe, points, secret, evaluation_seed))


def resolve_for(
    recipe: Recipe | str,
    features: Features | NDArray[np.float32],
    *,
    secret: bytes | None = None,
    place: str | None = None,
    evaluation_seed: int | None = None,
) -> ResolvedRecipe:
    """Find the encoders of a recipe for the features of one image, or points; to seal, pass a key or a seed.

    ``place`` is as in ``conceal``.

    The result serves for all features of the same extractor and width. A seal in it holds what was drawn from the key:
    keep it no longer than the key. A seal whose recipe names no bandwidth takes that of the extractor's descriptors, or
    estimates it from these (``choose_bandwidth``); points are taken for SIFT.
    """
    recipe = Recipe.of(recipe)
    rows, name = (features.descriptors, features.extractor.name) if isinstance(features, Features) else (features, "")
    width = rows.shape[1]
    if width == 0:
        raise InputError("points: need at least one dimension")
    refuse_place(recipe, place)
    if recipe.is_sealed:
        checked_key(recipe, sealing_key(secret, evaluation_seed))
    key = sealing_key(secret, evaluation_seed, place)
    if recipe.is_sealed:
        recipe = choose_bandwidth(recipe, name or UNNAMED, rows, warns=secret is not None)
    return resolve(recipe, key, width)


def refuse_place(recipe: Recipe, place: str | None) -> None:
    """Raise InputError for a place of a recipe that is not sealed: nothing of it follows a key of a place."""
    if place is not None and not recipe.is_sealed:
        raise InputError(
            f"a place (--place, place=) belongs to recipes that are sealed under a device key; here {recipe} is not"
        )


def conceal_features(
    features: Features,
    resolved: ResolvedRecipe,
    decoys: Decoys | None = None,
    *,
    labels: ArrayLike | None = None,
    frames: bool | None = None,
    secret: bytes | None = None,
    place: str | None = None,
    evaluation_seed: int | None = None,
    positions: bool | None = None,
) -> ConcealedFeatures:
    """Conceal the features of one image with a recipe that was resolved for them, once for many images.

    The other arguments are those of ``conceal``, and ``place`` the one that the recipe was resolved for. Only here it
    is said what a recipe releases of keypoints.
    """
    _refuse_other_kind(features, resolved, decoys)
    chain, lifting = resolved.recipe, resolved.recipe.lifting
    is_home = stays_home(chain, positions, frames)
    key = sealing_key(secret, evaluation_seed, place) if is_home else None
    photo = "" if key is None else photo_name(key, features)
    if key is not None:
        features = features.take(row_order(key, photo, len(features)))
    draws = _choose_draws(chain, features.descriptors, secret, evaluation_seed)
    code = _apply(resolved, features.descriptors, decoys, labels, draws)
    draws_nothing = chain.has_encoder and lifting is None and not chain.is_sealed
    recipe = Recipe(
        links=chain.links,
        evaluation_seed=None if draws_nothing else evaluation_seed,
        keyed=secret is not None and not draws_nothing,
        decoys=decoys.checksum if decoys is not None and lifting is not None and lifting.decoy_count else None,
    )
    if key is not None and isinstance(code, Bits):
        nowhere, tags = np.full((len(code), 4), np.nan, np.float32), make_tags(key, photo, code)
        return ConcealedFeatures(nowhere, code, recipe, features.extractor, features.image_size, tags=tags)
    concealed = ConcealedFeatures(features.keypoints, code, recipe, features.extractor, features.image_size)
    keeps_frames = chain.keeps_frames if frames is None else frames
    return concealed if keeps_frames else concealed.positions_only()


def stays_home(recipe: Recipe, positions: bool | None = None, frames: bool | None = None) -> bool:
    """Tell whether positions stay on the device: those of seals, unless all are released with an explicit word.

    Raises InputError for what contradicts itself.
    """
    if positions is False and not recipe.is_sealed:
        raise InputError(
            f"positions stay home for recipes that are sealed, and {recipe} is not: seal the features (sealed-512)"
        )
    if frames and recipe.is_sealed and not positions:
        raise InputError(
            "sizes and angles (--frames, frames=True) go with positions: release all of them (--positions, "
            "positions=True), so that outlines show, or leave frames out"
        )
    return recipe.is_sealed and not positions


def _refuse_other_kind(features: Features, resolved: ResolvedRecipe, decoys: Decoys | None) -> None:
    resolved.refuse_others(features.extractor)
    if decoys is not None and not decoys.extractor.matches(features.extractor):
        raise DecoyError(
            f"these decoys are {decoys.extractor.name}, the features are {features.extractor.name}: build decoys of "
            f"the same kind from other photos or their features with sfumato decoys build"
        )


def _choose_draws(chain: Recipe, points: NDArray[np.float32], secret: bytes | None, seed: int | None) -> Draws:
    """Return the source of draws; keyed draws depend on the clear descriptors, which no rounding changes."""
    if secret is not None and seed is not None:
        raise InputError("secret and evaluation_seed exclude each other")
    context = f"{'+'.join(replace(link, forced=False).identity for link in chain.links)} in {points.shape[1]}"
    if secret is not None:
        return KeyedDraws(secret, context, points)
    if seed is None:
        return SystemDraws()
    Recipe("raw", evaluation_seed=seed)  # checks its range
    if chain.lifting is not None or chain.is_clear or chain.is_sealed:
        what = "seal" if chain.is_sealed else "lifting"
        warnings.warn(
            f"evaluation_seed makes this {what} repeatable by anyone: it protects nobody",
            EvaluationOnlyWarning,
            stacklevel=3,
        )
    return SeededDraws(seed, context, points)


def _apply(
    resolved: ResolvedRecipe, points: NDArray[np.float32], decoys: Decoys | None, labels: ArrayLike | None, draws: Draws
) -> Code:
    """Run the chain on points: nothing (raw), encoders, then a lifting or a seal."""
    lifting = resolved.recipe.lifting
    if resolved.encoders or resolved.seal:
        first, same = _distinct_rows(points, None)  # equal descriptors stay equal, to the last bit
        encoded = encode_points(resolved, points[first])
        if resolved.seal is not None:
            _refuse_labels(labels, resolved.recipe)
            return resolved.seal(encoded)[same]
        points = encoded[same]
    if lifting is None:
        _refuse_labels(labels, resolved.recipe)
        if resolved.recipe.is_clear:
            warnings.warn("recipe raw conceals nothing: for evaluations only", EvaluationOnlyWarning, stacklevel=3)
        return Points(points)
    if lifting.kind == "subset":
        _refuse_labels(labels, lifting)
        if decoys is None:
            raise DecoyError(f"{lifting} needs a dictionary: the decoys")
        return release_subsets(points, lifting, encode_decoys(resolved, decoys), draws)
    _check_dimension(lifting, points)
    return lift(points, lifting, _choose_supply(resolved, points, decoys, labels, draws), draws, labels)


def _refuse_labels(labels: ArrayLike | None, recipe: Recipe | Link) -> None:
    if labels is not None:
        raise InputError(f"labels have no effect on {recipe}: only hybrid-labels uses them")


def _check_dimension(link: Link, points: NDArray[np.float32]) -> None:
    m, n = link.dim or 0, points.shape[1]
    if m >= n:
        raise RecipeError(f"{link}: descriptors of {n} dimensions can be lifted to dimension {n - 1} at most")
    if m == 1 and not link.forced and _share_a_norm(points):
        raise RecipeError(
            f"{link}: these descriptors have unit norm (or another norm in common), and a line meets a sphere in two "
            f"points at most, one of them implausible (section 3.2 of the paper), so nothing is concealed. Use "
            f"{link.kind}-2, or '{link}-forced' to do it anyway"
        )


def _share_a_norm(points: NDArray[np.float32]) -> bool:
    """Tell whether most rows lie on one sphere around 0, or some on the unit sphere where there are few."""
    norms = np.linalg.norm(points.astype(np.float64), axis=1)
    common = np.median(norms) if len(norms) > 2 else 1.0
    return bool(
        len(norms) and (np.abs(norms - common) < 1e-3 * max(common, 1e-30)).mean() > (0.5 if len(norms) > 2 else 0)
    )


def _choose_supply(
    resolved: ResolvedRecipe, points: NDArray[np.float32], decoys: Decoys | None, labels: ArrayLike | None, draws: Draws
) -> Supply | None:
    """Return the decoys each descriptor may get under this kind of lifting; None where it needs none."""
    link = resolved.recipe.links[-1]
    mode = KINDS[link.kind].decoys
    if mode != "labels":
        _refuse_labels(labels, link)
    if mode == "none":
        return None
    if decoys is None:
        raise DecoyError(f"{link} needs decoys: sfumato.load_decoys() for SIFT, or a file made by sfumato decoys build")
    decoys, width = decoys_for(link, resolved, decoys), points.shape[1]
    if link.is_generated and resolved.encoders:
        width = resolved.encoders[0].input_dim
    if decoys.descriptors.shape[1] != width:
        raise DecoyError(f"decoys have {decoys.descriptors.shape[1]} dimensions, descriptors {width}")
    if mode == "labels":
        if labels is None:
            raise InputError(f"{link} needs labels, one for each of the {len(points)} descriptors")
        pool = label_pool(decoys, checked_labels(labels, len(points)))
    else:
        pool = full_pool(decoys, len(points)) if mode == "whole" else part_pool(decoys, len(points), draws)
    return Supply(link, decoys, pool, resolved)


def lift(
    points: NDArray[np.float32], link: Link, supply: Supply | None, draws: Draws, labels: ArrayLike | None = None
) -> Subspaces:
    """Lift points (N, n) to subspaces of dimension ``link.dim``; equal points share one."""
    (count, n), m = points.shape, link.dim or 0
    origin, basis = np.empty((count, n), np.float32), np.empty((count, m, n), np.float32)
    first, same = _distinct_rows(points, labels)
    per_block = max(1, BLOCK_BYTES // (8 * n * (m + 1)))
    for start in range(0, len(first), per_block):
        rows = first[start : start + per_block]
        origin[rows], basis[rows] = _lift_block(points, rows, link, supply, draws)
    if len(first) < count:
        origin, basis = origin[first[same]], basis[first[same]]
    origin.setflags(write=False)
    basis.setflags(write=False)
    return Subspaces(origin, basis)


def _lift_block(
    points: NDArray[np.float32], rows: NDArray[np.intp], link: Link, supply: Supply | None, draws: Draws
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lift rows of a block; draw again those whose directions are (nearly) dependent."""
    n, m, from_decoys = points.shape[1], link.dim or 0, link.decoy_count
    for_supply = 0 if supply is None else supply.bytes_needed
    sizes = np.array([4 * n * (m - from_decoys), for_supply, 8 * ((m * m + 1) // 2)])
    splits = np.cumsum(sizes)[:2]
    clear = points[rows].astype(np.float64)
    basis = np.empty((len(rows), m, n))
    todo = np.arange(len(rows))
    for attempt in range(ATTEMPTS):
        drawn = draws.of_rows(rows[todo], int(sizes.sum()), attempt)
        for_random, for_decoys, for_rotation = (np.ascontiguousarray(part) for part in np.split(drawn, splits, axis=1))
        directions = np.empty((len(todo), m, n))
        directions[:, from_decoys:] = uniform(for_random).reshape(len(todo), m - from_decoys, n)  # random basis
        if supply is not None:
            directions[:, :from_decoys] = supply.draw(rows[todo], for_decoys) - clear[todo, None]  # d_i = w_i - d
        orthonormal, spread = gram_schmidt(directions)
        # A rotation uniform over all: its pivots say nothing about it, so drawing small ones again is no bias.
        rotation, pivots = gram_schmidt(normal(for_rotation)[:, : m * m].reshape(-1, m, m))
        basis[todo] = np.matmul(rotation, orthonormal)
        todo = todo[np.minimum(spread, pivots) < WELL_SPREAD]
        if not todo.size:
            return canonical_origin(clear, basis), basis
    raise DecoyError(
        f"{link}: after {ATTEMPTS} draws, {todo.size} descriptors (the first is row {rows[todo[0]]}) still have no {m} "
        f"independent directions; the decoys they may get are too few or too much alike"
    )


def _distinct_rows(points: NDArray[np.float32], labels: ArrayLike | None) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first row of each distinct point, and for every row which of them it equals.

    Two independent liftings of one descriptor meet exactly in it, also within one image. Hence equal descriptors
    cannot have different labels, which would ask for different decoys.
    """
    keys = np.ascontiguousarray(points + np.float32(0))  # + 0: minus zero is zero
    words = keys.view(np.uint32)
    weights = np.frombuffer(os.urandom(8 * words.shape[1]), np.uint64) | np.uint64(1)
    if np.unique(np.einsum("ni,i->n", words, weights)).size == len(points):  # different sums: different rows
        return np.arange(len(points)), np.arange(len(points))
    as_one = keys.view(np.dtype((np.void, keys.shape[1] * 4)))[:, 0]
    _, first, same = np.unique(as_one, return_index=True, return_inverse=True)
    if labels is not None:
        array = np.asarray(labels)
        other = np.flatnonzero(array != array[first][same])
        if other.size:
            raise InputError(
                f"labels: row {other[0]} has another label than row {first[same[other[0]]]}, which is the same "
                f"descriptor: two liftings of it would reveal it"
            )
    return first, same
