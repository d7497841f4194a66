# SPDX-License-Identifier: Apache-2.0
"""Trains a UNet or UResNet to turn released features back into pictures: one loop, from photos to a file.

The attack that the papers call direct inversion: photos of others are concealed as those attacked were, anew at every
step, and the network learns their pictures (NinjaDesc, section 3.2). Receives the concealing function; knows none. With
a number of steps, a seed and a concealer that repeats itself, a training is the same on every run, interrupted or not.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, need
from sfumato.learn import uresnet
from sfumato.learn.checkpoint import load_checkpoint, save_checkpoint
from sfumato.learn.imageinverter import KIND, build_network, run_network
from sfumato.learn.imageparams import ImageTrainParams
from sfumato.learn.metrics import picture_scores
from sfumato.learn.pace import TICKS, Pace, TrainingResult, finite, flatness, told_flatness
from sfumato.learn.perceptual import load_perceptual, perceptual_loss
from sfumato.learn.photoset import Concealer, Photo, Picture, Progress, Window, cut, random_windows, read_photos
from sfumato.learn.representation import frame_for, frame_of
from sfumato.learn.resume import generator_state, network_arrays, part_of, restore, set_generator_state, snapshot

__all__ = ["ImageTrainParams", "train_image_inverter"]

log = logging.getLogger(__name__)

VALIDATIONS = 20
HELD_OUT = 24
FRAME_ROWS = 20_000
RESUMED = "image inverter in training"
ANOTHER = "begun with other settings or photos; give the same, or start anew without resuming"


@dataclass(slots=True, repr=False)
class State:
    """A training under way."""

    modules: Any
    optimizer: Any
    rng: np.random.Generator
    pace: Pace
    constants: dict[str, NDArray[np.float32]]
    facts: dict[str, Any]
    losses: list[float] = field(default_factory=list)
    held_out_losses: list[float] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=lambda: {"step": -1, "scores": {"ssim": -2.0}})
    saved: float = 0.0
    validated: int = -1


def train_image_inverter(
    params: ImageTrainParams,
    photos: Sequence[Picture],
    output: str | os.PathLike[str],
    *,
    concealer: Concealer | None = None,
    progress: Progress = iter,
    resume: bool = False,
) -> TrainingResult:
    """Train a network on photos and write the best it was, by structural similarity on photos held out, to a file.

    ``concealer`` turns Features into ConcealedFeatures as the attacked ones were; None for clear descriptors. While it
    works a file ``<output>.part`` holds all there is to go on from; with ``resume`` an interrupted training does, and
    begins anew where there is none.

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what can not be used.
    """
    torch: Any = need("torch", extra="learn")
    rng = np.random.default_rng(params.seed)
    begun = read_state(params, Path(output)) if resume and part_of(Path(output)).is_file() else None
    loss_network = None if params.perceptual is None else load_perceptual(params.perceptual).to(params.device)
    if loss_network is None:
        log.warning("no weights of VGG16 were given: the loss is the mean absolute error, without the perceptual loss")
    chosen = [photos[i] for i in rng.permutation(len(photos))[: params.max_photos]]
    found = read_photos(chosen, params.local, params.side, progress)
    held_out = max(1, min(HELD_OUT, len(found) // 10))
    training, validation = found[held_out:], found[:held_out]
    state = begin(params, training, concealer, rng)
    windows = [cut(photo, centre(photo, params.side), params.side, concealer, state.constants["frame"])
               for photo in validation]  # fmt: skip
    if begun is not None:
        restore_state(state, *begun, part_of(Path(output)))
    for tick in progress(range(int(state.pace.share * TICKS), TICKS)):
        while state.pace.share * TICKS < tick + 1:
            batch = random_windows(training, params.side, params.batch, state.rng, concealer, state.constants["frame"])
            loss = loss_of(state, params, batch, loss_network)
            for group in state.optimizer.param_groups:
                group["lr"] = state.pace.rate(params.rate)
            state.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(state.modules.parameters(), 1.0)
            state.optimizer.step()
            state.pace.steps += 1
            state.losses.append(finite(loss.item()))
            if int(state.pace.share * VALIDATIONS) > state.validated:
                validate(state, params, windows, loss_network, Path(output))
            if state.pace.seconds - state.saved > 60 * params.save_minutes:
                save_state(state, Path(output))
    return finish(state, params, Path(output))


def begin(params: ImageTrainParams, training: list[Photo], concealer: Concealer | None, rng: Any) -> State:
    """Make a network with random weights, and measure what its inputs look like."""
    torch: Any = need("torch", extra="learn")
    rows = np.concatenate([photo.features.descriptors for photo in training])
    some_rows = rows[rng.permutation(len(rows))[:FRAME_ROWS]]
    frame = frame_of(some_rows)
    if concealer is not None:
        frame = frame_for(some_rows, concealer(training[0].features).subspaces)
    some = random_windows(training, params.side, 32, rng, concealer, frame)
    inputs = np.concatenate([window.inputs for window in some])
    constants = {"frame": frame, "mean": inputs.mean(axis=0), "deviation": inputs.std(axis=0) + np.float32(1e-6)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        modules = build_network(params.architecture, inputs.shape[1], params.width)
    if params.encoder is not None:
        uresnet.load_encoder(modules["body"], params.encoder)
    modules.to(params.device)
    optimizer = torch.optim.AdamW(modules.parameters(), lr=params.rate, weight_decay=1e-4)
    facts = {
        "kind": KIND,
        "params": params.facts(),
        "recipe": "raw" if concealer is None else str(concealer(training[0].features).recipe),
        "extractor": training[0].features.extractor.name,
        "input_dim": inputs.shape[1],
        "loss": "mean absolute error and perceptual loss" if params.perceptual else "mean absolute error",
        "start": "scratch" if params.encoder is None else "a ResNet50 file",
        "photos": len(training),
    }
    return State(modules, optimizer, rng, Pace(params.minutes, params.steps), constants, facts)


def loss_of(state: State, params: ImageTrainParams, batch: list[Window], loss_network: Any) -> Any:
    """Return the loss of a batch: the mean absolute error, and the perceptual loss if there is one (Eq. 3 to 5)."""
    torch: Any = need("torch", extra="learn")
    state.modules.train()
    seen = run(state, params, batch)
    truth = torch.from_numpy(np.stack([window.truth for window in batch])).to(params.device)
    truth = truth.permute(0, 3, 1, 2).float() / 255  # (B, 3, side, side)
    loss = (seen - truth).abs().mean()
    if loss_network is not None:
        y, x = state.rng.integers(max(1, params.side - params.perceptual_side + 1), size=2)
        part = (slice(None), slice(None), slice(y, y + params.perceptual_side), slice(x, x + params.perceptual_side))
        loss = loss + params.perceptual_weight * perceptual_loss(loss_network, seen[part], truth[part])
    return loss


def run(state: State, params: ImageTrainParams, batch: list[Window]) -> Any:
    """Return the pictures (B, 3, side, side) the network makes of windows."""
    torch: Any = need("torch", extra="learn")
    inputs = np.concatenate([window.inputs for window in batch])  # (M, C)
    standard = (inputs - state.constants["mean"]) / state.constants["deviation"]
    vectors = torch.from_numpy(standard).to(params.device)
    return run_network(state.modules, params.architecture, vectors, [window.placed for window in batch])


def validate(state: State, params: ImageTrainParams, windows: list[Window], loss_network: Any, output: Path) -> None:
    """Score the network on windows held out; if it was never better, keep it: the highest score is the attacker."""
    torch: Any = need("torch", extra="learn")
    state.validated = int(state.pace.share * VALIDATIONS)
    state.modules.eval()
    scores, losses = [], []
    with torch.inference_mode():
        for window in windows:
            seen = run(state, params, [window])  # (1, 3, side, side)
            scores.append(picture_scores(seen[0].permute(1, 2, 0).cpu().numpy(), window.truth))
            truth = torch.from_numpy(window.truth.astype(np.float32) / 255).to(params.device).permute(2, 0, 1)[None]
            beside = 0.0 if loss_network is None else float(perceptual_loss(loss_network, seen, truth))
            losses.append(scores[-1]["mae_rgb"] + params.perceptual_weight * beside)
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    state.held_out_losses.append(float(np.mean(losses)))
    log.info("step %d: ssim %.4f, loss %.4f held out", state.pace.steps, means["ssim"], state.held_out_losses[-1])
    if means["ssim"] > state.best["scores"]["ssim"]:
        state.best = {"step": state.pace.steps, "scores": means}
        save_checkpoint(output, network_arrays(state.modules) | state.constants, state.facts | {"best": state.best})


def save_state(state: State, output: Path) -> None:
    """Write all there is to go on from."""
    state.saved = state.pace.seconds
    facts = {
        "kind": RESUMED,
        "made": state.facts,
        "rng": generator_state(state.rng),
        "steps": state.pace.steps,
        "seconds": state.pace.seconds,
        "best": state.best,
        "validated": state.validated,
        "held_out_losses": state.held_out_losses,
    }
    arrays = snapshot(state.modules, state.optimizer) | state.constants | {"losses": np.array(state.losses)}
    save_checkpoint(part_of(output), arrays, facts)


def read_state(params: ImageTrainParams, output: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what ``save_state`` wrote; FileError if it is damaged or was begun with other settings."""
    path = part_of(output)
    arrays, facts = load_checkpoint(path, RESUMED)
    made = facts.get("made")
    if not isinstance(made, dict) or made.get("params") != params.facts():
        raise FileError(f"{path}: {ANOTHER}")
    return arrays, facts


