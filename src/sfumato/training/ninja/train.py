# SPDX-License-Identifier: Apache-2.0
"""Training of a NinjaNet in the three stages of NinjaDesc (sections 3.1 to 3.3), from pairs to an encoder's file.

1. utility: the encoder alone, on pairs of descriptors of one point; the best by FPR@95 on held-out groups.
2. inverter: the inverters alone, on the output of that encoder.
3. joint: in turn, the encoder minimises L_util - lambda L_recon (Eq. 9), the inverters L_recon (Eq. 8). Algorithm 1
   prints L_util for the latter; L_recon is meant. Losses are means, not the printed sums.

With a number of steps and a seed, a training gives the same weights on every run, interrupted or not: each step draws
from the seed and its number. Reports and files hold scores and weights, never rows.
"""

import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.encoder import Encoder, save_encoder
from sfumato.errors import InputError, need
from sfumato.training.loop import Pace, part_of, save_state
from sfumato.training.ninja.adversaries import as_tensor, held_out_loss
from sfumato.training.ninja.data import NinjaMaterial, scores, split_material
from sfumato.training.ninja.network import export_encoder, prune, utility_loss, whiten
from sfumato.training.ninja.params import STAGES, NinjaTrainParams
from sfumato.training.ninja.state import JOINT, NinjaFiles, NinjaState, begin, card_of, read_stage, restore_stage
from sfumato.training.pairs import DescriptorPairs
from sfumato.types.progress import Progress

Floats = NDArray[np.float32]
Report = Callable[[str], None]

VALIDATIONS = 20
ROWS_AT_ONCE = 8192
WHITEN_EVERY = 10
WHITEN_ROWS = 4096
LEAST_MATCHED = 0.8
"""The share of matches that must remain when faint directions are cut."""

log = logging.getLogger(__name__)


def train_ninja(
    params: NinjaTrainParams,
    pairs: DescriptorPairs,
    photos: Sequence[Path],
    output: str | os.PathLike[str],
    *,
    files: NinjaFiles | None = None,
    progress: Progress = iter,
    report: Report = lambda line: None,
    resume: bool = False,
) -> Encoder:
    """Train an encoder on pairs, against inverters that learn from pairs and photos; write it to a file and return it.

    Meanwhile ``<output>.part`` holds the state; with ``resume`` an interrupted training goes on from it, and begins
    where there is none. ``report`` gets a line after each validation.

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what cannot be used.
    """
    need("torch", extra="learn")
    output, files = Path(output), files or NinjaFiles()
    part, start = part_of(Path(output)), files.start
    material = split_material(params, pairs, photos)
    state = begin(params, material, progress)
    if resume and part.exists():
        resume_stage(state, params, material, part, another_lambda=False)
    elif start is not None and start.exists():
        resume_stage(state, params, material, start, another_lambda=True)
    first = max(0, state.stage)
    for stage in range(first, len(STAGES)):
        if stage > state.stage:
            state.enter(stage, pace_of(params, material, stage))
            save_state(state, part)
        if stage == JOINT and state.pace.steps == 0 and start is not None and not start.exists():
            save_state(state, start)
        for _ in state.pace.rounds(progress):
            step(state, params, material)
            if state.is_due(VALIDATIONS):
                validate(state, params, material, report)
            if state.is_unsaved(params.save_minutes):
                save_state(state, part)
        state.take_best()
        state.notes["stages"].append({"steps": state.pace.steps, "seconds": round(state.pace.seconds, 1)})
    return finish(state, params, material, output, files)


def resume_stage(
    state: NinjaState, params: NinjaTrainParams, material: NinjaMaterial, path: Path, *, another_lambda: bool
) -> None:
    """Enter the stage that a file was written in, and go on from there."""
    stage, arrays, facts = read_stage(path, state, another_lambda=another_lambda)
    state.enter(stage, pace_of(params, material, stage))
    restore_stage(state, arrays, facts, path)


