# SPDX-License-Identifier: Apache-2.0
"""Sets are read back from their hulls, and matched by their entries."""

import sys
from pathlib import Path

import numpy as np
import pytest

from sfumato.concealment.subset import hulls
from sfumato.errors import InputError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from set_matching import match_sets, read_sets


@pytest.fixture(scope="module")
def dictionary():
    rows = np.random.default_rng(0).normal(size=(400, 32))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def sets():
    rng = np.random.default_rng(1)
    return np.sort(np.array([rng.choice(400, 4, replace=False) for _ in range(60)]), axis=1)


def test_sets_come_back_from_their_hulls(dictionary, sets):
    assert np.array_equal(read_sets(hulls(dictionary, sets), dictionary), sets)
    assert read_sets(hulls(dictionary, sets)[:0], dictionary).shape == (0, 4)
    with pytest.raises(InputError, match="hulls"):
        read_sets(hulls(dictionary, sets), dictionary[::-1][:300])


@pytest.mark.parametrize("by", ["distance", "common"])
def test_sets_that_share_an_entry_match(by, dictionary):
    own = np.arange(30)
    rng = np.random.default_rng(2)
    sets0, sets1 = (
        np.sort(np.column_stack([own, 30 + rng.permutation(370)[:90].reshape(30, 3)]), axis=1) for _ in range(2)
    )
    found = match_sets(sets0, sets1[::-1], dictionary, by)
    right = (found.indices[:, 0] + found.indices[:, 1] == 29).mean()
    assert right > (0.9 if by == "common" else 0.5)
    assert (found.distances <= 1).all()
    direct = {(i, j) for i in range(30) for j in range(30) if set(sets0[i]) & set(sets1[::-1][j])}
    assert {tuple(pair) for pair in found.indices.tolist()} <= direct


def test_ties_and_nothing_in_common_are_no_matches(dictionary):
    first = np.array([[0, 1], [2, 3]])
    assert len(match_sets(first, np.array([[0, 9], [1, 8]]), dictionary, "common")) == 0  # two as near
    assert len(match_sets(first, np.array([[7, 9]]), dictionary, "common")) == 0
    assert match_sets(first, np.array([[2, 3], [0, 9]]), dictionary, "common").indices.tolist() == [[0, 1], [1, 0]]
    assert len(match_sets(first[:0], first, dictionary)) == 0


def test_what_is_wrong_is_told(dictionary, sets):
    with pytest.raises(InputError, match="distance, common"):
        match_sets(sets, sets, dictionary, "sum")
    with pytest.raises(InputError, match="400"):
        match_sets(sets + 390, sets, dictionary)
