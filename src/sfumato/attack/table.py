# SPDX-License-Identifier: Apache-2.0
"""All attacks by name, and which of them some knowledge allows. Knows what each needs, not how it works."""

from sfumato.attack.bounded import recover_bounded
from sfumato.attack.clusters import recover_clusters
from sfumato.attack.decoder import recover_decoder
from sfumato.attack.decoyremoval import recover_decoys
from sfumato.attack.density import recover_density
from sfumato.attack.intersection import recover_intersection
from sfumato.attack.knowledge import Attack, Knowledge
from sfumato.attack.neighbours import oracle, recover_nearest, recover_nearest_base, recover_nearest_projected
from sfumato.attack.replay import recover_replay
from sfumato.attack.reveal import recover_reveal
from sfumato.attack.tracks import recover_tracks
from sfumato.attack.vertex import recover_vertex
from sfumato.types.concealed import ConcealedFeatures

NEVER_NEGATIVE = ("sift", "rootsift")
"""Descriptors whose histograms the vertex attack rests on; an unknown kind may be one."""

_PUBLIC = "descriptors of other photos"
_BASE = "descriptors of other photos, compared with encoded ones as if they were clear"
_TRAINED = "a network trained on other photos under the same recipe"
_ASKS = ("public", "clear")

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("vertex", (), "descriptors are histograms: never negative, clamped, of unit norm", recover_vertex),
        Attack("bounded", (), "the last layer is bounded, and descriptors have unit norm", recover_bounded),
        Attack("nearest", ("public",), _PUBLIC, recover_nearest, ("public", "encoder")),
        Attack("nearest-base", ("public",), _BASE, recover_nearest_base, ("public",), only_encoded=True),
        Attack("nearest-projected", ("public",), _PUBLIC, recover_nearest_projected),
        Attack("oracle", _ASKS, f"{_PUBLIC}, and which of the nearest is best", oracle(), (*_ASKS, "encoder")),
        Attack("oracle-projected", _ASKS, f"{_PUBLIC}, and which of the nearest is best", oracle(projected=True)),
        Attack("oracle-base", _ASKS, f"{_BASE}, and which is best", oracle(database="base"), _ASKS, only_encoded=True),
        Attack(
            "oracle-encoded",
            (*_ASKS, "encoder"),
            "encoded descriptors of other photos, taken for clear ones, and which is best",
            oracle(database="encoded"),
            (*_ASKS, "encoder"),
            only_encoded=True,
        ),
        Attack("decoys", ("decoys",), "the decoy database (and, if given, public descriptors)", recover_decoys),
        Attack("clusters", ("public",), f"{_PUBLIC}, and how many decoys a subspace has", recover_clusters),
        Attack("density", ("public",), f"{_PUBLIC} (and, if given, the decoy database)", recover_density),
        Attack("intersection", ("releases",), "another release of the same features", recover_intersection),
        Attack("reveal", ("partners",), "which features of other images match", recover_reveal),
        Attack("tracks", ("tracks",), "a map: all views of every point", recover_tracks),
        Attack("decoder", ("decoder",), _TRAINED, recover_decoder, ("decoder",)),
        Attack("replay", ("seeds", "decoys"), "the seed of the lifting, and the decoy database", recover_replay),
    )
}
"""Every attack; what it needs are fields of Knowledge."""


def applicable(features: ConcealedFeatures, knowledge: Knowledge) -> tuple[str, ...]:
    """Return the names of the attacks that this knowledge allows on such features, in the order of the table.

    The vertex attack is for histograms, the bounded one for the others; an extractor of unknown kind gets both. Of
    features that went through an encoder only attacks that end in clear descriptors are left; a lifting after it can be
    attacked as such by whoever gives the features another recipe, and finds points of the encoder's space.
    """
    known = set(knowledge.known)
    if features.recipe.has_encoder:
        same = knowledge.clear_dim(features) == features.subspaces.ambient_dim
        unfit = set() if same else {"nearest-base", "oracle-base", "oracle-encoded"}
        return _allowed(features, known, unfit)
    kind = features.extractor.name
    unfit = {"bounded"} if kind in NEVER_NEGATIVE else set() if kind in ("unknown", "hloc") else {"vertex"}
    if features.subspaces.dim == 0:
        unfit = set(ATTACKS) - {"decoder", "nearest", "oracle"}
    return _allowed(features, known, unfit)


def _allowed(features: ConcealedFeatures, known: set[str], unfit: set[str]) -> tuple[str, ...]:
    needs = {name: attack.needs_on(features.recipe) for name, attack in ATTACKS.items() if name not in unfit}
    return tuple(name for name, wanted in needs.items() if wanted is not None and set(wanted) <= known)
