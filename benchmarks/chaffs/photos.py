# SPDX-License-Identifier: Apache-2.0
"""Photos: those under attack, those that attackers learn from, those of a bank, and pictures of planes."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sfumato
from sfumato.auditing.matching import Pair, pairs_of
from sfumato.experiments.data.folders import read_homography_folder
from sfumato.features.local import LocalParams, extract
from sfumato.images.homography import make_pair
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_image, sample_names
from sfumato.types.clear import Features

Floats = np.ndarray
Size = tuple[int, int]

FEWEST = 200
"""Features of a photo that attackers learn from, or whose layout is in the bank."""


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


def load_photos(args: argparse.Namespace, folder: Path | None, learns: bool) -> Photos:
    """Return photos in four groups that share none; unless a network ``learns``, without those it would learn from."""
    local = LocalParams(max_features=args.features)
    if folder is None:
        parts = [sample_part(name, local) for name in sample_names()[:10]]
        return Photos(parts[:2], parts[2:4], parts[4:8], parts[8:10])
    val, train, others = (
        [path for _, path in list_images(folder / "photos" / name)]
        for name in ("bsds500/val", "bsds500/train", "imagenet-samples")
    )
    half = args.learners // 2
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


def repeating_photos(args: Any, folder: Path | None) -> list[tuple[str, Photo]]:
    """Return photos that repeat themselves: a page of text and bricks and, with the data, buildings."""
    import cv2

    local = LocalParams(max_features=2 * args.features)
    page = np.full((600, 800), 255, np.uint8)
    for line in range(15):
        cv2.putText(page, "the quick brown fox jumps over the lazy dog", (20, 40 + 36 * line), 0, 0.9, 0, 2)
    bricks = np.asarray(sample_image("brick").pixels)
    photos = [("text", Photo(extract(page, local), lambda: page)),
              ("bricks", Photo(extract(bricks, local), lambda: bricks))]  # fmt: skip
    if folder is not None:
        paths = sorted((folder / "unordered" / "internet").rglob("*.jpg"))[: args.lookups]
        photos += [("buildings", photo_at(path, local)) for path in paths]
    return photos


def plane_pictures(args: Any, folder: Path | None) -> list[list[Features]]:
    """Return the features of pictures of a plane, plane by plane."""
    local = LocalParams(max_features=args.features)
    if folder is None:
        return [[extract(picture, local) for picture in (pair.first, pair.second)] for pair in [small_pair(args)]]
    return [[extract(path, local) for path in one.paths] for one in read_homography_folder(folder / "homography")]


def plane_pairs(args: Any, folder: Path | None) -> list[tuple[Any, Any, Floats]]:
    """Return pairs of pictures with their homographies: the first three of each plane."""
    if folder is None:
        pair = small_pair(args)
        return [(pair.first, pair.second, pair.homography)]
    pairs: list[Pair] = [
        pair for one in read_homography_folder(folder / "homography") for pair in pairs_of(one)[:3]
    ]  # fmt: skip
    return [(pair.first, pair.second, pair.homography) for pair in pairs]


def small_pair(args: Any) -> Any:
    """Return a picture, and the same through a homography."""
    pixels = np.ascontiguousarray(sample_image("coffee").pixels[100:260, 100:340])
    return make_pair(sfumato.Image(pixels), np.random.default_rng(args.seed))
