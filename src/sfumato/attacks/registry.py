# SPDX-License-Identifier: Apache-2.0
"""Registry of attacks: what each needs, which features it fits, its variants, its words, and whether it counts.

A new attack is one module and one line of ``ATTACKS``: the command, the audit and the page read everything else there.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

import numpy as np

from sfumato.attacks.encoded import AfterEncoder, recover_decoder, recover_regression
from sfumato.attacks.knowledge import MEANINGS, Knowledge, Recovery
from sfumato.attacks.liftings.bounded import recover_bounded
from sfumato.attacks.liftings.decoys import recover_clusters, recover_decoys
from sfumato.attacks.liftings.density import recover_density
from sfumato.attacks.liftings.neighbours import (
    NEIGHBOURS,
    Recover,
    oracle,
    oracle_sphere,
    recover_nearest,
    recover_nearest_base,
    recover_nearest_projected,
    recover_nearest_sphere,
)
from sfumato.attacks.liftings.releases import recover_intersection, recover_reveal, recover_tracks
from sfumato.attacks.liftings.replay import recover_replay
from sfumato.attacks.liftings.vertex import recover_vertex
from sfumato.attacks.seals.attacks import recover_alignment, recover_by_key, recover_pairs, recover_with_oracle
from sfumato.errors import InputError, suggest
from sfumato.types.concealed import ConcealedFeatures
from sfumato.types.extractor import GENERIC_EXTRACTORS
from sfumato.types.recipe import Recipe
from sfumato.types.record import AttackFacts, AttackRole, Value

HISTOGRAM_KINDS = ("sift", "rootsift")
"""Descriptors that are histograms, on which the vertex attack rests."""

PATCH = "patch"
"""The usual inverter, which paints one descriptor after another."""

TRAINED_INVERTER = "inverter trained on it"
"""The inverter trained on what attacks read out of sealed features."""

AT_POSITIONS = "positions only"
"""The inverter for clear descriptors that takes no sizes and angles of keypoints."""

DECODER, INVERTER, POINTS = "decoder", "inverter", "nothing"
"""Second stages, which undo the encoder: a decoder, an inverter of encoded points, or nothing."""

SECOND_STAGES = {
    DECODER: "a decoder trained on the encoder then recovers clear descriptors",
    INVERTER: "an inverter trained on the encoder then paints the picture",
    POINTS: "nothing was available to undo the encoder",
}


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack on concealed features.

    ``needs``: fields of Knowledge it cannot do without; ``assumes``: the same in words; ``recover``: what it does, None
    for one that only paints. ``about``: what the attacker does and has, for readers of a report.

    Where it fits. ``encoded``: its needs on features that went through an encoder, None if it does not work there;
    ``only_encoded``: it works nowhere else; ``lifted``: encoded features must (True) or must not (False) have been
    lifted too. ``sealed`` and ``only_sealed``: the same for features under a key. ``histograms``: it is for descriptors
    that are histograms (True) or are not (False). ``same_dim``: it compares encoded with clear descriptors, which must
    have one dimension. ``on_points``: it also works on features that were not concealed at all.

    How it is measured. ``helped_by``: fields it uses where they are known. ``decoys_variant``: it is also measured with
    the decoy database. ``also_given``: further fields that evaluations hand to it. ``two_stage``: it can come before an
    attack on the encoder. ``finds_decoys``: it is void where the public descriptors are the decoys. ``slow``: audits
    leave it out. ``for_neighbours`` makes ``recover`` for a number of neighbours.

    ``counts``: whether it takes part in the worst case; an oracle, which knows the answer, and a holder of the key do
    not.
    """

    name: str
    needs: tuple[str, ...]
    assumes: str
    recover: Recover | None
    _: KW_ONLY
    about: str = ""
    encoded: tuple[str, ...] | None = None
    only_encoded: bool = False
    lifted: bool | None = None
    sealed: tuple[str, ...] | None = None
    only_sealed: bool = False
    histograms: bool | None = None
    same_dim: bool = False
    on_points: bool = False
    helped_by: tuple[str, ...] = ()
    decoys_variant: bool = False
    also_given: tuple[str, ...] = ()
    two_stage: bool = False
    finds_decoys: bool = False
    slow: bool = False
    for_neighbours: Callable[[int], Recover] | None = None
    counts: bool = True
    role: AttackRole = AttackRole.ORDINARY

    def __post_init__(self) -> None:
        names = {*self.needs, *(self.encoded or ()), *(self.sealed or ()), *self.helped_by, *self.also_given}
        unknown = names - set(MEANINGS)
        if unknown:
            raise InputError(f"attack {self.name}: {', '.join(sorted(unknown))} is not a field of Knowledge")
        if "clear" in self.helped_by:
            raise InputError(f"attack {self.name}: clear descriptors belong in needs, not in helped_by")

    def needs_on(self, recipe: Recipe) -> tuple[str, ...] | None:
        """Return the fields of Knowledge it needs on features of a recipe; None if it does not work on them."""
        if recipe.is_sealed:
            return self.sealed
        if self.only_sealed:
            return None
        if recipe.has_encoder:
            return self.encoded if self.lifted in (None, recipe.lifting is not None) else None
        return None if self.only_encoded else self.needs

    def fits(self, recipe: Recipe, kind: str, *, same_dim: bool = True) -> bool:
        """Tell whether it makes sense on a recipe and kind of descriptor; an unknown kind may be anything.

        ``same_dim``: whether encoded descriptors have as many dimensions as clear ones.
        """
        if self.needs_on(recipe) is None:
            return False
        if recipe.is_sealed:
            return True
        if recipe.has_encoder:
            return same_dim or not self.same_dim
        if recipe.lifting is None:
            return self.on_points
        return self.histograms is None or kind in GENERIC_EXTRACTORS or self.histograms == (kind in HISTOGRAM_KINDS)

    def uses_on(self, recipe: Recipe, knowledge: Knowledge) -> tuple[str, ...]:
        """Return the fields of some knowledge that it is handed: what it needs, and what helps it."""
        fields = (*(self.needs_on(recipe) or ()), *self.helped_by)
        return tuple(name for name in dict.fromkeys(fields) if name in knowledge.known)


