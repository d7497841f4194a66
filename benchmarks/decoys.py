# SPDX-License-Identifier: Apache-2.0
"""Decoy benchmark: time of a decoy database, its quality beside flat k-means, and what a larger one is worth.

    python benchmarks/decoys.py --json out.json                 # real descriptors where SFUMATO_DATA has photos
    python benchmarks/decoys.py --gain work/ --json gain.json   # matches and maps with small and large databases

The peer is faiss.Kmeans, flat, with the same number of iterations, in the same run. The last row is the full size,
without the peer, which would take hours. With --gain, databases of photos/imagenet-samples are compared by the correct
matches of homography/ (25 pairs, both images lifted) and by the points of a map of posed/fountain-P11; what is in the
folder already is not measured again.
"""

import csv
import json
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, sift_like

import sfumato
from sfumato.concealment import decoy_clusters
from sfumato.device import write_clear_features
from sfumato.features import LocalParams

BUNDLED = "bundled 65,536"
SIZES = {"256,000": 256_000}
RECIPES = ("sub-hybrid-2", "sub-hybrid-4")
FEATURES = 6000
"""Features of an image, those of the largest scale."""


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


# --- what a larger database is worth


def remembered(path: Path, work: Any) -> dict[str, Any]:
    """Return what work() found, from its file if it was done before."""
    if not path.exists():
        start = time.perf_counter()
        facts = work()
        path.write_text(json.dumps(facts | {"seconds": time.perf_counter() - start}))
    facts = json.loads(path.read_text())
    note(f"{path.stem}: {facts}")
    return facts


def build_from_photos(data: Path, work: Path, size: int, seed: int) -> dict[str, Any]:
    """Build a database from features that are extracted once; return its facts."""
    photos, output = work / "photos.h5", work / f"decoys-{size}.npz"
    if not photos.exists():
        write_clear_features(data / "photos" / "imagenet-samples", photos)
    outcome = sfumato.build_photo_decoys(photos, output, size=size, seed=seed, overwrite=True)
    return {"decoys": len(outcome.decoys or ()), "descriptors": outcome.sampled, "bytes": output.stat().st_size}


def correct_matches(data: Path, folder: Path, recipes: tuple[str, ...], decoys: Path | None) -> dict[str, float]:
    """Return the correct matches of a pair, at 3 px, that ``evaluate homography`` finds for each recipe."""
    table = folder / "homography-sift.csv"
    if not table.exists():
        options = [] if decoys is None else ["--decoys", str(decoys)]
        recipe_list = ",".join(("raw", *recipes))
        options += ["--distance", "s-to-s", "--recipes", recipe_list, "--max-features", str(FEATURES)]
        command = [sys.executable, "-m", "sfumato", "evaluate", "homography", str(data / "homography")]
        subprocess.run([*command, "-q", "-o", str(folder), *options], check=True)
    with table.open() as lines:
        return {row["recipe"]: float(row["correct 3 px"]) for row in csv.DictReader(lines)}


def map_points(data: Path, work: Path, name: str, recipe: str, decoys: sfumato.Decoys | None) -> dict[str, Any]:
    """Map the fountain from mutual nearest matches of features concealed by a recipe; raw is not concealed."""
    from sfumato.experiments.data import read_posed_folder
    from sfumato.geometry import MapParams, map_keypoints
    from sfumato.types.concealed import Points

    scene, clear = read_posed_folder(data / "posed" / "fountain-P11"), {}
    for image in scene.names:
        stored = work / f"fountain-{image}.npz"
        if not stored.exists():
            features = sfumato.extract(scene.paths[image], max_features=FEATURES)
            np.savez(stored, keypoints=features.keypoints, descriptors=features.descriptors)
        with np.load(stored) as arrays:
            clear[image] = sfumato.Features(arrays["keypoints"], arrays["descriptors"], sfumato.Extractor("sift"))

    def conceal(features: sfumato.Features, number: int) -> Any:
        if recipe == "raw":
            return Points(features.descriptors)
        return sfumato.conceal(features, recipe, decoys, evaluation_seed=number).code

    hidden = {image: conceal(features, number) for number, (image, features) in enumerate(clear.items())}
    matches = {pair: sfumato.match(hidden[pair[0]], hidden[pair[1]], ratio=1.0) for pair in combinations(hidden, 2)}
    keypoints = {image: features.keypoints for image, features in clear.items()}
    outcome = map_keypoints(
        keypoints, scene.cameras, matches, work / f"map-{name}-{recipe}", MapParams(mapper="incremental")
    )
    return {"points": outcome.statistics.points, "registered": outcome.statistics.registered}


def gain(args: Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a row for each database and recipe: what it costs to build, and what matches and maps keep."""
    data, work, rows = data_folder(), args.gain, []
    if data is None:
        sys.exit("no data: set SFUMATO_DATA")
    work.mkdir(parents=True, exist_ok=True)
    raw = remembered(work / "raw.json", lambda: map_points(data, work, "raw", "raw", None))
    generated = tuple(f"{recipe}-generated" for recipe in RECIPES)
    for name, size in {BUNDLED: None, **SIZES}.items():
        recipes = RECIPES + generated if size is None else RECIPES
        path = None if size is None else work / f"decoys-{size}.npz"
        made: dict[str, Any] = {"bytes": None, "seconds": None, "descriptors": None}
        if size is not None:
            made = remembered(
                work / f"build-{size}.json", lambda size=size: build_from_photos(data, work, size, args.seed)
            )
        correct = correct_matches(data, work / f"homography-{size}", recipes, path)
        decoys = sfumato.load_decoys(path)
        for recipe in recipes:
            mapped = remembered(
                work / f"map-{size}-{recipe}.json",
                lambda recipe=recipe, size=size, decoys=decoys: map_points(data, work, str(size), recipe, decoys),
            )
            rows.append({
                "decoys": name, "recipe": recipe, "correct": correct[recipe],
                "correct_of_raw": correct[recipe] / correct["raw"], "registered": mapped["registered"],
                "points": mapped["points"], "points_of_raw": mapped["points"] / raw["points"],
                "megabytes": made["bytes"] and made["bytes"] / 1e6, "build_seconds": made["seconds"],
                "descriptors": made["descriptors"],
            })  # fmt: skip
    return {
        "raw_points": raw["points"],
        "raw_correct": correct["raw"],
        **asdict(LocalParams(max_features=FEATURES)),
    }, rows


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--gain", type=Path, help="compare databases by matches and maps; a folder for what is made")
    args = parser.parse_args(argv)
    if args.gain:
        finish("decoys", args, *gain(args))
        return
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
