# SPDX-License-Identifier: Apache-2.0
"""The pictures of an audit: photos, what every attack painted, and matches drawn as lines; small enough for a page.

Reads what the evaluations kept; attacks nothing itself. Clear features are extracted once more only to know where the
ends of the lines are.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import FileError
from sfumato.evaluate.auditphotos import Ready, encode
from sfumato.evaluate.homography import HomographyPlan
from sfumato.evaluate.leakage import SCALE, Works
from sfumato.evaluate.pairs import pairs_of
from sfumato.evaluate.results import Results
from sfumato.evaluate.seen import decode_picture
from sfumato.images.folders import HomographySequence
from sfumato.images.read import read_image
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


def collect_pictures(works: Works, plan: HomographyPlan, ready: Ready, folder: str | Path) -> list[Picture]:
    """Return the first photos, what every attack painted of them, and the matches of the first pairs."""
    names = list(ready.photos)[:SHOWN_PHOTOS]
    found = [
        Picture(shows="photo", content=small(read_image(ready.photos[name]).pixels), media=MEDIA, photo=name)
        for name in names
    ]
    found += seen_pictures(works, folder, names)
    for name in names[:SHOWN_PAIRS]:
        found += match_pictures(plan, ready.pairs[name], folder)
    return found


def seen_pictures(works: Works, folder: str | Path, names: Sequence[str]) -> Iterator[Picture]:
    """Yield what each attack painted of some photos; of floors, only that of the inverter for clear ones."""
    for work in works.made:
        case = work.intruder.case
        if case.attack in SCALE and case.painter.recipe != "raw":
            continue
        results = Results(folder, work.task())
        network = case.painter.title
        attack = case.attack if network == "patch" else f"{case.attack}, {network}"
        for sample in work.samples:
            if sample.key not in names:
                continue
            try:
                prediction = results.load_prediction(sample)[0]
            except FileError:  # it was left out, which the record tells
                continue
            if "picture" not in prediction:
                continue  # an attack that ends in points of an encoder's space paints nothing
            content, recipe = small(decode_picture(prediction["picture"])), str(case.subject.recipe)
            yield Picture(shows="seen", content=content, media=MEDIA, photo=sample.key, recipe=recipe, attack=attack)


def match_pictures(plan: HomographyPlan, sequence: HomographySequence, folder: str | Path) -> Iterator[Picture]:
    """Yield the pair of a sequence with the matches of each recipe drawn on it, an even choice of all of them."""
    pair = pairs_of(sequence)[0]
    plan.clear.keep_only(sequence.paths)
    ends = [plan.clear[path].keypoints[:, :2] for path in (pair.first, pair.second)]
    pictures = [read_image(path).pixels for path in (pair.first, pair.second)]
    for task in plan.tasks:
        try:
            prediction = Results(folder, task).load_prediction(plan.samples[pair.key])[0]
        except FileError:  # it was left out, which the record tells
            continue
        case = next(name.removesuffix("indices") for name in prediction if name.endswith("indices"))
        rows, right = prediction[f"{case}indices"], prediction[f"{case}errors_px"] <= RIGHT_WITHIN_PX
        chosen = np.linspace(0, len(rows) - 1, min(LINES, len(rows))).round().astype(int)
        points = ends[0][rows[chosen, 0]], ends[1][rows[chosen, 1]]
        drawn = draw_matches(pictures[0], pictures[1], *points, right[chosen])
        recipe = str(task.params["recipe"])
        content = small(drawn, 2 * SIDE)
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
