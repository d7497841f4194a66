# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.concealment.faces import conceal_embeddings
from sfumato.errors import InputError
from sfumato.faces.compare import POINT, SUBSPACE, checked_comparison, comparison_of, distances, pair_distances
from sfumato.subspace.reference import squared_distances


def test_distances_are_those_of_the_definition(photos):
    faces = photos(range(6))
    templates, other = conceal_embeddings(faces, "random-2"), conceal_embeddings(faces, "random-3")
    for probe, plain in ((faces.values, faces.values), (other, other.code)):
        wanted = np.sqrt(squared_distances(plain, templates.code))
        assert np.allclose(distances(probe, templates), wanted, atol=1e-6)
        found = pair_distances(probe, templates.code, [5, 0], np.array([1, 2], np.int32))
        assert np.allclose(found, wanted[[5, 0], [1, 2]], atol=1e-6)
    assert comparison_of(faces.values) == POINT
    assert comparison_of(other) == comparison_of(other.code) == SUBSPACE


def test_nothing_has_no_distance(photos):
    templates = conceal_embeddings(photos(range(2)), "random-2")
    assert distances(np.zeros((0, 64)), templates).shape == (0, 2)
    assert pair_distances(templates, templates, [], []).shape == (0,)


def test_what_can_not_be_compared_is_refused(photos):
    templates = conceal_embeddings(photos(range(2)), "random-2")
    with pytest.raises(InputError, match="different spaces"):
        distances(np.eye(3), templates)
    for rows in ([2], [-1], [0.5], [[0]]):
        with pytest.raises(InputError, match="pairs"):
            pair_distances(templates, templates, rows, [0])
    with pytest.raises(InputError, match="probes"):
        pair_distances(templates, templates, [0, 1], [0])
    with pytest.raises(InputError, match="'p-to-s'"):
        checked_comparison("p-to-p")
