# SPDX-License-Identifier: Apache-2.0
"""Registration of two photos of a place by positions of keypoints alone: no sizes, angles, descriptors or bits.

Windows of one photo are turned, scaled and stretched, and correlated with all positions of the other at once (FFT). The
best peaks are climbed from, as affine maps. Those under which far more positions meet than do a few pixels beside are
followed over the photo, from small window to small window: other cameras, and scenes that are not flat, change the map
slowly. Positions also meet by chance, and chance is counted beside.
"""

import heapq
from dataclasses import dataclass

import cv2
import numpy as np
from scipy import fft
from scipy.spatial import cKDTree

Floats = np.ndarray

CELLS, MARGIN = 340, 60
"""Cells along the longer side of the map that is correlated, and empty ones around it."""
BLURS = (4.0, 2.0, 1.2)
"""Deviations, in pixels, of the maps that are climbed on."""
REACH = 1.5
"""Positions at this distance, in pixels, meet."""
ENOUGH, LOCAL, SHARE = 6.5, 5.0, 0.12
"""Deviations above chance from which a map is followed, and a window is taken for registered; and the share of windows
from which the photos are taken for photos of one place."""
PEAKS = 4
STEEPEST, LARGEST = 5.0, 6.0
"""Stretch and growth that no two photos of a place have."""
GROWTH = ((200, 4.0), (300, 5.0), (450, 6.0), (700, 6.0))
"""Points that a map is grown over, and the score without which it is given up."""
ACROSS, WINDOW = 150, 300
"""Points for each window in the end, and points that it is fitted to."""
COARSE = ((8.0, 4.0), (5.0, 4.0), (3.0, 2.0), (2.0, 2.0), (1.0, 1.2), (0.6, 1.2))
"""Steps in pixels at the edge of a window, and blur of the map that is climbed on."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Maps that are tried: windows of so many ``points`` around the first ``centres``, and what is done to them."""

    name: str
    points: int
    centres: int
    turns: Floats
    scales: Floats
    stretches: tuple[tuple[float, float], ...] = ((1.0, 0.0),)


STAGES = (
    Stage("upright", 800, 5, np.deg2rad(np.arange(-16, 17, 2.0)), 1.04 ** np.arange(-9, 10)),
    Stage("stretched", 400, 5, np.deg2rad(np.arange(-20, 21, 4.0)), 1.06 ** np.arange(-6, 7),
          tuple((ratio, angle) for ratio in (1.3, 1.7) for angle in np.arange(4) * np.pi / 4)),
    Stage("turned", 500, 1, np.deg2rad(np.arange(0, 360, 3.0)), 1.06 ** np.arange(-13, 14)),
)  # fmt: skip
CENTRES = ((0.5, 0.5), (0.3, 0.35), (0.7, 0.65), (0.7, 0.35), (0.3, 0.65))


