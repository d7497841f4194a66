# SPDX-License-Identifier: Apache-2.0
"""Archive benchmark: size per 1,000 features, speed of writing and reading, and the loss of float16.

    python benchmarks/archives.py --json out.json

The peer is hloc's own features.h5 with clear float16 descriptors and keypoints of the same features.
"""

import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from common import arguments, finish, seconds, sift_like

import sfumato


def peer_size(features: sfumato.Features, path: Path) -> int:
    """Return the bytes of the same features, clear, as hloc stores them."""
    with h5py.File(path, "w") as file:
        file["image.jpg/keypoints"] = features.keypoints[:, :2].astype(np.float16)
        file["image.jpg/descriptors"] = features.descriptors.T.astype(np.float16)
        file["image.jpg/scores"] = np.ones(len(features), np.float16)
        file["image.jpg/image_size"] = np.array([640, 480])
    return path.stat().st_size


def float16_loss(hidden: sfumato.ConcealedFeatures, other: sfumato.ConcealedFeatures, folder: Path) -> float:
    """Return the largest change of a squared distance that storing one side in float16 makes."""
    rows = slice(0, 200)
    exact = sfumato.squared_distances(hidden.subspaces[rows], other.subspaces[rows])
    sfumato.save(folder / "half.sfm.h5", {"image.jpg": hidden}, dtype="float16")
    with sfumato.load(folder / "half.sfm.h5") as archive:
        rounded = sfumato.squared_distances(archive["image.jpg"].subspaces[rows], other.subspaces[rows])
    return float(np.abs(exact - rounded).max())


def main(argv: list[str] | None = None) -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args(argv)
    rng = np.random.default_rng(args.seed)
    count = 100 if args.small else 8000
    features = sfumato.Features(rng.uniform(0, 640, (count, 4)), sift_like(count, rng), image_size=(640, 480))
    decoys = sfumato.Decoys(sift_like(2048, rng))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peer = peer_size(features, folder / "peer.h5")
        for recipe in ("sub-hybrid-2", "sub-hybrid-4"):
            hidden, other = (sfumato.conceal(features, recipe, decoys) for _ in range(2))
            loss = float16_loss(hidden, other, folder)
            for dtype in ("float32", "float16"):
                path = folder / f"{recipe}-{dtype}.sfm.h5"
                write = seconds(
                    lambda p=path, h=hidden, d=dtype: sfumato.save(p, {"image.jpg": h}, dtype=d), args.repeats
                )
                read = seconds(lambda p=path: sfumato.load(p)["image.jpg"], args.repeats)
                rows.append({
                    "recipe": recipe,
                    "numbers": dtype,
                    "bytes_per_1000_features": round(1000 * path.stat().st_size / count),
                    "times_clear_hloc": path.stat().st_size / peer,
                    "write_ms": 1000 * write["median"],
                    "read_ms": 1000 * read["median"],
                    "largest_change_of_squared_distance": loss if dtype == "float16" else 0.0,
                })  # fmt: skip
    finish("archives", args, {"features": count, "n": 128}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
