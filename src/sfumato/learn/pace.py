# SPDX-License-Identifier: Apache-2.0
"""How long a training goes on, how fast it learns meanwhile, and what it came to.

Knows steps, clocks and losses; no network. A training of a number of steps is the same on every run with the same seed;
one of a number of minutes does as many steps as the machine can.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.errors import InputError

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
