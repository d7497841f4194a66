# SPDX-License-Identifier: Apache-2.0
"""What a decoder is trained with: settings, public descriptors, and how rows of them are concealed.

Holds clear descriptors of public photos; nothing of it is written anywhere.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import ImageError, InputError
from sfumato.features.local import LocalParams, extract
from sfumato.images.settings import Range, refuse_unknown, settle_numbers
from sfumato.learn.photoset import Concealer, Picture, Progress
from sfumato.types.arrays import frozen_array
from sfumato.types.clear import Features
from sfumato.types.concealed import Subspaces
from sfumato.types.extractor import Extractor

Floats = NDArray[np.float32]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderTrainParams:
    """How a decoder is trained.

    ``form`` direct, search, or auto: a search wherever one is possible. ``hidden`` units in each of ``depth`` layers.
    ``steps`` instead of ``minutes`` makes the training repeatable. Of each photo at most ``per_photo`` descriptors are
    used, drawn from those that ``local`` finds. ``concealed_at_once`` rows are concealed as one image.
    """

    form: str = "auto"
    hidden: int = 768
    depth: int = 3
    batch: int = 256
    rate: float = 1e-3
    minutes: float = 10.0
    steps: int | None = None
    seed: int = 0
    per_photo: int = 300
    held_out: int = 2000
    concealed_at_once: int = 2048
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    save_minutes: float = 2.0

    def __new__(cls, **settings: object) -> "DecoderTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "hidden": Range(1, 2**15, whole=True), "depth": Range(1, 16, whole=True), "rate": Range(1e-7, 1),
            "batch": Range(2, 2**16, whole=True), "minutes": Range(1e-3, 1e5), "seed": Range(0, 2**63, whole=True),
            "per_photo": Range(1, 1e6, whole=True), "held_out": Range(1, 1e6, whole=True),
            "concealed_at_once": Range(1, 1e6, whole=True), "save_minutes": Range(0, 1e5),
        }  # fmt: skip
        problems = settle_numbers(
            self, ranges if self.steps is None else {**ranges, "steps": Range(1, 1e9, whole=True)}
        )
        if self.form not in ("auto", "direct", "search"):
            problems.append(f"form must be auto, direct or search, got {self.form!r:.80}")
        if problems:
            raise InputError("; ".join(problems))

    def facts(self) -> dict[str, Any]:
        """Return what a training with the same result has in common, as plain values; no places of files."""
        local = {**asdict(self.local), "weights": self.local.weights is not None}
        left_out = ("save_minutes", "minutes", "steps")
        return {k: v for k, v in asdict(self).items() if k not in left_out} | {"local": local}


def public_rows(
    params: DecoderTrainParams, source: Sequence[Picture] | Floats, rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Floats, Extractor]:
    """Return descriptors to learn from, others held out (of other photos, where photos were given), and their kind.

    Photos that can not be read are named in the log and left out.

    Raises InputError if there are too few.
    """
    if isinstance(source, np.ndarray):
        rows, extractor = frozen_array(source, "descriptors", (None, None)), Extractor()
        rows = rows[rng.permutation(len(rows))]
    else:
        rows, extractor = _of_photos(params, source, rng, progress)
    held_out = min(params.held_out, len(rows) // 5)
    if held_out < 1 or len(rows) < 2 * params.batch:
        raise InputError(f"{len(rows)} descriptors are too few to learn from: give more photos")
    return rows[held_out:], rows[:held_out], extractor


def conceal_rows(rows: Floats, extractor: Extractor, concealer: Concealer | None) -> tuple[Subspaces | Floats, str]:
    """Conceal descriptors (N, n) as if they were those of one image; return what is released, and the recipe."""
    if concealer is None:
        return rows, "raw"
    concealed = concealer(Features(np.zeros((len(rows), 4), np.float32), rows, extractor))
    return concealed.subspaces, str(concealed.recipe)


def _of_photos(
    params: DecoderTrainParams, photos: Sequence[Picture], rng: np.random.Generator, progress: Progress
) -> tuple[Floats, Extractor]:
    """Return descriptors of photos in a random order of photos."""
    found: list[Floats] = []
    extractor = Extractor()
    for number in progress(list(rng.permutation(len(photos)))):
        try:
            features = extract(photos[number], params.local)
        except ImageError as problem:
            log.warning("left out of the training: %s", problem)
            continue
        extractor = features.extractor
        found.append(features.descriptors[rng.permutation(len(features))[: params.per_photo]])
    if not found:
        raise InputError(f"none of the {len(photos)} photos can be used")
    return np.concatenate(found), extractor
