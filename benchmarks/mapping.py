# SPDX-License-Identifier: Apache-2.0
"""Mapping benchmark: which mapper makes right maps of the same matches, and whether a wrong one is put in doubt.

    python benchmarks/mapping.py --json out.json                       # SFUMATO_DATA, or else a rendered room
    python benchmarks/mapping.py photos/ more-photos/ --recipes clear,default --seeds 3
    python benchmarks/mapping.py photos/ --recipes default --ratios 1,0.97,0.95,0.9 --every 3    # choose a ratio

Each folder of photos is extracted, concealed and matched once per recipe ("clear": plain descriptors), then mapped with
each mapper and seed, and with "auto". Registered images, points and mean track length of each map; its error is the
median over pairs of images of the larger of rotation and direction, in degrees, against the surveyed cameras where the
folder has a cameras.json, and else against plain COLMAP's map of the same photos. Without a reference the error is
empty: where the maps of plain COLMAP's own seeds disagree there is none. Maps are made without given cameras.
"""

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads

import sfumato
from sfumato.auditing.subjects import conceal_repeatably
from sfumato.auditing.task import digest_data
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.experiments.data.room import make_room, save_room
from sfumato.experiments.maps.plain_colmap import map_plainly
from sfumato.geometry.cameras import default_camera
from sfumato.geometry.mappers import MAPPERS, MapParams
from sfumato.geometry.mapping import MapOutcome, map_keypoints
from sfumato.geometry.statistics import pose_differences, poses_of
from sfumato.types.clear import Features
from sfumato.types.recipe import Recipe
from sfumato.types.scene import Matches, Pose

SCENES = (
    "posed/fountain-P11", "unordered/sceaux-castle", "unordered/internet/piazza_san_marco", "unordered/lund",
)  # fmt: skip
RECIPES = "clear,default,sub-hybrid-2"
PHOTOS = (".jpg", ".jpeg", ".png")
CLEAR = "clear"


def photos_of(folder: Path) -> dict[str, Path]:
    """Return the photos of a folder by name; those of a posed one are in images/."""
    place = folder / "images" if (folder / "images").is_dir() else folder
    return {path.name: path for path in sorted(place.iterdir()) if path.suffix.lower() in PHOTOS}


def reference_of(folder: Path, work: Path) -> tuple[str, Mapping[str, Pose]]:
    """Return what maps are compared with, and its poses: surveyed ones, or those of plain COLMAP if its seeds agree."""
    if (folder / "cameras.json").is_file():
        return "surveyed", read_posed_folder(folder).poses
    paths = photos_of(folder)
    plain = map_plainly(paths, {name: digest_data(path) for name, path in paths.items()}, work)
    if not plain.agreeing:
        note(f"{folder.name}: plain COLMAP's seeds make maps of {plain.seed_counts} images that disagree")
        return "none", {}
    return "plain COLMAP", plain.poses


def matches_of(
    features: Mapping[str, Features], recipe: str, ratio: float | None, seed: int
) -> dict[tuple[str, str], Matches]:
    """Conceal all images with draws that can be repeated, and match every pair, as ``sfumato map`` does."""
    if recipe == CLEAR:
        sides: dict[str, Any] = {name: found.descriptors for name, found in features.items()}
    else:
        parsed = Recipe.of(recipe)
        decoys = sfumato.load_decoys() if parsed.lifting is not None and parsed.lifting.decoy_count else None
        sides = {name: conceal_repeatably(found, parsed, decoys, seed=seed) for name, found in features.items()}
    return {(a, b): sfumato.match(sides[a], sides[b], ratio=ratio) for a, b in combinations(sorted(sides), 2)}


