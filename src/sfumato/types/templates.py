# SPDX-License-Identifier: Apache-2.0
"""Concealed face templates: what may leave the device, and the only form in which a gallery knows a face.

Unrelated to the clear embeddings on purpose: nothing here holds, imports or converts to one.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.errors import InputError
from sfumato.types.concealed import Subspaces
from sfumato.types.extractor import Extractor, is_label
from sfumato.types.recipe import Recipe


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ConcealedTemplates:
    """N faces as affine subspaces: ``ids`` N different short texts, ``subspaces`` N, ``recipe`` how they were made.

    Raises InputError for ids that repeat, and for subspaces of another dimension than the recipe makes.
    """

    ids: tuple[str, ...]
    subspaces: Subspaces
    recipe: Recipe
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        if not isinstance(self.subspaces, Subspaces):
            raise InputError(f"subspaces: expected Subspaces, got {type(self.subspaces).__name__}")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        ids = tuple(self.ids)
        if len(ids) != len(self.subspaces):
            raise InputError(f"templates: {len(self.subspaces)} subspaces have {len(ids)} ids")
        if not all(is_label(one) for one in ids):
            raise InputError("templates: ids must be short, printable texts")
        twice = [one for one, count in Counter(ids).items() if count > 1]
        if twice:
            raise InputError(f"templates: {twice[0]!r:.80} stands for two faces: ids must differ")
        recipe = Recipe.of(self.recipe)
        if self.subspaces.dim != recipe.dim:
            raise InputError(
                f"recipe {recipe} makes subspaces of dimension {recipe.dim}, these have {self.subspaces.dim}"
            )
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "recipe", recipe)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Any) -> "ConcealedTemplates":
        """Select rows by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        ids = tuple(self.ids[row] for row in index)
        return ConcealedTemplates(ids, self.subspaces[index], self.recipe, self.extractor)

    def __repr__(self) -> str:
        return f"ConcealedTemplates({self.subspaces!r}, {str(self.recipe)!r}, {self.extractor.name})"
