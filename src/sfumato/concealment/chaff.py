# SPDX-License-Identifier: Apache-2.0
"""Chaff: features of pictures that never were, mixed among those of a photo.

Where features lie outlines what a photo shows, however well their descriptors are concealed. Chaff covers the outline,
though not from attackers who learned to tell it from real features (docs/explanation/threat_model.md).
A picture of noise is drawn, the photo's own extractor finds features in it, and those are taken that lie where the
photo has few: together they cover the picture evenly. They are then concealed as the real ones are, under the same key.
Each photo has noise of its own, so chaff matches nothing.

Noise whose spectrum falls off as that of photos gives an extractor what photos give it: keypoints at the same
distances, twins at one place, similar codes. Drawn afresh it is in no database that an attacker could look it up in.
"""

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.randomness import NoiseStream
from sfumato.concealment.repeats import drop_repeats, echo_groups
from sfumato.errors import InputError, RecipeError
from sfumato.features.local import LocalParams, extract, order_by_position
from sfumato.types.clear import Features
from sfumato.types.extractor import Extractor

SLOPES = (1.1, 1.5)
"""Amplitudes fall off as this power of the frequency; drawn for each picture."""
DEVIATION = 45.0
"""Of the grey values of a picture, around 128."""
FEATURES_PER_PIXEL = 0.02
"""What an extractor finds in such a picture, about."""
SPARE = 1.6
"""So many times as many features are drawn as are taken: they can be had where they are needed."""
SMOOTHING = 1.7
"""Standard deviation of the window in which features are counted, in mean distances of those of an ordinary photo."""
PIXELS_PER_FEATURE = 150
"""A photo that has fewer features than one to so many pixels gets as much chaff as one that has these."""
CROWD = 1.0
"""Real features are nowhere denser than this share of all rows would be, spread evenly."""
LEAST_SIDE = 32
MOST_PICTURES = 64


