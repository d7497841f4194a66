# SPDX-License-Identifier: Apache-2.0
"""Claims of a server about matches, and the rows that they let go: a function of arrays, no files.

Rows must be of real photos of the place, which their tags show; their bits must be nearer than chance brings unrelated
ones; where the device holds both photos, their matches must agree with one epipolar geometry; where it does not, enough
of them must close a circle through a third photo. What own photos see must stand still in three of them: somebody who
walks stays home. Photos taken from one place, as of a burst, show no depth: what they alone agree on stays home too.

A server may claim what it likes. Bits alone prove little: photos of two different places have thousands of rows that
look alike, and whoever knows all bits finds circles of them. So what leaves has the geometry of two own photos behind
it. Of rows that only photos of other devices speak for a few leave, enough for a photo to be in the map. The rule
``circles`` alone believes all of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.rows import are_real
from sfumato.errors import InputError, suggest
from sfumato.geometry.verify import agreeing_in_three, agreeing_matches, has_parallax
from sfumato.matching.mutual import chance_bits
from sfumato.store.evidence import ClaimedRows, Pair, Rows

Positions = Mapping[str, NDArray[np.float32]]
"""Positions (N, 2) of all rows of the photos of this device."""

RULES = {
    "tracks": "rows that agree over three photos, and of photos with few of these what a proven pair agrees on",
    "circles": "rows whose matches close a circle of three photos; of other devices' photos a server can make them up",
    "pairs": "rows of every pair of own photos that was checked: two photos are enough",
}
NO_ROWS = np.zeros(0, np.int64)
STRANGERS = 1_000_000
"""Rows among which a match must not come by chance: a server may choose which it claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseParams:
    """Conditions of a release. ``rule``: one of ``RULES``. ``most_share``: of the rows of a photo; if a server asks for
    more, nothing of that photo leaves. ``max_error_px``: how far two matched rows of own photos may be from one
    epipolar geometry. ``least_circles``: circles that prove a pair of which another device holds a photo.
    ``least_rows``: a photo with fewer in tracks of three gives what a proven pair agrees on too, or it would be missing
    in the map. ``most_unproven``: rows of a photo that may leave, in all, though only photos of other devices speak for
    them, whose geometry cannot be checked."""

    rule: str = "tracks"
    most_share: float = 0.9
    max_error_px: float = 8.0
    least_circles: int = 15
    least_rows: int = 500
    most_unproven: int = 250

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"rule: expected one of {', '.join(RULES)}{suggest(str(self.rule), RULES)}")
        if not 0 < self.most_share <= 1:
            raise InputError(f"most_share (--limit): expected a share above 0 and at most 1, got {self.most_share!r}")
        if not 0 < self.max_error_px < 1000 or self.least_circles < 1 or min(self.least_rows, self.most_unproven) < 0:
            raise InputError(
                "max_error_px and least_circles must be above 0, and least_rows and most_unproven 0 or more"
            )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Choice:
    """Rows to be released by photo, ascending; pairs that were claimed and that were proven, and what was not real."""

    rows: Mapping[str, Rows]
    claimed: int = 0
    proven: int = 0
    forged: Mapping[str, str] = field(default_factory=dict)


