# SPDX-License-Identifier: Apache-2.0
"""Figures of the benchmark of chaff, as rows of its results."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from common import note

Row = dict[str, Any]


def row(part: str, case: str, figure: str, values: float | Sequence[float] | None) -> Row:
    """Return one figure; of several values the mean, with its standard error."""
    several = values is not None and not isinstance(values, int | float)
    found = np.atleast_1d(np.asarray(np.nan if values is None else values, float))
    error = float(found.std(ddof=1) / np.sqrt(len(found))) if several and len(found) > 1 else None
    made = {"part": part, "case": case, "figure": figure, "value": None if values is None else float(found.mean()),
            "error": error}  # fmt: skip
    note(str(made))
    return made
