# SPDX-License-Identifier: Apache-2.0
"""Principal components: the strongest first, uncorrelated, the same for the same rows, and too few rows are refused."""

import numpy as np
import pytest

from sfumato.concealment.encoder import bundled_encoder, cut_components, encode
from sfumato.errors import InputError
from sfumato.training.compress import learn_compress


@pytest.fixture
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(2000, 4)) @ rng.normal(size=(4, 16)) + 0.05 * rng.normal(size=(2000, 16)) + 1).astype("f4")


def test_components_are_centred_uncorrelated_and_sorted(rows):
    encoder = learn_compress(rows, "toy", {"seed": 1})
    found = encode(encoder, rows).astype(np.float64)
    assert np.abs(found.mean(axis=0)).max() < 1e-5
    covariance = np.cov(found.T, bias=True)
    spread = np.diag(covariance)
    assert np.abs(covariance - np.diag(spread)).max() < 1e-4 * spread[0]
    assert (np.diff(spread) <= 1e-9).all()
    assert encoder.card["seed"] == 1
    assert encoder.card["descriptors"] == 2000
    assert encoder.card["kept"] == {"16": 1.0}


def test_four_components_keep_distances_of_rows_that_have_four(rows):
    encoder = cut_components(learn_compress(rows, "toy"), 4)
    found = encode(encoder, rows[:50])
    kept = np.linalg.norm(found[:, None] - found[None], axis=2)
    clear = np.linalg.norm(rows[:50, None] - rows[None, :50], axis=2)
    assert (kept <= clear + 1e-4).all()  # a projection
    assert np.median(kept[clear > 0] / clear[clear > 0]) > 0.99


def test_the_same_rows_give_the_same_components(rows):
    assert learn_compress(rows, "toy").checksum == learn_compress(rows, "toy").checksum
    turned = learn_compress(-rows, "toy").layers[0][0]
    assert (turned[np.arange(16), np.abs(turned).argmax(axis=1)] > 0).all()  # signs are fixed


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((10, 16)), "10 descriptors of 16 dimensions are too few"),
        (np.ones((100, 1)), "too few"),
        (np.ones((100, 16)), "all descriptors are the same"),
        (np.full((100, 16), np.nan), "finite"),
    ],
)
def test_what_nothing_can_be_learned_from_is_told(wrong, message):
    with pytest.raises(InputError, match=message):
        learn_compress(wrong, "toy")


def test_those_of_the_package_are_orthonormal_and_say_how_they_were_made():
    known = bundled_encoder("sift", "compress")
    ((weight, _, _),) = known.layers
    assert weight.shape == (128, 128)
    assert np.abs(weight @ weight.T - np.eye(128)).max() < 2e-3  # 16 bits
    assert {"descriptors", "kept", "images", "settings", "data"} <= set(known.card)
