# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.search.grassmann.family import HashRule, keys_of, squared_cosines, symbols_of
from sfumato.search.grassmann.index import Hasher


def bases(count, dim, n, seed=0, stretch=1.0):
    drawn = np.random.default_rng(seed).normal(size=(count, n, dim))
    drawn[:, 0] *= stretch
    return np.linalg.qr(drawn)[0].transpose(0, 2, 1).astype(np.float32)


def draw(rule="quantile", sizes=(6, 4), sample=(), n=20, **more):
    return Hasher.draw(HashRule(name=rule, **more), sizes, list(sample), n, np.random.default_rng(5))


def test_equal_subspaces_have_equal_keys_whatever_their_bases():
    spans = bases(50, 3, 20)
    turned = np.einsum("ij,njk->nik", np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0], spans)
    hasher = draw(sample=[spans])
    same = hasher.keys(spans) == hasher.keys(turned.astype(np.float32))
    assert same.mean() > 0.99  # rounding may cross a cut
    assert hasher.keys(spans[:0]).shape == (0, 6)


def test_cuts_are_fitted_to_subspaces_that_all_lean_one_way():
    spans = bases(2000, 3, 20, stretch=30)
    shares = {}
    for name, sample in (("fitted", [spans]), ("by the law", [])):
        hasher = draw(sample=sample)
        bits = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(3)).mean(axis=0)
        shares[name] = np.abs(bits - 0.5)
    assert shares["fitted"].max() < 0.02
    assert shares["by the law"].max() > 0.2


def test_other_dimensions_get_cuts_of_their_own():
    hasher = draw(sample=[bases(2000, 3, 20)])
    for dim in (1, 3, 7):
        spans = bases(2000, dim, 20, seed=dim)
        bits = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(dim)).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 0.06


@pytest.mark.parametrize(("rule", "more"), [("quantile", {}), ("quantile", {"bins": 4}), ("quantised", {"width": 0.2})])
def test_probes_are_the_key_and_its_neighbours(rule, more):
    spans = bases(40, 2, 20)
    hasher = draw(rule, sample=[bases(300, 2, 20, seed=9)], **more)
    found = hasher.probes(spans, 4)
    assert found.shape == (40, 6, 4)
    assert np.array_equal(found[:, :, 0], hasher.keys(spans))
    assert all(len(set(row)) == 4 for row in found.reshape(-1, 4).tolist())
    symbols = symbols_of(squared_cosines(spans, hasher.lines), hasher.cuts(2)).astype(int)
    one_off = set()
    for place in range(4):
        for step in (-1, 1):
            changed = symbols.reshape(40, 6, 4).copy()
            changed[:, :, place] += step
            one_off |= set(keys_of(changed.reshape(40, -1).astype(np.uint16), 6)[0].tolist())
    assert set(found[0, :, 1:].ravel().tolist()) <= one_off


def test_probing_finds_more_near_subspaces():
    spans = bases(400, 2, 20)
    moved = np.linalg.qr((spans + 0.1 * np.random.default_rng(2).normal(size=spans.shape)).transpose(0, 2, 1))[0]
    moved = moved.transpose(0, 2, 1).astype(np.float32)
    hasher = draw(sample=[spans], sizes=(4, 8))
    keys = hasher.keys(spans)[:, :, None]
    hits = [(hasher.probes(moved, count) == keys).any(axis=(1, 2)).mean() for count in (1, 4)]
    others = (hasher.probes(np.roll(moved, 1, axis=0), 4) == keys).any(axis=(1, 2)).mean()
    assert hits[1] > hits[0] > others


def test_nothing_of_a_subspace_is_shown():
    assert repr(draw()) == "Hasher(quantile, 6 tables of 4 symbols)"
