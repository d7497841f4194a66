# SPDX-License-Identifier: Apache-2.0
"""Training of a patch inverter, from photos to a file: pairs, patch network, paintings, refinement.

With a concealer this is the attack called direct inversion: photos of others are concealed as the attacked ones were,
anew at every step. The concealing function is an argument. Photos are split once: neither network learns from a
twentieth of them, and both are checked on it.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.images.read import read_image
from sfumato.inversion.canonical import canonical_input, frame_for
from sfumato.inversion.load import Concealer, score_inverter
from sfumato.inversion.patches import Inverter, InverterHeader, inverter_of, load_weights, paint_rows, save_weights
from sfumato.training.loop import Budget, Pace, flatness_message, read_state
from sfumato.training.patch import (
    PATCH_STAGE,
    REFINE_STAGE,
    PatchTraining,
    RefineSample,
    RefineTraining,
    Report,
    Represent,
    represent_clear,
    settings_of,
    train_patch_network,
    train_refinement,
)
from sfumato.training.photos import PatchSamples, gather_pairs
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor
from sfumato.types.progress import Progress, identity

log = logging.getLogger(__name__)

Floats = NDArray[np.float32]

FRAME_ROWS = 20_000
HELD_OUT = 0.05
LEAST_LEFT = 1 / 3
FIGURE_COUNTS = (1000, 2000)
"""Numbers of features that the figures of an inverter are measured with."""
COUNTS = (500, 1000, 1000, 2000)
"""Most features of the paintings that the refinement learns from, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InverterTrainParams:
    """Settings of a patch inverter's training.

    ``minutes`` are shared by all that is done, and each network has its part of a third of them however long photos
    take to read; with ``patch_steps`` and ``refine_steps`` instead, a training with the same seed and photos (and a
    concealer that repeats itself) gives the same file. ``max_photos`` bounds the photos, ``refine_photos`` those that
    are painted. ``start`` is the file of an inverter whose refinement is trained on.
    """

    minutes: float = 15.0
    patch_steps: int | None = None
    refine_steps: int | None = None
    hidden: int = 1024
    channels: tuple[int, ...] = (24, 48, 72, 96)
    seed: int = 0
    max_photos: int = 1500
    refine_photos: int = 600
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=2000))
    start: str | os.PathLike[str] | None = None
    device: str = "cpu"

    def __new__(cls, **settings: object) -> "InverterTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "minutes": Range(0.01, 1e5), "hidden": Range(8, 8192, whole=True), "seed": Range(0, 2**63, whole=True),
            "max_photos": Range(2, 10_000_000, whole=True), "refine_photos": Range(2, 10_000_000, whole=True),
        }  # fmt: skip
        steps = [name for name in ("patch_steps", "refine_steps") if getattr(self, name) is not None]
        problems = settle_numbers(self, ranges | dict.fromkeys(steps, Range(1, 1e9, whole=True)))
        if len(steps) == 1:
            problems.append("patch_steps and refine_steps belong together: give both, or minutes")
        if problems:
            raise InputError("; ".join(problems))


def train_patch_inverter(
    params: InverterTrainParams,
    photos: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    concealer: Concealer | None = None,
    progress: Progress = identity,
    report: Report = lambda state: None,
    resume: bool = False,
) -> Inverter:
    """Train both networks on photos, write them to a file, and return the inverter.

    ``concealer`` turns Features into ConcealedFeatures as the attacked ones were; None for clear descriptors. While it
    works, files ``<output>.patch.part`` and ``<output>.refine.part`` hold all there is to go on from with ``resume``;
    where there is none, it begins anew.

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what cannot be used.
    """
    output, clock = Path(output), Pace(params.minutes)
    start = None if params.start is None else load_weights(params.start)
    channels = params.channels if start is None else start[0].refine
    begun, seed, device = Budget(steps=1), params.seed, params.device  # how long each takes is decided when it begins
    patch = PatchTraining(budget=begun, hidden=params.hidden, seed=seed, device=device)
    refine = RefineTraining(budget=begun, channels=tuple(channels), seed=seed, device=device)
    parts = parts_of(output)
    for part, name, training in zip(parts, (PATCH_STAGE, REFINE_STAGE), (patch, refine), strict=True):
        if not resume:
            part.unlink(missing_ok=True)
        elif part.is_file():
            read_state(part, name, settings_of(training))  # what does not fit is refused before photos are read
    material = gather_material(params, photos, concealer, progress)
    tensors, patch_facts = train_patch_network(
        material.pairs,
        material.pairs.photos < material.held_out,
        replace(patch, budget=_budget(params.patch_steps, clock, 0.45)),
        represent=material.represent,
        path=parts[0],
        report=report,
    )
    header = material.header(params, () if start is None else start[0].refine)
    tensors |= {} if material.frame is None else {"frame": material.frame}
    paintings = list(
        progress(paint_photos(material, params.refine_photos, inverter_of(replace(header, refine=()), tensors)))
    )
    refined, refine_facts = train_refinement(
        paintings[material.held_out :],
        paintings[: material.held_out],
        replace(refine, budget=_budget(params.refine_steps, clock, 1)),
        start=None if start is None else start[1],
        path=parts[1],
        report=report,
    )
    made = _made(params, material, {PATCH_STAGE: patch_facts, REFINE_STAGE: refine_facts})
    save_weights(output, replace(header, made=made), tensors | refined)
    for part in parts:
        part.unlink(missing_ok=True)
    return inverter_of(*load_weights(output))


