# SPDX-License-Identifier: Apache-2.0
"""What decoders are trained with."""

from pathlib import Path

import numpy as np
import pytest

from sfumato.concealment.lifting import conceal
from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.images.samples import sample_image
from sfumato.training.decoder import DecoderTrainParams, conceal_rows, public_rows
from sfumato.types.extractor import Extractor

SMALL = DecoderTrainParams(batch=16, held_out=20, per_photo=100, local=LocalParams(max_features=300))


def test_descriptors_are_split_and_mixed():
    rows = np.arange(400, dtype=np.float32).reshape(100, 4)
    training, held_out, extractor = public_rows(SMALL, rows, np.random.default_rng(0), iter)
    assert (len(training), len(held_out), extractor.name) == (80, 20, "unknown")
    assert sorted([*training[:, 0], *held_out[:, 0]]) == rows[:, 0].tolist()
    assert held_out[:, 0].tolist() != rows[:20, 0].tolist()


def test_photos_give_some_descriptors_each(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    photos = [sample_image("coffee"), tmp_path / "gone.jpg", sample_image("chelsea")]
    training, held_out, extractor = public_rows(SMALL, photos, np.random.default_rng(0), iter)
    assert extractor.name == "sift"
    assert len(training) + len(held_out) <= 200
    assert np.abs(np.linalg.norm(training, axis=1) - 1).max() < 1e-5
    assert "gone.jpg" in caplog.text


def test_too_few_are_told(tmp_path: Path):
    with pytest.raises(InputError, match="too few"):
        public_rows(SMALL, np.zeros((10, 4), np.float32), np.random.default_rng(0), iter)
    with pytest.raises(InputError, match="1 photos"):
        public_rows(SMALL, [tmp_path / "gone.jpg"], np.random.default_rng(0), iter)


def test_rows_are_concealed_as_one_image():
    rows = np.abs(np.random.default_rng(0).normal(size=(5, 8))).astype(np.float32)
    subspaces, recipe = conceal_rows(rows, Extractor(), lambda features: conceal(features, "random-2"))
    assert (len(subspaces), recipe) == (5, "random-2")
    assert conceal_rows(rows, Extractor(), None) == (rows, "raw")


def test_wrong_settings_are_told():
    with pytest.raises(InputError, match=r"hidden.*form"):
        DecoderTrainParams(hidden=0, form="guess")
    with pytest.raises(InputError, match="'steps'"):
        DecoderTrainParams(step=3)
    facts = DecoderTrainParams(steps=7).facts()
    assert "steps" not in facts
    assert facts["local"]["weights"] is False
