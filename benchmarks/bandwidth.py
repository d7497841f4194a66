# SPDX-License-Identifier: Apache-2.0
"""Bandwidths of seals for each kind of descriptor: what they keep of the correct matches, and what they show.

    python benchmarks/bandwidth.py --json out.json                        # needs the data below SFUMATO_DATA
    python benchmarks/bandwidth.py --attack --json out.json               # what an attack reads, in place of matches
    python benchmarks/bandwidth.py --aliked aliked-n16.pth                # with ALIKED's published weights

"kept" is the share of the correct matches (3 px, mutual nearest) of clear descriptors that sealed ones have, within the
limit of chance; summed over the pairs of the homography sequences, image 1 with images 2, 4 and 6. "of sift" is the
same as a share of clear SIFT's. "accuracy" is the mean share of matches that are correct.

What attackers without the key see of unrelated features (of different photos): "shown" is the mean square of the
expected deviation of the bits that agree from one half, in standard deviations of that many throws of a coin;
"measurable" the share of pairs where it is above one. "read" (--attack) is the correlation of descriptors with what the
oracle alignment reads of them (attacks/seals/alignment.py), mean of two keys: 0 for nothing but their mean. A kind has
the widest bandwidth, of two digits, at which "read" is not above SIFT's at 0.235.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

from sfumato.attacks.knowledge import rows_of
from sfumato.attacks.seals.alignment import learn_with_oracle
from sfumato.concealment.seal import BANDWIDTHS, estimate_bandwidth, kind_of, make_seal
from sfumato.experiments.data import read_homography_folder
from sfumato.features.local import LocalParams, extract
from sfumato.images.homography import make_pair, warp_points
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_paths
from sfumato.matching.mutual import chance_limit
from sfumato.types.clear import Image
from sfumato.types.recipe import Recipe

Floats = np.ndarray
Described = tuple[Floats, Floats]
Pair = tuple[Image, Image, Floats]
Describe = Callable[[Image, int], Described]

BITS = 512
CORRECT_PX = 3.0
NUMBERS = (2, 4, 6)
FACTORS = (0.85, 0.92, 1.0, 1.05, 1.15)
"""Bandwidths that are tried, as shares of a kind's own."""
ATTACKED = (0.92, 1.0, 1.05)
PAIRS_OF_ROWS = 1_000_000


def kinds(args: Any) -> dict[str, Describe]:
    """Return the extractors at hand by name: an image and a number of features in, positions and descriptors out."""

    def local(**settings: Any) -> Describe:
        def describe(image: Image, most: int) -> Described:
            features = extract(image, LocalParams(max_features=most, contrast_threshold=args.contrast, **settings))
            return features.keypoints[:, :2].astype(np.float64), np.asarray(features.descriptors)

        return describe

    found = {
        "sift": local(extractor="opencv", descriptor="sift"),
        "rootsift": local(extractor="opencv", descriptor="rootsift"),
        "rootsift of COLMAP": local(extractor="colmap", descriptor="rootsift"),
    }
    weights = None if data_folder() is None else data_folder().parent / "weights" / "hardtfeat.safetensors"
    if weights is not None and weights.exists() and not args.small:
        found["hardtfeat"] = local(extractor="opencv", descriptor="hardtfeat", weights=weights)
    if args.aliked is not None:
        found["aliked-n16"] = aliked(args.aliked)
    return {name: describe for name, describe in found.items() if not args.kinds or name in args.kinds}


def aliked(weights: Path) -> Describe:
    """Return ALIKED (Zhao et al. 2023) as kornia has it, with a file of its published weights; the strongest points."""
    import torch
    from kornia.feature.aliked import ALIKED

    state, networks = torch.load(weights, map_location="cpu", weights_only=True), dict[int, Any]()

    def describe(image: Image, most: int) -> Described:
        if most not in networks:
            networks[most] = ALIKED(model_name="aliked-n16", max_num_keypoints=most, detection_threshold=-1).eval()
            networks[most].load_state_dict(state, strict=False)  # all but a grid of the picture's size
        pixels = image.pixels if image.pixels.ndim == 3 else np.repeat(image.pixels[:, :, None], 3, axis=2)
        with torch.inference_mode():
            tensor = torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255)[None]
            features = networks[most](tensor)[0]
        return features.keypoints.numpy().astype(np.float64), features.descriptors.numpy()

    return describe