_PUBLIC = "descriptors of other photos"
_BASE = "descriptors of other photos, compared with encoded ones as if they were clear"
_HOLDER = "clear descriptors with their codes: the attacker has a device with the key, or took the photos himself"
_BEST = "and which of the nearest is best"
_HAS_PUBLIC = "has descriptors of other people's photos and"
_ASKS = ("public", "clear")
_NORMS = ("public", "decoys")
"""Either shows which norm descriptors have (``sphere.known_radius``)."""


def _on_lifting(
    name: str, needs: tuple[str, ...], assumes: str, recover: Recover, *, about: str, helped_by: tuple[str, ...] = ()
) -> Attack:
    """Return an attack on liftings that also works on those after an encoder, where it needs a way back as well."""
    encoded = tuple(dict.fromkeys((*needs, "encoder", *(() if "decoys" in needs else ("public",)))))
    return Attack(
        name,
        needs,
        assumes,
        AfterEncoder(recover),
        about=about,
        encoded=encoded,
        helped_by=(*helped_by, "point_decoder"),
        lifted=True,
        two_stage=True,
    )


def _on_seal(name: str, needs: tuple[str, ...], assumes: str, recover: Recover, *, about: str) -> Attack:
    """Return an attack on features under a key; the encoder it knows is the one before the seal."""
    helped_by = ("encoder",) if "public" in needs else ()
    return Attack(name, needs, assumes, recover, about=about, sealed=needs, only_sealed=True, helped_by=helped_by)


