# SPDX-License-Identifier: Apache-2.0
"""Tracks of a map reveal what they see, and nothing else."""

import warnings
from itertools import combinations

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.releases import OUTSIDE, recover_tracks, scene_points
from sfumato.attacks.run import companions_from_model, recovery_distances
from sfumato.errors import EvaluationOnlyWarning
from sfumato.experiments.data.room import make_room
from sfumato.geometry.mappers import MapParams
from sfumato.geometry.mapping import map_keypoints


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A room in four views: clear features, concealed ones, and a map of the latter."""
    room = make_room(None, np.random.default_rng(3), views=4, width=208, height=156, step=8.0)
    clear = {view.image.name: sfumato.extract(view.image, max_features=200) for view in room.views}
    decoys = sfumato.load_decoys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        hidden = {
            name: sfumato.conceal(features, "sub-hybrid-2", decoys, evaluation_seed=number)
            for number, (name, features) in enumerate(clear.items())
        }
    matches = {(a, b): sfumato.match(hidden[a], hidden[b]) for a, b in combinations(sorted(hidden), 2)}
    outcome = map_keypoints(
        {name: features.keypoints for name, features in hidden.items()},
        {view.image.name: view.camera for view in room.views},
        matches,
        tmp_path_factory.mktemp("map") / "model",
        MapParams(threads=1),
        poses={view.image.name: view.pose for view in room.views},
    )
    assert outcome.folder is not None, outcome.reason
    return clear, hidden, outcome.folder


def test_the_stationary_scene_comes_back_and_the_rest_does_not(mapped):
    clear, hidden, folder = mapped
    inside, outside = [], []
    for name, features in hidden.items():
        tracks = companions_from_model(name, folder, hidden)
        found = recover_tracks(features, Knowledge(tracks=tracks))
        seen = np.bincount(tracks.rows, minlength=len(features))
        distances = recovery_distances(found, clear[name].descriptors)
        inside += distances[seen >= 2].tolist()
        outside += distances[seen == 0].tolist()
        assert found.confidence[seen == 0].max(initial=0) == 0
    assert len(inside) > 40
    assert len(outside) > 40
    assert np.mean(np.array(inside) < 0.1) > 0.9
    assert np.mean(np.array(outside) < 0.1) < 0.05


def test_outside_tracks_public_descriptors_help_a_little(mapped):
    _, hidden, folder = mapped
    name = sorted(hidden)[0]
    tracks = companions_from_model(name, folder, hidden)
    public = sfumato.load_decoys().descriptors[:2000]
    alone, helped = (recover_tracks(hidden[name], Knowledge(tracks=tracks, public=p)) for p in (None, public))
    out = np.bincount(tracks.rows, minlength=len(hidden[name])) == 0
    assert np.allclose(alone.descriptors[~out], helped.descriptors[~out], atol=1e-4)
    assert not np.allclose(alone.descriptors[out], helped.descriptors[out])
    assert 0 < helped.confidence[out].max() <= OUTSIDE
    assert np.allclose(np.linalg.norm(helped.descriptors, axis=1), 1, atol=1e-4)


def test_scene_points_are_least_squares():
    rng = np.random.default_rng(0)
    centre = unit(rng.standard_normal((20, 12)))
    views = [sfumato.conceal(unit(centre + 0.05 * rng.standard_normal(centre.shape)), "random-2") for _ in range(4)]
    found = scene_points(views)
    for row in range(20):
        bases = [view.basis[row].astype(np.float64) for view in views]
        matrix = sum(np.eye(12) - basis.T @ basis for basis in bases)
        assert np.allclose(found[row], np.linalg.solve(matrix, sum(v.origin[row] for v in views)), atol=1e-5)
    assert np.allclose(np.linalg.norm(scene_points(views, 2.0), axis=1), 2)


def test_more_views_come_nearer_to_what_they_share():
    rng = np.random.default_rng(1)
    centre = unit(rng.standard_normal((100, 64)))
    views = [
        sfumato.conceal(unit(centre + 0.2 * unit(rng.standard_normal(centre.shape))), "random-2") for _ in range(10)
    ]
    errors = [np.median(np.linalg.norm(scene_points(views[:k], 1.0) - centre, axis=1)) for k in (2, 4, 10)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1


def test_one_view_alone_gives_its_own_nearest_point():
    view = sfumato.conceal(np.eye(3, 8), "random-2")
    assert np.allclose(scene_points([view]), view.origin, atol=1e-6)
