# SPDX-License-Identifier: Apache-2.0
"""What the matching benchmark compares: cases, and pairs of images with their subspaces in archives."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import photo_descriptors, sift_like

import sfumato


@dataclass(frozen=True)
class Case:
    """What is compared: dimensions of both sides, 0 for points, or bits; ``limit`` and ``aim`` in times of faiss."""

    name: str
    dims: tuple[int, int]
    task: str = "mutual"
    limit: float | None = None
    aim: float | None = None

    @property
    def is_sealed(self) -> bool:
        """Whether bits are compared."""
        return self.dims == (BITS, BITS)

    @property
    def stack(self) -> int:
        """Inner products a pair takes."""
        return (self.dims[0] + 1) * (self.dims[1] + 1)


BITS = 512
CASES = (
    Case(f"sealed-{BITS}", (BITS, BITS), limit=0.35),
    Case("subspace-to-subspace m=2", (2, 2), limit=2, aim=1.2),
    Case("subspace-to-subspace m=4", (4, 4), limit=5, aim=3),
    Case("point-to-subspace m=2", (0, 2), limit=1, aim=0.7),
    Case("point-to-subspace m=8", (0, 8)),
    Case("point-to-subspace m=16", (0, 16), limit=3.5, aim=2.5),
    Case("subspace-to-subspace m=2, ratio", (2, 2), "ratio"),
    Case("subspace-to-subspace m=2, two nearest", (2, 2), "nearest"),
)


FAISS = Case("faiss on clear descriptors", (0, 0))


@dataclass(frozen=True)
class Pair:
    """Two images: clear descriptors (N, n) each, and a folder with them and with the archive of their subspaces."""

    name: str
    clear: tuple[np.ndarray, np.ndarray]
    folder: Path

    def side(self, case: Case, number: int) -> Any:
        """Return what is compared: clear points, or subspaces as stored."""
        return read_side(self.folder, case.dims[number], number)


def read_side(folder: Path, dim: int, number: int) -> Any:
    """Return the points of an image, or its subspaces of a dimension from the archive."""
    if dim == 0:
        return np.load(folder / f"clear{number}.npy", allow_pickle=False)
    with sfumato.load(folder / "private.sfm") as archive:
        return archive[f"{number}-{dim}.jpg"].code


def clear_pairs(count: int, rng: np.random.Generator, folder: Path | None) -> tuple[dict[str, Any], str]:
    """Return the descriptors of both images of a matching and an unrelated pair, and what they are."""
    if folder is not None:
        scene = folder / "posed" / "fountain-P11" / "images"
        first, second = (photo_descriptors([scene / name], count) for name in ("0004.jpg", "0005.jpg"))
        others = [*sorted(folder.glob("homography/*/1.png")), *sorted(folder.glob("photos/bsds500/val/*.jpg"))]
        rest = photo_descriptors(others, count, each=-(-count // 5))
        return {"matching": (first, second), "unrelated": (first, rest)}, "SIFT of photos"
    first, rest = clustered(count, rng), clustered(count, rng)
    seen = rng.permutation(count)[: count // 2]
    second = rest.copy()
    second[: len(seen)] = unit(first[seen] + 0.02 * rng.standard_normal((len(seen), 128)))
    return {"matching": (first, second), "unrelated": (first, rest)}, "generated"


def clustered(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows like SIFT that lie in clusters, as those of photos do."""
    centres = sift_like(max(1, count // 10), rng)
    return unit(centres[rng.integers(len(centres), size=count)] + 0.06 * rng.standard_normal((count, 128)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Return non-negative rows of unit norm."""
    rows = np.maximum(rows, 0)
    return np.ascontiguousarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def single_part(decoys: sfumato.Decoys, part: int) -> sfumato.Decoys:
    """Return one part of the decoys as a database of its own: whoever is lifted with it draws from that part."""
    entries = decoys.permutation[slice(*decoys.part_starts[part : part + 2])]
    return sfumato.Decoys(decoys.descriptors[entries], decoys.extractor, parts=1)


def make_pairs(cases: tuple[Case, ...], clear: dict[str, Any], folder: Path, seed: int) -> list[Pair]:
    """Lift both images of each pair, from different parts of the decoys or from the same, into an archive each."""
    decoys = sfumato.load_decoys()
    parts = {"matching": (0, 1), "unrelated": (0, 1), "same part": (0, 0)}
    pairs = []
    for name, numbers in parts.items():
        place = folder / name.replace(" ", "-")
        place.mkdir()
        sides = clear["matching" if name == "same part" else name]
        hidden = {}
        for number, (points, part) in enumerate(zip(sides, numbers, strict=True)):
            np.save(place / f"clear{number}.npy", points)
            features = sfumato.Features(np.zeros((len(points), 4)), points, decoys.extractor)
            own = single_part(decoys, part)
            for dim in sorted({case.dims[number] for case in cases} - {0}):
                hidden[f"{number}-{dim}.jpg"] = (
                    sealed(features, seed) if dim == BITS else lifted(features, dim, own, seed + number)
                )
        sfumato.save(place / "private.sfm", hidden)
        pairs.append(Pair(name, sides, place))
    return pairs


def sealed(features: sfumato.Features, seed: int) -> sfumato.ConcealedFeatures:
    """Seal repeatably, under one key for both images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sfumato.EvaluationOnlyWarning)
        return sfumato.conceal(features, f"sealed-{BITS}", evaluation_seed=seed)


def lifted(points: Any, dim: int, decoys: sfumato.Decoys, seed: int) -> Any:
    """Lift repeatably, as befits a figure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sfumato.EvaluationOnlyWarning)
        return sfumato.conceal(points, f"sub-hybrid-{dim}", decoys, evaluation_seed=seed)
