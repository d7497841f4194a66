# SPDX-License-Identifier: Apache-2.0
"""What runs on the device that owns the pictures: clear in, archive out.

The only module that holds clear features and writes archives. Knows no format itself: features come from
``features``, concealment from ``concealment``, the archive from ``store``.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.decoys import Decoys, as_rootsift
from sfumato.concealment.lifting import conceal
from sfumato.concealment.resolve import before_seal, resolve_ahead
from sfumato.concealment.seal import checked_key, fingerprint, is_made_under, sealing_key
from sfumato.errors import ArchiveError, DecoyError, InputError, RecipeError, SfumatoError
from sfumato.features.sources import Source, open_source
from sfumato.store import ArchiveWriter
from sfumato.store.layout import Header
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe

Progress = Callable[[Iterable[Any]], Iterable[Any]]

USUAL_WIDTH = 128
"""How many numbers descriptors that we extract have; what others have is known when they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcealParams:
    """How an archive is made. ``secret`` and ``evaluation_seed`` as in ``sfumato.conceal``.

    ``new_secret`` stands in for a secret that is not there yet: it is called once, when the first features are to be
    concealed, and never for an archive that somebody began under a key. ``frames``: whether sizes and angles of
    keypoints are kept, from which alone much of a picture can be painted; None keeps them unless the recipe is sealed.
    """

    recipe: str = DEFAULT_RECIPE
    dtype: str = "float32"
    overwrite: bool = False
    frames: bool | None = None
    evaluation_seed: int | None = None
    secret: bytes | None = field(default=None, repr=False)
    new_secret: Callable[[], bytes] | None = field(default=None, repr=False)


@dataclass(slots=True)
class Outcome:
    """What became of a source: images and features written, images skipped, featureless or unreadable.

    ``recipe`` is the one in the archive, with the checksums of encoders and the fingerprint of a key.
    """

    images: int = 0
    features: int = 0
    skipped: int = 0
    featureless: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    recipe: str = ""


def conceal_to_archive(
    source: Source,
    output: str | Path,
    params: ConcealParams | None = None,
    decoys: Decoys | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    progress: Progress = iter,
) -> Outcome:
    """Conceal every image of a source into an archive; images already there are skipped, not released again.

    Without ``decoys`` SIFT gets the bundled ones. ``labels`` give a label to each image, for hybrid-labels. An image
    that cannot be used is named in the outcome and does not stop the others; one that repeats another of this run
    gets the same subspaces. Interrupted, it goes on where it stopped when called again.

    The encoders of the recipe are read first, once: a file that changes meanwhile changes nothing. A seal is made for
    descriptors as wide as those that are read.

    Raises ArchiveError if the archive cannot be written or was made in another way, and FileError or RecipeError,
    before any picture is read, for an encoder or a key that cannot be used.
    """
    params = params or ConcealParams()
    recipe, outcome = resolve_ahead(params.recipe), Outcome()
    _refuse_recipe(recipe, params)
    output = Path(output)
    with ArchiveWriter(output, append=not params.overwrite, resume=not params.overwrite, dtype=params.dtype) as writer:
        made = _begun_with(output, writer, recipe, params)
        outcome.recipe = next((str(writer.header(name).recipe) for name in writer.names), str(recipe))
        seen: dict[bytes, str] = {}
        outcome.skipped = sum(name in writer for name in source.names)
        for name, features in progress(source.features(skip=set(writer.names))):
            if isinstance(features, SfumatoError):
                outcome.unreadable[name] = str(features)
                continue
            if params.secret is None and params.new_secret is not None:
                params = replace(params, secret=params.new_secret(), new_secret=None)
            decoys = decoys or _needed_decoys(recipe, features)
            twin = seen.setdefault(hashlib.blake2b(features.descriptors.tobytes()).digest(), name)
            shares = recipe.lifting is None or recipe.lifting.epsilon is None  # what shows a repeat no eps covers
            if twin in writer and len(features) and shares:
                if labels is not None and labels.get(twin) != labels.get(name):
                    outcome.unreadable[name] = f"the same features as {twin}, under another label"
                    continue
                known = writer.read(twin)
                hidden = replace(known, keypoints=features.keypoints, image_size=features.image_size)
            else:
                hidden = _conceal_one(name, features, recipe, decoys, params, labels)
            made |= _refuse_mixture(output, made, _how_made(hidden))
            keeps_frames = not recipe.is_sealed if params.frames is None else params.frames
            try:
                writer.add(name, hidden if keeps_frames else hidden.positions_only())
            except InputError as problem:  # a name that no archive takes
                outcome.unreadable[name] = str(problem)
                continue
            outcome.images += 1
            outcome.features += len(hidden)
            outcome.recipe = str(hidden.recipe)
            if len(hidden) == 0:
                outcome.featureless.append(name)
        if not len(writer):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(outcome.unreadable.items())[:3])
            raise ArchiveError(f"nothing to write to {output}: no image of the source could be read. {reasons}")
    return outcome


