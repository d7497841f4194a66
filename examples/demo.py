# SPDX-License-Identifier: Apache-2.0
"""Conceal and match bundled photos; leave a picture and a page to look at.

    python examples/demo.py --output demo

Two devices see the same scene: a photo, and the same photo through a known homography. Each conceals its own features
and sends an archive. The server matches the two without ever seeing a descriptor; how many matches are right is known.
"""

import argparse
import base64
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment
from rich.progress import track

import sfumato
from sfumato.images.homography import HomographyPair, make_pair, warp_points
from sfumato.images.samples import sample_image

PHOTOS = ("astronaut", "coffee", "chelsea")
RECIPES = ("raw", "sub-hybrid-2", "sub-hybrid-4")
RIGHT_WITHIN_PX = 3.0


@dataclass(frozen=True)
class Result:
    """The matches of one pair under one recipe, and which of them are right."""

    photo: str
    recipe: str
    points0: np.ndarray
    points1: np.ndarray
    right: np.ndarray
    bytes_each: float


def conceal_both(pair: HomographyPair, recipe: str, features: int, folder: Path) -> list[sfumato.ConcealedFeatures]:
    """Extract and conceal both pictures as two devices would; what can be archived goes through an archive."""
    decoys = sfumato.load_decoys()
    sides = {}
    for name, image in (("first", pair.first), ("second", pair.second)):
        clear = sfumato.extract(image, max_features=features)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sfumato.EvaluationOnlyWarning)  # raw stands here for comparison
            sides[name] = sfumato.conceal(clear, recipe, decoys)
    if recipe != "raw":
        path = folder / f"{pair.first.name}-{recipe}.sfm.h5"
        sfumato.save(path, sides)
        with sfumato.load(path) as archive:
            return [archive["first"], archive["second"]]
    return list(sides.values())


def match(pair: HomographyPair, recipe: str, features: int, folder: Path) -> Result:
    """Match the two sides by mutual nearest subspaces, and judge every match by the homography."""
    side0, side1 = conceal_both(pair, recipe, features, folder)
    rows0, rows1 = sfumato.match(side0, side1).indices.T
    points0, points1 = side0.keypoints[rows0, :2], side1.keypoints[rows1, :2]
    error = np.linalg.norm(warp_points(pair.homography, points0) - points1, axis=1)
    numbers = 4 * (side0.subspaces.dim + 1) * side0.subspaces.ambient_dim
    return Result(pair.first.name, recipe, points0, points1, error < RIGHT_WITHIN_PX, numbers)


def draw(pair: HomographyPair, results: list[Result], path: Path) -> None:
    """Draw the matches of each recipe between the two pictures, right ones green, wrong ones red."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    height = max(pair.first.size[1], pair.second.size[1])
    both = np.full((height, pair.first.size[0] + pair.second.size[0] + 12, 3), 255, np.uint8)
    for image, left in ((pair.first, 0), (pair.second, pair.first.size[0] + 12)):
        pixels = np.atleast_3d(image.pixels)
        both[: pixels.shape[0], left : left + pixels.shape[1]] = pixels
    tall = both.shape[0] / both.shape[1]
    figure, axes = plt.subplots(1, len(results), figsize=(6 * len(results), 6 * tall + 0.4), layout="constrained")
    for axis, result in zip(axes, results, strict=True):
        axis.imshow(both // 2 + 96)
        shifted = result.points1 + np.array([pair.first.size[0] + 12, 0])
        for right, colour in ((False, "#c1272d"), (True, "#0a7d3c")):
            chosen = result.right == right
            ends = np.stack([result.points0[chosen], shifted[chosen]], axis=2)
            for xs, ys in ends:
                axis.plot(xs, ys, color=colour, linewidth=0.6, alpha=0.75)
        title = "clear SIFT" if result.recipe == "raw" else result.recipe
        axis.set_title(f"{title}: {result.right.sum()} right of {len(result.right)}", fontsize=12)
        axis.set_axis_off()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_page(results: list[Result], pictures: list[Path], settings: dict[str, object], path: Path) -> None:
    """Write one self-contained page with the pictures and the figures."""
    rows = [
        {"photo": r.photo, "recipe": r.recipe, "matches": len(r.right), "right": int(r.right.sum()),
         "share": f"{r.right.mean():.2f}" if len(r.right) else "none", "bytes": f"{r.bytes_each:.0f}"}
        for r in results
    ]  # fmt: skip
    images = [base64.b64encode(picture.read_bytes()).decode() for picture in pictures]
    template = (Path(__file__).parent / "demo.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True).from_string(template)
    path.write_text(page.render(rows=rows, images=images, settings=settings), encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the page, pictures and archives")
    parser.add_argument("--features", type=int, default=1000, help="keypoints of each picture")
    parser.add_argument("--photos", nargs="+", default=list(PHOTOS), help="names of sample photos")
    parser.add_argument("--seed", type=int, default=0, help="of the homographies; concealment is never seeded")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    results: list[Result] = []
    pictures = []
    for name in track(args.photos, description="concealing and matching"):
        pair = make_pair(sample_image(name), rng)
        of_photo = [match(pair, recipe, args.features, args.output) for recipe in RECIPES]
        pictures.append(args.output / f"{name}.png")
        draw(pair, of_photo, pictures[-1])
        results += of_photo
    settings = {"version": sfumato.__version__, "features": args.features, "seed": args.seed, "pixels": RIGHT_WITHIN_PX}
    write_page(results, pictures, settings, args.output / "index.html")
    for result in results:
        print(f"{result.photo:>10}  {result.recipe:<13} {result.right.sum():>4} right of {len(result.right)}")
    print(f"Open {args.output / 'index.html'} (archives and pictures are beside it)")


if __name__ == "__main__":
    main(sys.argv[1:])
