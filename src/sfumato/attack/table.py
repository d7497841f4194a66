# SPDX-License-Identifier: Apache-2.0
"""All attacks by name, and which of them some knowledge allows. Knows what each needs, not how it works."""

from sfumato.attack.bounded import recover_bounded
from sfumato.attack.clusters import recover_clusters
from sfumato.attack.decoder import recover_decoder
from sfumato.attack.decoyremoval import recover_decoys
from sfumato.attack.density import recover_density
from sfumato.attack.intersection import recover_intersection
from sfumato.attack.knowledge import Attack, Knowledge
from sfumato.attack.neighbours import oracle, recover_nearest, recover_nearest_projected
from sfumato.attack.replay import recover_replay
from sfumato.attack.reveal import recover_reveal
from sfumato.attack.tracks import recover_tracks
from sfumato.attack.vertex import recover_vertex
from sfumato.types.concealed import ConcealedFeatures

NEVER_NEGATIVE = ("sift", "rootsift")
"""Descriptors whose histograms the vertex attack rests on; an unknown kind may be one."""

_PUBLIC = "descriptors of other photos"

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("vertex", (), "descriptors are histograms: never negative, clamped, of unit norm", recover_vertex),
        Attack("bounded", (), "the last layer is bounded, and descriptors have unit norm", recover_bounded),
        Attack("nearest", ("public",), _PUBLIC, recover_nearest),
        Attack("nearest-projected", ("public",), _PUBLIC, recover_nearest_projected),
        Attack("oracle", ("public", "clear"), f"{_PUBLIC}, and which of the nearest is best", oracle()),
        Attack(
            "oracle-projected",
            ("public", "clear"),
            f"{_PUBLIC}, and which of the nearest is best",
            oracle(projected=True),
        ),
        Attack("decoys", ("decoys",), "the decoy database (and, if given, public descriptors)", recover_decoys),
        Attack("clusters", ("public",), f"{_PUBLIC}, and how many decoys a subspace has", recover_clusters),
        Attack("density", ("public",), f"{_PUBLIC} (and, if given, the decoy database)", recover_density),
        Attack("intersection", ("releases",), "another release of the same features", recover_intersection),
        Attack("reveal", ("partners",), "which features of other images match", recover_reveal),
        Attack("tracks", ("tracks",), "a map: all views of every point", recover_tracks),
        Attack("decoder", ("decoder",), "a network trained on other photos under the same recipe", recover_decoder),
        Attack("replay", ("seeds", "decoys"), "the seed of the lifting, and the decoy database", recover_replay),
    )
}
"""Every attack; what it needs are fields of Knowledge."""


def applicable(features: ConcealedFeatures, knowledge: Knowledge) -> tuple[str, ...]:
    """Return the names of the attacks that this knowledge allows on such features, in the order of the table.

    The vertex attack is for histograms, the bounded one for the others; an extractor of unknown kind gets both.
    """
    known = set(knowledge.known)
    kind = features.extractor.name
    unfit = {"bounded"} if kind in NEVER_NEGATIVE else set() if kind in ("unknown", "hloc") else {"vertex"}
    if features.subspaces.dim == 0:
        unfit = set(ATTACKS) - {"decoder", "nearest", "oracle"}
    return tuple(name for name, attack in ATTACKS.items() if set(attack.needs) <= known and name not in unfit)
