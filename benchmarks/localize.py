# SPDX-License-Identifier: Apache-2.0
"""Localization in sealed maps: time of a query, what a shortlist by bit votes finds, and maps of millions of landmarks.

    python benchmarks/localize.py --json out.json

The place is generated, with exact poses: a street of points, photographed every metre. Descriptors are made of those of
the bundled decoys, which are real; another view of a point is as far from the first as views of real points are. A
tenth of the street repeats itself. Queries see it from in between, with features of other photos among theirs. The
yardstick is faiss flat L2 on the clear descriptors, one nearest of each feature of the query among all landmarks, timed
in turn. Images are tried all, or those that a shortlist names; a query counts as localized within 0.1 degrees and 5 cm.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, finish, interleaved, note, pinned_threads

import sfumato
from sfumato.concealment.seal import Seal, make_seal
from sfumato.files.tensors import map_tensors, save_tensors
from sfumato.geometry.localization import localize_query
from sfumato.geometry.maps import Map
from sfumato.geometry.model import Model
from sfumato.geometry.shortlist import choose_candidates
from sfumato.matching.bit_votes import BitVotes
from sfumato.matching.mutual import side_of
from sfumato.types.concealed import Bits
from sfumato.types.scene import Landmarks

CAMERA = sfumato.Camera("PINHOLE", 1280, 960, (1000, 1000, 640, 480))
SEEN, CLUTTER = 1500, 500
"""Features of an image of the map; a query has as many, and others."""
NEAR, SPREAD = 0.19, 0.06
"""Mean and deviation of the distance of two views of one point: those of verified matches of real photos."""
REPEATED = 0.1
RECIPE = "sealed-512@0123456789ab"


@dataclass(frozen=True)
class Street:
    """Points (P, 3) of a street, with a descriptor (P, 128) each, and the seal of its owner."""

    points: np.ndarray
    descriptors: np.ndarray
    seal: Seal
    rng: np.random.Generator

    def photo(self, x: float, clutter: int = 0) -> tuple[sfumato.ConcealedFeatures, np.ndarray, np.ndarray]:
        """Return what a camera at ``x`` sees, the points behind the first features, and the clear descriptors."""
        moved = self.points - [x, 0, 0]
        pixels = 1000 * moved[:, :2] / moved[:, 2:] + [639.5, 479.5]
        inside = np.flatnonzero((np.abs(pixels - [639.5, 479.5]) < [640, 480]).all(axis=1))
        rows = self.rng.permutation(inside)[:SEEN]
        clear = another_view(self.descriptors[rows], self.rng)
        pixels = pixels[rows] + self.rng.normal(0, 0.5, (len(rows), 2))
        if clutter:
            clear = np.concatenate([clear, real_descriptors(clutter, self.rng)])
            pixels = np.concatenate([pixels, self.rng.uniform(0, [1279, 959], (clutter, 2))])
        keypoints = np.hstack([pixels, np.tile([1.0, 0.0], (len(pixels), 1))]).astype(np.float32)
        hidden = sfumato.ConcealedFeatures(
            keypoints, self.seal(clear), RECIPE, sfumato.Extractor("sift"), (1280, 960)
        )  # fmt: skip
        return hidden, rows, clear


def real_descriptors(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return descriptors of the bundled decoys, each mixed with its own numbers in another order: all are different."""
    pool = sfumato.load_decoys().descriptors
    rows = pool[rng.integers(len(pool), size=count)]
    return unit(rows + 0.7 * rng.permuted(rows, axis=1))


