# SPDX-License-Identifier: Apache-2.0
"""Alignment without the key: it must read a seal of large bandwidth, and must not read noise."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato.attacks.knowledge import rows_of as code_rows
from sfumato.attacks.seals.alignment import AlignmentParams, align, components
from sfumato.concealment.seal import make_seal
from sfumato.errors import InputError

QUICK = AlignmentParams(axes=(3, 4), starts=24, hops=60, bits=512, practice=3000)


def rows_of(seed, count=3000):
    """Skew descriptors of unit norm: what the photos of two people have in common."""
    rng, shared = np.random.default_rng(seed), np.random.default_rng(77)
    strength = rng.gamma([0.2, 0.5, 1.0, 2.0], size=(count, 4)) * [3, 2, 1, 0.5] + 0.3
    found = strength @ polar_rows(shared) + 0.02 * rng.normal(size=(count, 20))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def polar_rows(rng):
    return np.linalg.qr(rng.normal(size=(20, 4)))[0].T


def errors(found, truth):
    return float(np.median(np.linalg.norm(found - truth, axis=1)))


@pytest.fixture(scope="module")
def material():
    victim, public = rows_of(1), rows_of(2)
    return victim, public, errors(np.broadcast_to(public.mean(axis=0), victim.shape), victim)


@pytest.mark.parametrize("odd", [False, True])
def test_it_reads_a_seal_that_is_nearly_a_rotation(material, odd):
    victim, public, guess = material
    codes = code_rows(make_seal(b"another key nobody tells", 20, 512, 2.0, odd=odd)(victim))
    params = replace(QUICK, odd=odd)
    found = align(codes, public, 2.0, params)
    assert errors(found, victim) < 0.5 * guess
    assert np.array_equal(found, align(codes, public, 2.0, params))


def test_it_reads_nothing_where_no_two_descriptors_are_near(material):
    victim, public, guess = material
    codes = code_rows(make_seal(b"a key nobody tells", 20, 512, 0.01)(victim))
    assert errors(align(codes, public, 0.01, QUICK), victim) > 0.9 * guess
    shuffled = np.random.default_rng(0).permutation(codes.ravel()).reshape(codes.shape)
    assert errors(align(shuffled, public, 2.0, QUICK), victim) > 0.9 * guess


def test_too_little_is_refused(material):
    victim, public, _ = material
    codes = code_rows(make_seal(b"k", 20, 64, 2.0)(victim[:10]))
    with pytest.raises(InputError, match="64 codes"):
        align(codes, public, 2.0, QUICK)


def test_components_are_the_principal_ones(material):
    rows = material[0]
    found = components(rows, lambda part: part, 3)
    centred = rows - rows.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred / len(rows))[::-1]
    assert np.allclose(found.spread, values[:3], rtol=1e-3)
    assert np.allclose(found.scores.var(axis=0), values[:3], rtol=1e-2)
    assert "3000 x 3" in repr(found)
