# SPDX-License-Identifier: Apache-2.0
"""Lookup of layouts: an attacker who knows the bank lays its layouts over a release."""

from collections.abc import Sequence

import numpy as np

from chaffs.photos import Photo
from chaffs.sources import Mixture, fit_layout

Floats = np.ndarray

CELL = 3
"""Side of a cell of the maps in which layouts are looked up, in pixels."""
TILE = 40
"""Side of the squares of the released layout that are looked up, in cells."""
SCALES = (1.0, 1.06, 1.12, 1.18, 1.25)
"""Sizes of a crop that the attacker tries."""


def cell_map(places: Floats, shape: tuple[int, int]) -> Floats:
    """Return how many features each cell has (H, W); those outside are left out."""
    down, across = (np.floor((places[:, axis] + 0.5) / CELL).astype(int) for axis in (1, 0))
    inside = (down >= 0) & (down < shape[0]) & (across >= 0) & (across < shape[1])
    counts = np.zeros(shape, np.float32)
    np.add.at(counts, (down[inside], across[inside]), 1.0)
    return counts


def look_up(mixture: Mixture, bank: list[Photo], scales: Sequence[float]) -> Floats:
    """Return scores (N,) that are lower for rows that lie as a piece of a layout of the bank does.

    Each square of the release is laid over every layout, at every shift. Layouts that agree more than others do count,
    with the rows that meet one of their features.
    """
    import cv2
    from scipy import fft

    width, height = (-(-side // CELL) for side in mixture.size)
    shape = (fft.next_fast_len(height + TILE, True), fft.next_fast_len(width + TILE, True))
    layouts = []
    for photo, is_mirrored, scale in ((one, flip, size) for one in bank for flip in (False, True) for size in scales):
        places = fit_layout(photo, mixture.size, is_mirrored) * np.array(mixture.size) * scale - 0.5
        counts = cell_map(places, shape)
        detail = cv2.GaussianBlur(counts, (0, 0), 0.8) - cv2.GaussianBlur(counts, (0, 0), 4)  # density tells nothing
        layouts.append((detail, fft.rfft2(detail)))
    cells = np.floor((mixture.places + 0.5) / CELL).astype(int)[:, ::-1]
    scores = np.zeros(len(cells))
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            rows = np.flatnonzero(((cells >= [top, left]) & (cells < [top + TILE, left + TILE])).all(axis=1))
            if not len(rows):
                continue
            square = np.zeros(shape, np.float32)
            np.add.at(square, tuple((cells[rows] - [top, left]).T), 1.0)
            spectrum = np.conj(fft.rfft2(square))
            best = list[tuple[float, int, int]]()
            for number, (_, other) in enumerate(layouts):
                agreement = fft.irfft2(spectrum * other, shape)[:height, :width]
                peak = int(agreement.argmax())
                best.append((float((agreement.flat[peak] - agreement.mean()) / (agreement.std() + 1e-6)), number, peak))
            strengths = np.array([strength for strength, _, _ in best])
            usual = float(np.median(strengths) + 1.5 * strengths.std())
            for strength, number, peak in (one for one in best if one[0] > usual):
                down, across = (cells[rows] - [top, left] + np.divmod(peak, width)).T
                inside = (down < shape[0]) & (across < shape[1])
                values = layouts[number][0][np.minimum(down, shape[0] - 1), np.minimum(across, shape[1] - 1)]
                scores[rows] -= np.where(inside, values, 0) * (strength - usual)
    return scores
