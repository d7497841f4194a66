# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import sfumato
from sfumato.concealment import decoy_clusters
from sfumato.concealment.decoy_clusters import draw_descriptors
from sfumato.concealment.decoys import encode_bytes
from sfumato.errors import DecoyError
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor


def clumps(count: int, n: int, each: int, seed: int = 0) -> np.ndarray:
    """Unit-norm points in ``count`` tight clumps."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(np.abs(rng.normal(size=(count, n))), each, axis=0)
    rows = np.abs(centres + rng.normal(0, 0.02, centres.shape))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def quantisation_error(rows, decoys) -> float:
    return float((2 - 2 * (rows @ decoys.descriptors.T).max(axis=1)).mean())


def test_centroids_find_the_clumps():
    rows = clumps(12, 16, 60)
    decoys = sfumato.build_decoys(rows, 12, parts=3, iterations=25)
    assert len(decoys) == 12
    assert np.abs(np.linalg.norm(decoys.descriptors, axis=1) - 1).max() < 1e-6
    drawn = rows[np.random.default_rng(1).choice(len(rows), 12, replace=False)]
    assert quantisation_error(rows, decoys) < quantisation_error(rows, sfumato.Decoys(drawn))


def test_two_levels_are_nearly_as_good_as_one(monkeypatch):
    rows = clumps(300, 24, 20)
    flat = sfumato.build_decoys(rows, 256)
    monkeypatch.setattr(decoy_clusters, "FLAT_LIMIT", 64)
    nested = sfumato.build_decoys(rows, 256)
    assert len(nested) == 256
    assert quantisation_error(rows, nested) < 1.5 * quantisation_error(rows, flat)


def test_the_seed_repeats_the_build_and_another_does_not():
    rows = clumps(40, 16, 20)
    first, second, other = (sfumato.build_decoys(rows, 32, seed=seed).checksum for seed in (1, 1, 2))
    assert first == second != other


def test_sift_is_rounded_to_bytes_without_loss():
    decoys = sfumato.build_decoys(clumps(200, 128, 10), 150, extractor=Extractor("sift"))
    assert encode_bytes(decoys.descriptors) is not None


def test_duplicates_leave_and_too_few_are_refused():
    rows = clumps(10, 16, 2)
    decoys = sfumato.build_decoys(np.concatenate([rows, rows, rows]), 20, parts=2)
    assert sorted(map(tuple, decoys.descriptors.tolist())) == sorted(map(tuple, rows.tolist()))
    with pytest.raises(DecoyError, match="20"):
        sfumato.build_decoys(np.concatenate([rows, rows]), 21)


def test_centroids_that_round_to_the_same_bytes_are_one():
    near = np.repeat(clumps(6, 128, 1), 40, axis=0)
    near = near + np.random.default_rng(0).uniform(0, 1e-4, near.shape).astype(np.float32)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    decoys = sfumato.build_decoys(near, 120, parts=1, extractor=Extractor("sift"))
    assert len(decoys) < 120
    assert len(np.unique(decoys.descriptors, axis=0)) == len(decoys)


def test_clusters_keep_their_labels():
    rows = np.concatenate([clumps(10, 16, 30, seed=1), clumps(30, 16, 30, seed=2)])
    labels = np.repeat(["few", "many"], [300, 900])
    decoys = sfumato.build_decoys(rows, 80, labels=labels)
    assert {str(label): int((decoys.labels == label).sum()) for label in ("few", "many")} == {"few": 20, "many": 60}
    nearest = labels[(decoys.descriptors @ rows.T).argmax(axis=1)]
    assert (nearest == decoys.labels).mean() > 0.95


def test_vectors_of_any_length_are_clustered_where_they_are():
    rows = clumps(12, 16, 30) * 1.4 + 0.3
    decoys = sfumato.build_decoys(rows, 12)
    assert decoys.made["spherical"] is False
    assert np.linalg.norm(decoys.descriptors, axis=1).min() > 1.5


def test_features_bring_their_extractor_and_must_agree():
    def features(name):
        return Features(np.zeros((200, 4)), clumps(20, 16, 10), Extractor(name))

    decoys = sfumato.build_decoys([features("disk"), features("disk")], 40)
    assert decoys.extractor.name == "disk"
    assert decoys.made["descriptors"] == 200
    with pytest.raises(DecoyError, match="different kinds"):
        sfumato.build_decoys([features("disk"), features("sift")], 40)
    with pytest.raises(DecoyError, match="no descriptors"):
        sfumato.build_decoys([], 40)


@pytest.mark.parametrize("setting", [{"size": 0}, {"parts": 0}, {"iterations": 0}, {"seed": -1}])
def test_bad_settings(setting):
    with pytest.raises(DecoyError, match="positive"):
        sfumato.build_decoys(clumps(4, 8, 4), **({"size": 4} | setting))


def test_drawn_descriptors_are_real_ones():
    rows = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    drawn = draw_descriptors(np.concatenate([rows, rows]), 200, parts=4, seed=1)
    assert len(drawn) == 200
    nearest = np.linalg.norm(drawn.descriptors[:, None] - rows[None], axis=2)
    assert (nearest.min(axis=1) == 0).all()
    assert len(np.unique(nearest.argmin(axis=1))) == 200
    assert drawn.checksum == draw_descriptors(np.concatenate([rows, rows]), 200, parts=4, seed=1).checksum
    assert drawn.checksum != draw_descriptors(rows, 200, parts=4, seed=2).checksum
    with pytest.raises(DecoyError, match="300"):
        draw_descriptors(np.concatenate([rows, rows]), 301)
    with pytest.raises(DecoyError, match="positive"):
        draw_descriptors(rows, 0)