def _refuse_recipe(recipe: Recipe, params: ConcealParams) -> None:
    """Raise RecipeError for a recipe that conceals nothing, or whose seal this key does not make."""
    if recipe.is_clear:
        raise RecipeError(f"recipe {recipe} conceals nothing and cannot be archived")
    if not recipe.is_sealed or (params.new_secret is not None and not recipe.links[-1].checksum):
        return
    key = checked_key(recipe, sealing_key(params.secret, params.evaluation_seed))
    if recipe.links[-1].checksum and not is_made_under(recipe, recipe, key):
        raise RecipeError(
            f"recipe {recipe} was made with another device key than the given one, whose fingerprint is "
            f"{_fingerprint(recipe, key)}: give the key it was made with, or leave out the @ part"
        )


def _fingerprint(recipe: Recipe, key: bytes) -> str:
    """Return what a sealed recipe calls a key, and for how many numbers: no descriptor was read yet."""
    before = before_seal(recipe)
    width = USUAL_WIDTH if before is None else before.encoders[-1].output_dim
    return f"{fingerprint(recipe, key, width)} for {width} numbers"


def _begun_with(output: Path, writer: ArchiveWriter, recipe: Recipe, params: ConcealParams) -> set[str]:
    """Return how the images that are there were made; raise ArchiveError if that is not how others would be."""
    there = [writer.header(name) for name in writer.names]
    made, key = {_how_made(header) for header in there}, sealing_key(params.secret, params.evaluation_seed)
    if not recipe.is_sealed:
        _refuse_mixture(output, {how for how in made if not how.startswith(f"{recipe} of ")}, str(recipe))
        return made
    fits = {one: is_made_under(one, recipe, key) for one in {header.recipe for header in there}}
    others = {
        _how_made(header) for header in there if not fits[header.recipe] or (key is None and not header.recipe.keyed)
    }
    under = "a new device key" if key is None else f"the given device key, fingerprint {_fingerprint(recipe, key)}"
    advice = "give the key it was begun with (--secret-file, or secret=), choose another file"
    _refuse_mixture(output, others, f"{recipe} under {under}", advice)
    if there and key is None:
        raise ArchiveError(
            f"{output} was begun with {' and '.join(sorted(made))}, and its device key is missing: put the key file "
            f"back or name it with --secret-file (secret= in Python); or choose another file, or --overwrite to start "
            f"anew under a new key"
        )
    return made


def _conceal_one(
    name: str,
    features: Features,
    recipe: Recipe,
    decoys: Decoys | None,
    params: ConcealParams,
    labels: Mapping[str, str] | None,
) -> ConcealedFeatures:
    if labels is not None and name not in labels:
        raise InputError(f"no label for the image {name!r:.80}: name one for every image")
    return conceal(
        features,
        recipe,
        decoys,
        labels=None if labels is None else [labels[name]] * len(features),
        secret=params.secret,
        evaluation_seed=params.evaluation_seed,
    )


def _how_made(image: ConcealedFeatures | Header) -> str:
    """Return what all images of an archive have in common: recipe, draws, decoys and kind of descriptor."""
    recipe = image.recipe
    seed = "" if recipe.evaluation_seed is None else f", evaluation seed {recipe.evaluation_seed}"
    draws = ", device secret" if recipe.keyed else seed
    decoys = f", decoys {recipe.decoys[:8]}" if recipe.decoys else ""
    return f"{recipe} of {image.extractor.name}{draws}{decoys}"


def _refuse_mixture(output: Path, made: set[str], new: str, advice: str = "choose another file") -> set[str]:
    if made - {new}:
        raise ArchiveError(
            f"{output} was begun with {' and '.join(sorted(made))}, not {new}: {advice}, or --overwrite to start anew"
        )
    return {new}


def _needed_decoys(recipe: Recipe, features: Features) -> Decoys | None:
    return bundled_decoys(features) if recipe.lifting is not None and recipe.lifting.decoy_count else None


def bundled_decoys(features: Features | ConcealedFeatures | Header) -> Decoys:
    """Return the decoys that come with the package, for SIFT or RootSIFT, whichever these features are."""
    kind = features.extractor.name
    if kind not in ("sift", "rootsift"):
        raise DecoyError(
            f"the bundled decoys are SIFT, these features are {kind}: build decoys of the same kind with sfumato "
            f"decoys build and pass them with --decoys"
        )
    return load_decoys() if kind == "sift" else as_rootsift(load_decoys())


def read_features(
    sources: Iterable[Source], outcome: Outcome, progress: Progress = iter
) -> Iterator[tuple[str, Features]]:
    """Yield the features of every readable image of several sources; the others are named in ``outcome``."""
    everything = ((name, features) for source in sources for name, features in source.features())
    for name, features in progress(everything):
        if isinstance(features, SfumatoError):
            outcome.unreadable[name] = str(features)
            continue
        outcome.images += 1
        outcome.features += len(features)
        if len(features) == 0:
            outcome.featureless.append(name)
        yield name, features


__all__ = ["ConcealParams", "Outcome", "bundled_decoys", "conceal_to_archive", "open_source", "read_features"]
