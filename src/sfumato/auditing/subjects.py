# SPDX-License-Identifier: Apache-2.0
"""Subjects of evaluations: recipes, distances and seeds; decoys and their parts; clear features, in memory.

Liftings are drawn from an evaluation seed, so that figures can be repeated. They protect nobody and are never archived.
Clear features are extracted when they are needed and never written anywhere.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.auditing.task import short_digest
from sfumato.concealment.decoys import Decoys, bundled_decoys
from sfumato.concealment.keys import EVALUATION_KEY
from sfumato.concealment.lifting import conceal
from sfumato.concealment.resolve import encode_points, resolve
from sfumato.concealment.seal import with_usual_bandwidth
from sfumato.errors import DecoyError, EvaluationOnlyWarning, InputError, suggest
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import KINDS, Recipe

DISTANCES = {"p-to-s": "point to subspace", "s-to-s": "subspace to subspace"}
POINTS = "p-to-p"
"""The distance of what is not lifted: raw descriptors, and points of an encoder's space."""

PARTS = ("expected", "different", "same")
"""Parts of the decoys that two images draw from: both cases in their shares, or one of them."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a measurement: a recipe, the distance that is compared, and the seed of the liftings, if any."""

    recipe: Recipe
    distance: str
    seed: int | None

    @property
    def draws_parts(self) -> bool:
        """Whether each image draws one part of the decoys, so that two images may or may not share it."""
        return KINDS[self.recipe.kind].decoys == "part"

    @property
    def matching(self) -> str:
        """What counts as a match, in the words of records."""
        return f"mutual nearest{', nearer than chance' if self.recipe.is_sealed else ''}"

    def __str__(self) -> str:
        return f"{self.recipe} {self.distance}" + ("" if self.seed is None else f" seed {self.seed}")


def settled(recipe: str | Recipe, name: str = "sift") -> Recipe:
    """Return a recipe with the checksums of its encoders, read or, of a seal, made with the key of all evaluations.

    A seal without a bandwidth gets that of the extractor of this ``name``, or SIFT's where none was measured.
    """
    return resolve(with_usual_bandwidth(Recipe.of(recipe), name), EVALUATION_KEY).recipe


def choose_subjects(
    recipes: Iterable[str | Recipe], distances: Iterable[str], seeds: Iterable[int], name: str = "sift"
) -> list[Subject]:
    """Return every recipe with every distance and seed, each once; without a lifting there is one distance and no seed.

    Encoders are read, and recipes name them with their checksums; seals are for the extractor of this ``name``.

    Raises InputError for what is unknown or nothing at all, FileError for an encoder that cannot be read.
    """
    chain, measures, numbers = [settled(one, name) for one in recipes], list(distances), list(seeds)
    unknown = [name for name in measures if name not in DISTANCES]
    if unknown:
        raise InputError(
            f"distance: {unknown[0]!r:.80} is none of {', '.join(DISTANCES)}{suggest(unknown[0], DISTANCES)}"
        )
    wrong = [seed for seed in numbers if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63]
    if wrong:
        raise InputError(f"seeds: expected whole numbers of 0 or more, got {wrong[0]!r:.80}")
    subjects = [
        subject
        for recipe in chain
        for subject in (
            [Subject(recipe, POINTS, None)]
            if recipe.lifting is None
            else [Subject(recipe, measure, seed) for measure in measures for seed in numbers]
        )
    ]
    if not subjects:
        raise InputError("nothing to evaluate: name at least one recipe, distance and seed")
    return list(dict.fromkeys(subjects))


def choose_decoys(subjects: Sequence[Subject], extractor: Extractor, own: Decoys | None) -> Decoys | None:
    """Return the decoys these subjects need: one's own, or those that come with the package; None for none.

    Raises DecoyError or RecipeError where a recipe cannot work with them, before anything costly has begun.
    """
    needed = any(link.decoy_count for one in subjects for link in [one.recipe.lifting] if link is not None)
    if not needed:
        decoys = None
    elif own is None:
        decoys = bundled_decoys(extractor)
    elif own.extractor.matches(extractor):
        decoys = own
    else:
        raise DecoyError(
            f"these decoys are {own.extractor.name}, the features are {extractor.name}: build decoys of the same "
            f"kind with sfumato decoys build and pass them with --decoys"
        )
    for recipe in dict.fromkeys(one.recipe for one in subjects):
        width = 128 if decoys is None else decoys.descriptors.shape[1]
        row = np.eye(1, resolve(recipe).input_dim or width, dtype=np.float32)
        conceal_repeatably(Features(np.zeros((1, 4), np.float32), row, extractor), recipe, decoys, seed=0)
    return decoys


def conceal_repeatably(features: Features, recipe: Recipe, decoys: Decoys | None, *, seed: int) -> ConcealedFeatures:
    """Conceal for an evaluation: with draws that anyone can repeat, and without a warning about it.

    All positions are there, in the order of the features: who may see which of them is for the evaluation to say.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        positions = True if recipe.is_sealed else None
        return conceal(features, recipe, decoys, evaluation_seed=seed, positions=positions)


def unlifted(features: Features, recipe: Recipe) -> NDArray[np.float32]:
    """Return the points (N, n) that a device compares with subspaces of a recipe: descriptors, encoded if they are."""
    return encode_points(resolve(recipe), features.descriptors)


def single_part(decoys: Decoys, part: int) -> Decoys:
    """Return one part of the decoys as a database of its own: whoever is lifted with it draws from that part."""
    assert decoys.permutation is not None
    entries = decoys.permutation[slice(*decoys.part_starts[part : part + 2])]
    return Decoys(decoys.descriptors[entries], decoys.extractor, parts=1)


def draw_parts(seed: int, first: str, second: str, parts: int) -> tuple[int, int]:
    """Return the part that image ``first`` draws, and another one that ``second`` draws, uniform over all others."""
    own = int(np.random.default_rng([seed, int(short_digest(first), 16)]).integers(parts))
    if parts < 2:
        return own, own
    step = int(np.random.default_rng([seed, int(short_digest(first, second), 16)]).integers(1, parts))
    return own, (own + step) % parts


class ClearFeatures:
    """Clear features of the images in work, extracted once; in memory, never on disk."""

    def __init__(self, extract: Callable[[Path], Features]) -> None:
        self._extract = extract
        self._features: dict[Path, Features] = {}

    def __getitem__(self, path: Path) -> Features:
        if path not in self._features:
            self._features[path] = self._extract(path)
        return self._features[path]

    def keep_only(self, paths: Iterable[Path]) -> None:
        """Drop the features of all other images."""
        names = set(paths)
        self._features = {path: features for path, features in self._features.items() if path in names}

    def __repr__(self) -> str:
        return f"ClearFeatures({len(self._features)} images)"
