# SPDX-License-Identifier: Apache-2.0
"""All there is to go on with an interrupted training: weights, the optimiser's memory, random state, losses so far.

Knows torch's modules and optimisers by their states only. Kept in a file ``<output>.part`` beside the network that is
being trained, in the same format.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, need
from sfumato.learn.checkpoint import checked_arrays


def part_of(output: Path) -> Path:
    """Return the file that holds a training under way."""
    return output.with_name(output.name + ".part")


def network_arrays(modules: Any) -> dict[str, NDArray[Any]]:
    """Return the weights of modules by name, copied."""
    return {name: value.detach().cpu().numpy().copy() for name, value in modules.state_dict().items()}


def snapshot(modules: Any, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Return the weights, and what the optimiser remembers of each, as named arrays."""
    found = {f"network.{name}": value for name, value in network_arrays(modules).items()}
    for number, memory in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{key}": value.cpu().numpy().copy() for key, value in memory.items()}
    return found


def restore(modules: Any, optimizer: Any, arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Put back what ``snapshot`` returned; FileError if it is that of another network."""
    torch: Any = need("torch", extra="learn")
    wanted = modules.state_dict()
    shapes = {f"network.{name}": tuple(value.shape) for name, value in wanted.items()}
    checked_arrays({name: value for name, value in arrays.items() if name.startswith("network.")}, shapes, path)
    modules.load_state_dict({name: torch.from_numpy(arrays[f"network.{name}"].copy()) for name in wanted})
    memory: dict[int, dict[str, Any]] = {}
    try:
        for name, value in arrays.items():
            if name.startswith("optimizer."):
                _, number, key = name.split(".")
                memory.setdefault(int(number), {})[key] = torch.from_numpy(value.copy())
        state = optimizer.state_dict()
        optimizer.load_state_dict({"state": memory, "param_groups": state["param_groups"]})
        for parameter, remembered in optimizer.state.items():
            if any(value.ndim and value.shape != parameter.shape for value in remembered.values()):
                raise ValueError("shapes of another network")
    except (ValueError, KeyError, TypeError) as cause:
        raise FileError(
            f"{path}: what the optimiser remembered is damaged ({cause}): start the training anew"
        ) from cause


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return where a generator is, as plain values."""
    return dict(rng.bit_generator.state)


def set_generator_state(rng: np.random.Generator, state: Any, path: Path) -> None:
    """Put a generator where it was; FileError if the state is damaged."""
    try:
        rng.bit_generator.state = state
    except (ValueError, TypeError, KeyError) as cause:
        raise FileError(f"{path}: the random state is damaged ({cause}): start the training anew") from cause
