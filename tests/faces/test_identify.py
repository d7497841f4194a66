# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import InputError
from sfumato.faces.compare import distances
from sfumato.faces.decide import Identifier
from sfumato.subspace import small_batch


def test_the_nearest_are_those_of_the_definition(photos):
    enrolled, probes = photos(range(40)), photos(range(0, 40, 7), seed=3)
    templates = conceal_embeddings(enrolled, "random-2")
    for asked in (probes.values, conceal_embeddings(probes, "random-2")):
        whole = distances(asked, templates)
        found, rows = Identifier(templates).search(asked, 5)
        assert np.allclose(found, np.sort(whole, axis=1)[:, :5], atol=1e-6)
        assert np.allclose(np.take_along_axis(whole, rows, axis=1), found, atol=1e-6)
    people = Identifier(templates).identify(probes.values, k=3)
    assert [line[0].id for line in people] == list(enrolled[::7].names)
    assert all(len(line) == 3 for line in people)


def test_few_probes_among_many_find_the_same(photos, monkeypatch):
    templates, probes = conceal_embeddings(photos(range(60)), "random-2"), photos(range(0, 60, 20), seed=3).values
    whole = Identifier(templates).search(probes, 5)
    monkeypatch.setattr(small_batch, "FEWEST_SUBSPACES", 10)
    asked = Identifier(templates)
    monkeypatch.delattr("sfumato.faces.decide.nearest_prepared")
    for one, other in zip(whole, asked.search(probes, 5), strict=True):
        assert np.array_equal(one, other)


def test_there_may_be_fewer_than_wanted_or_nobody(photos):
    templates = conceal_embeddings(photos(range(2)), "random-2")
    assert len(Identifier(templates).identify(photos(range(1)).values, k=5)[0]) == 2
    found, rows = Identifier(templates).search(photos(range(1)).values, k=2**31 - 1)
    assert found.shape == rows.shape == (1, 2)
    assert Identifier(templates[[]]).identify(photos(range(1)).values) == [[]]
    assert Identifier(templates).identify(np.zeros((0, 64))) == []


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_impossible_numbers_are_refused(photos, k):
    with pytest.raises(InputError, match="k: expected"):
        Identifier(conceal_embeddings(photos(range(2)), "random-2")).search(np.eye(1, 64), k)
