# SPDX-License-Identifier: Apache-2.0
"""Clear features to attack: SIFT of a sample photo, and points that are nothing like it."""

import numpy as np
import pytest

import sfumato
from sfumato.images.samples import sample_image


@pytest.fixture(scope="session")
def sift():
    """SIFT of a sample photo, 150 features."""
    return sfumato.extract(sample_image("coffee"), max_features=150)


@pytest.fixture(scope="session")
def rootsift():
    return sfumato.extract(sample_image("coffee"), max_features=150, descriptor="rootsift")


@pytest.fixture(scope="session")
def decoys():
    return sfumato.load_decoys()


@pytest.fixture(scope="session")
def gaussian():
    """Points of the unit sphere with no structure at all."""
    rows = np.random.default_rng(3).normal(size=(60, 128))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return sfumato.Features(np.zeros((60, 4)), rows, sfumato.Extractor("unknown"))


@pytest.fixture
def encoder(make_encoder):
    """An encoder of SIFT, resolved as a recipe, that this process remembers."""
    from sfumato.concealment.encoders import remember, resolve

    made = remember(make_encoder(5))
    return resolve(f"ninja:made@{made.checksum[:12]}")
