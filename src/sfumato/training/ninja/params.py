# SPDX-License-Identifier: Apache-2.0
"""Settings of the three stages of a NinjaNet training, and the presets ``paper`` and ``small``.

Every figure of ``paper`` is that of NinjaDesc, section 3.4, where the paper gives one; ``small`` is what two cores can
do, and ``differences`` names the differences of the two. That text goes with each encoder.
"""

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from sfumato.errors import InputError, suggest
from sfumato.features.local import LocalParams
from sfumato.inversion.images import ARCHITECTURES
from sfumato.types.arrays import Range, refuse_unknown, settle_numbers

ADVERSARIES = {"decoder": ("decoder",), "patch": ("patch",), "unet": ("unet",), "all": ("decoder", "patch", "unet")}
"""Inverters by name; the losses of several are added, each with weight 1."""
INITIALISATIONS = ("orthogonal", "mirror", "discriminant")
SCHEDULES = ("constant", "cosine")
STAGES = ("utility", "inverter", "joint")


def takes_photos(adversary: str) -> bool:
    """Tell whether an adversary learns from photos, and not from the pairs alone."""
    return adversary != "decoder"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParams:
    """A stage: batch size, rate of learning, and epochs."""

    batch: int
    rate: float
    epochs: int

    def __post_init__(self) -> None:
        ranges = {"batch": Range(1, 2**20, whole=True), "rate": Range(1e-9, 1), "epochs": Range(1, 1e6, whole=True)}
        problems = settle_numbers(self, ranges)
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversaryParams:
    """The inverters: ``rows`` descriptors at once for decoder and patch, of ``hidden`` and ``patch_hidden`` units.

    For unet: its ``architecture``, ``width`` and windows of ``side`` pixels; ``perceptual`` is a file of VGG16, its
    loss taken on ``perceptual_side`` pixels (Eq. 5), None for the mean absolute error alone. ``split`` are the shares
    of the photos to learn from, to check on, and to leave alone; ``max_photos`` bounds them, ``local`` describes them;
    None for a decoder, which sees none.
    """

    rows: int = 512
    hidden: int = 768
    patch_hidden: int = 512
    architecture: str = "unet"
    width: float = 0.25
    side: int = 128
    perceptual: str | os.PathLike[str] | None = None
    perceptual_side: int = 64
    split: tuple[float, float, float] = (0.9, 0.1, 0.0)
    max_photos: int = 600
    local: LocalParams | None = field(default_factory=lambda: LocalParams(max_features=1000))

    def __new__(cls, **settings: object) -> "AdversaryParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "rows": Range(2, 2**20, whole=True), "hidden": Range(1, 2**15, whole=True), "width": Range(0.01, 2),
            "patch_hidden": Range(1, 2**15, whole=True), "side": Range(32, 1024, whole=True),
            "perceptual_side": Range(16, 1024, whole=True), "max_photos": Range(2, 10_000_000, whole=True),
        }  # fmt: skip
        problems = settle_numbers(self, ranges)
        if self.architecture not in ARCHITECTURES:
            problems.append(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r:.80}")
        elif not problems and self.side % ARCHITECTURES[self.architecture].multiple:
            problems.append(f"side must be a multiple of {ARCHITECTURES[self.architecture].multiple}, got {self.side}")
        shares = self.split
        if len(shares) != 3 or min(shares[:2]) <= 0 or shares[2] < 0 or abs(sum(shares) - 1) > 1e-6:
            problems.append(f"split must be three shares that add up to 1, the first two above 0, got {shares!r:.80}")
        if problems:
            raise InputError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class NinjaTrainParams:
    """Settings of a NinjaNet training.

    ``privacy`` is lambda of Eq. 9, ``adversary`` the inverters it is trained against. For descriptors of n numbers an
    encoder gives ``output_dim``; if None, n / (1 + ``narrowing`` lambda): a map that can be undone hides nothing.
    ``margin`` is that of the triplets. ``utility``, ``inverter`` and ``joint`` are the three stages; the batch of
    ``inverter`` is in
    windows, for unet. In the joint stage the inverter learns at ``joint_inverter_rate``, ``adversary_steps`` times for
    each step of the encoder; an encoder is selected by its FPR@95 after ``select_after`` of that stage. ``noise`` is
    added to each number that inverters see; directions fainter than it are cut off at the end (see
    ``network.prune``). Given ``minutes`` or ``steps``, ``shares`` of them go to the stages; else each has its epochs.
    ``held_out`` is the share of groups of pairs (photos) that is only used to select.
    """

    preset: str = "small"
    privacy: float = 1.0
    adversary: str = "decoder"
    blocks: int = 1
    output_dim: int | None = None
    narrowing: float = 0.0
    margin: float = 1.0
    dropout: float = 0.1
    initialisation: str = "orthogonal"
    utility: StageParams = StageParams(batch=1024, rate=0.01, epochs=200)
    inverter: StageParams = StageParams(batch=64, rate=1e-4, epochs=200)
    joint: StageParams = StageParams(batch=968, rate=1e-5, epochs=20)
    joint_inverter_rate: float = 1e-5
    adversary_steps: int = 1
    select_after: float = 0.0
    noise: float = 0.0
    schedule: str = "constant"
    opponents: AdversaryParams = field(default_factory=AdversaryParams)
    minutes: float | None = None
    steps: int | None = None
    shares: tuple[float, float, float] = (0.2, 0.2, 0.6)
    held_out: float = 0.1
    seed: int = 0
    device: str = "cpu"
    save_minutes: float = 2.0

    def __new__(cls, **settings: object) -> "NinjaTrainParams":
        """Refuse misspelt settings before anything is made."""
        refuse_unknown(cls, settings)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        ranges = {
            "privacy": Range(0, 1e4), "blocks": Range(0, 16, whole=True), "dropout": Range(0, 0.9),
            "narrowing": Range(0, 1e4), "margin": Range(1e-3, 2),
            "joint_inverter_rate": Range(1e-9, 1), "adversary_steps": Range(1, 1000, whole=True),
            "select_after": Range(0, 0.99), "noise": Range(0, 1), "held_out": Range(0.001, 0.9),
            "seed": Range(0, 2**62, whole=True), "save_minutes": Range(0, 1e5),
        }  # fmt: skip
        optional = {"minutes": Range(1e-3, 1e6), "steps": Range(3, 1e9, whole=True), "output_dim": Range(1, 4096, True)}
        problems = settle_numbers(self, ranges | {k: v for k, v in optional.items() if getattr(self, k) is not None})
        for name, known in (("adversary", ADVERSARIES), ("initialisation", INITIALISATIONS), ("schedule", SCHEDULES)):
            value = getattr(self, name)
            if value not in known:
                problems.append(f"{name} must be one of {', '.join(known)}, got {value!r:.80}{suggest(value, known)}")
        if self.opponents.local is None and takes_photos(self.adversary):
            problems.append(f"opponents: local must say how photos are described for {self.adversary!r:.80}")
        if len(self.shares) != 3 or min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6:
            problems.append(f"shares must be three, above 0, that add up to 1, got {self.shares!r:.80}")
        if problems:
            raise InputError("; ".join(problems))

    def stages(self) -> tuple[StageParams, StageParams, StageParams]:
        """Return the three stages in their order."""
        return self.utility, self.inverter, self.joint

    def width(self, dim: int) -> int:
        """Return how many numbers the encoder gives for descriptors of ``dim``."""
        return self.output_dim or max(2, round(dim / (1 + self.narrowing * self.privacy)))

    def first_settings(self) -> dict[str, Any]:
        """Return the settings that the first two stages depend on, as plain values: no paths, no lambda."""
        names = ("blocks", "output_dim", "margin", "dropout", "initialisation", "noise", "schedule", "held_out", "seed")
        params = self.opponents.local
        local = None if params is None else {**asdict(params), "weights": params.weights is not None}
        opponents = asdict(self.opponents) | {"local": local, "perceptual": self.opponents.perceptual is not None}
        opponents["split"] = list(self.opponents.split)
        settings = {name: getattr(self, name) for name in names}
        settings["narrowed"] = None if self.output_dim else self.narrowing * self.privacy
        settings |= {"utility": asdict(self.utility), "inverter": asdict(self.inverter)}
        return settings | {"opponents": opponents, "adversaries": list(ADVERSARIES[self.adversary])}

    def joint_settings(self) -> dict[str, Any]:
        """Return the other settings that the joint stage depends on, as plain values."""
        names = ("preset", "privacy", "adversary", "joint_inverter_rate", "adversary_steps", "select_after")
        return {name: getattr(self, name) for name in names} | {"joint": asdict(self.joint)}


