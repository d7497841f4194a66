# SPDX-License-Identifier: Apache-2.0
"""A right match reveals both descriptors, a wrong one neither."""

import warnings

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Companions, Knowledge
from sfumato.attacks.liftings.releases import meet, recover_reveal
from sfumato.attacks.run import companions_from_matches, recovery_distances
from sfumato.errors import EvaluationOnlyWarning
from sfumato.images.samples import sample_image
from sfumato.subspace.reference import closest_points


@pytest.fixture(scope="module")
def stereo():
    """Clear and concealed features of the two motorcycles."""
    clear = [sfumato.extract(sample_image(f"motorcycle-{side}"), max_features=400) for side in ("left", "right")]
    decoys = sfumato.load_decoys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        hidden = [sfumato.conceal(c, "sub-hybrid-2", decoys, evaluation_seed=5 + n) for n, c in enumerate(clear)]
    return clear, hidden


def test_right_matches_reveal_wrong_ones_do_not(stereo):
    (left, right), hidden = stereo
    truth = sfumato.match(left.descriptors, right.descriptors, ratio=0.7).indices
    assert len(truth) > 30
    partners = Companions(rows=truth[:, 0].astype(np.int32), subspaces=hidden[1].code[truth[:, 1]])
    won = recover_reveal(hidden[0], Knowledge(partners=partners))
    distances = recovery_distances(won, left.descriptors)[truth[:, 0]]
    assert np.median(distances) < 0.1
    wrong = Companions(rows=partners.rows, subspaces=hidden[1].code[np.roll(truth[:, 1], 1)])
    lost = recover_reveal(hidden[0], Knowledge(partners=wrong))
    assert np.median(recovery_distances(lost, left.descriptors)[truth[:, 0]]) > 0.4
    assert won.confidence[truth[:, 0]].mean() > lost.confidence[truth[:, 0]].mean()


def test_from_the_matches_a_server_finds(stereo):
    (left, _), hidden = stereo
    archive = {"left.png": hidden[0], "right.png": hidden[1]}
    matches = {("left.png", "right.png"): sfumato.match(*hidden)}
    partners = companions_from_matches("left.png", matches, archive, nearest_only=True)
    found = recover_reveal(hidden[0], Knowledge(partners=partners))
    sure = found.confidence > 0.8
    distances = recovery_distances(found, left.descriptors)
    assert np.mean(distances[sure] < 0.1) > np.mean(distances < 0.1)
    assert np.mean(distances < 0.1) > 0.1


def test_both_sides_of_a_pair_are_the_closest_points(stereo):
    _, hidden = stereo
    first, second = (one.code[:50] for one in hidden)
    x, y = closest_points(first.origin, first.basis, second.origin, second.basis)
    rows = np.arange(50)
    for own, other, points in ((first, second, x), (second, first, y)):
        partners = Companions(rows=rows, subspaces=other)
        assert np.allclose(meet(own, partners).descriptors, points, atol=1e-4)
        assert np.allclose(np.linalg.norm(meet(own, partners, 1.0).descriptors, axis=1), 1, atol=1e-4)
