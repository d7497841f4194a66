# SPDX-License-Identifier: Apache-2.0
"""Where the faces of a picture are: dlib's detector and its 68 points, of which five are kept.

Knows pixels and boxes; neither networks nor people. dlib comes as an argument: it belongs to the extra ``face``.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EYES, NOSE, MOUTH = ((36, 42), (42, 48)), 30, (48, 54)
"""Of dlib's 68 points: those around each eye, the tip of the nose, the corners of the mouth."""

TILTED = (3, 4)
"""Of dlib's five detectors, those for faces that lean to the left or right; the others are for upright ones."""

SMALLEST = 16
"""A picture narrower than this holds no face, and dlib does not take one of a single pixel."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Found:
    """A face of a picture: its ``width`` in pixels, five ``points`` (5, 2), and ``shape``, what the detector knows.

    ``tilted``: it was found by a detector for faces that lean to one side.
    """

    width: int
    points: NDArray[np.float64]
    shape: Any
    tilted: bool = False


class FaceFinder:
    """dlib's detector of upright faces from the front, and the file of its points.

    What it scores below ``least_score`` is left out: such finds are mostly no faces. Pictures of more than ``most``
    pixels are made smaller to be searched, which would take seconds otherwise; points are those of the whole picture.
    """

    def __init__(self, dlib: Any, landmarks: Path, *, least_score: float, most: int) -> None:
        self._dlib, self._least, self._most = dlib, least_score, most
        self._detector = dlib.get_frontal_face_detector()
        self._predict = dlib.shape_predictor(str(landmarks))

    def find(self, pixels: NDArray[np.uint8], upsample: int) -> list[Found]:
        """Return the faces of a picture (H, W, 3), the widest first; it is doubled ``upsample`` times to find more."""
        import cv2

        height, width = pixels.shape[:2]
        if min(height, width) < SMALLEST:
            return []
        shrink = min(1.0, math.sqrt(self._most / (height * width)))
        small = pixels
        if shrink < 1:
            size = max(1, round(width * shrink)), max(1, round(height * shrink))
            small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        grow = width / small.shape[1], height / small.shape[0]
        found = [
            self._measure(pixels, box, grow, which in TILTED)
            for box, score, which in zip(*self._detector.run(small, upsample, 0.0), strict=True)
            if score >= self._least
        ]
        return sorted(found, key=lambda face: -face.width)

    def _measure(self, pixels: NDArray[np.uint8], box: Any, grow: tuple[float, float], tilted: bool) -> Found:
        """Return the points of a face whose box is that of a smaller picture."""
        across, down = ((round(at * factor) for at in ends) for ends, factor in zip(_sides(box), grow, strict=True))
        (left, right), (top, bottom) = across, down
        shape = self._predict(pixels, self._dlib.rectangle(left, top, right, bottom))
        parts = np.array([(shape.part(i).x, shape.part(i).y) for i in range(shape.num_parts)], np.float64)
        points = [parts[slice(*eye)].mean(axis=0) for eye in EYES] + [parts[NOSE], *parts[list(MOUTH)]]
        return Found(right - left, np.array(points), shape, tilted)


def _sides(box: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (box.left(), box.right()), (box.top(), box.bottom())
