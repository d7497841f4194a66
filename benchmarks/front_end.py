# SPDX-License-Identifier: Apache-2.0
"""Front end benchmark: which extractor, and which ratio test, keep most of what two photos have in common.

    python benchmarks/front_end.py --json out.json                 # SFUMATO_DATA, or else generated pictures

Two kinds of pairs: images of one plane, whose homography tells which matches are correct (within 3 pixels), and photos
of one landmark by different people, where geometric verification counts ("hard" pairs; a pair is verified or not).
Every extractor keeps the same number of features. Matches are mutual nearest with each ratio, of clear descriptors and
of the default recipe under one key. Seconds per photo are one thread's, each extractor in turn.
"""

import argparse
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, interleaved, note, pinned_threads

import sfumato
from sfumato.auditing.matching import transfer_errors
from sfumato.auditing.subjects import conceal_repeatably
from sfumato.experiments.data.generated import open_sequences
from sfumato.features.local import LocalParams
from sfumato.geometry.cameras import default_camera
from sfumato.geometry.colmap import write_database
from sfumato.geometry.verify import VerifyParams, verify
from sfumato.images.homography import HomographySequence
from sfumato.matching.mutual import MatchParams, chance_limit, prepare_side, run_search, select, side_of
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Matches

FRONT_ENDS: dict[str, dict[str, Any]] = {
    "opencv, contrast 0.04": {"extractor": "opencv", "contrast_threshold": 0.04},
    "opencv": {"extractor": "opencv"},
    "opencv, rootsift": {"extractor": "opencv", "descriptor": "rootsift"},
    "colmap": {"extractor": "colmap"},
    "colmap, rootsift": {"extractor": "colmap", "descriptor": "rootsift"},
}
RECIPES = "clear,default,ninja-sift-1.0,sub-hybrid-2"
RATIOS = (1.0, 0.97, 0.95, 0.9, 0.8)
CORRECT_PX = 3.0
ROW = dict.fromkeys((
    "front end", "recipe", "pairs", "ratio", "matches", "correct", "of pairs", "verified pairs", "verified",
    "seconds per photo",
))  # fmt: skip
"""The fields of every row of the figures; None where one does not apply."""


def sides_of(features: Iterable[Features], recipe: str, seed: int) -> list[Any]:
    """Return clear descriptors, or the features as a recipe releases them, with draws that can be repeated."""
    if recipe == "clear":
        return [image.descriptors for image in features]
    parsed = Recipe.of(recipe)
    decoys = sfumato.load_decoys() if parsed.lifting is not None and parsed.lifting.decoy_count else None
    return [conceal_repeatably(image, parsed, decoys, seed=seed) for image in features]


def matches_by_ratio(a: Any, b: Any) -> dict[float, Matches]:
    """Return the matches of two images for each ratio; they are searched once."""
    sides = [side_of(side, "image") for side in (a, b)]
    ready = [prepare_side(side) for side in sides]
    limit = chance_limit(sides[0].recipe, max(map(len, ready)))
    neighbours = run_search(ready[0], ready[1], (2, 2), MatchParams())
    return {ratio: select(neighbours, MatchParams(ratio=ratio, max_distance=limit)) for ratio in RATIOS}


def count_correct(
    sequences: list[HomographySequence], local: LocalParams, recipe: str, seed: int
) -> list[dict[str, Any]]:
    """Return matches and correct matches of images of planes, for each ratio, as means over pairs."""
    found: dict[float, list[tuple[int, int]]] = {ratio: [] for ratio in RATIOS}
    for sequence in sequences:
        features = [sfumato.extract(path, local) for path in sequence.paths]
        sides = sides_of(features, recipe, seed)
        for other, homography in enumerate(sequence.homographies, 1):
            for ratio, matches in matches_by_ratio(sides[0], sides[other]).items():
                rows = matches.indices
                first, second = (features[image].keypoints[:, :2] for image in (0, other))
                errors = transfer_errors(homography, first[rows[:, 0]], second[rows[:, 1]])
                found[ratio].append((len(rows), int((errors <= CORRECT_PX).sum())))
    means = {ratio: np.mean(counts, axis=0) for ratio, counts in found.items()}
    return [
        {"pairs": "planes", "ratio": ratio, "matches": round(float(mean[0])), "correct": round(float(mean[1]))}
        for ratio, mean in means.items()
    ]


