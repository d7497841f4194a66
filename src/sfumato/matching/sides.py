# SPDX-License-Identifier: Apache-2.0
"""What may be matched: concealed features, subspaces, or points given as plain arrays.

Never imports the clear types: clear descriptors come as arrays, on the device that made them.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, VoidDistanceWarning
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Side:
    """One side of a comparison: ``origin`` (N, n), ``basis`` (N, m, n) float32, and where they come from."""

    origin: NDArray[np.float32]
    basis: NDArray[np.float32]
    extractor: Extractor | None = None
    recipe: Recipe | None = None


def side_of(value: Any, name: str) -> Side:
    """Return concealed features, subspaces, or points (N, n) as a side."""
    if isinstance(value, ConcealedFeatures):
        return Side(value.subspaces.origin, value.subspaces.basis, value.extractor, value.recipe)
    if isinstance(value, Subspaces):
        return Side(value.origin, value.basis)
    if hasattr(value, "descriptors") or not (hasattr(value, "__array__") or isinstance(value, list | tuple)):
        raise InputError(
            f"{name}: expected ConcealedFeatures, Subspaces or points of shape (N, n), got {type(value).__name__}; "
            f"of clear features give the descriptors"
        )
    points = frozen_array(value, name, (None, None))
    if points.shape[1] == 0:
        raise InputError(f"{name}: points need at least one dimension")
    return Side(points, np.zeros((len(points), 0, points.shape[1]), np.float32))


def check_pair(a: Side, b: Side) -> None:
    """Refuse sides that live in different spaces: of other dimensions, of other descriptors, or of other encoders.

    Of plain arrays it is not known through which encoders they went: whoever gives them must know.
    """
    if a.extractor is not None and b.extractor is not None and not a.extractor.matches(b.extractor):
        raise InputError(f"a and b hold different descriptors: {a.extractor.name} and {b.extractor.name}")
    if a.recipe is not None and b.recipe is not None and a.recipe.space != b.recipe.space:
        raise InputError(f"these features live in different spaces: {tell_space(a)} and {tell_space(b)}")
    if a.origin.shape[1] != b.origin.shape[1]:
        raise InputError(f"a and b live in different spaces: {a.origin.shape[1]} and {b.origin.shape[1]} dimensions")


def tell_space(side: Side) -> str:
    """Return in words where a side lives: the encoders it went through, or none."""
    links = () if side.recipe is None else side.recipe.encoders
    return "+".join(str(link) for link in links) or "no encoder"


def warn_if_void(a: Side, b: Side) -> None:
    """Warn where subspaces are so large that all of them meet."""
    dims, n = (a.basis.shape[1], b.basis.shape[1]), a.origin.shape[1]
    if min(dims) and sum(dims) >= n:
        warnings.warn(
            f"subspaces of dimension {dims[0]} and {dims[1]} meet in R^{n}: their distance is 0 whatever they stand "
            f"for; compare points with subspaces, or lift to fewer dimensions",
            VoidDistanceWarning,
            stacklevel=3,
        )
