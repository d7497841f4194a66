# SPDX-License-Identifier: Apache-2.0
"""The file of an unfinished training: weights, optimisers and random numbers go on to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.training.loop import Budget, Pace, TrainingState, part_of, read_state, resume_state, save_state

torch = pytest.importorskip("torch")


def begin(seed: int = 0, width: int = 3, settings: dict[str, Any] | None = None) -> TrainingState:
    torch.manual_seed(seed)
    modules = torch.nn.ModuleList([torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width)])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=0.1)
    return TrainingState(
        "toy",
        {"net": modules},
        {"net": optimizer},
        Pace(0, Budget(steps=10).steps),
        settings or {"seed": 0, "photos": 3},
        rng=np.random.default_rng(seed),
        constants={"mean": np.full(2, seed, np.float32)},
        notes={"stage": seed},
    )


def train(state: TrainingState, steps: int) -> TrainingState:
    for _ in range(steps):
        assert state.rng is not None
        x = torch.from_numpy(state.rng.normal(size=(4, 2)).astype(np.float32))
        loss = (state.networks["net"][1](state.networks["net"][0](x)) ** 3).sum()
        state.descend("net", loss, state.pace.rate(0.1), clip=1.0)
        state.pace.steps += 1
        state.add_loss("training", loss.item())
        if state.is_due(5):
            state.mark_validation(5)
            state.history.append({"step": state.pace.steps})
    return state


def weights(state: TrainingState) -> list[np.ndarray]:
    return [value.numpy().copy() for value in state.networks["net"].state_dict().values()]


def test_a_resumed_training_ends_with_the_same_numbers(tmp_path: Path):
    entire = train(begin(), 10)
    interrupted = train(begin(), 4)
    interrupted.best, interrupted.best_arrays = {"step": 3}, {"x": np.ones(2, np.float32)}
    save_state(interrupted, tmp_path / "x.part")
    train(interrupted, 1)  # what is saved is a copy
    other = begin(1)
    resume_state(other, tmp_path / "x.part")
    assert (other.pace.steps, other.best, other.notes) == (4, {"step": 3}, {"stage": 0})
    assert np.array_equal(other.constants["mean"], [0, 0])
    assert np.array_equal(other.best_arrays["x"], [1, 1])
    train(other, 6)
    assert all(np.array_equal(first, second) for first, second in zip(weights(entire), weights(other), strict=True))
    assert (other.losses, other.history) == (entire.losses, entire.history)


def test_the_time_before_counts(tmp_path: Path):
    state = begin()
    state.pace.seconds_before = 100.0
    save_state(state, tmp_path / "x.part")
    other = begin()
    resume_state(other, tmp_path / "x.part")
    assert 100 <= other.pace.seconds < 160
    assert not other.is_unsaved(1)
    other.saved -= 61
    assert other.is_unsaved(1)


def test_another_training_is_refused(tmp_path: Path):
    path = tmp_path / "x.part"
    save_state(train(begin(), 1), path)
    for settings in ({"seed": 1, "photos": 3}, {"seed": 0}, {"seed": 0, "photos": 3, "more": 1}):
        is_part = settings.items() <= begin().settings.items()
        if is_part:
            read_state(path, "toy", settings)
            continue
        with pytest.raises(FileError, match="settings"):
            resume_state(begin(settings=settings), path)
    with pytest.raises(FileError, match="bias"):
        resume_state(begin(width=4), path)
    with pytest.raises(FileError, match="training"):
        read_state(path, "other", {})
    arrays, facts = load_checkpoint(path)
    save_checkpoint(path, arrays, {name: value for name, value in facts.items() if name != "version"})
    with pytest.raises(FileError, match="version"):
        resume_state(begin(), path)


def test_damage_is_named(tmp_path: Path):
    path = tmp_path / "x.part"
    save_state(train(begin(), 1), path)
    arrays, facts = load_checkpoint(path)
    moved = {**arrays, "net/optimizer.0.exp_avg": np.zeros((5, 5), np.float32)}
    for damaged in (moved, {**arrays, "net/optimizer.x": np.zeros(1)}):
        save_checkpoint(path, damaged, facts)
        with pytest.raises(FileError, match="optimiser"):
            resume_state(begin(), path)
    less = {name: value for name, value in arrays.items() if name != "constants/mean"}
    for arrays_now, change in (
        (less, {}),
        (arrays, {"rng": None}),
        (arrays, {"rng": {"bit_generator": "PCG64", "state": 3}}),
        (arrays, {"steps": "many"}),
        (arrays, {"notes": None}),
    ):
        save_checkpoint(path, arrays_now, facts | change)
        with pytest.raises(FileError, match="damaged"):
            resume_state(begin(), path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileError):
        resume_state(begin(), path)


def test_the_file_beside():
    assert part_of(Path("a/n.safetensors")) == Path("a/n.safetensors.part")