class PositionMap:
    """Positions (N, 2) of an archive's features: a tree, a spectrum to correlate with, and maps to climb on."""

    def __init__(self, places: Floats, size: tuple[int, int]) -> None:
        self.places, self.size, self.tree = places, np.array(size), cKDTree(places)
        self.cell = max(size) / CELLS
        self.width, self.height = (int(np.ceil(side / self.cell)) for side in size)
        self.shape = fft.next_fast_len(self.height + MARGIN), fft.next_fast_len(self.width + MARGIN)
        coarse = cv2.GaussianBlur(np.minimum(drawn(places / self.cell, (self.height, self.width)), 2), (0, 0), 0.8)
        coarse -= cv2.GaussianBlur(coarse, (0, 0), 8)
        coarse /= np.sqrt(cv2.GaussianBlur(coarse * coarse, (0, 0), 12)) + 0.3 * coarse.std()
        self.deviation = float(np.sqrt((coarse**2).mean()))
        padded = np.zeros(self.shape, np.float32)
        padded[: self.height, : self.width] = coarse
        self.spectrum = fft.rfft2(padded)
        fine = np.minimum(drawn(places, (size[1], size[0])), 1.5)
        self._maps = {blur: self._relief(fine, blur) for blur in BLURS}

    @staticmethod
    def _relief(counts: Floats, blur: float) -> Floats:
        relief = cv2.GaussianBlur(counts, (0, 0), blur) - cv2.GaussianBlur(counts, (0, 0), 5 * blur + 4)
        return np.pad(relief / relief.std(), 1)

    def heights(self, places: Floats, blur: float) -> Floats:
        """Return how many more positions there are at places (..., 2) than around them; 0 outside."""
        relief = self._maps[blur]
        column = np.clip(np.rint(places[..., 0]) + 1, 0, relief.shape[1] - 1).astype(np.int32)
        return relief[np.clip(np.rint(places[..., 1]) + 1, 0, relief.shape[0] - 1).astype(np.int32), column]

    def score(self, homography: Floats, points: Floats, reach: float = REACH) -> float:
        """Return how many deviations more points meet than do a few pixels beside; 0 for what no camera does."""
        if not is_plausible(homography, points):
            return 0.0
        lies = project(homography, points)
        lies = lies[((lies > 0) & (lies < self.size)).all(axis=1)]
        if len(lies) < 30:
            return 0.0
        beside = (3 * reach + 4) * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
        chance = np.mean([self._meeting(lies + shift, reach) for shift in beside])
        share = np.clip(chance / len(lies), 0.01, 0.99)
        return float((self._meeting(lies, reach) - chance) / np.sqrt(len(lies) * share * (1 - share)))

    def _meeting(self, lies: Floats, reach: float) -> int:
        """Return how many different positions are met: otherwise a map to one point would be the best."""
        distances, rows = self.tree.query(lies, distance_upper_bound=reach)
        return len(np.unique(rows[np.isfinite(distances)]))


@dataclass(frozen=True, slots=True)
class Registration:
    """Where points of one photo lie in the other, ``lies`` (N, 2), not a number where unknown; of which ``share`` of
    the windows that is known, and at which ``stage`` it was found."""

    lies: Floats
    share: float
    stage: str


def register(points: Floats, size: tuple[int, int], target: PositionMap, *, seed: int = 0) -> Registration:
    """Lay points (N, 2) of a photo of this ``size`` over the positions of an archive."""
    rng, tree = np.random.default_rng(seed), cKDTree(points)
    best = Registration(np.full(points.shape, np.nan), 0.0, "none")
    for stage in STAGES:
        for centre in np.array(CENTRES[: stage.centres]) * size:
            _, rows = tree.query(centre, k=min(stage.points, len(points)))
            for start in _peaks(points[rows], centre, target, stage):
                climbed = climb(start, points[rows], target, rng)
                place = _best_place(climbed, points[rows], target)
                score, grown = _grow(climbed, points, tree, target, place, rng)
                if score > ENOUGH:
                    lies, share = follow_windows(grown, points, target, rng)
                    if share > best.share:
                        best = Registration(lies, share, stage.name)
                if best.share > SHARE:
                    return best
    return Registration(np.full(points.shape, np.nan), best.share, "none")


def _peaks(window: Floats, centre: Floats, target: PositionMap, stage: Stage) -> list[Floats]:
    """Return the maps (3, 3) under which a window meets most of the archive, best first."""
    found, around = list[tuple[float, Floats]](), window - centre
    for ratio, angle in stage.stretches:
        stretch = _turn(angle) @ np.diag([ratio**0.5, ratio**-0.5]) @ _turn(-angle)
        for scale in stage.scales:
            for turn in stage.turns:
                linear = scale * _turn(turn) @ stretch
                image = drawn(around @ linear.T / target.cell, target.shape, wraps=True)
                surface = fft.irfft2(target.spectrum * np.conj(fft.rfft2(image)), target.shape)
                surface = surface[: target.height, : target.width]
                top = int(surface.argmax())
                at = np.array(divmod(top, target.width)[::-1]) * target.cell
                height = float(surface.flat[top]) / (target.deviation * float(np.linalg.norm(image)))
                found.append((height, _affine(linear, at - linear @ centre)))
    return [start for _, start in sorted(found, key=lambda one: -one[0])[:PEAKS]]


