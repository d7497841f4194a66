# SPDX-License-Identifier: Apache-2.0
"""Recipes of concealment, as a short text and as a value with every parameter.

A recipe is a chain of links joined by ``+``. Encoders come first (they change the space), at most one
lifting comes last (it turns points into subspaces). ``sub-hybrid-2`` is a chain of one link;
``compress-48+sub-hybrid-4`` of two.

    link      = kind "-" dimension [ "-generated" ] [ "-forced" ]     liftings; generated: decoys in no database
              | "subset-" size ":eps=" number           this many entries of a dictionary, with a guarantee
              | "compress-" dimension [ ":" file ]      principal components
              | "ninja-" variant | "ninja:" file        networks; once they or components are read, "@" and a checksum
                                                        follow, and a file is named without its folder
              | "sealed-" bits [ ":" bandwidth ]        bits under a device key, the last link; without a bandwidth that
                                                        of the kind of descriptor, once the key is named that of SIFT
              | "raw"                                   clear descriptors, for evaluations only

``default`` stands for the recipe that we defend, ``DEFAULT_RECIPE``.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from sfumato.errors import InputError, RecipeError, suggest
from sfumato.types.extractor import is_label

CHECKSUM_DIGITS = 12
"""Digits of an encoder's checksum in a recipe."""

GENERATED = "-generated"

_NAME = r"[^\s+](?:[^+]*[^\s+])?"
_CHECKSUM = rf"@[0-9a-f]{{{CHECKSUM_DIGITS}}}"


@dataclass(frozen=True, slots=True)
class RecipeKind:
    """A kind of link: its role, the argument after its name, and the source of a lifting's directions.

    ``variants`` is a pattern of what may follow besides a dimension, and ``variant_words`` says it in words.
    """

    role: Literal["clear", "encoder", "lifting"]
    argument: Literal["none", "dimension", "variant"]
    decoys: Literal["none", "whole", "part", "labels"] = "none"
    random: bool = False  # half of the directions (the smaller half), or all without decoys, are random
    variants: str = ""
    variant_words: str = "nothing"


_FRESH: dict[str, Any] = {"variants": f"({GENERATED})?", "variant_words": f"nothing or {GENERATED}"}
_EPSILON = "':eps=' and a number of up to three digits before and four after the point, for example 'subset-4:eps=10'"

KINDS: dict[str, RecipeKind] = {
    "raw": RecipeKind("clear", "none"),
    "random": RecipeKind("lifting", "dimension", random=True),
    "adversarial": RecipeKind("lifting", "dimension", "whole", **_FRESH),
    "hybrid": RecipeKind("lifting", "dimension", "whole", random=True, **_FRESH),
    "sub-adversarial": RecipeKind("lifting", "dimension", "part", **_FRESH),
    "sub-hybrid": RecipeKind("lifting", "dimension", "part", random=True, **_FRESH),
    "hybrid-labels": RecipeKind("lifting", "dimension", "labels", random=True, **_FRESH),
    "subset": RecipeKind("lifting", "dimension", "whole", variants=r":eps=\d{1,3}(\.\d{1,4})?", variant_words=_EPSILON),
    "compress": RecipeKind("encoder", "dimension", variants=rf"(:{_NAME})?", variant_words="':' and a file"),
    "sealed": RecipeKind("encoder", "dimension", variants=r"(:\d(\.\d{1,3})?)?", variant_words="':' and a bandwidth"),
    "ninja": RecipeKind(
        "encoder", "variant", variants=f"[-:]{_NAME}", variant_words="'-' or ':' and a name without '+'"
    ),
}

DEFAULT, DEFAULT_RECIPE = "default", "sealed-512"
"""The recipe that is used by default, by name and in full; docs/explanation/concealment.md says why."""

SIFT_BANDWIDTH = 0.235
"""Bandwidth of a seal that names its key and no bandwidth."""

LARGEST_DIM = 65_536

OLD_START = '{"chaff":0,'
"""How texts of earlier versions begin, which knew chaff; the rest is the one text form."""

