# SPDX-License-Identifier: Apache-2.0
"""Training of the patch network and of the refinement, the two networks of a patch inverter.

The patch network learns from descriptors of other people's photos; the argument ``represent`` decides what it sees of
them: the descriptor itself, or the canonical form of what a recipe releases of it, drawn anew in every batch. The
refinement learns from paintings and the photos they should be; its loss is the mean absolute error in colour, plus what
is missing to structural similarity in grey (Wang et al., 2004; the measure every figure is reported in).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need
from sfumato.inversion import patches as patchnet
from sfumato.inversion import refine
from sfumato.inversion.metrics import GREY
from sfumato.inversion.paint import PATCH_SIDE, USUAL_BRIGHTNESS
from sfumato.training.loop import FLAT, Budget, Pace, TrainingState, flatness, resume_state, save_state
from sfumato.training.photos import PatchSamples

Floats = NDArray[np.float32]
Represent = Callable[[Floats], Floats]
"""From descriptors (N, n) to what a network sees of them, (N, d)."""

Report = Callable[[TrainingState], None]
"""Called after each validation."""

PATCH_STAGE = "patch network"
REFINE_STAGE = "refinement"
VALIDATIONS = 20
FEWEST_STEPS = 200
"""Below this many steps nobody can say that a loss was flat: the rate fell faster than anything was learned."""
ROWS_FOR_SCALE = 16_384
ROWS_VALIDATED = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTraining:
    """Settings of the patch network's training; ``hidden`` is its width.

    The loss is the squared error of the patch, plus that of its differences times ``gradient_weight``, plus that of
    its log contrast times ``contrast_weight``.
    """

    budget: Budget
    hidden: int = 1024
    batch: int = 512
    rate: float = 2e-3
    decay: float = 0.01
    gradient_weight: float = 1.0
    contrast_weight: float = 0.2
    seed: int = 0
    device: str = "cpu"


def settings_of(training: Any) -> dict[str, Any]:
    """Return the settings (a dataclass) that a resumed training must share, as plain values: not length, nor device."""
    settings = {name: value for name, value in asdict(training).items() if name not in ("budget", "device")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def stage_facts(state: TrainingState) -> dict[str, Any]:
    """Return steps, seconds, losses, and the share by which the loss still fell; None if there were too few steps."""
    losses = state.losses["validation"]
    change = flatness(losses)
    is_known = bool(np.isfinite(change)) and state.pace.steps >= FEWEST_STEPS
    return {
        "steps": state.pace.steps,
        "seconds": round(state.pace.seconds, 1),
        "first_loss": round(losses[0], 6),
        "last_loss": round(losses[-1], 6),
        "flatness": round(change, 6) if is_known else None,
        "is_flat": is_known and change < FLAT,
    }


def represent_clear(descriptors: Floats) -> Floats:
    """Show the descriptors as they are."""
    return descriptors


def train_patch_network(
    pairs: PatchSamples,
    held_out: NDArray[np.bool_],
    training: PatchTraining,
    *,
    represent: Represent = represent_clear,
    path: Path | None = None,
    report: Report = lambda state: None,
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Train on the pairs that are not ``held_out`` (M,); return tensors of ``patchnet.shapes``, and ``stage_facts``.

    Held-out pairs are for validation. ``path`` is a file for the state; if it exists, the training is resumed from it.
    """
    torch: Any = need("torch", extra="learn")
    learned, checked = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if not len(learned) or not len(checked):
        raise InputError("a training needs features of two photos at least: one to learn from, one to check")
    fixed = scaling_of(pairs, learned[:: max(1, len(learned) // ROWS_FOR_SCALE)], represent)
    rows = checked[:: max(1, len(checked) // ROWS_VALIDATED)]
    check = _as_tensors(torch, make_batch(pairs, rows, fixed, represent), training.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = patchnet.build(len(fixed["patch.mean"]) - 1, training.hidden).to(training.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.rate, weight_decay=training.decay)

    def batch_loss(step: int) -> Any:
        draw = np.random.default_rng([training.seed, step])
        batch = make_batch(pairs, np.sort(draw.choice(learned, training.batch)), fixed, represent)
        return patch_loss(torch, network, _as_tensors(torch, batch, training.device), training)

    def check_loss() -> float:
        return float(patch_loss(torch, network, check, training))

    state = _begin(PATCH_STAGE, network, optimizer, training)
    facts = _run(state, training.rate, batch_loss, check_loss, path, report)
    return fixed | patchnet.tensors_of(network), facts


def _begin(name: str, network: Any, optimizer: Any, training: "PatchTraining | RefineTraining") -> TrainingState:
    pace = Pace(training.budget.minutes, training.budget.steps)
    return TrainingState(name, {"network": network}, {"network": optimizer}, pace, settings_of(training))


def _run(
    state: TrainingState,
    rate: float,
    batch_loss: Callable[[int], Any],
    check_loss: Callable[[], float],
    path: Path | None,
    report: Report,
) -> dict[str, Any]:
    """Train a network, resumed from ``path`` if that exists; validate and save in equal parts; return its facts."""
    torch: Any = need("torch", extra="learn")
    if path is not None and path.is_file():
        resume_state(state, path)
    while True:
        if state.is_due(VALIDATIONS):
            state.mark_validation(VALIDATIONS)
            with torch.inference_mode():
                state.add_loss("validation", check_loss())
            if path is not None:
                save_state(state, path)
            report(state)
        if state.pace.share >= 1:
            return stage_facts(state)
        state.descend("network", batch_loss(state.pace.steps), state.pace.rate(rate))
        state.pace.steps += 1


def make_batch(
    pairs: PatchSamples, rows: NDArray[np.intp], fixed: dict[str, Floats], represent: Represent
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return scaled inputs (B, d + 1), patches (B, 576), their weights (B, 576), log contrasts (B,) about 0."""
    scaled = patchnet.scaled(fixed, represent(pairs.descriptors[rows]), pairs.keypoints[rows, 2])
    patches = pairs.patches[rows].astype(np.float32)
    weights = np.isfinite(patches) * window()
    return scaled, np.nan_to_num(patches), weights, pairs.contrasts[rows] - fixed["patch.contrast"]


def scaling_of(pairs: PatchSamples, rows: NDArray[np.intp], represent: Represent) -> dict[str, Floats]:
    """Return mean and deviation of the network's inputs for pairs, and their mean log contrast."""
    inputs = np.concatenate([represent(pairs.descriptors[rows]), np.log(pairs.keypoints[rows, 2:3])], axis=1)
    return {
        "patch.mean": inputs.mean(axis=0, dtype=np.float64).astype(np.float32),
        "patch.deviation": np.maximum(inputs.std(axis=0, dtype=np.float64), 1e-4).astype(np.float32),
        "patch.contrast": pairs.contrasts[rows].mean(keepdims=True),
    }


def window() -> Floats:
    """Return the weight of each pixel of a patch, (576,): highest at the centre, as when it is painted."""
    line = (np.arange(PATCH_SIDE, dtype=np.float32) - (PATCH_SIDE - 1) / 2) * (12 / PATCH_SIDE)  # in sigmas
    gaussian: Floats = np.exp(-(line[:, None] ** 2 + line[None, :] ** 2) / (2 * 3.5**2)).astype(np.float32)
    return gaussian.reshape(-1)


def patch_loss(torch: Any, network: Any, batch: tuple[Any, ...], training: PatchTraining) -> Any:
    """Return weighted squared errors of brightness, of its differences (these are painted), and of log contrast."""
    inputs, patches, weights, contrasts = batch
    outputs = network(inputs)  # (B, 577)
    error = (outputs[:, :-1] - patches).view(-1, PATCH_SIDE, PATCH_SIDE)  # (B, 24, 24)
    weight = weights.view(-1, PATCH_SIDE, PATCH_SIDE)
    loss = (weight * error**2).sum() / weight.sum()
    for axis in (1, 2):
        first, second = error.narrow(axis, 0, PATCH_SIDE - 1), error.narrow(axis, 1, PATCH_SIDE - 1)
        least = torch.minimum(weight.narrow(axis, 0, PATCH_SIDE - 1), weight.narrow(axis, 1, PATCH_SIDE - 1))
        loss = loss + training.gradient_weight * (least * (second - first) ** 2).sum() / least.sum()
    return loss + training.contrast_weight * ((outputs[:, -1] - contrasts) ** 2).mean()


def _as_tensors(torch: Any, arrays: tuple[Floats, ...], device: str) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(device) for array in arrays)


# --- the refinement


CROPS_VALIDATED = 32
"""Crops at the centre of photos that the validation looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefineTraining:
    """Settings of the refinement's training; ``channels`` at half, a quarter ... of the side."""

    budget: Budget
    channels: tuple[int, ...] = (24, 48, 72, 96)
    batch: int = 6
    crop: int = 160
    rate: float = 1e-3
    similarity_weight: float = 1.0
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RefineSample:
    """A photo ``colours`` (H, W, 3) uint8 and its painting's ``channels`` (6, H, W) float16."""

    channels: NDArray[np.float16]
    colours: NDArray[np.uint8]

    def __repr__(self) -> str:
        return f"Painting({self.colours.shape[1]} x {self.colours.shape[0]})"


def train_refinement(
    paintings: Sequence[RefineSample],
    held_out: Sequence[RefineSample],
    training: RefineTraining,
    *,
    start: Mapping[str, Floats] | None = None,
    path: Path | None = None,
    report: Report = lambda state: None,
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """Train on ``paintings``, validate on ``held_out``; return tensors of ``refine.shapes``, and ``stage_facts``.

    ``start`` are tensors to begin with. ``path`` is a file for the state; if it exists, the training resumes from it.
    """
    torch: Any = need("torch", extra="learn")
    side, depth = training.crop, len(training.channels)
    large = [painting for painting in paintings if min(painting.colours.shape[:2]) >= side]
    if not large or not held_out or side % 2**depth:
        raise InputError(f"a refinement needs photos of {side} x {side} pixels or more, to learn from and to check")
    modules = torch.nn.ParameterDict(
        {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in initial(training, start).items()}
    ).to(training.device)
    network = InTorch(torch, modules)
    optimizer = torch.optim.AdamW(modules.parameters(), lr=training.rate, weight_decay=0.0)
    central = [crop_of(painting, side, None) for painting in held_out[:CROPS_VALIDATED]]
    groups = [central[first : first + training.batch] for first in range(0, len(central), training.batch)]

    def loss_of(crops: Sequence[tuple[Floats, Floats]]) -> Any:
        folded, colours = (torch.from_numpy(np.stack(part)).to(training.device) for part in zip(*crops, strict=True))
        return picture_loss(torch, network.picture(folded, depth), colours, training.similarity_weight)

    def batch_loss(step: int) -> Any:
        draw = np.random.default_rng([training.seed, 1, step])
        numbers = draw.integers(len(large), size=training.batch)
        return loss_of([crop_of(large[number], side, draw) for number in numbers])

    def check_loss() -> float:
        return sum(float(loss_of(group)) * len(group) for group in groups) / len(central)

    state = _begin(REFINE_STAGE, modules, optimizer, training)
    facts = _run(state, training.rate, batch_loss, check_loss, path, report)
    return {name: value.detach().cpu().numpy().copy() for name, value in modules.items()}, facts


def crop_of(painting: RefineSample, side: int, draw: np.random.Generator | None) -> tuple[Floats, Floats]:
    """Return folded channels (15, side / 2, side / 2) and colours (3, side, side) of a square, at random or central.

    At random, half of the squares are mirrored: then the picture to the right becomes the one to the left.
    """
    height, width = painting.colours.shape[:2]
    room = height - side, width - side
    top, left = (r // 2 for r in room) if draw is None else (int(draw.integers(r + 1)) for r in room)
    top, left = max(0, top), max(0, left)
    channels = painting.channels[:, top : top + side, left : left + side].astype(np.float32)
    square = painting.colours[top : top + side, left : left + side].transpose(2, 0, 1)
    colours: Floats = square.astype(np.float32) * np.float32(1 / 255)
    missing = (0, 0), (0, side - channels.shape[1]), (0, side - channels.shape[2])
    channels, colours = np.pad(channels, missing, mode="edge"), np.pad(colours, missing, mode="edge")
    if draw is not None and draw.integers(2):
        channels, colours = channels[:, :, ::-1].copy(), colours[:, :, ::-1].copy()
        channels[1, :, :-1], channels[1, :, -1] = -channels[1, :, 1:], 0
    return refine.fold(channels), colours


class InTorch:
    """The operations of ``refine.run`` on torch tensors."""

    def __init__(self, torch: Any, tensors: Any) -> None:
        self.torch, self.functional, self.tensors = torch, torch.nn.functional, tensors

    def picture(self, folded: Any, depth: int) -> Any:
        """Return pictures (B, 3, H, W) of folded paintings (B, 15, H / 2, W / 2)."""
        painted = self.functional.pixel_shuffle(folded[:, :4], 2) / 4 + USUAL_BRIGHTNESS  # (B, 1, H, W)
        return painted + self.functional.pixel_shuffle(refine.run(self, folded, depth), 2)

    def convolve(self, values: Any, name: str) -> Any:
        """3 x 3, zeros around the border."""
        return self.functional.conv2d(values, self.tensors[f"{name}_weight"], self.tensors[f"{name}_bias"], padding=1)

    def rectify(self, values: Any) -> Any:
        """Nothing below 0."""
        return self.functional.relu(values, inplace=True)

    def halve(self, values: Any) -> Any:
        """Means of 2 x 2."""
        return self.functional.avg_pool2d(values, 2)

    def double(self, values: Any) -> Any:
        """Each value 2 x 2 times."""
        return self.functional.interpolate(values, scale_factor=2, mode="nearest")

    def join(self, first: Any, second: Any) -> Any:
        """Channels of both."""
        return self.torch.cat([first, second], dim=1)


def similarity(torch: Any, first: Any, second: Any) -> Any:
    """Return the mean structural similarity of grey pictures (B, 1, H, W), as scikit-image has it, borders left out."""
    line = torch.exp(-0.5 * (torch.arange(-5, 6, device=first.device) / 1.5) ** 2)
    line = line / line.sum()

    def blur(values: Any) -> Any:
        rows = torch.nn.functional.conv2d(values, line.view(1, 1, -1, 1))
        return torch.nn.functional.conv2d(rows, line.view(1, 1, 1, -1))

    mean1, mean2 = blur(first), blur(second)
    variance1, variance2 = blur(first**2) - mean1**2, blur(second**2) - mean2**2
    covariance = blur(first * second) - mean1 * mean2
    brightness = (2 * mean1 * mean2 + 1e-4) / (mean1**2 + mean2**2 + 1e-4)
    return (brightness * (2 * covariance + 9e-4) / (variance1 + variance2 + 9e-4)).mean()


def picture_loss(torch: Any, pictures: Any, colours: Any, similarity_weight: float) -> Any:
    """Return the mean absolute error in colour, and what grey lacks to a structural similarity of 1."""
    parts = torch.tensor(GREY, device=pictures.device).view(1, 3, 1, 1)
    grey1, grey2 = (pictures * parts).sum(1, keepdim=True), (colours * parts).sum(1, keepdim=True)
    return (pictures - colours).abs().mean() + similarity_weight * (1 - similarity(torch, grey1, grey2))


def initial(training: RefineTraining, start: Mapping[str, Floats] | None) -> dict[str, Floats]:
    """Return He's initialisation; the last layer begins near 0, so that the painting itself is the first guess."""
    draw = np.random.default_rng([training.seed, 2])
    tensors = {}
    for name, shape in refine.shapes(training.channels).items():
        spread = 0.0 if name.endswith("bias") else np.sqrt(2 / np.prod(shape[1:]))
        values = draw.normal(0, 1, shape) * spread * (0.1 if "_last_" in name else 1.0)
        tensors[name] = values.astype(np.float32)
    return tensors | {name: np.array(value, np.float32) for name, value in (start or {}).items() if name in tensors}
