# SPDX-License-Identifier: Apache-2.0
"""How long a training goes on, how fast it learns meanwhile, and what it came to.

Knows steps, clocks and losses; no network. A training of a number of steps is the same on every run with the same seed;
one of a number of minutes does as many steps as the machine can.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.files.tensors import checked_arrays, load_checkpoint, save_checkpoint

TICKS = 1000
"""A training is shown as so many parts, whatever its length is counted in."""
WARM_UP = 0.02
FLAT = 0.01


@dataclass(slots=True)
class Pace:
    """How far a training is: ``steps`` done of so many, or ``seconds`` spent of so many minutes."""

    minutes: float
    total_steps: int | None = None
    steps: int = 0
    seconds_before: float = 0.0
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def seconds(self) -> float:
        """Time spent, with that before an interruption."""
        return self.seconds_before + self.clock() - self.started

    @property
    def share(self) -> float:
        """How much of the training is done, 0 to 1."""
        done = self.seconds / (60 * self.minutes) if self.total_steps is None else self.steps / self.total_steps
        return min(1.0, done)

    def rate(self, highest: float) -> float:
        """Return the rate of learning: it climbs over the first fiftieth, then falls to 0 along a cosine."""
        share = self.share
        return highest * min(1.0, share / WARM_UP + 0.01) * (0.5 + 0.5 * math.cos(math.pi * share))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What a training came to.

    ``flatness`` is how much the loss still fell over the last fifth, as a share of it: above 0.01 the attacker is
    undertrained, and what it fails to show says nothing about privacy. ``scores`` are those of the best step on
    material held out, ``best_step`` which that was. ``perceptual`` tells whether the perceptual loss took part.
    """

    steps: int
    seconds: float
    first_loss: float
    last_loss: float
    flatness: float
    scores: dict[str, float]
    best_step: int
    perceptual: bool = False

    @property
    def is_flat(self) -> bool:
        """Whether the loss fell by less than a hundredth over the last fifth."""
        return self.flatness < FLAT

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        numbers = {name: getattr(self, name) for name in ("steps", "best_step", "perceptual", "is_flat")}
        real = ("seconds", "first_loss", "last_loss", "flatness")
        rounded = {name: round(getattr(self, name), 6) if math.isfinite(getattr(self, name)) else None for name in real}
        return numbers | rounded | {"scores": self.scores}


def finite(loss: float) -> float:
    """Return a loss as it is; InputError if it is no longer a number, and nothing can be learned from there."""
    if not math.isfinite(loss):
        raise InputError("the loss is no longer a number: choose a lower rate of learning and start anew")
    return loss


