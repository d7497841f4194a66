# SPDX-License-Identifier: Apache-2.0
"""Data of a NinjaNet training: pairs split by their origin, inverters with their material, scores.

Holds clear descriptors of public photos; only counts and a digest are written.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.training.ninja.adversaries import Adversary, DecoderAdversary, ImageAdversary, PatchAdversary
from sfumato.training.ninja.params import ADVERSARIES, NinjaTrainParams
from sfumato.training.pairs import DescriptorPairs
from sfumato.training.patch_sets import fpr95
from sfumato.training.photos import gather_pairs, read_photos
from sfumato.types.progress import Progress

Floats = NDArray[np.float32]
Encode = Callable[[Floats], Floats]

SCORED_PAIRS = 4096
"""Held-out pairs that an encoder is scored on."""
WRONG_PAIRS = 4
"""Pairs of different points for each of the same, when FPR@95 is measured."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class NinjaMaterial:
    """``training`` pairs, ``held_out`` pairs of other groups, and the paths of ``photos`` for patch and unet."""

    training: DescriptorPairs
    held_out: DescriptorPairs
    photos: tuple[Path, ...]
    digest: str

    def __repr__(self) -> str:
        return f"NinjaMaterial({self.training!r}, {self.held_out!r}, {len(self.photos)} photos)"

    def facts(self) -> dict[str, Any]:
        """Return counts and the digest of the pairs."""
        groups = [len(np.unique(part.groups)) for part in (self.training, self.held_out)]
        return {
            "pairs": len(self.training), "groups": groups[0], "held_out_pairs": len(self.held_out),
            "held_out_groups": groups[1], "photos": len(self.photos), "digest": self.digest,
        }  # fmt: skip


def split_material(params: NinjaTrainParams, pairs: DescriptorPairs, photos: Sequence[Path]) -> NinjaMaterial:
    """Hold out some of the groups, or of the points where all are of one group.

    Raises InputError if there are too few pairs, or no photos for an inverter that needs them.
    """
    rng = np.random.default_rng([params.seed, 1])
    origin = pairs.groups if len(np.unique(pairs.groups)) > 1 else pairs.points
    names = np.unique(origin)
    held_out = np.isin(origin, rng.permutation(names)[: max(1, round(params.held_out * len(names)))])
    if min(held_out.sum(), (~held_out).sum()) < 4:
        raise InputError(f"{len(pairs)} pairs are too few to learn from: give more photos or patches")
    learners = [name for name in ADVERSARIES[params.adversary] if name != "decoder"]
    if learners and len(photos) < 2:
        raise InputError(f"the adversary {learners[0]} learns from photos: give two or more with --photos")
    dim = pairs.first.shape[1]
    if params.width(dim) > dim:
        raise InputError(f"an encoder cannot give more numbers than the {dim} it takes: choose a smaller output_dim")
    digest = hashlib.blake2b(digest_size=16)
    for part in (pairs.first, pairs.second, pairs.points, pairs.groups):
        digest.update(part.tobytes())
    return NinjaMaterial(pairs[~held_out], pairs[held_out], tuple(map(Path, photos)), digest.hexdigest())


def make_adversaries(params: NinjaTrainParams, material: NinjaMaterial, progress: Progress) -> list[Adversary]:
    """Make the inverters of a training, with random weights from torch's generator."""
    opponents, local = params.opponents, params.opponents.local
    dim = params.width(material.training.first.shape[1])
    order = np.random.default_rng([params.seed, 2]).permutation(len(material.photos))[: opponents.max_photos]
    checked = max(1, round(opponents.split[1] * len(order)))
    learned = max(1, round(opponents.split[0] * len(order)))
    paths = [material.photos[i] for i in order[: checked + learned]]
    adversaries: list[Adversary] = []
    for name in ADVERSARIES[params.adversary]:
        if name == "decoder":
            clear = np.concatenate([material.training.first, material.training.second])
            held_out = np.concatenate([material.held_out.first, material.held_out.second])
            adversaries.append(DecoderAdversary(clear, held_out, dim, opponents))
            continue
        assert local is not None  # the params refuse it
        if name == "patch":
            pairs = gather_pairs(paths, local, progress=progress)
            adversaries.append(PatchAdversary(pairs, pairs.photos < checked, dim, opponents))
        else:
            photos = read_photos(paths, local, opponents.side, progress)
            count = min(checked, len(photos) - 1)
            adversaries.append(ImageAdversary(photos[count:], photos[:count], dim, opponents, params.inverter.batch))
    return adversaries


def scores(encode: Encode, pairs: DescriptorPairs, seed: int) -> dict[str, float]:
    """Score encoded pairs: ``fpr95``, and ``matched``, the share that are mutual nearest neighbours.

    FPR@95 compares each pair with WRONG_PAIRS pairs of its first view and another point. Both are of one pair of
    each point, of all photos together, at most SCORED_PAIRS.
    """
    rng = np.random.default_rng([seed, 3])
    order = rng.permutation(len(pairs))
    once = order[np.unique(pairs.points[order], return_index=True)[1]]  # one pair of each point
    sample = pairs[np.sort(rng.permutation(once)[:SCORED_PAIRS])]
    first, second = encode(sample.first), encode(sample.second)
    other = rng.integers(len(sample), size=(WRONG_PAIRS, len(sample)))
    own = np.broadcast_to(np.arange(len(sample)), other.shape)
    wrong = other != own
    false_distances = np.linalg.norm(first[own[wrong]] - second[other[wrong]], axis=1)
    true_distances = np.linalg.norm(first - second, axis=1)
    distances = np.concatenate([true_distances, false_distances])
    is_true = np.arange(len(distances)) < len(true_distances)
    similarity = first @ second.T
    rows = np.arange(len(sample))
    mutual = (similarity.argmax(axis=1) == rows) & (similarity.argmax(axis=0) == rows)
    return {"fpr95": float(fpr95(distances, is_true)), "matched": float(mutual.mean())}
