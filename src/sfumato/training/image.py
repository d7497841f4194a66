# SPDX-License-Identifier: Apache-2.0
"""Training of a UNet or UResNet that turns released features back into pictures.

The attack that the papers call direct inversion: photos of others are concealed as the attacked ones were, anew at
every step, and the network learns their pictures (NinjaDesc, section 3.2). The concealing function is an argument. With
a number of steps, a seed and a repeatable concealer, a training gives the same weights on every run, interrupted or
not.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError, InputError, need
from sfumato.features.local import LocalParams
from sfumato.files.tensors import load_checkpoint, save_checkpoint
from sfumato.inversion import networks
from sfumato.inversion.canonical import frame_for, frame_of
from sfumato.inversion.images import ARCHITECTURES, COUNTER, KIND, TARGETS, build_network, run_network
from sfumato.inversion.load import Concealer
from sfumato.inversion.metrics import GREY, outlines, picture_scores
from sfumato.training.loop import (
    Pace,
    TrainingResult,
    TrainingState,
    finish,
    network_arrays,
    part_of,
    read_state,
    resume_state,
    save_state,
)
from sfumato.training.photos import Photo, Picture, Window, cut, random_windows, read_photos
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers
from sfumato.types.progress import Progress

log = logging.getLogger(__name__)

VALIDATIONS = 20
HELD_OUT = 24
FRAME_ROWS = 20_000
NAME = "image inverter"
WINDOW_REACH, WINDOW_DEVIATION = 5, 1.5
"""Of the Gaussian window of structural similarity, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTrainParams:
    """Settings of a UNet or UResNet and its training.

    ``width`` scales its channels. Windows of ``side`` pixels are cut from at most ``max_photos`` photos, ``batch`` at a
    time. ``steps`` instead of ``minutes`` makes the training repeatable. ``perceptual`` is a file of VGG16; the
    perceptual loss is taken on a window of ``perceptual_side`` pixels and counts ``perceptual_weight`` times (Eq. 5:
    once); without a file the loss is the mean absolute error alone, and ``similarity_weight`` times what lacks to a
    structural similarity of 1, by which inverters are judged. ``encoder`` is a file of ResNet50, for a UResNet of
    width 1. ``start`` is the file of an inverter of the same architecture, width and length of rows, which is trained
    further. ``device`` is torch's, cpu or cuda. Pictures are painted at ``scale`` times the size of photos.
    ``target``: picture, or outlines, which is all that positions without descriptors can tell. With ``bfloat16`` the
    network multiplies in half the bits: about twice as fast on processors that can.
    """

    architecture: str = "unet"
    width: float = 0.5
    side: int = 128
    batch: int = 4
    rate: float = 1e-3
    minutes: float = 30.0
    steps: int | None = None
    seed: int = 0
    max_photos: int = 600
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    perceptual: str | os.PathLike[str] | None = None
    perceptual_side: int = 64
    perceptual_weight: float = 1.0
    similarity_weight: float = 0.0
    encoder: str | os.PathLike[str] | None = None
    start: str | os.PathLike[str] | None = None
    device: str = "cpu"
    scale: float = 1.0
    target: str = TARGETS[0]
    bfloat16: bool = False
    save_minutes: float = 2.0

    def __new__(cls, **settings: object) -> "ImageTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "width": Range(0.05, 2), "side": Range(32, 1024, whole=True), "batch": Range(1, 1024, whole=True),
            "rate": Range(1e-7, 1), "minutes": Range(1e-3, 1e5), "seed": Range(0, 2**63, whole=True),
            "max_photos": Range(2, 10_000_000, whole=True), "perceptual_side": Range(16, 1024, whole=True),
            "save_minutes": Range(0, 1e5), "perceptual_weight": Range(0, 1e3), "similarity_weight": Range(0, 1e3),
            "scale": Range(0.1, 1),
        }  # fmt: skip
        problems = settle_numbers(
            self, ranges if self.steps is None else {**ranges, "steps": Range(1, 1e9, whole=True)}
        )
        if self.architecture not in ARCHITECTURES:
            problems.append(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r:.80}")
        elif not problems and self.side % ARCHITECTURES[self.architecture].multiple:
            problems.append(f"side must be a multiple of {ARCHITECTURES[self.architecture].multiple}, got {self.side}")
        if self.target not in TARGETS:
            problems.append(f"target must be one of {', '.join(TARGETS)}, got {self.target!r:.80}")
        if self.encoder is not None and self.architecture != "uresnet":
            problems.append(f"encoder is for a uresnet, not for a {self.architecture!s:.80}")
        if problems:
            raise InputError("; ".join(problems))

    def facts(self) -> dict[str, Any]:
        """Return what a training with the same result has in common, as plain values; no places of files."""
        files = {name: getattr(self, name) is not None for name in ("perceptual", "encoder", "start")}
        local = {**asdict(self.local), "weights": self.local.weights is not None}
        left_out = ("device", "save_minutes", "minutes", "steps")
        return {k: v for k, v in asdict(self).items() if k not in left_out} | files | {"local": local}