def climb(
    start: Floats,
    points: Floats,
    target: PositionMap,
    rng: np.random.Generator,
    plan: tuple[tuple[float, float], ...] = COARSE,
) -> Floats:
    """Return an affine map near ``start`` under which points meet more: the best of ever smaller random steps."""
    centre = points.mean(axis=0)
    radius = np.sqrt(((points - centre) ** 2).sum(axis=1).mean())
    unit = np.column_stack([(points - centre) / radius, np.ones(len(points))])
    current = np.column_stack([start[:2, :2] * radius, project(start, centre[None])[0]])
    for reach, blur in plan:
        best = target.heights(unit @ current.T, blur).sum()
        for _ in range(3):
            trials = current + reach * rng.standard_normal((50, 2, 3)) * [0.7, 0.7, 0.5]
            lies = (unit @ trials.reshape(100, 3).T).reshape(len(unit), 50, 2)
            heights = target.heights(lies, blur).sum(axis=0)
            if heights.max() > best:
                best, current = heights.max(), trials[heights.argmax()]
    linear = current[:, :2] / radius
    return _affine(linear, current[:, 2] - linear @ centre)


def _best_place(homography: Floats, points: Floats, target: PositionMap) -> Floats:
    """Return the point around which most others meet."""
    heights = target.heights(project(homography, points), 2.0)
    some = points[:: max(1, len(points) // 150)]
    _, near = cKDTree(points).query(some, k=min(150, len(points)))
    return some[heights[near].sum(axis=1).argmax()]


def _grow(
    start: Floats, points: Floats, tree: cKDTree, target: PositionMap, place: Floats, rng: np.random.Generator
) -> tuple[float, Floats]:
    """Return an affine map of more and more points around a place, as long as they meet, and its score."""
    best, current = (0.0, start), start
    for count, least in GROWTH:
        part = points[tree.query(place, k=min(count, len(points)))[1]]
        current = climb(current, part, target, rng, ((4.0, 4.0), *COARSE[2:]))
        current = refine(current, part, target, (2.5, 1.7))
        best = max(best, (target.score(current, part), current), key=lambda one: one[0])
        if best[0] < least:
            break
    return best


def refine(start: Floats, points: Floats, target: PositionMap, blurs: tuple[float, ...]) -> Floats:
    """Return an affine map fitted to what meets under it, each partner weighed by its distance."""
    current = start
    for blur in np.repeat(blurs, 3):
        distances, rows = target.tree.query(project(current, points), k=3, distance_upper_bound=3 * blur)
        weights = np.where(np.isfinite(distances), np.exp(-0.5 * (distances / blur) ** 2), 0)
        weights /= weights.sum(axis=1, keepdims=True) + 0.7
        used = weights > 0.02
        if used.sum() < 12:
            return start
        sources = np.repeat(points[:, None], 3, axis=1)[used]
        partners = target.places[np.minimum(rows, len(target.places) - 1)][used]
        current = _fitted(sources, partners, weights[used])
    return current


def _fitted(sources: Floats, partners: Floats, weights: Floats) -> Floats:
    """Return the affine map of weighted least squares."""
    centre, root = sources.mean(axis=0), np.sqrt(weights)[:, None]
    unit = np.column_stack([sources - centre, np.ones(len(sources))])
    solved = np.linalg.lstsq(unit * root, partners * root, rcond=None)[0].T
    return _affine(solved[:, :2], solved[:, 2] - solved[:, :2] @ centre)


def follow_windows(
    start: Floats, points: Floats, target: PositionMap, rng: np.random.Generator
) -> tuple[Floats, float]:
    """Return where points lie by affine maps of small windows, and the share of windows that have one.

    Each starts from the map of a neighbour, the first ones from ``start``.
    """
    side = max(2, round(np.sqrt(len(points) / ACROSS)))
    low, high = points.min(axis=0), points.max(axis=0)
    steps = (np.arange(side) + 0.5) / side
    centres = np.stack(np.meshgrid(*(low + steps[:, None] * (high - low)).T), axis=2).reshape(-1, 2)
    parts = points[cKDTree(points).query(centres, k=min(WINDOW, len(points)))[1]]

    def attempt(window: int, begun: Floats, plan: tuple[tuple[float, float], ...]) -> tuple[float, Floats]:
        part = parts[window]
        current = refine(climb(begun, part, target, rng, plan), part, target, (2.0, 1.4))
        return target.score(current, part), current

    maps = [attempt(window, start, COARSE[3:]) for window in range(len(centres))]
    queue = [(-score, window) for window, (score, _) in enumerate(maps) if score > LOCAL]
    heapq.heapify(queue)
    tries = 6 * len(centres)
    while queue and tries > 0:
        score, window = heapq.heappop(queue)
        for other in _neighbours(window, side) if -score >= maps[window][0] else ():
            if maps[other][0] < min(-0.8 * score, 3 * LOCAL):
                tries -= 1
                found = attempt(other, maps[window][1], ((6.0, 4.0), (4.0, 4.0), *COARSE[2:]))
                if found[0] > maps[other][0]:
                    maps[other] = found
                    if found[0] > LOCAL:
                        heapq.heappush(queue, (-found[0], other))
    lies, nearest = np.full(points.shape, np.nan), cKDTree(centres).query(points)[1]
    for window, (score, current) in enumerate(maps):
        if score > LOCAL:
            lies[nearest == window] = project(current, points[nearest == window])
    return lies, float(np.mean([score > LOCAL for score, _ in maps]))


def _neighbours(window: int, side: int) -> list[int]:
    row, column = divmod(window, side)
    around = ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column))
    return [down * side + right for down, right in around if 0 <= down < side and 0 <= right < side]


