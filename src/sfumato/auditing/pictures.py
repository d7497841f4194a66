# SPDX-License-Identifier: Apache-2.0
"""Pictures of an audit: photos, what every attack painted, matches drawn as lines, and a plot.

Reads what the evaluations kept; attacks nothing itself. Clear features are extracted once more, only to know where the
ends of the lines are.
"""

import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import Recovery
from sfumato.auditing.attack_task import decode_picture
from sfumato.auditing.leakage import LeakagePlan
from sfumato.auditing.matching import HomographyPlan, pairs_of
from sfumato.auditing.photos import PreparedPhotos, encode
from sfumato.auditing.reference import LEAST_ACCURACY, MOST_LEAKAGE
from sfumato.auditing.runner import Results
from sfumato.auditing.tables import COLOURS, MARKERS
from sfumato.errors import FileError, InputError
from sfumato.files.atomic import write_file
from sfumato.images.homography import HomographySequence
from sfumato.images.read import read_image
from sfumato.inversion.load import AnyInverter, run_inverter
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.record import Picture

Pixels = NDArray[np.uint8]
Points = NDArray[np.floating[Any]]

SHOWN_PHOTOS = 6
SHOWN_PAIRS = 2
SIDE = 400
"""Pixels of the longer side of a picture in the page."""
GAP = 12
LINES = 120
"""How many matches of a pair are drawn."""
RIGHT_WITHIN_PX = 3.0
RIGHT, WRONG = (0, 114, 178), (213, 94, 0)
"""Blue and vermilion of Okabe and Ito."""
MEDIA = "image/jpeg"
"""A browser that prints the page keeps JPEG as it is; other pictures grow tenfold in its PDF."""


def collect_pictures(
    attacks: LeakagePlan, matching: HomographyPlan, photos: PreparedPhotos, folder: str | Path
) -> list[Picture]:
    """Return the first photos, what every attack painted of them, and the matches of the first pairs."""
    names = list(photos.photos)[:SHOWN_PHOTOS]
    pictures = [
        Picture(shows="photo", content=small(read_image(photos.photos[name]).pixels), media=MEDIA, photo=name)
        for name in names
    ]
    pictures += attack_pictures(attacks, folder, names)
    for name in names[:SHOWN_PAIRS]:
        pictures += match_pictures(matching, photos.pairs[name], folder)
    return pictures


def attack_pictures(plan: LeakagePlan, folder: str | Path, names: Sequence[str]) -> Iterator[Picture]:
    """Yield what each attack painted of some photos."""
    for task in plan.tasks:
        results, recipe = Results(folder, task.task()), str(task.subject.recipe)
        for sample in plan.samples:
            if sample.key not in names:
                continue
            try:
                prediction = results.load_prediction(sample)[0]
            except FileError:  # it was left out, and the record says so
                continue
            if "picture" not in prediction:
                continue  # an attack that ends in points of an encoder's space paints nothing
            content, attack = small(decode_picture(prediction["picture"])), task.attack.title
            yield Picture(shows="seen", content=content, media=MEDIA, photo=sample.key, recipe=recipe, attack=attack)


def match_pictures(plan: HomographyPlan, sequence: HomographySequence, folder: str | Path) -> Iterator[Picture]:
    """Yield the pair of a sequence with the matches of each recipe drawn on it, an even choice of all of them."""
    pair = pairs_of(sequence)[0]
    plan.clear.keep_only(sequence.paths)
    clear = [plan.clear[path] for path in (pair.first, pair.second)]
    pictures = [read_image(path).pixels for path in (pair.first, pair.second)]
    for task in plan.tasks:
        try:
            prediction = Results(folder, task).load_prediction(plan.samples[pair.key])[0]
        except FileError:  # it was left out, and the record says so
            continue
        case = next(name.removesuffix("indices") for name in prediction if name.endswith("indices"))
        rows, right = prediction[f"{case}indices"], prediction[f"{case}errors_px"] <= RIGHT_WITHIN_PX
        shown = np.linspace(0, len(rows) - 1, min(LINES, len(rows))).round().astype(int)
        recipe = str(task.params["recipe"])
        points = clear[0].keypoints[rows[shown, 0], :2], clear[1].keypoints[rows[shown, 1], :2]
        content = small(draw_matches(pictures[0], pictures[1], *points, right[shown]), 2 * SIDE)
        yield Picture(shows="matches", content=content, media=MEDIA, photo=sequence.name, recipe=recipe)


def draw_matches(first: Pixels, second: Pixels, points0: Points, points1: Points, right: NDArray[np.bool_]) -> Pixels:
    """Return two pictures side by side with lines between points (N, 2) of both; right ones blue, wrong ones vermilion.

    Wrong lines end in crosses, right ones in dots, so that colour alone tells nothing.
    """
    import cv2

    sides = [np.repeat(one[:, :, None], 3, axis=2) if one.ndim == 2 else one for one in (first, second)]
    height, left = max(len(one) for one in sides), sides[0].shape[1] + GAP
    sheet = np.full((height, left + sides[1].shape[1], 3), 255, np.uint8)
    sheet[: len(sides[0]), : sides[0].shape[1]] = sides[0] // 2 + 112  # paler, so that lines are seen
    sheet[: len(sides[1]), left:] = sides[1] // 2 + 112
    for is_right, colour in ((False, WRONG), (True, RIGHT)):
        for a, b in zip(points0[right == is_right], points1[right == is_right] + [left, 0], strict=True):
            start, end = (tuple(round(float(value)) for value in one) for one in (a, b))
            cv2.line(sheet, start, end, colour, 1, cv2.LINE_AA)
            for place in (start, end):
                if is_right:
                    cv2.circle(sheet, place, 3, colour, -1, cv2.LINE_AA)
                else:
                    cv2.drawMarker(sheet, place, colour, cv2.MARKER_TILTED_CROSS, 8, 2)
    return sheet


