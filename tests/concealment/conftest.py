# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.decoys import Decoys


def unit_rows(count: int, n: int, seed: int, *, signed: bool = False) -> np.ndarray:
    """Unit-norm rows (count, n), non-negative like SIFT unless signed."""
    rows = np.random.default_rng(seed).normal(size=(count, n))
    rows = rows if signed else np.maximum(rows, 0) + 1e-3
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def points() -> np.ndarray:
    return unit_rows(300, 32, 1)


@pytest.fixture(scope="session")
def decoys() -> Decoys:
    return Decoys(unit_rows(2000, 32, 2), parts=4, permutation=np.random.default_rng(3).permutation(2000))
