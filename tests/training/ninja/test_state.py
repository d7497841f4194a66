# SPDX-License-Identifier: Apache-2.0
"""The file of a NinjaNet in training: what is written is read again, and what is damaged or foreign is told."""

from pathlib import Path

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.training.loop import Pace, network_arrays, save_state
from sfumato.training.ninja.data import NinjaMaterial, split_material
from sfumato.training.ninja.params import SMALL, NinjaTrainParams
from sfumato.training.ninja.state import NinjaState, begin, read_stage, restore_stage
from sfumato.training.pairs import DescriptorPairs

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def material() -> NinjaMaterial:
    rows = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return split_material(SMALL, DescriptorPairs(rows, rows, np.arange(60), np.arange(60) % 6), [])


def fresh(material: NinjaMaterial, params: NinjaTrainParams = SMALL) -> NinjaState:
    state = begin(params, material, iter)
    state.enter(2, Pace(0, 10))
    return state


def test_what_is_written_is_read_again(material: NinjaMaterial, tmp_path: Path):
    state = fresh(material)
    state.pace.steps, state.losses, state.history = 4, {"joint utility": [0.5, 0.25]}, [{"step": 4}]
    for parameter in state.encoder.parameters():
        parameter.data += 1
    state.keep([0.1, -0.5])
    save_state(state, tmp_path / "part")
    other = fresh(material)
    stage, arrays, facts = read_stage(tmp_path / "part", other, another_lambda=False)
    assert stage == 2
    restore_stage(other, arrays, facts, tmp_path / "part")
    assert (other.pace.steps, other.losses, other.history, other.best) == (
        4, state.losses, state.history, {"score": [0.1, -0.5], "step": 4}
    )  # fmt: skip
    for name, value in network_arrays(state.encoder).items():
        assert np.array_equal(value, network_arrays(other.encoder)[name])
        assert np.array_equal(value, other.best_arrays[name])


def test_the_best_is_the_lowest_and_can_be_taken_back(material: NinjaMaterial):
    state = fresh(material)
    state.take_best()  # nothing was kept yet
    state.keep([0.2, -0.5])
    before = network_arrays(state.encoder)
    for parameter in state.encoder.parameters():
        parameter.data += 1
    state.keep([0.2, -0.4])
    state.keep([0.3, -0.9])
    state.take_best()
    assert all(np.array_equal(value, before[name]) for name, value in network_arrays(state.encoder).items())
    state.keep([0.2, -0.6])
    assert state.best["score"] == [0.2, -0.6]


def test_only_the_end_of_the_second_stage_is_a_start(material: NinjaMaterial, tmp_path: Path):
    state = fresh(material)
    save_state(state, tmp_path / "end")
    assert read_stage(tmp_path / "end", fresh(material), another_lambda=True)[0] == 2
    state.pace.steps = 1
    save_state(state, tmp_path / "later")
    with pytest.raises(FileError, match="stage"):
        read_stage(tmp_path / "later", fresh(material), another_lambda=True)


def test_damaged_files_are_told(material: NinjaMaterial, tmp_path: Path):
    state, path = fresh(material), tmp_path / "part"
    state.keep([0.1])
    save_state(state, path)
    arrays, facts = load_checkpoint(path)
    missing = {name: value for name, value in facts.items() if name != "history"}
    for changed, told in (
        ((arrays, missing), "damaged"),
        ((arrays, facts | {"steps": "many"}), "damaged"),
        (({**arrays, "best/0.weight": np.zeros((2, 2))}, facts), "not the network it claims to be"),
        (({name: v for name, v in arrays.items() if name != "encoder/network.0.bias"}, facts), "is missing"),
        (({**arrays, "encoder/network.0.bias": np.full(16, np.nan)}, facts), "not finite"),
    ):
        save_checkpoint(path, *changed)
        stage, found, read = read_stage(path, fresh(material), another_lambda=False)
        assert stage == 2
        with pytest.raises(FileError, match=told):
            restore_stage(fresh(material), found, read, path)
    save_checkpoint(path, arrays, facts | {"notes": {"stage": 9}})
    with pytest.raises(FileError, match="the end"):
        read_stage(path, fresh(material), another_lambda=False)
    save_checkpoint(path, arrays, {"kind": "decoder"})
    with pytest.raises(FileError, match="ninja"):
        read_stage(path, fresh(material), another_lambda=False)
