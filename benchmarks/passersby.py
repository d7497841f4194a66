# SPDX-License-Identifier: Apache-2.0
"""Pictures from a map of concealed images: the stationary scene comes back, people who passed by do not.

    python benchmarks/passersby.py --scene posed/fountain-P11 --passers photos/ --json out.json --sheet out.jpg

Into every image of a scene another photo is put, which no other image shows: somebody passing by. The images are
concealed, matched and mapped with known poses; then each feature of a track is taken from where the subspaces of the
track meet (the limitation that section 5 of the embedding paper states), and an inverter paints what came back.
Features outside any track are left out: this attack says nothing about them. Similarity is the mean of the map of
structural similarity over the pixels of the scene and of the passer-by; leakage is 0 for the picture of the keypoints
alone and 1 for that of the clear descriptors. Draws are replayed from the seed: evaluations only.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from common import arguments, finish, note
from recoveries.scene import Mapped, Scene, map_scene

import sfumato
from sfumato.attacks.knowledge import Knowledge
from sfumato.attacks.liftings.releases import recover_tracks
from sfumato.attacks.run import companions_from_model
from sfumato.experiments.data.folders import read_posed_folder
from sfumato.experiments.data.room import make_room
from sfumato.experiments.frontier.sheets import Column, draw_sheet
from sfumato.images.read import list_images, read_image
from sfumato.images.samples import sample_image
from sfumato.inversion.metrics import as_grey
from sfumato.inversion.patches import Inverter, floor_input, invert_rows, load_inverter

RECIPES = ("sub-hybrid-2", "sub-hybrid-4", "sub-hybrid-8")
SAMPLES = ("chelsea", "astronaut", "coffee", "rocket", "clock")
NEAR_EDGE = 12
"""Pixels on either side of the passer-by's outline that count for neither region."""

REGIONS = ("scene", "passer-by")


@dataclass
class Crowd:
    """Images with a passer-by each: pixels, and where he stands (H, W) bool, by name; the scene they were taken of."""

    pixels: dict[str, np.ndarray]
    passer: dict[str, np.ndarray]
    scene: Scene