USUAL_DIMS = {"compress": "48", "sealed": "512", "subset": "4:eps=10"}
"""Suggestions for a missing dimension; 2 for other kinds."""


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a recipe: a kind with its dimension (liftings, compress) or variant (ninja)."""

    kind: str
    dim: int | None = None
    forced: bool = False
    variant: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise RecipeError(f"unknown kind {self.kind!r:.80} in a recipe{suggest(str(self.kind), KINDS)}")
        argument = KINDS[self.kind].argument
        if argument == "dimension":
            dim: Any = self.dim
            if hasattr(dim, "__index__") and not isinstance(dim, bool):  # numpy's integers too
                object.__setattr__(self, "dim", int(dim))
            if isinstance(self.dim, bool) or not isinstance(self.dim, int) or not 1 <= self.dim <= LARGEST_DIM:
                raise RecipeError(
                    f"{self.kind} needs a dimension from 1 to {LARGEST_DIM}, for example '{self.kind}-2', "
                    f"got {self.dim!r:.80}"
                )
        elif self.dim is not None:
            raise RecipeError(f"{self.kind} takes no dimension")
        if not isinstance(self.forced, bool) or (self.forced and self.role != "lifting"):
            raise RecipeError(f"forced is a truth value and belongs to liftings only, not to {self.kind}")
        _check_variant(self.kind, self.variant)
        if self.kind == "sealed" and self.named:  # 0.30 is 0.3
            checksum = self.variant.removeprefix(self.named)
            object.__setattr__(self, "variant", f":{float(self.named[1:]):g}{checksum}")
        if self.kind == "subset":
            object.__setattr__(self, "variant", f":eps={self.epsilon:.4f}".rstrip("0").rstrip("."))
            if (self.dim or 0) < 2 or not self.epsilon or self.forced:
                raise RecipeError("subset needs two entries or more and eps above 0, and is never forced")

    @property
    def role(self) -> str:
        """clear, encoder or lifting."""
        return KINDS[self.kind].role

    @property
    def checksum(self) -> str:
        """The first digits of the checksum of an encoder that was read; empty for one that is only named."""
        match = re.search(f"{_CHECKSUM}$", self.variant) if self.role == "encoder" else None
        return match[0][1:] if match else ""

    @property
    def named(self) -> str:
        """The variant without a checksum."""
        return self.variant.removesuffix(f"@{self.checksum}") if self.checksum else self.variant

    @property
    def identity(self) -> str:
        """The short form, with the checksum of an encoder in the place of its name: it determines the result."""
        return f"{self.kind}@{self.checksum}" if self.checksum else str(self)

    @property
    def bandwidth(self) -> float | None:
        """Bandwidth of a seal; None where it is still that of a kind of descriptor, and for other links.

        >>> [Recipe.of(f"sealed-512{rest}").links[0].bandwidth for rest in ("", ":0.4", "@0123456789ab")]
        [None, 0.4, 0.235]
        """
        if self.kind != "sealed" or not self.variant:
            return None
        return float(self.named[1:]) if self.named else SIFT_BANDWIDTH

    @property
    def is_generated(self) -> bool:
        """Whether the decoys of a lifting are fresh neighbours of entries of the database, not entries."""
        return self.variant == GENERATED

    @property
    def epsilon(self) -> float | None:
        """Privacy that one descriptor spends under ``subset``; None for other kinds."""
        return float(self.variant.removeprefix(":eps=")) if self.kind == "subset" else None

    @property
    def subspace_dim(self) -> int:
        """The dimension of a lifting's subspaces: ``dim``, but for ``subset`` that of the hull of its entries."""
        return 0 if self.role != "lifting" else (self.dim or 0) - (self.kind == "subset")

    @property
    def decoy_count(self) -> int:
        """Number of decoys of a lifting: one per direction; in hybrid kinds for half of them, rounded up.

        All entries of a ``subset`` count.
        """
        kind, dim = KINDS[self.kind], self.dim or 0
        if kind.role != "lifting" or kind.decoys == "none":
            return 0
        return (dim + 1) // 2 if kind.random else dim

    def __str__(self) -> str:
        dim = "" if self.dim is None else f"-{self.dim}"
        return f"{self.kind}{dim}{self.variant}{'-forced' if self.forced else ''}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Recipe:
    """A chain of links, and what else a reader of the result must know.

    ``evaluation_seed`` is set when the draws can be repeated (they then protect nobody). ``keyed``: the draws were
    derived from a device key. ``decoys``: the checksum of the database that was used. These two describe a result and
    do not take part in comparisons.

    >>> Recipe(kind="sub-hybrid", dim=2) == Recipe("sub-hybrid-2") == Recipe.of("sub-hybrid-2")
    True
    >>> str(Recipe.of("compress-48+sub-hybrid-4"))
    'compress-48+sub-hybrid-4'
    """

    links: tuple[Link, ...]
    evaluation_seed: int | None = None
    keyed: bool = field(default=False, compare=False)
    decoys: str | None = field(default=None, compare=False)

    def __init__(
        self,
        kind: str | None = None,
        dim: int | None = None,
        *,
        forced: bool = False,
        links: tuple[Link, ...] | None = None,
        evaluation_seed: int | None = None,
        keyed: bool = False,
        decoys: str | None = None,
    ) -> None:
        if (kind is None) == (links is None) or (links is not None and (dim is not None or forced)):
            raise RecipeError("a recipe is made of a kind (and dim), or of links")
        if isinstance(kind, str) and kind not in KINDS and dim is None and not forced:
            links, kind = Recipe.of(kind).links, None  # the short form
        chain = (Link(kind, dim, forced),) if kind is not None else tuple(links or ())
        _check_chain(chain)
        if evaluation_seed is not None and (
            isinstance(evaluation_seed, bool)
            or not isinstance(evaluation_seed, int)
            or not 0 <= evaluation_seed < 2**64
        ):
            raise RecipeError(f"evaluation_seed must be an integer from 0 to 2^64 - 1, got {evaluation_seed!r:.80}")
        if not isinstance(keyed, bool) or not (decoys is None or is_label(decoys)):
            raise RecipeError("keyed must be a truth value and decoys a checksum or None")
        for name, value in (
            ("links", chain), ("evaluation_seed", evaluation_seed), ("keyed", keyed), ("decoys", decoys),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, recipe: "Recipe | str") -> "Recipe":
        """Return a recipe from a recipe or its short form; an error suggests the nearest one."""
        if isinstance(recipe, Recipe):
            return recipe
        if not isinstance(recipe, str):
            raise RecipeError(f"expected a recipe or its short form, got {type(recipe).__name__}")
        chain = DEFAULT_RECIPE if recipe.strip() == DEFAULT else recipe
        chain = re.sub(rf"^\s*{DEFAULT}\s*\+", f"{DEFAULT_RECIPE}+", chain)  # what follows is refused by its name
        return cls(links=tuple(_parse_link(part.strip(), chain) for part in chain.split("+")))

    @property
    def lifting(self) -> Link | None:
        """The link that makes subspaces, if there is one."""
        return self.links[-1] if self.links[-1].role == "lifting" else None

    @property
    def kind(self) -> str:
        """The kind of the last link."""
        return self.links[-1].kind

    @property
    def dim(self) -> int:
        """The dimension of the subspaces this recipe makes; 0 without a lifting."""
        return self.lifting.subspace_dim if self.lifting else 0

    @property
    def has_encoder(self) -> bool:
        """Whether some link changes the space, so that even points are not clear descriptors."""
        return any(link.role == "encoder" for link in self.links)

    @property
    def is_sealed(self) -> bool:
        """Whether concealing needs a key; comparing does not."""
        return self.links[-1].kind == "sealed"

    @property
    def keeps_frames(self) -> bool:
        """Whether archives hold the sizes and angles of keypoints, unless asked otherwise; of seals positions only."""
        return not self.is_sealed

    @property
    def encoders_are_public(self) -> bool:
        """Whether it has encoders that anyone could have; only a holder of the key has a seal."""
        return self.has_encoder and not self.is_sealed

    @property
    def encoders(self) -> tuple[Link, ...]:
        """The links that change the space."""
        return tuple(link for link in self.links if link.role == "encoder")

    @property
    def space(self) -> str:
        """Where the result lives: the identities of the encoders, ``clear`` without any.

        Only what has the same space, of the same descriptor, can be compared.

        >>> Recipe.of("ninja:mine@0123456789ab+random-2").space
        'ninja@0123456789ab'
        """
        return "+".join(link.identity for link in self.encoders) or "clear"

    @property
    def identity(self) -> str:
        """The short form without the names of encoders that were read: recipes of one identity give the same result."""
        return "+".join(link.identity for link in self.links)

    @property
    def is_clear(self) -> bool:
        """Whether the result would still be the clear descriptor."""
        return not self.has_encoder and self.lifting is None

    def to_json(self) -> str:
        """Return the one text form with every parameter: sorted keys, no spaces."""
        links = [
            {"kind": link.kind, "dim": link.dim, "forced": link.forced, "variant": link.variant} for link in self.links
        ]
        data = {
            "links": links,
            "evaluation_seed": self.evaluation_seed,
            "keyed": self.keyed,
            "decoys": self.decoys,
        }
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Recipe":
        """Read what ``to_json`` wrote, today or when it had ``"chaff":0``; anything else is a RecipeError."""
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as cause:
            raise RecipeError("recipe is not valid JSON") from cause
        keys = {"links", "evaluation_seed", "keyed", "decoys"}
        if isinstance(data, dict) and data.pop("chaff", 0) != 0:
            raise RecipeError(
                "made with chaff, which this version does not read: conceal the photos again, under the same key"
            )
        if not isinstance(data, dict) or set(data) != keys or not isinstance(data["links"], list):
            raise RecipeError(f"recipe must have exactly the keys {', '.join(sorted(keys))}")
        links = []
        for entry in data.pop("links"):
            if not isinstance(entry, dict) or set(entry) != {"kind", "dim", "forced", "variant"}:
                raise RecipeError("each link of a recipe must have exactly the keys dim, forced, kind, variant")
            links.append(Link(**entry))
        return cls(links=tuple(links), **data)

    def __str__(self) -> str:
        return "+".join(str(link) for link in self.links)

    def __repr__(self) -> str:
        notes = f", evaluation_seed={self.evaluation_seed}" if self.evaluation_seed is not None else ""
        return f"Recipe({str(self)!r}{notes}{', keyed' if self.keyed else ''})"


