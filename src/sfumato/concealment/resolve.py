# SPDX-License-Identifier: Apache-2.0
"""Encoders of a recipe: found by file, by name or by checksum, and run one after the other.

A resolved recipe names each encoder with the first digits of its checksum and without a path: an archive says what was
done and not where the file was, and two encoders of one name are two recipes. Encoders that this process read are
remembered, by file and by checksum; seals never are.
"""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from cachetools import LRUCache
from numpy.typing import ArrayLike, NDArray

from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import (
    Encoder,
    bundled_encoder,
    bundled_names,
    cut_components,
    encode,
    load_encoder,
)
from sfumato.concealment.seal import (
    BANDWIDTHS,
    UNNAMED,
    Seal,
    check_norms,
    check_sealed,
    estimate_bandwidth,
    kind_of,
    needs_estimate,
    seal_link,
    warn_if_wide,
    warn_of_estimate,
    with_bandwidth,
    with_usual_bandwidth,
    without_key_name,
)
from sfumato.errors import FileError, InputError, RecipeError
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import CHECKSUM_DIGITS, Link, Recipe

Floats = NDArray[np.float32]

LONGEST_NAME = 80
PROBES = 64
SAME = 1e-3
"""An encoder must change a squared distance of probes by more than this."""
REMEMBERED = 32
COMPRESSED = "sift"
"""Descriptor whose principal components compress-D takes without a file."""

_lock = threading.Lock()
_by_digits: LRUCache[str, Encoder] = LRUCache(REMEMBERED)  # by the digits of the checksum that recipes have
_by_file: LRUCache[tuple[str | int, ...], Encoder] = LRUCache(REMEMBERED)  # by path and version of the file


@dataclass(frozen=True, slots=True)
class ResolvedRecipe:
    """A recipe with its encoders: each encoder link names a checksum; ``encoders`` are in their order, ``seal`` last.

    A seal holds what was drawn from the key: keep it no longer than the key.
    """

    recipe: Recipe
    encoders: tuple[Encoder, ...]
    seal: Seal | None = None

    @property
    def input_dim(self) -> int | None:
        """The numbers of a descriptor it takes; None if it takes any."""
        first = self.encoders[0] if self.encoders else self.seal
        return None if first is None else first.input_dim

    def __call__(self, points: ArrayLike) -> Floats:
        """Encode points, as ``encode_points`` does."""
        return encode_points(self, points)

    def refuse_others(self, extractor: Extractor) -> None:
        """Raise RecipeError if descriptors of this kind are not what the first encoder takes."""
        if self.encoders and not Extractor(self.encoders[0].extractor_name).matches(extractor):
            raise RecipeError(
                f"recipe {self.recipe}: its encoder is for {self.encoders[0].extractor_name}, the features are "
                f"{extractor.name}: choose an encoder for {extractor.name}, or train one with sfumato train "
                f"{self.encoders[0].kind} --descriptor {extractor.name}"
            )


def resolve(recipe: Recipe | str, key: bytes | None = None, width: int = 128) -> ResolvedRecipe:
    """Find the encoders of a recipe, and return it with their checksums.

    ``ninja:FILE`` and ``compress-48:FILE`` are read from files, ``ninja-NAME`` and ``compress-48`` are of the package.
    A name with a checksum, as an archive has it, is found among the encoders of the package and those that this process
    read. ``sealed-512`` is made from ``key``, for rows of ``width`` numbers unless an encoder comes before it, and is
    never kept: to resolve it again takes the key again. Its bandwidth is SIFT's unless the recipe names one;
    ``choose_bandwidth`` finds that of other descriptors.

    Raises FileError for a file that cannot be used, RecipeError for an encoder that is missing, does not fit the one
    before it, or conceals nothing.
    """
    recipe = Recipe.of(recipe)
    links, encoders, seal = list[Link](), list[Encoder](), None
    for link in recipe.links:
        if link.kind == "sealed":
            seal, link = seal_link(link, recipe, key, encoders[-1].output_dim if encoders else width)
        elif link.role == "encoder":
            encoder, link = _find(link, recipe)
            if encoders and encoders[-1].output_dim != encoder.input_dim:
                raise RecipeError(
                    f"recipe {recipe}: {link} takes {encoder.input_dim} dimensions, the encoder before it gives "
                    f"{encoders[-1].output_dim}"
                )
            encoders.append(encoder)
        links.append(link)
    if not encoders and seal is None:
        return ResolvedRecipe(recipe, ())
    return ResolvedRecipe(replace(recipe, links=tuple(links)), tuple(encoders), seal)