def project(homography: Floats, points: Floats) -> Floats:
    """Return where a map (3, 3) brings points (N, 2)."""
    far = np.column_stack([points, np.ones(len(points))]) @ homography.T
    return far[:, :2] / np.where(np.abs(far[:, 2:]) < 1e-9, 1e-9, far[:, 2:])


def is_plausible(homography: Floats, points: Floats) -> bool:
    """Tell whether a map folds, flips, collapses or shears points no more than another camera does."""
    low, high = points.min(axis=0), points.max(axis=0)
    corners = np.array([[low[0], low[1]], [high[0], low[1]], [low[0], high[1]], [high[0], high[1]], (low + high) / 2])
    if not np.isfinite(homography).all():
        return False
    depth = np.column_stack([corners, np.ones(5)]) @ homography[2]
    if (depth * depth[4] <= 0).any():
        return False
    slopes = np.stack([_tangent(homography, corner)[:2, :2] for corner in corners])
    spread = np.linalg.svd(slopes, compute_uv=False)
    return bool(
        (np.linalg.det(slopes) > 0).all()
        and spread.max() < LARGEST
        and spread.min() > 1 / LARGEST
        and (spread[:, 0] / spread[:, 1]).max() < STEEPEST
    )


def _tangent(homography: Floats, place: Floats) -> Floats:
    """Return the affine map that is a homography at one place."""
    at, right, down = project(homography, place + np.array([[0, 0], [0.01, 0], [0, 0.01]]))
    linear = np.column_stack([right - at, down - at]) / 0.01
    return _affine(linear, at - linear @ place)


def _affine(linear: Floats, shift: Floats) -> Floats:
    return np.array([[*linear[0], shift[0]], [*linear[1], shift[1]], [0, 0, 1]])


def _turn(angle: float) -> Floats:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def drawn(places: Floats, shape: tuple[int, int], *, wraps: bool = False) -> Floats:
    """Return a map (H, W) of places (N, 2), each spread over the four pixels around it."""
    corner = np.floor(places).astype(np.int64)
    share = places - corner
    pixels, weights = [], []
    for right in (0, 1):
        for down in (0, 1):
            column, row = corner[:, 0] + right, corner[:, 1] + down
            weight = np.abs(1 - right - share[:, 0]) * np.abs(1 - down - share[:, 1])
            if wraps:
                column, row = column % shape[1], row % shape[0]
            else:
                weight = weight * ((column >= 0) & (column < shape[1]) & (row >= 0) & (row < shape[0]))
                column, row = np.clip(column, 0, shape[1] - 1), np.clip(row, 0, shape[0] - 1)
            pixels.append(row * shape[1] + column)
            weights.append(weight)
    counts = np.bincount(np.concatenate(pixels), np.concatenate(weights), shape[0] * shape[1])
    return counts.astype(np.float32).reshape(shape)
