# SPDX-License-Identifier: Apache-2.0
"""Sources of chaff, and mixtures of a photo with it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chaffs.photos import Photo, Size
from sfumato.concealment.chaff import FEATURES_PER_PIXEL, SPARE, draw_picture, usual_count
from sfumato.concealment.lifting import with_chaff
from sfumato.concealment.randomness import NoiseStream
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.types.clear import Features
from sfumato.types.concealed import Bits

Floats = np.ndarray

PER_REAL = 2
RECIPE = f"sealed-512+chaff-{PER_REAL}"
PIECE = 96
"""Side of the pieces of a patchwork, in pixels."""


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
    enough, stream = int(np.ceil(SPARE * chaff_count(photo))), NoiseStream(rng.bytes(32))
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
    return (1 + PER_REAL) * usual_of(photo) - len(photo.features)


def usual_of(photo: Photo) -> int:
    """Return how many features an ordinary photo of this size has."""
    most = int(photo.features.extractor.settings["max_features"])  # type: ignore[arg-type]
    return usual_count(len(photo.features), photo.size, most)


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


SOURCES: dict[str, Source | None] = {
    "chaff": None, "own photos": from_own_photos, "noise": from_noise, "bank": from_bank,
    "patchwork": from_patchwork, "process": from_process, "uniform": from_uniform,
}  # fmt: skip
"""None: what the package does, which leaves some real features out."""


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


def mix(photo: Photo, source: Source | None, stock: Stock, rng: np.random.Generator, with_codes: bool) -> Mixture:
    """Return a photo with chaff; codes under a key of its own."""
    seal = make_seal(rng.bytes(32), photo.features.descriptors.shape[1], 512, BANDWIDTH)
    if source is None:
        mixed, is_real = with_chaff(photo.features, RECIPE, secret=rng.bytes(32))
        return Mixture(photo, mixed.keypoints[:, :2].astype(np.float64), is_real,
                       seal(mixed.descriptors) if with_codes else None)  # fmt: skip
    places, described = source(photo, stock, rng)
    together = np.concatenate([photo.places, places])
    is_real = np.arange(len(together)) < len(photo.features)
    if not with_codes:
        return Mixture(photo, together, is_real)
    coins = rng.integers(0, 256, (len(places), 64), np.uint8)
    packed = coins if described is None else seal(described).packed
    return Mixture(photo, together, is_real, Bits(np.concatenate([seal(photo.features.descriptors).packed, packed])))
