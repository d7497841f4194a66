# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.experiments.faces.lifting import lift_faces
from sfumato.experiments.faces.releases import PRIOR, meeting_points, stripped_points, unit_length
from sfumato.types.concealed import Subspaces


def cosines(guesses, faces):
    return (unit_length(guesses) * faces.values).sum(axis=1)


def test_the_formula_is_the_one_of_the_docstring(made_faces, strangers):
    faces, _ = made_faces(people=3, photos=1, dim=16)
    other = Subspaces(strangers.descriptors[:3, :16], strangers.descriptors[3:9, :16].reshape(3, 2, 16))
    releases = [lift_faces(faces, "random-2", None, seed=seed) for seed in (0, 1)] + [other]
    expected = []
    for row in range(3):
        matrix = PRIOR * np.eye(16) + sum(np.eye(16) - one.basis[row].T @ one.basis[row] for one in releases)
        expected.append(np.linalg.solve(matrix, sum(one.origin[row] for one in releases)))
    assert meeting_points(releases) == pytest.approx(np.array(expected), abs=1e-6)


def test_releases_of_one_embedding_meet_in_it_and_one_release_tells_less(made_faces, strangers):
    faces, _ = made_faces(people=20, photos=1)
    releases = [lift_faces(faces, "hybrid-4", strangers, seed=seed) for seed in range(12)]
    one, many = (np.median(cosines(meeting_points(releases[:count]), faces)) for count in (1, 12))
    assert many > 0.95 > one + 0.1


def test_the_same_release_again_tells_nothing_new(made_faces, strangers):
    faces, _ = made_faces(people=20, photos=1)
    release = lift_faces(faces, "hybrid-4", strangers, seed=0)
    one, many = (unit_length(meeting_points([release] * count)) for count in (1, 9))
    assert many == pytest.approx(one, abs=1e-5)


def test_decoys_taken_away_beat_one_release(made_faces, strangers):
    faces, _ = made_faces(people=20, photos=1)
    release = [lift_faces(faces, "adversarial-2", strangers, seed=0)]
    stripped = np.median(cosines(stripped_points(release, strangers, 2), faces))
    assert stripped > np.median(cosines(meeting_points(release), faces)) + 0.1


def test_nothing_released_is_a_case(strangers):
    assert meeting_points([]).size == 0
    assert stripped_points([], strangers, 1).size == 0
    assert unit_length(np.zeros((2, 3))).tolist() == [[0, 0, 0]] * 2