def pace_of(params: NinjaTrainParams, material: NinjaMaterial, stage: int) -> Pace:
    """Return how long a stage takes: its share of minutes or steps, or its epochs."""
    share, settings = params.shares[stage], params.stages()[stage]
    if params.steps is not None:
        return Pace(0, max(1, round(share * params.steps)))
    if params.minutes is not None:
        return Pace(share * params.minutes)
    from_photos = stage == 1 and params.adversary in ("unet", "all")
    count = len(material.photos) if from_photos else len(material.training)
    batch = params.opponents.rows if stage == 1 and not from_photos else settings.batch
    return Pace(0, settings.epochs * math.ceil(count / batch))


def step(state: NinjaState, params: NinjaTrainParams, material: NinjaMaterial) -> None:
    """Learn from one batch, as the stage has it."""
    torch: Any = need("torch", extra="learn")
    rng = np.random.default_rng([params.seed, state.stage, state.pace.steps])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        if state.stage != 1:
            encoder_step(state, params, material, rng)
        if state.stage != 0:
            if state.pace.steps % WHITEN_EVERY == 0 and (state.stage == JOINT or state.pace.steps == 0):
                whiten_all(state, params.seed)
            rate = params.inverter.rate if state.stage == 1 else params.joint_inverter_rate
            for _ in range(1 if state.stage == 1 else params.adversary_steps):
                inverter_step(state, rate_of(state, params, rate), params.noise, rng)
    state.pace.steps += 1


def encoder_step(
    state: NinjaState, params: NinjaTrainParams, material: NinjaMaterial, rng: np.random.Generator
) -> None:
    """Make a step down L_util - lambda L_recon (Eq. 9); the inverters stand still. In the first stage down L_util."""
    settings = params.stages()[state.stage]
    rows = rng.integers(len(material.training), size=settings.batch)
    state.encoder.train()
    views = np.concatenate([material.training.first[rows], material.training.second[rows]])
    device = next(state.encoder.parameters())
    encoded = state.encoder(as_tensor(views, device))  # (2 B, n')
    points = need("torch", extra="learn").from_numpy(material.training.points[rows]).to(device.device)
    loss = utility_loss(encoded[: len(rows)], encoded[len(rows) :], points, params.margin)
    add_loss(state, "utility", loss)
    if state.stage == JOINT and params.privacy > 0:
        state.encoder.eval()  # as it will be attacked
        state.opponents.eval().requires_grad_(False)
        for adversary in state.adversaries:
            adversary.refit(lambda rows: add_noise(encode_rows(state.encoder, rows), params.noise), rng)
            clear, truth = adversary.draw(rng)
            recon = adversary.loss(add_noise(state.encoder(as_tensor(clear, device)), params.noise), truth)
            loss = loss - params.privacy * recon.clamp_max(adversary.limit)
            add_loss(state, f"escaped {adversary.name}", recon)
        for adversary in state.adversaries:
            adversary.modules["body"].requires_grad_(True)
    state.descend("encoder", loss, rate_of(state, params, settings.rate), clip=1.0)


def inverter_step(state: NinjaState, rate: float, noise: float, rng: np.random.Generator) -> None:
    """Make a step down L_recon (Eq. 8); the encoder stands still."""
    torch: Any = need("torch", extra="learn")
    state.encoder.eval()
    state.opponents.train()
    loss: Any = 0.0
    for adversary in state.adversaries:
        clear, truth = adversary.draw(rng)
        with torch.no_grad():
            encoded = state.encoder(as_tensor(clear, next(state.encoder.parameters())))
        loss = loss + adversary.loss(add_noise(encoded, noise), truth)
    add_loss(state, "reconstruction", loss)
    state.descend("opponents", loss, rate, clip=1.0)


def add_noise(encoded: Any, noise: float) -> Any:
    """Return rows with noise added to each number, as inverters see them."""
    torch: Any = need("torch", extra="learn")
    return encoded + noise * torch.randn_like(encoded) if noise else encoded


