# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.training.loop import Pace
from sfumato.training.ninja.data import split_material
from sfumato.training.ninja.params import SMALL, AdversaryParams
from sfumato.training.ninja.state import begin
from sfumato.training.ninja.train import ROWS_AT_ONCE, VALIDATIONS, encode_rows, validate
from sfumato.training.pairs import DescriptorPairs

torch: Any = pytest.importorskip("torch")

PARAMS = replace(SMALL, opponents=AdversaryParams(rows=32, hidden=16), minutes=None, steps=40, output_dim=6)


@pytest.fixture
def training():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 12))
    views = [(points + 0.1 * rng.normal(size=points.shape)).astype(np.float32) for _ in range(2)]
    material = split_material(PARAMS, DescriptorPairs(*views, np.arange(300), np.arange(300) // 30), [])
    return begin(PARAMS, material, iter), material


def test_rows_are_encoded_in_inference_in_parts_or_at_once(training):
    state, material = training
    few = np.array(material.training.first)
    many = np.resize(few, (ROWS_AT_ONCE + 7, few.shape[1]))
    encoded = encode_rows(state.encoder, many)
    assert encoded.shape == (ROWS_AT_ONCE + 7, 6)
    assert not encoded.requires_grad
    assert torch.allclose(encoded[: len(few)], encode_rows(state.encoder, few), atol=1e-6)
    assert torch.allclose(encoded.norm(dim=1), torch.ones(len(encoded)), atol=1e-5)


def test_the_best_is_kept_by_stage(training):
    state, material = training
    told: list[str] = []
    state.enter(0, Pace(0, 20))
    assert not state.is_due(VALIDATIONS)
    state.pace.steps = 1
    assert state.is_due(VALIDATIONS)
    validate(state, PARAMS, material, told.append)
    assert not state.is_due(VALIDATIONS)
    assert state.history[-1]["stage"] == "utility"
    assert "matched" in told[0]
    assert state.best_arrays.keys() == state.encoder.state_dict().keys()
    state.enter(1, Pace(0, 20))
    state.pace.steps = 2
    validate(state, PARAMS, material, told.append)
    assert state.history[-1]["reconstruction"].keys() == {"decoder"}
    assert state.best_arrays.keys() == state.opponents.state_dict().keys()


def test_the_first_half_of_the_joint_stage_is_not_selected_from(training):
    state, material = training
    state.enter(2, Pace(0, 20))
    state.pace.steps = 4
    validate(state, PARAMS, material, lambda line: None)
    assert not state.best_arrays
    state.pace.steps = 15
    validate(state, PARAMS, material, lambda line: None)
    assert state.best_arrays
