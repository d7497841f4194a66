# SPDX-License-Identifier: Apache-2.0
"""Is it this person? One probe against one concealed template, decided by the gallery's threshold.

The server's side: never imports the clear types. A clear probe comes as an array, on the device that made it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.faces.compare import Threshold, comparison_of, pair_distances, side_of_templates
from sfumato.faces.gallery import Gallery
from sfumato.matching.mutual import MatchParams, check_pair, nearest_prepared, warn_if_void
from sfumato.subspace.fast import prepare
from sfumato.subspace.small_batch import FewSearch
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedTemplates


@dataclass(frozen=True, slots=True)
class Decision:
    """``accepted`` or not: the ``distance`` to the template of ``id``, and the ``threshold`` it was held against."""

    id: str
    accepted: bool
    distance: float
    threshold: Threshold


def verify(probe: Any, gallery: Gallery, one: str) -> Decision:
    """Compare one probe, a point (1, n) or a concealed template, with the template of an id.

    Raises InputError for an id that is not enrolled, more than one probe, or a gallery without a threshold for this
    comparison.
    """
    count = len(side_of_templates(probe, "probe").origin)
    if count != 1:
        raise InputError(f"probe: expected one face, got {count}")
    template, threshold = gallery.template(one), gallery.threshold(comparison_of(probe))
    distance = float(pair_distances(probe, template, [0], [0])[0])
    return Decision(one, threshold.accepts(distance), distance, threshold)


# ----------------------------------------------------------------
# Who is it? The nearest of many concealed templates, exactly, with the compiled kernels of the matcher
# Never imports the clear types: a clear probe comes as an array, on the device that made it.


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the nearest: the ``id`` and its ``distance``."""

    id: str
    distance: float


class Identifier:
    """Templates prepared once, to be asked many times.

    >>> import numpy as np
    >>> from sfumato.types.concealed import Subspaces
    >>> lines = Subspaces(np.eye(2, 4), np.tile(np.eye(4)[None, [2]], (2, 1, 1)))
    >>> templates = ConcealedTemplates(("a", "b"), lines, "random-1")
    >>> [one.id for one in Identifier(templates).identify(np.eye(4)[1:2], k=1)[0]]
    ['b']
    """

    def __init__(self, templates: ConcealedTemplates, *, threads: int | None = None) -> None:
        self.templates = templates
        self.params = MatchParams(threads=threads)
        self._side = side_of_templates(templates, "templates")
        self._prepared = prepare(self._side.origin, self._side.basis)
        self._few = FewSearch(self._prepared)

    def search(self, probes: Any, k: int = 5) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return distances and rows (P, k) of the k nearest templates, nearest first, or as many as there are.

        Among no templates there is one, of distance inf and row -1. Probes are points (P, n), which stay on the device,
        or concealed templates.
        """
        wanted = whole_number(k, "k")
        if not 1 <= wanted < 2**31:
            raise InputError(f"k: expected a whole number of 1 or more, got {wanted}")
        wanted = min(wanted, max(1, len(self.templates)))  # what is allocated grows with it
        side = side_of_templates(probes, "probes")
        check_pair(side, self._side)
        warn_if_void(side, self._side)
        if side.basis.shape[1] == 0 and self._few.serves(side.origin, wanted):
            squared, rows, _ = self._few.nearest(side.origin, wanted, self.params.threads)
            return np.sqrt(squared).astype(np.float32), rows
        return nearest_prepared(prepare(side.origin, side.basis), self._prepared, wanted, self.params)

    def identify(self, probes: Any, k: int = 5) -> list[list[Candidate]]:
        """Return for each probe its k nearest, nearest first, or as many as there are."""
        found, rows = self.search(probes, k)
        ids = self.templates.ids
        return [
            [Candidate(ids[row], float(one)) for one, row in zip(*line, strict=True) if row >= 0]
            for line in zip(found, rows, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Identifier({self.templates!r})"
