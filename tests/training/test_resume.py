# SPDX-License-Identifier: Apache-2.0
"""What is kept of a training is all there is to go on from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.errors import FileError
from sfumato.training.loop import generator_state, part_of, restore, set_generator_state, snapshot

torch = pytest.importorskip("torch")


def made(seed: int = 0, width: int = 3) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    modules = torch.nn.ModuleList([torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width)])
    return modules, torch.optim.AdamW(modules.parameters(), lr=0.1)


def train(modules: Any, optimizer: Any, steps: int) -> None:
    for number in range(steps):
        x = torch.linspace(-1, 1, 8).view(4, 2) * (number + 1)
        optimizer.zero_grad()
        (modules[1](modules[0](x)) ** 3).sum().backward()
        optimizer.step()


def test_it_goes_on_to_the_last_bit():
    one, other = made(), made(1)
    train(*one, 3)
    restore(*other, snapshot(*one), Path("x.part"))
    train(*one, 2)
    train(*other, 2)
    state, again = one[0].state_dict(), other[0].state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)


def test_a_snapshot_is_a_copy():
    modules, optimizer = made()
    train(modules, optimizer, 1)
    kept = snapshot(modules, optimizer)
    before = {name: value.copy() for name, value in kept.items()}
    train(modules, optimizer, 1)
    assert all(np.array_equal(kept[name], before[name]) for name in kept)


def test_another_network_is_told():
    one = made()
    train(*one, 1)
    arrays = snapshot(*one)
    with pytest.raises(FileError, match="not the network"):
        restore(*made(width=4), arrays, Path("x.part"))
    arrays["optimizer.0.exp_avg"] = np.zeros((5, 5), np.float32)
    with pytest.raises(FileError, match="optimiser"):
        restore(*made(), arrays, Path("x.part"))
    with pytest.raises(FileError, match="optimiser"):
        restore(*made(), {**snapshot(*one), "optimizer.x": np.zeros(1)}, Path("x.part"))


def test_generators_go_on():
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    rng.normal(size=3)
    set_generator_state(other, generator_state(rng), Path("x.part"))
    assert rng.integers(2**60) == other.integers(2**60)
    for damaged in (None, {}, {"bit_generator": "PCG64", "state": 3}):
        with pytest.raises(FileError, match="random state"):
            set_generator_state(other, damaged, Path("x.part"))


def test_the_file_beside():
    assert part_of(Path("a/n.safetensors")) == Path("a/n.safetensors.part")
