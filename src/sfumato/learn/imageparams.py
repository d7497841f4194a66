# SPDX-License-Identifier: Apache-2.0
"""How a UNet or UResNet is trained: the settings, checked. Knows no photo and no tensor."""

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from sfumato.errors import InputError
from sfumato.features.local import LocalParams
from sfumato.images.settings import Range, refuse_unknown, settle_numbers
from sfumato.learn.imageinverter import ARCHITECTURES


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTrainParams:
    """How a UNet or UResNet is trained.

    ``width`` scales its channels. Windows of ``side`` pixels are cut from at most ``max_photos`` photos, ``batch`` at a
    time. ``steps`` instead of ``minutes`` makes the training repeatable. ``perceptual`` is a file of VGG16; the
    perceptual loss is taken on a window of ``perceptual_side`` pixels and counts ``perceptual_weight`` times (Eq. 5:
    once); without a file the loss is the mean absolute error alone. ``encoder`` is a file of ResNet50, for a UResNet of
    width 1. ``device`` is torch's, cpu or cuda.
    """

    architecture: str = "unet"
    width: float = 0.5
    side: int = 128
    batch: int = 4
    rate: float = 1e-3
    minutes: float = 30.0
    steps: int | None = None
    seed: int = 0
    max_photos: int = 600
    local: LocalParams = field(default_factory=lambda: LocalParams(max_features=1000))
    perceptual: str | os.PathLike[str] | None = None
    perceptual_side: int = 64
    perceptual_weight: float = 1.0
    encoder: str | os.PathLike[str] | None = None
    device: str = "cpu"
    save_minutes: float = 2.0

    def __new__(cls, **settings: object) -> "ImageTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "width": Range(0.05, 2), "side": Range(32, 1024, whole=True), "batch": Range(1, 1024, whole=True),
            "rate": Range(1e-7, 1), "minutes": Range(1e-3, 1e5), "seed": Range(0, 2**63, whole=True),
            "max_photos": Range(2, 10_000_000, whole=True), "perceptual_side": Range(16, 1024, whole=True),
            "save_minutes": Range(0, 1e5), "perceptual_weight": Range(0, 1e3),
        }  # fmt: skip
        problems = settle_numbers(
            self, ranges if self.steps is None else {**ranges, "steps": Range(1, 1e9, whole=True)}
        )
        if self.architecture not in ARCHITECTURES:
            problems.append(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r:.80}")
        elif not problems and self.side % ARCHITECTURES[self.architecture].multiple:
            problems.append(f"side must be a multiple of {ARCHITECTURES[self.architecture].multiple}, got {self.side}")
        if self.encoder is not None and self.architecture != "uresnet":
            problems.append(f"encoder is for a uresnet, not for a {self.architecture!s:.80}")
        if problems:
            raise InputError("; ".join(problems))

    def facts(self) -> dict[str, Any]:
        """Return what a training with the same result has in common, as plain values; no places of files."""
        files = {"perceptual": self.perceptual is not None, "encoder": self.encoder is not None}
        local = {**asdict(self.local), "weights": self.local.weights is not None}
        left_out = ("device", "save_minutes", "minutes", "steps")
        return {k: v for k, v in asdict(self).items() if k not in left_out} | files | {"local": local}
