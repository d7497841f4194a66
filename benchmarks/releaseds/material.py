# SPDX-License-Identifier: Apache-2.0
"""Photos, archives and descriptors that the parts share; and the small ones of a smoke test."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from releaseds.sets import Descriptors, Sealed, descriptors_of, sealed_set
from releaseds.transient import PEOPLE
from sfumato.features.local import LocalParams
from sfumato.images.read import list_images
from sfumato.images.samples import sample_paths

SETS = {
    "london_bridge": "unordered/internet/london_bridge",
    "piazza_san_marco": "unordered/internet/piazza_san_marco",
    "st_pauls_cathedral": "unordered/internet/st_pauls_cathedral",
    "united_states_capitol": "unordered/internet/united_states_capitol",
    "sceaux-castle": "unordered/sceaux-castle",
    "lund": "unordered/lund",
    "fountain-P11": "posed/fountain-P11/images",
    "entry-P10": "posed/entry-P10/images",
}


@dataclass
class Material:
    """What parts work with. ``folders``: sets of photos. ``scene``: photos of one place, with the cameras beside their
    folder; ``people``: photos whose subject is pasted in. ``collections``: photos by name, for descriptors."""

    work: Path
    seed: int
    sheets: Path | None
    folders: dict[str, Path]
    scene: list[Path]
    people: list[Path]
    collections: dict[str, list[Path]]
    most: int
    small: bool = False
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def sets(self) -> dict[str, list[Sealed]]:
        """The sets after the default's conceal, match and release."""
        return {name: sealed_set(path, self.work / name, self.seed) for name, path in self.folders.items()}

    def descriptors(self, name: str, most: int | None = None) -> Descriptors:
        """Return the descriptors of a collection; ``most`` photos of it."""
        local = LocalParams(max_features=400) if self.small else LocalParams()
        return descriptors_of(self.collections[name][:most], self.work / f"{name}.npz", local)

    def sheet(self, name: str) -> Path | None:
        """Return where a sheet goes, if anywhere."""
        return None if self.sheets is None else self.sheets / f"{name}.png"

    def say(self, part: str, **sizes: Any) -> None:
        """Note the sizes of a part."""
        self.said.setdefault(part, {}).update(sizes)

    def sizes(self, part: str) -> dict[str, Any]:
        """Return the sizes of a part."""
        return self.said.get(part, {}) | {"seed": self.seed}


def full_material(work: Path, seed: int, sheets: Path | None, most: int, folder: Path) -> Material:
    """Return the real one."""
    photos = folder / "photos"
    collections = {
        "bsds-val": photos / "bsds500/val", "bsds-train": photos / "bsds500/train",
        "imagenet": photos / "imagenet-samples",
    }  # fmt: skip
    return Material(
        work,
        seed,
        sheets,
        {name: folder / path for name, path in SETS.items()},
        [path for _, path in list_images(folder / SETS["fountain-P11"])],
        [photos / f"bsds500/val/{name}.jpg" for name in PEOPLE],
        {name: [path for _, path in list_images(place)] for name, place in collections.items()},
        most,
    )


def small_material(work: Path, seed: int, sheets: Path | None, most: int, folder: Path | None) -> Material:
    """Return two bundled photos cut up, as if they were many."""
    import json

    import cv2

    del folder
    coffee, other = (cv2.imread(str(path)) for path in list(sample_paths().values())[:2])
    scene, pieces = work / "small" / "images", work / "pieces"
    scene.mkdir(parents=True), pieces.mkdir()
    for number in range(3):
        cv2.imwrite(str(scene / f"{number}.png"), coffee[:, 20 * number : coffee.shape[1] - 60 + 20 * number])
    for number in range(24):
        part = (coffee, other)[number % 2][: 120 + 4 * number, 8 * number :]
        cv2.imwrite(str(pieces / f"n0{1 + number % 2}_{number}.png"), part)
    cameras = {}
    for number, turn in enumerate((-0.1, 0.0, 0.1)):
        cos, sin = np.cos(turn), np.sin(turn)
        cameras[f"{number}.png"] = {
            "K": [[400, 0, 250], [0, 400, 200], [0, 0, 1]],
            "world_from_cam_rotation": [[cos, 0, -sin], [0, 1, 0], [sin, 0, cos]],
            "center_in_world": [sin, 0, 1 - cos],
        }
    (scene.parent / "cameras.json").write_text(json.dumps(cameras))
    files = sorted(pieces.glob("*.png"))
    names = ("bsds-val", "bsds-train", "imagenet")
    return Material(
        work, seed, sheets, {"small": scene}, sorted(scene.glob("*.png")), list(sample_paths().values())[:1],
        dict.fromkeys(names, files), min(most, 2000), small=True,
    )  # fmt: skip
