# SPDX-License-Identifier: Apache-2.0
"""Photos with people, as attackers paint them: is a person recognised? A sheet to look at, and what each leaks.

    python benchmarks/people.py --sheet people.jpg --json out.json      # needs the photos below SFUMATO_DATA

Twenty photos of bsds500/val with people in them, sealed by the default, matched with one another and released: "rows"
and "released" count them. They match nothing, so that nothing is to be seen; all attacks but the first are on archives
of all positions (``--positions``). Columns: the photo; the positions released, and all of them, as dots; what clear
features show; what the inverters for outlines and for positions paint of all positions; and what a told alignment reads
of them, an oracle that nobody has, by the inverter trained on such readings.
"leakage" is on the usual scale: 0 for a mean descriptor, 1 for clear features. "outlines" is the correlation of what is
painted with the outlines of the photo. The sheet holds photos: it stays out of the repository.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, data_folder, finish, note, pinned_threads
from releaseds.sets import Sealed, sealed_set

from sfumato.auditing.toolbox import CELLS, OUTLINES, PATCH, POSITIONS, TrainedInverter, bundled_inverters
from sfumato.concealment.decoys import load_decoys
from sfumato.concealment.seal import with_usual_bandwidth
from sfumato.experiments.frontier.sheets import Column, draw_sheet
from sfumato.features.local import LocalParams, extract
from sfumato.images.read import read_image
from sfumato.images.samples import sample_paths
from sfumato.inversion.canonical import canonical_input
from sfumato.inversion.load import empty_rows
from sfumato.inversion.metrics import outline_score, outlines, picture_scores
from sfumato.training.concealers import reader_of
from sfumato.types.recipe import DEFAULT_RECIPE, Recipe

PEOPLE = (
    "101087", "119082", "157055", "170057", "189080", "216081", "220075", "229036", "271035", "285079",
    "299086", "300091", "302008", "361010", "376043", "385039", "62096", "65033", "85048", "89072",
)  # fmt: skip
"""Photos of bsds500/val in which people are the subject, or large."""


def dots(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return positions drawn as dots."""
    import cv2

    sheet = np.full((size[1], size[0]), 255, np.uint8)
    for x, y in np.rint(points[:, :2]).astype(int):
        cv2.circle(sheet, (int(x), int(y)), 2, 0, -1, cv2.LINE_AA)
    return sheet


def painters() -> dict[str, TrainedInverter]:
    """Return the attackers of the default that come with the package, and the usual inverter of clear features."""
    found = {(one.architecture, Recipe.of(one.recipe).is_sealed): one for one in bundled_inverters()}
    return {
        "clear": next(one for one in bundled_inverters() if (one.recipe, one.architecture) == ("raw", PATCH)),
        "outlines": found[OUTLINES, False],
        "positions": found[POSITIONS, False],
        "told alignment": found[CELLS, True],
    }


def sealed(paths: list[Path], seed: int) -> dict[str, Sealed]:
    """Return photos after the default's conceal, match with one another, and release; by name."""
    with tempfile.TemporaryDirectory(prefix="sfumato-people-") as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        for path in paths:
            (photos / path.name).symlink_to(path.resolve())
        return {Path(one.name).stem: one for one in sealed_set(photos, Path(place) / "work", seed)}


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--sheet", type=Path, help="write the pictures to this file, .png or .jpg")
    args = parser.parse_args()
    folder = data_folder()
    paths = list(sample_paths().values())[:2]
    if folder is not None and not args.small:
        paths = [folder / "photos/bsds500/val" / f"{name}.jpg" for name in PEOPLE]
    recipe, local = Recipe.of(DEFAULT_RECIPE), LocalParams(max_features=100) if args.small else LocalParams()
    inverters, columns = painters(), dict[str, list[Any]]()
    read_back = reader_of(
        with_usual_bandwidth(recipe, "sift"), load_decoys().descriptors[:: 16 if args.small else 1], seed=args.seed + 1
    )
    archive = sealed(paths, args.seed)
    scores, drawn = dict[str, list[float]](), dict[str, list[float]]()
    with pinned_threads(1):
        for path in paths:
            note(path.stem)
            image, hidden = read_image(path), archive[path.stem]
            clear = extract(image, local)
            readings = read_back(clear)
            usual, reader = inverters["clear"], inverters["told alignment"]
            assert reader.frame is not None
            floor = np.broadcast_to(usual.floor, clear.descriptors.shape)
            painted = {
                "clear": usual.paint(clear.keypoints, clear.descriptors, image.size),
                "floor": usual.paint(clear.keypoints, floor, image.size),
                **{
                    name: inverters[name].paint(clear.keypoints, empty_rows(len(clear)), image.size)
                    for name in ("outlines", "positions")
                },
                "told alignment": reader.paint(
                    readings.keypoints, canonical_input(readings.subspaces, reader.frame), image.size
                ),
            }
            for name, picture in painted.items():
                if not inverters.get(name, usual).paints_outlines:
                    scores.setdefault(name, []).append(picture_scores(picture, image.pixels)["ssim"])
                    picture = outlines(np.clip(picture, 0, 1))
                drawn.setdefault(name, []).append(outline_score(picture, image.pixels))
            pictures = {
                "photo": image.pixels,
                "default: released": dots(hidden.positions[hidden.shown], image.size),
                "all positions": dots(clear.keypoints, image.size),
                **{name: np.rint(255 * one).astype(np.uint8) for name, one in painted.items() if name != "floor"},
            }
            for name, picture in pictures.items():
                columns.setdefault(name, []).append(picture)
    if args.sheet is not None:
        draw_sheet(args.sheet, [Column(name, pictures) for name, pictures in columns.items()])
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    scale = means["clear"] - means["floor"]
    count, released = (
        sum(part) for part in zip(*((len(one.shown), int(one.shown.sum())) for one in archive.values()), strict=True)
    )
    rows: list[dict[str, Any]] = [{"attack": "default: any", "rows": count, "released": released}]
    rows += [
        {
            "attack": f"all positions: {name}",
            "rows": count,
            "released": count,
            "ssim": means.get(name),
            "leakage": (means[name] - means["floor"]) / scale if scale and name in means else None,
            "outlines": float(np.mean(values)),
        }
        for name, values in drawn.items()
    ]
    finish("people", args, {"photos": len(paths), "features": local.max_features, "recipe": DEFAULT_RECIPE}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