def choose_rows(
    claims: Mapping[Pair, Rows],
    photos: Mapping[str, ClaimedRows],
    positions: Positions,
    key: bytes,
    params: ReleaseParams | None = None,
    before: Mapping[str, Rows] | None = None,
) -> Choice:
    """Return the rows of own photos that claims and rule let go.

    ``claims``: matched rows (M, 2) by pairs of names. ``photos``: what is known of each photo; claims of others, and of
    rows that are not known, count for nothing. ``positions``: of own photos. ``key``: the sealing key of the place.
    ``before``: rows that left in earlier releases.
    """
    params, forged = params or ReleaseParams(), dict[str, str]()
    for name, known in photos.items():
        if not are_real(key, known.tags.photo, known.numbers, known.code, known.tags.rows):
            forged[name] = "some of its rows have tags that the key did not make"
    real = {name: known for name, known in photos.items() if name not in forged}
    own, first = real.keys() & positions.keys(), dict[str, str]()
    for name in sorted(real, key=lambda name: (name not in own, name)):
        first.setdefault(real[name].tags.photo, name)
    same = {name: first[real[name].tags.photo] for name in own}
    real = {name: real[name] for name in sorted(first.values())}  # one photo under two names proves nothing
    checked: dict[Pair, Rows] = {}
    for pair, claim in _in_one_direction(claims).items():
        if real.keys() >= set(pair) and len(near := _near_rows(claim, real[pair[0]], real[pair[1]])):
            checked[pair] = near
    trusted = _trusted_rows(checked, real, positions, params)
    flat = {
        pair
        for pair, rows in trusted.items()
        if positions.keys() >= set(pair) and _is_flat(pair, rows, positions, len(checked[pair]))
    }
    deep = {pair: rows for pair, rows in trusted.items() if pair not in flat}
    proven = _pair_rows({pair: rows for pair, rows in deep.items() if positions.keys() >= set(pair)})
    foreign = _pair_rows({pair: rows for pair, rows in deep.items() if not positions.keys() >= set(pair)})
    chains, moving, untested = _chain_rows(trusted, real, positions, deep, params.max_error_px)
    if params.rule == "circles":
        chosen = proven = _circle_rows(deep, real)  # believed
    elif params.rule == "pairs":
        chosen = proven
    else:
        parts = {name: [chains.get(name, NO_ROWS), (before or {}).get(name, NO_ROWS)] for name in own}
        weak = {name for name, lists in parts.items() if len(np.union1d(*lists)) < params.least_rows}
        circles = _count_circles(deep, real) if weak else {}
        few = {p: rows for p, rows in deep.items() if weak & set(p) and circles.get(p, 0) >= params.least_circles}
        more = _pair_rows(few)
        parts = {name: [chains.get(name, NO_ROWS), more.get(name, NO_ROWS)] for name in chains | more}
        parts |= {name: [*lists, untested.get(name, NO_ROWS)] for name, lists in parts.items() if name in weak}
        chosen = {name: np.unique(np.concatenate(lists)) for name, lists in parts.items()}
        moving = {name: rows for name, rows in moving.items() if name not in weak}  # few rows tell little
    released = dict[str, Rows]()
    for name in sorted(own):
        agreed, left = proven.get(same[name], NO_ROWS), (before or {}).get(name, NO_ROWS)
        backed = np.union1d(agreed, foreign.get(same[name], NO_ROWS))
        still = np.intersect1d(chosen.get(same[name], NO_ROWS), backed)
        still = np.setdiff1d(still, moving.get(same[name], NO_ROWS))
        unproven = np.setdiff1d(still, np.union1d(agreed, left))
        room = max(0, params.most_unproven - len(np.setdiff1d(left, agreed)))
        released[name] = np.setdiff1d(still, unproven[_by_partners(same[name], unproven, deep)[room:]])
    return Choice(released, len(claims), len(trusted), forged)


def _in_one_direction(claims: Mapping[Pair, Rows]) -> dict[Pair, Rows]:
    """Return claims with the names of each pair in order, so that no pair counts twice."""
    rows_of: dict[Pair, Rows] = {}
    for (first, second), rows in claims.items():
        pair, ordered = ((first, second), rows) if first <= second else ((second, first), rows[:, ::-1])
        rows_of[pair] = np.concatenate([rows_of[pair], ordered]) if pair in rows_of else ordered
    return rows_of


def _near_rows(claim: Rows, side0: ClaimedRows, side1: ClaimedRows) -> Rows:
    """Return the claimed rows (M, 2) of a pair that are known, used once, and nearer than chance brings them."""
    if side0 is side1 or side0.code.ambient_dim != side1.code.ambient_dim:
        return claim[:0]
    (at0, has0), (at1, has1) = side0.find(claim[:, 0]), side1.find(claim[:, 1])
    rows, at0, at1 = (part[has0 & has1] for part in (claim, at0, at1))
    differing = np.bitwise_count(side0.code.packed[at0] ^ side1.code.packed[at1]).sum(axis=1, dtype=np.int64)
    near = differing <= chance_bits(side0.code.ambient_dim, STRANGERS)
    rows, order = rows[near], np.argsort(differing[near], kind="stable")
    rows = rows[order]
    for side in (0, 1):
        rows = rows[np.sort(np.unique(rows[:, side], return_index=True)[1])]
    nearest: Rows = rows
    return nearest