def restore_state(state: State, arrays: dict[str, NDArray[Any]], facts: dict[str, Any], path: Path) -> None:
    """Go on from what ``read_state`` returned; FileError if that was another training."""
    if facts.get("made") != state.facts:
        raise FileError(f"{path}: {ANOTHER}")
    try:
        state.pace.steps, state.pace.seconds_before = int(facts["steps"]), float(facts["seconds"])
        state.best, state.validated = facts["best"], int(facts["validated"])
        state.losses = [float(loss) for loss in arrays["losses"]]
        state.held_out_losses = [float(loss) for loss in facts["held_out_losses"]]
        state.constants = {name: arrays[name].copy() for name in state.constants}
        state.saved = state.pace.seconds_before
    except (KeyError, TypeError, ValueError) as cause:
        raise FileError(f"{path}: damaged ({cause}): start the training anew") from cause
    restore(state.modules, state.optimizer, arrays, path)
    set_generator_state(state.rng, facts.get("rng"), path)


def finish(state: State, params: ImageTrainParams, output: Path) -> TrainingResult:
    """Note in the file how the training went, and remove what was kept for going on."""
    arrays, facts = load_checkpoint(output, KIND)
    losses = state.losses
    result = TrainingResult(
        steps=state.pace.steps,
        seconds=state.pace.seconds,
        first_loss=losses[0],
        last_loss=float(np.mean(losses[-max(1, len(losses) // 20) :])),
        flatness=flatness(state.held_out_losses),  # those of batches differ too much
        scores=state.best["scores"],
        best_step=state.best["step"],
        perceptual=params.perceptual is not None,
    )
    if not result.is_flat:
        log.warning("%s", told_flatness(result.flatness))
    curve = [round(loss, 6) for loss in state.held_out_losses]
    save_checkpoint(output, arrays, facts | {"result": result.facts(), "held_out_losses": curve})
    part_of(output).unlink(missing_ok=True)
    return result


def centre(photo: Photo, side: int) -> tuple[int, int]:
    """Return the corner (x, y) of the window in the middle of a photo."""
    height, width = photo.pixels.shape[:2]
    return (width - side) // 2, (height - side) // 2
