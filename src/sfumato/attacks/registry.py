# SPDX-License-Identifier: Apache-2.0
"""All attacks by name, and which of them some knowledge allows. Knows what each needs, not how it works."""

from sfumato.attacks.encoded import AfterEncoder, recover_decoder, recover_regression
from sfumato.attacks.knowledge import Attack, Knowledge
from sfumato.attacks.liftings.bounded import recover_bounded
from sfumato.attacks.liftings.decoys import recover_clusters, recover_decoys
from sfumato.attacks.liftings.density import recover_density
from sfumato.attacks.liftings.neighbours import (
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
from sfumato.attacks.seals.attacks import recover_alignment, recover_by_key, recover_pairs, recover_told
from sfumato.features.hloc import UNTOLD
from sfumato.types.concealed import ConcealedFeatures

NEVER_NEGATIVE = ("sift", "rootsift")
"""Descriptors whose histograms the vertex attack rests on; an unknown kind may be one."""

_PUBLIC = "descriptors of other photos"
_BASE = "descriptors of other photos, compared with encoded ones as if they were clear"
_TRAINED = "a network trained on other photos under the same recipe"
_AGAIN = "another release of the same features"
_HISTOGRAMS = "descriptors are histograms: never negative, clamped, of unit norm"
_BOUNDED = "the last layer is bounded, and descriptors have unit norm"
_STRIPPED = "the decoy database (and, if given, public descriptors)"
_LIKELY = f"{_PUBLIC} (and, if given, the decoy database)"
_REPLAYED = "the seed of the lifting, and the decoy database"
_UNDONE = "descriptors of other photos and the encoder, undone by least squares"
_POOL = "descriptors of other photos, and many codes of one key, which he does not know"
_TOLD = "descriptors of other photos, many codes of one key, and how they lie to descriptors: a bound of alignment"
_HOLDER = "clear descriptors with their codes: the attacker has a device with the key, or took the photos himself"
_ASKS = ("public", "clear")
_NORMS = ("public", "decoys")
"""Either shows which norm descriptors have (``sphere.known_radius``)."""


def _lifted(
    name: str, needs: tuple[str, ...], assumes: str, recover: Recover, helped_by: tuple[str, ...] = ()
) -> Attack:
    """Return an attack on liftings that also works on those after an encoder, where it needs a way back as well."""
    encoded = tuple(dict.fromkeys((*needs, "encoder", *(() if "decoys" in needs else ("public",)))))
    return Attack(
        name, needs, assumes, AfterEncoder(recover), encoded, helped_by=(*helped_by, "point_decoder"), lifted=True
    )


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("vertex", (), _HISTOGRAMS, recover_vertex, helped_by=("decoys",)),
        Attack("bounded", (), _BOUNDED, recover_bounded, helped_by=_NORMS),
        Attack("nearest", ("public",), _PUBLIC, recover_nearest, ("public", "encoder")),
        Attack("nearest-base", ("public",), _BASE, recover_nearest_base, ("public",), only_encoded=True),
        _lifted("nearest-projected", ("public",), _PUBLIC, recover_nearest_projected),
        _lifted("nearest-sphere", ("public",), f"{_PUBLIC}, and their norm", recover_nearest_sphere),
        Attack("oracle", _ASKS, f"{_PUBLIC}, and which of the nearest is best", oracle(), (*_ASKS, "encoder")),
        Attack("oracle-projected", _ASKS, f"{_PUBLIC}, and which of the nearest is best", oracle(projected=True)),
        Attack("oracle-sphere", _ASKS, f"{_PUBLIC}, their norm, and which of the nearest is best", oracle_sphere()),
        Attack("oracle-base", _ASKS, f"{_BASE}, and which is best", oracle(database="base"), _ASKS, only_encoded=True),
        Attack(
            "oracle-encoded",
            (*_ASKS, "encoder"),
            "encoded descriptors of other photos, taken for clear ones, and which is best",
            oracle(database="encoded"),
            (*_ASKS, "encoder"),
            only_encoded=True,
        ),
        _lifted("decoys", ("decoys",), _STRIPPED, recover_decoys, helped_by=("public",)),
        _lifted("clusters", ("public",), f"{_PUBLIC}, and how many decoys a subspace has", recover_clusters),
        _lifted("density", ("public",), _LIKELY, recover_density, helped_by=("decoys",)),
        _lifted("intersection", ("releases",), _AGAIN, recover_intersection, helped_by=_NORMS),
        _lifted("reveal", ("partners",), "which features of other images match", recover_reveal, helped_by=_NORMS),
        _lifted("tracks", ("tracks",), "a map: all views of every point", recover_tracks, helped_by=_NORMS),
        Attack("decoder", ("decoder",), _TRAINED, recover_decoder, ("decoder",)),
        Attack(
            "regression", ("public", "encoder"), _UNDONE, recover_regression, ("public", "encoder"), True, lifted=False
        ),
        Attack(
            "alignment",
            ("public", "pool"),
            _POOL,
            recover_alignment,
            sealed=("public", "pool"),
            only_sealed=True,
            helped_by=("encoder",),
        ),
        Attack(
            "told-alignment",
            ("public", "told"),
            _TOLD,
            recover_told,
            sealed=("public", "told"),
            only_sealed=True,
            helped_by=("encoder",),
        ),
        Attack("known-pairs", ("pairs",), _HOLDER, recover_pairs, sealed=("pairs",), only_sealed=True),
        Attack(
            "key-recovery",
            ("public", "pairs"),
            _HOLDER,
            recover_by_key,
            sealed=("public", "pairs"),
            only_sealed=True,
            helped_by=("encoder",),
        ),
        Attack("replay", ("seeds", "decoys"), _REPLAYED, recover_replay, helped_by=("public",)),
    )
}
"""Every attack; what it needs and is helped by are fields of Knowledge."""


def applicable(features: ConcealedFeatures, knowledge: Knowledge) -> tuple[str, ...]:
    """Return the names of the attacks that this knowledge allows on such features, in the order of the table.

    The vertex attack is for histograms, the bounded one for the others; an extractor of unknown kind gets both. A
    lifting after an encoder is attacked in the encoder's space, and what is found there carried back (lifted.py).
    """
    known = set(knowledge.known)
    if features.recipe.is_sealed:
        return _allowed(features, known, set())
    if features.recipe.has_encoder:
        same = knowledge.clear_dim(features) == features.subspaces.ambient_dim
        unfit = set() if same else {"nearest-base", "oracle-base", "oracle-encoded"}
        return _allowed(features, known, unfit)
    kind = features.extractor.name
    unfit = {"bounded"} if kind in NEVER_NEGATIVE else set() if kind in UNTOLD else {"vertex"}
    if features.subspaces.dim == 0:
        unfit = set(ATTACKS) - {"decoder", "nearest", "oracle"}
    return _allowed(features, known, unfit)


def _allowed(features: ConcealedFeatures, known: set[str], unfit: set[str]) -> tuple[str, ...]:
    needs = {name: attack.needs_on(features.recipe) for name, attack in ATTACKS.items() if name not in unfit}
    return tuple(name for name, wanted in needs.items() if wanted is not None and set(wanted) <= known)
