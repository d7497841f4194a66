# SPDX-License-Identifier: Apache-2.0
"""State of a NinjaNet training, in any of its three stages, and the card of the encoder that comes of it.

The same file, written where the second stage ends, is where trainings with other lambdas may start: the first two
stages do not depend on lambda.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.files.tensors import checked_arrays
from sfumato.training.loop import (
    FLAT,
    Pace,
    TrainingState,
    flatness,
    network_arrays,
    read_state,
    restore_state,
    tail_mean,
)
from sfumato.training.ninja.adversaries import Adversary
from sfumato.training.ninja.data import NinjaMaterial, make_adversaries
from sfumato.training.ninja.network import NinjaNet, discriminant, mirror
from sfumato.training.ninja.params import STAGES, NinjaTrainParams, differences
from sfumato.types.progress import Progress

NAME = "ninja"
JOINT = 2
"""The number of the joint stage."""

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class NinjaState(TrainingState):
    """A training under way, in stage 0, 1 or 2: networks ``encoder`` and ``opponents``.

    ``losses`` are those of all steps by name; ``best`` and ``best_arrays`` are the best of this stage on held-out
    material. ``settings`` are those the first two stages depend on (``first``), and the others (``joint``).
    """

    adversaries: list[Adversary] = field(default_factory=list)

    @property
    def encoder(self) -> Any:
        """The network that is trained."""
        return self.networks["encoder"]

    @property
    def opponents(self) -> Any:
        """The inverters that it is trained against."""
        return self.networks["opponents"]

    @property
    def stage(self) -> int:
        """The number of the stage; -1 before the first."""
        return int(self.notes["stage"])

    @property
    def stage_network(self) -> str:
        """The network that this stage selects the best of."""
        return "opponents" if self.stage == 1 else "encoder"

    def enter(self, stage: int, pace: Pace) -> None:
        """Begin a stage, with new optimisers: Adam, (0.9, 0.999), no weight decay (section 3.4)."""
        torch: Any = need("torch", extra="learn")
        self.notes["stage"] = stage
        self.pace, self.validation, self.saved = pace, 0, 0.0
        self.best, self.best_arrays = {}, {}
        for name, network in self.networks.items():
            parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
            self.optimizers[name] = torch.optim.Adam(parameters, betas=(0.9, 0.999))

    def keep(self, score: list[float]) -> None:
        """Keep the network of this stage if its score is the lowest so far; the first number counts most."""
        if not self.best or score < self.best["score"]:
            self.best = {"score": score, "step": self.pace.steps}
            self.best_arrays = network_arrays(self.networks[self.stage_network])

    def take_best(self) -> None:
        """Set the network of this stage to its best."""
        torch: Any = need("torch", extra="learn")
        if self.best_arrays:
            weights = {name: torch.from_numpy(value.copy()) for name, value in self.best_arrays.items()}
            self.networks[self.stage_network].load_state_dict(weights)


def begin(params: NinjaTrainParams, material: NinjaMaterial, progress: Progress) -> NinjaState:
    """Make the networks with random weights from the seed.

    Raises InputError for a device that torch cannot use.
    """
    torch: Any = need("torch", extra="learn")
    try:
        torch.zeros(1, device=params.device)
    except (RuntimeError, AssertionError) as cause:
        message = str(cause).splitlines()[0]
        raise InputError(f"device {params.device!r:.80} cannot be used ({message:.200}): choose cpu or cuda") from cause
    dim = material.training.first.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        encoder = NinjaNet(params.blocks, dim=dim, output_dim=params.width(dim), dropout=params.dropout)
        if params.initialisation != "orthogonal":
            directions = discriminant(material.training) if params.initialisation == "discriminant" else None
            mirror(encoder, torch.from_numpy(np.array(material.training.first[:8192])), directions)
        adversaries = make_adversaries(params, material, progress)
        opponents = torch.nn.ModuleDict({adversary.name: adversary.modules for adversary in adversaries})
    first = params.first_settings() | {"data": material.facts(), "extractor": material.training.extractor.name}
    return NinjaState(
        NAME,
        {"encoder": encoder.to(params.device), "opponents": opponents.to(params.device)},
        {},
        Pace(1, 1),
        {"first": first, "joint": params.joint_settings()},
        notes={"stage": -1, "stages": []},
        adversaries=adversaries,
    )


def read_stage(
    path: Path, state: NinjaState, *, another_lambda: bool
) -> tuple[int, dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the stage that a file was written in, its arrays and facts.

    Raises FileError if it is damaged, or of another training; with ``another_lambda`` only what the first two stages
    depend on must be the same, and these must be done.
    """
    settings = {"first": state.settings["first"]} if another_lambda else state.settings
    arrays, facts = read_state(path, NAME, settings)
    notes = facts.get("notes")
    stage = notes.get("stage") if isinstance(notes, dict) else None
    if stage not in (0, 1, JOINT) or (another_lambda and (stage != JOINT or facts.get("steps") != 0)):
        raise FileError(f"{path}: not the end of the second stage: give a file that --start wrote")
    return int(stage), arrays, facts


def restore_stage(state: NinjaState, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], path: Path) -> None:
    """Set a state to what ``read_stage`` returned; it must have entered that stage."""
    restore_state(state, arrays, facts, path)
    if state.best_arrays:
        weights = state.networks[state.stage_network].state_dict()
        checked_arrays(state.best_arrays, {name: tuple(value.shape) for name, value in weights.items()}, path)


# --- the card


@dataclass(frozen=True, slots=True)
class NinjaFiles:
    """A file for the ``start`` of trainings with other lambdas, and texts for the card.

    ``start`` is read if it exists, and else written at the end of the second stage. ``data`` and ``command`` go into
    the card.
    """

    start: Path | None = None
    data: str = ""
    command: str = ""


def card_of(state: NinjaState, params: NinjaTrainParams, files: NinjaFiles, scores: dict[str, Any]) -> dict[str, Any]:
    """Return the card of an encoder; ``scores`` are its own and those of raw descriptors on held-out material."""
    flat = {name: is_flat(losses) for name, losses in state.losses.items()}
    for name in (name for name, value in flat.items() if not value):
        log.warning("%s was not flat over the last fifth of its stage: train longer", name)
    first, joint = state.settings["first"], state.settings["joint"]
    return {
        "lambda": params.privacy,
        "seed": params.seed,
        "preset": params.preset,
        "adversary": params.adversary,
        "adversary losses": {adversary.name: meaning(adversary) for adversary in state.adversaries},
        "differences": differences(params, first["extractor"]),
        "settings": first | joint,
        "data": files.data,
        "command": files.command,
        "stages": [{"stage": name, **facts} for name, facts in zip(STAGES, state.notes["stages"], strict=True)],
        "losses": {name: round(tail_mean(losses), 5) for name, losses in state.losses.items()},
        "flat": flat,
        "selected": state.best,
        "history": state.history,
        "held out": scores,
    }


def is_flat(losses: list[float]) -> bool:
    """Tell whether a loss neither fell nor rose by a hundredth over the last fifth of its stage."""
    return max(flatness(losses), flatness([-loss for loss in losses])) < FLAT


def meaning(adversary: Adversary) -> str:
    """Return what the figures of L_recon of an inverter mean."""
    if adversary.name == "unet":
        return f"mean absolute error, and perceptual loss if there was VGG16; one colour gets {adversary.limit:.4f}"
    return f"share of what a constant guess gets, times {adversary.limit:g}: then nothing is recovered; 0 is everything"
