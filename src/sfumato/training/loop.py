# SPDX-License-Identifier: Apache-2.0
"""Course of a training: its length and rate of learning, its state in a file, its result.

Knows steps, clocks, losses, and torch's modules and optimisers by their states; no network. A training of a number of
steps gives the same weights on every run with the same seed, interrupted or not; a training of a number of minutes does
as many steps as the machine can. The state of a training is a file beside its output, ``<output>.part``.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.files.tensors import checked_arrays, load_checkpoint, save_checkpoint
from sfumato.types.progress import Progress

log = logging.getLogger(__name__)

TICKS = 1000
"""Parts that a progress bar shows of a training of any length."""
WARM_UP = 0.02
FLAT = 0.01
VERSION = 2
"""Of the files of unfinished trainings."""


# --- length and rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Length of a training: ``minutes``, or ``steps``, which makes it repeatable."""

    minutes: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        steps_are_wrong = self.steps is not None and (type(self.steps) is not int or self.steps < 1)
        if steps_are_wrong or (self.steps is None and not 0 < self.minutes < 1e6):
            raise InputError(f"a training takes minutes or steps above 0, got {self.minutes!r:.40}, {self.steps!r:.40}")


@dataclass(slots=True)
class Pace:
    """Progress of a training: ``steps`` done of ``total_steps``, or ``seconds`` spent of ``minutes``."""

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
        """Share of the training that is done, 0 to 1."""
        done = self.seconds / (60 * self.minutes) if self.total_steps is None else self.steps / self.total_steps
        return min(1.0, done)

    @property
    def seconds_left(self) -> float:
        """Time that the rest will take, at the speed so far."""
        return self.seconds * (1 / max(self.share, 1e-6) - 1)

    def rate(self, highest: float) -> float:
        """Return the rate of learning: it rises over the first fiftieth, then falls to 0 along a cosine."""
        share = self.share
        return highest * min(1.0, share / WARM_UP + 0.01) * (0.5 + 0.5 * math.cos(math.pi * share))

    def rounds(self, progress: Progress) -> Iterator[None]:
        """Yield until the training is done; ``progress`` sees it in equal parts."""
        for tick in progress(range(int(self.share * TICKS), TICKS)):
            while self.share * TICKS < tick + 1:
                yield


# --- state, and the file to resume from


@dataclass(slots=True, repr=False, eq=False)
class TrainingState:
    """A training under way: everything that it needs to be resumed.

    ``name`` says what is trained; ``networks`` and ``optimizers`` are torch's, under the same names. ``settings`` are
    plain values that a resumed training must share; ``notes`` are plain values of its own, saved with it. ``rng`` draws
    the batches; it is None where each step draws from the seed and its number. ``losses`` are lists by name,
    ``history`` is one entry per validation, ``best`` describes the best network so far and ``best_arrays`` may hold it.
    """

    name: str
    networks: dict[str, Any]
    optimizers: dict[str, Any]
    pace: Pace
    settings: dict[str, Any]
    rng: np.random.Generator | None = None
    constants: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    best_arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    validation: int = -1
    saved: float = 0.0

    def is_due(self, validations: int) -> bool:
        """Tell whether the next of this number of validations is due."""
        return int(self.pace.share * validations) > self.validation

    def mark_validation(self, validations: int) -> None:
        """Note that the validation that was due is done."""
        self.validation = int(self.pace.share * validations)

    def is_unsaved(self, minutes: float) -> bool:
        """Tell whether the state was saved more than this many minutes ago."""
        return self.pace.seconds - self.saved > 60 * minutes

    def add_loss(self, name: str, loss: float) -> None:
        """Append a loss to those of its name; InputError if it is not finite."""
        self.losses.setdefault(name, []).append(finite(loss))

    def descend(self, network: str, loss: Any, rate: float, *, clip: float | None = None) -> None:
        """Move a network one step down the gradient of a loss; ``clip`` bounds the norm of the gradient."""
        optimizer = self.optimizers[network]
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            need("torch", extra="learn").nn.utils.clip_grad_norm_(self.networks[network].parameters(), clip)
        optimizer.step()


def part_of(output: Path) -> Path:
    """Return the path of the state of a training."""
    return output.with_name(output.name + ".part")


def save_state(state: TrainingState, path: Path) -> None:
    """Write everything that is needed to resume a training."""
    state.saved = state.pace.seconds
    facts = {
        "kind": _kind(state.name),
        "version": VERSION,
        "settings": state.settings,
        "notes": state.notes,
        "rng": None if state.rng is None else dict(state.rng.bit_generator.state),
        "steps": state.pace.steps,
        "seconds": state.pace.seconds,
        "history": state.history,
        "best": state.best,
        "validation": state.validation,
    }
    arrays = {f"constants/{name}": value for name, value in state.constants.items()}
    arrays |= {f"losses/{name}": np.array(values, np.float64) for name, values in state.losses.items()}
    arrays |= {f"best/{name}": value for name, value in state.best_arrays.items()}
    for name, modules in state.networks.items():
        arrays |= {f"{name}/{key}": value for key, value in _snapshot(modules, state.optimizers[name]).items()}
    save_checkpoint(path, arrays, facts)