PAPER = NinjaTrainParams(
    preset="paper",
    adversary="unet",
    opponents=AdversaryParams(
        width=1.0, side=256, perceptual_side=256, split=(0.6, 0.1, 0.3), max_photos=10_000_000,
        local=LocalParams(extractor="harris", max_features=1000),
    ),
)  # fmt: skip
"""NinjaDesc, section 3.4, for SIFT; ``preset`` gives the rate of the joint stage for learned descriptors."""

SMALL = NinjaTrainParams(
    initialisation="discriminant",
    narrowing=1.6,
    margin=0.5,
    dropout=0.0,
    utility=StageParams(batch=512, rate=3e-4, epochs=20),
    inverter=StageParams(batch=4, rate=1e-3, epochs=20),
    joint=StageParams(batch=160, rate=3e-4, epochs=20),  # slower than the inverters, which it would outrun
    joint_inverter_rate=1e-3,
    adversary_steps=1,
    select_after=0.5,
    schedule="cosine",
    shares=(0.1, 0.2, 0.7),
    minutes=30,
)

PRESETS = {"paper": PAPER, "small": SMALL}

LEARNED_RATE = 5e-5
"""Of the joint stage for learned descriptors (section 3.4); 1e-5 for SIFT."""


def preset(name: str, extractor_name: str = "sift") -> NinjaTrainParams:
    """Return a preset by its name, with the rates for a base descriptor.

    Raises InputError for an unknown name.
    """
    if name not in PRESETS:
        raise InputError(f"no preset is called {name!r:.80}{suggest(name, PRESETS)}; there are {', '.join(PRESETS)}")
    if name == "paper" and not extractor_name.endswith("sift"):
        joint = replace(PAPER.joint, rate=LEARNED_RATE)
        return replace(PAPER, joint=joint, joint_inverter_rate=LEARNED_RATE)
    return PRESETS[name]


