# SPDX-License-Identifier: Apache-2.0
"""What the tests of search share: subspaces through points that lie in clusters, and noisy views of those points."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import sfumato


@dataclass(frozen=True)
class Lifted:
    """Points, subspaces through them, and other views of the same points."""

    points: np.ndarray
    code: sfumato.Subspaces
    views: np.ndarray


@pytest.fixture(scope="session")
def lift_points() -> Callable[..., Lifted]:
    """Make ``count`` clustered points of R^n, lifted to dimension m."""

    def make(count: int = 2000, n: int = 48, m: int = 2, seed: int = 0) -> Lifted:
        rng = np.random.default_rng(seed)
        centres = rng.standard_normal((40, n))
        points = centres[rng.integers(0, 40, count)] + 0.5 * rng.standard_normal((count, n))
        points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
        views = (points + 0.02 * rng.standard_normal(points.shape)).astype(np.float32)
        return Lifted(points, sfumato.Subspaces(points, rng.standard_normal((count, m, n))), views)

    return make


@pytest.fixture(autouse=True)
def kinds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every kind answer itself: entries of tests are so few that the exact scan would answer nearly always."""
    monkeypatch.setattr("sfumato.search.index.Index.uses_exact", False)
