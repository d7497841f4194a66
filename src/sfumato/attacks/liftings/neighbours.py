# SPDX-License-Identifier: Apache-2.0
"""Nearest neighbour and oracle attacks: the public descriptors nearest to a subspace stand for the clear one.

Section 4.1.4 of the embedding paper, and section 3 of its supplement. For encoded features section D of NinjaDesc: an
attacker who has the encoder searches among encoded public descriptors and returns the clear ones behind them. The
search is exact and never holds a matrix of all subspaces and all public descriptors. Clear descriptors are seen by the
oracle alone.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sfumato.attacks.knowledge import IdentityCache, Knowledge, Recovery
from sfumato.attacks.liftings.sphere import known_radius, nearest_on_sphere
from sfumato.errors import InputError
from sfumato.matching.mutual import MatchParams, check_pair, nearest, nearest_prepared, side_of
from sfumato.subspace.fast import prepare
from sfumato.subspace.reference import project
from sfumato.subspace.subspace_set import SubspaceSet
from sfumato.types.arrays import frozen_array
from sfumato.types.concealed import ConcealedFeatures, Subspaces

Neighbours = tuple[NDArray[np.float32], NDArray[np.int64]]
Recover = Callable[[ConcealedFeatures, Knowledge], Recovery]

AHEAD = 100
"""Neighbours to search for at once where several attacks need some; by default no attack needs more."""

NEIGHBOURS = 100
"""Neighbours offered to the oracle by default."""

NEAR = 0.3
"""A distance, of unit-norm descriptors, at which a guess is doubtful."""

GATHERED = 2**24
"""How many numbers of public descriptors are copied at once."""

_sets, _answers, _encodings = IdentityCache(2), IdentityCache(4), IdentityCache(1)
"""Sets prepared for searching (public descriptors and decoys), the last neighbours (of one photo five attacks ask for
them), and public descriptors encoded. The search is exact, so that no result depends on what is cached."""


def cached_nearest(subspaces: Subspaces, entries: NDArray[np.float32], count: int, *, ahead: int = 0) -> Neighbours:
    """Return distances and rows (N, K) of the K entries (V, n) nearest to each subspace, nearest first.

    K is ``count``, or V if that is less. ``ahead``: this many are searched at once, for attacks that follow. Arrays
    that may be changed are searched without the cache.

    Raises InputError if there are no entries, or they live in another space.
    """
    if len(entries) == 0:
        raise InputError("public: there are no public descriptors to choose from")
    check_pair(side_of(subspaces, "subspaces"), side_of(entries[:1], "public"))
    size, most = min(count, len(entries)), min(max(count, ahead), len(entries))
    about = (entries, subspaces.origin, subspaces.basis)

    def search() -> Neighbours:
        queries = prepare(subspaces.origin, subspaces.basis)
        return nearest_prepared(queries, _prepared(entries), most, MatchParams())

    if any(array.flags.writeable for array in about):
        distances, rows = search()
    else:
        distances, rows = _answers.get(about, search)
        if rows.shape[1] < size:
            distances, rows = search()
            _answers.replace(about, (distances, rows))
    return distances[:, :size], rows[:, :size]


def _clear_caches() -> None:
    """Forget all sets and answers."""
    for cache in (_sets, _answers, _encodings):
        cache.clear()


def _prepared(entries: NDArray[np.float32]) -> SubspaceSet:
    def make() -> SubspaceSet:
        return prepare(entries, np.zeros((len(entries), 0, entries.shape[1]), np.float32))

    return make() if entries.flags.writeable else _sets.get((entries,), make)


def certainty(distances: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return how sure a guess is whose distance (N,) to what it should agree with is known: 1 at 0, 0.6 at ``NEAR``."""
    sure: NDArray[np.float32] = np.exp(-0.5 * (distances / NEAR) ** 2).astype(np.float32)
    return sure