def resolve_ahead(recipe: Recipe | str) -> Recipe:
    """Return a recipe with the checksums of all encoders but a seal, which is named once the width of rows is known.

    Raises what ``resolve`` does, and nothing about keys.
    """
    recipe = Recipe.of(recipe)
    if not recipe.is_sealed:
        return resolve(recipe).recipe
    check_sealed(recipe)
    *links, seal = recipe.links
    before = resolve(Recipe(links=tuple(links))).recipe.links if links else ()
    return Recipe(links=(*before, seal if seal.checksum else without_key_name(seal)))


def choose_bandwidth(recipe: Recipe, name: str, rows: Floats | None = None, *, warns: bool = True) -> Recipe:
    """Return a sealed recipe with the bandwidth for descriptors of an extractor's name; others as they are.

    A bandwidth in the recipe stays. Else it is the one that was measured for this kind or, for other kinds, estimated
    from ``rows`` (N, n), the descriptors of one image, with a BandwidthWarning. ``warns``: whether a seal that shows
    much is told of (WideSealWarning).

    Raises InputError for descriptors whose norm does not fit the bandwidth.
    """
    if not recipe.is_sealed:
        return recipe
    needs, is_named = needs_estimate(recipe, name), recipe.links[-1].bandwidth is not None
    if not needs and not is_named:
        if rows is not None and len(recipe.links) == 1:
            check_norms(rows, name)
        recipe = with_usual_bandwidth(recipe, name)
    estimate = None
    if rows is not None and (needs or kind_of(name) not in (*BANDWIDTHS, UNNAMED)):
        before = before_seal(recipe)
        estimate = estimate_bandwidth(rows if before is None else before(rows), may_fail=needs)
    if needs:
        warn_of_estimate(recipe, name, estimate, stacklevel=5)
        return with_usual_bandwidth(recipe, "sift") if estimate is None else with_bandwidth(recipe, estimate)
    if warns:
        warn_if_wide(recipe, name, estimate, stacklevel=5)
    return recipe


def encode_points(resolved: ResolvedRecipe, points: ArrayLike) -> Floats:
    """Return points (N, n) encoded by the encoders of a recipe, (N, n'), before any lifting or seal; as they are
    without."""
    rows: Floats = np.asarray(points, np.float32)
    for encoder in resolved.encoders:
        rows = encode(encoder, rows)
    return rows


def encode_decoys(resolved: ResolvedRecipe, decoys: Decoys) -> Decoys:
    """Return decoys in the space of a recipe's encoders; the result is cached for the same object.

    Raises InputError for decoys of other dimensions than the encoder takes.
    """
    return _encode_decoys(decoys, resolved.encoders) if resolved.encoders else decoys


def find_encoders(recipe: Recipe, candidates: Iterable[Encoder] = ()) -> ResolvedRecipe | None:
    """Return the encoders that a recorded recipe names: among ``candidates``, the bundled ones, and those read before.

    None if one of them is missing.

    Raises InputError for a candidate that the recipe does not name.
    """
    for encoder in candidates:
        digits = {remember(cut).checksum[:CHECKSUM_DIGITS] for cut in _cut_for(encoder, recipe)}
        if not digits & {link.checksum for link in recipe.encoders}:
            raise InputError(
                f"the features were made by {recipe}, and this is another encoder, "
                f"{encoder.checksum[:CHECKSUM_DIGITS]}: give the one that was used"
            )
    try:
        return resolve(recipe) if all(link.checksum for link in recipe.encoders) else None
    except RecipeError:
        return None


def remember(encoder: Encoder) -> Encoder:
    """Remember an encoder, so that this process finds it by its checksum; return the one object that stands for it."""
    digits = encoder.checksum[:CHECKSUM_DIGITS]
    with _lock:
        known = _by_digits.get(digits)
        if known is None or (known.checksum, known.extractor_name) != (encoder.checksum, encoder.extractor_name):
            known = _by_digits[digits] = encoder
        return known


def _cut_for(encoder: Encoder, recipe: Recipe) -> list[Encoder]:
    """Return an encoder and, for principal components, the same cut to the dimensions that a recipe names."""
    cuts = [link.dim for link in recipe.encoders if link.kind == "compress" and encoder.kind == "compress"]
    return [encoder, *(cut_components(encoder, dim) for dim in cuts if dim and dim < encoder.output_dim)]