def add_figures(
    output: str | os.PathLike[str],
    photos: Sequence[str | os.PathLike[str]],
    local: LocalParams,
    *,
    concealer: Concealer | None = None,
    progress: Progress = identity,
) -> dict[str, Any]:
    """Score an inverter on photos it did not learn from, add the figures to its file, and return its description."""
    header, tensors = load_weights(output)
    inverter, made = inverter_of(header, tensors), dict(header.made)
    for count in FIGURE_COUNTS:
        params = replace(local, max_features=count)
        scores = score_inverter(inverter, photos, params, concealer=concealer, progress=progress)
        made[f"figures with {count} features"] = scores
    save_weights(output, replace(header, made=made), tensors)
    return made


def parts_of(output: Path) -> list[Path]:
    """Return the files that hold a training under way, one for each network."""
    return [output.with_name(f"{output.name}.{stage}.part") for stage in ("patch", "refine")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Material:
    """Photos, the first ``held_out`` of them only to check, with their pairs; how descriptors are represented."""

    photos: tuple[str | os.PathLike[str], ...]
    held_out: int
    pairs: PatchSamples
    recipe: str
    frame: Floats | None
    represent: Represent

    def header(self, params: InverterTrainParams, channels: tuple[int, ...]) -> InverterHeader:
        """Return the header of an inverter of this material, with channels other than the params' if given."""
        return InverterHeader(
            extractor=self.pairs.extractor.name,
            recipe=self.recipe,
            input_dim=self.represent(self.pairs.descriptors[:1]).shape[1],
            hidden=params.hidden,
            refine=tuple(channels or params.channels),
            frame=0 if self.frame is None else len(self.frame),
        )


def gather_material(
    params: InverterTrainParams,
    photos: Sequence[str | os.PathLike[str]],
    concealer: Concealer | None,
    progress: Progress = identity,
) -> Material:
    """Choose photos, extract their features, and split them."""
    order = np.random.default_rng(params.seed).permutation(len(photos))[: params.max_photos]
    subset = tuple(photos[i] for i in order)
    if len(subset) < 2:
        raise InputError(f"a training needs two photos at least, better a thousand: got {len(subset)}")
    pairs = gather_pairs(subset, params.local, progress=progress)
    held_out = max(1, round(HELD_OUT * len(subset)))
    if concealer is None:
        return Material(
            photos=subset, held_out=held_out, pairs=pairs, recipe="raw", frame=None, represent=represent_clear
        )
    sample = pairs.descriptors[:: max(1, len(pairs) // FRAME_ROWS)]
    hidden = concealer(_features(sample, pairs.extractor))
    frame = frame_for(sample, hidden.subspaces)

    def represent(descriptors: Floats) -> Floats:
        return canonical_input(concealer(_features(descriptors, pairs.extractor)).subspaces, frame)

    return Material(
        photos=subset, held_out=held_out, pairs=pairs, recipe=str(hidden.recipe), frame=frame, represent=represent
    )


def paint_photos(material: Material, most: int, inverter: Inverter) -> Iterator[RefineSample]:
    """Paint photos as an attacker would, from features represented anew."""
    for number, path in enumerate(material.photos[:most]):
        pixels = read_image(Path(path)).pixels
        colours = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
        rows = material.pairs.of_photo(number, COUNTS[number % len(COUNTS)])
        inputs = material.represent(material.pairs.descriptors[rows])
        size = colours.shape[1], colours.shape[0]
        painted = paint_rows(inverter, material.pairs.keypoints[rows], inputs, size)
        yield RefineSample(painted.channels.astype(np.float16), colours)


def _features(descriptors: Floats, extractor: Extractor) -> Features:
    return Features(np.ones((len(descriptors), 4), np.float32), descriptors, extractor)


def _budget(steps: int | None, clock: Pace, share: float) -> Budget:
    """Return a number of steps, or a share of the minutes that are left; reading photos must not use all of them."""
    left = max(clock.minutes - clock.seconds / 60, clock.minutes * LEAST_LEFT)
    return Budget(steps=steps, minutes=max(0.02, share * left))


def _made(params: InverterTrainParams, material: Material, stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return how the training went; warn of losses that were not flat."""
    for name, facts in stages.items():
        if not facts["is_flat"]:
            log.warning("%s: %s", name, flatness_message(facts["flatness"]))
    return {
        "photos": len(material.photos),
        "checked on": material.held_out,
        "pairs": len(material.pairs),
        "digest": material.pairs.digest,
        "seed": params.seed,
        "extractor": material.pairs.extractor.to_json(),
        "refinement began as": "scratch" if params.start is None else "that of another inverter",
        **stages,
    }
