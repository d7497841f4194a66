# SPDX-License-Identifier: Apache-2.0
"""Training of decoders, from concealed descriptors back to clear ones.

The general attack: descriptors of other people's photos are concealed under the same recipe, anew in every round, and
a perceptron learns to undo it. The concealing function is an argument. With a number of steps, a seed and a repeatable
concealer, a training gives the same weights on every run, interrupted or not. Clear descriptors are never written.
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

from sfumato.errors import ImageError, InputError, need
from sfumato.features.local import LocalParams, extract
from sfumato.files.tensors import save_checkpoint
from sfumato.inversion.canonical import as_subspaces, canonical_input, frame_of
from sfumato.inversion.descriptors import KIND, Decoder, Layout
from sfumato.inversion.load import Concealer
from sfumato.training.loop import (
    Pace,
    TrainingResult,
    TrainingState,
    finish,
    network_arrays,
    part_of,
    resume_state,
    save_state,
)
from sfumato.training.photos import Picture
from sfumato.types.arrays import Range, frozen_array, refuse_unknown, settle_numbers
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress

Floats = NDArray[np.float32]

Released = Subspaces | Floats

VALIDATIONS = 10
WITHIN = (0.02, 0.1, 0.3)
"""Distances to the clear descriptor; the share of guesses within each is a score."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTrainParams:
    """Settings of a decoder's training.

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


# --- the losses of both forms


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


# --- the training


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
    state, layout = begin(params, training, hidden, rng)
    state.settings |= {"recipe": recipe, "extractor": extractor.name, "rows": len(training)}
    if resume:
        resume_state(state, part_of(Path(output)))
    per_round = max(1, params.concealed_at_once // params.batch)
    for _ in state.pace.rounds(progress):
        clear = training[rng.integers(len(training), size=per_round * params.batch)]
        inputs = canonical_input(conceal_rows(clear, extractor, concealer)[0], state.constants["frame"])
        for start in range(0, len(clear), params.batch):
            if state.pace.share < 1:
                batch = slice(start, start + params.batch)
                loss = loss_of(state.networks["decoder"], layout, state.constants, inputs[batch], clear[batch], rng)
                state.descend("decoder", loss, state.pace.rate(params.rate), clip=1.0)
                state.pace.steps += 1
                state.add_loss("training", loss.item())
        if state.is_due(VALIDATIONS):
            validate(state, layout, hidden, held_out, Path(output))
        if state.is_unsaved(params.save_minutes):
            save_state(state, part_of(Path(output)))
    return finish(state, Path(output), KIND)


def begin(
    params: DecoderTrainParams, training: Floats, hidden: Released, rng: np.random.Generator
) -> tuple[TrainingState, Layout]:
    """Choose the form of a decoder, make a perceptron with random weights, and measure its inputs."""
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
    return TrainingState(
        "decoder",
        {"decoder": modules},
        {"decoder": optimizer},
        Pace(params.minutes, params.steps),
        {"params": params.facts(), "layout": asdict(layout)},
        rng=rng,
        constants={"frame": frame, "mean": mean, "deviation": deviation},
        best={"step": -1, "scores": {"mean": 1e9}},
    ), layout


def validate(state: TrainingState, layout: Layout, hidden: Released, clear: Floats, output: Path) -> None:
    """Score the decoder on held-out rows, with and without projection, and write it if it is the best so far."""
    state.mark_validation(VALIDATIONS)
    arrays = network_arrays(state.networks["decoder"]) | state.constants
    layouts = [layout]
    if layout.form == "direct" and layout.m and layout.n_in == layout.n_out:
        layouts.append(replace(layout, project=True))
    for choice in layouts:
        distances = np.linalg.norm(Decoder(choice, arrays, {})(hidden) - clear, axis=1)
        scores = {"mean": float(distances.mean()), "median": float(np.median(distances))}
        scores |= {f"within {limit}": float((distances <= limit).mean()) for limit in WITHIN}
        log.info("step %d: mean distance %.4f on held-out rows", state.pace.steps, scores["mean"])
        if scores["mean"] < state.best["scores"]["mean"]:
            state.best = {"step": state.pace.steps, "scores": scores}
            facts = state.settings | {"kind": KIND, "layout": asdict(choice), "best": state.best}
            save_checkpoint(output, arrays, facts)