def rate_of(state: NinjaState, params: NinjaTrainParams, highest: float) -> float:
    """Return the rate of learning at this point of a stage."""
    return state.pace.rate(highest) if params.schedule == "cosine" else highest


def add_loss(state: NinjaState, name: str, loss: Any) -> None:
    """Append a loss to those of this stage."""
    state.add_loss(f"{STAGES[state.stage]} {name}", loss.item())


def whiten_all(state: NinjaState, seed: int) -> None:
    """Set the whitening of all inverters to the present output of the encoder, for the same rows each time."""
    for adversary in state.adversaries:
        rng = np.random.default_rng([seed, 4])
        rows = adversary.clear[rng.integers(len(adversary.clear), size=WHITEN_ROWS)]
        whiten(adversary.modules["white"], encode_rows(state.encoder, rows))


def encode_rows(encoder: Any, rows: Floats) -> Any:
    """Return rows (N, n) as the encoder gives them in inference, a tensor (N, n') without gradient."""
    torch: Any = need("torch", extra="learn")
    encoder.eval()
    device = next(encoder.parameters())
    with torch.no_grad():
        parts = [as_tensor(rows[at : at + ROWS_AT_ONCE], device) for at in range(0, len(rows), ROWS_AT_ONCE)]
        return torch.cat([encoder(part) for part in parts])


def validate(state: NinjaState, params: NinjaTrainParams, material: NinjaMaterial, report: Report) -> None:
    """Score both networks on held-out material, and keep the one of this stage if it is the best so far.

    An encoder is better if its FPR@95 is lower by a thousandth, or as low and more pairs are matched: detected pairs
    are easy to tell from chance, and FPR@95 alone cannot tell one encoder from another.
    """
    state.mark_validation(VALIDATIONS)
    entry: dict[str, Any] = {"stage": STAGES[state.stage], "step": state.pace.steps}
    if state.stage != 1:
        entry |= scores(lambda rows: encode_rows(state.encoder, rows).cpu().numpy(), material.held_out, params.seed)
    if state.stage != 0:
        losses = {
            adversary.name: held_out_loss(adversary, lambda rows: encode_rows(state.encoder, rows), params.seed)
            for adversary in state.adversaries
        }
        entry["reconstruction"] = {name: round(value, 5) for name, value in losses.items()}
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in entry.items()}
    state.history.append(rounded)
    if state.stage == 1:
        state.keep([sum(losses.values())])
    elif state.stage == 0 or state.pace.share >= params.select_after:
        state.keep([round(entry["fpr95"], 3), -entry["matched"]])
    line = ", ".join(f"{name} {value}" for name, value in rounded.items())
    report(f"{line}; {state.pace.seconds_left / 60:.1f} min of the stage left")
    log.info("%s", line)


def finish(
    state: NinjaState, params: NinjaTrainParams, material: NinjaMaterial, output: Path, files: NinjaFiles
) -> Encoder:
    """Cut off faint directions, write the encoder with its card, and remove the file of the state."""

    def encode(rows: Floats) -> Floats:
        encoded: Floats = encode_rows(state.encoder, rows).cpu().numpy()
        return encoded

    before = scores(encode, material.held_out, params.seed)
    if params.privacy > 0 and params.noise > 0:
        sample = as_tensor(material.training.first[:ROWS_AT_ONCE], next(state.encoder.parameters()))
        log.info("%d directions are left", prune(state.encoder, sample, params.noise))
    raw, encoded = (scores(function, material.held_out, params.seed) for function in (lambda rows: rows, encode))
    if encoded["matched"] < LEAST_MATCHED * before["matched"]:
        raise InputError(
            f"with lambda {params.privacy:g} nearly all of the encoder's output is fainter than the noise "
            f"({params.noise:g}), and of no use: train anew with a lower lambda or noise"
        )
    card = card_of(state, params, files, {"raw": raw, "encoded": encoded})
    encoder = save_encoder(output, export_encoder(state.encoder, material.training.extractor.name, card))
    part_of(output).unlink(missing_ok=True)
    return encoder