def _oracle(
    name: str, needs: tuple[str, ...], assumes: str, for_neighbours: Callable[[int], Recover], *, about: str
) -> Attack:
    """Return an attack that asks an oracle which of the nearest descriptors is the best: it does not count."""
    recover = for_neighbours(NEIGHBOURS)
    return Attack(name, needs, assumes, recover, about=about, for_neighbours=for_neighbours, counts=False)


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack(
            "vertex", (), "descriptors are histograms: never negative, clamped, of unit norm", recover_vertex,
            about="searches the corners of the subspace; knows only that SIFT is a histogram: never negative, clamped",
            helped_by=("decoys",), histograms=True, decoys_variant=True,
        ),
        Attack(
            "bounded", (), "the last layer is bounded, and descriptors have unit norm", recover_bounded,
            about="knows that the outputs of the network are bounded",
            helped_by=_NORMS, histograms=False, decoys_variant=True, two_stage=True,
        ),
        Attack(
            "nearest", ("public",), _PUBLIC, recover_nearest,
            about=f"{_HAS_PUBLIC} takes the nearest one",
            encoded=("public", "encoder"), on_points=True, two_stage=True, finds_decoys=True,
        ),
        Attack(
            "nearest-base", ("public",), _BASE, recover_nearest_base,
            about=f"{_HAS_PUBLIC} treats encoded ones as clear",
            encoded=("public",), only_encoded=True, same_dim=True,
        ),
        replace(
            _on_lifting("nearest-projected", ("public",), _PUBLIC, recover_nearest_projected,
                        about=f"{_HAS_PUBLIC} projects the nearest one onto the subspace"),
            finds_decoys=True,
        ),
        replace(
            _on_lifting("nearest-sphere", ("public",), f"{_PUBLIC}, and their norm", recover_nearest_sphere,
                        about=f"{_HAS_PUBLIC} projects the nearest one onto the subspace, at the known norm"),
            finds_decoys=True,
        ),
        replace(
            _oracle("oracle", _ASKS, f"{_PUBLIC}, {_BEST}", oracle,
                    about="an oracle picks the best of the nearest public descriptors"),
            encoded=(*_ASKS, "encoder"), on_points=True, two_stage=True, finds_decoys=True,
        ),
        replace(
            _oracle("oracle-projected", _ASKS, f"{_PUBLIC}, {_BEST}", partial(oracle, projected=True),
                    about="an oracle picks the best of the nearest, projected onto the subspace"),
            two_stage=True, finds_decoys=True,
        ),
        replace(
            _oracle("oracle-sphere", _ASKS, f"{_PUBLIC}, their norm, {_BEST}", oracle_sphere,
                    about="an oracle picks the best of the nearest, projected onto the subspace at the known norm"),
            two_stage=True,
        ),
        replace(
            _oracle("oracle-base", _ASKS, f"{_BASE}, and which is best", partial(oracle, database="base"),
                    about="compares encoded with clear descriptors, and an oracle picks the best"),
            encoded=_ASKS, only_encoded=True, same_dim=True,
        ),
        replace(
            _oracle("oracle-encoded", (*_ASKS, "encoder"),
                    "encoded descriptors of other photos, taken for clear ones, and which is best",
                    partial(oracle, database="encoded"),
                    about="answers with encoded descriptors, and an oracle picks the best"),
            encoded=(*_ASKS, "encoder"), only_encoded=True, same_dim=True,
        ),
        replace(
            _on_lifting("decoys", ("decoys",), "the decoy database (and, if given, public descriptors)", recover_decoys,
                        about="has the decoy database, removes its entries, and looks for what remains",
                        helped_by=("public",)),
            also_given=("public",),
        ),
        _on_lifting("clusters", ("public",), f"{_PUBLIC}, and how many decoys a subspace has", recover_clusters,
                    about=f"{_HAS_PUBLIC} clusters those near the subspace"),
        replace(
            _on_lifting("density", ("public",), f"{_PUBLIC} (and, if given, the decoy database)", recover_density,
                        about=f"{_HAS_PUBLIC} finds the likeliest point of the subspace", helped_by=("decoys",)),
            decoys_variant=True,
        ),
        _on_lifting("intersection", ("releases",), "another release of the same features", recover_intersection,
                    about="has a second, independent release of the same photo", helped_by=_NORMS),
        replace(
            _on_lifting("reveal", ("partners",), "which features of other images match", recover_reveal,
                        about="knows which features of other photos match", helped_by=_NORMS),
            two_stage=False,
        ),
        replace(
            _on_lifting("tracks", ("tracks",), "a map: all views of every point", recover_tracks,
                        about="has a map, and with it all views of every point", helped_by=_NORMS),
            two_stage=False,
        ),
        Attack(
            "decoder", ("decoder",), "a network trained on other photos under the same recipe", recover_decoder,
            about="a network trained to undo this very recipe, on other people's photos",
            encoded=("decoder",), on_points=True, role=AttackRole.DECODER,
        ),
        Attack(
            "regression", ("public", "encoder"),
            "descriptors of other photos and the encoder, undone by least squares", recover_regression,
            about=f"{_HAS_PUBLIC} undoes the encoder by least squares",
            encoded=("public", "encoder"), only_encoded=True, lifted=False,
        ),
        replace(
            _on_seal("alignment", ("public", "pool"),
                     "descriptors of other photos, and many codes of one key, which he does not know",
                     recover_alignment,
                     about=f"{_HAS_PUBLIC} aligns all sealed features with them at once"),
            role=AttackRole.ALIGNMENT,
        ),
        replace(
            _on_seal("told-alignment", ("public", "told"),
                     "descriptors of other photos, many codes of one key, and how they lie to descriptors: a bound of "
                     "alignment", recover_with_oracle,
                     about="is given the correct alignment by an oracle, which no real attacker has"),
            counts=False, role=AttackRole.BOUND,
        ),
        replace(
            _on_seal("known-pairs", ("pairs",), _HOLDER, recover_pairs,
                     about="had a holder of the key seal thousands of the attacker's own features"),
            counts=False, role=AttackRole.KNOWN_PAIRS,
        ),
        replace(
            _on_seal("key-recovery", ("public", "pairs"), _HOLDER, recover_by_key,
                     about="recovers the key itself from such features, and reads all others with it"),
            counts=False, slow=True,
        ),
        Attack(
            "replay", ("seeds", "decoys"), "the seed of the lifting, and the decoy database", recover_replay,
            about="has the seed of the lifting and the decoy database", helped_by=("public",),
        ),
    )
}  # fmt: skip
"""Every attack that recovers descriptors, in the order in which they are listed."""

