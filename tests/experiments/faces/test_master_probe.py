# SPDX-License-Identifier: Apache-2.0
"""Master probes in both directions: random phases and embeddings with a common part are weak, odd waves are not."""

import numpy as np
import pytest

from sfumato.experiments.faces.lifting import bit_distances, face_seal
from sfumato.experiments.faces.master_probe import (
    FROM_ROWS,
    distances_without_key,
    majority,
    master_distances,
    master_probes,
    probe_points,
)
from sfumato.experiments.faces.protection import KEY_EACH, ONE_KEY, compare_templates
from sfumato.experiments.faces.releases import collect_albums
from sfumato.types.clear import Embeddings
from sfumato.types.concealed import Bits
from sfumato.types.recipe import Recipe

RECIPE = Recipe.of("sealed-1024:1")
RATE = 1e-2
PEOPLE = 120


def faces(common=0.0, seed=0, dimensions=128):
    """Three photos of each person; with a common part their network is not centred."""
    rng = np.random.default_rng(seed)
    people = rng.normal(size=(PEOPLE, dimensions)).repeat(3, axis=0) / np.sqrt(dimensions)
    rows = people + 0.4 * rng.normal(size=people.shape) / np.sqrt(dimensions) + common * np.eye(1, dimensions)
    return Embeddings(rows, tuple(f"person{row // 3}_{row % 3:04d}" for row in range(len(rows))))


def rates(common, *, odd, one_key=True):
    """The share of people that each master probe opens, at one false accept in a hundred."""
    albums, public = collect_albums(faces(common), 3), faces(common, seed=1).values
    packed = face_seal(RECIPE, 128, seed=0, odd=odd)(albums.faces.values[albums.photos[:, 0]]).packed
    strangers = bit_distances(packed[:, None], packed[None])[~np.eye(PEOPLE, dtype=bool)]
    threshold = np.quantile(strangers, RATE)
    distances = master_probes(albums, RECIPE, public, one_key=one_key, seed=0, odd=odd)
    return {name: float((one <= threshold).mean()) for name, one in distances.items()}


@pytest.mark.parametrize("one_key", [True, False])
def test_random_phases_are_opened_without_a_face_and_odd_waves_are_not(one_key):
    weak, real = (rates(0.0, odd=odd, one_key=one_key) for odd in (False, True))
    assert weak["master zero"] > 0.95
    assert weak["master most faces, bit by bit"] > 0.95
    assert weak["master mean of length 0.1"] > 0.95
    assert max(real.values()) < 5 * RATE
    assert real["master zero"] == 0
    assert (FROM_ROWS in real) == one_key
    if one_key:
        assert weak[FROM_ROWS] > 0.95  # no key is needed


def test_a_network_that_is_not_centred_is_opened_by_its_mean():
    opened = rates(1.0, odd=True)
    assert opened["master mean of length 1"] > 0.7
    assert opened[FROM_ROWS] > 0.7
    assert opened["master zero"] == 0


def test_points_are_near_the_faces_they_are_made_of():
    public = faces(0.5).values
    points = probe_points(public)
    mean = public.mean(axis=0) / np.linalg.norm(public.mean(axis=0))
    assert np.allclose(points["mean of length 0.25"], 0.25 * mean, atol=1e-6)
    assert np.allclose(points["opposite of the mean"], -mean, atol=1e-6)
    assert (points["middle of a crowd"] @ public.T).mean() > 0.3
    assert list(probe_points(public[:0])) == ["zero"]


def test_most_rows_are_counted_without_the_row_itself():
    packed = np.packbits(np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]).repeat(2, axis=1), axis=1)
    assert distances_without_key(Bits(packed)).tolist() == [0.75, 0.75, 0.75]  # of a tie the bit is 1
    assert np.unpackbits(majority(np.array([3, 0, -1, 2, 2, 2, 2, -9]))).tolist() == [1, 1, 0, 1, 1, 1, 1, 0]
    seal = face_seal(RECIPE, 128, seed=0)
    distances = master_distances(seal(faces().values[:4]), seal, {"one": faces().values[0]}, faces().values[:0])
    assert distances["one"][0] == 0
    assert list(distances) == ["one"]


@pytest.mark.parametrize("keys", [KEY_EACH, ONE_KEY])
def test_protection_measures_them(strangers, made_faces, keys):
    albums = collect_albums(made_faces(people=12, photos=3)[0], 3)
    compared = compare_templates(albums, Recipe.of("sealed-256:1"), strangers, keys=keys, seed=0)
    assert compared.masters["master zero"].shape == (12,)
    assert (FROM_ROWS in compared.masters) == (keys == ONE_KEY)
    assert not compare_templates(albums, Recipe.of("random-2"), strangers, keys=None, seed=0).masters
