# SPDX-License-Identifier: Apache-2.0
"""Decisions about one probe: the person it claims to be (verify), or the nearest people of a gallery (identify).

The server's side: never imports the clear types. A clear probe is an array, on the device that made it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.faces.compare import (
    BITS,
    Threshold,
    comparison_of,
    pair_distances,
    side_of_templates,
    usual_threshold,
)
from sfumato.faces.gallery import Gallery
from sfumato.matching.mutual import MatchParams, check_pair, nearest_prepared, prepare_side, warn_if_void
from sfumato.subspace.small_batch import SmallBatchSearch
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.arrays import whole_number
from sfumato.types.concealed import ConcealedTemplates


@dataclass(frozen=True, slots=True)
class Decision:
    """``accepted`` or not: the ``distance`` to the template of ``id``, and the ``threshold`` that decided.

    ``same_key``: whether both were sealed under one key; with another key the distance is that of coin throws.
    """

    id: str
    accepted: bool
    distance: float
    threshold: Threshold
    same_key: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the nearest people: the ``id`` and its ``distance``."""

    id: str
    distance: float


@dataclass(frozen=True, slots=True)
class Identification:
    """The ``candidates`` nearest to a probe, nearest first, among ``people`` templates; the ``threshold`` of the
    ``comparison``, if the gallery has one."""

    candidates: tuple[Candidate, ...]
    people: int
    comparison: str
    threshold: Threshold | None

    def accepts(self, candidate: Candidate) -> bool | None:
        """Tell whether a candidate is near enough; None without a threshold."""
        return None if self.threshold is None else self.threshold.accepts(candidate.distance)

    @property
    def expected_by_chance(self) -> float | None:
        """Number of strangers that the threshold accepts among this many people; None without a threshold."""
        return None if self.threshold is None else self.threshold.measured_rate * self.people


def verify_probe(probe: Any, gallery: Gallery, person: str) -> Decision:
    """Compare one probe, a point (1, n) or a concealed template, with the template of a person.

    Raises InputError for someone who is not enrolled, more than one probe, or a gallery without a threshold for this
    comparison.
    """
    comparison = _checked_probe(probe, gallery)
    template, threshold = gallery.template(person), gallery.threshold(comparison)
    distance = float(pair_distances(probe, template, [0], [0])[0])
    same_key = not template.keys or probe.keys == template.keys
    return Decision(person, same_key and threshold.accepts(distance), distance, threshold, same_key)


def identify_probe(probe: Any, gallery: Gallery, k: int = 5) -> Identification:
    """Return the k people nearest to one probe, a point (1, n) or a concealed template.

    Raises InputError for a gallery with a key for each person.
    """
    comparison = _checked_probe(probe, gallery)
    (candidates,) = Identifier(gallery.templates).identify(probe, k)
    threshold = next((limit for limit in gallery.thresholds if limit.comparison == comparison), None)
    if threshold is None and comparison == BITS:
        threshold = usual_threshold(gallery.recipe, gallery.templates.extractor.name)
    return Identification(tuple(candidates), len(gallery), comparison, threshold)


def _checked_probe(probe: Any, gallery: Gallery) -> str:
    """Return the comparison of a probe; raise InputError for several faces, and for one that is not sealed as the
    gallery is."""
    count = len(side_of_templates(probe, "probe"))
    if count != 1:
        raise InputError(f"probe: expected one face, got {count}")
    comparison, is_sealed = comparison_of(probe), gallery.recipe.is_sealed
    if is_sealed != (comparison == BITS):
        raise InputError(
            f"this gallery is {'sealed' if is_sealed else 'lifted'}, and the probe is for {comparison}: make it for "
            f"this gallery (sfumato.faces.make_probe)"
        )
    return comparison


class Identifier:
    """Templates prepared once, for many searches: exact, with the compiled kernels of the matcher.

    Raises InputError for templates that are sealed under a key of each person: nothing is near all of them.

    >>> import numpy as np
    >>> from sfumato.types.concealed import Subspaces
    >>> lines = Subspaces(np.eye(2, 4), np.tile(np.eye(4)[None, [2]], (2, 1, 1)))
    >>> templates = ConcealedTemplates(("a", "b"), lines, "random-1")
    >>> [candidate.id for candidate in Identifier(templates).identify(np.eye(4)[1:2], k=1)[0]]
    ['b']
    """

    def __init__(self, templates: ConcealedTemplates, *, threads: int | None = None) -> None:
        if templates.keys:
            raise InputError(
                "these templates are sealed under a key of each person, so that nobody can search among them: verify "
                "one person, or enroll people in a gallery with one key for all (--shared-key), which gives up more"
            )
        self.templates = templates
        self.params = MatchParams(threads=threads)
        self._side = side_of_templates(templates, "templates")
        self._prepared = prepare_side(self._side)
        self._small_batch = SmallBatchSearch(self._prepared) if isinstance(self._prepared, SubspaceSet) else None

    def search(self, probes: Any, k: int = 5) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return distances and rows (P, k) of the k nearest templates, nearest first; fewer if there are fewer.

        Without templates there is one column, of distance inf and row -1. Probes are points (P, n), which stay on the
        device, or concealed templates.
        """
        count = whole_number(k, "k")
        if not 1 <= count < 2**31:
            raise InputError(f"k: expected a whole number of 1 or more, got {count}")
        count = min(count, max(1, len(self.templates)))  # memory grows with it
        side = side_of_templates(probes, "probes")
        check_pair(side, self._side)
        warn_if_void(side, self._side)
        small = self._small_batch
        if small is None:
            different, rows = nearest_prepared(prepare_side(side), self._prepared, count, self.params)
            return different / np.float32(self._side.ambient_dim), rows
        if side.dim == 0 and small.serves(side.subspaces.origin, count):
            squared, rows, _ = small.nearest(side.subspaces.origin, count, self.params.threads)
            return np.sqrt(squared).astype(np.float32), rows
        return nearest_prepared(prepare_side(side), self._prepared, count, self.params)

    def identify(self, probes: Any, k: int = 5) -> list[list[Candidate]]:
        """Return for each probe its k nearest people, nearest first; fewer if there are fewer."""
        distances, rows = self.search(probes, k)
        ids = self.templates.ids
        return [
            [Candidate(ids[row], float(distance)) for distance, row in zip(*line, strict=True) if row >= 0]
            for line in zip(distances, rows, strict=True)
        ]

    def __repr__(self) -> str:
        return f"Identifier({self.templates!r})"
