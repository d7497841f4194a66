# SPDX-License-Identifier: Apache-2.0
"""Trains a decoder from what is released back to the clear descriptor: one loop, from public photos to a file.

The general attack: descriptors of other people's photos are concealed under the same recipe, anew in every round, and
a perceptron learns to undo it. Receives the concealing function; knows none. With a number of steps, a seed and a
concealer that repeats itself, a training is the same on every run, interrupted or not.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.learn.checkpoint import load_checkpoint, save_checkpoint
from sfumato.learn.decoder import KIND, Decoder, Layout
from sfumato.learn.decoderdata import DecoderTrainParams, conceal_rows, public_rows
from sfumato.learn.decoderloss import loss_of
from sfumato.learn.pace import TICKS, Pace, TrainingResult, finite, flatness, told_flatness
from sfumato.learn.photoset import Concealer, Picture, Progress
from sfumato.learn.representation import canonical_input, frame_of
from sfumato.learn.resume import generator_state, network_arrays, part_of, restore, set_generator_state, snapshot
from sfumato.types.concealed import Subspaces

Floats = NDArray[np.float32]
Released = Subspaces | Floats

log = logging.getLogger(__name__)

VALIDATIONS = 10
RESUMED = "decoder in training"
WITHIN = (0.02, 0.1, 0.3)


@dataclass(slots=True, repr=False)
class State:
    """A training under way."""

    modules: Any
    optimizer: Any
    rng: np.random.Generator
    pace: Pace
    layout: Layout
    constants: dict[str, Floats]
    facts: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=lambda: {"step": -1, "scores": {"mean": 1e9}})
    saved: float = 0.0
    validated: int = -1


def train_decoder(
    params: DecoderTrainParams,
    photos_or_descriptors: Sequence[Picture] | Floats,
    output: str | os.PathLike[str],
    *,
    concealer: Concealer | None,
    progress: Progress = iter,
    resume: bool = False,
) -> TrainingResult:
    """Train a decoder on photos, or on descriptors (N, n), and write the best it was on rows held out to a file.

    ``concealer`` turns Features into ConcealedFeatures as the attacked ones were; None trains the identity, a control.
    While it works a file ``<output>.part`` holds all there is to go on from; with ``resume`` an interrupted training
    does.

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what can not be used.
    """
    need("torch", extra="learn")
    rng = np.random.default_rng(params.seed)
    training, held_out, extractor = public_rows(params, photos_or_descriptors, rng, progress)
    hidden, recipe = conceal_rows(held_out, extractor, concealer)
    state = begin(params, training, hidden, rng)
    state.facts |= {"recipe": recipe, "extractor": extractor.name, "rows": len(training)}
    if resume:
        restore_state(state, Path(output))
    per_round = max(1, params.concealed_at_once // params.batch)
    for tick in progress(range(int(state.pace.share * TICKS), TICKS)):
        while state.pace.share * TICKS < tick + 1:
            clear = training[state.rng.integers(len(training), size=per_round * params.batch)]
            inputs = canonical_input(conceal_rows(clear, extractor, concealer)[0], state.constants["frame"])
            for start in range(0, len(clear), params.batch):
                if state.pace.share < 1:
                    step(state, params, inputs[start : start + params.batch], clear[start : start + params.batch])
            if int(state.pace.share * VALIDATIONS) > state.validated:
                validate(state, hidden, held_out, Path(output))
            if state.pace.seconds - state.saved > 60 * params.save_minutes:
                save_state(state, Path(output))
    return finish(state, Path(output))


def step(state: State, params: DecoderTrainParams, inputs: Floats, clear: Floats) -> None:
    """Learn from one batch of canonical inputs (B, C) and clear descriptors (B, n)."""
    torch: Any = need("torch", extra="learn")
    loss = loss_of(state.modules, state.layout, state.constants, inputs, clear, state.rng)
    for group in state.optimizer.param_groups:
        group["lr"] = state.pace.rate(params.rate)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(state.modules.parameters(), 1.0)
    state.optimizer.step()
    state.pace.steps += 1
    state.losses.append(finite(loss.item()))


def begin(params: DecoderTrainParams, training: Floats, hidden: Released, rng: np.random.Generator) -> State:
    """Choose the form, make a perceptron with random weights, and measure what its inputs look like."""
    torch: Any = need("torch", extra="learn")
    m = hidden.dim if isinstance(hidden, Subspaces) else 0
    n_in = hidden.ambient_dim if isinstance(hidden, Subspaces) else hidden.shape[1]
    norms = np.linalg.norm(training, axis=1)
    unit, positive = bool(np.abs(norms - 1).max() < 1e-3), bool(training.min() >= 0)
    able = m > 0 and n_in == training.shape[1] and unit
    if params.form == "search" and not able:
        raise InputError("a search needs subspaces that hold the clear descriptor, of unit norm: choose form direct")
    form = ("search" if able else "direct") if params.form == "auto" else params.form
    layout = Layout(
        form=form, n_in=n_in, m=m, n_out=training.shape[1], hidden=params.hidden, depth=params.depth,
        positive=positive, unit=unit,
    )  # fmt: skip
    frame = frame_of(training) if n_in == training.shape[1] else np.eye(n_in, dtype=np.float32)
    seen = training if form == "search" else canonical_input(hidden, frame)
    mean, deviation = seen.mean(axis=0), seen.std(axis=0) + np.float32(1e-6)
    if form == "search":  # one scale for all, so that how far a number is below 0 means the same everywhere
        deviation = np.full_like(deviation, np.sqrt(np.mean(deviation**2)))
    ends = [seen.shape[1], *[params.hidden] * params.depth, training.shape[1] + 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        modules = torch.nn.ModuleList([torch.nn.Linear(a, b) for a, b in pairwise(ends)])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=params.rate, weight_decay=1e-4)
    facts = {"kind": KIND, "params": params.facts()}
    constants = {"frame": frame, "mean": mean, "deviation": deviation}
    return State(modules, optimizer, rng, Pace(params.minutes, params.steps), layout, constants, facts)


def validate(state: State, hidden: Released, clear: Floats, output: Path) -> None:
    """Score the decoder on rows held out, with and without projection; if it was never better, keep it."""
    state.validated = int(state.pace.share * VALIDATIONS)
    arrays = network_arrays(state.modules) | state.constants
    choices = [state.layout]
    if state.layout.form == "direct" and state.layout.m and state.layout.n_in == state.layout.n_out:
        choices.append(replace(state.layout, project=True))
    for layout in choices:
        distances = np.linalg.norm(Decoder(layout, arrays, {})(hidden) - clear, axis=1)
        scores = {"mean": float(distances.mean()), "median": float(np.median(distances))}
        scores |= {f"within {limit}": float((distances <= limit).mean()) for limit in WITHIN}
        log.info("step %d: mean distance %.4f on rows held out", state.pace.steps, scores["mean"])
        if scores["mean"] < state.best["scores"]["mean"]:
            state.best = {"step": state.pace.steps, "scores": scores}
            save_checkpoint(output, arrays, state.facts | {"layout": asdict(layout), "best": state.best})


def save_state(state: State, output: Path) -> None:
    """Write all there is to go on from."""
    state.saved = state.pace.seconds
    facts = {
        "kind": RESUMED,
        "made": state.facts | {"layout": asdict(state.layout)},
        "rng": generator_state(state.rng),
        "steps": state.pace.steps,
        "seconds": state.pace.seconds,
        "best": state.best,
        "validated": state.validated,
    }
    arrays = snapshot(state.modules, state.optimizer) | state.constants | {"losses": np.array(state.losses)}
    save_checkpoint(part_of(output), arrays, facts)


def restore_state(state: State, output: Path) -> None:
    """Go on from what ``save_state`` wrote; FileError if that was another training."""
    path = part_of(output)
    arrays, facts = load_checkpoint(path, RESUMED)
    if facts.get("made") != state.facts | {"layout": asdict(state.layout)}:
        raise FileError(f"{path}: begun with other settings or photos; give the same, or start anew without resuming")
    try:
        state.pace.steps, state.pace.seconds_before = int(facts["steps"]), float(facts["seconds"])
        state.best, state.validated = facts["best"], int(facts["validated"])
        state.losses = [float(loss) for loss in arrays["losses"]]
        state.constants = {name: arrays[name].copy() for name in state.constants}
        state.saved = state.pace.seconds_before
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: damaged ({cause}): start the training anew") from cause
    restore(state.modules, state.optimizer, arrays, path)
    set_generator_state(state.rng, facts.get("rng"), path)


def finish(state: State, output: Path) -> TrainingResult:
    """Note in the file how the training went, and remove what was kept for going on."""
    arrays, facts = load_checkpoint(output, KIND)
    losses = state.losses
    result = TrainingResult(
        steps=state.pace.steps,
        seconds=state.pace.seconds,
        first_loss=losses[0],
        last_loss=float(np.mean(losses[-max(1, len(losses) // 20) :])),
        flatness=flatness(losses),
        scores=state.best["scores"],
        best_step=state.best["step"],
    )
    if not result.is_flat:
        log.warning("%s", told_flatness(result.flatness))
    save_checkpoint(output, arrays, facts | {"result": result.facts()})
    part_of(output).unlink(missing_ok=True)
    return result
