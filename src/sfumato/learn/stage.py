# SPDX-License-Identifier: Apache-2.0
"""One stage of a training: how far it is, its validation losses, and its state in a file to go on from.

Knows torch's modules and optimisers by their states only. Batches are drawn from the seed and the number of the step,
so that an interrupted training of a number of steps ends with the same numbers.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.errors import FileError, InputError
from sfumato.learn.checkpoint import load_checkpoint, save_checkpoint
from sfumato.learn.pace import FLAT, Pace, flatness
from sfumato.learn.resume import restore, snapshot

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
