# SPDX-License-Identifier: Apache-2.0
"""Recipe benchmark: speed of matching compressed features, and yield of two ways of matching sets of entries.

    python benchmarks/recipes.py --json out.json            # real photos where SFUMATO_DATA has them

"speed": one image pair, every recipe timed in turn, the least of all repeats, subspaces prepared anew each time.
"sets": pairs of a sequence of known homographies, concealed with the subset mechanism and matched by hulls (as any
archive is), by the least distance of two entries and by the number of entries in common. Draws come from the seed: for
evaluations only.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, interleaved, note, pinned_threads, sift_like
from set_matching import WAYS, match_sets, read_sets

import sfumato
from sfumato.auditing.matching import count_correct, pairs_of, transfer_errors
from sfumato.errors import EvaluationOnlyWarning
from sfumato.experiments.data.folders import read_homography_folder

RECIPES = (
    "raw",
    "sub-hybrid-2",
    "sub-hybrid-4",
    *(f"compress-{d}+sub-hybrid-{m}" for m in (2, 4) for d in (32, 48, 64)),
)
SETS = ("raw", *(f"subset-4:eps={eps}" for eps in (10, 15, 25)))
SEQUENCE, PAIRS_USED = "v_graf", 2
Row = dict[str, Any]


def sequence() -> list[Any]:
    """Return image pairs with known homographies; none without data."""
    folder = data_folder()
    if folder is None or not (folder / "homography").is_dir():
        return []
    found = [one for one in read_homography_folder(Path(folder) / "homography") if one.name == SEQUENCE]
    return pairs_of(found[0])[:PAIRS_USED] if found else []


def speed_rows(sides: list[np.ndarray], repeats: int, seed: int) -> list[Row]:
    """Time the matching of two sets of descriptors under every recipe."""
    decoys, works = sfumato.load_decoys(), {}
    for recipe in RECIPES:
        hidden = [
            side if recipe == "raw" else sfumato.conceal(side, recipe, decoys, evaluation_seed=seed + number)
            for number, side in enumerate(sides)
        ]
        works[recipe] = lambda pair=hidden: sfumato.match(*pair, threads=1)
    least = interleaved(works, repeats)
    plain = {m: least[f"sub-hybrid-{m}"] for m in (2, 4)}
    return [
        {
            "case": "speed", "recipe": recipe, "way": "match", "seconds": seconds, "matches": None, "accuracy": None,
            "times_quicker": plain[int(recipe[-1])] / seconds if "compress" in recipe else None,
        }
        for recipe, seconds in least.items()
    ]  # fmt: skip


def set_rows(pairs: list[Any], features: int, seed: int) -> list[Row]:
    """Match image pairs under the subset mechanism in three ways; accuracy is the mean over pairs at 3 pixels."""
    decoys, rows = sfumato.load_decoys(), []
    clear = {path: sfumato.extract(path, max_features=features) for p in pairs for path in (p.first, p.second)}
    for recipe in SETS:
        note(recipe)
        found: dict[str, list[dict[str, float]]] = {}
        for pair in pairs:
            hidden = [
                clear[path] if recipe == "raw" else sfumato.conceal(clear[path], recipe, decoys, evaluation_seed=seed)
                for path in (pair.first, pair.second)
            ]
            if recipe == "raw":
                ways = {"hull": sfumato.match(*(side.descriptors for side in hidden))}
            else:
                sets = [read_sets(side.code, decoys.descriptors) for side in hidden]
                ways = {"hull": sfumato.match(*hidden)}
                ways |= {way: match_sets(*sets, decoys.descriptors, way) for way in WAYS}
            for way, matches in ways.items():
                points = (side.keypoints[matches.indices[:, i], :2] for i, side in enumerate(hidden))
                found.setdefault(way, []).append(count_correct(transfer_errors(pair.homography, *points)))
        rows += [
            {
                "case": "sets", "recipe": recipe, "way": way, "seconds": None, "times_quicker": None,
                "matches": float(np.mean([one["matches"] for one in counts])),
                "accuracy": float(np.mean([one["accuracy 3 px"] for one in counts])),
            }
            for way, counts in found.items()
        ]  # fmt: skip
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=1000, help="features of each image")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", EvaluationOnlyWarning)
    count = 200 if args.small else args.features
    pairs = [] if args.small else sequence()
    with pinned_threads(1):
        if pairs:
            sides = [sfumato.extract(p, max_features=count).descriptors for p in (pairs[0].first, pairs[0].second)]
        else:
            rng = np.random.default_rng(args.seed)
            sides = [sift_like(count, rng), sift_like(count, rng)]
        rows = speed_rows(sides, args.repeats, args.seed)
        rows += set_rows(pairs, count, args.seed)
    sizes = {"features": [len(side) for side in sides], "pairs": [pair.key for pair in pairs], "threads": 1}
    finish("recipes", args, sizes, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
