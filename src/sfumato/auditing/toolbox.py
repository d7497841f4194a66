# SPDX-License-Identifier: Apache-2.0
"""Tools of the attacker in evaluations: public descriptors, the decoys, trained inverters and decoders.

Everything has a digest, so that a result says what it was made with.
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from sfumato.attacks.encoded import load_decoder
from sfumato.attacks.registry import AT_POSITIONS, PATCH, TRAINED_INVERTER
from sfumato.auditing.subjects import conceal_repeatably
from sfumato.auditing.task import digest_data
from sfumato.concealment.decoys import Decoys, load_decoys
from sfumato.concealment.encoder import is_encoder_file
from sfumato.concealment.seal import without_key
from sfumato.errors import FileError, InputError
from sfumato.files.tensors import load_checkpoint, load_tensors
from sfumato.inversion.images import invert_image, load_image_inverter
from sfumato.inversion.patches import floor_input, invert_rows, load_inverter, network_folder
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

Floats = NDArray[np.float32]

Decode = Callable[[Subspaces], Floats]
Made = TypeVar("Made")

CELLS = "cells"
KEYPOINTS, POSITIONS, OUTLINES = "keypoints", "positions", "outlines"
"""Architectures that take no descriptor: patches at places, sizes and angles; cells at positions alone, which paint the
photo or its outlines."""


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class TrainedInverter:
    """Trained inverter with its purpose.

    ``paint`` takes keypoints (N, 4), rows (N, input_dim) and a size to a picture (H, W, 3).

    ``recipe`` is what the rows are: raw for clear descriptors, else the canonical form, in ``frame``, of what this
    recipe releases, or of a seal without its key what attacks read out of it. ``floor`` (input_dim,) is a row without
    information.
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
        """What it inverts, and how: a folder may hold one inverter per purpose."""
        return self.extractor_name, Recipe.of(self.recipe).identity, self.architecture

    @property
    def title(self) -> str:
        """What it is called in results, beside the attack; PATCH where that goes without saying."""
        if Recipe.of(self.recipe).is_sealed:
            return TRAINED_INVERTER
        return AT_POSITIONS if self.architecture == CELLS else PATCH if self.is_blind else self.architecture

    @property
    def is_blind(self) -> bool:
        """Whether it takes no descriptor."""
        return self.architecture in (KEYPOINTS, POSITIONS, OUTLINES)

    @property
    def paints_outlines(self) -> bool:
        """Whether it paints outlines, which are compared with those of the photo."""
        return self.architecture == OUTLINES

    def can_paint(self, recipe: Recipe) -> bool:
        """Tell whether an archive of a recipe has all that it takes: sizes and angles for patches."""
        return recipe.keeps_frames or self.architecture not in (PATCH, KEYPOINTS)

    def __repr__(self) -> str:
        return f"TrainedInverter({self.architecture} for {self.recipe} {self.extractor_name})"


def bundled_inverter() -> TrainedInverter:
    """Return the inverter for clear SIFT, at places, sizes and angles, that comes with the package."""
    return next(one for one in bundled_inverters() if (one.recipe, one.architecture) == ("raw", PATCH))


def bundled_inverters() -> list[TrainedInverter]:
    """Return all inverters that come with the package: for clear SIFT, what recipes make of it, and keypoints alone."""
    return [_read_inverter(path) for path in sorted(network_folder().glob("*.safetensors"))]


def _read_inverter(path: Path) -> TrainedInverter:
    return READERS[load_checkpoint(path)[1]["kind"]](path)


def read_patch_inverter(path: Path) -> TrainedInverter:
    """Read a patch inverter: of clear descriptors, of what a recipe releases, or of keypoints alone."""
    inverter = load_inverter(path)
    return TrainedInverter(
        architecture=KEYPOINTS if inverter.is_blind else PATCH,
        extractor_name=inverter.extractor_name,
        recipe=inverter.recipe,
        digest=digest_data(path),
        frame=inverter.frame,
        floor=floor_input(inverter),
        paint=lambda keypoints, rows, size: invert_rows(inverter, keypoints, rows, size),
    )


def _read_image_inverter(path: Path) -> TrainedInverter:
    inverter = load_image_inverter(path)
    blind = OUTLINES if inverter.target == "outlines" else POSITIONS
    return TrainedInverter(
        architecture=blind if inverter.is_blind and inverter.architecture == CELLS else inverter.architecture,
        extractor_name=inverter.extractor_name,
        recipe=inverter.recipe,
        digest=digest_data(path),
        frame=None if inverter.recipe == "raw" else inverter.frame,
        floor=inverter.mean,
        paint=lambda keypoints, rows, size: invert_image(inverter, keypoints, rows, size),
    )


