# SPDX-License-Identifier: Apache-2.0
"""Gallery: the concealed templates of enrolled people, their releases, and the thresholds.

The server's side: never imports the clear types or concealment.

**Sealed templates** are bits under a key of each person, or under one key for all, which the recipe names then. Two
templates under two keys share nothing: a template is renewed with a new key, from any photo.

**Lifted templates.** Two independent liftings of one face meet near it, and anyone who has both knows it (section 5 of
the paper). A newer photo replaces a template along the *same* directions; who is revoked is forgotten, but not that a
template was released: a later, new template of that id is counted as the second release.

An id that is enrolled cannot be added again. ``GalleryWriter`` makes changes in a file, by the rules of this module.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, NotEnrolledError
from sfumato.faces.compare import Threshold, refuse_coin_throws, usual_threshold
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor, is_label
from sfumato.types.recipe import Recipe

PARALLEL = 1e-4
"""Tolerance between the directions of a replacement and those it replaces, as the sine of an angle."""

ID_BYTES = 16
MOST_DIMENSIONS = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryFacts:
    """What all templates of a gallery have in common, and its thresholds, at most one for each comparison.

    ``id``: 16 random bytes, the gallery's own. ``dimensions``: numbers of an embedding.

    Raises InputError for a recipe that protects nobody.
    """

    id: bytes
    recipe: Recipe
    extractor: Extractor
    dimensions: int
    thresholds: tuple[Threshold, ...] = ()

    def __post_init__(self) -> None:
        refuse_unprotected(self.recipe)
        if len(self.id) != ID_BYTES or not 0 < whole_number(self.dimensions, "dimensions") <= MOST_DIMENSIONS:
            raise InputError(f"a gallery has an id of {ID_BYTES} bytes, and from 1 to {MOST_DIMENSIONS} dimensions")
        object.__setattr__(self, "thresholds", checked_thresholds(self.thresholds, self.recipe))

    @property
    def has_personal_keys(self) -> bool:
        """Whether each person has a key."""
        return has_personal_keys(self.recipe)

    def with_threshold(self, threshold: Threshold) -> "GalleryFacts":
        """Return the facts with a threshold in the place of the one for the same comparison."""
        others = tuple(other for other in self.thresholds if other.comparison != threshold.comparison)
        return replace(self, thresholds=(*others, threshold))

    def threshold(self, comparison: str) -> Threshold | None:
        """Return the threshold of a comparison, if there is one."""
        return next((limit for limit in self.thresholds if limit.comparison == comparison), None)

    def refuse_other(self, new: ConcealedTemplates) -> None:
        """Raise InputError for templates of another recipe, other decoys or another network."""
        refuse_unprotected(new.recipe)
        if not new.recipe.is_sealed and new.code.ambient_dim != self.dimensions:
            raise InputError(
                f"this gallery is for {self.dimensions} dimensions, these templates have {new.code.ambient_dim}"
            )
        if new.recipe.identity != self.recipe.identity or new.recipe.decoys != self.recipe.decoys:
            decoys = "" if new.recipe.decoys == self.recipe.decoys else ", with other decoys"
            raise InputError(
                f"this gallery is made with {self.recipe}, these templates with {new.recipe}{decoys}: their distances "
                f"could not be compared with one threshold. Leave the recipe out, or start another gallery"
            )
        if new.extractor.name != self.extractor.name:
            raise InputError(f"this gallery is for {self.extractor.name} embeddings, these are {new.extractor.name}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Gallery:
    """``templates`` of enrolled people; ``releases``: number of independent templates ever made of each id, also of
    those revoked; ``thresholds``: at most one for each comparison; ``id``: of the gallery, which keys are made for;
    ``dimensions``: numbers of an embedding, where bits do not say it.

    Raises InputError for templates that protect nobody.
    """

    templates: ConcealedTemplates
    releases: Mapping[str, int] = field(default_factory=dict)
    thresholds: tuple[Threshold, ...] = ()
    id: bytes = b""
    dimensions: int | None = None

    def __post_init__(self) -> None:
        refuse_unprotected(self.templates.recipe)
        counts = dict.fromkeys(self.templates.ids, 1) | dict(self.releases)
        if not all(is_label(person) and whole_number(count, "releases") >= 1 for person, count in counts.items()):
            raise InputError("releases: expected an id and a number of 1 or more for each")
        object.__setattr__(self, "releases", MappingProxyType(counts))
        object.__setattr__(self, "thresholds", checked_thresholds(self.thresholds, self.recipe))

    def __len__(self) -> int:
        return len(self.templates)

    def __repr__(self) -> str:
        return f"Gallery({self.templates!r}, {len(self.revoked)} revoked, {len(self.thresholds)} thresholds)"

    @property
    def recipe(self) -> Recipe:
        """The recipe of the templates."""
        return self.templates.recipe

    @property
    def revoked(self) -> tuple[str, ...]:
        """The ids that have no template now: they were revoked, or their enrollment was interrupted."""
        return tuple(sorted(set(self.releases) - set(self.templates.ids)))

    def row(self, person: str) -> int:
        """Return the row of an id; raise InputError if it is not enrolled."""
        if person not in self.templates.ids:
            raise not_enrolled(person, is_known=person in self.releases)
        return self.templates.ids.index(person)

    def template(self, person: str) -> ConcealedTemplates:
        """Return the template of one id."""
        return self.templates[[self.row(person)]]

    def threshold(self, comparison: str) -> Threshold:
        """Return the threshold of a comparison, else the usual one of the network; raise InputError for neither."""
        for threshold in self.thresholds:
            if threshold.comparison == comparison:
                return threshold
        usual = usual_threshold(self.recipe, self.templates.extractor.name)
        if usual is not None and usual.comparison == comparison:
            return usual
        raise InputError(
            f"this gallery has no threshold for {comparison}: choose one from faces of other people with sfumato "
            f"calibrate"
        )


def checked_thresholds(thresholds: Collection[Threshold], recipe: Recipe) -> tuple[Threshold, ...]:
    """Return thresholds as they are; raise InputError for two of one comparison, and for one that accepts any key."""
    for threshold in thresholds:
        refuse_coin_throws(threshold, recipe)
    if len({threshold.comparison for threshold in thresholds}) != len(thresholds):
        raise InputError("thresholds: there are two for one comparison")
    return tuple(thresholds)


def not_enrolled(person: str, *, is_known: bool) -> NotEnrolledError:
    """Return the error about someone who has no template; ``is_known``: there was one, or was to be one.

    It names nobody else, and nothing is searched for it: who asks a server for people learns no names.
    """
    hint = ": it was revoked, or its enrollment was interrupted" if is_known else ""
    return NotEnrolledError(f"{person!r:.80} is not enrolled in this gallery{hint}", person)


def already_enrolled(ids: Collection[str], recipe: Recipe) -> InputError:
    """Return the error about people who have a template and must not get another."""
    more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    reason = (
        "renew it (sfumato renew), which makes a new key, or revoke it first"
        if recipe.is_sealed
        else "a second, independent template of the same face would reveal it to anyone who has both. Renew along the "
        "same directions, or revoke first"
    )
    return InputError(f"{min(ids)!r:.80}{more} {'are' if more else 'is'} enrolled: {reason}")


def refuse_unprotected(recipe: Recipe) -> None:
    """Raise InputError for a recipe that protects nobody, or cannot be compared with clear probes."""
    if recipe.is_clear or recipe.evaluation_seed is not None:
        raise InputError(f"a gallery holds concealed templates only: {recipe!r} protects nobody")
    if recipe.has_encoder and not (recipe.is_sealed and len(recipe.links) == 1):
        raise InputError(f"{recipe}: encoders are for local descriptors; seal faces with sealed-2048")


def has_personal_keys(recipe: Recipe) -> bool:
    """Tell whether templates are sealed under a key of each person: the recipe names none."""
    return recipe.is_sealed and not recipe.links[-1].checksum


def refuse_other_directions(old: ConcealedTemplates, new: ConcealedTemplates) -> None:
    """Raise InputError for templates along other directions than those they would replace, row for row."""
    if not are_parallel(subspaces_of(old).basis, subspaces_of(new).basis):
        raise InputError(
            "these templates have other directions than those they would replace: the two would meet near the face"
        )


def refuse_same_keys(old: ConcealedTemplates, new: ConcealedTemplates) -> None:
    """Raise InputError for a template under the key of the one it would replace, row for row."""
    if any(before == after for before, after in zip(old.keys, new.keys, strict=True)):
        raise InputError("a renewed template needs a new key: the old one may be known to others")


def subspaces_of(templates: ConcealedTemplates) -> Subspaces:
    """Return the subspaces of templates; raise InputError for bits."""
    if not isinstance(templates.code, Subspaces):
        raise InputError(f"expected lifted templates, got {templates.code!r}")
    return templates.code


def are_parallel(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Tell whether bases (N, m, n) span the same directions, row for row."""
    if first.shape != second.shape:
        return False
    along = np.einsum("nki,nli->nkl", first.astype(np.float64), second)
    outside = second - np.einsum("nkl,nki->nli", along, first)
    return bool(np.abs(outside).max(initial=0.0) <= PARALLEL)