PICTURE_ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack(
            "clear", (), "clear features", None, about="the inverter for clear features, given clear features",
            counts=False, role=AttackRole.SCALE,
        ),
        Attack(
            "floor", (), "keypoints with one mean descriptor", None,
            about="the inverter for clear features, given keypoints with one mean descriptor: the zero of the scale",
            counts=False, role=AttackRole.SCALE,
        ),
        Attack(
            "keypoints", (), "keypoints alone", None,
            about="an inverter trained to paint from positions, sizes and angles alone, without any descriptor",
            role=AttackRole.KEYPOINTS,
        ),
        Attack(
            "positions", (), "positions of keypoints alone", None,
            about="an inverter trained to paint from positions alone, without sizes, angles or any descriptor",
            role=AttackRole.KEYPOINTS,
        ),
        Attack(
            "outlines", (), "positions of keypoints alone", None,
            about="an inverter trained to paint the outlines of a photo from positions alone",
            role=AttackRole.KEYPOINTS,
        ),
        Attack(
            "direct", (), "an inverter trained on what this very recipe releases", None,
            about="an inverter trained on what this very recipe releases, on other people's photos",
            role=AttackRole.INVERTER,
        ),
    )
}  # fmt: skip
"""What evaluations paint without recovering a descriptor: the two ends of the scale, and four attacks."""


