# SPDX-License-Identifier: Apache-2.0
"""Clear face embeddings: what must not leave the device.

Nothing a server runs imports this module; a test follows the imports and says so. Concealed ones are in
``sfumato.types.templates``, which is unrelated.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InputError
from sfumato.types.arrays import frozen_array
from sfumato.types.extractor import Extractor, is_label

SHORTEST = 1e-6
"""An embedding shorter than this has no direction."""

UNIT = 1e-6
"""How far from 1 a length may be and count as 1: such rows stay as they are, to the last bit."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Embeddings:
    """Clear embeddings of N faces: ``values`` (N, n) float32 of unit norm, ``names`` N short texts.

    Rows of another length are scaled to unit norm. Names need not differ; without any, rows are named by their number.

    Raises InputError for wrong shapes, numbers that are not finite, rows of length 0, and unusable names.

    >>> import numpy as np
    >>> Embeddings(np.array([[3.0, 4.0]]), ("alice",)).values
    array([[0.6, 0.8]], dtype=float32)
    """

    values: NDArray[np.float32]
    names: tuple[str, ...] = ()
    extractor: Extractor = Extractor()  # noqa: RUF009 (frozen)

    def __post_init__(self) -> None:
        values = frozen_array(unit_rows(self.values), "embeddings", (None, None))
        names = tuple(self.names) or tuple(str(row) for row in range(len(values)))
        if values.shape[1] == 0:
            raise InputError("embeddings: need at least one dimension")
        if len(names) != len(values):
            raise InputError(f"embeddings: {len(values)} rows have {len(names)} names")
        wrong = [row for row, name in enumerate(names) if not is_label(name)]
        if wrong:
            raise InputError(f"embeddings: the name of row {wrong[0]} is not a short, printable text")
        if not isinstance(self.extractor, Extractor):
            raise InputError(f"extractor: expected an Extractor, got {type(self.extractor).__name__}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "names", tuple(str(name) for name in names))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Embeddings":
        """Select rows by a slice, a mask or a list of indices."""
        index = np.atleast_1d(np.arange(len(self))[rows])
        if not index.size:
            return Embeddings(np.zeros((0, self.values.shape[1]), np.float32), (), self.extractor)
        return Embeddings(self.values[index], tuple(self.names[row] for row in index), self.extractor)

    def __repr__(self) -> str:
        return f"Embeddings({len(self)} x {self.values.shape[1]} {self.extractor.name}, clear)"


def unit_rows(values: ArrayLike) -> NDArray[np.float32]:
    """Return rows (N, n) scaled to unit norm; raises InputError for one that has no direction."""
    given = frozen_array(values, "embeddings", (None, None), np.float64)
    lengths = np.linalg.norm(given, axis=1)
    short = np.flatnonzero(~(lengths > SHORTEST) | ~np.isfinite(lengths))
    if short.size:
        raise InputError(f"embeddings: {short.size} rows have no direction, the first is row {short[0]}")
    scale = np.where(np.abs(lengths - 1) <= UNIT, 1.0, lengths)
    rows: NDArray[np.float32] = (given / scale[:, None]).astype(np.float32)
    return rows


def people_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return who is on each photo, where names are a person and a number, as those of LFW are: Aaron_Sorkin_0002.

    >>> people_of(["Aaron_Sorkin_0001", "alice"])
    ('Aaron_Sorkin', 'alice')
    """
    return tuple(re.sub(r"(?<=.)[_-]\d+$", "", name) for name in names)