def _parse_link(text: str, recipe: str) -> Link:
    """Read one link of a short form."""
    examples = "for example 'random-2' or 'sub-hybrid-4'"
    if not text:
        raise RecipeError(f"empty link in recipe {recipe!r:.80}, {examples}")
    if text in KINDS and KINDS[text].argument == "dimension":
        raise RecipeError(f"recipe {recipe!r:.80} needs a dimension: did you mean '{text}-{_usual(text)}'?")
    if text in KINDS:
        return Link(text)
    variant = re.fullmatch(r"ninja([-:].+)", text, re.DOTALL)
    if variant:
        return Link("ninja", variant=variant[1])
    parts = re.fullmatch(r"([a-z-]*?)-(\d{1,9})([-:@].*?)??(-forced)?", text, re.ASCII | re.DOTALL)
    name = parts[1] if parts else text
    if parts and name in KINDS and KINDS[name].argument == "dimension":
        if KINDS[name].role == "encoder":  # a file may be called like that
            return Link(name, int(parts[2]), variant=f"{parts[3] or ''}{parts[4] or ''}")
        return Link(name, int(parts[2]), forced=parts[4] is not None, variant=parts[3] or "")
    if text.lower().startswith("chaf"):
        raise RecipeError(
            f"recipe {recipe!r:.80}: chaff is no longer made, use sealed-512, whose positions stay on the device"
        )
    dim = re.fullmatch(r".*?-(\d{1,5})(\D.*)?", text, re.ASCII | re.DOTALL)
    forms = {k: f"{k}-{dim[1] if dim else _usual(k)}" for k in KINDS if KINDS[k].argument == "dimension"}
    near = suggest(text.lower(), ["default", *(forms.get(k, k) for k in KINDS)])
    raise RecipeError(f"unknown recipe {recipe!r:.80}{near}; kinds are default, {', '.join(sorted(KINDS))}, {examples}")