CELLS: dict[str, Any] = {"side": 320, "batch": 3, "rate": 2e-3, "similarity_weight": 1.0}
BLIND_CELLS: dict[str, Any] = {"side": 192, "scale": 0.6, "batch": 8, "rate": 2e-3, "similarity_weight": 0.1}
"""Settings for cells, and for those that learn from positions alone. Windows are nearly as large as photos, because
positions tell something only together. They tell no detail, so pictures are smaller, and seven times as many are seen
in the same time; a large weight of similarity ends in a flat picture."""


# --- the perceptual loss: distance of two pictures in the features of VGG16 (NinjaDesc, Eq. 4)
#
# The paper's layers 2, 9 and 16 are slice ends in torchvision's ``features``: the taps are the outputs of features[1],
# [8] and [15], ReLU 1_1, 2_2 and 3_3. Means take the place of the printed sums, over elements and then over taps, so
# that the loss does not depend on the size of the picture. The weights come from a file with torchvision's names.


CONVOLUTIONS = {0: (3, 64), 2: (64, 64), 5: (64, 128), 7: (128, 128), 10: (128, 256), 12: (256, 256), 14: (256, 256)}
"""Channels in and out of the convolutions up to the last tap, by their place in torchvision's ``features``."""
POOLS = (4, 9)
TAPS = (1, 8, 15)
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
"""Of red, green and blue over ImageNet: what VGG16 was trained with."""


def load_perceptual(path: str | os.PathLike[str]) -> Any:
    """Return VGG16 up to the last tap, frozen, with the weights of a file, .safetensors or torch; float16 will do.

    A file of the whole network is fine, what is deeper is not used.

    Raises FileError if the file cannot be read or holds another network.
    """
    torch: Any = need("torch", extra="learn")
    place = Path(path)
    try:
        if place.suffix == ".safetensors":
            weights = need("safetensors.torch", extra="learn").load_file(place)
        else:
            weights = torch.load(place, map_location="cpu", weights_only=True)
        network = _build(torch.nn)
        own = {f"features.{name}": value for name, value in network.state_dict().items()}
        problems = [name for name in own if name not in weights or weights[name].shape != own[name].shape]
        state = {name.removeprefix("features."): weights[name].float() for name in own if not problems}
    except (ImportError, MemoryError):
        raise
    except Exception as cause:  # torch and safetensors let through whatever their parsers meet
        raise FileError(
            f"{place}: cannot read the weights ({type(cause).__name__}): give VGG16 with torchvision's names"
        ) from cause
    if problems:
        raise FileError(f"{place}: not VGG16 with torchvision's names: {problems[0]} is missing or has another shape")
    network.load_state_dict(state)
    return network.eval().requires_grad_(False)


def perceptual_loss(network: Any, pictures: Any, truth: Any) -> Any:
    """Return the mean over taps of the mean squared difference, of pictures (B, 3, H, W) with values from 0 to 1."""
    torch: Any = need("torch", extra="learn")
    with torch.no_grad():
        targets = _taps(network, _standard(truth))
    taps = _taps(network, _standard(pictures))
    differences = [torch.mean((tap - target) ** 2) for tap, target in zip(taps, targets, strict=True)]
    return sum(differences) / len(differences)


