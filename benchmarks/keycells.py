# SPDX-License-Identifier: Apache-2.0
"""Seals with a key for each cell of the descriptors: matches, key recovery and alignment. Verdict: not worth it.

    python benchmarks/keycells.py --json out.json       # needs the photos and pairs below SFUMATO_DATA, and torch

A seal is found out from one or two thousand known features. If directions and offsets depend on a secret cell of the
descriptor, an attacker needs as many of each cell. A feature has a code under each of its best few cells, with the
cell's number, and only codes of one cell are compared; the bits of a feature are those of the plain seal in all.
"corners" are cells of a cross-polytope under a secret rotation, "periodic" ones a few bits of another seal, of the
bandwidth named, in a secret order. Nothing of this is in the package.

"share a cell": correct matches of clear descriptors that do; "compared": pairs of features that are; "correct" matches
per pair of the homography sequences (2,000 features, mutual nearest, limit of chance for the candidates that are
compared). "foretold": bits of unknown descriptors, from this many known ones, 0.5 for nothing; of two cells, drawn as
often as features are under them. The rest is the correlation of descriptors with what is read of them, 0 for nothing:
"read" from this many known pairs (plain: codes, or the key found; others: numbers of cells alone); "aligned" and "told"
without one (plain: codes; others: numbers of cells); "told within" of the codes of a cell, whose public descriptors are
told, too; "by counts" with the rotation whose cells are together as often as the real ones ("mismatch" of the best
found, and of the key's own). One key. The ridge of "read" and the better attack are chosen by the truth. "told" is no
bound for periodic cells: those of one key are too few to have the components of all keys.

Corners: 50,000 known features foretell 0.90 of the bits, as 2,000 do of a plain seal, so the key is 25 times as hard.
But 0.07 of the correct matches are lost with equal bytes, and 0.04 even with twice the bytes; and numbers of cells show
what seals hide. Told, they read 0.33 (128 cells: 0.44) where all bits of a plain seal read 0.17; and 200 known features
read 0.40 of everybody's, where of a plain seal they read 0.06, and 1,000 with the key they give 0.21. So few known
features do more harm, not less. Without an oracle or a known pair little is read: -0.04 and -0.01 by moments, 0.04 and
0.09 by counts (plain: 0.06). Other rotations fit the counts as well as the key's own. Better searches may do more, and
numbers of cells and codes were not aligned together.

Periodic cells trade one for the other. As narrow as the seal, half of the correct pairs share none of 64. At twice its
bandwidth 200 known features read 0.06, as of the seal, and the key is 5 to 25 times as hard, but 0.18 of the correct
matches are lost. Of 16 such cells 0.10 are lost, 10,000 known features give the key all the same (0.96), and 200 read
0.15. At four times the bandwidth 0.07 are lost, most features are in few cells, 10,000 give the key (0.93), and 200
read 0.23.

A key that is 25 times as hard takes 25 to 50 photos in place of one or two: who can have one sealed can have more. The
default keeps 0.85 of raw's correct matches and must keep 0.83, so it has none to spare for that.
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from bandwidth import Described, described_pairs, mutual, pairs, photos
from common import arguments, data_folder, finish, note, pinned_threads

from sfumato.attacks.knowledge import KnownPairs, rows_of
from sfumato.attacks.seals.alignment import (
    BLOCK,
    FEWEST,
    RIDGE,
    SMOOTHING,
    AlignmentParams,
    components,
    distinct,
    grow,
    learn_alignment,
    learn_with_oracle,
    polar,
    search,
    standardise,
    symmetry_turn,
)
from sfumato.attacks.seals.attacks import FEWEST_FOR_A_KEY, mirror_orders
from sfumato.attacks.seals.key import read_with_key, recover_key
from sfumato.attacks.seals.known_pairs import linear_map, linear_maps, read_codes, unlike_none
from sfumato.concealment.seal import BANDWIDTH, make_seal
from sfumato.features.local import LocalParams, extract
from sfumato.images.homography import warp_points
from sfumato.matching.mutual import chance_bits
from sfumato.types.clear import Image

Floats = np.ndarray
Cells = Callable[[Floats], Floats]
"""Descriptors (N, n) in, the numbers of the cells of each (N, m) out, the best first."""

CORRECT_PX = 3.0
OWN_BITS = 2048
"""Numbers with which the attacker works out what cells of any key have in common."""
CELLS_TRIED, BITS_TRIED = 2, 32
"""Cells whose keys are recovered, and bits of each: bits are recovered one by one, more of them tell no more."""
FEWEST_KNOWN = 30
TOLD_CELLS, READ = 6, 2000
MOST_PLAIN = 10_000
RIDGES = (0.05, 0.5, 3.0)
COUNT_STARTS, COUNT_STEPS = 10, 300
COUNTS_UNKNOWN: dict[str, float | None] = {"by counts": None, "mismatch": None, "mismatch of key": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A seal to be tried: ``bits`` of one code, ``cells`` of which each feature is under ``each``, and of what kind.

    Cells are "corners" of a cross-polytope, or "periodic" with a ``bandwidth``; a plain seal has one.
    """

    name: str
    bits: int
    cells: int = 1
    each: int = 1
    kind: str = "plain"
    bandwidth: float = 0.0
    is_attacked: bool = True

    def draw(self, key: bytes, middle: Floats) -> Cells:
        """Return the cells of a key; ``middle`` (n,) is the public mean of descriptors."""
        rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(key, digest_size=16).digest(), "big"))
        if self.kind == "plain":
            return lambda rows: np.zeros((len(rows), 1), np.intp)
        if self.kind == "corners":
            return corners(rng, self.cells, self.each, middle)
        return periodic(rng, self.cells, self.each, self.bandwidth, len(middle))