def read_scene(args: argparse.Namespace, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], Scene]:
    """Return the images and the cameras of the scene asked for, or of a made-up room."""
    if args.scene is None:
        views, width = (3, 160) if args.small else (12, 640)
        room = make_room(None, rng, views=views, width=width, height=width * 3 // 4)
        pixels = {view.image.name: view.image.pixels for view in room.views}
        cameras = {view.image.name: view.camera for view in room.views}
        return pixels, Scene({}, cameras, {view.image.name: view.pose for view in room.views})
    folder = read_posed_folder(args.scene)
    pixels = {name: read_image(path).pixels for name, path in folder.paths.items()}
    return pixels, Scene({}, dict(folder.cameras), dict(folder.poses))


def passers(args: argparse.Namespace, count: int) -> list[np.ndarray]:
    """Return photos of something else."""
    if args.passers is None:
        return [sample_image(SAMPLES[number % len(SAMPLES)]).pixels for number in range(count)]
    found = [path for _, path in list_images(args.passers)][:count]
    if len(found) < count:
        raise SystemExit(f"{args.passers}: {count} photos are needed, one for each image of the scene")
    return [read_image(path).pixels for path in found]


def put_in(pixels: np.ndarray, passer: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the image with a passer-by in an oval of half its height, and where that is."""
    height, width = pixels.shape[:2]
    tall, wide = height // 2, width // 3
    scale = max(tall / passer.shape[0], wide / passer.shape[1])
    size = (max(wide, round(passer.shape[1] * scale)), max(tall, round(passer.shape[0] * scale)))
    fitted = cv2.resize(np.ascontiguousarray(passer), size, interpolation=cv2.INTER_AREA)
    top, left = (fitted.shape[0] - tall) // 2, (fitted.shape[1] - wide) // 2
    cut = fitted[top : top + tall, left : left + wide]
    cut = cut if cut.ndim == pixels.ndim else np.repeat(cut[:, :, None], 3, axis=2) if cut.ndim == 2 else cut[:, :, 1]
    where = np.zeros((height, width), np.uint8)
    x, y = int(rng.integers(0, width - wide)), height - tall - height // 16
    cv2.ellipse(where, (x + wide // 2, y + tall // 2), (wide // 2, tall // 2), 0, 0, 360, 255, -1)
    covered = pixels.copy()
    inside = where[y : y + tall, x : x + wide] > 0
    covered[y : y + tall, x : x + wide][inside] = cut[inside]
    return covered, where > 0


def make_crowd(args: argparse.Namespace, rng: np.random.Generator) -> Crowd:
    """Put somebody else into every image, and describe them."""
    pixels, scene = read_scene(args, rng)
    crowd = Crowd({}, {}, scene)
    settings = {"descriptor": args.descriptor, "max_features": args.features}
    if args.weights is not None:
        settings["weights"] = args.weights
    for (name, image), passer in zip(sorted(pixels.items()), passers(args, len(pixels)), strict=True):
        crowd.pixels[name], crowd.passer[name] = put_in(image, passer, rng)
        scene.clear[name] = sfumato.extract(sfumato.Image(crowd.pixels[name], name), **settings)
    return crowd


def similarity(seen: np.ndarray, truth: np.ndarray, passer: np.ndarray) -> dict[str, float]:
    """Return the mean structural similarity over the pixels of the scene and of the passer-by."""
    from skimage.metrics import structural_similarity

    grey = as_grey(truth / 255.0), as_grey(seen.astype(np.float64))
    _, local = structural_similarity(
        *grey, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0, full=True
    )
    kernel = np.ones((2 * NEAR_EDGE + 1, 2 * NEAR_EDGE + 1), np.uint8)
    inner, outer = cv2.erode(passer.astype(np.uint8), kernel) > 0, cv2.dilate(passer.astype(np.uint8), kernel) == 0
    return {"scene": float(local[outer].mean()), "passer-by": float(local[inner].mean())}


def attack_image(
    crowd: Crowd, mapped: Mapped, name: str, inverter: Inverter
) -> tuple[dict[str, np.ndarray], dict[str, dict[str, float]]]:
    """Return the pictures of one image (clear, floor, tracks), and for each region what the attack recovered."""
    clear, hidden = crowd.scene.clear[name], mapped.hidden[name]
    companions = companions_from_model(name, mapped.model, mapped.hidden)
    recovered = recover_tracks(hidden, Knowledge(tracks=companions))
    tracked = np.zeros(len(clear), bool)
    tracked[companions.rows] = True
    height, width = crowd.passer[name].shape
    size = (width, height)
    floor = np.broadcast_to(floor_input(inverter), clear.descriptors.shape)
    pictures = {
        "clear": invert_rows(inverter, clear.keypoints, clear.descriptors, size),
        "floor": invert_rows(inverter, clear.keypoints, floor, size),
        "tracks": invert_rows(inverter, clear.keypoints[tracked], recovered.descriptors[tracked], size),
    }
    x, y = np.clip(np.rint(clear.keypoints[:, :2]).astype(int), 0, [width - 1, height - 1]).T
    on_passer = crowd.passer[name][y, x]
    near = np.linalg.norm(recovered.descriptors - clear.descriptors, axis=1) <= 0.1
    figures: dict[str, dict[str, float]] = {region: {} for region in REGIONS}
    for region, rows in (("scene", ~on_passer), ("passer-by", on_passer)):
        figures[region] = {"features": int(rows.sum()), "in tracks": int((rows & tracked).sum()),
                           "within 0.1": int((rows & tracked & near).sum())}  # fmt: skip
    for title, picture in pictures.items():
        for region, value in similarity(picture, crowd.pixels[name], crowd.passer[name]).items():
            figures[region][title] = value
    return pictures, figures


def summed(recipe: str, region: str, figures: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return one line of the table: a region of all images."""
    total = {key: sum(row[key] for row in figures) for key in figures[0]}
    means = {key: total[key] / len(figures) for key in ("clear", "floor", "tracks")}
    return {
        "recipe": recipe, "region": region, "images": len(figures), "features": total["features"],
        "in tracks": total["in tracks"] / max(1, total["features"]),
        "within 0.1": total["within 0.1"] / max(1, total["features"]), **means,
        "leakage": (means["tracks"] - means["floor"]) / (means["clear"] - means["floor"]),
    }  # fmt: skip


def main() -> None:
    """Map, attack, paint, and say what came back."""
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--scene", type=Path, help="a folder of posed images; without it a made-up room")
    parser.add_argument("--passers", type=Path, help="photos of something else; without it the samples")
    parser.add_argument("--database", type=Path, help="the decoys; without it the bundled ones, for SIFT")
    parser.add_argument("--descriptor", default="sift")
    parser.add_argument("--weights", type=Path, help="for a network: its weights")
    parser.add_argument("--inverter", type=Path, help="for clear descriptors; without it the bundled one, for SIFT")
    parser.add_argument("--features", type=int, default=2000, help="of each image, at most")
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--sheet", type=Path, help="write pictures of three images to this file")
    args = parser.parse_args()
    if args.small:
        args.recipes, args.features = ["random-2"], 200
    crowd = make_crowd(args, np.random.default_rng(args.seed))
    decoys, inverter = sfumato.load_decoys(args.database), load_inverter(args.inverter)
    shown = list(crowd.pixels)[:: max(1, len(crowd.pixels) // 3)][:3]
    columns = [Column("photo, and somebody passing by", [crowd.pixels[name] for name in shown])]
    rows = []
    for recipe in args.recipes:
        note(f"{recipe}: mapping {len(crowd.pixels)} images")
        mapped = map_scene(crowd.scene, recipe, decoys, args.seed)
        results = {name: attack_image(crowd, mapped, name, inverter) for name in mapped.model.names}
        rows += [summed(recipe, region, [figures[region] for _, figures in results.values()]) for region in REGIONS]
        columns += [
            Column(title, [as_bytes(results[name][0][key]) if name in results else None for name in shown])
            for title, key in (("from clear descriptors", "clear"), (f"{recipe}: from its map", "tracks"))
            if key != "clear" or len(columns) == 1
        ]
    if args.sheet is not None:
        note(f"pictures in {draw_sheet(args.sheet, columns)}")
    sizes = {"images": len(crowd.pixels), "features": args.features, "descriptor": args.descriptor,
             "decoys": len(decoys), "scene": "room" if args.scene is None else args.scene.name}  # fmt: skip
    finish("passersby", args, sizes, rows)


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Return a picture of values 0 to 1 as uint8."""
    return np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)


if __name__ == "__main__":
    main()
