# SPDX-License-Identifier: Apache-2.0
"""Released positions alone: what the painter of outlines makes of them, beside chance and beside all positions."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from people import dots, painters

from releaseds.sets import Sealed, figure
from sfumato.auditing.toolbox import TrainedInverter
from sfumato.experiments.frontier.sheets import Column, draw_sheet
from sfumato.inversion.load import empty_rows
from sfumato.inversion.metrics import outline_score

Floats = np.ndarray

SHOWN = 2
"""Photos of each set on the sheet: those whose released positions show the most."""
DRAWN = ("released", "all positions")
CASES = ("released", "random rows", "location alone", "all positions")


def positions_of(photo: Sealed, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the positions (K, 2) of each case: released, as many rows at random, as many points anywhere, all."""
    count = int(photo.shown.sum())
    return {
        "released": photo.positions[photo.shown],
        "random rows": photo.positions[rng.permutation(len(photo.positions))[:count]],
        "location alone": (rng.random((count, 2)) * photo.size).astype(np.float32),
        "all positions": photo.positions,
    }


@cache
def painter() -> TrainedInverter:
    """Return the bundled painter of outlines."""
    return painters()["outlines"]


def painted(positions: Floats, size: tuple[int, int]) -> Floats:
    """Return the outlines (H, W) that the bundled painter makes of positions (K, 2)."""
    keypoints = np.zeros((len(positions), 4), np.float32)
    keypoints[:, :2], keypoints[:, 2] = positions, 1
    if not len(positions):
        return np.ones(size[::-1], np.float32)
    return painter().paint(keypoints, empty_rows(len(positions)), size)


def painted_of_few(positions: Floats, size: tuple[int, int]) -> Floats:
    """Return the mean of what the painter makes of a thousand positions at random: so many it has learned on."""
    rng = np.random.default_rng(0)
    if len(positions) <= FEW:
        return painted(positions, size)
    return np.mean([painted(positions[rng.permutation(len(positions))[:FEW]], size) for _ in range(DRAWS)], axis=0)


def density(positions: Floats, size: tuple[int, int]) -> Floats:
    """Return dark (H, W) where positions are dense: dots in a window, no network."""
    import cv2

    count = np.zeros(size[::-1], np.float32)
    x, y = np.clip(np.rint(positions).astype(int), 0, [size[0] - 1, size[1] - 1]).T
    np.add.at(count, (y, x), 1)
    dense = cv2.GaussianBlur(count, (0, 0), WINDOW * max(size))
    picture: Floats = 1 - np.minimum(dense / max(float(np.quantile(dense, 0.95)), 1e-9), 1)
    return picture


FEW, DRAWS = 1000, 4
WINDOW = 0.008
"""Standard deviation of the window of a dot, as a share of the longer side."""
ATTACKERS = {"painter": painted, "painter, a thousand at a time": painted_of_few, "density of dots": density}


def outline_rows(sets: dict[str, list[Sealed]], seed: int, sheet: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the correlation of painted and true outlines for each set and case; draw the photos that show the most.

    ``low`` and ``high`` are the least and the most of single photos. Photos of which nothing was released count as 0.
    """
    rng, columns = np.random.default_rng(seed), dict[str, list[Any]]()
    for name, photos in sets.items():
        scores: dict[tuple[str, str], list[float]] = {}
        pictures = list[dict[str, Floats]]()
        for photo in photos:
            pixels, factor = photo.reduced()
            size = pixels.shape[1], pixels.shape[0]
            shown = {"photo": photo.pixels, "released dots": dots(photo.positions[photo.shown], photo.size)}
            for case, positions in positions_of(photo, rng).items():
                for attacker, paint in ATTACKERS.items():
                    picture = paint(positions * np.float32(factor), size)
                    scores.setdefault((case, attacker), []).append(outline_score(picture, pixels))
                    shown[f"{case}, {attacker}"] = np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)
            pictures.append(shown)
        best = {case: max(ATTACKERS, key=lambda one: np.mean(scores[case, one])) for case in CASES}
        for number in np.argsort(scores["released", best["released"]])[::-1][:SHOWN]:
            kept = {"photo", "released dots"} | {f"{case}, {attacker}" for case in DRAWN for attacker in ATTACKERS}
            for title, picture in pictures[number].items():
                if title in kept:
                    columns.setdefault(title, []).append(picture)
        shares = [float(photo.shown.mean()) for photo in photos]
        rows = float(np.mean([photo.shown.sum() for photo in photos]))
        yield figure("outlines", name, "released rows a photo", rows, len(photos))
        ends = {"low": min(shares), "high": max(shares)}
        yield figure("outlines", name, "share released", float(np.mean(shares)), len(photos), **ends)
        for (case, attacker), values in scores.items():
            ends = {"low": min(values), "high": max(values)}
            yield figure("outlines", name, f"{case}: {attacker}", float(np.mean(values)), len(photos), **ends)
    if sheet is not None and columns:
        draw_sheet(sheet, [Column(title, pictures) for title, pictures in columns.items()])
