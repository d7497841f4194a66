# SPDX-License-Identifier: Apache-2.0
"""Known pairs read codes of the same key, and nothing of another."""

import numpy as np
import pytest

from sfumato.attacks.knowledge import KnownPairs
from sfumato.attacks.knowledge import rows_of as code_rows
from sfumato.attacks.seals.known_pairs import linear_map, read_codes
from sfumato.concealment.seal import make_seal


def sealed(rows, key, bandwidth=0.45):
    return code_rows(make_seal(key, rows.shape[1], 256, bandwidth)(rows))


@pytest.fixture(scope="module")
def rows():
    """Descriptors of unit norm near a surface of few dimensions, as natural ones are."""
    rng = np.random.default_rng(4)
    found = rng.normal(size=(2600, 6)) @ rng.normal(size=(6, 24)) + 0.1 * rng.normal(size=(2600, 24))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def median_error(found, truth):
    return float(np.median(np.linalg.norm(found.descriptors - truth, axis=1)))


def test_pairs_of_the_same_key_read_codes_and_more_pairs_read_more(rows):
    codes = sealed(rows, b"the owner's key")
    errors = [
        median_error(read_codes(codes[:300], KnownPairs(descriptors=rows[300:end], codes=codes[300:end])), rows[:300])
        for end in (400, 2600)
    ]
    guess = float(np.median(np.linalg.norm(rows[:300] - rows.mean(axis=0), axis=1)))
    assert errors[1] < errors[0] < guess
    assert errors[1] < 0.35 * guess


def test_pairs_of_another_key_read_nothing(rows):
    other = KnownPairs(descriptors=rows[300:], codes=sealed(rows[300:], b"another key"))
    found = read_codes(sealed(rows[:300], b"the owner's key"), other)
    assert median_error(found, rows[:300]) > 0.9


def test_least_squares_are_the_same_in_both_dimensions():
    rng = np.random.default_rng(0)
    codes, rows = rng.normal(size=(40, 30)).astype(np.float32), rng.normal(size=(40, 3)).astype(np.float32)
    wide = linear_map(codes[:20], rows[:20], 0.1)
    centred = codes[:20] - codes[:20].mean(axis=0)
    spread = centred.T @ centred
    spread += 0.1 * np.trace(spread) / 30 * np.eye(30)
    expected = np.linalg.solve(spread, centred.T @ (rows[:20] - rows[:20].mean(axis=0)))
    assert np.allclose(wide.matrix, expected, atol=1e-4)
    assert "30 bits" in repr(wide)


def test_few_pairs_are_still_some(rows):
    codes = sealed(rows[:5], b"k")
    few = KnownPairs(descriptors=rows[:3], codes=codes[:3])
    assert read_codes(codes, few).descriptors.shape == (5, 24)
    assert "256 bits" in repr(few)


def test_a_near_known_code_is_believed_and_others_are_mapped(rows):
    """Copies among the pairs are read exactly, however many other pairs least squares would rather learn from."""
    codes = sealed(rows, b"the owner's key", bandwidth=0.2)
    near = rows[:40] + 0.002
    known = KnownPairs(
        descriptors=np.concatenate([rows[300:], near]),
        codes=np.concatenate([codes[300:], sealed(near, b"the owner's key", 0.2)]),
    )
    found = read_codes(codes[:300], known).descriptors
    errors = np.linalg.norm(found - rows[:300], axis=1)
    assert np.median(errors[:40]) < 0.6 * np.median(errors[40:])
