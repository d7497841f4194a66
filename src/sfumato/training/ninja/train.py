# SPDX-License-Identifier: Apache-2.0
"""Trains a NinjaNet in the three stages of NinjaDesc (sections 3.1 to 3.3): one loop, from pairs to an encoder's file.

1. utility: the encoder alone, on pairs of descriptors of one point; the best by FPR@95 on groups held out.
2. inverter: the inverters alone, on what that encoder gives.
3. joint: in turn, the encoder minimises L_util - lambda L_recon (Eq. 9), the inverters L_recon (Eq. 8). Algorithm 1
   prints L_util for the latter; L_recon is meant. Losses are means, not the printed sums.

Knows clear descriptors of the public. With a number of steps and a seed a training is the same on every run,
interrupted or not: each step draws from the seed and its number.
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
from sfumato.features.results import Progress
from sfumato.training.loop import TICKS, Pace, finite, part_of
from sfumato.training.ninja.adversaries import as_tensor, held_out_loss
from sfumato.training.ninja.data import NinjaMaterial, scores, split_material
from sfumato.training.ninja.network import export_encoder, prune, utility_loss, whiten
from sfumato.training.ninja.params import STAGES, NinjaTrainParams
from sfumato.training.ninja.state import JOINT, Source, State, begin, card_of, read_stage, restore_state, save_state
from sfumato.training.pairs import DescriptorPairs

# ----------------------------------------------------------------
# How good the networks of a NinjaNet training are at some time, on material held out; the best is kept
# Knows the state of a training and its material; reports and remembers scores, never rows.


Floats = NDArray[np.float32]
Report = Callable[[str], None]

VALIDATIONS = 20
ROWS_AT_ONCE = 8192

log = logging.getLogger(__name__)


def encode_rows(encoder: Any, rows: Floats) -> Any:
    """Return rows (N, n) as the encoder gives them in inference, a tensor (N, n') without gradient."""
    torch: Any = need("torch", extra="learn")
    encoder.eval()
    device = next(encoder.parameters())
    with torch.no_grad():
        parts = [as_tensor(rows[at : at + ROWS_AT_ONCE], device) for at in range(0, len(rows), ROWS_AT_ONCE)]
        return torch.cat([encoder(part) for part in parts])


def is_due(state: State) -> bool:
    """Tell whether a twentieth of the stage has gone since the last validation."""
    return int(state.pace.share * VALIDATIONS) > state.validated


def validate(state: State, params: NinjaTrainParams, material: NinjaMaterial, report: Report) -> None:
    """Score both networks on material held out, and keep the one in training if it was never better.

    An encoder is better if its FPR@95 is lower by a thousandth, or as low and more pairs are matched: pairs that a
    detector found are easy to tell from chance, and FPR@95 alone cannot tell one encoder from another.
    """
    state.validated = int(state.pace.share * VALIDATIONS)
    found: dict[str, Any] = {"stage": STAGES[state.stage], "step": state.pace.steps}
    if state.stage != 1:
        found |= scores(lambda rows: encode_rows(state.encoder, rows).cpu().numpy(), material.held, params.seed)
    if state.stage != 0:
        recon = {
            one.name: held_out_loss(one, lambda rows: encode_rows(state.encoder, rows), params.seed)
            for one in state.adversaries
        }
        found["reconstruction"] = {name: round(value, 5) for name, value in recon.items()}
    state.history.append(
        {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}
    )
    if state.stage == 1:
        state.keep([sum(recon.values())], state.opponents)
    elif state.stage == 0 or state.pace.share >= params.select_after:
        state.keep([round(found["fpr95"], 3), -found["matched"]], state.encoder)
    left = state.pace.seconds * (1 / max(state.pace.share, 1e-6) - 1) / 60
    told = ", ".join(f"{name} {value}" for name, value in state.history[-1].items())
    report(f"{told}; {left:.1f} min of the stage left")
    log.info("%s", told)


WHITENED_EVERY = 10
ROWS_WHITENED = 4096
LEAST_KEPT = 0.8
"""The share of matches that must outlive the cutting of faint directions."""


def train_ninja(
    params: NinjaTrainParams,
    pairs: DescriptorPairs,
    photos: Sequence[Path],
    output: str | os.PathLike[str],
    *,
    source: Source | None = None,
    progress: Progress = iter,
    report: Report = lambda line: None,
    resume: bool = False,
) -> Encoder:
    """Train an encoder on pairs, against inverters that learn from pairs and photos; write it to a file and return it.

    While it works a file ``<output>.part`` holds all there is to go on from; with ``resume`` an interrupted training
    does, and one that was not begun begins. ``report`` is told a line after each validation.

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what cannot be used.
    """
    need("torch", extra="learn")
    output, source = Path(output), source or Source()
    material = split_material(params, pairs, photos)
    state = begin(params, material, progress)
    is_begun = resume and part_of(output).exists()
    first = take_up(state, params, material, part_of(output) if is_begun else source.start, resume=is_begun)
    for stage in range(first, len(STAGES)):
        if stage > first or state.stage < 0:
            state.enter(stage, pace_of(params, material, stage))
            save_state(state, part_of(output))
        if stage == JOINT and state.pace.steps == 0 and source.start is not None and not source.start.exists():
            save_state(state, source.start)
        for tick in progress(range(int(state.pace.share * TICKS), TICKS)):
            while state.pace.share * TICKS < tick + 1:
                step(state, params, material)
                if is_due(state):
                    validate(state, params, material, report)
                if state.pace.seconds - state.saved > 60 * params.save_minutes:
                    save_state(state, part_of(output))
        state.take_best(state.opponents if stage == 1 else state.encoder)
        state.spent.append({"steps": state.pace.steps, "seconds": round(state.pace.seconds, 1)})
    return finish(state, params, material, output, source)


def take_up(state: State, params: NinjaTrainParams, material: NinjaMaterial, path: Path | None, *, resume: bool) -> int:
    """Go on from a file, if there is one to go on from; return the stage to begin with."""
    if path is None or not (resume or path.exists()):
        return 0
    stage, arrays, facts = read_stage(path, state, another_lambda=not resume)
    state.enter(stage, pace_of(params, material, stage))
    restore_state(state, arrays, facts, path)
    return stage


def pace_of(params: NinjaTrainParams, material: NinjaMaterial, stage: int) -> Pace:
    """Return how long a stage takes: its share of minutes or steps, or its epochs."""
    share, chosen = params.shares[stage], params.stages()[stage]
    if params.steps is not None:
        return Pace(0, max(1, round(share * params.steps)))
    if params.minutes is not None:
        return Pace(share * params.minutes)
    images = stage == 1 and params.adversary in ("unet", "all")
    count = len(material.photos) if images else len(material.training)
    return Pace(
        0, chosen.epochs * math.ceil(count / (params.opponents.rows if stage == 1 and not images else chosen.batch))
    )


def step(state: State, params: NinjaTrainParams, material: NinjaMaterial) -> None:
    """Learn from one batch, as the stage has it."""
    torch: Any = need("torch", extra="learn")
    rng = np.random.default_rng([params.seed, state.stage, state.pace.steps])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        if state.stage != 1:
            encoder_step(state, params, material, rng)
        if state.stage != 0:
            if state.pace.steps % WHITENED_EVERY == 0 and (state.stage == JOINT or state.pace.steps == 0):
                whiten_all(state, params.seed)
            rate = params.inverter.rate if state.stage == 1 else params.joint_inverter_rate
            for _ in range(1 if state.stage == 1 else params.adversary_steps):
                inverter_step(state, rate_of(state, params, rate), params.noise, rng)
    state.pace.steps += 1


def encoder_step(state: State, params: NinjaTrainParams, material: NinjaMaterial, rng: np.random.Generator) -> None:
    """Make a step down L_util - lambda L_recon (Eq. 9); the inverters stand still. In the first stage down L_util."""
    chosen = params.stages()[state.stage]
    rows = rng.integers(len(material.training), size=chosen.batch)
    state.encoder.train()
    views = np.concatenate([material.training.first[rows], material.training.second[rows]])
    device = next(state.encoder.parameters())
    encoded = state.encoder(as_tensor(views, device))  # (2 B, n')
    points = need("torch", extra="learn").from_numpy(material.training.points[rows]).to(device.device)
    loss = utility_loss(encoded[: len(rows)], encoded[len(rows) :], points, params.margin)
    note(state, "utility", loss)
    if state.stage == JOINT and params.privacy > 0:
        state.encoder.eval()  # as it will be attacked
        state.opponents.eval().requires_grad_(False)
        for one in state.adversaries:
            one.refit(lambda rows: blurred(encode_rows(state.encoder, rows), params.noise), rng)
            clear, truth = one.draw(rng)
            recon = one.loss(blurred(state.encoder(as_tensor(clear, device)), params.noise), truth)
            loss = loss - params.privacy * recon.clamp_max(one.limit)
            note(state, f"escaped {one.name}", recon)
        for one in state.adversaries:
            one.modules["body"].requires_grad_(True)
    descend(state.encoder_optimizer, state.encoder, loss, rate_of(state, params, chosen.rate))


def inverter_step(state: State, rate: float, noise: float, rng: np.random.Generator) -> None:
    """Make a step down L_recon (Eq. 8); the encoder stands still."""
    torch: Any = need("torch", extra="learn")
    state.encoder.eval()
    state.opponents.train()
    loss: Any = 0.0
    for one in state.adversaries:
        clear, truth = one.draw(rng)
        with torch.no_grad():
            encoded = state.encoder(as_tensor(clear, next(state.encoder.parameters())))
        loss = loss + one.loss(blurred(encoded, noise), truth)
    note(state, "reconstruction", loss)
    descend(state.opponents_optimizer, state.opponents, loss, rate)


def blurred(encoded: Any, noise: float) -> Any:
    """Return rows with noise added to each number, as an inverter is shown them."""
    torch: Any = need("torch", extra="learn")
    return encoded + noise * torch.randn_like(encoded) if noise else encoded


def descend(optimizer: Any, modules: Any, loss: Any, rate: float) -> None:
    """Make one step down the gradient of a loss."""
    torch: Any = need("torch", extra="learn")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(modules.parameters(), 1.0)
    optimizer.step()


def rate_of(state: State, params: NinjaTrainParams, highest: float) -> float:
    """Return the rate of learning at this point of a stage."""
    return state.pace.rate(highest) if params.schedule == "cosine" else highest


def note(state: State, name: str, loss: Any) -> None:
    """Remember a loss of this stage."""
    state.losses.setdefault(f"{STAGES[state.stage]} {name}", []).append(finite(loss.item()))


def whiten_all(state: State, seed: int) -> None:
    """Let all inverters know what encoded rows, always the same, look like now."""
    for one in state.adversaries:
        rng = np.random.default_rng([seed, 4])
        rows = one.clear[rng.integers(len(one.clear), size=ROWS_WHITENED)]
        whiten(one.modules["white"], encode_rows(state.encoder, rows))


def finish(state: State, params: NinjaTrainParams, material: NinjaMaterial, output: Path, source: Source) -> Encoder:
    """Cut off what is faint, write the encoder with its card, and remove what was kept for going on."""
    before = scores(lambda rows: encode_rows(state.encoder, rows).cpu().numpy(), material.held, params.seed)
    if params.privacy > 0 and params.noise > 0:
        shown = as_tensor(material.training.first[:ROWS_AT_ONCE], next(state.encoder.parameters()))
        left = prune(state.encoder, shown, params.noise)
        log.info("%d directions are left", left)
    scored = {
        "raw": scores(lambda rows: rows, material.held, params.seed),
        "encoded": scores(lambda rows: encode_rows(state.encoder, rows).cpu().numpy(), material.held, params.seed),
    }
    if scored["encoded"]["matched"] < LEAST_KEPT * before["matched"]:
        raise InputError(
            f"with lambda {params.privacy:g} nearly all that the encoder says is fainter than the noise "
            f"({params.noise:g}), and of no use: train anew with a lower lambda or noise"
        )
    card = card_of(state, params, source, scored)
    encoder = save_encoder(output, export_encoder(state.encoder, material.training.extractor.name, card))
    part_of(output).unlink(missing_ok=True)
    return encoder