def count_verified(folders: Iterable[Path], local: LocalParams, recipe: str, seed: int) -> list[dict[str, Any]]:
    """Return verified matches, and verified pairs, of photos of landmarks, for each ratio."""
    totals = {ratio: [0, 0, 0] for ratio in RATIOS}
    for folder in folders:
        photos = {path.name: sfumato.extract(path, local) for path in sorted(folder.glob("*.jpg"))}
        sides = dict(zip(photos, sides_of(photos.values(), recipe, seed), strict=True))
        found = {(a, b): matches_by_ratio(sides[a], sides[b]) for a, b in combinations(photos, 2)}
        for ratio, total in totals.items():
            inliers = verified_matches(photos, {pair: matches[ratio] for pair, matches in found.items()})
            total[0] += len(found)
            total[1] += sum(count > 0 for count in inliers)
            total[2] += sum(inliers)
    return [
        {"pairs": "hard", "ratio": ratio, "of pairs": total[0], "verified pairs": total[1], "verified": total[2]}
        for ratio, total in totals.items()
    ]


def verified_matches(photos: Mapping[str, Features], matches: Mapping[tuple[str, str], Matches]) -> list[int]:
    """Return the number of matches of each pair that agree with one rigid scene."""
    cameras = {name: default_camera(image.image_size or (1, 1)) for name, image in photos.items()}
    with tempfile.TemporaryDirectory(prefix="sfumato-front-end-") as place:
        database = Path(place) / "database.db"
        keypoints = {name: image.keypoints for name, image in photos.items()}
        write_database(database, keypoints, cameras, matches, trusted=[])
        return [pair.inliers for pair in verify(database, VerifyParams(threads=1)).pairs]


def rows_of(args: argparse.Namespace, sequences: list[HomographySequence], folders: list[Path]) -> list[dict[str, Any]]:
    """Measure every front end and recipe."""
    rows = []
    for name, settings in FRONT_ENDS.items():
        local = LocalParams(max_features=args.features, **settings)
        for recipe in args.recipes.split(","):
            if recipe not in ("clear", "default") and local.descriptor != "sift":
                continue  # decoys and encoders are of SIFT
            note(f"{name}: {recipe}")
            facts = {"front end": name, "recipe": recipe}
            counted = count_correct(sequences, local, recipe, args.seed)
            counted += count_verified(folders, local, recipe, args.seed) if folders else []
            rows += [{**facts, **row} for row in counted]
    return rows


def time_extraction(paths: list[Path], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return seconds per photo of each front end, one thread, in turn."""
    works = {
        name: lambda settings=settings: [
            sfumato.extract(path, max_features=args.features, **settings) for path in paths
        ]
        for name, settings in FRONT_ENDS.items()
    }
    taken = interleaved(works, args.repeats)
    return [{"front end": name, "seconds per photo": round(taken[name] / len(paths), 3)} for name in works]


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--recipes", default=RECIPES, help="a list with commas; clear stands for plain descriptors")
    parser.add_argument("--features", type=int, default=8000, help="features of a photo at most")
    args = parser.parse_args()
    if args.small:
        args.recipes, args.features = "clear,default", 200
    data = None if args.small else data_folder()
    with (
        tempfile.TemporaryDirectory(prefix="sfumato-front-end-") as place,
        pinned_threads(1),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        sequences = open_sequences(None if data is None else data / "homography", Path(place))
        if args.small:
            sequences = sequences[:1]
        landmarks = None if data is None else data / "unordered" / "internet"
        folders = sorted(landmarks.iterdir()) if landmarks is not None and landmarks.is_dir() else []
        rows = rows_of(args, sequences, folders)
        photos = [path for folder in folders for path in sorted(folder.glob("*.jpg"))][:4]
        rows += time_extraction(photos or [sequences[0].paths[0]], args)
    sizes = {"features": args.features, "sequences": len(sequences), "landmarks": len(folders)}
    finish("front_end", args, sizes, [{**ROW, **row} for row in rows])


if __name__ == "__main__":
    main()
