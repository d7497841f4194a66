# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.experiments.faces import attributes as guess
from sfumato.experiments.faces.lifting import lift_faces
from sfumato.subspace.reference import point_squared_distances


def test_distances_are_those_of_the_definition(made_faces, strangers):
    faces, _ = made_faces(people=9, photos=1)
    lifted = lift_faces(faces, "hybrid-2", strangers, seed=0)
    expected = point_squared_distances(strangers.descriptors, lifted.origin, lifted.basis).T
    assert guess.squared_distances_to(strangers.descriptors, lifted) == pytest.approx(expected, abs=1e-5)


def test_neighbours_win_on_clear_faces_and_lose_among_decoys_of_the_other_kind(made_faces, strangers):
    faces, kinds = made_faces(people=100, photos=1, seed=1)
    others, known = made_faces(people=400, photos=1, seed=2)
    clear = lift_faces(faces, "raw", None, seed=0)
    assert (guess.neighbour_guesses(clear, others.values, known) == kinds).mean() > 0.9
    hidden = lift_faces(faces, "adversarial-8", strangers, seed=0)
    assert (guess.neighbour_guesses(hidden, others.values, known) == kinds).mean() < 0.75


def test_a_tie_goes_to_the_nearer():
    from sfumato.types.concealed import Subspaces

    one = Subspaces(np.zeros((1, 2), np.float32), np.zeros((1, 0, 2), np.float32))
    points = np.array([[1, 0], [2, 0]], np.float32)
    assert guess.neighbour_guesses(one, points, np.array([1, 0]), neighbours=2).tolist() == [1]
    with pytest.raises(InputError, match="got 2"):
        guess.neighbour_guesses(one, points, np.array([1, 0]))


def test_the_classifier_learns_what_is_there_and_nothing_else():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=900)
    features = rng.normal(size=(900, 20))
    features[:, :3] += 4 * np.eye(3)[labels]
    model = guess.train_guess(features[:600], labels[:600])
    assert (model.guess(features[600:]) == labels[600:]).mean() > 0.95
    noise = guess.train_guess(features[:600, 3:], labels[:600])
    assert (noise.guess(features[600:, 3:]) == labels[600:]).mean() < 0.5
    with pytest.raises(InputError):
        guess.train_guess(features[:0], labels[:0])


def test_practice_chooses_the_penalty():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    features = 0.3 * rng.normal(size=(600, 40)) + 0.2 * (2 * labels[:, None] - 1)
    fine = 1e-3 * rng.normal(size=(600, 1)) + 0.01 * (2 * labels[:, None] - 1)  # tells all, until noise is added
    clear = np.hstack([features, fine])
    noisy = clear + 0.3 * rng.normal(size=clear.shape)
    plain = guess.train_guess(clear[:400], labels[:400])
    practised = guess.train_guess(clear[:400], labels[:400], practice=noisy[300:400])
    right = [(model.guess(noisy[400:]) == labels[400:]).mean() for model in (plain, practised)]
    assert right[1] >= right[0]


@pytest.mark.parametrize("recipe", ["adversarial-2", "hybrid-2", "hybrid-4", "adversarial-4"])
def test_public_decoys_taken_away_leave_the_face(made_faces, recipe):
    faces, _ = made_faces(people=20, photos=1, dim=256)
    from sfumato.concealment.decoys import Decoys

    others, kinds = made_faces(people=50, photos=1, dim=256, seed=9)
    decoys = Decoys(others.values, labels=kinds)
    lifted = lift_faces(faces, recipe, decoys, seed=0)
    count = {"adversarial-2": 2, "hybrid-2": 1, "hybrid-4": 2, "adversarial-4": 4}[recipe]
    features = guess.stripped_features(lifted, decoys, count)
    assert (features[:, 256:].sum(axis=1) == count).all()  # every decoy was found
    near = (features[:, :256] * faces.values).sum(axis=1)
    told = lifted.origin / np.linalg.norm(lifted.origin, axis=1, keepdims=True)
    assert np.median(near) > 0.9 > np.median((told * faces.values).sum(axis=1))


def test_a_database_that_is_not_the_right_one_strips_nothing(made_faces, strangers):
    faces, _ = made_faces(people=20, photos=1)
    from sfumato.concealment.decoys import Decoys

    other = Decoys(made_faces(people=60, photos=1, seed=7)[0].values)
    lifted = lift_faces(faces, "hybrid-2", strangers, seed=0)
    unit = lifted.origin / np.linalg.norm(lifted.origin, axis=1, keepdims=True)
    assert guess.stripped_features(lifted, other, 1) == pytest.approx(unit, abs=1e-6)
    assert guess.stripped_features(lifted, None, 1) == pytest.approx(unit, abs=1e-6)


def test_figures_of_a_table():
    table = guess.confusion(np.array([0, 0, 0, 1]), np.array([1, 1, 0, 0]), 2)
    assert table.tolist() == [[1, 2], [1, 0]]
    assert (guess.accuracy(table), guess.relabelled_accuracy(table), guess.majority(table)) == (0.25, 0.75, 0.5)
    assert guess.accuracy(np.zeros((2, 2), int)) == 0
