# SPDX-License-Identifier: Apache-2.0
"""Inverters that a NinjaNet is trained against, each with its training data and its loss L_recon (Eq. 8).

They learn from public photos:

- ``decoder``: encoded descriptor to clear descriptor, a perceptron. L_recon is the distance, as a share of that of the
  best constant guess (the mean), times ``WORTH``: 0 means that everything is recovered.
- ``patch``: encoded descriptor to the 24 x 24 patch around its keypoint, with the loss of ``training.patch``, as a
  share of that of the mean patch, times ``WORTH``.
- ``unet``: a map of encoded descriptors to the picture, mean absolute error and perceptual loss as in the paper (Eq. 3
  to 5), not divided by anything, so that lambda means what it means there.

The gain of an encoder is bounded by ``limit``, the loss of the constant guess: an inverter that is worse than that has
lost its way, and says nothing about privacy. Rows are whitened first, with the present statistics of encoded rows, so
that an encoder cannot hide by being faint in some direction. Beside the network in training, ``decoder`` and ``patch``
have a quick inverter, solved for before each step of the encoder; L_recon of the encoder is the lower of the two
losses.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError, need
from sfumato.inversion import patches as patchnet
from sfumato.inversion.images import build_network, run_network
from sfumato.training.image import load_perceptual, perceptual_loss
from sfumato.training.loop import Budget
from sfumato.training.ninja.network import LEAST, whitener
from sfumato.training.ninja.params import AdversaryParams
from sfumato.training.patch import PatchTraining, patch_loss, window
from sfumato.training.photos import PatchSamples, Photo, Window, random_windows

Floats = NDArray[np.float32]

HELD_OUT_BATCHES = 4
ROWS_FOR_SCALE = 16_384
ROWS_REFITTED = 2048
WORTH = 0.4
"""L_recon of a constant guess at descriptor or patch: lambda = 1 then costs few matches on photos held out."""

log = logging.getLogger(__name__)


class Adversary(Protocol):
    """An inverter under training."""

    name: str
    modules: Any
    limit: float
    clear: Floats
    """Clear descriptors (N, n) like those it learns from."""

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> tuple[Floats, Any]:
        """Return clear descriptors (M, n) and the truth to recover, of training or held-out material."""
        ...

    def loss(self, encoded: Any, truth: Any) -> Any:
        """Return L_recon of encoded descriptors (M, n'); out of training, that of the better of two inverters."""
        ...

    def refit(self, encode: Callable[[Floats], Any], rng: np.random.Generator) -> None:
        """Solve for the quick inverter, if there is one, for rows as they are encoded now."""
        ...


class DecoderAdversary:
    """From encoded descriptors to clear ones."""

    name = "decoder"
    limit = WORTH

    def __init__(self, clear: Floats, held_out: Floats, dim: int, params: AdversaryParams) -> None:
        torch: Any = need("torch", extra="learn")
        nn = torch.nn
        self.clear, self.held_out, self.rows = clear, held_out, params.rows
        sample = clear[:: max(1, len(clear) // ROWS_FOR_SCALE)]
        self.mean = sample.mean(axis=0)
        self.constant = float(np.linalg.norm(sample - self.mean, axis=1).mean()) + 1e-9
        body = [nn.Linear(dim, params.hidden), nn.ReLU(), nn.Linear(params.hidden, params.hidden), nn.ReLU()]
        last = nn.Linear(params.hidden, clear.shape[1])
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(torch.from_numpy(self.mean))
        quick = quick_inverter(dim, clear.shape[1])
        self.modules = nn.ModuleDict({"white": whitener(dim), "body": nn.Sequential(*body, last), "quick": quick})

    def refit(self, encode: Callable[[Floats], Any], rng: np.random.Generator) -> None:
        rows = self.clear[rng.integers(len(self.clear), size=ROWS_REFITTED)]
        encoded = self.modules["white"](encode(rows))
        fit(self.modules["quick"], encoded, as_tensor(rows, encoded))

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> tuple[Floats, Any]:
        source = self.held_out if held_out else self.clear
        rows = source[rng.integers(len(source), size=self.rows)]
        return rows, rows

    def loss(self, encoded: Any, truth: Any) -> Any:
        white, aim = self.modules["white"](encoded), as_tensor(truth, encoded)
        loss = apart(self.modules["body"](white), aim)
        if not self.modules.training:
            loss = loss.minimum(apart(run_quick(self.modules["quick"], white), aim))
        return WORTH * loss / self.constant


class PatchAdversary:
    """From encoded descriptors to the patches around their keypoints."""

    name = "patch"
    limit = WORTH

    def __init__(self, pairs: PatchSamples, held_out: NDArray[np.bool_], dim: int, params: AdversaryParams) -> None:
        torch: Any = need("torch", extra="learn")
        self.pairs, self.rows = pairs, params.rows
        self.learned, self.checked = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        if not len(self.learned) or not len(self.checked):
            raise InputError(
                "the patch inverter needs features of two photos at least: one to learn from, one to check"
            )
        sample = self.learned[:: max(1, len(self.learned) // ROWS_FOR_SCALE)]
        self.clear = pairs.descriptors[sample]
        logs = np.log(np.maximum(pairs.keypoints[sample, 2], 1e-3))
        self.scale = float(logs.mean()), float(logs.std()) + 1e-4
        self.contrast = float(pairs.contrasts[sample].mean())
        self.training = PatchTraining(budget=Budget(steps=1), hidden=params.patch_hidden)
        parts = {"body": patchnet.build(dim, params.patch_hidden), "quick": quick_inverter(dim + 1, patchnet.OUTPUTS)}
        self.modules = torch.nn.ModuleDict({"white": whitener(dim), **parts})
        self.constant = self._constant_loss(sample[: 4 * ROWS_FOR_SCALE])

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> tuple[Floats, Any]:
        source = self.checked if held_out else self.learned
        rows = np.sort(source[rng.integers(len(source), size=self.rows)])
        return self.pairs.descriptors[rows], self._truth(rows)

    def loss(self, encoded: Any, truth: Any) -> Any:
        torch: Any = need("torch", extra="learn")
        sigmas, *rest = (as_tensor(part, encoded) for part in truth)
        inputs = torch.cat([self.modules["white"](encoded), sigmas[:, None]], dim=1)  # (B, n' + 1)
        loss = patch_loss(torch, self.modules["body"], (inputs, *rest), self.training)
        if not self.modules.training:
            guess = run_quick(self.modules["quick"], inputs)
            loss = loss.minimum(patch_loss(torch, lambda _: guess, (inputs, *rest), self.training))
        return WORTH * loss / self.constant

    def refit(self, encode: Callable[[Floats], Any], rng: np.random.Generator) -> None:
        torch: Any = need("torch", extra="learn")
        rows = np.sort(self.learned[rng.integers(len(self.learned), size=ROWS_REFITTED)])
        encoded = self.modules["white"](encode(self.pairs.descriptors[rows]))
        sigmas, patches, _, contrasts = (as_tensor(part, encoded) for part in self._truth(rows))
        inputs = torch.cat([encoded, sigmas[:, None]], dim=1)
        fit(self.modules["quick"], inputs, torch.cat([patches, contrasts[:, None]], dim=1))

    def _truth(self, rows: NDArray[np.intp]) -> tuple[Floats, ...]:
        """Return scaled log sigmas (B,), patches (B, 576), their weights (B, 576) and log contrasts (B,) about 0."""
        sigmas = (np.log(np.maximum(self.pairs.keypoints[rows, 2], 1e-3)) - self.scale[0]) / self.scale[1]
        patches = self.pairs.patches[rows].astype(np.float32)
        weights = np.isfinite(patches) * window()
        return sigmas.astype(np.float32), np.nan_to_num(patches), weights, self.pairs.contrasts[rows] - self.contrast

    def _constant_loss(self, rows: NDArray[np.intp]) -> float:
        """Return the loss of always guessing the mean patch and the mean contrast."""
        torch: Any = need("torch", extra="learn")
        sigmas, patches, weights, contrasts = (torch.from_numpy(part) for part in self._truth(rows))
        mean = (weights * patches).sum(dim=0) / weights.sum(dim=0).clamp_min(1e-9)
        guess = torch.cat([mean, mean.new_zeros(1)]).expand(len(rows), -1)
        return float(patch_loss(torch, lambda _: guess, (sigmas, patches, weights, contrasts), self.training))


class ImageAdversary:
    """From maps of encoded descriptors to pictures, as in the paper."""

    name = "unet"

    def __init__(
        self, photos: Sequence[Photo], held_out: Sequence[Photo], dim: int, params: AdversaryParams, batch: int
    ):
        torch: Any = need("torch", extra="learn")
        self.photos, self.held_out, self.params, self.batch = photos, held_out, params, batch
        self.clear = np.concatenate([photo.features.descriptors for photo in photos])[: 4 * ROWS_FOR_SCALE]
        self.frame = np.eye(self.clear.shape[1], dtype=np.float32)
        self.perceptual = None
        if params.perceptual is None:
            log.warning("no weights of VGG16: L_recon is the mean absolute error, without perceptual loss")
        else:
            self.perceptual = load_perceptual(params.perceptual)
        network = build_network(params.architecture, dim, params.width)
        self.modules = torch.nn.ModuleDict({"white": whitener(dim), "body": network})
        self.limit = self._constant_loss()

    def draw(self, rng: np.random.Generator, *, held_out: bool = False) -> tuple[Floats, Any]:
        source, count = (self.held_out, min(8, self.batch)) if held_out else (self.photos, self.batch)
        windows = random_windows(source, self.params.side, count, rng, None, self.frame)
        corner = rng.integers(max(1, self.params.side - self.params.perceptual_side + 1), size=2)
        return np.concatenate([window.inputs for window in windows]), (windows, corner)

    def loss(self, encoded: Any, truth: Any) -> Any:
        windows, corner = truth
        placed = [window.placed for window in windows]
        pictures = run_network(self.modules["body"], self.params.architecture, self.modules["white"](encoded), placed)
        return self._compare(pictures, windows, corner)

    def refit(self, encode: Callable[[Floats], Any], rng: np.random.Generator) -> None:
        """Nothing: a picture is no linear function of a map."""

    def _compare(self, pictures: Any, windows: list[Window], corner: NDArray[np.int64]) -> Any:
        """Return mean absolute error and perceptual loss of pictures (B, 3, side, side) (Eq. 3 to 5)."""
        truth = as_tensor(np.stack([window.truth for window in windows]), pictures).permute(0, 3, 1, 2) / 255
        loss = (pictures - truth).abs().mean()
        if self.perceptual is not None:
            self.perceptual.to(pictures.device)
            y, x = (slice(int(start), int(start) + self.params.perceptual_side) for start in corner)
            loss = loss + perceptual_loss(self.perceptual, pictures[:, :, y, x], truth[:, :, y, x])
        return loss

    def _constant_loss(self) -> float:
        """Return the loss of pictures of one colour, the mean of the photos."""
        torch: Any = need("torch", extra="learn")
        colour = np.mean([photo.pixels.mean(axis=(0, 1)) for photo in self.photos], axis=0) / 255
        rng = np.random.default_rng(0)
        windows, corner = self.draw(rng, held_out=True)[1]
        blank = torch.from_numpy(colour.astype(np.float32)).view(1, 3, 1, 1)
        with torch.no_grad():
            return float(self._compare(blank.expand(len(windows), 3, *windows[0].truth.shape[:2]), windows, corner))


def apart(rows: Any, others: Any) -> Any:
    """Return the mean distance of rows (B, n) from others (B, n)."""
    return (((rows - others) ** 2).sum(dim=1) + LEAST).sqrt().mean()


def held_out_loss(adversary: Adversary, encode: Any, seed: int) -> float:
    """Return L_recon over held-out material, always the same."""
    torch: Any = need("torch", extra="learn")
    adversary.modules.eval()
    rng = np.random.default_rng([seed, 95])
    losses = []
    with torch.inference_mode():
        for _ in range(HELD_OUT_BATCHES):
            clear, truth = adversary.draw(rng, held_out=True)
            losses.append(float(adversary.loss(encode(clear), truth)))
    return float(np.mean(losses))


def as_tensor(array: NDArray[Any], like: Any) -> Any:
    """Return an array as float32 where ``like`` is."""
    torch: Any = need("torch", extra="learn")
    return torch.from_numpy(np.array(array, np.float32)).to(like.device)


# --- the quick inverter: linear in fixed features of encoded rows, solved for, not learned
#
# A network that learns against an encoder lags behind it, and an encoder that outruns it looks private to it and to
# nobody else. Least squares give the best of its kind for the encoder as it is now; in the joint stage an encoder gains
# only what this inverter, too, cannot recover.


FEATURES = 256
"""Rectified random directions beside the rows themselves."""
RIDGE = 1e-3


def quick_inverter(dim: int, outputs: int) -> Any:
    """Return modules for rows (B, dim): random ``features`` that stay, and ``last``, which ``fit`` sets."""
    nn: Any = need("torch", extra="learn").nn
    modules = nn.ModuleDict({"features": nn.Linear(dim, FEATURES), "last": nn.Linear(dim + FEATURES, outputs)})
    nn.init.normal_(modules["features"].weight, std=dim**-0.5)
    nn.init.normal_(modules["features"].bias)
    return modules.requires_grad_(False)


def run_quick(modules: Any, rows: Any) -> Any:
    """Return the guesses (B, outputs) for rows (B, dim) of about mean 0 and variance 1."""
    return modules["last"](_features(modules, rows))


def fit(modules: Any, rows: Any, targets: Any) -> None:
    """Set the last layer to the least squares solution for rows (N, dim) and targets (N, outputs)."""
    torch: Any = need("torch", extra="learn")
    with torch.no_grad():
        inputs = _features(modules, rows).double()
        means = inputs.mean(dim=0), targets.double().mean(dim=0)
        centred, aims = inputs - means[0], targets.double() - means[1]
        spread = centred.T @ centred / len(rows)
        eye = torch.eye(len(spread), dtype=spread.dtype, device=spread.device)
        damping = RIDGE * spread.diagonal().mean() + 1e-9  # also where all rows are the same
        weight = torch.linalg.solve(spread + damping * eye, centred.T @ aims / len(rows))
        modules["last"].weight.copy_(weight.T.float())
        modules["last"].bias.copy_((means[1] - means[0] @ weight).float())


def _features(modules: Any, rows: Any) -> Any:
    torch: Any = need("torch", extra="learn")
    return torch.cat([rows, modules["features"](rows).relu()], dim=1)
