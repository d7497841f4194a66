# SPDX-License-Identifier: Apache-2.0
"""How far a probe is from concealed templates: point to subspace, or subspace to subspace.

Knows subspaces and points as arrays; never imports the clear types. A small distance speaks for the same person.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError, suggest
from sfumato.matching.sides import Side, check_pair, side_of, warn_if_void
from sfumato.types.templates import ConcealedTemplates

POINT, SUBSPACE = "p-to-s", "s-to-s"
COMPARISONS = (POINT, SUBSPACE)
"""p-to-s: the probe is clear and stays on the device. s-to-s: both are concealed (section 4.2.1 of the paper)."""


def checked_comparison(name: str) -> str:
    """Return the name of a comparison; another one is an InputError that suggests the nearest."""
    if name not in COMPARISONS:
        raise InputError(
            f"distance {name!r:.80} is unknown{suggest(str(name), COMPARISONS)}: {' or '.join(COMPARISONS)}"
        )
    return name


def comparison_of(probes: Any) -> str:
    """Return which comparison a probe asks for: s-to-s if it is concealed."""
    return SUBSPACE if side_of_templates(probes, "probes").basis.shape[1] else POINT


def distances(probes: Any, templates: Any) -> NDArray[np.float64]:
    """Return the distances (P, N) of P probes to N templates.

    Probes are points (P, n), which stay on the device, or concealed templates; a distance is the least one of a point
    of the probe to a point of the template (Eq. 1 and 2).
    """
    count0, count1 = _count(probes), _count(templates)
    rows = np.indices((count0, count1)).reshape(2, -1)
    return pair_distances(probes, templates, rows[0], rows[1]).reshape(count0, count1)


def pair_distances(probes: Any, templates: Any, rows0: ArrayLike, rows1: ArrayLike) -> NDArray[np.float64]:
    """Return the distances (K,) of the probes ``rows0`` (K,) to the templates ``rows1`` (K,), pair by pair.

    >>> import numpy as np
    >>> pair_distances(np.eye(2), np.zeros((1, 2)), [0, 1], [0, 0])
    array([1., 1.])
    """
    side0, side1 = side_of_templates(probes, "probes"), side_of_templates(templates, "templates")
    check_pair(side0, side1)
    warn_if_void(side0, side1)
    first, second = _checked_rows(rows0, len(side0.origin)), _checked_rows(rows1, len(side1.origin))
    if len(first) != len(second):
        raise InputError(f"pairs: {len(first)} probes and {len(second)} templates")
    if not len(first):
        return np.zeros(0)
    from sfumato.subspace.fast import load_kernels

    load_kernels()
    from sfumato.subspace.pairs import exact_pairs

    squared = exact_pairs(side0.origin, side0.basis, side1.origin, side1.basis, first, second)
    found: NDArray[np.float64] = np.sqrt(np.maximum(squared, 0))
    return found


def side_of_templates(value: Any, name: str) -> Side:
    """Return templates, subspaces or points as a side of a comparison."""
    if isinstance(value, ConcealedTemplates):
        return Side(value.subspaces.origin, value.subspaces.basis, value.extractor, value.recipe)
    return side_of(value, name)


def _count(value: Any) -> int:
    return len(side_of_templates(value, "side").origin)


def _checked_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    given = np.asarray(rows)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise InputError(f"pairs: expected a list of row numbers, got {given.dtype} {given.shape}")
    if given.size and (given.min() < 0 or given.max() >= count):
        raise InputError(f"pairs: rows go from 0 to {count - 1}, there is one from {given.min()} to {given.max()}")
    return given.astype(np.int64)
