# SPDX-License-Identifier: Apache-2.0
"""What an attacker is given in an evaluation: public descriptors, the decoys, trained inverters and decoders.

Knows where trained networks are found and what each is for; not what they show. Everything has a digest, so that a
result says what it was made with.
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.encoded import load_decoder
from sfumato.auditing.subjects import conceal_repeatably
from sfumato.auditing.task import digest_data
from sfumato.concealment.decoy_file import load_decoys
from sfumato.concealment.decoys import Decoys
from sfumato.concealment.encoder import is_encoder_file
from sfumato.concealment.seal import keyless
from sfumato.errors import FileError, InputError
from sfumato.files.tensors import load_checkpoint, load_tensors
from sfumato.inversion.images import invert_image, load_image_inverter
from sfumato.inversion.load import BUNDLED as BLIND
from sfumato.inversion.patches import floor_input, invert, load_inverter
from sfumato.types.clear import Features
from sfumato.types.concealed import ConcealedFeatures, Subspaces
from sfumato.types.extractor import Extractor
from sfumato.types.recipe import Recipe

# ----------------------------------------------------------------
# Trained inverters as an attacker uses them: what each is for, and how it paints; those that come with the package
# Knows files of networks; not which attack they serve.


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
    with resources.as_file(resources.files("sfumato.inversion") / "data") as place:
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


Decode = Callable[[Subspaces], Floats]
Kept = TypeVar("Kept")


class Releases:
    """What was released of the photo worked on now, concealed once for all attacks on it; in memory only."""

    def __init__(self) -> None:
        self._features: Features | None = None
        self._held: dict[Hashable, Any] = {}

    def of(self, features: Features, recipe: Recipe, decoys: Decoys | None, seed: int) -> ConcealedFeatures:
        """Return the features concealed for an evaluation; those of another photo are let go of."""
        key = (recipe.identity, seed)
        return self.kept(features, key, lambda: conceal_repeatably(features, recipe, decoys, seed=seed))

    def kept(self, features: Features, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """Return what was made of these features before, or make it."""
        if self._features is not features:
            self._features, self._held = features, {}
        if key not in self._held:
            self._held[key] = make()
        found: Kept = self._held[key]
        return found

    def __repr__(self) -> str:
        return f"Releases({len(self._held)} of a photo)"


class Pools:
    """Codes that were released or are known under one key, made once for all photos; of the few recipes used last."""

    KEPT = 8

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Floats] = {}

    def of(self, recipe: Recipe, photos: str, make: Callable[[], Floats]) -> Floats:
        """Return the codes (P, B) of a recipe and a set of photos."""
        key = (recipe.identity, photos)
        if key not in self._held:
            codes = make()
            codes.setflags(write=False)  # so that it is handed on as it is, and known again
            self._held = dict([*self._held.items()][1 - self.KEPT :]) | {key: codes}
        return self._held[key]

    def __repr__(self) -> str:
        return f"Pools({len(self._held)} recipes)"


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Tools:
    """All that the attacker has. ``public`` are decoys files of other photos: their descriptors, not their use."""

    decoys: Decoys | None = None
    public: Decoys | None = None
    painters: Sequence[Painter] = ()
    decoders: Mapping[tuple[str, str], tuple[str, Decode]] = field(default_factory=dict)
    releases: Releases = field(init=False, default_factory=Releases)
    pools: Pools = field(init=False, default_factory=Pools)

    def painter(self, extractor_name: str, recipe: str, architecture: str = PATCH) -> Painter | None:
        """Return the inverter for what a recipe releases of some kind of descriptor; None if none is at hand."""
        found = (one for one in self.painters_for(extractor_name, recipe) if one.architecture == architecture)
        return next(found, None)

    def painters_for(self, extractor_name: str, recipe: str) -> list[Painter]:
        """Return all inverters for what a recipe releases; how its encoders are called does not matter."""
        wanted = (extractor_name, Recipe.of(recipe).identity)
        return [one for one in self.painters if (one.extractor_name, Recipe.of(one.recipe).identity) == wanted]

    def painters_of_readings(self, extractor_name: str, recipe: str) -> list[Painter]:
        """Return the inverters for what is read back of a sealed recipe, under whatever key; none for others."""
        given = Recipe.of(recipe)
        return self.painters_for(extractor_name, str(keyless(given))) if given.is_sealed else []

    def decoder(self, extractor_name: str, recipe: str) -> tuple[str, Decode] | None:
        """Return the digest and the decoder for what a recipe releases; one of unknown descriptors fits all."""
        identity = Recipe.of(recipe).identity
        return self.decoders.get((extractor_name, identity)) or self.decoders.get(("unknown", identity))

    def knowledge_about(self, extractor_name: str, recipe: str) -> set[str]:
        """Return the kinds of knowledge these tools give about what a recipe releases of single photos."""
        lifting = Recipe.of(recipe).lifting
        known = {"clear", "releases"} | ({"public"} if self.public_digest else set())
        known |= {"encoder"} if Recipe.of(recipe).encoders_are_public else set()  # who releases it must say which
        if Recipe.of(recipe).is_sealed and self.public_digest:
            known |= {"encoder", "pool", "pairs", "told"}  # the encoder is what comes before the seal
        if self.decoys is not None and lifting is not None and lifting.decoy_count:
            known.add("decoys")
        return known | ({"decoder"} if self.decoder(extractor_name, recipe) else set())

    @property
    def public_digest(self) -> str | None:
        """Which public descriptors the attacker has; without others they are the decoys, as in the paper."""
        chosen = self.public or self.decoys
        return None if chosen is None else chosen.checksum

    @property
    def public_descriptors(self) -> Floats | None:
        """The public descriptors (V, n) themselves."""
        chosen = self.public or self.decoys
        return None if chosen is None else chosen.descriptors

    @property
    def held_bytes(self) -> int:
        """How much memory the descriptors take."""
        return sum(one.descriptors.nbytes for one in (self.decoys, self.public) if one is not None)

    def check_public(self, extractor: Extractor) -> None:
        """Raise InputError if the public descriptors are of another kind than the attacked ones."""
        if self.public is not None and not self.public.extractor.matches(extractor):
            raise InputError(
                f"the public descriptors are {self.public.extractor.name}, the features are {extractor.name}: build "
                f"them from other photos with sfumato decoys build"
            )

    def __repr__(self) -> str:
        return f"Tools({len(self.painters)} inverters, {len(self.decoders)} decoders)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """Where tools are kept, as paths: what a worker can be sent. ``models`` is a folder of trained networks."""

    decoys: Path | None = None
    public: Path | None = None
    models: Path | None = None

    def open(self) -> Tools:
        """Read the tools; a bundled inverter stands in where there is no other for its purpose.

        Raises FileError or InputError for what is missing, damaged or something else.
        """
        painters, decoders = ([], {}) if self.models is None else load_models(self.models)
        own = {one.purpose for one in painters}
        return Tools(
            decoys=self.open_decoys(),
            public=None if self.public is None else load_decoys(self.public),
            painters=[*(one for one in bundled_painters() if one.purpose not in own), *painters],
            decoders=decoders,
        )

    def open_decoys(self) -> Decoys | None:
        """Read the decoys, if there are some."""
        return None if self.decoys is None else load_decoys(self.decoys)


def load_models(folder: str | os.PathLike[str]) -> tuple[list[Painter], dict[tuple[str, str], tuple[str, Decode]]]:
    """Read all trained networks of a folder: inverters, and decoders by extractor and recipe with their digests.

    Two files for one purpose are refused: which of them was measured would depend on their names. Encoders that lie
    there are passed over.

    Raises FileError naming a file that is none of ours.
    """
    place = Path(folder)
    if not place.is_dir():
        raise FileError(
            f"{place}: no such folder; sfumato train inverter and sfumato train decoder make what goes there"
        )
    painters: list[Painter] = []
    decoders: dict[tuple[str, str], tuple[str, Decode]] = {}
    for path in sorted(place.glob("*.safetensors")):
        if is_encoder_file(load_tensors(path)[1]):
            continue
        kind = load_checkpoint(path)[1].get("kind")
        if kind == "decoder":
            decoder = load_decoder(path)
            key = (str(decoder.facts.get("extractor")), Recipe.of(str(decoder.facts.get("recipe"))).identity)
            if key in decoders:
                raise InputError(f"{path} is a second decoder for {key[1]} of {key[0]}: keep one in the folder")
            decoders[key] = digest_data(path), decoder
        elif kind in PAINTERS:
            new = PAINTERS[kind](path)
            for other in painters:
                if new.purpose == other.purpose:
                    raise InputError(f"{path} is a second {new!r}: keep one in the folder")
            painters.append(new)
        elif not path.name.endswith(".checkpoint.safetensors"):
            raise FileError(f"{path} is no inverter and no decoder: it holds {kind or 'no network of ours'!s:.80}")
    return painters, decoders