def _trusted_rows(
    claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows], positions: Positions, params: ReleaseParams
) -> dict[Pair, Rows]:
    """Return the rows of pairs that are proven: by geometry of own photos, else by circles through third ones."""
    trusted, others = dict[Pair, Rows](), dict[Pair, Rows]()
    for pair, rows in claims.items():
        if positions.keys() >= set(pair):
            places = [positions[name][rows[:, side]] for side, name in enumerate(pair)]
            agreeing = rows[agreeing_matches(places[0], places[1], params.max_error_px)]
            if len(agreeing):
                trusted[pair] = agreeing
        else:
            others[pair] = rows
    if others:
        circles = _count_circles({**others, **trusted}, photos)
        trusted |= {pair: rows for pair, rows in others.items() if circles.get(pair, 0) >= params.least_circles}
    return trusted


def _is_flat(pair: Pair, rows: Rows, positions: Positions, claimed: int) -> bool:
    """Tell whether two own photos were taken from one place, so far as their agreeing matches show it."""
    places = [positions[name] for name in pair]
    sizes = [(int(part[:, 0].max()) + 1, int(part[:, 1].max()) + 1) for part in places]  # of the photos, nearly
    return not has_parallax(places[0][rows[:, 0]], places[1][rows[:, 1]], sizes[0], sizes[1], claimed - len(rows))


def _partners(
    claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows]
) -> dict[str, dict[str, NDArray[np.int64]]]:
    """Return for each photo and partner the row of the partner that each row (N,) is matched with, or -1."""
    found: dict[str, dict[str, NDArray[np.int64]]] = {}
    for (first, second), rows in claims.items():
        for one, other, sides in ((first, second, rows), (second, first, rows[:, ::-1])):
            row_of = np.full(int(photos[one].numbers[-1]) + 1, -1, np.int64)  # of real rows: a count may be a lie
            row_of[sides[:, 0]] = sides[:, 1]
            found.setdefault(one, {})[other] = row_of
    return found


def _circles(claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows]) -> Iterable[tuple[str, str, str, Rows]]:
    """Yield every three photos with the rows of the first whose matches close a circle through the others."""
    partners = _partners(claims, photos)
    names = sorted(partners)
    for first in names:
        near = sorted(other for other in partners[first] if other > first)
        for at, second in enumerate(near):
            for third in near[at + 1 :]:
                across = partners[second].get(third)
                if across is None:
                    continue
                to_second, to_third = partners[first][second], partners[first][third]
                rows = np.flatnonzero((to_second >= 0) & (to_third >= 0))
                rows = rows[across[to_second[rows]] == to_third[rows]]
                if len(rows):
                    yield first, second, third, rows


def _count_circles(claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows]) -> dict[Pair, int]:
    """Return for each pair how many of its matches close a circle through some third photo."""
    rows_of: dict[Pair, list[Rows]] = {}
    partners = _partners(claims, photos)
    for first, second, third, rows in _circles(claims, photos):
        own = {first: rows, second: partners[first][second][rows], third: partners[first][third][rows]}
        for one, other in ((first, second), (first, third), (second, third)):
            pair = (one, other) if (one, other) in claims else (other, one)
            rows_of.setdefault(pair, []).append(own[pair[0]])
    return {pair: len(np.unique(np.concatenate(parts))) for pair, parts in rows_of.items()}


def _circle_rows(claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows]) -> dict[str, Rows]:
    """Return the rows of each photo that are in a circle of three photos."""
    rows_of: dict[str, list[Rows]] = {}
    partners = _partners(claims, photos)
    for first, second, third, rows in _circles(claims, photos):
        rows_of.setdefault(first, []).append(rows)
        rows_of.setdefault(second, []).append(partners[first][second][rows])
        rows_of.setdefault(third, []).append(partners[first][third][rows])
    return {name: np.unique(np.concatenate(parts)) for name, parts in rows_of.items()}


def _pair_rows(claims: Mapping[Pair, Rows]) -> dict[str, Rows]:
    """Return the rows of each photo that are matched in some pair."""
    rows_of: dict[str, list[Rows]] = {}
    for pair, rows in claims.items():
        for side, name in enumerate(pair):
            rows_of.setdefault(name, []).append(rows[:, side])
    return {name: np.unique(np.concatenate(parts)) for name, parts in rows_of.items()}