def _find(link: Link, recipe: Recipe) -> tuple[Encoder, Link]:
    """Return the encoder of a link, and the link with its checksum."""
    if link.checksum:
        name = Path(link.variant[1:]).name if link.named else link.variant[1:]
        return _by_checksum(link, recipe), replace(link, variant=f"{link.variant[0]}{name}")
    variant = link.variant
    if variant.startswith(":"):
        path = Path(variant[1:])
        encoder = _read(path, link.kind)
        variant = ":" + (path.name.removesuffix(".safetensors")[:LONGEST_NAME].strip() or "encoder")
    else:
        encoder = bundled_encoder(COMPRESSED if link.kind == "compress" else variant[1:], link.kind)
    if encoder.kind != link.kind:
        raise RecipeError(f"recipe {recipe}: its encoder is of the kind {encoder.kind}, not {link.kind}")
    if link.dim is not None:
        encoder = _cut(encoder, link.dim, recipe)
    _refuse_rotation(encoder, recipe)
    return remember(encoder), replace(link, variant=f"{variant}@{encoder.checksum[:CHECKSUM_DIGITS]}")


def before_seal(recipe: Recipe | str) -> ResolvedRecipe | None:
    """Return the encoders before the seal of a recipe, which are public; None if there are none."""
    links = Recipe.of(recipe).links[:-1]
    return resolve(Recipe(links=links)) if links else None


def _cut(encoder: Encoder, dim: int, recipe: Recipe) -> Encoder:
    try:
        return cut_components(encoder, dim)
    except InputError as cause:
        raise RecipeError(f"recipe {recipe}: {cause}") from cause


def _refuse_rotation(encoder: Encoder, recipe: Recipe) -> None:
    """Raise RecipeError if an encoder only rotates descriptors, or leaves them as they are: that conceals nothing.

    A guard against mistakes, not against malice: the maker of an encoder's file decides what it shows.
    """
    drawn = np.random.default_rng(0).standard_normal((PROBES, encoder.input_dim))
    for rows in (drawn, np.abs(drawn)):  # networks may treat what is never negative differently
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        if np.abs(_squared_distances(encode(encoder, unit)) - _squared_distances(unit)).max() > SAME:
            return
    raise RecipeError(
        f"recipe {recipe}: its encoder leaves descriptors as they are, up to a rotation: it conceals nothing"
    )


def _squared_distances(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return all (N, N) squared distances of a few rows: no rotation and no shift changes them."""
    differences = rows[:, None].astype(np.float64) - rows[None]
    squared: NDArray[np.float64] = np.square(differences).sum(axis=2)
    return squared


def _by_checksum(link: Link, recipe: Recipe) -> Encoder:
    with _lock:
        known = _by_digits.get(link.checksum)
    if known is not None:
        return known
    bundled = (bundled_encoder(name, link.kind) for name in bundled_names(link.kind))
    for encoder in (cut for whole in bundled for cut in _cut_for(whole, recipe)):
        if encoder.checksum.startswith(link.checksum):
            return remember(encoder)
    raise RecipeError(
        f"recipe {recipe} names an encoder by its checksum {link.checksum}, which does not come with the package: give "
        f"its file, {'ninja:FILE' if link.dim is None else f'compress-{link.dim}:FILE'}, or --encoder FILE"
    )


def _read(path: Path, kind: str) -> Encoder:
    """Read an encoder, once for each version of a file."""
    try:
        info = os.stat(path)
    except OSError as cause:
        raise FileError(
            f"{path}: the encoder of the recipe cannot be read ({cause.strerror or cause}): check the path after "
            f"{kind}:, or name one that comes with the package ({', '.join(bundled_names(kind)) or 'there is none'})"
        ) from cause
    key = (os.path.abspath(path), info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    with _lock:
        encoder = _by_file.get(key)
    if encoder is None:
        encoder = load_encoder(path)
        with _lock:
            _by_file[key] = encoder
    return encoder


@lru_cache(maxsize=4)
def _encode_decoys(decoys: Decoys, encoders: tuple[Encoder, ...]) -> Decoys:
    rows: Floats = decoys.descriptors
    for encoder in encoders:
        rows = encode(encoder, rows)
    return Decoys(rows, decoys.extractor, decoys.permutation, decoys.parts, decoys.labels, decoys.made)
