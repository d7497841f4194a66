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

from sfumato.errors import FileError, ImageError, InputError, need
from sfumato.features.local import LocalParams, extract
from sfumato.features.results import Progress
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.inversion.canonical import as_subspaces, canonical_input, frame_of
from sfumato.inversion.descriptors import KIND, Decoder, Layout
from sfumato.training.loop import (
    TICKS,
    Pace,
    TrainingResult,
    finite,
    flatness,
    generator_state,
    network_arrays,
    part_of,
    restore,
    set_generator_state,
    snapshot,
    told_flatness,
)
from sfumato.training.photos import Concealer, Picture
from sfumato.types.arrays import Range, frozen_array, refuse_unknown, settle_numbers
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.extractor import Extractor

# ----------------------------------------------------------------
# What a decoder is trained with: settings, public descriptors, and how rows of them are concealed
# Holds clear descriptors of public photos; nothing of it is written anywhere.


Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTrainParams:
    """How a decoder is trained.

    ``form`` direct, search, or auto: a search wherever one is possible. ``hidden`` units in each of ``depth`` layers.
    ``steps`` instead of ``minutes`` makes the training repeatable. Of each photo at most ``per_photo`` descriptors are
    used, drawn from those that ``local`` finds. ``concealed_at_once`` rows are concealed as one image.
    """

    form: str = "auto"
    hidden: int = 768
    depth: int = 3
    batch: int = 256
    rate: float = 1e-3
    minutes: float = 10.0
    steps: int | None = None
    seed: int = 0
    per_photo: int = 300
    held_out: int = 2000
    concealed_at_once: int = 2048
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    save_minutes: float = 2.0

    def __new__(cls, **settings: object) -> "DecoderTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "hidden": Range(1, 2**15, whole=True), "depth": Range(1, 16, whole=True), "rate": Range(1e-7, 1),
            "batch": Range(2, 2**16, whole=True), "minutes": Range(1e-3, 1e5), "seed": Range(0, 2**63, whole=True),
            "per_photo": Range(1, 1e6, whole=True), "held_out": Range(1, 1e6, whole=True),
            "concealed_at_once": Range(1, 1e6, whole=True), "save_minutes": Range(0, 1e5),
        }  # fmt: skip
        problems = settle_numbers(
            self, ranges if self.steps is None else {**ranges, "steps": Range(1, 1e9, whole=True)}
        )
        if self.form not in ("auto", "direct", "search"):
            problems.append(f"form must be auto, direct or search, got {self.form!r:.80}")
        if problems:
            raise InputError("; ".join(problems))

    def facts(self) -> dict[str, Any]:
        """Return what a training with the same result has in common, as plain values; no places of files."""
        local = {**asdict(self.local), "weights": self.local.weights is not None}
        left_out = ("save_minutes", "minutes", "steps")
        return {k: v for k, v in asdict(self).items() if k not in left_out} | {"local": local}