def _standard(pictures: Any) -> Any:
    mean, deviation = (pictures.new_tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
    return (pictures - mean) / deviation


def _taps(network: Any, x: Any) -> list[Any]:
    taps = []
    for number, layer in enumerate(network):
        x = layer(x)
        if number in TAPS:
            taps.append(x)
    return taps


def _build(nn: Any) -> Any:
    layers = []
    for place in range(TAPS[-1] + 1):
        if place in CONVOLUTIONS:
            layers.append(nn.Conv2d(*CONVOLUTIONS[place], 3, padding=1))
        else:
            layers.append(nn.MaxPool2d(2) if place in POOLS else nn.ReLU())
    return nn.Sequential(*layers)


# --- the training


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

    Raises MissingDependency without the extra ``learn``, InputError or FileError for what cannot be used.
    """
    need("torch", extra="learn")
    output, rng = Path(output), np.random.default_rng(params.seed)
    resume = resume and part_of(output).is_file()
    if resume:  # what does not fit is refused before photos are read
        read_state(part_of(output), NAME, {"params": params.facts()})
    loss_network = None if params.perceptual is None else load_perceptual(params.perceptual).to(params.device)
    if loss_network is None:
        log.warning("no weights of VGG16: the loss is the mean absolute error, without the perceptual loss")
    subset = [photos[i] for i in rng.permutation(len(photos))[: params.max_photos]]
    material = read_photos(subset, params.local, params.side, progress, scale=params.scale)
    if params.target == "outlines":
        material = [replace(photo, pixels=outline_pixels(photo)) for photo in material]
    held_out = max(1, min(HELD_OUT, len(material) // 10))
    training, validation = material[held_out:], material[:held_out]
    state = begin(params, training, concealer, rng)
    frame = state.constants["frame"]
    every = ARCHITECTURES[params.architecture].has_cells
    windows = [
        cut(photo, centre(photo, params.side), params.side, concealer, frame, every=every) for photo in validation
    ]
    if resume:
        resume_state(state, part_of(output))
    for _ in state.pace.rounds(progress):
        batch = random_windows(
            training,
            params.side,
            params.batch,
            rng,
            concealer,
            frame,
            every=every,
            mirror=state.settings["input_dim"] == 1,
        )
        loss = loss_of(state, params, batch, loss_network, rng)
        state.descend("inverter", loss, state.pace.rate(params.rate), clip=1.0)
        state.pace.steps += 1
        state.add_loss("training", loss.item())
        if state.is_due(VALIDATIONS):
            validate(state, params, windows, loss_network, output)
        if state.is_unsaved(params.save_minutes):
            save_state(state, part_of(output))
    # losses of batches differ too much to be judged
    return finish(state, output, KIND, judged="held_out", perceptual=params.perceptual is not None)


def outline_pixels(photo: Photo) -> NDArray[np.uint8]:
    """Return the outlines of a photo as its pixels, (H, W, 3)."""
    drawn = np.rint(255 * outlines(photo.pixels, photo.scale)).astype(np.uint8)
    return np.repeat(drawn[:, :, None], 3, axis=2)


def begin(params: ImageTrainParams, training: list[Photo], concealer: Concealer | None, rng: Any) -> TrainingState:
    """Make a network with random weights, and measure its inputs."""
    torch: Any = need("torch", extra="learn")
    rows = np.concatenate([photo.features.descriptors for photo in training])
    sample = rows[rng.permutation(len(rows))[:FRAME_ROWS]]
    frame = frame_of(sample)
    if concealer is not None:
        frame = frame_for(sample, concealer(training[0].features).subspaces)
    every = ARCHITECTURES[params.architecture].has_cells
    windows = random_windows(training, params.side, 32, rng, concealer, frame, every=every)
    inputs = np.concatenate([window.inputs for window in windows])
    constants = {"frame": frame, "mean": inputs.mean(axis=0), "deviation": inputs.std(axis=0) + np.float32(1e-6)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(params.seed)
        modules = build_network(params.architecture, inputs.shape[1], params.width)
    if params.encoder is not None:
        networks.load_encoder(modules["body"], params.encoder)
    if params.start is not None:
        go_on_from(modules, params.start)
    modules.to(params.device)
    if every:
        modules.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(modules.parameters(), lr=params.rate, weight_decay=1e-4)
    settings = {
        "params": params.facts(),
        "recipe": "raw" if concealer is None else str(concealer(training[0].features).recipe),
        "extractor": training[0].features.extractor.name,
        "input_dim": inputs.shape[1],
        "loss": "mean absolute error and perceptual loss" if params.perceptual else "mean absolute error",
        "start": "an inverter" if params.start else "a ResNet50 file" if params.encoder else "scratch",
        "photos": len(training),
    }
    return TrainingState(
        NAME,
        {"inverter": modules},
        {"inverter": optimizer},
        Pace(params.minutes, params.steps),
        settings,
        rng=rng,
        constants=constants,
        best={"step": -1, "scores": {"ssim": -2.0}},
    )


def go_on_from(modules: Any, path: str | os.PathLike[str]) -> None:
    """Give a network the weights of an inverter in a file; FileError if that is another network."""
    torch: Any = need("torch", extra="learn")
    arrays, own = load_checkpoint(path, KIND)[0], modules.state_dict()
    others = [name for name in own if name not in arrays or arrays[name].shape != tuple(own[name].shape)]
    others = [name for name in others if not name.endswith(COUNTER)]
    if others:
        raise FileError(f"{path}: the inverter to go on from is another network: {others[0]} is missing or differs")
    weights = {name: torch.from_numpy(arrays[name].astype(np.float32)) for name in own if not name.endswith(COUNTER)}
    modules.load_state_dict(weights, strict=False)


def loss_of(
    state: TrainingState, params: ImageTrainParams, batch: list[Window], loss_network: Any, rng: np.random.Generator
) -> Any:
    """Return the loss of a batch: the mean absolute error, and the perceptual loss if there is one (Eq. 3 to 5)."""
    torch: Any = need("torch", extra="learn")
    state.networks["inverter"].train()
    pictures = run(state, params, batch)
    truth = torch.from_numpy(np.stack([window.truth for window in batch])).to(params.device)
    truth = truth.permute(0, 3, 1, 2).float() / 255  # (B, 3, side, side)
    loss = (pictures - truth).abs().mean()
    if loss_network is not None:
        y, x = rng.integers(max(1, params.side - params.perceptual_side + 1), size=2)
        part = (slice(None), slice(None), slice(y, y + params.perceptual_side), slice(x, x + params.perceptual_side))
        loss = loss + params.perceptual_weight * perceptual_loss(loss_network, pictures[part], truth[part])
    if params.similarity_weight:
        loss = loss + params.similarity_weight * (1 - grey_similarity(pictures, truth))
    return loss


def grey_similarity(pictures: Any, truth: Any) -> Any:
    """Return the mean structural similarity in grey of pictures (B, 3, H, W), at every second pixel each way.

    The same as that of ``picture_scores``, for less: a window for rows, then one for columns.
    """
    torch: Any = need("torch", extra="learn")
    reach = np.arange(-WINDOW_REACH, WINDOW_REACH + 1)
    row = np.exp(-np.square(reach / WINDOW_DEVIATION) / 2)
    window = torch.from_numpy(row / row.sum()).float().to(pictures.device)
    red, green, blue = GREY
    a, b = ((red * one[:, 0] + green * one[:, 1] + blue * one[:, 2]) for one in (pictures, truth))  # (B, H, W)
    maps = torch.cat([a, b, a * a, b * b, a * b])[:, None]
    across = torch.nn.functional.conv2d(maps, window.view(1, 1, 1, -1), stride=(1, 2))
    smooth = torch.nn.functional.conv2d(across, window.view(1, 1, -1, 1), stride=(2, 1))
    mean_a, mean_b, square_a, square_b, product = smooth.chunk(5)
    spread_a, spread_b, common = square_a - mean_a**2, square_b - mean_b**2, product - mean_a * mean_b
    light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return (light * (2 * common + 9e-4) / (spread_a + spread_b + 9e-4)).mean()


def run(state: TrainingState, params: ImageTrainParams, batch: list[Window]) -> Any:
    """Return the pictures (B, 3, side, side) the network makes of windows."""
    torch: Any = need("torch", extra="learn")
    inputs = np.concatenate([window.inputs for window in batch])  # (M, C)
    standard = (inputs - state.constants["mean"]) / state.constants["deviation"]
    vectors, placed = torch.from_numpy(standard).to(params.device), [window.placed for window in batch]
    with torch.autocast(torch.device(params.device).type, torch.bfloat16, enabled=params.bfloat16):
        pictures = run_network(state.networks["inverter"], params.architecture, vectors, placed)
    return pictures.float()


def validate(
    state: TrainingState, params: ImageTrainParams, windows: list[Window], loss_network: Any, output: Path
) -> None:
    """Score the network on held-out windows, and write it if its structural similarity is the highest so far."""
    torch: Any = need("torch", extra="learn")
    state.mark_validation(VALIDATIONS)
    network = state.networks["inverter"].eval()
    scores, losses = [], []
    with torch.inference_mode():
        for window in windows:
            picture = run(state, params, [window])  # (1, 3, side, side)
            scores.append(picture_scores(picture[0].permute(1, 2, 0).cpu().numpy(), window.truth))
            truth = torch.from_numpy(window.truth.astype(np.float32) / 255).to(params.device).permute(2, 0, 1)[None]
            perceptual = 0.0 if loss_network is None else float(perceptual_loss(loss_network, picture, truth))
            losses.append(scores[-1]["mae_rgb"] + params.perceptual_weight * perceptual)
    means = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
    loss = float(np.mean(losses))
    state.add_loss("held_out", loss)
    log.info("step %d: ssim %.4f, loss %.4f on held-out photos", state.pace.steps, means["ssim"], loss)
    if means["ssim"] > state.best["scores"]["ssim"]:
        state.best = {"step": state.pace.steps, "scores": means}
        facts = state.settings | {"kind": KIND, "best": state.best}
        save_checkpoint(output, slim(network_arrays(network)) | state.constants, facts)


def slim(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return arrays of a network for its file: weights in half the bytes, and without torch's counters."""
    kept = {name: value for name, value in arrays.items() if not name.endswith(COUNTER)}
    return {name: value.astype(np.float16) if value.ndim > 1 else value for name, value in kept.items()}


def centre(photo: Photo, side: int) -> tuple[int, int]:
    """Return the corner (x, y) of the window in the middle of a photo."""
    height, width = photo.pixels.shape[:2]
    return (width - side) // 2, (height - side) // 2
