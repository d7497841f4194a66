# SPDX-License-Identifier: Apache-2.0
"""The descriptors nearest to subspaces, where many attacks ask about the same subspaces and the same large set.

A set of public descriptors is prepared for searching once, not at every question, and the last answers are kept: of one
photo five attacks want its nearest neighbours. The search is exact, so that nothing depends on what was kept. Knows
arrays, no attack.
"""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InputError
from sfumato.matching.match import MatchParams, nearest_prepared
from sfumato.matching.sides import check_pair, side_of
from sfumato.subspace.fast import prepare
from sfumato.subspace.prepared import Prepared
from sfumato.types.concealed import Subspaces

Answer = tuple[NDArray[np.float32], NDArray[np.int64]]

SETS, ANSWERS = 2, 4
"""How many sets, and answers, are kept: public descriptors and the decoys; a photo's answers about both."""

AHEAD = 100
"""Neighbours to search for at once where several attacks want some; no attack wants more unless told."""

_lock = threading.Lock()
_sets: "OrderedDict[Any, tuple[Any, Prepared]]" = OrderedDict()
_answers: "OrderedDict[Any, tuple[Any, Subspaces, Answer]]" = OrderedDict()
"""What is kept, and what it is about: as long as that is held, its place in memory is not another's."""


def nearest_held(subspaces: Subspaces, entries: NDArray[np.float32], count: int, *, ahead: int = 0) -> Answer:
    """Return distances and rows (N, K) of the K entries (V, n) nearest to each subspace, nearest first.

    K is ``count``, or V if that is less. ``ahead`` are so many that others will want of the same; they cost little.
    Arrays that may be changed are searched, not kept.

    Raises InputError if there are no entries, or they live in another space.
    """
    if len(entries) == 0:
        raise InputError("public: there are no public descriptors to choose from")
    check_pair(side_of(subspaces, "subspaces"), side_of(entries[:1], "public"))
    wanted = min(count, len(entries))
    key = (_place(entries), _place(subspaces.origin), _place(subspaces.basis))
    is_kept = not any(array.flags.writeable for array in (entries, subspaces.origin, subspaces.basis))
    with _lock:  # one search uses all cores as it is
        found = _answers[key][2] if is_kept and key in _answers else None
        if found is None or found[1].shape[1] < wanted:
            prepared = _prepared(entries) if is_kept else prepare(*_as_points(entries))
            most = min(max(count, ahead), len(entries))
            found = nearest_prepared(prepare(subspaces.origin, subspaces.basis), prepared, most, MatchParams())
            if is_kept:
                _keep(_answers, key, (entries, subspaces, found), ANSWERS)
    return found[0][:, :wanted], found[1][:, :wanted]


def forget_held() -> None:
    """Let go of all sets and answers."""
    with _lock:
        _sets.clear()
        _answers.clear()


def _prepared(entries: NDArray[np.float32]) -> Prepared:
    key = _place(entries)
    if key not in _sets:
        _keep(_sets, key, (entries, prepare(*_as_points(entries))), SETS)
    _sets.move_to_end(key)
    return _sets[key][1]


def _as_points(entries: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return entries, np.zeros((len(entries), 0, entries.shape[1]), np.float32)


def _place(array: NDArray[np.float32]) -> tuple[int, tuple[int, ...]]:
    """Return what tells an array apart for as long as it is held."""
    return array.__array_interface__["data"][0], array.shape


def _keep(kept: "OrderedDict[Any, Any]", key: Any, value: Any, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
