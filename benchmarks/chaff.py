# SPDX-License-Identifier: Apache-2.0
"""Chaff: sources of it against attackers who tell it from real features, what they then paint, and what chaff costs.

    python benchmarks/chaff.py --only telling painted --json out.json   # needs the photos below SFUMATO_DATA, and torch
    python benchmarks/chaff.py --only cost --json out.json

"telling": the area under the curve of telling real features from chaff, two of chaff to a real one; 0.5 for guesses, 1
for all. It is the mean over photos that nobody learned from (bsds500/val), with its standard error. Attackers know the
method and the bank. They learn on other photos (bsds500/train, imagenet-samples), with chaff that they draw themselves.
Sources: "uniform" positions; "bank", layouts of public photos under bends, mirrors, crops and thinning; "patchwork", of
pieces of many such layouts; "own photos", layouts of photos that nobody else has; "process", a point process with the
spectrum and the near distances of layouts; "noise", features of pictures of noise as they come; "chaff", such features
where the photo has few, which is what the package does. Separators: "network", a UNet over positions; "statistics",
trees over distances to neighbours, twins, borders, fractions of pixels, lines and density; "codes", trees over how near
the nearest codes of the same photo are (sources of positions alone have bits from coin throws); "together", trees over
all of these; "layouts", which looks the layouts of the bank up. "two releases": the photo is released again, with a
device key or without. "matches": what matches another photo of the same place is real. The design accepts that: the
stationary scene becomes the map.

"painted": what positions alone show, by the bundled inverters of positions, of all rows and of the third that
"together" takes for real. Leakage is on the usual scale: 0 is the bundled patch inverter with keypoints alone, 1 with
clear descriptors; both have sizes and angles. Three controls show whether an inverter paints from positions at all: a
flat picture of the photo's mean, places at random, and a single feature. Where real rows do no better than these, the
figures are about the inverter and say nothing about chaff.

"cost": an archive, seconds of the processor, matches on planes and a map, with 0 to 4 features of chaff to a real one.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

import sfumato
from sfumato.auditing.matching import Pair, pairs_of, transfer_errors
from sfumato.auditing.toolbox import bundled_inverter
from sfumato.concealment.chaff import FEATURES_PER_PIXEL, SPARE, NoiseStream, choose_rows, draw_picture
from sfumato.concealment.lifting import with_chaff
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.experiments.data.room import make_room, save_room
from sfumato.features.local import LocalParams, extract
from sfumato.files.tensors import load_tensors, save_tensors
from sfumato.images.homography import make_pair
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_image, sample_names
from sfumato.inversion.images import invert_image, load_image_inverter
from sfumato.inversion.metrics import leakage, picture_scores
from sfumato.inversion.networks import UNET_MULTIPLE, build_unet, run_unet
from sfumato.types.clear import Features
from sfumato.types.concealed import Bits

Floats = np.ndarray
Size = tuple[int, int]
Row = dict[str, Any]

PER_REAL = 2
RECIPE = f"sealed-512+chaff-{PER_REAL}"
PARTS = ("telling", "painted", "cost")
FEWEST = 200
"""Features of a photo that attackers learn from, or whose layout is in the bank."""
PIECE = 96
"""Side of the pieces of a patchwork, in pixels."""
INVERTERS = {"learned without chaff": "positions-sift.safetensors",
             f"learned with chaff-{PER_REAL}": f"positions-sift-chaff-{PER_REAL}.safetensors"}  # fmt: skip


def row(part: str, case: str, figure: str, values: float | Sequence[float] | None) -> Row:
    """Return one figure; of several values the mean, with its standard error."""
    several = values is not None and not isinstance(values, int | float)
    found = np.atleast_1d(np.asarray(np.nan if values is None else values, float))
    error = float(found.std(ddof=1) / np.sqrt(len(found))) if several and len(found) > 1 else None
    made = {"part": part, "case": case, "figure": figure, "value": None if values is None else float(found.mean()),
            "error": error}  # fmt: skip
    note(str(made))
    return made


# --- photos


@dataclass(frozen=True)
class Photo:
    """Features of a photo, and where its pixels are."""

    features: Features
    read: Callable[[], Floats]

    @property
    def places(self) -> Floats:
        """Positions (N, 2)."""
        return self.features.keypoints[:, :2].astype(np.float64)

    @property
    def size(self) -> Size:
        """Width and height."""
        assert self.features.image_size is not None
        return self.features.image_size


def photo_at(path: Path, local: LocalParams) -> Photo:
    """Return the features of a file."""
    return Photo(extract(path, local), lambda: np.asarray(read_image(path).pixels))


def sample_part(name: str, local: LocalParams) -> Photo:
    """Return the features of a small part of a sample."""
    pixels = np.ascontiguousarray(sample_image(name).pixels[40:168, 60:252])
    return Photo(extract(pixels, local), lambda: pixels)


@dataclass
class Photos:
    """Photos under attack, their owner's other photos, those that attackers learn from, and a public bank."""

    attacked: list[Photo]
    own: list[Photo]
    learners: list[Photo]
    bank: list[Photo]


