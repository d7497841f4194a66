# SPDX-License-Identifier: Apache-2.0
"""What a match reveals: the closest points of two matched subspaces are near both clear descriptors.

Section 5 of the embedding paper. Knows one partner for each feature, and the norm where there is one.
"""

import numpy as np
from numpy.typing import NDArray

from sfumato.attack.intersection import meet
from sfumato.attack.knowledge import Companions, Knowledge, Recovered
from sfumato.attack.sphere import known_radius
from sfumato.errors import InputError
from sfumato.types.concealed import ConcealedFeatures, Subspaces


def recover_reveal(features: ConcealedFeatures, knowledge: Knowledge) -> Recovered:
    """Take the point of each subspace closest to its matched partner."""
    return meet(features.subspaces, knowledge.partners, known_radius(features, knowledge))


def reveal_pairs(first: Subspaces, second: Subspaces, radius: float | None = None) -> tuple[Recovered, Recovered]:
    """Return estimates of both clear descriptors of pairs of matched subspaces, row on row.

    Without a radius these are the closest points of Eq. 3.
    """
    if len(first) != len(second):
        raise InputError(f"pairs: there are {len(first)} subspaces on one side, {len(second)} on the other")
    rows: NDArray[np.int32] = np.arange(len(first), dtype=np.int32)
    return (
        meet(first, Companions(rows=rows, subspaces=second), radius),
        meet(second, Companions(rows=rows, subspaces=first), radius),
    )
