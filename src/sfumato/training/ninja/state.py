# SPDX-License-Identifier: Apache-2.0
"""A NinjaNet in training: the two networks, where it is, and one file to go on from, at any point of any stage.

Knows torch's modules and optimisers by their states. The same file, written where the second stage ends, is where
trainings with other lambdas may start: the first two stages do not depend on it.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.features.results import Progress
from sfumato.files.tensors import checked_arrays, load_checkpoint, save_checkpoint
from sfumato.training.loop import FLAT, Pace, flatness, network_arrays, restore, snapshot
from sfumato.training.ninja.adversaries import Adversary
from sfumato.training.ninja.data import NinjaMaterial, make_adversaries
from sfumato.training.ninja.network import NinjaNet, discriminant, mirror
from sfumato.training.ninja.params import STAGES, NinjaTrainParams, differences

KIND = "ninja in training"
JOINT = 2
"""The number of the joint stage."""

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class State:
    """A training under way, in ``stage`` 0, 1 or 2.

    ``losses`` are those of all steps by name, ``history`` the validations; ``best`` and ``best_arrays`` what this stage
    was at its best on material held out. ``begun`` is what the first two stages depend on, ``going_on`` the last.
    """

    encoder: Any
    opponents: Any
    adversaries: list[Adversary]
    begun: dict[str, Any]
    going_on: dict[str, Any]
    stage: int = -1
    pace: Pace = field(default_factory=lambda: Pace(1, 1))
    encoder_optimizer: Any = None
    opponents_optimizer: Any = None
    losses: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    best_arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    spent: list[dict[str, float]] = field(default_factory=list)
    validated: int = 0
    saved: float = 0.0

    def enter(self, stage: int, pace: Pace) -> None:
        """Begin a stage, with optimisers that remember nothing: Adam, (0.9, 0.999), no weight decay (section 3.4)."""
        torch: Any = need("torch", extra="learn")
        self.stage, self.pace, self.validated, self.saved = stage, pace, 0, 0.0
        self.best, self.best_arrays = {}, {}
        self.encoder_optimizer = torch.optim.Adam(self.encoder.parameters(), betas=(0.9, 0.999))
        learned = [one for one in self.opponents.parameters() if one.requires_grad]
        self.opponents_optimizer = torch.optim.Adam(learned, betas=(0.9, 0.999))

    def keep(self, score: list[float], module: Any) -> None:
        """Keep a network if its score was never lower in this stage; of several numbers the first counts most."""
        if not self.best or score < self.best["score"]:
            self.best = {"score": score, "step": self.pace.steps}
            self.best_arrays = network_arrays(module)

    def take_best(self, module: Any) -> None:
        """Set a network to what it was at its best in this stage."""
        torch: Any = need("torch", extra="learn")
        if self.best_arrays:
            module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in self.best_arrays.items()})


def begin(params: NinjaTrainParams, material: NinjaMaterial, progress: Progress) -> State:
    """Make the networks with random weights from the seed.

    Raises InputError for a device that is not there.
    """
    torch: Any = need("torch", extra="learn")
    try:
        torch.zeros(1, device=params.device)
    except (RuntimeError, AssertionError) as cause:
        told = str(cause).splitlines()[0]
        raise InputError(f"device {params.device!r:.80} cannot be used ({told:.200}): choose cpu, or cuda") from cause
    dim = material.training.first.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        encoder = NinjaNet(params.blocks, dim=dim, output_dim=params.width(dim), dropout=params.dropout)
        if params.initialisation != "orthogonal":
            found = discriminant(material.training) if params.initialisation == "discriminant" else None
            mirror(encoder, torch.from_numpy(np.array(material.training.first[:8192])), found)
        adversaries = make_adversaries(params, material, progress)
        opponents = torch.nn.ModuleDict({one.name: one.modules for one in adversaries})
    begun = params.begun() | {"data": material.facts(), "extractor": material.training.extractor.name}
    return State(encoder.to(params.device), opponents.to(params.device), adversaries, begun, params.going_on())


def save_state(state: State, path: Path) -> None:
    """Write all there is to go on from."""
    state.saved = state.pace.seconds
    facts = {
        "kind": KIND, "begun": state.begun, "going_on": state.going_on, "stage": state.stage,
        "steps": state.pace.steps, "seconds": state.pace.seconds, "history": state.history, "best": state.best,
        "validated": state.validated, "spent": state.spent,
    }  # fmt: skip
    arrays = {f"losses/{name}": np.array(values) for name, values in state.losses.items()}
    arrays |= {f"best/{name}": value for name, value in state.best_arrays.items()}
    for name, modules, optimizer in _parts(state):
        arrays |= {f"{name}/{key}": value for key, value in snapshot(modules, optimizer).items()}
    save_checkpoint(path, arrays, facts)


def read_stage(
    path: Path, state: State, *, another_lambda: bool
) -> tuple[int, dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the stage that a file was written in, its arrays and facts.

    Raises FileError if it is damaged, or of another training; with ``another_lambda`` only what the first two stages
    depend on must be the same, and these must be done.
    """
    arrays, facts = load_checkpoint(path, KIND)
    compared = ("begun",) if another_lambda else ("begun", "going_on")
    if any(facts.get(name) != getattr(state, name) for name in compared):
        raise FileError(f"{path}: begun with other settings, pairs or photos: give the same, or start anew")
    stage = facts.get("stage")
    if stage not in (0, 1, JOINT) or (another_lambda and (stage != JOINT or facts.get("steps") != 0)):
        raise FileError(f"{path}: not the end of the second stage: give a file that --start wrote")
    return int(stage), arrays, facts


def restore_state(state: State, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], path: Path) -> None:
    """Go on from what ``save_state`` wrote, in a state that has entered the stage it was written in."""
    try:
        state.pace.steps, state.pace.seconds_before = int(facts["steps"]), float(facts["seconds"])
        state.history, state.best, state.spent = list(facts["history"]), dict(facts["best"]), list(facts["spent"])
        state.validated, state.saved = int(facts["validated"]), state.pace.seconds_before
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: damaged ({cause}): start the training anew") from cause
    state.losses = {name: [float(one) for one in values] for name, values in _under("losses/", arrays).items()}
    state.best_arrays = {name: value.copy() for name, value in _under("best/", arrays).items()}
    kept = state.opponents if state.stage == 1 else state.encoder
    if state.best_arrays:
        checked_arrays(state.best_arrays, {name: tuple(v.shape) for name, v in kept.state_dict().items()}, path)
    for name, modules, optimizer in _parts(state):
        restore(modules, optimizer, _under(f"{name}/", arrays), path)


def _parts(state: State) -> tuple[tuple[str, Any, Any], ...]:
    return (
        ("encoder", state.encoder, state.encoder_optimizer),
        ("opponents", state.opponents, state.opponents_optimizer),
    )


def _under(prefix: str, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


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