def reserve_of(args: argparse.Namespace) -> int:
    """Return how many photos networks do not learn from: the trees that weigh their answers do."""
    return max(2, int(args.learners) // 6)


def network_file(name: str, args: argparse.Namespace) -> Path:
    """Return where the network that tells a source is kept, if anything is."""
    return (args.work or Path(os.devnull)) / f"{name.replace(' ', '-')}.safetensors"


def load_photos(args: argparse.Namespace, folder: Path | None) -> Photos:
    """Return photos in four groups that share none."""
    local = LocalParams(max_features=args.features)
    if folder is None:
        parts = [sample_part(name, local) for name in sample_names()[:10]]
        return Photos(parts[:2], parts[2:4], parts[4:8], parts[8:10])
    val, train, others = (
        [path for _, path in list_images(folder / "photos" / name)]
        for name in ("bsds500/val", "bsds500/train", "imagenet-samples")
    )
    half, learns = args.learners // 2, "telling" in args.only or not network_file("chaff", args).exists()
    groups = {"attacked": val[: args.photos], "own": val[args.photos :][: args.bank // 2],
              "learners": train[:half] + others[: args.learners - half],
              "bank": others[args.learners - half :][: args.bank]}  # fmt: skip
    if not learns:  # to paint, the network that learned earlier is enough
        groups |= {"own": [], "bank": [], "learners": groups["learners"][: reserve_of(args)]}
    photos = {name: [photo_at(path, local) for path in paths] for name, paths in groups.items()}
    return Photos(**{
        name: [photo for photo in group if name == "attacked" or len(photo.features) >= FEWEST]
        for name, group in photos.items()
    })  # fmt: skip


# --- sources of chaff


@dataclass
class Stock:
    """Things that chaff is made of: layouts of a public bank and of photos that nobody else has, and noise.

    Who learns draws noise once for each photo, and turns it over in later draws; with ``noise`` None all is drawn anew.
    """

    bank: list[Photo]
    own: list[Photo]
    noise: dict[int, Features] | None = None

    def noise_for(self, photo: Photo, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Return keypoints (M, 4) and descriptors (M, 128) of noise of the size of a photo, more than are needed."""
        if self.noise is None:
            drawn = draw_noise(photo, rng)
            return drawn.keypoints, drawn.descriptors
        if id(photo) not in self.noise:
            self.noise[id(photo)] = draw_noise(photo, rng)
        drawn = self.noise[id(photo)]
        keypoints = drawn.keypoints.copy()
        for axis in (0, 1):
            if rng.random() < 0.5:
                keypoints[:, axis] = photo.size[axis] - 1 - keypoints[:, axis]
        return keypoints, drawn.descriptors


def draw_noise(photo: Photo, rng: np.random.Generator) -> Features:
    """Return features of as many pictures of noise as the package draws for a photo."""
    width, height = photo.size
    enough, stream = int(np.ceil(SPARE * PER_REAL * len(photo.features))), NoiseStream(rng.bytes(32))
    detail = float(np.sqrt(enough / (FEATURES_PER_PIXEL * width * height)))
    local, found = LocalParams(max_features=enough), list[Features]()
    while sum(map(len, found)) < enough:
        found.append(extract(draw_picture(photo.size, detail, stream), local))
    keypoints = np.concatenate([one.keypoints for one in found])
    return Features(keypoints, np.concatenate([one.descriptors for one in found]), found[0].extractor, photo.size)


Chaff = tuple[Floats, Floats | None]
"""Positions (M, 2), and descriptors (M, 128) where a source has any."""
Source = Callable[[Photo, Stock, np.random.Generator], Chaff]


def chaff_count(photo: Photo) -> int:
    """Return how much chaff a photo gets."""
    return PER_REAL * len(photo.features)


def draw_sites(places: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Return rows of ``count`` features: those at one place together, places at random."""
    _, site = np.unique(places, axis=0, return_inverse=True)
    order = rng.permutation(int(site.max()) + 1)[site.ravel()]
    rows: Floats = np.argsort(order, kind="stable")[:count]
    return rows


def fit_layout(layout: Photo, size: Size, is_mirrored: bool) -> Floats:
    """Return a layout (N, 2) in units of the picture that it is put into, on its side where that one is."""
    unit: Floats = (layout.places + 0.5) / layout.size
    if (layout.size[0] > layout.size[1]) != (size[0] > size[1]):
        unit = unit[:, ::-1]
    return unit * [-1, 1] + [1, 0] if is_mirrored else unit


def bend(unit: Floats, rng: np.random.Generator, strength: float = 0.06, waves: int = 4) -> Floats:
    """Move places in the unit square by a smooth field that is 0 at the border."""
    number = np.arange(1, waves + 1)
    amplitudes = rng.normal(0, strength, (2, waves, waves)) / np.add.outer(number**2, number**2)
    across, down = (np.sin(np.pi * np.outer(unit[:, axis], number)) for axis in (0, 1))
    moves = np.stack([np.einsum("ni,ij,nj->n", across, part, down) for part in amplitudes], axis=1)
    places: Floats = unit + moves
    return places


def whole_layouts(photo: Photo, layouts: list[Photo], rng: np.random.Generator, is_public: bool) -> Chaff:
    """Return layouts one over another, thinned to the number; public ones are bent and cropped too."""
    places, described = np.empty((0, 2)), np.empty((0, 128), np.float32)
    for layout in (layouts[number] for number in rng.permutation(len(layouts))):
        unit = fit_layout(layout, photo.size, bool(rng.random() < 0.5))
        if is_public:
            share = rng.uniform(0.8, 1)
            unit = (bend(unit, rng) - rng.uniform(0, 1 - share, 2)) / share
        inside = ((unit > 0) & (unit < 1)).all(axis=1)
        places = np.concatenate([places, unit[inside] * photo.size - 0.5])
        described = np.concatenate([described, layout.features.descriptors[inside]])
        if len(places) >= chaff_count(photo):
            break
    rows = draw_sites(places, chaff_count(photo), rng)
    return places[rows], None if is_public else described[rows]


def from_uniform(photo: Photo, _: Stock, rng: np.random.Generator) -> Chaff:
    """Return positions anywhere."""
    return rng.uniform(0, 1, (chaff_count(photo), 2)) * photo.size - 0.5, None


def from_bank(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return layouts of a public bank, bent, mirrored, cropped and thinned."""
    return whole_layouts(photo, stock.bank, rng, is_public=True)


def from_plain_bank(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return layouts of a public bank, mirrored and thinned."""
    return whole_layouts(photo, stock.bank, rng, is_public=False)[0], None


def from_own_photos(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return layouts of photos that nobody else has, with their descriptors."""
    return whole_layouts(photo, [one for one in stock.own if one is not photo], rng, is_public=False)


def from_patchwork(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return pieces of many layouts of a bank, each from anywhere, side by side."""
    size, found = np.array(photo.size), list[Floats]()
    while sum(map(len, found)) < chaff_count(photo):
        start = -rng.integers(PIECE, size=2)
        for corner in np.mgrid[start[0] : size[0] : PIECE, start[1] : size[1] : PIECE].reshape(2, -1).T:
            layout = stock.bank[rng.integers(len(stock.bank))]
            places = fit_layout(layout, photo.size, bool(rng.random() < 0.5)) * size - 0.5
            piece = places - np.round(rng.uniform(0, np.maximum(1, size - PIECE)))
            piece = piece[((piece >= 0) & (piece < PIECE)).all(axis=1)] + corner
            found.append(piece[((piece >= 0) & (piece <= size - 1)).all(axis=1)])
    places = np.concatenate(found)
    return places[draw_sites(places, chaff_count(photo), rng)], None


def from_process(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return a Cox process: log density with the spectrum of a layout's, and pairs as far apart as neighbours there."""
    import cv2
    from scipy.spatial import cKDTree

    size, side = np.array(photo.size), 48
    unit = fit_layout(stock.bank[rng.integers(len(stock.bank))], photo.size, is_mirrored=False)
    counts = np.histogram2d(unit[:, 1], unit[:, 0], side, [[0, 1], [0, 1]])[0]
    density = cv2.GaussianBlur(counts, (0, 0), 1.5)
    log = np.log(density + 0.1 * density.mean())
    phases = np.fft.rfft2(rng.normal(size=(side, side)))
    drawn = np.fft.irfft2(np.abs(np.fft.rfft2(log - log.mean())) * phases / np.abs(phases), (side, side))
    chances = np.exp(drawn).ravel() / np.exp(drawn).sum()
    apart = (unit[cKDTree(unit).query(unit, 2)[1][:, 1]] - unit) * size
    cells = rng.choice(side * side, chaff_count(photo), p=chances)
    first = (np.column_stack([cells % side, cells // side]) + rng.random((len(cells), 2))) / side * size - 0.5
    second = first + apart[rng.integers(len(apart), size=len(first))]
    places = np.stack([first, second], axis=1).reshape(-1, 2)
    return places[((places >= 0) & (places <= size - 1)).all(axis=1)][: chaff_count(photo)], None


def from_noise(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return features of noise as they come."""
    keypoints, described = stock.noise_for(photo, rng)
    rows = draw_sites(keypoints[:, :2], chaff_count(photo), rng)
    return keypoints[rows, :2].astype(np.float64), described[rows]


def from_chaff(photo: Photo, stock: Stock, rng: np.random.Generator) -> Chaff:
    """Return what the package draws; who learns chooses as the package does, of noise of his own."""
    if stock.noise is None:
        mixed, is_real = with_chaff(photo.features, RECIPE, secret=rng.bytes(32))
        return mixed.keypoints[~is_real, :2].astype(np.float64), mixed.descriptors[~is_real]
    keypoints, described = stock.noise_for(photo, rng)
    stream = NoiseStream(rng.bytes(32))
    rows = choose_rows(photo.features.keypoints, keypoints, photo.size, chaff_count(photo), stream)
    return keypoints[rows, :2].astype(np.float64), described[rows]


SOURCES: dict[str, Source] = {
    "chaff": from_chaff, "own photos": from_own_photos, "noise": from_noise, "bank": from_bank,
    "patchwork": from_patchwork, "process": from_process, "uniform": from_uniform,
}  # fmt: skip


@dataclass(frozen=True)
class Mixture:
    """Positions (N, 2) of a photo with chaff, which of them are real (N,), and codes where they are asked for."""

    photo: Photo
    places: Floats
    is_real: Floats
    codes: Bits | None = None

    @property
    def size(self) -> Size:
        """Width and height of the photo."""
        return self.photo.size


def mix(photo: Photo, source: Source, stock: Stock, rng: np.random.Generator, with_codes: bool) -> Mixture:
    """Return a photo with chaff; codes under a key of its own."""
    places, described = source(photo, stock, rng)
    together = np.concatenate([photo.places, places])
    is_real = np.arange(len(together)) < len(photo.features)
    if not with_codes:
        return Mixture(photo, together, is_real)
    seal = make_seal(rng.bytes(32), photo.features.descriptors.shape[1], 512, BANDWIDTH)
    coins = rng.integers(0, 256, (len(places), 64), np.uint8)
    packed = coins if described is None else seal(described).packed
    return Mixture(photo, together, is_real, Bits(np.concatenate([seal(photo.features.descriptors).packed, packed])))


# --- separators: numbers that are higher for rows that are real


def area_under_curve(scores: Floats, is_real: Floats) -> float:
    """Return how often a real row has a higher score than one of chaff; ties count half."""
    from scipy.stats import rankdata

    count = int(is_real.sum())
    below = rankdata(scores)[is_real].sum() - count * (count + 1) / 2
    return float(below / (count * (len(scores) - count)))


def statistics_of(mixture: Mixture) -> Floats:
    """Return statistics (N, F) of where each feature lies among the others."""
    from scipy.spatial import cKDTree

    places, size = mixture.places, np.array(mixture.size)
    tree, usual = cKDTree(places), np.sqrt(size.prod() / len(places))
    reach, near = tree.query(places, min(17, len(places)))
    around = places[near[:, 1:9]] - places[:, None]
    squared = (around**2).sum(axis=2)
    spread = np.einsum("nki,nkj->nij", around, around) / np.maximum(squared.sum(axis=1), 1e-9)[:, None, None]
    flat = np.sqrt((spread[:, 0, 0] - spread[:, 1, 1]) ** 2 + 4 * spread[:, 0, 1] ** 2)  # 1: all on one line
    lean = np.linalg.norm(around.mean(axis=1), axis=1) / usual
    turn = (around[:, 0] * around[:, 1]).sum(axis=1) / np.maximum(np.sqrt(squared[:, 0] * squared[:, 1]), 1e-9)
    counts = [tree.query_ball_point(places, share * usual, return_length=True) for share in (0.5, 1, 2, 4, 8)]
    edges = np.minimum(places + 0.5, size - 0.5 - places)
    return np.column_stack([
        reach[:, [1, 2, 3, 4, 6, 8, -1]] / usual, reach[:, 1], reach[:, 2], (reach[:, 1:] < 1e-3).sum(axis=1),
        flat, lean, turn, *counts, edges, edges.min(axis=1), (places + 0.5) % 1, np.full(len(places), usual),
    ])  # fmt: skip


def code_statistics(mixture: Mixture) -> Floats:
    """Return how near the nearest other codes are (N, 3), and how far away the nearest two of them lie."""
    assert mixture.codes is not None
    bits, near = sfumato.nearest(mixture.codes, mixture.codes, min(4, len(mixture.codes)), threads=1)
    itself = near == np.arange(len(near))[:, None]
    itself[~itself.any(axis=1), -1] = True  # so many twins that the row itself is not among them
    bits, near = (table[~itself].reshape(len(near), -1) for table in (bits, near))
    away = np.linalg.norm(mixture.places[near[:, :2]] - mixture.places[:, None], axis=2)
    return np.column_stack([bits, away])


@dataclass
class Trees:
    """Boosted trees: each asks the same few questions of every row, and has a value for each set of answers."""

    count: int = 120
    depth: int = 4
    rate: float = 0.15
    bins: int = 24
    edges: list[Floats] = field(default_factory=list)
    trees: list[tuple[list[tuple[int, int]], Floats]] = field(default_factory=list)

    def learn(self, columns: Floats, is_real: Floats) -> "Trees":
        """Learn to tell real rows from statistics (N, F); both kinds weigh the same."""
        shares = np.linspace(0, 1, self.bins + 1)[1:-1]
        self.edges = [np.unique(np.quantile(column, shares)) for column in columns.T]
        binned, weight = self._bin(columns), np.where(is_real, 0.5 / is_real.mean(), 0.5 / (1 - is_real.mean()))
        answer = np.zeros(len(columns))
        for _ in range(self.count):
            chance = 1 / (1 + np.exp(-answer))
            pull, curve = weight * (is_real - chance), weight * chance * (1 - chance)
            leaf, questions = np.zeros(len(columns), np.intp), list[tuple[int, int]]()
            for _ in range(self.depth):
                questions.append(self._best_question(binned, leaf, pull, curve))
                leaf = 2 * leaf + (binned[:, questions[-1][0]] > questions[-1][1])
            sums = (np.bincount(leaf, part, 2**self.depth) for part in (pull, curve))
            values = self.rate * np.divide(*(part + extra for part, extra in zip(sums, (0, 10.0), strict=True)))
            self.trees.append((questions, values))
            answer += values[leaf]
        return self

    def score(self, columns: Floats) -> Floats:
        """Return the log odds (N,) that rows are real."""
        binned, answer = self._bin(columns), np.zeros(len(columns))
        for questions, values in self.trees:
            leaf = np.zeros(len(columns), np.intp)
            for column, edge in questions:
                leaf = 2 * leaf + (binned[:, column] > edge)
            answer += values[leaf]
        return answer

    def _bin(self, columns: Floats) -> Floats:
        found = [np.searchsorted(edges, column) for edges, column in zip(self.edges, columns.T, strict=True)]
        return np.stack(found, axis=1)

    def _best_question(self, binned: Floats, leaf: Floats, pull: Floats, curve: Floats) -> tuple[int, int]:
        """Return the column and the edge that divide all leaves best."""
        leaves, best, question = int(leaf.max()) + 1, -1.0, (0, 0)
        for column in range(binned.shape[1]):
            index = leaf * self.bins + binned[:, column]
            pulls, curves = (
                np.bincount(index, part, leaves * self.bins).reshape(leaves, self.bins).cumsum(axis=1)
                for part in (pull, curve)
            )
            left, right = pulls**2 / (curves + 10), (pulls[:, -1:] - pulls) ** 2 / (curves[:, -1:] - curves + 10)
            gains = (left + right).sum(axis=0)
            if gains.max() > best:
                best, question = float(gains.max()), (column, int(gains.argmax()))
        return question


def learn_trees(mixtures: Sequence[Mixture], columns_of: Callable[[Mixture], Floats], args: Any) -> Trees:
    """Return trees that learned from all rows of mixtures, or from a part that chance chooses."""
    columns = np.concatenate([columns_of(mixture) for mixture in mixtures])
    is_real = np.concatenate([mixture.is_real for mixture in mixtures])
    rows = np.random.default_rng(args.seed).permutation(len(columns))[: args.rows]
    return Trees(count=5 if args.small else 120).learn(columns[rows], is_real[rows])


# --- the network over positions


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


# --- layouts of a bank, looked up


CELL = 3
"""Side of a cell of the maps in which layouts are looked up, in pixels."""
TILE = 40
"""Side of the squares of the released layout that are looked up, in cells."""
SCALES = (1.0, 1.06, 1.12, 1.18, 1.25)
"""Sizes of a crop that the attacker tries."""


def cell_map(places: Floats, shape: tuple[int, int]) -> Floats:
    """Return how many features each cell has (H, W); those outside are left out."""
    down, across = (np.floor((places[:, axis] + 0.5) / CELL).astype(int) for axis in (1, 0))
    inside = (down >= 0) & (down < shape[0]) & (across >= 0) & (across < shape[1])
    counts = np.zeros(shape, np.float32)
    np.add.at(counts, (down[inside], across[inside]), 1.0)
    return counts


def look_up(mixture: Mixture, bank: list[Photo], scales: Sequence[float]) -> Floats:
    """Return scores (N,) that are lower for rows that lie as a piece of a layout of the bank does.

    Each square of the release is laid over every layout, at every shift. Layouts that agree more than others do count,
    with the rows that meet one of their features.
    """
    import cv2
    from scipy import fft

    width, height = (-(-side // CELL) for side in mixture.size)
    shape = (fft.next_fast_len(height + TILE, True), fft.next_fast_len(width + TILE, True))
    layouts = []
    for photo, is_mirrored, scale in ((one, flip, size) for one in bank for flip in (False, True) for size in scales):
        places = fit_layout(photo, mixture.size, is_mirrored) * np.array(mixture.size) * scale - 0.5
        counts = cell_map(places, shape)
        detail = cv2.GaussianBlur(counts, (0, 0), 0.8) - cv2.GaussianBlur(counts, (0, 0), 4)  # density tells nothing
        layouts.append((detail, fft.rfft2(detail)))
    cells = np.floor((mixture.places + 0.5) / CELL).astype(int)[:, ::-1]
    scores = np.zeros(len(cells))
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            rows = np.flatnonzero(((cells >= [top, left]) & (cells < [top + TILE, left + TILE])).all(axis=1))
            if not len(rows):
                continue
            square = np.zeros(shape, np.float32)
            np.add.at(square, tuple((cells[rows] - [top, left]).T), 1.0)
            spectrum = np.conj(fft.rfft2(square))
            best = list[tuple[float, int, int]]()
            for number, (_, other) in enumerate(layouts):
                agreement = fft.irfft2(spectrum * other, shape)[:height, :width]
                peak = int(agreement.argmax())
                best.append((float((agreement.flat[peak] - agreement.mean()) / (agreement.std() + 1e-6)), number, peak))
            strengths = np.array([strength for strength, _, _ in best])
            usual = float(np.median(strengths) + 1.5 * strengths.std())
            for strength, number, peak in (one for one in best if one[0] > usual):
                down, across = (cells[rows] - [top, left] + np.divmod(peak, width)).T
                inside = (down < shape[0]) & (across < shape[1])
                values = layouts[number][0][np.minimum(down, shape[0] - 1), np.minimum(across, shape[1] - 1)]
                scores[rows] -= np.where(inside, values, 0) * (strength - usual)
    return scores


# --- telling


@dataclass
class Answers:
    """Mixtures of the photos under attack, and what the separators together say of their rows."""

    mixtures: list[Mixture]
    scores: list[Floats]


def tell_source(name: str, photos: Photos, noise: dict[int, Features], args: Any) -> tuple[list[Row], Answers]:
    """Set all separators at one source."""
    note(f"{name}: drawing")
    rng, source = np.random.default_rng(args.seed + 1), SOURCES[name]
    stock = Stock(photos.bank, photos.learners, noise)
    reserve = reserve_of(args)
    first = [mix(photo, source, stock, rng, number < reserve) for number, photo in enumerate(photos.learners)]
    coded, others = first[:reserve], first[reserve:]
    more = [mix(one.photo, source, stock, rng, with_codes=False) for one in others for _ in range(args.draws - 1)]
    attacked = [mix(one, source, Stock(photos.bank, photos.own), rng, with_codes=True) for one in photos.attacked]
    network = learn_network([*others, *more], name, args)
    note(f"{name}: trees")

    def answers(mixture: Mixture) -> Floats:
        return np.column_stack(
            [network_answers(network, mixture), statistics_of(mixture), code_statistics(mixture)]
        )  # fmt: skip

    separators = {
        "statistics": (statistics_of, learn_trees(first, statistics_of, args)),
        "codes": (code_statistics, learn_trees(coded, code_statistics, args)),
        "together": (answers, learn_trees(coded, answers, args)),
    }
    scores = {key: [trees.score(columns(one)) for one in attacked] for key, (columns, trees) in separators.items()}
    scores = {"network": [network_answers(network, one) for one in attacked], **scores}
    rows = [
        row("telling", name, key, [area_under_curve(s, one.is_real) for s, one in zip(found, attacked, strict=True)])
        for key, found in scores.items()
    ]
    rows.append(row("telling", name, "layouts", lookup_areas(name, attacked[: args.lookups], photos.bank)))
    return rows, Answers(attacked, scores["together"])


def lookup_areas(name: str, attacked: list[Mixture], bank: list[Photo]) -> list[float] | None:
    """Return the areas for an attacker who looks layouts up; None where there is no bank."""
    scales = {"bank": SCALES, "patchwork": SCALES[:1]}.get(name)
    if scales is None:
        return None
    return [area_under_curve(look_up(one, bank, scales), one.is_real) for one in attacked]


def tell_plain_layouts(photos: Photos, args: Any) -> list[Row]:
    """Look up layouts of the bank that are only mirrored and thinned: an attack must break what is weak."""
    rng, areas = np.random.default_rng(args.seed + 1), list[float]()
    for photo in photos.attacked[: args.lookups]:
        mixture = mix(photo, from_plain_bank, Stock(photos.bank, []), rng, with_codes=False)
        areas.append(area_under_curve(look_up(mixture, photos.bank, SCALES[:1]), mixture.is_real))
    return [row("telling", "bank, not bent or cropped", "layouts", areas)]


def tell_releases(photos: Photos, args: Any) -> list[Row]:
    """Tell by two releases of one photo: rows that return are taken for real."""
    key, found = sfumato.new_key(), dict[str, list[float]]()
    for photo in photos.attacked[: args.lookups]:
        for name, secret in (("with a device key", key), ("without a key", None)):
            (one, is_real), (other, _) = (with_chaff(photo.features, RECIPE, secret=secret) for _ in range(2))
            known = {place.tobytes() for place in other.keypoints[:, :2]}
            returns = np.array([float(place.tobytes() in known) for place in one.keypoints[:, :2]])
            found.setdefault(f"two releases, {name}", []).append(area_under_curve(returns, is_real))
    return [row("telling", "chaff", name, areas) for name, areas in found.items()]


def tell_matches(args: Any, folder: Path | None) -> list[Row]:
    """Tell by matches with another photo of the same place, and with five."""
    key, figures = sfumato.new_key(), dict[str, list[float]]()
    for pictures in plane_pictures(args, folder):
        mixed, kinds = zip(*(with_chaff(one, RECIPE, secret=key) for one in pictures), strict=True)
        codes = [sfumato.conceal(one, "sealed-512", secret=key) for one in mixed]
        matched = np.zeros(len(codes[0]), bool)
        for number, other in enumerate(codes[1:], 1):
            matched[sfumato.match(codes[0], other, threads=1).indices[:, 0]] = True
            if number in (1, len(codes) - 1):
                name = f"matches with {number} more of the place"
                figures.setdefault(name, []).append(area_under_curve(matched.astype(float), kinds[0]))
                figures.setdefault(f"{name}: real rows matched", []).append(float(matched[kinds[0]].mean()))
                figures.setdefault(f"{name}: chaff rows matched", []).append(float(matched[~kinds[0]].mean()))
    return [row("telling", "chaff", name, values) for name, values in figures.items()]


def plane_pictures(args: Any, folder: Path | None) -> list[list[Features]]:
    """Return the features of pictures of a plane, plane by plane."""
    local = LocalParams(max_features=args.features)
    if folder is None:
        return [[extract(picture, local) for picture in (pair.first, pair.second)] for pair in [small_pair(args)]]
    return [[extract(path, local) for path in one.paths] for one in read_homography_folder(folder / "homography")]


def small_pair(args: Any) -> Any:
    """Return a picture, and the same through a homography."""
    pixels = np.ascontiguousarray(sample_image("coffee").pixels[100:260, 100:340])
    return make_pair(sfumato.Image(pixels), np.random.default_rng(args.seed))


# --- painted


def paint(answers: Answers, args: Any) -> list[Row]:
    """Paint from positions alone: of real rows, all, those taken for real, and as many at random."""
    place = args.inverters or resources.files("sfumato.inversion") / "data"
    inverters = {}
    for name, file in INVERTERS.items():
        with resources.as_file(place / file) as path:
            if not path.is_file():
                note(f"{file} is not there: nothing is painted by it")
                continue
            inverters[name] = load_image_inverter(path)
    similar, rng = dict[tuple[str, str], list[float]](), np.random.default_rng(args.seed)
    for mixture, scores in list(zip(answers.mixtures, answers.scores, strict=True))[: args.painted]:
        pixels, size, features = mixture.photo.read(), mixture.size, mixture.photo.features
        patch = bundled_inverter()
        for name, inputs in (("clear", features.descriptors), ("floor", np.tile(patch.floor, (len(features), 1)))):
            picture = patch.paint(features.keypoints, np.ascontiguousarray(inputs), size)
            similar.setdefault(("scale", name), []).append(picture_scores(picture, pixels)["ssim"])
        flat = np.full(pixels.shape, pixels.mean() / 255)
        similar.setdefault(("scale", "flat picture"), []).append(picture_scores(flat, pixels)["ssim"])
        count, places = len(features), mixture.places
        parts = {
            "real rows: no chaff, or an oracle": places[mixture.is_real],
            "all rows": places,
            "the third taken for real": places[np.argsort(-scores, kind="stable")[:count]],
            "a third at random": places[rng.permutation(len(scores))[:count]],
            "control: places at random": rng.uniform(0, 1, (count, 2)) * size - 0.5,
            "control: a single feature": places[:1],
        }
        for case, some in parts.items():
            keypoints = np.pad(some, ((0, 0), (0, 2))).astype(np.float32)
            for name, inverter in inverters.items():
                picture = invert_image(inverter, keypoints, np.tile(inverter.mean, (len(some), 1)), size)
                similar.setdefault((case, name), []).append(picture_scores(picture, pixels)["ssim"])
    clear, floor = (float(np.mean(similar[("scale", name)])) for name in ("clear", "floor"))
    found = [
        row("painted", case, f"ssim, {name}", values) for (case, name), values in similar.items() if case == "scale"
    ]
    for (case, name), values in similar.items():
        if case != "scale":
            found.append(row("painted", case, f"ssim, {name}", values))
            found.append(row("painted", case, f"leakage, {name}", leakage(float(np.mean(values)), floor, clear)))
    return found


# --- cost


def processor_seconds(work: Callable[..., Any], *inputs: Any, **settings: Any) -> tuple[Any, float]:
    """Return what a function gives, and the seconds of the processor that it takes, on all threads together.

    What else runs on the machine changes them less than it does the time on the clock.
    """
    start = time.process_time()
    result = work(*inputs, **settings)
    return result, time.process_time() - start


def plane_pairs(args: Any, folder: Path | None) -> list[tuple[Any, Any, Floats]]:
    """Return pairs of pictures with their homographies: the first three of each plane."""
    if folder is None:
        pair = small_pair(args)
        return [(pair.first, pair.second, pair.homography)]
    pairs: list[Pair] = [
        pair for one in read_homography_folder(folder / "homography") for pair in pairs_of(one)[:3]
    ]  # fmt: skip
    return [(pair.first, pair.second, pair.homography) for pair in pairs]


def match_planes(pairs: list[tuple[Any, Any, Floats]], concealed: Mapping[str, Any]) -> tuple[list[float], ...]:
    """Return, pair by pair, the correct matches, their share, and the seconds."""
    correct, shares, spent = list[float](), list[float](), list[float]()
    for first, second, homography in pairs:
        a, b = concealed[id_of(first)], concealed[id_of(second)]
        matches, seconds = processor_seconds(sfumato.match, a, b, threads=1)
        ends = (side.keypoints[matches.indices[:, column], :2] for column, side in enumerate((a, b)))
        right = transfer_errors(homography, *ends) < 3
        correct.append(float(right.sum()))
        shares.append(float(right.mean()) if len(right) else 0.0)
        spent.append(seconds)
    return correct, shares, spent


def cost_on_planes(args: Any, folder: Path | None, place: Path) -> list[Row]:
    """Measure archives, concealment and matching on pairs of pictures of planes; keys are drawn, and times vary."""
    pairs, key, rows = plane_pairs(args, folder), sfumato.new_key(), list[Row]()
    names = {id_of(picture): picture for first, second, _ in pairs for picture in (first, second)}
    local = LocalParams(max_features=args.features)
    extracted = {name: processor_seconds(extract, picture, local) for name, picture in names.items()}
    real = sum(len(features) for features, _ in extracted.values())
    warm = sfumato.conceal(next(iter(extracted.values()))[0], "sealed-512", secret=key)
    sfumato.match(warm, warm, threads=1)
    base: Mapping[str, float] = {}
    for amount in args.amounts:
        recipe, case = f"sealed-512+chaff-{amount}" if amount else "sealed-512", f"chaff-{amount}"
        timed = {
            name: processor_seconds(sfumato.conceal, features, recipe, secret=key)
            for name, (features, _) in extracted.items()
        }
        concealed = {name: one for name, (one, _) in timed.items()}
        correct, shares, spent = match_planes(pairs, concealed)
        alone, before = (float(np.mean([seconds for _, seconds in one.values()])) for one in (timed, extracted))
        archive = place / f"{case}.sfm"
        sfumato.save(archive, {f"{number}.png": one for number, one in enumerate(concealed.values())})
        rows.append(row("cost", case, "bytes of an archive per real feature", archive.stat().st_size / real))
        rows.append(row("cost", case, "seconds to conceal a photo", alone))
        means = {"extract and conceal a photo": alone + before, "match a pair": float(np.mean(spent))}
        base = base or means
        for name, mean in means.items():
            rows.append(row("cost", case, f"seconds to {name}", mean))
            rows.append(row("cost", case, f"seconds to {name}, times chaff-{args.amounts[0]}", mean / base[name]))
        rows.append(row("cost", case, "correct matches of a pair", correct))
        rows.append(row("cost", case, "accuracy of a pair", shares))
    return rows


def id_of(picture: Any) -> str:
    """Return a name for a picture: its path, or a number of its own."""
    return str(picture) if isinstance(picture, Path) else str(id(picture))


def match_all(concealed: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Match every photo with every other."""
    return {(a, b): sfumato.match(concealed[a], concealed[b], threads=1) for a, b in combinations(sorted(concealed), 2)}


def cost_of_maps(args: Any, folder: Path | None, place: Path) -> list[Row]:
    """Map a place without one of its photos, and localize that one."""
    if folder is None:
        save_room(make_room(None, np.random.default_rng(args.seed), views=4, width=240, height=180), place / "room")
        images = place / "room" / "images"
    else:
        images = folder / "posed/fountain-P11/images"
    local, key, rows = LocalParams(max_features=args.map_features), sfumato.new_key(), list[Row]()
    clear = {path.name: extract(path, local) for _, path in list_images(images)}
    query = sorted(clear)[len(clear) // 2]
    for amount in args.amounts:
        recipe, case = f"sealed-512+chaff-{amount}" if amount else "sealed-512", f"chaff-{amount}"
        concealed = {name: sfumato.conceal(one, recipe, secret=key) for name, one in clear.items()}
        archive, queries, model = (place / f"{case}-{name}" for name in ("map.sfm", "query.sfm", "model"))
        sfumato.save(archive, {name: one for name, one in concealed.items() if name != query})
        sfumato.save(queries, {query: concealed[query]})
        matches, seconds = processor_seconds(match_all, {name: one for name, one in concealed.items() if name != query})
        rows.append(row("cost", case, "seconds to match the photos of a map", seconds))
        outcome, seconds = processor_seconds(sfumato.build_map, archive, matches, model)
        rows.append(row("cost", case, "seconds to make a map of matches", seconds))
        rows.append(row("cost", case, "photos in the map", float(outcome.statistics.registered)))
        rows.append(row("cost", case, "points of the map", float(outcome.statistics.points)))
        if outcome.folder is None:
            note(f"{case}: no map, {outcome.reason}")
            continue
        found, seconds = processor_seconds(sfumato.localize, queries, outcome.folder)
        rows.append(row("cost", case, "seconds to localize a query", seconds))
        rows.append(row("cost", case, "inliers of a query", float(found.results[query].inliers)))
    return rows


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="SOURCE")
    parser.add_argument("--photos", type=int, default=40, help="photos under attack")
    parser.add_argument("--painted", type=int, default=20, help="photos that are painted")
    parser.add_argument("--lookups", type=int, default=8, help="photos whose layouts are looked up, or released twice")
    parser.add_argument("--learners", type=int, default=240, help="photos that attackers learn from")
    parser.add_argument("--bank", type=int, default=100, help="photos of the public bank")
    parser.add_argument("--draws", type=int, default=3, help="draws of chaff for each photo that is learned from")
    parser.add_argument("--minutes", type=float, default=5, help="of the processor, for each network")
    parser.add_argument("--rows", type=int, default=150_000, help="features that trees learn from")
    parser.add_argument("--features", type=int, default=2000, help="features of a photo at most")
    parser.add_argument("--map-features", type=int, default=4000, help="features of a photo of a map at most")
    parser.add_argument("--amounts", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="amounts of chaff to pay for")
    parser.add_argument("--work", type=Path, help="keeps the networks that tell sources from run to run")
    parser.add_argument("--inverters", type=Path, help="a folder of inverters of positions instead of the bundled ones")
    args = parser.parse_args()
    folder = None if args.small else data_folder()
    if folder is None:
        args.small, args.minutes, args.draws, args.lookups, args.amounts = True, 0.005, 1, 1, [0, 1]
        args.learners, args.features, args.map_features = 4, 150, 300
    rows = list[Row]()
    with pinned_threads(1), tempfile.TemporaryDirectory(prefix="sfumato-chaff-") as place:
        sources = args.sources if "telling" in args.only else ["chaff"]
        if set(args.only) & {"telling", "painted"}:
            photos, noise, of_chaff = load_photos(args, folder), dict[int, Features](), None
            for name in sources:
                found, answers = tell_source(name, photos, noise, args)
                rows += found if "telling" in args.only else []
                of_chaff = answers if name == "chaff" else of_chaff
            if "telling" in args.only:
                rows += tell_plain_layouts(photos, args) + tell_releases(photos, args) + tell_matches(args, folder)
            if "painted" in args.only and of_chaff is not None:
                rows += paint(of_chaff, args)
        if "cost" in args.only:
            rows += cost_on_planes(args, folder, Path(place)) + cost_of_maps(args, folder, Path(place))
    sizes = {name: getattr(args, name) for name in ("photos", "painted", "lookups", "learners", "bank", "draws",
             "minutes", "features", "map_features")}  # fmt: skip
    finish("chaff", args, {"recipe": RECIPE, **sizes}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
