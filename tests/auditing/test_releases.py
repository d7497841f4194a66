# SPDX-License-Identifier: Apache-2.0
"""What photos under audit would release: nothing where they share no place, and what several see where they do."""

from pathlib import Path

import numpy as np

from sfumato.auditing.releases import digest_shown, released_rows
from sfumato.features.local import LocalParams, extract
from sfumato.images.samples import sample_paths

LOCAL = LocalParams(max_features=400)


def test_photos_of_different_places_release_nothing():
    paths = {name: sample_paths()[name] for name in ("coffee", "astronaut", "chelsea")}
    shown = released_rows(paths, ["raw", "sealed-512"], LOCAL, 0)
    assert list(shown) == ["sealed-512"]
    assert all(len(rows) == len(extract(paths[name], LOCAL)) and not rows.any() for name, rows in
               shown["sealed-512"].items())  # fmt: skip


def test_what_three_views_see_is_released_and_a_fourth_photo_is_not(tmp_path: Path):
    paths = {"chelsea.png": sample_paths()["chelsea"], **views_of_two_walls(tmp_path)}
    shown = released_rows(paths, ["sealed-512"], LOCAL, 0)["sealed-512"]
    assert not shown["chelsea.png"].any()
    assert min(int(shown[f"{number}.png"].sum()) for number in range(3)) > 30
    assert digest_shown(shown) != digest_shown({**shown, "chelsea.png": ~shown["chelsea.png"]})
    own = extract(paths["1.png"], LOCAL).keypoints[shown["1.png"], 0]  # rows of the clear features, in their order
    assert np.ptp(own) > 100


def views_of_two_walls(folder: Path) -> dict[str, Path]:
    """Three photos of a near wall before a far one, from cameras side by side."""
    import cv2

    far, near = (cv2.imread(str(sample_paths()[name])) for name in ("astronaut", "coffee"))
    paths = {}
    for number in range(3):
        view = np.ascontiguousarray(far[:400, 12 * number : 12 * number + 440])
        view[150:350, 220 - 50 * number : 440 - 50 * number] = near[50:250, 100:320]
        paths[f"{number}.png"] = folder / f"{number}.png"
        cv2.imwrite(str(paths[f"{number}.png"]), view)
    return paths