def differences(params: NinjaTrainParams, extractor_name: str = "sift") -> str:
    """Return the settings that differ from the paper's: 'name: ours (paper: theirs)'."""
    paper = preset("paper", extractor_name)
    left_out = ("preset", "privacy", "seed", "device", "save_minutes", "opponents")
    lines = [_difference(f.name, params, paper) for f in fields(NinjaTrainParams) if f.name not in left_out]
    lines += [_difference(f.name, params.opponents, paper.opponents) for f in fields(AdversaryParams)]
    lines.append("pairs and photos: see data (paper: UBC patches of liberty, and MegaDepth)")
    return "; ".join(line for line in lines if line)


def _difference(name: str, ours: Any, theirs: Any) -> str:
    mine, other = getattr(ours, name), getattr(theirs, name)
    if mine == other or name == "perceptual":
        return (
            "perceptual: no VGG16, mean absolute error alone (paper: with)" if name == "perceptual" and not mine else ""
        )
    return f"{name}: {_text(mine)} (paper: {_text(other)})"


def _text(value: Any) -> str:
    if isinstance(value, StageParams):
        return f"batch {value.batch}, rate {value.rate:g}, {value.epochs} epochs"
    if isinstance(value, LocalParams):
        return f"{value.max_features} {value.extractor} keypoints"
    return "none" if value is None else str(value)
