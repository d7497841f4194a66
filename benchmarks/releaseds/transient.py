# SPDX-License-Identifier: Apache-2.0
"""Transient content: the share of positions, all and released, that lie on people and vehicles."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from releaseds.sets import Sealed, figure, sealed_set
from sfumato.images.read import read_image

Floats = np.ndarray

BOXES = Path(__file__).with_suffix(".json")
KINDS = ("people", "vehicles")
MARGIN = 2
"""A feature this near to a pasted person, in pixels, is on the person."""


def inside(positions: Floats, boxes: list[list[int]]) -> Floats:
    """Tell which positions (N, 2) lie in one of the boxes x0, y0, x1, y1."""
    found = np.zeros(len(positions), bool)
    for x0, y0, x1, y1 in boxes:
        found |= ((positions >= [x0, y0]) & (positions <= [x1, y1])).all(axis=1)
    return found


def share_rows(of: str, kind: str, on: list[Floats], shown: list[Floats]) -> Iterator[dict[str, Any]]:
    """Yield the shares of all rows and of released rows that are on something; and which share of it is released."""
    every, released = np.concatenate(on), np.concatenate(shown)
    worst = max((float(one[left].mean()) for one, left in zip(on, shown, strict=True) if left.any()), default=0.0)
    yield figure("transient", of, f"of all rows on {kind}", float(every.mean()), len(every))
    share = float(every[released].mean()) if released.any() else 0.0
    yield figure("transient", of, f"of released rows on {kind}", share, int(released.sum()), high=worst)
    share_of = float(released[every].mean()) if every.any() else None
    yield figure("transient", of, f"released of rows on {kind}", share_of, int(every.sum()))


def annotated_rows(sets: dict[str, list[Sealed]]) -> Iterator[dict[str, Any]]:
    """Yield the shares of photos whose people and vehicles were marked by eye; ``high`` is the worst photo."""
    boxes = json.loads(BOXES.read_text())["sets"]
    for name, photos in sets.items():
        marked = boxes.get(name)
        if marked is None:
            continue
        shown = [photo.shown for photo in photos]
        on = {kind: [inside(one.positions, marked.get(one.name, {}).get(kind, [])) for one in photos] for kind in KINDS}
        for kind in KINDS:
            yield from share_rows(name, kind, on[kind], shown)
        both = [people | vehicles for people, vehicles in zip(on["people"], on["vehicles"], strict=True)]
        yield from share_rows(name, "either", both, shown)


# --- people pasted into photos


PEOPLE = ("376043", "85048", "285079", "229036", "271035", "302008", "189080", "119082", "170057", "101087")
"""Photos of bsds500/val from which a person is cut out well, looked at by eye."""
STANDING = 3
"""So many of them stand in a scene."""


def person(path: Path, seed: int) -> tuple[Floats, Floats]:
    """Return the subject of a photo and its mask, cut out by GrabCut from a rectangle in the middle."""
    import cv2

    pixels = np.ascontiguousarray(read_image(path).pixels)
    height, width = pixels.shape[:2]
    mask = np.zeros((height, width), np.uint8)
    frame = (round(0.22 * width), round(0.06 * height), round(0.56 * width), round(0.92 * height))
    cv2.setRNGSeed(seed)
    cv2.grabCut(pixels, mask, frame, np.zeros((1, 65)), np.zeros((1, 65)), 4, cv2.GC_INIT_WITH_RECT)
    kept = ((mask == cv2.GC_FGD) | (mask == cv2.GC_PR_FGD)).astype(np.uint8)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(kept)
    if count > 1:
        kept = (labels == 1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))).astype(np.uint8)
    return pixels, kept


def bent(cut: tuple[Floats, Floats], rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return a cut-out that moved its limbs: bent smoothly, by some percent of its height, in other light."""
    import cv2

    pixels, mask = cut
    height, width = mask.shape
    field = rng.standard_normal((2, height, width)).astype(np.float32)
    field = np.stack([cv2.GaussianBlur(one, (0, 0), BEND_WINDOW * height) for one in field])
    still = np.stack(np.meshgrid(np.arange(width), np.arange(height)))
    x, y = (still + BEND * height * field / field.std(axis=(1, 2), keepdims=True)).astype(np.float32)
    light = rng.uniform(0.85, 1.15)
    moved = np.clip(cv2.remap(pixels, x, y, cv2.INTER_LINEAR) * light, 0, 255).astype(np.uint8)
    return moved, cv2.remap(mask, x, y, cv2.INTER_NEAREST)