@dataclass(frozen=True, slots=True)
class AttackId:
    """Identity of a measured attack: its name, whether it has the decoys, what follows it, which inverter paints."""

    name: str
    with_decoys: bool = False
    then: str = ""
    inverter: str = PATCH

    @classmethod
    def of(cls, params: Mapping[str, Value]) -> "AttackId":
        """Return the identity that the parameters of a record name; of an attack that is not here, its name."""
        name = str(params.get("attack"))
        inverter = params.get("inverter")
        for one in (PATCH, AT_POSITIONS, TRAINED_INVERTER):
            for identity in attack_ids().values():
                if name == replace(identity, inverter=one).title:  # the points of a frontier name titles
                    return replace(identity, inverter=one if inverter is None else str(inverter))
        return cls(name, inverter=PATCH if inverter is None else str(inverter))

    @property
    def attack(self) -> Attack | None:
        """The attack in the registry, if it is there."""
        return ATTACKS.get(self.name) or PICTURE_ATTACKS.get(self.name)

    @property
    def role(self) -> AttackRole:
        """What it is to a verdict; with a second stage nothing special."""
        return AttackRole.ORDINARY if self.attack is None or self.then else self.attack.role

    @property
    def label(self) -> str:
        """The name in records and options, without the inverter."""
        return f"{self.name}{'+decoys' if self.with_decoys else ''}{f' then {self.then}' if self.then else ''}"

    @property
    def title(self) -> str:
        """The name for people, with the inverter unless it is the usual one."""
        return self.label if self.inverter == PATCH else f"{self.label}, {self.inverter}"

    @property
    def counts(self) -> bool:
        """Whether it takes part in the worst case."""
        return self.attack is None or self.attack.counts

    @property
    def facts(self) -> AttackFacts:
        """What a record says about it."""
        trained = self.role in (AttackRole.INVERTER, AttackRole.DECODER) or self.inverter == TRAINED_INVERTER
        return AttackFacts(title=self.title, about=self._about, counts=self.counts, role=self.role, trained=trained)

    @property
    def _about(self) -> str:
        words = "an attack that this version does not know" if self.attack is None else self.attack.about
        words = f"{words}; also has the decoy database" if self.with_decoys else words
        words = f"{words}, in the encoder's space; {SECOND_STAGES.get(self.then, self.then)}" if self.then else words
        painted = {
            PATCH: "",
            AT_POSITIONS: "; painted at positions, for the archive has no sizes and angles",
            TRAINED_INVERTER: "; painted by an inverter trained on just this",
        }
        return words + painted.get(self.inverter, f" (inverter: {self.inverter})")

    @property
    def first_needs(self) -> tuple[str, ...]:
        """What the attacker knows where no encoder was used, or undoing what came after it."""
        if self.attack is None:
            return ()
        return (*self.attack.also_given, *self.attack.needs, *(("decoys",) if self.with_decoys else ()))

    def knows_on(self, recipe: Recipe) -> tuple[str, ...] | None:
        """Return what the attacker knows of a recipe's features, beside them; None if the attack is not for them."""
        if self.attack is None or self.attack.recover is None:
            return ()
        if self.then:
            return tuple(dict.fromkeys((*self.first_needs, "encoder", *([DECODER] if self.then == DECODER else []))))
        needs = self.attack.needs_on(recipe)
        if needs is None or not recipe.has_encoder:
            return None if needs is None else self.first_needs
        return tuple(dict.fromkeys((*needs, *(("decoys",) if "decoys" in self.first_needs else ()))))


def single_attacks() -> dict[str, AttackId]:
    """Return by label all attacks that recover descriptors in one stage, those with the decoys last."""
    plain = [AttackId(name) for name in ATTACKS]
    plain += [AttackId(name, with_decoys=True) for name, attack in ATTACKS.items() if attack.decoys_variant]
    return {one.label: one for one in plain}