def pairs(args: Any) -> Iterator[Pair]:
    """Yield pairs of pictures with the homography between them: those of the data, or generated ones."""
    folder = data_folder()
    if folder is None or args.small:
        rng = np.random.default_rng(args.seed)
        for path in list(sample_paths().values())[: 1 if args.small else None]:
            pair = make_pair(read_image(path), rng)
            yield pair.first, pair.second, pair.homography
        return
    for sequence in read_homography_folder(folder / "homography"):
        first = read_image(sequence.paths[0])
        for number in NUMBERS:
            matrix = sequence.homographies[number - 2]
            sign = -1.0 if np.linalg.det(matrix) < 0 else 1.0
            yield first, read_image(sequence.paths[number - 1]), sign * matrix


def photos(args: Any, part: str, count: int) -> list[Image]:
    """Return photos of other things, or samples without the data."""
    folder = data_folder()
    if folder is None or args.small:
        return [read_image(path) for path in list(sample_paths().values())[:2]]
    return [read_image(path) for _, path in list_images(folder / "photos" / "bsds500" / part)[:count]]


def mutual(first: Floats, second: Floats, *, is_bits: bool) -> tuple[Floats, Floats, Floats]:
    """Return rows of mutual nearest and their distances, exact: numbers of different bits, or Euclidean."""
    import faiss

    nearest = []
    for query, reference in ((first, second), (second, first)):
        index = faiss.IndexBinaryFlat(8 * query.shape[1]) if is_bits else faiss.IndexFlatL2(query.shape[1])
        index.add(reference)
        nearest.append(index.search(query, 1))
    (distances, there), (_, back) = nearest
    rows = np.arange(len(first))
    chosen = back[there[:, 0], 0] == rows
    found = distances[chosen, 0].astype(np.float64)
    return rows[chosen], there[chosen, 0], found if is_bits else np.sqrt(np.maximum(found, 0))


def described_pairs(images: Iterator[Pair], describe: Describe, most: int) -> list[tuple[Described, Described, Floats]]:
    """Return the pairs with their features; the first image of a sequence is described once."""
    result, last = [], (None, None)
    for first, second, homography in images:
        if first is not last[0]:
            last = first, describe(first, most)
        result.append((last[1], describe(second, most), homography))
    return result


class Matching:
    """Pairs described by one kind, and the correct matches among them."""

    def __init__(self, described: list[tuple[Described, Described, Floats]]) -> None:
        self._pairs, self.distances, self.correct = described, list[Floats](), 0
        for (points0, rows0), (points1, rows1), homography in described:
            first, second, distances = mutual(rows0, rows1, is_bits=False)
            good = self._good(points0[first], points1[second], homography)
            self.distances.append(distances[good])
            self.correct += int(good.sum())

    def sealed(self, bandwidth: float, seed: int) -> tuple[int, float]:
        """Return the number of correct matches of all pairs, sealed, and the mean accuracy."""
        correct, accuracy = 0, []
        for (points0, rows0), (points1, rows1), homography in self._pairs:
            seal = make_seal(b"benchmark key %d" % seed, rows0.shape[1], BITS, bandwidth)
            first, second, differing = mutual(seal(rows0).packed, seal(rows1).packed, is_bits=True)
            limit = chance_limit(Recipe.of(f"sealed-{BITS}"), max(len(rows0), len(rows1))) or 0.0
            near = differing <= limit
            good = self._good(points0[first[near]], points1[second[near]], homography)
            correct += int(good.sum())
            accuracy.append(float(good.mean()) if len(good) else 0.0)
        return correct, float(np.mean(accuracy))

    @staticmethod
    def _good(points0: Floats, points1: Floats, homography: Floats) -> Floats:
        return np.linalg.norm(warp_points(homography, points0) - points1, axis=1) <= CORRECT_PX


def unrelated_distances(images: list[Floats], rng: np.random.Generator) -> Floats:
    """Return distances between descriptors of different photos."""
    rows, owner = np.concatenate(images), np.repeat(np.arange(len(images)), [len(one) for one in images])
    i, j = rng.integers(0, len(rows), (2, PAIRS_OF_ROWS))
    different = owner[i] != owner[j]
    parts = zip(np.array_split(i[different], 50), np.array_split(j[different], 50), strict=True)
    return np.concatenate([np.linalg.norm(rows[one] - rows[other], axis=1) for one, other in parts])


def deviations(distances: Floats, bandwidth: float) -> Floats:
    """Return the expected deviation of agreeing bits from one half, in standard deviations of throws of a coin."""
    grid, odd = np.linspace(0, 6, 3001), np.arange(1, 60, 2)[:, None]
    curve = np.sqrt(BITS) * 8 / np.pi**2 * (np.exp(-((odd * grid) ** 2) / 2) / odd**2).sum(axis=0)
    return np.interp(distances / bandwidth, grid, curve, right=0.0)


