# SPDX-License-Identifier: Apache-2.0
"""Pairs benchmark: how many pairs of photos are matched in a second, from an archive, with all their features.

    python benchmarks/pairs.py --json out.json                   # SFUMATO_DATA, or else the bundled samples

The paper matches 14 pairs of internet photos in a second on an RTX 2080 Ti, lifted to dimension 2 (section 5). Here it
is the same recipe, sub-hybrid-2, on all pairs of tourist photos, on two threads. The paper does not say how many
features its photos had; ours have up to 12,000, and their mean stands beside. The yardstick is faiss flat L2 on the
clear descriptors of the same pairs, both directions, in the same run. Verification is not timed. An archive is read
and its images are prepared within the time.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from common import arguments, data_folder, finish, interleaved, load_average, note, pinned_threads
from matches.methods import faiss_search

import sfumato
from sfumato.errors import EvaluationOnlyWarning
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe

RECIPES = ("sub-hybrid-2", "sub-hybrid-4", "sealed-512")
THREADS = 2
PAPER = {"recipe": "sub-hybrid-2", "pairs_per_second": 14, "device": "Nvidia RTX 2080 Ti"}


def photo_sets(is_small: bool) -> dict[str, list[Path]]:
    """Return the photos of each set."""
    data = data_folder()
    if data is None or is_small:
        return {"samples": list(sample_paths().values())[: 3 if is_small else None]}
    folders = sorted((data / "unordered" / "internet").iterdir())
    return {"internet": [path for folder in folders for _, path in list_images(folder)]}


def match_all(archive: Path, pairs: list[tuple[str, str]]) -> int:
    """Match all pairs of an archive; return the number of matches."""
    return sum(len(matches) for _, matches in sfumato.match_pairs(archive, pairs, threads=THREADS))


def match_clear(features: Mapping[str, Features], pairs: list[tuple[str, str]]) -> None:
    """Match the clear descriptors of all pairs by faiss, mutual nearest."""
    for first, second in pairs:
        faiss_search(features[first].descriptors, features[second].descriptors, "mutual")


def measure(name: str, photos: list[Path], params: LocalParams, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Conceal the photos of a set under each recipe, and time the matching of all pairs, beside faiss."""
    features = {}
    for path in photos:
        note(f"{name}: features of {path.name}")
        features[path.name] = extract(path, params)
    pairs, decoys = list(combinations(features, 2)), sfumato.load_decoys()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        works: dict[str, Callable[[], Any]] = {"faiss": partial(match_clear, features, pairs)}
        for recipe in RECIPES:
            archive = Path(folder) / f"{recipe}.sfm"
            supply = None if Recipe.of(recipe).is_sealed else decoys
            hidden = {
                name: sfumato.conceal(one, recipe, decoys=supply, evaluation_seed=seed)
                for name, one in features.items()
            }
            sfumato.save(archive, hidden)
            works[recipe] = partial(match_all, archive, pairs)
        with pinned_threads(THREADS):
            taken = interleaved(works, repeats)
    count = round(sum(map(len, features.values())) / len(features))
    for method, spent in taken.items():
        rows.append({
            "set": name, "method": method, "photos": len(photos), "pairs": len(pairs), "threads": THREADS,
            "rows_per_photo": count, "pairs_per_second": len(pairs) / spent,
            "times_faiss": spent / taken["faiss"],
        })  # fmt: skip
    return rows


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--max-features", type=int, default=LocalParams().max_features)
    args = parser.parse_args()
    warnings.simplefilter("ignore", EvaluationOnlyWarning)
    load = load_average()
    params = LocalParams(max_features=100 if args.small else args.max_features)
    rows = []
    for name, photos in photo_sets(args.small).items():
        rows += measure(name, photos, params, args.repeats, args.seed)
    sizes = {"max_features": params.max_features, "threads": THREADS, "load_before": load, "paper": PAPER}
    finish("pairs", args, sizes, rows)


if __name__ == "__main__":
    sys.exit(main())
