# SPDX-License-Identifier: Apache-2.0
"""Lifting benchmark: descriptors per second on one core, and memory.

    python benchmarks/lifting.py --json out.json

The peer is one call of os.urandom for the bytes the lifting needs, in the same run: no lifting with fresh
cryptographic draws can be faster than that.
"""

import os
import sys
import tracemalloc

import numpy as np
from common import arguments, finish, pinned_threads, seconds, sift_like

import sfumato

RECIPES = (
    "random-2",
    "adversarial-2",
    "hybrid-2",
    "sub-adversarial-2",
    "sub-hybrid-2",
    "sub-hybrid-4",
    "sub-hybrid-16",
)


def drawn_bytes(recipe: str, n: int) -> int:
    """Return how many random bytes a descriptor takes under a recipe."""
    link = sfumato.Recipe.of(recipe).links[-1]
    m, from_decoys = link.dim, link.decoy_count
    return 4 * n * (m - from_decoys) + 8 * from_decoys + 8 * ((m * m + 1) // 2)


def peak_bytes(points: np.ndarray, recipe: str, decoys: sfumato.Decoys) -> int:
    """Return the largest memory held while lifting, the result included."""
    tracemalloc.start()
    sfumato.conceal(points, recipe, decoys)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main(argv: list[str] | None = None) -> None:
    args = arguments(__doc__.splitlines()[0]).parse_args(argv)
    rng = np.random.default_rng(args.seed)
    count, size = (400, 512) if args.small else (20_000, 65_536)
    points, decoys = sift_like(count, rng), sfumato.Decoys(sift_like(size, rng))
    rows = []
    with pinned_threads(1):
        cases = [(recipe, None) for recipe in RECIPES] + [("sub-hybrid-2", os.urandom(32))]
        for recipe, secret in cases:
            timed = seconds(lambda r=recipe, s=secret: sfumato.conceal(points, r, decoys, secret=s), args.repeats)
            needed = count * drawn_bytes(recipe, 128)
            floor = seconds(lambda b=needed: os.urandom(b), args.repeats)
            held = peak_bytes(points, recipe, decoys), peak_bytes(points[: count // 2], recipe, decoys)
            rows.append({
                "recipe": recipe + (" keyed" if secret else ""),
                "descriptors_per_second": round(count / timed["least"]),
                "median_seconds": timed["median"],
                "times_urandom": timed["least"] / floor["least"],
                "peak_bytes_per_descriptor": round(held[0] / count),
                "peak_ratio_for_double": held[0] / held[1],
            })  # fmt: skip
    finish("lifting", args, {"descriptors": count, "n": 128, "decoys": size, "threads": 1}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