def read_by_oracle(clear: Floats, public: Floats, bandwidth: float, seed: int) -> float:
    """Return the correlation of descriptors with what the oracle alignment reads of their bits."""
    codes = rows_of(make_seal(b"benchmark key %d" % seed, clear.shape[1], BITS, bandwidth)(clear))
    guesses = learn_with_oracle(codes, clear, public, bandwidth)(codes)
    one, other = guesses - guesses.mean(axis=0), clear - clear.mean(axis=0)
    return float((one * other).sum() / np.sqrt(np.square(one).sum() * np.square(other).sum()))


def matched_rows(name: str, describe: Describe, args: Any, clear_sift: int | None) -> tuple[list[dict[str, Any]], int]:
    """Return what each bandwidth keeps of the matches of a kind and shows, and the correct matches in the clear."""
    most, usual = 300 if args.small else args.features, BANDWIDTHS[kind_of(name)]
    released = [describe(image, 1000)[1] for image in photos(args, "val", args.photos)]
    matching = Matching(described_pairs(pairs(args), describe, most))
    baseline = matching.correct if name == "sift" else clear_sift
    apart = unrelated_distances(released, np.random.default_rng(args.seed))
    estimates = [one for one in map(estimate_bandwidth, released) if one is not None]
    rows = []
    for bandwidth in (round(factor * usual, 3) for factor in ((1.0,) if args.small else FACTORS)):
        note(f"{name}: bandwidth {bandwidth}")
        (correct, accuracy), deviation = matching.sealed(bandwidth, args.seed), deviations(apart, bandwidth)
        rows.append({
            "kind": name, "bandwidth": bandwidth, "correct": correct, "kept": correct / max(1, matching.correct),
            "of sift": None if baseline is None else correct / max(1, baseline), "accuracy": accuracy,
            "shown": float(np.square(deviation).mean()), "measurable": float((deviation > 1).mean()),
            **distance_figures(matching, apart, estimates),
        })  # fmt: skip
    return rows, matching.correct


def attacked_rows(name: str, describe: Describe, args: Any) -> list[dict[str, Any]]:
    """Return what the oracle alignment reads of a kind with each bandwidth."""
    clear = np.concatenate([describe(image, 1000)[1] for image in photos(args, "val", args.photos)])
    public = np.concatenate([describe(image, 400)[1] for image in photos(args, "train", 100)])
    public = np.ascontiguousarray(public[np.random.default_rng(args.seed).permutation(len(public))])
    rows = []
    for bandwidth in (round(factor * BANDWIDTHS[kind_of(name)], 3) for factor in ATTACKED):
        note(f"{name}: attack at {bandwidth}")
        read = [read_by_oracle(clear, public, bandwidth, seed) for seed in (args.seed, args.seed + 1)]
        rows.append({"kind": name, "bandwidth": bandwidth, "codes": len(clear), "public": len(public),
                     "read": float(np.mean(read)), "spread": float(np.ptp(read))})  # fmt: skip
    return rows


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--attack", action="store_true", help="run the oracle alignment in place of matching")
    parser.add_argument("--features", type=int, default=8000, help="most features of an image of a pair")
    parser.add_argument("--contrast", type=float, default=0.02, help="contrast threshold of OpenCV and COLMAP")
    parser.add_argument("--photos", type=int, default=30, help="photos whose features are released under one key")
    parser.add_argument("--aliked", type=Path, help="published weights of ALIKED, aliked-n16.pth")
    parser.add_argument("--kinds", nargs="*", help="only these")
    args = parser.parse_args()
    rows, clear_sift = list[dict[str, Any]](), None
    with pinned_threads(1):
        for name, describe in kinds(args).items():
            note(f"{name}: features")
            if args.attack:
                rows += attacked_rows(name, describe, args)
                continue
            more, correct = matched_rows(name, describe, args, clear_sift)
            rows += more
            clear_sift = correct if name == "sift" else clear_sift
    sizes = {"features": args.features, "contrast": args.contrast, "released": args.photos, "numbers": list(NUMBERS)}
    finish("bandwidth", args, sizes, rows)
    return 0


def distance_figures(matching: Matching, apart: Floats, estimates: list[float]) -> dict[str, float | None]:
    """Return quantiles of distances of correct matches and of unrelated features, and what images alone suggest."""
    matched = np.concatenate(matching.distances)
    return {
        "match 0.5": float(np.quantile(matched, 0.5)), "match 0.9": float(np.quantile(matched, 0.9)),
        "unrelated 0.01": float(np.quantile(apart, 0.01)), "unrelated 0.5": float(np.quantile(apart, 0.5)),
        "estimate least": min(estimates, default=None), "estimate most": max(estimates, default=None),
        "estimate": float(np.median(estimates)) if estimates else None,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