def read_state(path: Path, name: str, settings: dict[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the arrays and facts that ``save_state`` wrote.

    Raises FileError if they are damaged, of another kind or version, or not of these settings.
    """
    arrays, facts = load_checkpoint(path, _kind(name))
    if facts.get("version") != VERSION:
        raise FileError(f"{path}: an unfinished training of another version of Sfumato: start it anew without resuming")
    own = facts.get("settings")
    if not isinstance(own, dict) or any(own.get(key) != value for key, value in settings.items()):
        raise FileError(f"{path}: begun with other settings, pairs or photos: give the same, or start without resuming")
    return arrays, facts


def restore_state(state: TrainingState, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], path: Path) -> None:
    """Set a state to what ``read_state`` returned; FileError if that does not fit its networks or is damaged."""
    try:
        state.pace.steps, state.pace.seconds_before = int(facts["steps"]), float(facts["seconds"])
        state.saved, state.validation = state.pace.seconds_before, int(facts["validation"])
        state.history, state.best, state.notes = list(facts["history"]), dict(facts["best"]), dict(facts["notes"])
        state.losses = {name: [float(loss) for loss in values] for name, values in _under("losses", arrays).items()}
        state.constants = {name: arrays[f"constants/{name}"].copy() for name in state.constants}
        state.best_arrays = {name: value.copy() for name, value in _under("best", arrays).items()}
        if state.rng is not None:
            state.rng.bit_generator.state = facts["rng"]
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: damaged ({cause}): start the training anew") from cause
    for name, modules in state.networks.items():
        _restore(modules, state.optimizers[name], _under(name, arrays), path)


def resume_state(state: TrainingState, path: Path) -> None:
    """Go on from a file; FileError if it is damaged or of another training."""
    restore_state(state, *read_state(path, state.name, state.settings), path)


def network_arrays(modules: Any) -> dict[str, NDArray[Any]]:
    """Return the weights of modules by name, copied."""
    return {name: value.detach().cpu().numpy().copy() for name, value in modules.state_dict().items()}


def _kind(name: str) -> str:
    return f"{name} in training"


def _under(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in arrays.items() if name.startswith(f"{prefix}/")}


def _snapshot(modules: Any, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Return the weights and the optimiser's memory of each, as named arrays."""
    arrays = {f"network.{name}": value for name, value in network_arrays(modules).items()}
    for number, memory in optimizer.state_dict()["state"].items():
        arrays |= {f"optimizer.{number}.{key}": value.cpu().numpy().copy() for key, value in memory.items()}
    return arrays


def _restore(modules: Any, optimizer: Any, arrays: dict[str, NDArray[Any]], path: Path) -> None:
    """Put back what ``_snapshot`` returned; FileError if it is that of another network."""
    torch: Any = need("torch", extra="learn")
    weights = modules.state_dict()
    shapes = {f"network.{name}": tuple(value.shape) for name, value in weights.items()}
    checked_arrays({name: value for name, value in arrays.items() if name.startswith("network.")}, shapes, path)
    modules.load_state_dict({name: torch.from_numpy(arrays[f"network.{name}"].copy()) for name in weights})
    memory: dict[int, dict[str, Any]] = {}
    try:
        for name, value in arrays.items():
            if name.startswith("optimizer."):
                _, number, key = name.split(".")
                memory.setdefault(int(number), {})[key] = torch.from_numpy(value.copy())
        state = optimizer.state_dict()
        optimizer.load_state_dict({"state": memory, "param_groups": state["param_groups"]})
        for parameter, values in optimizer.state.items():
            if any(value.ndim and value.shape != parameter.shape for value in values.values()):
                raise ValueError("shapes of another network")
    except (ValueError, KeyError, TypeError) as cause:
        raise FileError(f"{path}: the optimiser's memory is damaged ({cause}): start the training anew") from cause


# --- result


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Result of a training.

    ``flatness`` is how much the loss still fell over the last fifth, as a share of it: above 0.01 the attacker is
    undertrained, and what it fails to recover says nothing about privacy. ``scores`` are those of the best step on
    held-out material, ``best_step`` is that step. ``perceptual``: whether the perceptual loss took part.
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


def finish(
    state: TrainingState, output: Path, kind: str, *, judged: str = "training", perceptual: bool = False
) -> TrainingResult:
    """Add the result of a training to the file of its network, and remove the file of its state.

    ``judged`` names the losses that must be flat; other losses than those of training go into the file.
    """
    arrays, facts = load_checkpoint(output, kind)
    losses = state.losses["training"]
    result = TrainingResult(
        steps=state.pace.steps,
        seconds=state.pace.seconds,
        first_loss=losses[0],
        last_loss=tail_mean(losses),
        flatness=flatness(state.losses[judged]),
        scores=state.best["scores"],
        best_step=state.best["step"],
        perceptual=perceptual,
    )
    if not result.is_flat:
        log.warning("%s", flatness_message(result.flatness))
    curves = {f"{name}_losses": [round(loss, 6) for loss in curve]
              for name, curve in state.losses.items() if name != "training"}  # fmt: skip
    save_checkpoint(output, arrays, facts | {"result": result.facts()} | curves)
    part_of(output).unlink(missing_ok=True)
    return result


def finite(loss: float) -> float:
    """Return a loss unchanged; InputError if it is not finite."""
    if not math.isfinite(loss):
        raise InputError("the loss is no longer a number: start anew with a lower rate of learning")
    return loss


def tail_mean(losses: list[float]) -> float:
    """Return the mean of the last twentieth of the losses."""
    return float(np.mean(losses[-max(1, len(losses) // 20) :]))


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


def flatness_message(change: float | None) -> str:
    """Return the sentence about a loss that was not flat at the end.

    >>> flatness_message(0.034)
    'the loss still fell by 3.4 % over the last fifth: train longer'
    """
    if change is None or not math.isfinite(change):
        return "too few steps to tell whether the loss is flat: train longer"
    return f"the loss still fell by {100 * change:.1f} % over the last fifth: train longer"