def _by_partners(name: str, rows: Rows, claims: Mapping[Pair, Rows]) -> NDArray[np.int64]:
    """Return the order of rows of a photo by the number of photos they are matched in, those of most first."""
    every = [part[:, pair.index(name)] for pair, part in claims.items() if name in pair]
    counts = np.bincount(np.concatenate([NO_ROWS, *every]), minlength=int(rows.max(initial=0)) + 1)[rows]
    return np.argsort(-counts, kind="stable")


LEAST_COMMON = 15
"""Rows that three photos must share to be tested."""
THIRDS = 4
"""Photos with which each pair is tested: those that share most rows with both."""
PASSED_SHARE = 0.3
"""Of the tests of a row, those that it must pass: a wrong match of its own or of another photo spoils some."""


def _chain_rows(
    claims: Mapping[Pair, Rows],
    photos: Mapping[str, ClaimedRows],
    positions: Positions,
    deep: Mapping[Pair, Rows],
    max_error_px: float,
) -> tuple[dict[str, Rows], dict[str, Rows], dict[str, Rows]]:
    """Return rows of each photo on chains of matches through three photos: that stand still, that do not, and others.

    A map keeps what three photos see. Three own photos are tested, those that share most; a chain with a photo of
    another device cannot be, and counts. The last are chains that were not tested, as three photos share too little.
    ``deep``: pairs of photos that were not taken from one place.
    """
    partners = _partners(claims, photos)
    sizes = {name: len(next(iter(row_of.values()))) for name, row_of in partners.items()}
    tested, passed = ({name: np.zeros(size, np.int64) for name, size in sizes.items()} for _ in range(2))
    done, own = set[tuple[str, frozenset[str]]](), [name for name in partners if name in positions]

    def test(middle: str, ends: tuple[str, str]) -> None:
        order = next((o for o in permutations((middle, *ends)) if {o[:2], o[1::-1]} & deep.keys()), None)
        if order is None or (middle, frozenset(ends)) in done:
            return
        done.add((middle, frozenset(ends)))
        first, second = (partners[middle][end] for end in ends)
        rows = np.flatnonzero((first >= 0) & (second >= 0))
        at = {middle: rows, ends[0]: first[rows], ends[1]: second[rows]}
        sides = [positions[name][at[name]] for name in order]
        agreeing = agreeing_in_three((sides[0], sides[1], sides[2]), max_error_px)
        for name in order:
            np.add.at(tested[name], at[name], 1)
            np.add.at(passed[name], at[name], agreeing)

    for name in own:
        others = [other for other in partners[name] if other in positions]
        if len(others) < 2:
            continue
        has = np.array([partners[name][other] >= 0 for other in others], np.float32).reshape(len(others), -1)
        shared = has @ has.T
        np.fill_diagonal(shared, -1)
        for row, counts in enumerate(shared):
            thirds = np.argsort(-counts, kind="stable")[:THIRDS]
            for third in thirds[counts[thirds] >= LEAST_COMMON]:
                test(name, (others[row], others[third]))
    chains = {name: (passed[name] > 0) & (passed[name] >= PASSED_SHARE * tested[name]) for name in partners}
    moving = {name: (tested[name] > 0) & ~rows for name, rows in chains.items()}
    untested = {name: np.zeros(size, bool) for name, size in sizes.items()}
    for middle, row_of in partners.items():
        matched = np.stack([rows >= 0 for rows in row_of.values()])
        foreign = np.array([middle not in positions or other not in positions for other in row_of])
        shows_depth = np.array([bool({(middle, other), (other, middle)} & deep.keys()) for other in row_of])
        on_chain = (matched.sum(axis=0) >= 2) & matched[shows_depth].any(axis=0)
        for kind, rows in ((chains, on_chain & matched[foreign].any(axis=0)), (untested, on_chain)):
            kind[middle] |= rows
            for other, other_rows in row_of.items():
                kind[other][other_rows[rows & (other_rows >= 0)]] = True
    untested = {name: rows & (tested[name] == 0) for name, rows in untested.items()}
    numbers = [{name: np.flatnonzero(rows) for name, rows in kind.items()} for kind in (chains, moving, untested)]
    return numbers[0], numbers[1], numbers[2]
