# SPDX-License-Identifier: Apache-2.0
"""The density attack wins where clear descriptors are dense and the rest is not; it loses where all is alike."""

import warnings

import numpy as np
import pytest

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.density import generated_like, learn_densities, recover_density
from sfumato.attacks.run import recovery_distances, score_recovery
from sfumato.errors import EvaluationOnlyWarning, InputError
from sfumato.images.samples import sample_image


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def conceal(points, recipe, decoys=None, seed=0):
    features = sfumato.Features(np.zeros((len(points), 4)), points)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return sfumato.conceal(features, recipe, decoys, evaluation_seed=seed)


@pytest.fixture(scope="module")
def samples():
    """SIFT of sample photos: some to attack, others that are public."""
    clear = sfumato.extract(sample_image("coffee"), max_features=120).descriptors
    names = ("astronaut", "chelsea", "rocket", "camera", "brick", "motorcycle-left", "gravel")
    public = [sfumato.extract(sample_image(name), contrast_threshold=0.02).descriptors for name in names]
    return clear, np.concatenate(public)


@pytest.fixture(scope="module")
def compressed(samples):
    """The same reduced to 48 principal components of the public ones, with decoys, of unit norm again."""
    clear, public = samples
    decoys = sfumato.load_decoys().descriptors[::4]
    mean = public.mean(axis=0)
    axes = np.linalg.eigh(np.cov((public - mean).T))[1][:, ::-1][:, :48]
    return tuple(unit((rows - mean) @ axes) for rows in (clear, public, decoys))


@pytest.mark.slow
def test_random_lifting_of_sift_is_broken(samples):
    clear, public = samples
    found = recover_density(conceal(clear, "random-2"), Knowledge(public=public))
    score = score_recovery(found, clear)
    assert score["within 0.1"] > 0.9
    assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-4)


def test_compressed_hybrid_lifting_is_broken_and_more_so_with_known_decoys(compressed):
    clear, public, decoys = compressed
    hidden = conceal(clear, "sub-hybrid-2", sfumato.Decoys(decoys))
    guessed = score_recovery(recover_density(hidden, Knowledge(public=public)), clear)
    known = score_recovery(recover_density(hidden, Knowledge(public=public, decoys=decoys)), clear)
    assert guessed["within 0.3"] > 0.4
    assert known["within 0.3"] > max(0.75, guessed["within 0.3"])
    assert known["within 0.1"] > 0.4


def test_a_larger_subspace_hides_more(compressed):
    clear, public, decoys = compressed
    scores = [
        score_recovery(
            recover_density(conceal(clear, recipe, sfumato.Decoys(decoys)), Knowledge(public=public, decoys=decoys)),
            clear,
        )["within 0.1"]
        for recipe in ("sub-hybrid-2", "sub-hybrid-4")
    ]
    assert scores[0] > 1.5 * scores[1]


def test_descriptors_that_are_everywhere_can_not_be_found():
    rng = np.random.default_rng(0)
    clear, public = unit(rng.standard_normal((100, 32))), unit(rng.standard_normal((3000, 32)))
    found = recover_density(conceal(clear, "random-12"), Knowledge(public=public))
    assert score_recovery(found, clear)["within 0.3"] < 0.05


def test_descriptors_without_a_common_norm():
    rng = np.random.default_rng(1)
    shape = np.diag(1.0 / np.arange(1, 25))
    clear, public = ((rng.standard_normal((count, 24)) @ shape).astype(np.float32) for count in (60, 3000))
    found = recover_density(conceal(clear, "random-2"), Knowledge(public=public))
    distances = recovery_distances(found, clear)
    alone = np.linalg.norm(conceal(clear, "random-2").code.origin - clear, axis=1)
    assert np.median(distances) < np.median(alone)


def test_confidence_tells_right_from_wrong_with_known_decoys(compressed):
    clear, public, decoys = compressed
    hidden = conceal(clear, "sub-hybrid-4", sfumato.Decoys(decoys))
    found = recover_density(hidden, Knowledge(public=public, decoys=decoys))
    right = recovery_distances(found, clear) < 0.3
    assert 0.1 < right.mean() < 0.95
    assert found.confidence[right].mean() > found.confidence[~right].mean()


def test_few_public_descriptors_make_no_centroids(samples):
    few = learn_densities(samples[1][:500], centroids=True)
    assert few.centroids is None
    assert "without" in repr(few)
    found = recover_density(
        conceal(samples[0][:5], "sub-hybrid-2", sfumato.load_decoys()), Knowledge(public=samples[1][:500])
    )
    assert found.descriptors.shape == (5, 128)


def test_points_are_what_they_are(samples):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        raw = sfumato.conceal(sfumato.Features(np.zeros((120, 4)), samples[0]), "raw")
    assert np.array_equal(recover_density(raw, Knowledge(public=samples[1])).descriptors, samples[0])


def test_it_needs_public_descriptors(samples):
    with pytest.raises(InputError, match="public"):
        recover_density(conceal(samples[0], "random-2"), Knowledge())


def test_decoys_that_the_attacker_generates_himself_tell_those_used_apart(samples):
    clear, public = samples
    entries = sfumato.load_decoys().descriptors[::8]
    some = generated_like(entries, 50, seed=0)
    assert some.shape == (50, 128)
    assert np.array_equal(some, generated_like(entries, 50, seed=0))
    hidden = conceal(clear, "hybrid-2-generated", sfumato.Decoys(entries))
    found = recover_density(hidden, Knowledge(public=public, decoys=entries))
    assert score_recovery(found, clear)["within 0.3"] > 0.5  # chance between two is a half
