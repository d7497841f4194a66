# SPDX-License-Identifier: Apache-2.0
"""False poses: photos of other places against a map, which must get none, and photos of the place, which must get one.

    python benchmarks/strangers.py --json out.json                # SFUMATO_DATA, or else a rendered room

The map is triangulated from true poses: those surveyed for fountain-P11, or those of the first folder that is given.
"place" are its own photos, each localized in a map of some of the others: all of them, the four first or last, every
third. "stranger" are photos of the other folders, in the same maps. All cameras of strangers are guesses that are taken
for given, so that the focal length is not free. "inliers alone" counts poses with 20 inliers or more, "chance asked"
those that are also better than chance; "wrong" are poses of photos of the place more than 0.5 m or 5 degrees off.
"""

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads
from mapping import photos_of

import sfumato
from sfumato.auditing.subjects import conceal_repeatably
from sfumato.experiments.data.folders import PosedImages, read_posed_folder
from sfumato.experiments.data.room import make_room, save_room
from sfumato.geometry.cameras import default_camera, pose_error
from sfumato.geometry.localization import LocalizeParams, localize_query
from sfumato.geometry.mapping import map_keypoints
from sfumato.geometry.maps import Map, select_rows
from sfumato.geometry.model import read_model
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.recipe import Recipe

PLACE = "posed/fountain-P11"
STRANGERS = ("unordered/sceaux-castle", "unordered/internet/*", "homography/v_*")
WRONG = (0.5, 5.0)


def conceal_all(paths: Mapping[str, Path], recipe: str, features: int, seed: int) -> dict[str, ConcealedFeatures]:
    """Extract and conceal photos, with draws that can be repeated."""
    parsed = Recipe.of(recipe)
    decoys = sfumato.load_decoys() if parsed.lifting is not None and parsed.lifting.decoy_count else None
    return {
        name: conceal_repeatably(sfumato.extract(path, max_features=features), parsed, decoys, seed=seed)
        for name, path in paths.items()
    }


def maps_of(posed: PosedImages, hidden: Mapping[str, ConcealedFeatures], work: Path) -> Iterator[tuple[str, Map]]:
    """Yield maps of parts of a place, each with its label."""
    names = list(posed.names)
    matches = {(a, b): sfumato.match(hidden[a], hidden[b]) for a, b in combinations(names, 2)}
    parts = {"first": names[:4], "last": names[-4:], "third": names[::3]}
    parts |= {f"all but {name}": [other for other in names if other != name] for name in names}
    for number, (label, part) in enumerate(parts.items()):
        among = {pair: found for pair, found in matches.items() if set(pair) <= set(part)}
        keypoints = {name: hidden[name].keypoints for name in part}
        outcome = map_keypoints(keypoints, posed.cameras, among, work / str(number), poses=posed.poses)
        if outcome.folder is not None:
            model = read_model(outcome.folder)
            rows = {name: select_rows(hidden[name], model.sight(name).keypoints) for name in model.names}
            yield label, Map(model, rows, is_public=False)


def localize_twice(query: ConcealedFeatures, camera: Any, place: Map) -> tuple[Any, Any]:
    """Return what is found with a number of inliers alone, and with chance asked for."""
    alone = localize_query(query, camera, place, place.names, LocalizeParams(max_false_alarms=float("inf")))
    return alone, alone if alone.pose is None else localize_query(query, camera, place, place.names)


def measure(posed: PosedImages, others: Sequence[Path], recipe: str, args: Any) -> list[dict[str, Any]]:
    """Localize photos of the place and strangers in all maps; return a row for each kind."""
    hidden = conceal_all(posed.paths, recipe, args.features, args.seed)
    paths = {f"{folder.name}/{name}": path for folder in others for name, path in photos_of(folder).items()}
    strange = conceal_all(paths, recipe, args.features, args.seed)
    blank = {"queries": 0, "inliers alone": 0, "chance asked": 0, "wrong alone": 0, "wrong asked": 0, "most inliers": 0}
    rows = {kind: dict(blank) for kind in ("place", "stranger")}
    with tempfile.TemporaryDirectory(prefix="sfumato-strangers-") as work:
        for label, place in maps_of(posed, hidden, Path(work)):
            for name in posed.names:
                if name not in place.model.names:
                    alone, asked = localize_twice(hidden[name], posed.cameras[name], place)
                    count(rows["place"], alone, asked, posed.poses[name])
            if label.startswith("all but") and not label.endswith(posed.names[0]):
                continue  # maps that hardly differ
            for query in strange.values():
                camera = default_camera(query.image_size or (1, 1))
                count(rows["stranger"], *localize_twice(query, camera, place), None)
            note(f"{recipe}, {label}: {rows}")
    return [{"recipe": recipe, "photos": kind, **row} for kind, row in rows.items()]


def count(row: dict[str, Any], alone: Any, asked: Any, truth: Any) -> None:
    """Add one query to a row; every pose of a stranger is wrong."""
    row["queries"] += 1
    row["inliers alone"] += alone.pose is not None
    row["chance asked"] += asked.pose is not None
    row["most inliers"] = max(row["most inliers"], alone.inliers)
    for key, found in (("wrong alone", alone), ("wrong asked", asked)):
        if found.pose is not None:
            row[key] += truth is None or bool(np.any(np.array(pose_error(found.pose, truth)) > WRONG))


def main() -> None:
    """Localize, and print and write the rows."""
    parser = arguments(__doc__ or "")
    parser.add_argument("place", nargs="?", type=Path, help="a folder with images/ and cameras.json")
    parser.add_argument("others", nargs="*", type=Path, help="folders of photos of other places")
    parser.add_argument("--recipes", default="default,sub-hybrid-2")
    parser.add_argument("--features", type=int, default=3000, help="features of a photo at most")
    args = parser.parse_args()
    if args.small:
        args.recipes, args.features = "random-2", 150
    data = data_folder()
    with tempfile.TemporaryDirectory(prefix="sfumato-strangers-") as room, pinned_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place, others = args.place, list(args.others)
        if place is None and data is not None and not args.small:
            place = data / PLACE
            others = [folder for pattern in STRANGERS for folder in sorted(data.glob(pattern))]
        if place is None:
            for number in range(2):
                views = make_room(None, np.random.default_rng(args.seed + number), views=6, width=320, height=240)
                save_room(views, Path(room) / str(number))
            place, others = Path(room) / "0", [Path(room) / "1"]
        posed = read_posed_folder(place)
        rows = [row for recipe in args.recipes.split(",") for row in measure(posed, others, recipe, args)]
    finish("strangers", args, {"features": args.features, "others": len(others)}, rows)


if __name__ == "__main__":
    main()
