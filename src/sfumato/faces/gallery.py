# SPDX-License-Identifier: Apache-2.0
"""Gallery: the concealed templates of enrolled people, their releases, and the thresholds.

The server's side: never imports the clear types or concealment.

**Enrolling again.** Two independent liftings of one face meet near it, and anyone who has both knows it (section 5 of
the paper). So an id that is enrolled cannot be added again. ``replace`` takes a template along the *same* directions,
made from a newer photo; ``revoke`` forgets the template and remembers that it was released: a later, new template of
that id is counted as the second release.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, suggest
from sfumato.faces.compare import Threshold
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedTemplates, Subspaces
from sfumato.types.extractor import Extractor, is_label
from sfumato.types.recipe import Recipe

PARALLEL = 1e-4
"""Tolerance between the directions of a replacement and those it replaces, as the sine of an angle."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Gallery:
    """``templates`` of the enrolled people; ``releases``: number of independent liftings ever released of each id, also
    of those revoked; ``thresholds``: at most one for each comparison.

    Raises InputError for templates that protect nobody.
    """

    templates: ConcealedTemplates
    releases: Mapping[str, int] = field(default_factory=dict)
    thresholds: tuple[Threshold, ...] = ()

    def __post_init__(self) -> None:
        refuse_unprotected(self.templates.recipe)
        counts = dict.fromkeys(self.templates.ids, 1) | dict(self.releases)
        if not all(is_label(person) and whole_number(count, "releases") >= 1 for person, count in counts.items()):
            raise InputError("releases: expected an id and a number of 1 or more for each")
        if len({threshold.comparison for threshold in self.thresholds}) != len(self.thresholds):
            raise InputError("thresholds: there are two for one comparison")
        object.__setattr__(self, "releases", MappingProxyType(counts))
        object.__setattr__(self, "thresholds", tuple(self.thresholds))

    @classmethod
    def empty(cls, recipe: Recipe | str, extractor: Extractor, dimensions: int) -> "Gallery":
        """Return an empty gallery, for embeddings of this many dimensions."""
        recipe = Recipe.of(recipe)
        none = Subspaces(np.zeros((0, dimensions), np.float32), np.zeros((0, recipe.dim, dimensions), np.float32))
        return cls(ConcealedTemplates((), none, recipe, extractor))

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
        """The ids that were enrolled before and are not now."""
        return tuple(sorted(set(self.releases) - set(self.templates.ids)))

    def row(self, person: str) -> int:
        """Return the row of an id; raise InputError if it is not enrolled."""
        if person not in self.templates.ids:
            hint = "; it was revoked" if person in self.releases else suggest(person, self.templates.ids)
            raise InputError(f"{person!r:.80} is not enrolled in this gallery{hint}")
        return self.templates.ids.index(person)

    def template(self, person: str) -> ConcealedTemplates:
        """Return the template of one id."""
        return self.templates[[self.row(person)]]

    def threshold(self, comparison: str) -> Threshold:
        """Return the threshold of a comparison; raise InputError if there is none."""
        for threshold in self.thresholds:
            if threshold.comparison == comparison:
                return threshold
        raise InputError(
            f"this gallery has no threshold for {comparison}: choose one from faces of other people with sfumato "
            f"calibrate"
        )

    def with_threshold(self, threshold: Threshold) -> "Gallery":
        """Return the gallery with a threshold in the place of the one for the same comparison."""
        others = tuple(other for other in self.thresholds if other.comparison != threshold.comparison)
        return replace(self, thresholds=(*others, threshold))

    def add(self, new: ConcealedTemplates) -> "Gallery":
        """Return the gallery with more people; raise InputError for enrolled ids and for templates that do not fit."""
        self.refuse_other(new)
        self.refuse_enrolled(new.ids)
        old = self.templates
        subspaces = Subspaces(
            np.concatenate([old.subspaces.origin, new.subspaces.origin]),
            np.concatenate([old.subspaces.basis, new.subspaces.basis]),
        )
        templates = ConcealedTemplates((*old.ids, *new.ids), subspaces, old.recipe, old.extractor)
        counts = {**self.releases, **{person: self.releases.get(person, 0) + 1 for person in new.ids}}
        return Gallery(templates, counts, self.thresholds)

    def replace(self, new: ConcealedTemplates) -> "Gallery":
        """Return the gallery with newer templates along the same directions; raise InputError for other directions."""
        self.refuse_other(new)
        rows = np.array([self.row(person) for person in new.ids], np.int64)
        origin, basis = self.templates.subspaces.origin.copy(), self.templates.subspaces.basis.copy()
        if not are_parallel(basis[rows], new.subspaces.basis):
            raise InputError(
                "these templates have other directions than those they would replace: the two would meet near the face"
            )
        origin[rows], basis[rows] = new.subspaces.origin, new.subspaces.basis
        old = self.templates
        moved = ConcealedTemplates(old.ids, Subspaces(origin, basis), old.recipe, old.extractor)
        return Gallery(moved, self.releases, self.thresholds)

    def revoke(self, ids: Iterable[str]) -> "Gallery":
        """Return the gallery without these people; it remembers that they were in it."""
        rows = {self.row(person) for person in ids}
        others = [row for row in range(len(self)) if row not in rows]
        if not others:
            left = Gallery.empty(self.recipe, self.templates.extractor, self.templates.subspaces.ambient_dim).templates
        else:
            left = self.templates[others]
        return Gallery(left, self.releases, self.thresholds)

    def refuse_enrolled(self, ids: Iterable[str]) -> None:
        """Raise InputError if one of these ids is enrolled."""
        enrolled = sorted(set(ids) & set(self.templates.ids))
        if enrolled:
            more = f" and {len(enrolled) - 1} more" if len(enrolled) > 1 else ""
            raise InputError(
                f"{enrolled[0]!r:.80}{more} {'are' if more else 'is'} enrolled: a second, independent template of the "
                f"same face would reveal it to anyone who has both. Renew along the same directions, or revoke first"
            )

    def refuse_other(self, new: ConcealedTemplates) -> None:
        """Raise InputError for templates of another recipe, other decoys or another network."""
        old = self.templates
        refuse_unprotected(new.recipe)
        if new.subspaces.ambient_dim != old.subspaces.ambient_dim:
            raise InputError(
                f"this gallery is for {old.subspaces.ambient_dim} dimensions, these templates have "
                f"{new.subspaces.ambient_dim}"
            )
        if new.recipe.identity != old.recipe.identity or new.recipe.decoys != old.recipe.decoys:
            decoys = "" if new.recipe.decoys == old.recipe.decoys else ", with other decoys"
            raise InputError(
                f"this gallery is made with {old.recipe}, these templates with {new.recipe}{decoys}: their distances "
                f"could not be compared with one threshold"
            )
        if new.extractor.name != old.extractor.name:
            raise InputError(f"this gallery is for {old.extractor.name} embeddings, these are {new.extractor.name}")


def refuse_unprotected(recipe: Recipe) -> None:
    """Raise InputError for a recipe that protects nobody, or cannot be compared with clear probes."""
    if recipe.is_clear or recipe.evaluation_seed is not None:
        raise InputError(f"a gallery holds concealed templates only: {recipe!r} protects nobody")
    if recipe.has_encoder:
        raise InputError(f"{recipe}: encoders are for local descriptors; lift faces, for example with hybrid-2")


def are_parallel(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    """Tell whether bases (N, m, n) span the same directions, row for row."""
    if first.shape != second.shape:
        return False
    along = np.einsum("nki,nli->nkl", first.astype(np.float64), second)
    outside = second - np.einsum("nkl,nki->nli", along, first)
    return bool(np.abs(outside).max(initial=0.0) <= PARALLEL)
