# SPDX-License-Identifier: Apache-2.0
"""Recovery of clear descriptors by attacks: neighbours over K, density, several releases and views, tracks of a map.

    python benchmarks/recovery.py --json out.json                                   # needs SFUMATO_DATA
    python benchmarks/recovery.py --descriptor hardtfeat --weights hardtfeat.safetensors --database d.npz --public v.npz

The photos attacked are those of bsds500/val; the database of decoys and the public set V are of other photos. Rows of
case "oracle" are mean distances over K of one public set, with and without projection; "attack" single attacks;
"views" several liftings of noisy views of one descriptor, "own" the descriptor of the attacked view and "scene" the
one they have in common; "tracks" a map of concealed images, by the number of observations of a feature's track;
"compressed" the density attack on 48 principal components. Draws are replayed from the seed: evaluations only.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, photo_descriptors, pinned_threads, sift_like
from recoveries.plot import draw
from recoveries.scene import Scene, attack_scene, posed_scene, room_scene

import sfumato
from sfumato.attacks.knowledge import Companions, Knowledge
from sfumato.attacks.liftings.density import recover_density
from sfumato.attacks.liftings.neighbours import nearest_public, row_blocks
from sfumato.attacks.liftings.oracle_curves import oracle_curve
from sfumato.attacks.liftings.releases import meet, recover_intersection, scene_points
from sfumato.attacks.run import WITHIN, companions_from_archive, summarise_distances
from sfumato.errors import EvaluationOnlyWarning
from sfumato.subspace.reference import project

RECIPES = ("random-2", "sub-hybrid-2", "sub-hybrid-4")
NOISE, MOST_VIEWS = 0.2, 10
COMPRESSED, COMPRESSED_PUBLIC = 48, 60_000
CASES = ("attack", "oracle", "views", "tracks", "compressed")
LENGTHS = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 1000))
Row = dict[str, Any]


def row(case: str, what: str, recipe: str, steps: int, distances: np.ndarray, projected: float | None = None) -> Row:
    """Return one line of the table; ``steps`` is K, the number of views, or the least observations of a track."""
    score = {key: None if np.isnan(value) else value for key, value in summarise_distances(distances).items()}
    return {
        "case": case, "what": what, "recipe": recipe, "steps": steps, "count": len(distances),
        "mean": score["mean"], "median": score["median"], "projected_mean": projected,
        **{f"within_{limit}": score[f"within {limit}"] for limit in WITHIN},
    }  # fmt: skip


def curve_rows(hidden: Any, clear: np.ndarray, recipe: str, sets: dict[str, np.ndarray]) -> list[Row]:
    """Ask the oracle about ever more neighbours, up to all."""
    rows = []
    for name, public in sets.items():
        curve = oracle_curve(hidden.code, clear, public)
        assert curve.projected is not None
        for k, plain, projected in zip(curve.neighbours, curve.plain, curve.projected, strict=True):
            empty = row("oracle", name, recipe, k, np.zeros(0), projected)
            rows.append({**empty, "count": curve.count, "mean": plain})
    return rows


def attack_rows(
    hidden: Any, again: Any, clear: np.ndarray, fewer: np.ndarray, recipe: str, sets: dict[str, np.ndarray]
) -> list[Row]:
    """Run single attacks on all features, the density attack on ``fewer`` of them."""
    rows = []
    for name, public in sets.items():
        note(f"{recipe}: neighbours in the {name}")
        neighbours = nearest_public(hidden.code, public, 100)[1]  # searched once for all four
        best = np.empty(len(clear), np.int64)
        for block in row_blocks(len(clear), 100 * clear.shape[1]):
            asked = np.linalg.norm(public[neighbours[block]] - clear[block, None], axis=2).argmin(axis=1)
            best[block] = np.take_along_axis(neighbours[block], asked[:, None], axis=1)[:, 0]
        for what, chosen in (("nearest", neighbours[:, 0]), ("oracle-100", best)):
            inside = project(public[chosen], hidden.code.origin, hidden.code.basis)
            for more, found in (("", public[chosen]), ("-projected", inside)):
                distances = np.linalg.norm(found - clear, axis=1)
                rows.append(row("attack", f"{what}{more}, {name}", recipe, 0, distances))
    note(f"{recipe}: density and intersection")
    for what, known in (
        ("density", Knowledge(public=sets["public"])),
        ("density, decoys known", Knowledge(public=sets["public"], decoys=sets["database"])),
    ):
        found = recover_density(hidden.take(fewer), known).descriptors
        rows.append(row("attack", what, recipe, 0, np.linalg.norm(found - clear[fewer], axis=1)))
    found = recover_intersection(hidden, Knowledge(releases=companions_from_archive(hidden, again))).descriptors
    rows.append(row("attack", "intersection of two releases", recipe, 2, np.linalg.norm(found - clear, axis=1)))
    return rows


def compressed_rows(clear: np.ndarray, decoys: np.ndarray, public: np.ndarray, seed: int) -> list[Row]:
    """Attack descriptors reduced to principal components of the public ones, of unit norm again, by their density."""
    mean = public.mean(axis=0)
    axes = np.linalg.eigh(np.cov((public - mean).T))[1][:, ::-1][:, :COMPRESSED]
    points, entries, known = (
        (lambda rows: (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))((some - mean) @ axes)
        for some in (clear, decoys, public)
    )
    rows = []
    for recipe in RECIPES:
        note(f"{recipe}: {COMPRESSED} principal components")
        features = sfumato.Features(np.zeros((len(points), 4)), points)
        hidden = sfumato.conceal(features, recipe, sfumato.Decoys(entries), evaluation_seed=seed)
        for what, knowledge in (
            ("density", Knowledge(public=known)), ("density, decoys known", Knowledge(public=known, decoys=entries)),
        ):  # fmt: skip
            found = recover_density(hidden, knowledge).descriptors
            rows.append(row("compressed", what, recipe, COMPRESSED, np.linalg.norm(found - points, axis=1)))
    return rows


def view_rows(clear: np.ndarray, recipe: str, decoys: sfumato.Decoys, rng: np.random.Generator) -> list[Row]:
    """Lift noisy views of every descriptor, and meet ever more of them."""
    views, lifted = [], []
    for number in range(MOST_VIEWS):
        noise = rng.standard_normal(clear.shape)
        seen = clear + NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        views.append((seen / np.linalg.norm(seen, axis=1, keepdims=True)).astype(np.float32))
        lifted.append(sfumato.conceal(views[-1], recipe, decoys, evaluation_seed=100 + number))
    rows, every = [], np.arange(len(clear), dtype=np.int32)
    for count in range(2, MOST_VIEWS + 1):
        others = sfumato.Subspaces(
            np.concatenate([one.origin for one in lifted[1:count]]),
            np.concatenate([one.basis for one in lifted[1:count]]),
        )
        own = meet(lifted[0], Companions(rows=np.tile(every, count - 1), subspaces=others), 1.0).descriptors
        rows.append(row("views", "own", recipe, count, np.linalg.norm(own - views[0], axis=1)))
        common = scene_points(lifted[:count], 1.0)
        rows.append(row("views", "scene", recipe, count, np.linalg.norm(common - clear, axis=1)))
    return rows


def track_rows(name: str, scene: Scene, recipe: str, decoys: sfumato.Decoys, seed: int) -> list[Row]:
    """Map the concealed images and meet the observations of every track."""
    found = attack_scene(scene, recipe, decoys, seed)
    rows = []
    for least, most in LENGTHS:
        some = (found["length"] >= least) & (found["length"] <= most)
        rows.append(row("tracks", name, recipe, least, found["tracks"][some]))
    partner = found["partner"]
    rows.append(row("tracks", f"{name}, closest partner", recipe, 2, partner[~np.isnan(partner)]))
    return rows


def scene_rows(args: argparse.Namespace, decoys: sfumato.Decoys, rng: np.random.Generator) -> list[Row]:
    """Map and attack the made-up room, and the scene asked for."""
    scenes = {"room": room_scene(rng, 3, 160, 200) if args.small else room_scene(rng, 12, 640, 2000)}
    if args.scene is not None:
        scenes[args.scene.name] = posed_scene(args.scene, 2000)
    rows = []
    for name, scene in scenes.items():
        for recipe in RECIPES[1:]:
            note(f"{recipe}: tracks of {name}")
            rows += track_rows(name, scene, recipe, decoys, args.seed)
    return rows


def material(args: argparse.Namespace, rng: np.random.Generator) -> tuple[sfumato.Features, sfumato.Decoys, np.ndarray]:
    """Return the features that are attacked, the database of decoys, and the public set."""
    kind = sfumato.Extractor(args.descriptor)
    if args.small:
        rows = sift_like(1260, rng)
        clear = sfumato.Features(np.zeros((60, 4)), rows[:60], kind)
        return clear, sfumato.Decoys(rows[60:460], kind), rows[460:]
    data = data_folder()
    if data is None:
        raise SystemExit("needs real data: set SFUMATO_DATA")
    photos = sorted((data / "photos" / "bsds500" / "val").glob("*.jpg"))
    settings: dict[str, Any] = {"descriptor": args.descriptor, "max_features": args.features}
    if args.weights is not None:
        settings["weights"] = args.weights
    found = [
        sfumato.extract(photo, **settings) for photo in photos[:: max(1, len(photos) // args.photos)][: args.photos]
    ]
    every = np.concatenate([one.descriptors for one in found])
    clear = sfumato.Features(np.concatenate([one.keypoints for one in found]), every, found[0].extractor)
    database = sfumato.load_decoys(args.database)
    if args.public is not None:
        return clear, database, sfumato.load_decoys(args.public).descriptors
    others = sorted((data / "photos" / "bsds500" / "train").glob("*.jpg"))
    rows = photo_descriptors(others, 10**9)
    return clear, database, rows[rng.permutation(len(rows))[: args.public_size]]


def measure(args: argparse.Namespace, rng: np.random.Generator) -> tuple[list[Row], dict[str, Any]]:
    """Run all cases."""
    clear, decoys, public = material(args, rng)
    sets = {"database": decoys.descriptors, "public": public}
    fewer = rng.permutation(len(clear))[: args.curve_features]
    some = sfumato.Features(clear.keypoints[fewer], clear.descriptors[fewer], clear.extractor)
    rows: list[Row] = []
    for recipe in RECIPES:
        if "attack" in args.cases:
            hidden, again = (sfumato.conceal(clear, recipe, decoys, evaluation_seed=args.seed + n) for n in (0, 1))
            rows += attack_rows(hidden, again, clear.descriptors, fewer, recipe, sets)
        if "oracle" in args.cases:
            note(f"{recipe}: curves of {len(some)} features")
            lifted = sfumato.conceal(some, recipe, decoys, evaluation_seed=args.seed + 2)
            rows += curve_rows(lifted, some.descriptors, recipe, sets)
        if "views" in args.cases:
            rows += view_rows(some.descriptors, recipe, decoys, rng)
    if "compressed" in args.cases:
        rows += compressed_rows(some.descriptors, decoys.descriptors, public[:COMPRESSED_PUBLIC], args.seed)
    if "tracks" in args.cases and args.descriptor == "sift":
        rows += scene_rows(args, sfumato.load_decoys() if args.small else decoys, rng)
    sizes = {
        "features": len(clear), "curve_features": len(some), "database": len(decoys), "public": len(public),
        "descriptor": args.descriptor, "noise_of_views": NOISE, "data": "generated" if args.small else "bsds500/val",
    }  # fmt: skip
    return rows, sizes


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--descriptor", default="sift")
    parser.add_argument("--weights", type=Path, help="the weights of a learned descriptor")
    parser.add_argument("--database", type=Path, help="decoys the photos are lifted with; default: the bundled ones")
    parser.add_argument("--public", type=Path, help="a decoys file with the public set; default: SIFT of bsds500/train")
    parser.add_argument("--public-size", type=int, default=128_000)
    parser.add_argument("--photos", type=int, default=20)
    parser.add_argument("--features", type=int, default=1000, help="the strongest of every photo")
    parser.add_argument(
        "--curve-features", type=int, default=4000, help="of all features, for density, curves and views"
    )
    parser.add_argument("--scene", type=Path, help="a folder of posed images to map, beside the made-up room")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--plot", type=Path, help="draw the figures to this file; by default beside --json")
    args = parser.parse_args(argv)
    with warnings.catch_warnings(), pinned_threads(1):
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        rows, sizes = measure(args, np.random.default_rng(args.seed))
    finish("recovery", args, sizes, rows)
    plot = args.plot or (args.json and args.json.with_suffix(".png"))
    if plot and {"oracle", "views"} <= set(args.cases):
        draw(plot, rows, sizes)


if __name__ == "__main__":
    main(sys.argv[1:])
