# SPDX-License-Identifier: Apache-2.0
"""Decoy benchmark: time of a decoy database, and the quality of two-level k-means beside flat k-means of its size.

    python benchmarks/decoys.py --json out.json          # real descriptors where SFUMATO_DATA has photos

The peer is faiss.Kmeans, flat, with the same number of iterations, in the same run. The last row is the full size,
without the peer, which would take hours.
"""

import sys
import time

import numpy as np
from common import arguments, data_folder, finish, sift_like

import sfumato
from sfumato.concealment import decoy_clusters


def descriptors(wanted: int, rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """Return real SIFT descriptors where there are photos, and rows of the same shape where there are none."""
    folder = data_folder()
    if folder is None:
        return sift_like(wanted, rng), "generated"
    from sfumato.features.sources import open_source

    source = open_source(folder / "photos" / "imagenet-samples", contrast_threshold=0.01)
    found, count = [], 0
    for _, features in source.features():
        if isinstance(features, sfumato.Features):
            found.append(features.descriptors)
            count += len(features)
        if count >= wanted:
            break
    return np.concatenate(found)[:wanted], "SIFT of photos/imagenet-samples"


def error_of(rows: np.ndarray, decoys: sfumato.Decoys) -> float:
    """Return the mean squared distance of descriptors to their nearest decoy."""
    import faiss

    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(decoys.descriptors)
    return float((2 - 2 * index.search(rows, 1)[0]).mean())


def build(rows: np.ndarray, size: int, *, flat: bool, seed: int) -> tuple[sfumato.Decoys, float]:
    """Build a database, flat or in two levels, and time it."""
    before, decoy_clusters.FLAT_LIMIT = (
        decoy_clusters.FLAT_LIMIT,
        size if flat else min(decoy_clusters.FLAT_LIMIT, size // 8),
    )
    try:
        start = time.perf_counter()
        decoys = sfumato.build_decoys(rows, size, extractor=sfumato.Extractor("sift"), seed=seed)
        return decoys, time.perf_counter() - start
    finally:
        decoy_clusters.FLAT_LIMIT = before


def main(argv: list[str] | None = None) -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args(argv)
    rng = np.random.default_rng(args.seed)
    cases = [(2000, 128)] if args.small else [(200_000, 8192), (1_000_000, 65_536)]
    data, kind = (sift_like(2000, rng), "generated") if args.small else descriptors(cases[-1][0], rng)
    rows = []
    for count, size in cases:
        sample = data[:count]
        probe = sample[rng.choice(len(sample), min(len(sample), 20_000), replace=False)]
        decoys, taken = build(sample, size, flat=False, seed=args.seed)
        row = {"descriptors": len(sample), "decoys": size, "seconds": taken, "error": error_of(probe, decoys),
               "flat_seconds": "", "times_flat": "", "flat_error": ""}  # fmt: skip
        if size <= 8192:
            flat, flat_taken = build(sample, size, flat=True, seed=args.seed)
            row |= {"flat_seconds": flat_taken, "times_flat": taken / flat_taken, "flat_error": error_of(probe, flat)}
        rows.append(row)
    finish("decoys", args, {"data": kind}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