BEND, BEND_WINDOW = 0.03, 0.12


def paste(
    photo: Floats, cut: tuple[Floats, Floats], place: tuple[float, float], height: float
) -> tuple[Floats, Floats]:
    """Return a photo with a cut-out standing at a place, shares of width and height, and where it is (H, W)."""
    import cv2

    pixels, mask = cut
    scale = height * photo.shape[0] / pixels.shape[0]
    size = (round(pixels.shape[1] * scale), round(pixels.shape[0] * scale))
    small, where = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR), cv2.resize(mask, size) > 0
    left = int(np.clip(round(place[0] * photo.shape[1]), 0, photo.shape[1] - size[0]))
    top = int(np.clip(round(place[1] * photo.shape[0]), 0, photo.shape[0] - size[1]))
    result, covered = photo.copy(), np.zeros(photo.shape[:2], bool)
    result[top : top + size[1], left : left + size[0]][where] = small[where]
    covered[top : top + size[1], left : left + size[0]] = where
    return result, covered


BURST_NOISE, BURST_SHIFT = 3.0, 3
"""Of photos from one place, one after the other: noise of grey values, and how far the hand moves, in pixels."""


def scenes(
    photos: list[Floats], cuts: list[Any], views: list[Floats], rng: np.random.Generator
) -> dict[str, list[Any]]:
    """Return photos with pasted people, and where these are, for each way in which people may stand there.

    "stiff, walking": the same people elsewhere in each photo, to the pixel the same: things that move and do not bend,
    as vehicles. "stiff, same place of the picture": at one place of each photo. "waiting": everybody stands still in
    the scene while the photographer walks; ``views`` are the homographies that move a picture board there from the
    middle photo to each. "burst, standing still": one photo three times, shaken by a few pixels and with noise.
    "burst, walking": the same, everybody elsewhere each time. "burst among others": the burst, and the other photos of
    the scene without anybody. "walking": the same people elsewhere, bent and in other light each time. "passing by":
    other people in each photo.
    """
    import cv2

    everybody, cuts = cuts, cuts[:STANDING]
    nobody = [(photo, np.zeros(photo.shape[:2], bool)) for photo in photos]
    middle = len(photos) // 2
    spots = [(0.08 + 0.28 * number, 0.45) for number in range(len(cuts))]

    def crowd(photo: Floats, places: list[tuple[float, float]], people: list[Any]) -> tuple[Floats, Floats]:
        covered = np.zeros(photo.shape[:2], bool)
        for cut, place in zip(people, places, strict=False):
            photo, on = paste(photo, cut, place, 0.5)
            covered |= on
        return photo, covered

    def elsewhere() -> list[tuple[float, float]]:
        return [(float(rng.uniform(0, 0.75)), float(rng.uniform(0.3, 0.5))) for _ in cuts]

    def shaken(one: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
        moved = tuple(int(step) for step in rng.integers(-BURST_SHIFT, BURST_SHIFT + 1, 2))
        photo, on = (np.roll(part, moved, (0, 1)) for part in one)
        return np.clip(photo + rng.normal(0, BURST_NOISE, photo.shape), 0, 255).astype(np.uint8), on

    def moved(photo: Floats, board: tuple[Floats, Floats], view: Floats) -> tuple[Floats, Floats]:
        size = photo.shape[1], photo.shape[0]
        on = cv2.warpPerspective(board[1].astype(np.uint8), view, size) > 0
        result = photo.copy()
        result[on] = cv2.warpPerspective(board[0], view, size)[on]
        return result, on

    standing = crowd(photos[middle], spots, cuts)
    burst = [shaken(standing) for _ in range(3)]
    return {
        "stiff, walking": [crowd(photo, elsewhere(), cuts) for photo in photos],
        "stiff, same place of the picture": [crowd(photo, spots, cuts) for photo in photos],
        "waiting": [moved(photo, standing, view) for photo, view in zip(photos, views, strict=True)],
        "burst, walking": [shaken(crowd(photos[middle], elsewhere(), cuts)) for _ in range(3)],
        "burst, standing still": burst,
        "burst among others": burst + nobody[:middle] + nobody[middle + 1 :],
        "walking": [crowd(photo, elsewhere(), [bent(cut, rng) for cut in cuts]) for photo in photos],
        "passing by": [crowd(photo, elsewhere(), [one]) for photo, one in zip(photos, everybody, strict=False)],
    }


NEARER = 0.6
"""People stand at this share of the distance from the middle camera to what all cameras look at."""


def board_views(cameras: Path, names: list[str]) -> list[Floats]:
    """Return the homographies (3, 3) from the middle photo to each, for an upright board that people are pasted on."""
    read = json.loads(cameras.read_text())
    lenses, turns, centres = (
        [np.array(read[name][word]) for name in names] for word in ("K", "world_from_cam_rotation", "center_in_world")
    )
    middle = len(names) // 2
    across = [np.eye(3) - np.outer(turn[:, 2], turn[:, 2]) for turn in turns]  # the point nearest to all axes of view
    seen = np.linalg.solve(sum(across), sum(one @ centre for one, centre in zip(across, centres, strict=True)))
    depth = NEARER * float((seen - centres[middle]) @ turns[middle][:, 2])
    views = []
    for lens, turn, centre in zip(lenses, turns, centres, strict=True):
        shift = turn.T @ (centres[middle] - centre)
        board = turn.T @ turns[middle] + np.outer(shift, [0, 0, 1]) / depth
        views.append(lens @ board @ np.linalg.inv(lenses[middle]))
    return views


def pasted_rows(
    photos: list[Path], people: list[Path], work: Path, seed: int, most: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the shares of rows on pasted people, for each way in which they stand in the photos, or the first ones."""
    import cv2

    rng = np.random.default_rng(seed)
    cuts = [person(path, seed) for path in people]
    views = board_views(photos[0].parent.parent / "cameras.json", [path.name for path in photos])
    ways = scenes([read_image(path).pixels for path in photos], cuts, views, rng)
    for name, pictures in list(ways.items())[:most]:
        folder = work / name.replace(", ", "-").replace(" ", "-") / "photos"
        folder.mkdir(parents=True, exist_ok=True)
        covered = dict[str, Floats]()
        for number, (picture, on) in enumerate(pictures):
            file = folder / f"{number}.png"
            if not file.is_file():
                cv2.imwrite(str(file), picture[:, :, ::-1])
            wider = cv2.dilate(on.astype(np.uint8), np.ones((2 * MARGIN + 1, 2 * MARGIN + 1), np.uint8))
            covered[file.name] = wider > 0
        sealed = sealed_set(folder, folder.parent, seed)
        on = [at(covered[one.name], one.positions) for one in sealed]
        yield from share_rows(f"pasted, {name}", "people", on, [one.shown for one in sealed])


def at(mask: Floats, positions: Floats) -> Floats:
    """Return the values of a mask (H, W) at positions (N, 2)."""
    x, y = np.clip(np.rint(positions).astype(int), 0, [mask.shape[1] - 1, mask.shape[0] - 1]).T
    return mask[y, x]
