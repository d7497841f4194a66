# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbours that are kept: the same as searched anew, once for all who ask, and never those of others."""

import numpy as np
import pytest

from sfumato.attacks.liftings import neighbours
from sfumato.attacks.liftings.neighbours import _clear_caches, cached_nearest
from sfumato.errors import InputError
from sfumato.matching.mutual import nearest
from sfumato.types.concealed import Subspaces


def frozen(array):
    array = np.ascontiguousarray(array, np.float32)
    array.flags.writeable = False
    return array


def make(seed, count=30, m=2, n=16):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(count, n, m)))[0].transpose(0, 2, 1)
    points = rng.normal(size=(count, n))
    origin = points - np.einsum("nk,nki->ni", np.einsum("nki,ni->nk", basis, points), basis)
    return Subspaces(origin.astype(np.float32), basis.astype(np.float32))


@pytest.fixture
def public():
    _clear_caches()
    yield frozen(np.random.default_rng(0).normal(size=(400, 16)))
    _clear_caches()


@pytest.fixture
def searches(monkeypatch):
    made, search = [], neighbours.nearest_prepared

    def counted(queries, references, k, params):
        made.append((references, k))
        return search(queries, references, k, params)

    monkeypatch.setattr(neighbours, "nearest_prepared", counted)
    return made


def test_one_search_and_one_preparation_serve_many(public, searches):
    first, second = make(1), make(2)
    for subspaces in (first, second):
        for count in (1, 7, 1, 500):
            found, wanted = (
                cached_nearest(subspaces, public, count, ahead=60),
                nearest(subspaces, public, min(count, 400)),
            )
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_array_equal(found[1], wanted[1])
    assert [k for _, k in searches] == [60, 400, 60, 400]
    assert len({id(references) for references, _ in searches}) == 1


def test_others_are_not_mistaken_for_it(public, searches):
    subspaces = make(1)
    for seed in range(6):  # more than are kept, and memory that was let go of is used again
        other = frozen(np.random.default_rng(seed).normal(size=(400, 16)))
        np.testing.assert_array_equal(cached_nearest(subspaces, other, 3)[1], nearest(subspaces, other, 3)[1])
        del other
    assert len(searches) == 6
    for seed in range(6):
        subspaces = make(seed)
        np.testing.assert_array_equal(cached_nearest(subspaces, public, 3)[1], nearest(subspaces, public, 3)[1])


def test_what_may_change_is_not_kept(public, searches):
    subspaces, entries = make(1), public.copy()
    before = cached_nearest(subspaces, entries, 1)[1]
    entries[before[0, 0]] = 100
    assert cached_nearest(subspaces, entries, 1)[1][0, 0] != before[0, 0]
    assert len(searches) == 2


def test_what_can_not_be_searched_is_told(public):
    with pytest.raises(InputError, match="public descriptors"):
        cached_nearest(make(1), public[:0], 1)
    with pytest.raises(InputError, match="different spaces"):
        cached_nearest(make(1, n=8), public, 1)