READERS: dict[Any, Callable[[Path], TrainedInverter]] = {
    "patch inverter": read_patch_inverter,
    "image inverter": _read_image_inverter,
}
"""Kinds of files, and what reads them."""


class ConcealedCache:
    """Concealed features of the photo under attack, and what is made of them, once for all attacks; in memory only."""

    def __init__(self) -> None:
        self._features: Features | None = None
        self._made: dict[Hashable, Any] = {}

    def conceal(self, features: Features, recipe: Recipe, decoys: Decoys | None, seed: int) -> ConcealedFeatures:
        """Return the features concealed for an evaluation."""
        return self.get(
            features, (recipe.identity, seed), lambda: conceal_repeatably(features, recipe, decoys, seed=seed)
        )

    def get(self, features: Features, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made of these features before, or make it; what was made of another photo is dropped."""
        if self._features is not features:
            self._features, self._made = features, {}
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made

    def __repr__(self) -> str:
        return f"ConcealedCache({len(self._made)} of a photo)"


class CodeCache:
    """Codes of one key, of all photos or of known pairs, made once; of the recipes used last."""

    def __init__(self) -> None:
        self._codes: LRUCache[tuple[str, str], Floats] = LRUCache(8)

    def get(self, recipe: Recipe, photos: str, make: Callable[[], Floats]) -> Floats:
        """Return the codes (P, B) of a recipe and a set of photos."""
        key = (recipe.identity, photos)
        if key not in self._codes:
            self._codes[key] = make()
            self._codes[key].setflags(write=False)  # attacks know a read-only array again
        return self._codes[key]

    def __repr__(self) -> str:
        return f"CodeCache({len(self._codes)} recipes)"


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Tools:
    """Tools of the attacker, opened. ``public``: a decoys file of other photos, for its descriptors."""

    decoys: Decoys | None = None
    public: Decoys | None = None
    inverters: Sequence[TrainedInverter] = ()
    decoders: Mapping[tuple[str, str], tuple[str, Decode]] = field(default_factory=dict)
    concealed: ConcealedCache = field(init=False, default_factory=ConcealedCache)
    codes: CodeCache = field(init=False, default_factory=CodeCache)

    def inverter(self, extractor_name: str, recipe: str, architecture: str = PATCH) -> TrainedInverter | None:
        """Return the inverter for what a recipe releases of some kind of descriptor; None if there is none."""
        fitting = (one for one in self.inverters_for(extractor_name, recipe) if one.architecture == architecture)
        return next(fitting, None)

    def inverters_for(self, extractor_name: str, recipe: str) -> list[TrainedInverter]:
        """Return all inverters for what a recipe releases; how its encoders are called does not matter."""
        purpose = (extractor_name, Recipe.of(recipe).identity)
        return [one for one in self.inverters if one.purpose[:2] == purpose]

    def inverters_of_readings(self, extractor_name: str, recipe: str) -> list[TrainedInverter]:
        """Return the inverters for what attacks read out of a sealed recipe, under any key; none for others."""
        sealed = Recipe.of(recipe)
        if not sealed.is_sealed:
            return []
        fitting = self.inverters_for(extractor_name, str(without_key(sealed)))
        return [one for one in fitting if one.can_paint(sealed) and not one.is_blind]

    def clear_inverter(self, extractor_name: str, recipe: Recipe) -> TrainedInverter:
        """Return the inverter of clear descriptors that takes what an archive of a recipe has of keypoints.

        Raises InputError if there is none.
        """
        inverter = self.inverter(extractor_name, "raw", PATCH if recipe.keeps_frames else CELLS)
        if inverter is None:
            raise InputError(
                f"there is no inverter for clear {extractor_name}{'' if recipe.keeps_frames else ' at positions alone'}"
                f": train one with sfumato train inverter --descriptor {extractor_name}"
                f"{'' if recipe.keeps_frames else ' --architecture cells'} and put it into the folder of models"
            )
        return inverter

    def blind_inverters(self, extractor_name: str, recipe: Recipe) -> list[TrainedInverter]:
        """Return the inverters that paint where keypoints are, as an archive of a recipe has it, and no descriptor."""
        fitting = (one for one in self.inverters if one.is_blind and one.extractor_name == extractor_name)
        return [one for one in fitting if one.can_paint(recipe)]

    def decoder(self, extractor_name: str, recipe: str) -> tuple[str, Decode] | None:
        """Return the digest and the decoder for what a recipe releases; one of unknown descriptors fits all."""
        identity = Recipe.of(recipe).identity
        return self.decoders.get((extractor_name, identity)) or self.decoders.get(("unknown", identity))

    def known_fields(self, extractor_name: str, recipe: str) -> set[str]:
        """Return the fields of Knowledge that these tools give about what a recipe releases of single photos."""
        parsed = Recipe.of(recipe)
        fields = {"clear", "releases"} | ({"public"} if self.public_digest else set())
        fields |= {"encoder"} if parsed.encoders_are_public else set()
        if parsed.is_sealed and self.public_digest:
            fields |= {"encoder", "pool", "pairs", "told"}  # the encoder is what comes before the seal
        if self.decoys is not None and parsed.lifting is not None and parsed.lifting.decoy_count:
            fields.add("decoys")
        return fields | ({"decoder"} if self.decoder(extractor_name, recipe) else set())

    @property
    def public_digest(self) -> str | None:
        """The checksum of the public descriptors; without others they are the decoys, as in the paper."""
        public = self.public or self.decoys
        return None if public is None else public.checksum

    @property
    def public_descriptors(self) -> Floats | None:
        """The public descriptors (V, n) themselves."""
        public = self.public or self.decoys
        return None if public is None else public.descriptors

    @property
    def public_is_decoys(self) -> bool:
        """Whether the attacker's public descriptors are the decoys that features are concealed with."""
        return self.decoys is not None and self.public_digest == self.decoys.checksum

    @property
    def size_bytes(self) -> int:
        """The memory that the descriptors take."""
        return sum(one.descriptors.nbytes for one in (self.decoys, self.public) if one is not None)

    def check_public(self, extractor: Extractor) -> None:
        """Raise InputError if the public descriptors are of another kind than the attacked ones."""
        if self.public is not None and not self.public.extractor.matches(extractor):
            raise InputError(
                f"the public descriptors are {self.public.extractor.name}, the features are {extractor.name}: build "
                f"them from other photos with sfumato decoys build"
            )

    def __repr__(self) -> str:
        return f"Tools({len(self.inverters)} inverters, {len(self.decoders)} decoders)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """Tools of the attacker as paths, which a worker can be sent. ``models``: a folder of trained networks."""

    decoys: Path | None = None
    public: Path | None = None
    models: Path | None = None

    def open(self) -> Tools:
        """Read the tools; a bundled inverter stands in where there is no other for its purpose.

        Raises FileError or InputError for what is missing, damaged or something else.
        """
        inverters, decoders = ([], {}) if self.models is None else load_models(self.models)
        purposes = {one.purpose for one in inverters}
        return Tools(
            decoys=self.open_decoys(),
            public=None if self.public is None else load_decoys(self.public),
            inverters=[*(one for one in bundled_inverters() if one.purpose not in purposes), *inverters],
            decoders=decoders,
        )

    def open_decoys(self) -> Decoys | None:
        """Read the decoys, if there is a file of them."""
        return None if self.decoys is None else load_decoys(self.decoys)


def load_models(
    folder: str | os.PathLike[str],
) -> tuple[list[TrainedInverter], dict[tuple[str, str], tuple[str, Decode]]]:
    """Read all trained networks of a folder: inverters, and decoders by extractor and recipe with their digests.

    Two files for one purpose are refused: which of them was measured would depend on their names. Encoders are ignored.

    Raises FileError naming a file that is something else.
    """
    models = Path(folder)
    if not models.is_dir():
        raise FileError(f"{models}: no such folder; sfumato train inverter and sfumato train decoder fill one")
    inverters: list[TrainedInverter] = []
    decoders: dict[tuple[str, str], tuple[str, Decode]] = {}
    for path in sorted(models.glob("*.safetensors")):
        if is_encoder_file(load_tensors(path)[1]):
            continue
        kind = load_checkpoint(path)[1].get("kind")
        if kind == "decoder":
            decoder = load_decoder(path)
            key = (str(decoder.facts.get("extractor")), Recipe.of(str(decoder.facts.get("recipe"))).identity)
            if key in decoders:
                raise InputError(f"{path} is a second decoder for {key[1]} of {key[0]}: keep one in the folder")
            decoders[key] = digest_data(path), decoder
        elif kind in READERS:
            inverter = READERS[kind](path)
            if any(inverter.purpose == other.purpose for other in inverters):
                raise InputError(f"{path} is a second {inverter!r}: keep one in the folder")
            inverters.append(inverter)
        elif not path.name.endswith(".checkpoint.safetensors"):
            raise FileError(f"{path} is not an inverter or decoder: it holds {kind or 'no network of ours'!s:.80}")
    return inverters, decoders
