# SPDX-License-Identifier: Apache-2.0
"""Clusters: groups of public neighbours find the real points of a subspace; the image tells which is not a decoy."""

from functools import partial

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.decoys import company, group_neighbours, recover_clusters
from sfumato.attacks.run import score_recovery
from sfumato.errors import InputError
from sfumato.images.samples import sample_image

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.EvaluationOnlyWarning")
conceal = partial(sfumato.conceal, evaluation_seed=1)


@pytest.fixture(scope="module")
def public(sift, decoys):
    """Everything the attacker could wish for: the descriptors, the decoys, and others."""
    other = sfumato.extract(sample_image("astronaut"), max_features=500).descriptors
    return np.concatenate([sift.descriptors, decoys.descriptors[:400], other])


@pytest.mark.slow
def test_one_of_the_groups_is_the_descriptor(sift, decoys, public):
    few = sfumato.Decoys(decoys.descriptors[:400], decoys.extractor, parts=4)
    subspaces = conceal(sift, "hybrid-2", few).code
    centres, sizes = group_neighbours(subspaces, public, 2)
    gaps = np.linalg.norm(centres - sift.descriptors[:, None], axis=2).min(axis=1)
    assert np.median(gaps) < 0.3
    assert (sizes.sum(axis=1) == 60).all()


def test_it_wins_where_a_few_decoys_recur(sift, decoys, public):
    few = sfumato.Decoys(decoys.descriptors[:8], decoys.extractor, parts=1)
    found = recover_clusters(conceal(sift, "hybrid-2", few), Knowledge(public=public))
    assert score_recovery(found, sift.descriptors)["within 0.3"] > 0.6
    assert found.confidence.max() <= 0.5  # a guess


def test_it_loses_without_anything_public_that_resembles(sift, decoys):
    noise = np.abs(np.random.default_rng(0).normal(size=(500, 128)))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    found = recover_clusters(conceal(sift, "sub-hybrid-2", decoys), Knowledge(public=noise))
    assert score_recovery(found, sift.descriptors)["within 0.1"] < 0.1
    with pytest.raises(InputError, match="public"):
        recover_clusters(conceal(sift, "random-2"), Knowledge())


def test_company_is_the_distance_to_others():
    points = np.zeros((4, 1, 3))
    points[3] = 5
    assert np.allclose(company(points)[:, 0], [5 / np.sqrt(3), 5 / np.sqrt(3), 5 / np.sqrt(3), 5 * np.sqrt(3)])
    assert company(points[:1]).tolist() == [[0.0]]