def mix_chaff(features: Features, per_real: int, seed: bytes) -> tuple[Features, NDArray[np.bool_]]:
    """Return features with ``per_real`` times as many of chaff among them, and which of the rows are real.

    Features that repeat each other often, and those of crowds too dense to be covered, are left out. A photo of little
    detail has few features, which would lie open among little chaff: it gets more, up to what others have. So the
    number of rows tells little of what a photo shows, too. Rows go from the top of the picture to its bottom, as those
    of ``extract`` do. ``seed``: as secret as a key.

    Raises InputError for features whose picture has no size, or whose extractor this version does not have.
    """
    size = features.image_size
    if not per_real or not len(features):
        return features, np.ones(len(features), bool)
    params = _settings_of(features)
    if size is None:
        raise InputError("chaff covers a picture, and these features do not know the size of theirs: give image_size")
    stream = NoiseStream(seed)
    features = features.take(thin_crowds(features.keypoints, size, per_real, stream))
    features, pairs = drop_repeats(features)
    usual = usual_count(len(features), size, params.max_features)
    count = (1 + per_real) * usual - len(features)
    drawn = _draw_features(size, params, count, stream)
    echoes = echo_groups(features, pairs, drawn, count // max(1, len(features)), stream)
    has = np.concatenate([features.keypoints, echoes.keypoints])
    chosen = choose_rows(has, drawn.keypoints, size, count - len(echoes.keypoints), stream, usual)
    keypoints = np.concatenate([has, drawn.keypoints[chosen]])
    order = order_by_position(keypoints)
    descriptors = np.concatenate([features.descriptors, echoes.descriptors, drawn.descriptors[chosen]])
    mixed = replace(features, keypoints=keypoints[order], descriptors=descriptors[order])
    return mixed, order < len(features)


def thin_crowds(
    real: NDArray[np.float32], size: tuple[int, int], per_real: int, stream: NoiseStream
) -> NDArray[np.bool_]:
    """Tell which rows stay so that nowhere real ones are denser than all rows together are to be."""
    window = SMOOTHING * np.sqrt(size[0] * size[1] / len(real))
    has = _density(real, size, window)
    columns, rows = _pixels(real, has.shape, size)
    most = CROWD * (1 + per_real) * has.mean()
    stays: NDArray[np.bool_] = stream.uniform(len(real)) <= most / np.maximum(has[rows, columns], 1e-12)
    return stays


def usual_count(count: int, size: tuple[int, int], most: int) -> int:
    """Return how many features an ordinary photo of this size has, of at most ``most``; no fewer than ``count``."""
    return max(1, count, min(most, size[0] * size[1] // PIXELS_PER_FEATURE))


def draw_picture(size: tuple[int, int], detail: float, stream: NoiseStream) -> NDArray[np.uint8]:
    """Return a picture (H, W) of noise; ``detail``: its finest grains, as a share of those that pixels allow."""
    import cv2

    width, height = (max(LEAST_SIDE, round(side * min(1.0, detail))) for side in size)
    slope = SLOPES[0] + (SLOPES[1] - SLOPES[0]) * stream.uniform(1)[0]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(
        np.fft.rfft2(stream.normal(width * height).reshape(height, width)) * frequency**-slope, (height, width)
    )
    grey: NDArray[np.uint8] = np.clip(128 + DEVIATION * noise / noise.std(), 0, 255).astype(np.uint8)
    if (width, height) == size:
        return grey
    enlarged: NDArray[np.uint8] = cv2.resize(grey, size, interpolation=cv2.INTER_CUBIC)
    return enlarged


def choose_rows(
    real: NDArray[np.float32],
    drawn: NDArray[np.float32],
    size: tuple[int, int],
    count: int,
    stream: NoiseStream,
    usual: int,
) -> NDArray[np.intp]:
    """Return ``count`` rows of drawn keypoints (M, 4) that, with the real ones (N, 4), cover a picture evenly.

    Chaff is to have the density max(0, level - density of the real ones), where the level gives the count number. A
    place is taken with the probability that thins the drawn ones to that; features at one place are taken together.
    ``usual``: the number of real ones that an ordinary photo of this size would have, at least the number it has.
    """
    window = SMOOTHING * np.sqrt(size[0] * size[1] / usual)
    has, offers = (_density(points, size, window) for points in (real, drawn))
    target = np.maximum(0, _level(has, count / has.size) - has)
    columns, rows = _pixels(drawn, has.shape, size)
    _, site = np.unique(drawn[:, :2], axis=0, return_inverse=True)
    share = (target / np.maximum(offers, 1e-12))[rows, columns]
    margin = share - stream.uniform(int(site.max()) + 1)[site.ravel()]
    chosen: NDArray[np.intp] = np.lexsort((site.ravel(), -margin))[:count]
    return chosen


def can_have_chaff(extractor: Extractor | None) -> bool:
    """Tell whether this program can extract features of noise as others were extracted."""
    settings = {} if extractor is None else extractor.settings
    return settings.keys() == {entry.name for entry in fields(LocalParams)} and settings["weights"] is None


def _settings_of(features: Features) -> LocalParams:
    """Return the settings that features were extracted with."""
    if not can_have_chaff(features.extractor):
        raise RecipeError(
            f"chaff is found by the extractor of the photo, and these features ({features.extractor.name}) were made "
            f"by another program, another version or a network with weights of its own: choose a recipe without chaff, "
            f"such as sealed-512"
        )
    return LocalParams(**features.extractor.settings)  # type: ignore[arg-type]


def _draw_features(size: tuple[int, int], params: LocalParams, count: int, stream: NoiseStream) -> Features:
    """Return features of as many pictures of noise as it takes to have enough of them."""
    enough = int(np.ceil(SPARE * count))
    detail = float(np.sqrt(enough / (FEATURES_PER_PIXEL * size[0] * size[1])))
    found, total = list[Features](), 0
    for _ in range(MOST_PICTURES):
        picture = extract(draw_picture(size, detail, stream), replace(params, max_features=enough))
        found.append(picture)
        total += len(picture)
        if total >= enough:
            break
    if total < count:
        raise InputError(f"{size[0]} x {size[1]} pixels have no room for {count} features of chaff: take less of it")
    return replace(
        found[0],
        keypoints=np.concatenate([one.keypoints for one in found]),
        descriptors=np.concatenate([one.descriptors for one in found]),
    )


def _pixels(
    points: NDArray[np.float32], shape: tuple[int, ...], size: tuple[int, int]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return columns and rows of keypoints in a map of this ``shape`` over a picture."""
    across, down = shape[1] / size[0], shape[0] / size[1]
    columns = np.clip(((points[:, 0] + 0.5) * across).astype(np.intp), 0, shape[1] - 1)
    return columns, np.clip(((points[:, 1] + 0.5) * down).astype(np.intp), 0, shape[0] - 1)


def _density(points: NDArray[np.float32], size: tuple[int, int], window: float) -> NDArray[np.float64]:
    """Return how many keypoints there are at each cell of a map, in a Gaussian window; three cells to its deviation."""
    import cv2

    cell = max(1.0, window / 3)
    shape = max(1, round(size[1] / cell)), max(1, round(size[0] / cell))
    counts = np.zeros(shape)
    columns, rows = _pixels(points, shape, size)
    np.add.at(counts, (rows, columns), 1.0)
    blur, nothing = window / cell, cv2.BORDER_CONSTANT
    smooth = cv2.GaussianBlur(counts, (0, 0), blur, borderType=nothing)
    inside = cv2.GaussianBlur(np.ones(shape), (0, 0), blur, borderType=nothing)
    density: NDArray[np.float64] = smooth / inside
    return density


def _level(density: NDArray[np.float64], mean: float) -> float:
    """Return the level whose mean excess over a density is ``mean``."""
    ordered = np.sort(density.ravel())
    below = np.arange(1, len(ordered) + 1)
    excess = (ordered * below - np.cumsum(ordered)) / len(ordered)  # of a level at each value
    last = int(np.searchsorted(excess, mean, side="right"))
    return float((mean * len(ordered) + ordered[:last].sum()) / max(1, last))
