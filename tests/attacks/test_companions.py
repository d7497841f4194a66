# SPDX-License-Identifier: Apache-2.0
"""Companions from archives, matches and models: the right rows, and clear words where they do not fit."""

import numpy as np
import pytest

import sfumato
from sfumato.attacks.run import companions_from_archive, companions_from_matches, companions_from_model
from sfumato.errors import InputError
from sfumato.types.scene import Matches


def image(seed, count=6, dim=2, ambient_dim=8):
    rng = np.random.default_rng(seed)
    origin, basis = rng.standard_normal((count, ambient_dim)), rng.standard_normal((count, dim, ambient_dim))
    subspaces = sfumato.Subspaces(origin, basis)
    return sfumato.ConcealedFeatures(rng.random((count, 4)) * 50, subspaces, f"random-{dim}")


def shuffled(features, rows):
    return sfumato.ConcealedFeatures(features.keypoints[rows], features.code[rows], features.recipe)


def test_a_second_release_row_by_row():
    first = image(0)
    second = sfumato.ConcealedFeatures(first.keypoints, image(1).code, first.recipe)
    found = companions_from_archive(first, second)
    assert found.rows.tolist() == list(range(6))
    assert np.array_equal(found.subspaces.origin, second.code.origin)


def test_a_second_release_in_another_order():
    first = image(0)
    second = shuffled(sfumato.ConcealedFeatures(first.keypoints, image(1).code, first.recipe), [4, 0, 3])
    found = companions_from_archive(first, second)
    assert found.rows.tolist() == [0, 3, 4]
    assert np.array_equal(found.subspaces.origin, second.code.origin[[1, 2, 0]])
    assert len(companions_from_archive(first, image(5))) == 0  # another photo


def test_releases_of_other_descriptors():
    with pytest.raises(InputError, match="same descriptors"):
        companions_from_archive(image(0), image(1, ambient_dim=9))


def test_matches_from_both_sides():
    archive = {name: image(seed) for seed, name in enumerate("abc")}
    matches = {
        ("a", "b"): Matches(np.array([[0, 5], [2, 1]]), np.array([0.1, 0.2], np.float32)),
        ("c", "a"): Matches(np.array([[3, 2]]), np.array([0.05], np.float32)),
        ("b", "c"): Matches(np.array([[0, 0]]), np.array([0.3], np.float32)),
    }
    found = companions_from_matches("a", matches, archive)
    assert found.rows.tolist() == [0, 2, 2]
    expected = [archive["b"].code.origin[5], archive["b"].code.origin[1], archive["c"].code.origin[3]]
    assert np.array_equal(found.subspaces.origin, expected)
    nearest = companions_from_matches("a", matches, archive, nearest_only=True)
    assert nearest.rows.tolist() == [0, 2]
    assert np.array_equal(nearest.subspaces.origin, [expected[0], expected[2]])
    assert len(companions_from_matches("a", {}, archive)) == 0


def test_companions_of_different_dimensions():
    archive = {"a": image(0), "b": image(1), "c": image(2, dim=3)}
    one = Matches(np.array([[0, 0]]), np.zeros(1, np.float32))
    with pytest.raises(InputError, match="different dimensions"):
        companions_from_matches("a", {("a", "b"): one, ("a", "c"): one}, archive)


def test_tracks_of_a_model(places, tmp_path):
    place = places.make_place()
    places.write_model(place, tmp_path / "model")
    hidden = place.concealed(places.VIEWS)
    name = places.VIEWS[1]
    found = companions_from_model(name, tmp_path / "model", hidden)
    expected = {
        (row, hidden[other].code.origin[there].tobytes())
        for row, point in enumerate(place.seen[name])
        if point >= 0
        for other in places.VIEWS
        if other != name
        for there in np.flatnonzero(place.seen[other] == point)
    }
    got = list(zip(found.rows.tolist(), (origin.tobytes() for origin in found.subspaces.origin), strict=True))
    assert len(got) == len(set(got)) == len(expected) > 100
    assert set(got) == expected


def test_a_model_of_other_images(places, tmp_path):
    place = places.make_place()
    places.write_model(place, tmp_path / "model")
    hidden = place.concealed(places.VIEWS)
    with pytest.raises(InputError, match="model"):
        companions_from_model("nobody.jpg", tmp_path / "model", hidden)
    swapped = {**hidden, places.VIEWS[1]: hidden[places.VIEWS[2]]}
    with pytest.raises(InputError, match="model"):
        companions_from_model(places.VIEWS[1], tmp_path / "model", swapped)
    with pytest.raises(InputError, match="model"):
        companions_from_model(places.VIEWS[0], tmp_path / "model", swapped)
