# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from sfumato.errors import InputError
from sfumato.inversion import patches as patchnet
from sfumato.training.loop import Budget, Pace, TrainingState
from sfumato.training.patch import PatchTraining, represent_clear, stage_facts, train_patch_network, window
from sfumato.training.photos import PatchSamples, normalise
from sfumato.types.extractor import Extractor

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pairs():
    """Patches that are slopes; the descriptor says in which direction, and nothing else."""
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 3000)
    line = np.linspace(-1, 1, 24)
    slopes = np.cos(angles)[:, None, None] * line[None, None, :] + np.sin(angles)[:, None, None] * line[None, :, None]
    contrast = np.exp(rng.normal(-2, 0.1, 3000))
    patches, contrasts = normalise((0.5 + contrast[:, None, None] * slopes).astype(np.float32))
    patches[::7, :100] = np.nan
    descriptors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    keypoints = np.ones((3000, 4), np.float32)
    return PatchSamples(
        descriptors, keypoints, patches, contrasts, np.arange(3000, dtype=np.int32) // 100, "", Extractor()
    )


TRAINING = PatchTraining(budget=Budget(steps=60), hidden=32, batch=128, rate=5e-3)


def test_the_network_learns_what_descriptors_say(pairs):
    held = pairs.photos < 3
    tensors, facts = train_patch_network(pairs, held, TRAINING)
    assert set(tensors) == set(patchnet.shapes(2, 32))
    assert facts["last_loss"] < 0.3 * facts["first_loss"]
    _, control = train_patch_network(pairs, held, TRAINING, represent=lambda rows: 0 * rows)  # the control
    assert control["last_loss"] > 0.7 * control["first_loss"]
    found = patchnet.predict_patches(tensors, pairs.descriptors[:50], pairs.keypoints[:50, 2]).reshape(50, -1)
    truth = np.nan_to_num(pairs.patches[:50].astype(np.float32)) * np.exp(pairs.contrasts[:50, None])
    assert np.mean((found - truth) ** 2) < 0.3 * np.mean(truth**2)


def test_the_same_seed_gives_the_same_network_also_after_an_interruption(pairs, tmp_path):
    held = pairs.photos < 3
    short = PatchTraining(budget=Budget(steps=20), hidden=8, batch=64)
    first, _ = train_patch_network(pairs, held, short)
    again, _ = train_patch_network(pairs, held, short)

    class Stop(Exception):
        pass

    def stop(state):
        if state.pace.steps == 10:
            raise Stop

    with pytest.raises(Stop):
        train_patch_network(pairs, held, short, path=tmp_path / "a.part", report=stop)
    resumed, facts = train_patch_network(pairs, held, short, path=tmp_path / "a.part")
    other, _ = train_patch_network(pairs, held, PatchTraining(budget=Budget(steps=20), hidden=8, batch=64, seed=1))
    assert facts["steps"] == 20
    for name in first:
        np.testing.assert_array_equal(again[name], first[name])
        np.testing.assert_array_equal(resumed[name], first[name])
    assert not np.array_equal(other["patch.0.weight"], first["patch.0.weight"])


def test_nothing_to_learn_or_check(pairs):
    for held in (np.zeros(3000, bool), np.ones(3000, bool)):
        with pytest.raises(InputError, match="two photos"):
            train_patch_network(pairs, held, TRAINING)


def test_the_centre_counts_most():
    weights = window().reshape(24, 24)
    assert weights[12, 12] == weights.max()
    assert weights[0, 0] == weights.min() > 0
    rows = np.ones((2, 3), np.float32)
    assert represent_clear(rows) is rows


def test_a_falling_loss_is_not_flat():
    state = TrainingState("toy", {}, {}, Pace(0, 1000), {}, losses={"validation": [1.0] * 20})
    assert stage_facts(state)["flatness"] is None  # too few steps to tell
    state.pace.steps = 1000
    assert stage_facts(state)["is_flat"]
    state.losses["validation"] = list(np.linspace(1, 0.5, 21))
    assert not stage_facts(state)["is_flat"]
    state.losses["validation"] = [1.0]
    assert stage_facts(state)["flatness"] is None