def measure(outcome: MapOutcome, truth: Mapping[str, Pose]) -> dict[str, Any]:
    """Return the figures of one map."""
    error = None
    if outcome.folder is not None and truth:
        from sfumato.geometry.colmap import load_pycolmap

        found = pose_differences(poses_of(load_pycolmap().Reconstruction(str(outcome.folder))), truth)[0]
        error = None if np.isnan(found) else round(found, 3)
    best = next((run for run in outcome.runs if run.is_best), None)
    return {
        "registered": outcome.statistics.registered,
        "points": outcome.statistics.points,
        "track length": round(outcome.statistics.track_length, 2),
        "explained": None if best is None else round(best.explained_share, 3),
        "runs": len(outcome.runs),
        "best": "" if best is None else f"{best.mapper} {best.seed}",
        "error deg": error,
        "in doubt": bool(outcome.doubt) or outcome.folder is None,
        "images in doubt": len(outcome.doubtful_images),
        "doubt": "; ".join(outcome.doubt) or outcome.reason,
        "seconds": round(outcome.seconds, 1),
    }


def rows_of(folder: Path, work: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Map one folder of photos with every recipe, mapper and seed."""
    kind, truth = reference_of(folder, work)
    note(f"{folder.name}: extracting")
    paths = dict(list(photos_of(folder).items())[:: args.every])
    features = {name: sfumato.extract(path, max_features=args.features) for name, path in paths.items()}
    keypoints = {name: found.keypoints for name, found in features.items()}
    cameras = {name: default_camera(found.image_size or (1, 1)) for name, found in features.items()}
    rows = []
    ratios = [float(ratio) for ratio in args.ratios.split(",")] if args.ratios else [None]
    for recipe, ratio in product(args.recipes.split(","), ratios):
        note(f"{folder.name}: matching {recipe}, ratio {ratio or 'by default'}")
        matches = matches_of(features, recipe, ratio, args.seed)
        runs = [(mapper, seed) for mapper in MAPPERS for seed in range(args.seed, args.seed + args.seeds)]
        for mapper, seed in [*runs, ("auto", args.seed)]:
            with tempfile.TemporaryDirectory(prefix="sfumato-mapping-") as place:
                params = MapParams(mapper=mapper, seed=seed, guessed=frozenset(cameras))
                outcome = map_keypoints(keypoints, cameras, matches, Path(place) / "model", params)
                facts = {"scene": folder.name, "images": len(cameras), "recipe": recipe, "ratio": ratio}
                facts |= {"mapper": mapper, "seed": seed}
                rows.append({**facts, "reference": kind, **measure(outcome, truth)})
            note(f"{folder.name} {recipe} {ratio} {mapper} {seed}: {rows[-1]}")
    return rows


def main() -> None:
    """Map every scene, and print and write the rows."""
    parser = arguments(__doc__ or "")
    parser.add_argument("folders", nargs="*", type=Path, help="folders of photos, with or without cameras.json")
    parser.add_argument("--recipes", default=RECIPES, help="a list with commas; clear stands for plain descriptors")
    parser.add_argument("--ratios", default="", help="ratios of the ratio test, with commas; default: the recipe's own")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each mapper")
    parser.add_argument("--features", type=int, default=4000, help="features of a photo at most")
    parser.add_argument("--every", type=int, default=1, help="take every second, third ... photo: maps become harder")
    parser.add_argument("--work", type=Path, help="keeps plain COLMAP's maps from run to run")
    args = parser.parse_args()
    if args.small:
        args.recipes, args.seeds, args.features = "clear,random-2", 1, 200
    data = data_folder()
    with tempfile.TemporaryDirectory(prefix="sfumato-mapping-") as place, pinned_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work = args.work or Path(place) / "work"
        folders = args.folders or [data / name for name in SCENES if data is not None and (data / name).is_dir()]
        if args.small or not folders:
            room = make_room(None, np.random.default_rng(args.seed), views=4 if args.small else 10)
            save_room(room, Path(place) / "room")
            folders = [Path(place) / "room"]
        rows = [row for folder in folders for row in rows_of(folder, work, args)]
    finish(
        "mapping",
        args,
        {"features": args.features, "seeds": args.seeds, "every": args.every, "scenes": len(folders)},
        rows,
    )


if __name__ == "__main__":
    main()