def small(pixels: Pixels, side: int = SIDE, quality: int = 70) -> bytes:
    """Return a picture as JPEG of a longer side of at most ``side`` pixels."""
    import cv2

    longest = max(pixels.shape[:2])
    if longest > side:
        size = tuple(max(1, round(length * side / longest)) for length in (pixels.shape[1], pixels.shape[0]))
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
    return encode(".jpg", pixels, cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1)


# --- the plot of use against leakage


AIM = "the aim for these\ntwo figures"
"""The aims for recovered descriptors and correct matches are not drawn."""


@dataclass(frozen=True, slots=True)
class Point:
    """A recipe: the worst leakage, and matching accuracy as a share of raw's."""

    recipe: str
    leakage: float
    use: float

    @property
    def name(self) -> str:
        """The recipe without checksums."""
        return re.sub("@[0-9a-f]+", "", self.recipe)


def draw_plot(points: Sequence[Point], reference: Sequence[Point] = ()) -> Picture:
    """Return the plot as an SVG file; the same points give the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    with mpl.rc_context({"svg.hashsalt": "sfumato", "font.size": 11, "axes.spines.top": False}):
        figure = Figure(figsize=(5.6, 4.4), layout="constrained")
        axes: Any = figure.subplots()
        top = max([1.05, *(one.use + 0.03 for one in (*points, *reference))])
        low = min([0.7, *(one.use - 0.06 for one in points)])
        goal = Rectangle(
            (-0.1, LEAST_ACCURACY), MOST_LEAKAGE + 0.1, top - LEAST_ACCURACY, color="#009E73", alpha=0.10, linewidth=0
        )
        axes.add_patch(goal)
        height = free_height([*points, *reference], LEAST_ACCURACY + 0.03, top - 0.03)
        axes.text(-0.085, height, AIM, color="#00694d", va="center", ha="left", fontsize=9)
        shown = [one for one in reference if one.use >= low]
        axes.plot(
            [one.leakage for one in shown], [one.use for one in shown], "o", color="#b8b4aa", markersize=5, zorder=1
        )
        for number, one in enumerate(points):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot([one.leakage], [one.use], marker, color=colour, markersize=10, label=one.name)
        if points:
            axes.legend(loc="lower left", frameon=False)
        axes.set_xlim(-0.1, 1.1)
        axes.set_ylim(low, top)
        axes.set_xlabel("leakage, strongest attack (0 grey, 1 clear features)")
        axes.set_ylabel("matching accuracy, share of clear features")
        axes.grid(color="#eceae4")
        axes.set_axisbelow(True)
        axes.spines["right"].set_visible(False)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return Picture(shows="plot", content=file.getvalue(), media="image/svg+xml")


def free_height(points: Sequence[Point], low: float, high: float) -> float:
    """Return the height within the aim at which words lie farthest from all points; the lowest where there are none."""
    used = [one.use for one in points if one.leakage < MOST_LEAKAGE]
    steps = [low + (high - low) * step / 20 for step in range(21)]
    return max(steps, key=lambda height: round(min((abs(height - one) for one in used), default=0.0), 6))


# --- pictures of single attacks


def paint_recovery(inverter: AnyInverter, features: ConcealedFeatures, recovery: Recovery) -> NDArray[np.float32]:
    """Return the picture (H, W, 3), values 0 to 1, that an inverter of clear descriptors sees.

    RootSIFT is squared and scaled back to SIFT for an inverter of SIFT.

    Raises InputError for an inverter of something else, or features of a picture of unknown size.
    """
    if inverter.recipe != "raw" or features.image_size is None:
        raise InputError("a picture needs an inverter of clear descriptors, and the size of the image")
    rows, kind = recovery.descriptors, features.extractor.name
    if kind == "rootsift" and inverter.extractor_name == "sift":
        rows, kind = as_sift(rows), "sift"
    if kind != inverter.extractor_name or rows.shape[1] != inverter.input_dim:
        raise InputError(
            f"the inverter is for {inverter.extractor_name}, these descriptors are {features.extractor.name}: train "
            f"one for them with sfumato train inverter"
        )
    return run_inverter(inverter, features.keypoints, rows, features.image_size)


def as_sift(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return RootSIFT (N, 128) as SIFT of unit norm: its squares are the histogram."""
    squares = np.square(rows.astype(np.float64))
    lengths = np.linalg.norm(squares, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (squares / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def save_picture(folder: str | os.PathLike[str], image: str, attack: str, picture: NDArray[np.float32]) -> Path:
    """Write a picture (H, W, 3) as ``<image>--<attack>.png`` in a folder, atomically; no name leads out of it."""
    from PIL import Image as Pillow

    target = Path(folder) / f"{quote(image, safe='')[:150]}--{attack}.png"
    pixels = Pillow.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8))
    write_file(target, lambda file: pixels.save(file, "PNG"), with_folder=True, private=True)
    return target
