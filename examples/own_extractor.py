# SPDX-License-Identifier: Apache-2.0
"""Features of your own network, sealed and matched: keypoints (N, 2), descriptors (N, 256), as SuperPoint gives them.

    python examples/own_extractor.py

The two pictures are the stereo pair of motorcycles that scikit-image brings. In such a pair a point of the scene lies
on the same row of both pictures, which shows which matches are right. Put your network in the place of ``network``.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

import sfumato
from sfumato.device import own_keypoints
from sfumato.features import write_hloc
from sfumato.images import sample_image

NAME = "patchnet"
"""A name of your own. Features match only features of the same name, so put the version of the weights into it."""
SIDE = 16
SAME_ROW_PX, FARTHEST_PX = 2, 120
"""A right match lies on the same row, and at most this far to the left in the right picture."""

Floats = NDArray[np.float32]


def network(pixels: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return keypoints (N, 2) and descriptors (N, 256). Stands for a network: corners, and the pixels around each."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    corners = cv2.goodFeaturesToTrack(grey, maxCorners=1500, qualityLevel=0.01, minDistance=4)[:, 0]
    smooth = cv2.GaussianBlur(grey, (0, 0), 1.5).astype(np.float32)
    around = [cv2.getRectSubPix(smooth, (2 * SIDE, 2 * SIDE), (float(x), float(y)))[::2, ::2] for x, y in corners]
    rows = np.array(around, np.float32).reshape(len(corners), SIDE * SIDE)
    rows -= rows.mean(axis=1, keepdims=True)
    return corners, rows / np.linalg.norm(rows, axis=1, keepdims=True)


def as_features(keypoints: Floats, descriptors: Floats, size: tuple[int, int]) -> sfumato.Features:
    """Put arrays into the type that Sfumato conceals; the centre of the first pixel is at (0, 0)."""
    count = len(keypoints)
    frames = np.column_stack([keypoints, np.ones(count), np.zeros(count)])  # no sizes and angles: 1 and 0
    return sfumato.Features(frames, descriptors, sfumato.Extractor(NAME), size)


def conceal(features: dict[str, sfumato.Features], folder: Path, key: bytes) -> Path:
    """The device: conceal pictures. Nobody measured the bandwidth for this network, so it is estimated from the first.

    The warning names the estimate. All other devices must take the same, for another picture gives another estimate.
    """
    archive = folder / "private.sfm"
    write_hloc(folder / "features.h5", list(features.items()))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", sfumato.BandwidthWarning)
        sfumato.conceal_photos(folder / "features.h5", archive, extractor=NAME, secret=key)
    for note in notes:
        print(f"warning: {note.message}\n")
    return archive


def share_right(matches: sfumato.Matches, left: Floats, right: Floats) -> float:
    """Return the share of matches that can be right in a stereo pair, by the positions of their rows."""
    across, down = (left[matches.indices[:, 0], :2] - right[matches.indices[:, 1], :2]).T
    return float(((np.abs(down) <= SAME_ROW_PX) & (across > -SAME_ROW_PX) & (across < FARTHEST_PX)).mean())


def main() -> int:
    """Conceal two pictures, match them, and compare with the clear descriptors."""
    pictures = [sample_image(f"motorcycle-{side}") for side in ("left", "right")]
    left, right = (as_features(*network(picture.pixels), picture.size) for picture in pictures)
    key = sfumato.new_key()  # one for all devices of a map; sfumato.device_key("fleet.key") keeps it in a file

    with tempfile.TemporaryDirectory() as folder:
        archive = conceal({"left.png": left, "right.png": right}, Path(folder), key)
        with sfumato.load(archive) as images:  # what a server sees: bits, and the name of the network
            first, second = images["left.png"], images["right.png"]
        matches = sfumato.match(first, second)
        own = own_keypoints(archive)  # rows lie in an order under the key: the device knows where
        positions = own("left.png", first), own("right.png", second)
    print(f"type on the other devices: --recipe sealed-512:{first.recipe.links[-1].bandwidth:g}")
    clear = sfumato.match(left.descriptors, right.descriptors, ratio=0.8)
    shares = share_right(clear, left.keypoints, right.keypoints), share_right(matches, *positions)
    print(f"clear descriptors, ratio test 0.8: {len(clear)} matches, {shares[0]:.0%} on the right row")
    print(
        f"shown: {left.descriptors.shape[1]} numbers of another network became {first.code.ambient_dim} bits, and "
        f"{len(matches)} matches without any descriptor, {shares[1]:.0%} of them on the right row"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
