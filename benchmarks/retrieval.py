# SPDX-License-Identifier: Apache-2.0
"""Retrieval benchmark: images of the same scene in a shortlist, by recipe, number of words and votes per feature.

    python benchmarks/retrieval.py --json out.json          # needs SFUMATO_DATA

The images are those of fountain-P11, sceaux-castle and the homography sequences, among photos that belong to nothing.
Recall: of the other images of its scene, or of the first N places if those are fewer, the share that an image has in
its first N; the mean over the images that have a scene. With "decoys left in" the known votes of decoys are not taken
out. raw are the clear descriptors, with the same votes. Draws are replayed from the seed: evaluations only.
"""

import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note

import sfumato
from sfumato.codebooks import codebook_of
from sfumato.errors import EvaluationOnlyWarning
from sfumato.experiments.data.room import make_room
from sfumato.images.samples import sample_image
from sfumato.matching.bit_votes import NEAREST, SAMPLE, collect
from sfumato.matching.codebook import Codebook, load_codebook
from sfumato.matching.retrieval import RetrievalParams, nearest_images, sign

RECIPES = ("raw", "random-2", "sub-hybrid-2", "sub-hybrid-4", "sealed-512")
PLACES = (5, 10, 20)
Scenes = dict[str, tuple[str, sfumato.Features]]
"""Image name to scene and clear features; the scene is empty for photos that belong to nothing."""


def real_images(folder: Path, others: int) -> Scenes:
    """Describe the images of the real data, and photos that belong to no scene."""
    paths = {f"fountain {path.name}": ("fountain", path) for path in (folder / "posed/fountain-P11/images").iterdir()}
    for path in sorted((folder / "unordered/sceaux-castle").rglob("*.[jJ][pP][gG]")):
        paths[f"sceaux {path.name}"] = ("sceaux", path)
    for path in sorted((folder / "homography").glob("*/*.png")):
        paths[f"{path.parent.name} {path.name}"] = (path.parent.name, path)
    for path in sorted((folder / "photos/bsds500/val").glob("*.jpg"))[:others]:
        paths[f"other {path.name}"] = ("", path)
    return {name: (scene, sfumato.extract(path)) for name, (scene, path) in sorted(paths.items())}


def generated_images(rng: np.random.Generator) -> Scenes:
    """Describe three views of a small made-up room, and four sample photos."""
    room = make_room(None, rng, views=3, width=240, height=180)
    found = {view.image.name: ("room", sfumato.extract(view.image)) for view in room.views}
    for name in ("brick", "grass", "chelsea", "gravel"):
        found[name] = ("", sfumato.extract(sample_image(name), max_features=300))
    return found


def concealed(images: Scenes, recipe: str, seed: int) -> dict[str, Any]:
    """Conceal each image with draws of its own."""
    decoys = sfumato.load_decoys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvaluationOnlyWarning)
        return {
            name: features.descriptors if recipe == "raw" else sfumato.conceal(
                features, recipe, None if recipe.startswith("sealed") else decoys,
                evaluation_seed=1000 * seed + (0 if recipe.startswith("sealed") else number),  # one key for all
            )
            for number, (name, (_, features)) in enumerate(images.items())
        }  # fmt: skip


def recall(found: np.ndarray, scenes: list[str], places: int) -> float:
    """Return the mean share of the images of its scene that an image has in its first places."""
    shares = []
    for mine, row in enumerate(found):
        partners = [i for i, scene in enumerate(scenes) if i != mine and scene and scene == scenes[mine]]
        if partners:
            shares.append(np.isin(row[:places], partners).sum() / min(places, len(partners)))
    return float(np.mean(shares))


def measure(images: Scenes, hidden: dict[str, Any], codebook: Codebook, votes: int) -> list[dict[str, Any]]:
    """Return the recalls of one way to vote, with the votes of decoys taken out and left in, and its time."""
    scenes = [scene for scene, _ in images.values()]
    params = RetrievalParams(votes=votes)
    sign(dict(list(hidden.items())[:1]), codebook, params)  # compiles
    start = time.perf_counter()
    taken_out = sign(hidden, codebook, params)
    seconds = (time.perf_counter() - start) / len(images)
    left_in = replace(taken_out, codebook=Codebook(codebook.words, codebook.extractor))
    return [
        {"words": len(codebook), "votes": votes, "remark": remark}
        | {f"recall_at_{n}": recall(nearest_images(voted, voted, n), scenes, n) for n in PLACES}
        | {"seconds_an_image": seconds}
        for voted, remark in ((taken_out, ""), (left_in, "decoys left in"))
    ]


def measure_bits(images: Scenes, hidden: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the recalls of votes by bits, and their time."""
    scenes = [scene for scene, _ in images.values()]
    voters = collect(hidden)
    rows = np.full((len(images), max(PLACES)), -1)
    start = time.perf_counter()
    for number, one in enumerate(hidden.values()):
        nearest = voters.nearest_images(one.code, max(PLACES), own=number)
        rows[number, : len(nearest)] = nearest
    seconds = (time.perf_counter() - start) / len(images)
    return [
        {"words": None, "votes": NEAREST, "remark": f"{SAMPLE} real codes of each"}
        | {f"recall_at_{n}": recall(rows, scenes, n) for n in PLACES}
        | {"seconds_an_image": seconds}
    ]


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--others", type=int, default=100, help="photos that belong to nothing")
    parser.add_argument("--sweep", action="store_true", help="other numbers of words and votes too; takes minutes")
    args = parser.parse_args(argv)
    folder = None if args.small else data_folder()
    if folder is None and not args.small:
        sys.exit("this needs the real data: set SFUMATO_DATA, or try --small")
    images = generated_images(np.random.default_rng(args.seed)) if folder is None else real_images(folder, args.others)
    note(f"{len(images)} images, {sum(len(rows) for _, rows in images.values())} features")
    bundled = load_codebook("sift")
    ways = [(bundled, RetrievalParams().votes)]
    if args.sweep:
        ways += [(bundled, votes) for votes in (1, 4, 8, 32)]
        ways += [(codebook_of(sfumato.load_decoys(), size=size), RetrievalParams().votes) for size in (256, 2048)]
    rows = []
    for recipe in RECIPES[::5] + RECIPES[2:3] if args.small else RECIPES:
        hidden = concealed(images, recipe, args.seed)
        if recipe.startswith("sealed"):
            rows += [{"recipe": recipe} | row for row in measure_bits(images, hidden)]
            continue
        for codebook, votes in ways:
            rows += [{"recipe": recipe} | row for row in measure(images, hidden, codebook, votes)]
            note(f"{recipe}: {len(codebook)} words, {votes} votes")
    sizes = {"images": len(images), "in_scenes": sum(bool(scene) for scene, _ in images.values())}
    finish("retrieval", args, sizes, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