def flatness(losses: list[float]) -> float:
    """Return how much the loss fell over the last fifth of a training, as a share of it; infinite if it is too short.

    The means of the two halves of that fifth are compared, along the line through them: batches differ.

    >>> flatness([1.0] * 100)
    0.0
    """
    last = np.array(losses[len(losses) - len(losses) // 5 :])
    if len(last) < 2:
        return math.inf
    half = len(last) // 2
    before, after = float(last[:half].mean()), float(last[-half:].mean())
    return max(0.0, 2 * (before - after) / max(abs(before), 1e-12))


def told_flatness(change: float | None) -> str:
    """Say that a loss was not flat at the end, in words.

    >>> told_flatness(0.034)
    'the loss still fell by 3.4 % over the last fifth: train longer'
    """
    if change is None or not math.isfinite(change):
        return "too few steps to tell whether the loss is flat: train longer"
    return f"the loss still fell by {100 * change:.1f} % over the last fifth: train longer"


# ----------------------------------------------------------------
# All there is to go on with an interrupted training: weights, the optimiser's memory, random state, losses so far
# Knows torch's modules and optimisers by their states only. Kept in a file ``<output>.part`` beside the network that is
# being trained, in the same format.


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


# ----------------------------------------------------------------
# One stage of a training: how far it is, its validation losses, and its state in a file to go on from
# Knows torch's modules and optimisers by their states only. Batches are drawn from the seed and the number of the step,
# so that an interrupted training of a number of steps ends with the same numbers.


VALIDATIONS = 20
TELLING = 200
"""Steps below which nobody can say that a loss was flat: the rate fell faster than anything was learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How long a stage goes on: so many ``minutes``, or, repeatable, so many ``steps``."""

    minutes: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        steps_are_wrong = self.steps is not None and (type(self.steps) is not int or self.steps < 1)
        if steps_are_wrong or (self.steps is None and not 0 < self.minutes < 1e6):
            raise InputError(f"a training takes minutes or steps above 0, got {self.minutes!r:.40}, {self.steps!r:.40}")

    def pace(self) -> Pace:
        """Return its beginning."""
        return Pace(self.minutes, self.steps)


@dataclass(slots=True, repr=False, eq=False)
class Stage:
    """A stage under way.

    ``settings`` are plain values that a resumed training must share; ``path`` is the file of its state, None for none;
    ``report`` is told the stage after each validation.
    """

    name: str
    modules: Any
    optimizer: Any
    pace: Pace
    settings: dict[str, Any]
    path: Path | None = None
    report: Callable[["Stage"], None] = lambda stage: None
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def resume(self) -> None:
        """Go on from the file, if there is one; FileError if it is damaged or of another training."""
        if self.path is None or not self.path.is_file():
            return
        arrays, facts = read_part(self.path, self.name, self.settings)
        try:
            self.pace.steps, self.pace.seconds_before = int(facts["steps"]), float(facts["seconds"])
            self.losses = [float(loss) for loss in facts["losses"]]
            self.seconds = self.pace.seconds_before
        except (KeyError, TypeError, ValueError) as cause:
            raise FileError(f"{self.path}: damaged ({cause}): start the training anew") from cause
        restore(self.modules, self.optimizer, arrays, self.path)

    def is_due(self) -> bool:
        """Tell whether it is time for the next of the validations, the first at the beginning, the last at the end."""
        return self.pace.share * VALIDATIONS >= len(self.losses)

    def validated(self, loss: float) -> None:
        """Note the loss of a validation, save the state, and report."""
        self.losses.append(loss)
        self.seconds = self.pace.seconds
        if not np.isfinite(loss):
            raise InputError(f"the training of the {self.name} came to no number: give a lower rate")
        if self.path is not None:
            facts = {
                "kind": self.kind,
                "settings": self.settings,
                "steps": self.pace.steps,
                "seconds": self.seconds,
                "losses": self.losses,
            }
            save_checkpoint(self.path, snapshot(self.modules, self.optimizer), facts)
        self.report(self)

    def learn(self, loss: Any, rate: float) -> None:
        """Make one step down the gradient of a loss; ``rate`` is the highest of the training."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.pace.rate(rate)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.pace.steps += 1

    @property
    def kind(self) -> str:
        """What its file is."""
        return kind_of(self.name)

    @property
    def seconds_left(self) -> float:
        """How long it will still take, at the speed so far."""
        return self.pace.seconds * (1 / max(self.pace.share, 1e-6) - 1)

    def facts(self) -> dict[str, Any]:
        """Return how it went: steps, seconds, losses, and by what share the loss fell at last, if telling."""
        change = flatness(self.losses)
        finite = bool(np.isfinite(change)) and self.pace.steps >= TELLING
        return {
            "steps": self.pace.steps,
            "seconds": round(self.seconds, 1),
            "first_loss": round(self.losses[0], 6),
            "last_loss": round(self.losses[-1], 6),
            "flatness": round(change, 6) if finite else None,
            "is_flat": finite and change < FLAT,
        }


def kind_of(name: str) -> str:
    """Return what the file of a stage is called in its facts."""
    return f"{name} in training"


def settings_of(training: Any) -> dict[str, Any]:
    """Return the settings (a dataclass) that a resumed stage must share, as plain values: not how long, nor where."""
    settings = {name: value for name, value in asdict(training).items() if name not in ("budget", "device")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def read_part(path: Path, name: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the state of a stage; FileError if it is damaged, or of a training with other settings."""
    arrays, facts = load_checkpoint(path, kind_of(name))
    if facts.get("settings") != settings:
        raise FileError(f"{path}: begun with other settings or photos: give the same, or start without resume")
    return arrays, facts
