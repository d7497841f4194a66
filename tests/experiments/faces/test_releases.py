# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import DecoyError, InputError
from sfumato.experiments.faces.releases import (
    POLICIES,
    ReleaseProtocol,
    clear_threshold,
    collect_albums,
    evaluate_releases,
    release,
    release_table,
)
from sfumato.types.recipe import Recipe


@pytest.fixture(scope="module")
def faces(made_faces):
    return made_faces(people=30, photos=9, noise=0.5)[0]


def scores_of(record):
    return {score.name: score.value for score in record.scores}


def test_albums_hold_photos_of_one_person(faces):
    albums = collect_albums(faces, 4)
    assert albums.photos.shape == (30, 4)
    assert all(len({faces.names[row].split("_")[0] for row in rows}) == 1 for rows in albums.photos)
    with pytest.raises(InputError, match="10"):
        collect_albums(faces, 10)


def test_policies_do_what_they_say(faces, strangers):
    albums = collect_albums(faces, 4)
    shown = {policy: release(albums, Recipe.of("hybrid-2"), strangers, policy=policy, seed=0) for policy in POLICIES}
    assert {policy: len(some) for policy, some in shown.items()} == {
        "independent": 3, "near-parallel": 3, "parallel": 3, "remembered": 3, "third party": 0,
    }  # fmt: skip

    def turned(policy):
        first, last = shown[policy][0].basis, shown[policy][-1].basis
        return np.linalg.svd(first @ last.transpose(0, 2, 1), compute_uv=False).min()  # cosine of the largest angle

    assert turned("parallel") > 1 - 1e-5
    assert 0.95 < turned("near-parallel") < 1 - 1e-4
    assert turned("independent") < 0.9
    assert np.array_equal(shown["remembered"][0].origin, shown["remembered"][2].origin)
    assert not np.allclose(shown["parallel"][0].origin, shown["parallel"][2].origin)


def test_independent_releases_reveal_and_the_mitigations_do_not_add(faces, strangers, tmp_path):
    protocol = ReleaseProtocol(recipes=("hybrid-8",), releases=(1, 8))
    records = evaluate_releases(faces, tmp_path, protocol, strangers)
    found = {record.params["policy"]: scores_of(record) for record in records}
    one, many = "meeting after 1, accepted", "meeting after 8, accepted"
    assert found["independent"][many] > found["independent"][one] + 0.3
    assert found["independent"][many] > found["parallel"][many]
    assert found["remembered"][many] == found["remembered"][one]
    assert found["third party"][many] < 0.1
    assert found["third party"]["genuine accepted"] > 0.5
    assert len(release_table(records).rows) == 5


def test_the_threshold_stands_for_its_rate(faces):
    albums = collect_albums(faces, 9)
    threshold = clear_threshold(albums)
    first, last = (faces.values[albums.photos[:, at]] for at in (0, -1))
    distances = np.linalg.norm(first[:, None] - last[None], axis=2)
    assert (distances[~np.eye(30, dtype=bool)] <= threshold).mean() <= 2e-3


def test_what_can_not_be_measured_is_told(faces, tmp_path):
    with pytest.raises(InputError, match="policy"):
        ReleaseProtocol(policies=("hope",))
    with pytest.raises(InputError, match="first release"):
        ReleaseProtocol(recipes=("raw",))
    with pytest.raises(InputError, match="above 0"):
        ReleaseProtocol(releases=(0, 1))
    with pytest.raises(DecoyError, match="hybrid-2"):
        evaluate_releases(faces, tmp_path, ReleaseProtocol(recipes=("hybrid-2",)))