SHAPES = (
    Shape(name="plain", bits=512),
    Shape(name="plain, twice the bits", bits=1024, is_attacked=False),
    Shape(name="corners", bits=256, cells=64, each=2, kind="corners"),
    Shape(name="corners, twice the bits", bits=512, cells=64, each=2, kind="corners", is_attacked=False),
    Shape(name="corners", bits=168, cells=128, each=3, kind="corners"),
    Shape(name="periodic 0.235", bits=256, cells=64, each=2, kind="periodic", bandwidth=0.235, is_attacked=False),
    Shape(name="periodic 0.47", bits=256, cells=64, each=2, kind="periodic", bandwidth=0.47),
    Shape(name="periodic 0.47", bits=256, cells=16, each=2, kind="periodic", bandwidth=0.47),
    Shape(name="periodic 0.47", bits=128, cells=64, each=4, kind="periodic", bandwidth=0.47, is_attacked=False),
    Shape(name="periodic 0.94", bits=256, cells=64, each=2, kind="periodic", bandwidth=0.94),
)
SMALL_SHAPES = (
    Shape(name="plain", bits=64),
    Shape(name="corners", bits=64, cells=8, each=2, kind="corners"),
    Shape(name="periodic 0.47", bits=64, cells=8, each=2, kind="periodic", bandwidth=0.47),
)


