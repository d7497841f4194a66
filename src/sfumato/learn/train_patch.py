# SPDX-License-Identifier: Apache-2.0
"""Training of the patch network: pairs in, tensors out, one loop.

Knows clear descriptors of other people's photos. What the network sees of them is decided by ``represent``, given
from above: the descriptor itself, or the canonical form of what a recipe released of it, drawn anew in every batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need
from sfumato.learn import patchnet
from sfumato.learn.paint import PATCH_SIDE
from sfumato.learn.patchdata import Pairs
from sfumato.learn.stage import Budget, Stage, settings_of

Floats = NDArray[np.float32]
Represent = Callable[[Floats], Floats]
"""From descriptors (N, n) to what a network sees of them, (N, d)."""

STAGE = "patch network"
ROWS_FOR_SCALE = 16_384
ROWS_VALIDATED = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTraining:
    """How the patch network is trained: how long, its width, and the usual settings; the seed decides what is random.

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


def represent_clear(descriptors: Floats) -> Floats:
    """Show the descriptors as they are."""
    return descriptors


def train_patch_network(
    pairs: Pairs,
    held: NDArray[np.bool_],
    training: PatchTraining,
    *,
    represent: Represent = represent_clear,
    path: Path | None = None,
    report: Callable[[Stage], None] = lambda stage: None,
) -> tuple[dict[str, Floats], Stage]:
    """Train on the pairs that are not ``held`` (M,); return tensors of ``patchnet.shapes``, and how it went.

    What is held is for validation. ``path`` is a file for the state; if it is there, the training goes on from it.
    """
    torch: Any = need("torch", extra="learn")
    learned, validated = np.flatnonzero(~held), np.flatnonzero(held)
    if not len(learned) or not len(validated):
        raise InputError("a training needs features of two photos at least: one to learn from, one to check")
    some = learned[:: max(1, len(learned) // ROWS_FOR_SCALE)]
    fixed = scaling_of(pairs, some, represent)
    rows = validated[:: max(1, len(validated) // ROWS_VALIDATED)]
    check = _as_tensors(torch, make_batch(pairs, rows, fixed, represent), training.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = patchnet.build(len(fixed["patch.mean"]) - 1, training.hidden).to(training.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.rate, weight_decay=training.decay)
    stage = Stage(STAGE, network, optimizer, training.budget.pace(), settings_of(training), path, report)
    stage.resume()
    while True:
        if stage.is_due():
            with torch.inference_mode():
                stage.validated(float(patch_loss(torch, network, check, training)))
        if stage.pace.share >= 1:
            break
        draw = np.random.default_rng([training.seed, stage.pace.steps])
        chosen = np.sort(draw.choice(learned, training.batch))
        batch = _as_tensors(torch, make_batch(pairs, chosen, fixed, represent), training.device)
        stage.learn(patch_loss(torch, network, batch, training), training.rate)
    return fixed | patchnet.tensors_of(network), stage


def make_batch(
    pairs: Pairs, rows: NDArray[np.intp], fixed: dict[str, Floats], represent: Represent
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return scaled inputs (B, d + 1), patches (B, 576), their weights (B, 576), log contrasts (B,) about 0."""
    scaled = patchnet.scaled(fixed, represent(pairs.descriptors[rows]), pairs.keypoints[rows, 2])
    patches = pairs.patches[rows].astype(np.float32)
    weights = np.isfinite(patches) * window()
    return scaled, np.nan_to_num(patches), weights, pairs.contrasts[rows] - fixed["patch.contrast"]


def scaling_of(pairs: Pairs, rows: NDArray[np.intp], represent: Represent) -> dict[str, Floats]:
    """Return mean and deviation of what the network sees of some pairs, and their mean log contrast."""
    seen = np.concatenate([represent(pairs.descriptors[rows]), np.log(pairs.keypoints[rows, 2:3])], axis=1)
    return {
        "patch.mean": seen.mean(axis=0, dtype=np.float64).astype(np.float32),
        "patch.deviation": np.maximum(seen.std(axis=0, dtype=np.float64), 1e-4).astype(np.float32),
        "patch.contrast": pairs.contrasts[rows].mean(keepdims=True),
    }


def window() -> Floats:
    """Return how much each pixel of a patch counts, (576,): its centre most, as when it is painted."""
    line = (np.arange(PATCH_SIDE, dtype=np.float32) - (PATCH_SIDE - 1) / 2) * (12 / PATCH_SIDE)  # in sigmas
    gaussian: Floats = np.exp(-(line[:, None] ** 2 + line[None, :] ** 2) / (2 * 3.5**2)).astype(np.float32)
    return gaussian.reshape(-1)


def patch_loss(torch: Any, network: Any, batch: tuple[Any, ...], training: PatchTraining) -> Any:
    """Return weighted squared errors of brightness, of its differences (these are painted), and of log contrast."""
    inputs, patches, weights, contrasts = batch
    found = network(inputs)  # (B, 577)
    error = (found[:, :-1] - patches).view(-1, PATCH_SIDE, PATCH_SIDE)  # (B, 24, 24)
    weight = weights.view(-1, PATCH_SIDE, PATCH_SIDE)
    loss = (weight * error**2).sum() / weight.sum()
    for axis in (1, 2):
        first, second = error.narrow(axis, 0, PATCH_SIDE - 1), error.narrow(axis, 1, PATCH_SIDE - 1)
        least = torch.minimum(weight.narrow(axis, 0, PATCH_SIDE - 1), weight.narrow(axis, 1, PATCH_SIDE - 1))
        loss = loss + training.gradient_weight * (least * (second - first) ** 2).sum() / least.sum()
    return loss + training.contrast_weight * ((found[:, -1] - contrasts) ** 2).mean()


def _as_tensors(torch: Any, arrays: tuple[Floats, ...], device: str) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(device) for array in arrays)
