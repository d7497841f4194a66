# SPDX-License-Identifier: Apache-2.0
"""Harris corners at several scales, with an angle: an alternative to DoG keypoints.

The picture is halved again and again; corners are the peaks of det - 0.04 trace^2 of the second-moment matrix in each
level. sigma is the width of the window in which gradients are gathered, in pixels of the picture: that of the first
level is the setting ``sigma``, each next is twice as wide. There is no search over scale: a corner that is one at
several scales is found at each. A position is that of the peak, to a fraction of a pixel: at the corner of a square it
lies inside, by nine tenths of sigma. (OpenCV's cornerSubPix would move it to the tip; on real photos that makes
positions less repeatable.) The angle is the strongest of 36 directions in a histogram of gradients around the corner,
OpenCV's way for SIFT; a corner has one.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

DIFFERENTIATION = 0.7
"""The gradients are taken at this share of sigma (Mikolajczyk and Schmid 2004)."""
HARRIS_K = 0.04
SMALLEST_SIDE = 16
DIRECTIONS = 36


def find_corners(grey: NDArray[np.uint8], sigma: float, quality: float) -> NDArray[np.float32]:
    """Return corners (N, 6): x, y, sigma, angle, response and level, unsorted.

    Weaker ones than ``quality`` times the strongest are left out.
    """
    import cv2

    pyramid = [grey.astype(np.float32) / np.float32(255)]
    while min(pyramid[-1].shape) >= 2 * SMALLEST_SIDE:
        pyramid.append(cv2.pyrDown(pyramid[-1]))  # keeps every second pixel, the first among them
    levels = [_corners_of_level(picture, sigma) for picture in pyramid]
    least = quality * max(corners[:, 2].max(initial=0.0) for corners in levels)
    tables = []
    for level, (picture, corners) in enumerate(zip(pyramid, levels, strict=True)):
        strong = corners[corners[:, 2] >= least]
        scale = 2.0**level
        ones = np.ones(len(strong))
        angles = _angles(picture, strong, sigma)
        columns = strong[:, :2] * scale, sigma * scale * ones, angles, strong[:, 2], level * ones
        tables.append(np.column_stack(columns))
    return np.concatenate(tables).astype(np.float32)


def _corners_of_level(picture: Floats, sigma: float) -> NDArray[np.float64]:
    """Return x, y to a fraction of a pixel and response (N, 3) of the corners of one level."""
    if min(picture.shape) < SMALLEST_SIDE:
        return np.empty((0, 3))
    response = _response(picture, sigma)
    peaks = _peaks(response, margin=int(np.ceil(2 * sigma)))
    rows, columns = np.nonzero(peaks)
    center = response[rows, columns]
    step = []
    for before, after in (
        (response[rows, columns - 1], response[rows, columns + 1]),
        (response[rows - 1, columns], response[rows + 1, columns]),
    ):
        bend = before - 2 * center + after
        step.append(np.where(bend < 0, (before - after) / np.where(bend < 0, 2 * bend, 1), 0))
    moved = np.clip(np.stack(step, 1), -0.5, 0.5)
    return np.column_stack([columns + moved[:, 0], rows + moved[:, 1], center])


def _response(picture: Floats, sigma: float) -> NDArray[np.float64]:
    """Return det - k trace^2 of the second-moment matrix at every pixel."""
    across, down = _gradients(picture, DIFFERENTIATION * sigma)
    xx, yy, xy = (_blur(product, sigma) for product in (across * across, down * down, across * down))
    response: NDArray[np.float64] = xx * yy - xy * xy - HARRIS_K * (xx + yy) ** 2
    return response


def _peaks(response: NDArray[np.float64], margin: int) -> NDArray[np.bool_]:
    """Mark where the response is positive and the largest around it, once where neighbours are equal."""
    import cv2

    before = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], np.uint8)  # the neighbours read before a pixel, and after
    largest = (response > cv2.dilate(response, before)) & (response >= cv2.dilate(response, before[::-1, ::-1].copy()))
    peaks = np.zeros(response.shape, bool)
    inner = slice(margin, -margin)
    peaks[inner, inner] = (largest & (response > 0))[inner, inner]
    return peaks


def _angles(picture: Floats, corners: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Return the strongest direction (N,) of the gradients around each corner, in degrees, clockwise on screen."""
    if len(corners) == 0:
        return np.empty(0)
    across, down = _gradients(picture, sigma)
    strength, turn = np.hypot(across, down), np.rad2deg(np.arctan2(down, across)) % 360
    width = 1.5 * sigma
    reach = int(np.ceil(3 * width))
    steps = np.arange(-reach, reach + 1)
    column, row = np.rint(corners[:, 0]).astype(int), np.rint(corners[:, 1]).astype(int)
    histogram = np.zeros((len(corners), DIRECTIONS))
    number = np.arange(len(corners))
    for dy in steps:
        y = np.clip(row + dy, 0, picture.shape[0] - 1)
        for dx in steps:
            x = np.clip(column + dx, 0, picture.shape[1] - 1)
            weight = strength[y, x] * np.exp(-(dx * dx + dy * dy) / (2 * width * width))
            place = np.rint(turn[y, x] * DIRECTIONS / 360).astype(int) % DIRECTIONS
            histogram[number, place] += weight  # every corner once: no index is repeated
    return _strongest(histogram)


def _strongest(histogram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the direction of the highest peak of smoothed histograms (N, 36), between two bins where it lies there."""
    near, far = (np.roll(histogram, k, 1) + np.roll(histogram, -k, 1) for k in (1, 2))
    smooth = (6 * histogram + 4 * near + far) / 16
    number, place = np.arange(len(smooth)), smooth.argmax(axis=1)
    before, after = smooth[number, place - 1], smooth[number, (place + 1) % DIRECTIONS]
    bend = before - 2 * smooth[number, place] + after
    step = np.where(bend < 0, 0.5 * (before - after) / np.where(bend < 0, bend, 1), 0)
    direction: NDArray[np.float64] = ((place + step) * 360 / DIRECTIONS) % 360
    return direction


def _gradients(picture: Floats, sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the derivatives to the right and down of a picture blurred by ``sigma``, a pixel, times sigma."""
    smooth = _blur(picture.astype(np.float64), sigma)
    padded = np.pad(smooth, 1, mode="edge")
    across = (padded[1:-1, 2:] - padded[1:-1, :-2]) * (sigma / 2)
    down = (padded[2:, 1:-1] - padded[:-2, 1:-1]) * (sigma / 2)
    return across, down


def _blur(picture: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    import cv2

    blurred: NDArray[np.float64] = cv2.GaussianBlur(picture, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
    return blurred
