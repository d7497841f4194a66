# SPDX-License-Identifier: Apache-2.0
"""The card of an encoder: how it was made and what it came to, in plain values that go with its file.

Knows counts, losses and scores; no descriptor, and no place of a file.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.learn.adversaries import Adversary
from sfumato.learn.ninjaparams import STAGES, NinjaTrainParams, differences
from sfumato.learn.ninjastate import State
from sfumato.learn.pace import FLAT, flatness

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a training finds things: a file for the ``start`` of others with another lambda, what goes into the card.

    ``start`` is read if it is there, and else written at the end of the second stage. ``data`` and ``command`` are
    texts for the card.
    """

    start: Path | None = None
    data: str = ""
    command: str = ""


def card_of(state: State, params: NinjaTrainParams, source: Source, scored: dict[str, Any]) -> dict[str, Any]:
    """Return what goes with an encoder; ``scored`` is what it came to on material held out, and raw descriptors."""
    flat = {name: is_flat(values) for name, values in state.losses.items()}
    for name in (name for name, value in flat.items() if not value):
        log.warning("%s was not flat over the last fifth of its stage: train longer", name)
    last = {
        name: round(float(np.mean(values[-max(1, len(values) // 20) :])), 5) for name, values in state.losses.items()
    }
    return {
        "lambda": params.privacy, "seed": params.seed, "preset": params.preset, "adversary": params.adversary,
        "adversary losses": {one.name: meaning(one) for one in state.adversaries},
        "differences": differences(params, state.begun["extractor"]),
        "settings": state.begun | state.going_on, "data": source.data, "command": source.command,
        "stages": [{"stage": name, **spent} for name, spent in zip(STAGES, state.spent, strict=True)],
        "losses": last, "flat": flat, "selected": state.best, "history": state.history,
        "held out": scored,
    }  # fmt: skip


def is_flat(losses: list[float]) -> bool:
    """Tell whether a loss neither fell nor rose by a hundredth over the last fifth of its stage."""
    return max(flatness(losses), flatness([-loss for loss in losses])) < FLAT


def meaning(adversary: Adversary) -> str:
    """Say what the figures of L_recon of an inverter mean."""
    if adversary.name == "unet":
        return f"mean absolute error, and perceptual loss if there was VGG16; one colour gets {adversary.limit:.4f}"
    return f"share of what a constant guess gets, times {adversary.limit:g}: then nothing is recovered; 0 is everything"