def corners(rng: np.random.Generator, cells: int, each: int, middle: Floats) -> Cells:
    """Return cross-polytope cells: the largest coordinates, with sign, under a random rotation (Andoni et al. 2015)."""
    rotation = np.linalg.qr(rng.standard_normal((len(middle), cells // 2)))[0].astype(np.float32)
    return lambda rows: corner_cells(rows, rotation, each, middle)


def corner_cells(rows: Floats, rotation: Floats, each: int, middle: Floats) -> Floats:
    """Return the cells (N, m) of rows under a rotation (n, cells / 2)."""
    turned = (rows - middle) @ rotation
    largest = np.argsort(-np.abs(turned), axis=1)[:, :each]
    cells: Floats = 2 * largest + (np.take_along_axis(turned, largest, axis=1) < 0)
    return cells


def periodic(rng: np.random.Generator, cells: int, each: int, bandwidth: float, width: int) -> Cells:
    """Return cells that are bits of a seal, in a secret order: the bits, then those with one unsure bit changed."""
    count = int(np.log2(cells))
    directions = (rng.standard_normal((width, count)) / bandwidth).astype(np.float32)
    phases, order = rng.uniform(0, 2 * np.pi, count), rng.permutation(cells)

    def of(rows: Floats) -> Floats:
        waves = np.cos(rows @ directions + phases)
        patterns = [(waves < 0) @ (1 << np.arange(count))]
        unsure = np.argsort(np.abs(np.arcsin(waves)), axis=1)
        patterns += [patterns[0] ^ (1 << unsure[:, number]) for number in range(each - 1)]
        return order[np.stack(patterns, axis=1)]

    return of


@dataclass(frozen=True, slots=True)
class Release:
    """What a server holds: the cells of each feature (N, m), and its codes under them (N, m, B), plus or minus 1."""

    tags: Floats
    codes: Floats

    def of_cell(self, cell: int) -> tuple[Floats, Floats]:
        """Return the rows of features under a cell, and their codes there (M, B), each of norm 1."""
        rows, places = np.nonzero(self.tags == cell)
        return rows, self.codes[rows, places] / np.float32(np.sqrt(self.codes.shape[2]))


def indicator(tags: Floats, cells: int) -> Floats:
    """Return which cells features are under (N, cells), as 0 and 1."""
    rows = np.zeros((len(tags), cells), np.float32)
    np.put_along_axis(rows, tags, 1, axis=1)
    return rows


class CellSeal:
    """Cells of a key and a seal for each of them, all of its own directions and offsets."""

    def __init__(self, shape: Shape, key: bytes, middle: Floats) -> None:
        self.shape = shape
        self.cells = shape.draw(key, middle)
        self.seals = [make_seal(b"%s cell %d" % (key, one), len(middle), shape.bits) for one in range(shape.cells)]

    def __call__(self, rows: Floats) -> Release:
        tags = self.cells(rows)
        codes = np.empty((*tags.shape, self.shape.bits), np.int8)
        for cell, seal in enumerate(self.seals):
            at = tags == cell
            codes[at] = np.sign(rows_of(seal(rows[at.any(axis=1)])))
        return Release(tags, codes)


# --- matching


def matched(first: Release, second: Release, shape: Shape) -> tuple[Floats, Floats, float]:
    """Return rows of mutual nearest within the limit of chance, and the share of pairs of features compared.

    Features that share several cells are compared by the bits of all of them.
    """
    excess = np.zeros((len(first.tags), len(second.tags)), np.float32)
    shared = np.zeros_like(excess)
    for cell in range(shape.cells):
        (rows0, ones), (rows1, others) = first.of_cell(cell), second.of_cell(cell)
        excess[np.ix_(rows0, rows1)] += np.rint(shape.bits * (ones @ others.T))
        shared[np.ix_(rows0, rows1)] += 1
    score = np.where(shared > 0, excess / np.sqrt(np.maximum(shared, 1)), -np.inf)
    there, back = score.argmax(axis=1), score.argmax(axis=0)
    rows = np.flatnonzero(back[there] == np.arange(len(there)))
    number, compared = shared[rows, there[rows]].astype(int), float((shared > 0).mean())
    candidates = max(1, int(np.ceil(compared * max(score.shape))))
    limits = np.array([0, *(chance_bits(shape.bits * one, candidates) for one in range(1, shape.each + 1))])
    differing = (shape.bits * number - excess[rows, there[rows]]) / 2
    rows = rows[(number > 0) & (differing <= limits[number])]
    return rows, there[rows], compared


def matching_figures(described: list[tuple[Described, Described, Floats]], seal: CellSeal) -> dict[str, float]:
    """Return correct matches per pair, accuracy, and the shares of pairs that share a cell: correct ones, and all."""
    correct, accuracy, compared, together = list[int](), list[float](), list[float](), list[Floats]()
    for (points0, rows0), (points1, rows1), homography in described:
        moved, first, second = warp_points(homography, points0), seal(rows0), seal(rows1)
        one, other, share = matched(first, second, seal.shape)
        right = np.linalg.norm(moved[one] - points1[other], axis=1) <= CORRECT_PX
        correct.append(int(right.sum()))
        accuracy.append(float(right.mean()) if len(right) else 0.0)
        compared.append(share)
        one, other, _ = mutual(rows0, rows1, is_bits=False)
        right = np.linalg.norm(moved[one] - points1[other], axis=1) <= CORRECT_PX
        together.append((first.tags[one[right], :, None] == second.tags[other[right], None, :]).any(axis=(1, 2)))
    return {
        "share a cell": float(np.concatenate(together).mean()), "compared": float(np.mean(compared)),
        "correct": float(np.mean(correct)), "accuracy": float(np.mean(accuracy)),
    }  # fmt: skip


# --- key recovery


def foretold(seal: CellSeal, known: Floats, unknown: Floats, rng: np.random.Generator) -> float:
    """Return the share of bits of unknown descriptors that the keys found of some cells foretell, 0.5 for nothing.

    Cells are drawn as often as features are under them.
    """
    here, there, shares = seal(known), seal(unknown), []
    for cell in rng.choice(there.tags[:, 0], 1 if seal.shape.cells == 1 else CELLS_TRIED):
        (rows0, codes), (rows1, truth) = here.of_cell(cell), there.of_cell(cell)
        if len(rows0) < FEWEST_KNOWN:
            shares.append(0.5)
            continue
        waves = recover_key(known[rows0], codes[:, :BITS_TRIED], BANDWIDTH)
        shares.append(float((waves.codes(unknown[rows1]) == np.sign(truth[:, :BITS_TRIED])).mean()))
    return float(np.mean(shares))


def read_with_pairs(seal: CellSeal, known: Floats, unknown: Floats, public: Floats) -> float:
    """Return what known pairs read of unknown features: of a plain seal its codes, by the better of two attacks; of
    others the cells alone, by least squares from cells to descriptors."""
    here, there = seal(known), seal(unknown)
    if seal.shape.cells > 1:
        ways = linear_maps(indicator(here.tags, seal.shape.cells), known, RIDGES)
        return max(reading(way(indicator(there.tags, seal.shape.cells)), unknown) for way in ways)
    codes, targets = here.of_cell(0)[1], there.of_cell(0)[1]
    read = [read_codes(targets, KnownPairs(descriptors=known, codes=codes)).descriptors]
    if len(known) >= FEWEST_FOR_A_KEY:
        read.append(read_with_key(targets, recover_key(known, codes, BANDWIDTH), public))
    return max(reading(one, unknown) for one in read)


# --- alignment


def reading(guesses: Floats, clear: Floats) -> float:
    """Return the correlation of descriptors with guesses about them, 0 for nothing but their mean."""
    one, other = guesses - guesses.mean(axis=0), clear - clear.mean(axis=0)
    return float((one * other).sum() / max(1e-12, np.sqrt(np.square(one).sum() * np.square(other).sum())))


def quadratic(points: Floats) -> Floats:
    """Return points (N, r) with the products of their numbers."""
    first, second = np.triu_indices(points.shape[1])
    return np.hstack([points, points[:, first] * points[:, second]]).astype(np.float32)


class TagAlignment:
    """What cells of features tell of their descriptors: components of cells, aligned with those of public descriptors.

    As alignment.py does it with codes: cells of many keys of the attacker's own have the components that those of one
    key have, but for a rotation. It is found by moments, or told.
    """

    def __init__(self, shape: Shape, tags: Floats, public: Floats, rng: np.random.Generator) -> None:
        self._rng, self._public = rng, public
        self._tags, middle = indicator(tags, shape.cells), public.mean(axis=0)

        def own(count: int) -> Callable[[Floats], Floats]:
            drawn = [shape.draw(rng.bytes(16), middle) for _ in range(count)]
            return lambda rows: np.hstack([indicator(one(rows), shape.cells) for one in drawn])

        most = max(2, min(shape.cells // 2, len(tags) // 16, len(public) // 16))
        self._axes = tuple(min(axis, most) for axis in AlignmentParams().axes)
        self.released = components(self._tags, lambda rows: rows, self._axes[-1])
        self.own = components(public, own(max(1, OWN_BITS // shape.cells)), self._axes[-1])
        self._practice = components(public, own(1), self._axes[-1])

    def told(self, clear: Floats) -> Floats:
        """Return guesses (N, n) by the best rotation there is."""
        points = standardise(np.concatenate([self.own.scores, self.own.of(clear)]))[len(self.own.scores) :]
        return self._read(polar((points.T @ standardise(self.released.scores)).astype(np.float64)))

    def searched(self, settings: AlignmentParams) -> Floats:
        """Return guesses (N, n) by the rotation under which moments agree best."""
        axes, turns = self._axes, list[Floats]()
        if self._public.shape[1] == 128:
            images = [self._public[:BLOCK][:, order] for order in mirror_orders()]
            turns = [symmetry_turn(self.own, image, axes[0]) for image in images]
        moments = self.own.moments(axes[0]), self.released.moments(axes[0])
        tops = search(*moments, self._rng, settings.starts, settings.hops, turns)
        grown = [grow(self.own, self.released, top[1], axes) for top in distinct(tops)]
        return self._read(max(grown, key=lambda one: one[0])[1])

    def _read(self, turn: Floats) -> Floats:
        points = standardise(self._practice.scores)
        own = polar((standardise(self.own.scores).T @ points).astype(np.float64))
        back = linear_map(quadratic(points @ own.T), self._public, RIDGE)
        guesses = unlike_none(back(quadratic(standardise(self.released.scores) @ turn.T)), self._public)
        return unlike_none(linear_map(self._tags, guesses, SMOOTHING)(self._tags), self._public)


def within_cells(seal: CellSeal, clear: Floats, public: Floats, cells: int) -> float:
    """Return what a told alignment reads of the codes of a cell beyond the cell's mean, mean of some cells.

    The attacker is also told which public descriptors are under the cell.
    """
    release, tags, read = seal(clear), seal.cells(public), []
    for cell in np.random.default_rng(0).choice(release.tags[:, 0], cells):
        rows, codes = release.of_cell(cell)
        likely = np.ascontiguousarray(public[(tags == cell).any(axis=1)])
        if min(len(rows), len(likely)) >= FEWEST:
            read.append(reading(learn_with_oracle(codes, clear[rows], likely, BANDWIDTH)(codes), clear[rows]))
    return float(np.mean(read)) if read else 0.0


def fitted_corners(shape: Shape, tags: Floats, public: Floats, args: Any) -> tuple[Floats, float]:
    """Return guesses (N, n) by the rotation whose cells are together as often as those seen, and the mismatch left.

    Cross-polytope cells only. Of several random starts the one with the least squared mismatch of all shares of
    features under two cells counts; steps go through soft edges of cells.
    """
    import torch

    middle, seen = public.mean(axis=0), indicator(tags, shape.cells)
    target, rows = torch.from_numpy(seen.T @ seen / len(seen)), torch.from_numpy(public - middle)
    generator, best = torch.Generator().manual_seed(args.seed), (np.inf, np.empty(0))

    def orthogonal(matrix: Any) -> Any:
        left, right = torch.linalg.qr(matrix)
        return left * torch.sign(torch.diagonal(right))

    for _ in range(2 if args.small else COUNT_STARTS):
        matrix = torch.randn(rows.shape[1], shape.cells // 2, generator=generator).requires_grad_()
        matrix.data = orthogonal(matrix.data)
        steps = 3 if args.small else COUNT_STEPS
        optimizer = torch.optim.Adam([matrix], lr=0.03)
        for number in range(steps):
            left = 1 - number / steps
            optimizer.param_groups[0]["lr"] = 0.03 * left + 0.0005
            turned = rows[torch.randint(len(rows), (2048,), generator=generator)] @ orthogonal(matrix)
            edge = turned.abs().topk(shape.each + 1, dim=1).values[:, -2:].mean(dim=1, keepdim=True)
            beyond = torch.stack([turned, -turned], dim=2).flatten(1) - edge  # (2048, cells)
            soft = torch.sigmoid(beyond / (0.01 * (1 + 5 * left)))
            inside = (beyond > 0).float() + soft - soft.detach()
            mismatch = (inside.T @ inside / len(inside) - target).square().sum()
            optimizer.zero_grad()
            mismatch.backward()
            optimizer.step()
        rotation = orthogonal(matrix.detach()).numpy()
        own = indicator(corner_cells(public, rotation, shape.each, middle), shape.cells)
        best = min(best, (mismatch_of(own, seen), rotation), key=lambda one: one[0])
    own = indicator(corner_cells(public, best[1], shape.each, middle), shape.cells)
    return linear_map(own, public, SMOOTHING)(seen), best[0]


def mismatch_of(one: Floats, other: Floats) -> float:
    """Return the squared difference of the shares of features that are under each two cells."""
    return float(np.square(one.T @ one / len(one) - other.T @ other / len(other)).sum())


def alignment_figures(seal: CellSeal, clear: Floats, public: Floats, args: Any) -> dict[str, float | None]:
    """Return what is read without a known pair: searched and told; and for corners by counts of cells alone."""
    shape, settings = seal.shape, AlignmentParams(starts=2, hops=2) if args.small else AlignmentParams()
    rng, release = np.random.default_rng(args.seed), seal(clear)
    if shape.cells == 1:
        codes = release.of_cell(0)[1]
        images = [np.ascontiguousarray(public[:BLOCK][:, order]) for order in mirror_orders()]
        guesses = learn_alignment(codes, public, BANDWIDTH, settings, images)(codes)
        told = reading(learn_with_oracle(codes, clear, public, BANDWIDTH)(codes), clear)
        return {"aligned": reading(guesses, clear), "told": told, "told within": told} | COUNTS_UNKNOWN
    alignment, counts = TagAlignment(shape, release.tags, public, rng), dict(COUNTS_UNKNOWN)
    if shape.kind == "corners":
        guesses, left = fitted_corners(shape, release.tags, public, args)
        own = indicator(seal.cells(public), shape.cells)
        counts = {"by counts": reading(guesses, clear), "mismatch": left,
                  "mismatch of key": mismatch_of(own, indicator(release.tags, shape.cells))}  # fmt: skip
    return {
        "aligned": reading(alignment.searched(settings), clear), "told": reading(alignment.told(clear), clear),
        "told within": within_cells(seal, clear, public, 1 if args.small else TOLD_CELLS), **counts,
    }  # fmt: skip


# --- all of it


def describe(image: Image, most: int) -> Described:
    """Return positions and descriptors of an image."""
    features = extract(image, LocalParams(max_features=most))
    return features.keypoints[:, :2].astype(np.float64), np.asarray(features.descriptors)


def figures(shape: Shape, data: "Data", args: Any) -> dict[str, Any]:
    """Return the row of a seal."""
    note(f"{shape.name}")
    seal = CellSeal(shape, b"benchmark key %d" % args.seed, data.public.mean(axis=0))
    rng = np.random.default_rng(args.seed)
    row: dict[str, Any] = {
        "seal": shape.name, "bits": shape.bits * shape.each, "cells": shape.cells, "under": shape.each,
        **matching_figures(data.described, seal),
    }  # fmt: skip
    for count in args.known:  # the tree of near pairs takes long for all of so many, and a plain seal needs no more
        is_tried = shape.is_attacked and (shape.cells > 1 or count <= MOST_PLAIN)
        row[f"foretold {count}"] = foretold(seal, data.known[:count], data.clear, rng) if is_tried else None
    for count in args.pairs:
        read = read_with_pairs(seal, data.known[:count], data.clear[:READ], data.public) if shape.is_attacked else None
        row[f"read {count}"] = read
    attacked = alignment_figures(seal, data.clear, data.public, args) if shape.is_attacked else {}
    names = ("aligned", "told", "told within", *COUNTS_UNKNOWN)
    row |= {name: attacked.get(name) for name in names}
    note(str(row))
    return row


@dataclass(frozen=True, slots=True)
class Data:
    """Pairs to match; descriptors that attackers know, with their codes or without; and those that they do not."""

    described: list[tuple[Described, Described, Floats]]
    known: Floats
    public: Floats
    clear: Floats


def load(args: Any) -> Data:
    """Return what the seals are tried on."""
    note("features")
    described = described_pairs(pairs(args), describe, 300 if args.small else 2000)
    clear = np.concatenate([describe(image, 1000)[1] for image in photos(args, "val", 30)])
    others = np.concatenate([describe(image, 600)[1] for image in photos(args, "train", 160)])
    others = others[np.random.default_rng(args.seed).permutation(len(others))]
    clear = clear[np.random.default_rng(args.seed).permutation(len(clear))]
    known = max(args.known)
    return Data(described, np.ascontiguousarray(others[:known]), np.ascontiguousarray(others[-args.public :]), clear)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--known", type=int, nargs="*", default=[1000, 2000, 10_000, 50_000])
    parser.add_argument("--pairs", type=int, nargs="*", default=[200, 1000], help="known pairs that read features")
    parser.add_argument("--public", type=int, default=40_000, help="descriptors of other photos")
    args = parser.parse_args()
    args.small |= data_folder() is None
    shapes = SHAPES
    if args.small:
        args.known, args.pairs, args.public, shapes = [300], [200], 700, SMALL_SHAPES
    with pinned_threads(1):
        data = load(args)
        rows = [figures(shape, data, args) for shape in shapes]
    sizes = {"pairs": len(data.described), "known": len(data.known), "public": len(data.public),
             "unknown": len(data.clear), "bandwidth": BANDWIDTH}  # fmt: skip
    finish("keycells", args, sizes, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
