# SPDX-License-Identifier: Apache-2.0
"""Trained inverters as an attacker uses them: what each is for, and how it paints; those that come with the package.

Knows files of networks; not which attack they serve.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.evaluate.task import digest_data
from sfumato.learn.blind import BUNDLED as BLIND
from sfumato.learn.imageinverter import invert_image, load_image_inverter
from sfumato.learn.inverter import floor_input, invert, load_inverter
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

PATCH = "patch"
"""The inverter that works on one descriptor after another; the strongest for its cost."""
KEYPOINTS = "keypoints"
"""The inverter that sees no descriptor, and the attack by it: what every recipe shows."""
TRAINED_ON_IT = "inverter trained on it"
"""What an inverter of readings of sealed features is called, beside the attack that reads them."""


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Painter:
    """A trained inverter: ``paint`` takes keypoints (N, 4), rows (N, input_dim) and a size to a picture (H, W, 3).

    ``recipe`` is what the rows are: raw for clear descriptors, else the canonical form, in ``frame``, of what this
    recipe releases, or of a seal of no key what is read back of it. ``floor`` (input_dim,) is the row that tells
    nothing.
    """

    architecture: str
    extractor_name: str
    recipe: str
    digest: str
    frame: Floats | None
    floor: Floats
    paint: Callable[[Floats, Floats, tuple[int, int]], Floats]

    @property
    def purpose(self) -> tuple[str, str, str]:
        """What it inverts, and how: of two for one purpose, only one can be meant."""
        return self.extractor_name, Recipe.of(self.recipe).identity, self.architecture

    @property
    def title(self) -> str:
        """What it is called in results, beside the attack."""
        return TRAINED_ON_IT if Recipe.of(self.recipe).is_sealed else self.scale

    @property
    def scale(self) -> str:
        """The architecture on whose scale, from the floor to clear descriptors, it is measured."""
        return PATCH if self.architecture == KEYPOINTS else self.architecture

    def __repr__(self) -> str:
        return f"Painter({self.architecture} for {self.recipe} {self.extractor_name})"


def bundled_painter() -> Painter:
    """Return the inverter for clear SIFT that comes with the package."""
    return next(one for one in bundled_painters() if (one.recipe, one.architecture) == ("raw", PATCH))


def bundled_painters() -> list[Painter]:
    """Return all inverters that come with the package: for clear SIFT, what recipes make of it, and keypoints alone."""
    with resources.as_file(resources.files("sfumato.learn") / "data") as place:
        return [patch_painter(path) for path in (*sorted(place.glob("inverter-*.safetensors")), place / BLIND)]


def patch_painter(path: Path) -> Painter:
    """Read a patch inverter: of clear descriptors, of what a recipe releases, or of keypoints alone."""
    inverter = load_inverter(path)
    return Painter(
        architecture=KEYPOINTS if inverter.is_blind else PATCH,
        extractor_name=inverter.extractor_name,
        recipe=inverter.recipe,
        digest=digest_data(path),
        frame=inverter.frame,
        floor=floor_input(inverter),
        paint=lambda keypoints, rows, size: invert(inverter, keypoints, rows, size),
    )


def _image_painter(path: Path) -> Painter:
    inverter = load_image_inverter(path)
    return Painter(
        architecture=inverter.architecture,
        extractor_name=inverter.extractor_name,
        recipe=inverter.recipe,
        digest=digest_data(path),
        frame=inverter.frame,
        floor=inverter.mean,
        paint=lambda keypoints, rows, size: invert_image(inverter, keypoints, rows, size),
    )


PAINTERS: dict[Any, Callable[[Path], Painter]] = {"patch inverter": patch_painter, "image inverter": _image_painter}
"""Kinds of files, and what reads them."""