def two_stage_attacks() -> dict[str, AttackId]:
    """Return by label all attacks on a lifting that an attack on the encoder follows, or nothing."""
    first = [one for one in single_attacks().values() if ATTACKS[one.name].two_stage]
    return {both.label: both for one in first for then in SECOND_STAGES for both in [replace(one, then=then)]}


def attack_ids() -> dict[str, AttackId]:
    """Return by label everything that evaluations measure."""
    return {**{name: AttackId(name) for name in PICTURE_ATTACKS}, **single_attacks(), **two_stage_attacks()}


def applicable_attacks(features: ConcealedFeatures, knowledge: Knowledge) -> tuple[str, ...]:
    """Return the names of the attacks that fit some features and that this knowledge allows."""
    recipe, known = features.recipe, set(knowledge.known)
    same_dim = knowledge.clear_dim(features) == features.code.ambient_dim
    return tuple(
        name
        for name, attack in ATTACKS.items()
        if attack.fits(recipe, features.extractor.name, same_dim=same_dim)
        and set(attack.needs_on(recipe) or ()) <= known
    )


def choose_attacks(names: Iterable[str], neighbours: int = NEIGHBOURS) -> dict[str, Attack]:
    """Return attacks by name; oracles are asked about this many neighbours.

    Raises InputError for a name that no attack has, with the nearest one, and if there is no name.
    """
    attacks: dict[str, Attack] = {}
    for name in names:
        if name not in ATTACKS:
            raise InputError(f"no attack is named {name!r:.80}{suggest(name, ATTACKS)}; there are {', '.join(ATTACKS)}")
        attack = ATTACKS[name]
        ask = attack.for_neighbours
        attacks[name] = attack if ask is None else replace(attack, recover=ask(neighbours))
    if not attacks:
        raise InputError(f"name at least one attack; there are {', '.join(ATTACKS)}")
    return attacks


def run_attack(attack: Attack, features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Run an attack on the concealed features of one image; it is handed what it needs and is helped by, no more.

    Raises InputError if something it needs is not known, or is about other descriptors, and for an attack that does
    not work on features of this recipe.
    """
    needs = attack.needs_on(features.recipe)
    if needs is None or attack.recover is None:
        raise InputError(_why_unfit(attack, features.recipe))
    missing = [name for name in needs if name not in knowledge.known]
    if missing:
        words = " and ".join(f"{MEANINGS[name]} ({name})" for name in missing)
        raise InputError(f"the attack {attack.name} needs {words}")
    knowledge.check(features)
    if len(features) == 0:
        return Recovery(np.empty((0, knowledge.clear_dim(features)), np.float32), np.empty(0, np.float32))
    recovery = attack.recover(features, knowledge.only(attack.uses_on(features.recipe, knowledge)))
    shape = (len(features), knowledge.clear_dim(features))
    any_dim = features.recipe.has_encoder and knowledge.clear is None  # then the dimension is not known
    if recovery.descriptors.shape != shape and not (any_dim and len(recovery) == len(features)):
        raise InputError(f"the attack {attack.name} returned {recovery.descriptors.shape}, expected {shape}")
    return recovery


def _why_unfit(attack: Attack, recipe: Recipe) -> str:
    if attack.recover is None:
        return f"the attack {attack.name} paints pictures and recovers no descriptors"
    if recipe.is_sealed or attack.only_sealed:
        return f"the attack {attack.name} is not for {'' if recipe.is_sealed else 'un'}sealed features"
    others = "did not go" if attack.only_encoded and not recipe.has_encoder else "went"
    lifting = "" if attack.lifted is None else " and were not lifted" if attack.lifted else " and were then lifted"
    return f"the attack {attack.name} is not for features that {others} through an encoder{lifting}"