def _usual(kind: str) -> str:
    """Return a dimension to suggest for a kind."""
    return USUAL_DIMS.get(kind, "2")


def _check_variant(kind: str, variant: str) -> None:
    """Raise RecipeError unless this may follow a kind and its dimension."""
    allowed = KINDS[kind].variants + (f"({_CHECKSUM})?" if KINDS[kind].role == "encoder" else "")
    if not isinstance(variant, str) or not (re.fullmatch(allowed, variant) and (variant.isprintable() or not variant)):
        raise RecipeError(f"{kind} is followed by {KINDS[kind].variant_words}, got {variant!r:.80}")


def _check_chain(chain: tuple[Link, ...]) -> None:
    if not chain:
        raise RecipeError("a recipe needs at least one link")
    if not all(isinstance(link, Link) for link in chain):
        raise InputError("links must be Link values")
    roles = [link.role for link in chain]
    if "clear" in roles and len(chain) > 1:
        raise RecipeError("raw stands alone: it means that nothing was concealed")
    if "lifting" in roles[:-1]:
        raise RecipeError("a lifting is the last link: a link after it would get subspaces, not descriptors")
    if any(link.kind == "sealed" for link in chain[:-1]):
        raise RecipeError("sealed is the last link: bits cannot be compressed, encoded or lifted")