def public_rows(
    params: DecoderTrainParams, source: Sequence[Picture] | Floats, rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Floats, Extractor]:
    """Return descriptors to learn from, others held out (of other photos, where photos were given), and their kind.

    Photos that cannot be read are named in the log and left out.

    Raises InputError if there are too few.
    """
    if isinstance(source, np.ndarray):
        rows, extractor = frozen_array(source, "descriptors", (None, None)), Extractor()
        rows = rows[rng.permutation(len(rows))]
    else:
        rows, extractor = _of_photos(params, source, rng, progress)
    held_out = min(params.held_out, len(rows) // 5)
    if held_out < 1 or len(rows) < 2 * params.batch:
        raise InputError(f"{len(rows)} descriptors are too few to learn from: give more photos")
    return rows[held_out:], rows[:held_out], extractor


def conceal_rows(rows: Floats, extractor: Extractor, concealer: Concealer | None) -> tuple[Subspaces | Floats, str]:
    """Conceal descriptors (N, n) as if they were those of one image; return what is released, and the recipe."""
    if concealer is None:
        return rows, "raw"
    concealed = concealer(Features(np.zeros((len(rows), 4), np.float32), rows, extractor))
    return concealed.subspaces, str(concealed.recipe)


def _of_photos(
    params: DecoderTrainParams, photos: Sequence[Picture], rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Extractor]:
    """Return descriptors of photos in a random order of photos."""
    found: list[Floats] = []
    extractor = Extractor()
    for number in progress(list(rng.permutation(len(photos)))):
        try:
            features = extract(photos[number], params.local)
        except ImageError as problem:
            log.warning("left out of the training: %s", problem)
            continue
        extractor = features.extractor
        found.append(features.descriptors[rng.permutation(len(features))[: params.per_photo]])
    if not found:
        raise InputError(f"none of the {len(photos)} photos can be used")
    return np.concatenate(found), extractor


# ----------------------------------------------------------------
# What a decoder learns from: the losses of both forms, and the points a search is shown while it learns
# Knows tensors of one batch. Random numbers come from the generator given, so that a training can be repeated.


NEAR = 0.2
"""Distance over which a guess ceases to count as found, for the confidence."""
CONFIDENCE_WEIGHT = 0.1
NEARBY, ANYWHERE = 0.4, 0.25
"""Shares of the points shown to a search that lie around the truth and anywhere; the others are where it led itself."""
OWN_ROUNDS = 5


def loss_of(
    modules: Any,
    layout: Layout,
    constants: dict[str, Floats],
    inputs: Floats,
    clear: Floats,
    rng: np.random.Generator,
) -> Any:
    """Return the loss of a batch of canonical inputs (B, C) of clear descriptors (B, n)."""
    torch: Any = need("torch", extra="learn")
    truth = torch.from_numpy(np.array(clear))
    if layout.form == "direct":
        guesses, sure = _run(modules, layout, constants, torch.from_numpy(np.array(inputs)))
        distances = (guesses - truth).norm(dim=1)
        loss = (1 - (guesses * truth).sum(dim=1)).mean() if layout.unit else (distances**2).mean()
    else:
        points = _shown(modules, layout, constants, inputs, clear, rng)
        guesses, sure = _run(modules, layout, constants, points)
        distances = (points - truth).norm(dim=1)  # how sure it may be of the point itself
        loss = ((guesses - truth) ** 2).sum(dim=1).mean()
    closeness = torch.exp(-((distances.detach() / NEAR) ** 2))
    return loss + CONFIDENCE_WEIGHT * torch.nn.functional.binary_cross_entropy_with_logits(sure, closeness)


def _shown(
    modules: Any, layout: Layout, constants: dict[str, Floats], inputs: Floats, clear: Floats, rng: np.random.Generator
) -> Any:
    """Return points (B, n) of unit norm in the subspaces: around the truth, anywhere, and where the search leads."""
    torch: Any = need("torch", extra="learn")
    origin, basis = (torch.from_numpy(np.ascontiguousarray(part)) for part in as_subspaces(inputs.copy(), layout.n_in))
    count, m = len(clear), layout.m
    true = torch.einsum("ni,nmi->nm", torch.from_numpy(np.array(clear)) - origin, basis)
    true = true / true.norm(dim=1, keepdim=True).clamp_min(1e-9)
    noise = torch.from_numpy(rng.normal(size=(count, m)).astype(np.float32))
    size = torch.from_numpy(np.exp(rng.uniform(np.log(0.02), np.log(3), (count, 1))).astype(np.float32))
    directions = true + size * noise
    first, second = int(NEARBY * count), int((NEARBY + ANYWHERE) * count)
    directions[first:] = noise[first:]
    own = slice(second, count)
    with torch.no_grad():
        for _ in range(int(rng.integers(1, OWN_ROUNDS + 1))):
            points = _on_sphere(origin[own], basis[own], directions[own])
            guesses, _sure = _run(modules, layout, constants, points)
            directions[own] = torch.einsum("ni,nmi->nm", guesses - origin[own], basis[own])
    return _on_sphere(origin, basis, directions)


def _on_sphere(origin: Any, basis: Any, directions: Any) -> Any:
    """As ``decoder.on_sphere``, for tensors and one direction each: (B, n)."""
    radius = (1 - (origin**2).sum(dim=1)).clamp_min(0).sqrt()
    unit = directions / directions.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return origin + radius[:, None] * (unit[:, None] @ basis)[:, 0]


def _run(modules: Any, layout: Layout, constants: dict[str, Floats], x: Any) -> tuple[Any, Any]:
    """As ``decoder.run_layers``, for tensors: descriptors (B, n) and confidence before the logistic function (B,)."""
    torch: Any = need("torch", extra="learn")
    x = (x - torch.from_numpy(constants["mean"])) / torch.from_numpy(constants["deviation"])
    for number, layer in enumerate(modules):
        x = layer(x).relu() if number < layout.depth else layer(x)
    rows, sure = x[:, :-1], x[:, -1]
    if layout.positive:
        rows = torch.nn.functional.softplus(rows)
    return torch.nn.functional.normalize(rows, dim=1, eps=1e-9) if layout.unit else rows, sure


Released = Subspaces | Floats


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

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what cannot be used.
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
