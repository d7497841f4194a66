# SPDX-License-Identifier: Apache-2.0
"""A network over positions that tells real rows from chaff."""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import note

from chaffs.sources import PER_REAL, Mixture
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.inversion.networks import UNET_MULTIPLE, build_unet, run_unet

Floats = np.ndarray

SIDE, BATCH = 128, 8
BLOCK = 2 * UNET_MULTIPLE
"""The network works at half the size; sides are multiples of this."""


def rasters(mixture: Mixture) -> tuple[Floats, Floats, Floats]:
    """Return maps (3, H, W) of how many features a pixel has and where in it, (2, H, W) of kinds, and pixels (N,)."""
    width, height = mixture.size
    cells = np.clip(np.rint(mixture.places).astype(int), 0, [width - 1, height - 1])
    pixels, within = cells[:, 1] * width + cells[:, 0], mixture.places - cells
    counts, kinds = np.zeros((3, height * width), np.float32), np.zeros((2, height * width), np.float32)
    for target, values in zip(counts, (np.ones(len(pixels)), *within.T), strict=True):
        np.add.at(target, pixels, values)
    for target, values in zip(kinds, (mixture.is_real, ~mixture.is_real), strict=True):
        np.add.at(target, pixels, values)
    below, right = -height % BLOCK, -width % BLOCK
    if min(height, width) < SIDE:
        below, right = max(below, SIDE - height), max(right, SIDE - width)
    framed = [np.pad(maps.reshape(-1, height, width), ((0, 0), (0, below), (0, right))) for maps in (counts, kinds)]
    return framed[0], framed[1], pixels


def build_separator(seed: int) -> Any:
    """Return a UNet over squares of 2 x 2 pixels, with one answer for each pixel."""
    import torch

    torch.manual_seed(seed)
    network = build_unet(12, 0.3)
    network["last"] = torch.nn.Conv2d(network["last"].in_channels, 4, 1)
    return network


def run_separator(network: Any, maps: Any) -> Any:
    """Return the chance (B, H, W) that what lies at a pixel is real, for maps (B, 3, H, W)."""
    import torch.nn.functional as functional

    return functional.pixel_shuffle(run_unet(network, functional.pixel_unshuffle(maps, 2)), 2)[:, 0]


def crops(mixtures: Sequence[Mixture], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return squares of maps (B, 3, S, S) and of kinds (B, 2, S, S), from anywhere, some of them mirrored."""
    counts, kinds = [], []
    for number in rng.integers(len(mixtures), size=BATCH):
        maps, kind, _ = rasters(mixtures[number])
        top, left = (rng.integers(length - SIDE + 1) for length in maps.shape[1:])
        part, what = (table[:, top : top + SIDE, left : left + SIDE] for table in (maps, kind))
        if rng.random() < 0.5:
            part, what = part[:, :, ::-1] * np.array([1, -1, 1], np.float32)[:, None, None], what[:, :, ::-1]
        counts.append(part)
        kinds.append(what)
    return np.ascontiguousarray(np.stack(counts)), np.ascontiguousarray(np.stack(kinds))


def network_file(name: str, args: argparse.Namespace) -> Path:
    """Return where the network that tells a source is kept, if anything is."""
    return (args.work or Path(os.devnull)) / f"{name.replace(' ', '-')}.safetensors"


def learn_network(mixtures: Sequence[Mixture], name: str, args: Any) -> Any:
    """Return a network that learned for so many minutes of the processor, or earlier, in ``--work``."""
    import torch

    torch.set_num_threads(1)
    network, rng = build_separator(args.seed), np.random.default_rng(args.seed)
    file = network_file(name, args)
    if file.exists():
        arrays = load_tensors(file)[0]
        network.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in arrays.items()})
        return network.eval()
    optimizer, start, steps = torch.optim.AdamW(network.parameters(), 1e-3), time.process_time(), 0
    while (share := (time.process_time() - start) / (60 * args.minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * max(0.02, 1 - share)
        maps, kinds = (torch.from_numpy(table) for table in crops(mixtures, rng))
        chance = run_separator(network, maps).clamp(1e-6, 1 - 1e-6)
        terms = PER_REAL * kinds[:, 0] * chance.log() + kinds[:, 1] * (1 - chance).log()
        loss = -terms.sum() / (PER_REAL * kinds[:, 0] + kinds[:, 1]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 100 == 0:
            note(f"{name}: step {steps}, loss {loss.item():.4f}")
    if args.work is not None:
        state = {key: value.numpy() for key, value in network.state_dict().items()}
        save_tensors(file, state, {"source": name, "steps": str(steps)}, with_folder=True)
    return network.eval()


def network_answers(network: Any, mixture: Mixture) -> Floats:
    """Return the log odds (N,) that rows are real."""
    import torch

    maps, _, pixels = rasters(mixture)
    with torch.inference_mode():
        chance = run_separator(network, torch.from_numpy(maps)[None])[0].numpy()
    height, width = mixture.size[1], mixture.size[0]
    inside = np.clip(chance[:height, :width].ravel()[pixels].astype(np.float64), 1e-6, 1 - 1e-6)
    odds: Floats = np.log(inside / (1 - inside))
    return odds