def nearest_public(
    subspaces: Subspaces, public: NDArray[np.float32], count: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return distances and rows (N, K) of the K public descriptors (V, n) nearest to each subspace, nearest first.

    K is ``count``, or V if that is less.
    """
    return cached_nearest(subspaces, public, count, ahead=AHEAD)


def recover_nearest(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the public descriptor nearest to each subspace; of encoded features the one whose encoding is nearest."""
    return _take_nearest(features.subspaces, *_database(features, knowledge, "own"), projected=False)


def recover_nearest_base(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take encoded descriptors for clear ones, and the public descriptor nearest to each (Figure 10 of NinjaDesc)."""
    return _take_nearest(features.subspaces, *_database(features, knowledge, "base"), projected=False)


def recover_nearest_projected(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the point of each subspace that is nearest to a public descriptor."""
    return _take_nearest(features.subspaces, *_database(features, knowledge, "own"), projected=True)


def recover_nearest_sphere(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
    """Take the point of known norm of each subspace that is nearest to its nearest public descriptor."""
    recovery = recover_nearest(features, knowledge)
    radius = known_radius(features, knowledge)
    guesses = nearest_on_sphere(features.subspaces, recovery.descriptors, radius)
    return Recovery(guesses.astype(np.float32), recovery.confidence)


def oracle_sphere(neighbours: int = NEIGHBOURS) -> Recover:
    """Return the attack that moves each of the nearest public descriptors to the subspace and the known norm first.

    The oracle then says which of these points is nearest to the clear descriptor: more than the papers ask it, and an
    upper bound for whoever chooses among them.
    """
    _refuse_none(neighbours)

    def recover(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
        (searched, answers), clear = _database(features, knowledge, "own"), _require(knowledge.clear, "clear")
        radius, subspaces = known_radius(features, knowledge), features.subspaces
        _, rows = nearest_public(subspaces, searched, neighbours)
        guesses, errors = np.empty(clear.shape, np.float32), np.full(len(clear), np.inf)
        for column in range(rows.shape[1]):
            moved = nearest_on_sphere(subspaces, answers[rows[:, column]], radius)
            distances = np.linalg.norm(moved - clear, axis=1)
            better = distances < errors
            guesses[better], errors[better] = moved[better], distances[better]
        return Recovery(guesses, certainty(errors))

    return recover


def oracle(neighbours: int = NEIGHBOURS, *, projected: bool = False, database: str = "own") -> Recover:
    """Return the attack that asks an oracle which of the nearest public descriptors is nearest to the clear one.

    On encoded features there are three (Figure 11 of NinjaDesc): the ``own`` database searches among encoded public
    descriptors and answers with the clear ones behind them, ``base`` takes queries for clear descriptors, ``encoded``
    answers with encoded ones.
    """
    _refuse_none(neighbours)

    def recover(features: ConcealedFeatures, knowledge: Knowledge) -> Recovery:
        (searched, answers), clear = _database(features, knowledge, database), _require(knowledge.clear, "clear")
        if answers.shape[1] != clear.shape[1]:
            raise InputError(
                f"an oracle that answers with encoded descriptors needs an encoder of as many numbers: its answers "
                f"have {answers.shape[1]}, clear descriptors {clear.shape[1]}; leave out oracle-encoded"
            )
        if neighbours >= len(searched):  # of all of them the oracle names the nearest: no need to order them first
            distances, best = nearest(clear, answers, k=1)
            return _finish(features.subspaces, answers[best[:, 0]], distances[:, 0], projected)
        _, rows = nearest_public(features.subspaces, searched, neighbours)
        guesses = np.empty(clear.shape, np.float32)
        for block in row_blocks(len(rows), rows.shape[1] * answers.shape[1]):
            chosen = _ask(answers[rows[block]], clear[block])
            guesses[block] = answers[np.take_along_axis(rows[block], chosen[:, None], axis=1)[:, 0]]
        return _finish(features.subspaces, guesses, np.linalg.norm(guesses - clear, axis=1), projected)

    return recover


def encode_public(knowledge: Knowledge) -> NDArray[np.float32]:
    """Return the public descriptors (V, n') as the known encoder makes them."""
    public, encoder = _require(knowledge.public, "public"), knowledge.encoder
    if encoder is None:
        raise InputError("this attack needs the encoder that was used (encoder)")
    return _encodings.get(
        (public,), lambda: frozen_array(encoder(public), "encoded public descriptors", (len(public), None)), key=encoder
    )


def _database(
    features: ConcealedFeatures, knowledge: Knowledge, database: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what is searched, (V, n) in the space of the features, and what is answered, row by row."""
    public = _require(knowledge.public, "public")
    if features.recipe.has_encoder and database == "base" and public.shape[1] != features.code.ambient_dim:
        raise InputError(
            f"an attack that takes encoded descriptors for clear ones needs an encoder of as many numbers: these have "
            f"{features.code.ambient_dim}, clear ones {public.shape[1]}; leave out nearest-base and oracle-base"
        )
    if not features.recipe.has_encoder or database == "base":
        _refuse_other_dimension(public, features.code.ambient_dim, "public descriptors")
        return public, public
    encoded = encode_public(knowledge)
    _refuse_other_dimension(encoded, features.code.ambient_dim, "encoded public descriptors")
    return encoded, encoded if database == "encoded" else public


def _refuse_none(neighbours: int) -> None:
    if neighbours < 1:
        raise InputError(f"neighbours: expected a number of 1 or more, got {neighbours}")


def _refuse_other_dimension(rows: NDArray[np.float32], dim: int, name: str) -> None:
    if rows.shape[1] != dim:
        raise InputError(f"{name} have {rows.shape[1]} dimensions, what they are compared with has {dim}")


def row_blocks(count: int, width: int) -> Iterator[slice]:
    """Cut rows in blocks that hold about ``GATHERED`` numbers, ``width`` of them a row."""
    step = max(1, GATHERED // max(1, width))
    yield from (slice(start, min(start + step, count)) for start in range(0, count, step))


def _ask(candidates: NDArray[np.float32], clear: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return which of the candidates (N, K, n) is nearest to the clear descriptor (N, n)."""
    best: NDArray[np.int64] = np.linalg.norm(candidates - clear[:, None], axis=2).argmin(axis=1)
    return best


def _take_nearest(
    subspaces: Subspaces, searched: NDArray[np.float32], answers: NDArray[np.float32], *, projected: bool
) -> Recovery:
    distances, rows = nearest_public(subspaces, searched, 1)
    return _finish(subspaces, answers[rows[:, 0]], distances[:, 0], projected)


def _finish(
    subspaces: Subspaces, guesses: NDArray[np.float32], distances: NDArray[np.floating], projected: bool
) -> Recovery:
    if projected:
        guesses = project(guesses, subspaces.origin, subspaces.basis).astype(np.float32)
    return Recovery(guesses, certainty(distances))


def _require(array: NDArray[np.float32] | None, name: str) -> NDArray[np.float32]:
    if array is None:
        raise InputError(f"this attack needs {name} descriptors")
    return array