def another_view(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return descriptors of the same points, seen from elsewhere."""
    noise = rng.standard_normal(rows.shape) * (rows > 0)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    return unit(rows + noise * np.maximum(0, rng.normal(NEAR, SPREAD, (len(rows), 1))))


def unit(rows: np.ndarray) -> np.ndarray:
    """Return non-negative rows of unit norm."""
    rows = np.maximum(rows, 0)
    return np.ascontiguousarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def make_street(length: int, rng: np.random.Generator) -> Street:
    """Draw a street of so many metres, dense enough for every image to see its share."""
    count = 400 * length
    points = np.column_stack(
        [rng.uniform(-8, length + 8, count), rng.uniform(-3, 3, count), rng.uniform(6, 12, count)]
    )  # fmt: skip
    descriptors = real_descriptors(count, rng)
    alike = rng.permutation(count)[: int(2 * REPEATED * count)].reshape(2, -1)
    descriptors[alike[1]] = descriptors[alike[0]]
    return Street(points, descriptors, make_seal(rng.bytes(32), 128, 512), rng)


def make_map(street: Street, images: int) -> tuple[Map, np.ndarray]:
    """Return the map of a street, and the clear descriptors of all its landmarks, image by image."""
    photos, seen, clear = {}, [], []
    for number in range(images):
        name = f"{number:05}.jpg"
        photos[name], rows, descriptors = street.photo(float(number))
        seen.append(np.column_stack([rows, np.full(len(rows), number), np.arange(len(rows))]))
        clear.append(descriptors)
    used, observations = np.unique(np.concatenate(seen)[:, 0], return_inverse=True)[0], np.concatenate(seen)
    observations[:, 0] = np.searchsorted(used, observations[:, 0])
    places = np.concatenate([photo.keypoints[:, :2] for photo in photos.values()]).astype(np.float64)
    landmarks = Landmarks(street.points[used], observations, tuple(photos))
    model = Model(landmarks, np.arange(len(used)), places, np.array([len(photo) for photo in photos.values()]))
    return Map(model, photos, is_public=False), np.concatenate(clear)


def is_right(pose: Any, x: float) -> bool:
    """Tell whether a pose is that of a camera at ``x``, which looks along the z axis."""
    if pose is None:
        return False
    turn = np.degrees(np.arccos(np.clip((np.trace(pose.rotation) - 1) / 2, -1, 1)))
    return bool(turn < 0.1 and np.linalg.norm(pose.center - [x, 0, 0]) < 0.05)


def time_queries(images: int, queries: int, args: Any) -> list[dict[str, Any]]:
    """Localize queries in a map of a street, with a shortlist and without, and time both beside faiss."""
    import faiss

    rng = np.random.default_rng(args.seed)
    street = make_street(images, rng)
    map_, clear = make_map(street, images)
    flat, binary = faiss.IndexFlatL2(128), faiss.IndexBinaryFlat(512)
    flat.add(clear)
    binary.add(map_.votes().packed)
    places = rng.uniform(1, images - 2, queries)
    asked = [street.photo(float(x), CLUTTER) for x in places]
    by_votes, right = choose_candidates(map_, "votes:20"), {"votes:20": 0, "all images": 0}
    every = map_.names if args.exhaustive else ()
    for x, (query, _, _) in zip(places, asked, strict=True):
        for name, candidates in (("votes:20", by_votes("query", query)), ("all images", every)):
            right[name] += is_right(localize_query(query, CAMERA, map_, candidates).pose, float(x))
    query, _, described = asked[0]
    taken = interleaved(
        {
            "faiss flat, clear": lambda: flat.search(described, 1),
            "faiss binary flat": lambda: binary.search(query.code.packed, 1),
            "shortlist": lambda: by_votes("query", query),
            "votes:20": lambda: localize_query(query, CAMERA, map_, by_votes("query", query)),
            "all images": lambda: localize_query(query, CAMERA, map_, every),
        },
        args.repeats,
    )
    return [
        {
            "map_images": images, "landmarks": len(clear), "query_features": len(query), "method": name,
            "seconds": spent, "times_faiss_flat": spent / taken["faiss flat, clear"],
            "queries": queries if name in right else None, "localized": right.get(name),
        }
        for name, spent in taken.items() if name != "all images" or args.exhaustive
    ]  # fmt: skip


def resident_megabytes() -> float:
    """Return the memory of this process that is not of files, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


def time_large(landmarks: int, folder: Path, args: Any) -> dict[str, Any]:
    """Time one shortlist among millions of landmarks of random bits, mapped from a file."""
    rng = np.random.default_rng(args.seed)
    path = folder / "codes.safetensors"
    save_tensors(path, {"packed": rng.integers(0, 256, (landmarks, 64), np.uint8)}, {})
    before, started = resident_megabytes(), time.perf_counter()
    packed = map_tensors(path)[0]["packed"]
    loaded = time.perf_counter() - started
    starts = np.arange(0, landmarks + 1, SEEN)
    starts[-1] = landmarks
    query = Bits(rng.integers(0, 256, (SEEN + CLUTTER, 64), np.uint8))
    features = sfumato.ConcealedFeatures(np.zeros((len(query), 4)), query, RECIPE)
    votes = BitVotes(tuple(map(str, range(len(starts) - 1))), packed, starts, side_of(features, "query"))
    taken = interleaved({"shortlist": lambda: votes.nearest_images(query, 20)}, max(2, args.repeats // 2))
    note(f"{landmarks} landmarks: {packed.nbytes / 2**20:.0f} MiB mapped, loaded and checked in {loaded:.1f} s, "
         f"{resident_megabytes() - before:.0f} MB of memory of its own")  # fmt: skip
    return {
        "map_images": len(votes.names), "landmarks": landmarks, "query_features": len(query),
        "method": "shortlist, mapped", "seconds": taken["shortlist"], "times_faiss_flat": None, "queries": None,
        "localized": None,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="threads of every method")
    parser.add_argument("--images", type=int, nargs="+", default=[100, 300], help="sizes of maps")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--landmarks", type=int, default=7_000_000, help="of the largest map, of random bits")
    parser.add_argument("--no-exhaustive", dest="exhaustive", action="store_false", help="leave out all images")
    args = parser.parse_args(argv)
    if args.small:
        args.images, args.queries, args.landmarks = [5], 2, 10_000
    rows = []
    with pinned_threads(args.threads), tempfile.TemporaryDirectory() as folder:
        for images in args.images:
            note(f"a street of {images} images")
            rows += time_queries(images, args.queries, args)
        rows.append(time_large(args.landmarks, Path(folder), args))
    finish("localize", args, {"threads": args.threads, "bits": 512, "place": "generated street"}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
