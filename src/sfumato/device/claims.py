# SPDX-License-Identifier: Apache-2.0
"""What a server claims of matches, and which rows that lets go: a function of arrays, no files.

Rows must be of real photos of the place, which their tags show; their bits must be nearer than chance brings unrelated
ones; where the device holds both photos, their matches must agree with one epipolar geometry; where it does not, enough
of them must close a circle through a third photo. Photos taken from one place, as of a burst, show no depth: what they
alone agree on stays home. A server may claim what it likes: what is not so counts for nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sfumato.concealment.rows import are_real
from sfumato.errors import InputError, suggest
from sfumato.geometry.verify import agreeing_matches, has_parallax
from sfumato.matching.mutual import chance_bits
from sfumato.store.evidence import ClaimedRows, Pair, Rows

Positions = Mapping[str, NDArray[np.float32]]
"""Positions (N, 2) of all rows of the photos of this device."""

RULES = {
    "tracks": "rows that agree over three photos, and of photos with few of these what a proven pair agrees on",
    "circles": "rows whose matches close a circle of three photos",
    "pairs": "rows of every pair that was checked: two photos are enough",
}
STRANGERS = 1_000_000
"""Rows of other devices among which a match must not come by chance: a server may choose which it shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseParams:
    """Conditions of a release. ``rule``: one of ``RULES``. ``most_share``: of the rows of a photo; if a server asks for
    more, nothing of that photo leaves. ``max_error_px``: how far two matched rows of own photos may be from one
    epipolar geometry. ``least_circles``: circles that prove a pair of which another device holds a photo.
    ``least_rows``: a photo with fewer in tracks of three gives what a proven pair agrees on too, or it would be missing
    in the map."""

    rule: str = "tracks"
    most_share: float = 0.9
    max_error_px: float = 8.0
    least_circles: int = 15
    least_rows: int = 500

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InputError(f"rule: expected one of {', '.join(RULES)}{suggest(str(self.rule), RULES)}")
        if not 0 < self.most_share <= 1:
            raise InputError(f"most_share (--limit): expected a share above 0 and at most 1, got {self.most_share!r}")
        if not 0 < self.max_error_px < 1000 or self.least_circles < 1 or self.least_rows < 0:
            raise InputError("max_error_px and least_circles must be above 0, and least_rows 0 or more")


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
) -> Choice:
    """Return the rows of own photos that claims and rule let go.

    ``claims``: matched rows (M, 2) by pairs of names. ``photos``: what is known of each photo; claims of others, and of
    rows that are not known, count for nothing. ``positions``: of own photos. ``key``: the sealing key of the place.
    """
    params, forged = params or ReleaseParams(), dict[str, str]()
    for name, known in photos.items():
        if not are_real(key, known.tags.photo, known.numbers, known.code, known.tags.rows):
            forged[name] = "some of its rows have tags that the key did not make"
    real = {name: known for name, known in photos.items() if name not in forged}
    checked: dict[Pair, Rows] = {}
    for pair, claim in claims.items():
        if real.keys() >= set(pair) and len(claim):
            is_own = positions.keys() >= set(pair)
            near = _near_rows(claim, real[pair[0]], real[pair[1]], is_own=is_own)
            if len(near):
                checked[pair] = near
    trusted = _trusted_rows(checked, real, positions, params)
    own = real.keys() & positions.keys()
    flat = {pair for pair, rows in trusted.items() if positions.keys() >= set(pair) and _is_flat(pair, rows, positions)}
    if params.rule == "circles":
        chosen = _circle_rows({pair: rows for pair, rows in trusted.items() if pair not in flat}, real)
    elif params.rule == "pairs":
        chosen = _track_rows(trusted, 2, flat)
    else:
        chosen = _track_rows(trusted, 3, flat)
        weak = {name for name in own if len(chosen.get(name, ())) < params.least_rows}
        circles = _count_circles(trusted, real) if weak else {}
        few = {p: rows for p, rows in trusted.items() if weak & set(p) and circles.get(p, 0) >= params.least_circles}
        chosen |= {
            name: np.union1d(rows, chosen.get(name, rows[:0])) for name, rows in _track_rows(few, 2, flat).items()
        }
    released = {name: chosen.get(name, np.zeros(0, np.int64)) for name in sorted(own)}
    return Choice(released, len(claims), len(trusted), forged)


def _near_rows(claim: Rows, side0: ClaimedRows, side1: ClaimedRows, *, is_own: bool) -> Rows:
    """Return the claimed rows (M, 2) of a pair that are known, used once, and nearer than chance brings them."""
    if side0.tags.photo == side1.tags.photo or side0.code.ambient_dim != side1.code.ambient_dim:
        return claim[:0]  # one photo under two names proves nothing
    (at0, has0), (at1, has1) = side0.find(claim[:, 0]), side1.find(claim[:, 1])
    rows, at0, at1 = (part[has0 & has1] for part in (claim, at0, at1))
    differing = np.bitwise_count(side0.code.packed[at0] ^ side1.code.packed[at1]).sum(axis=1, dtype=np.int64)
    near = differing <= chance_bits(side0.code.ambient_dim, max(side0.count, side1.count) if is_own else STRANGERS)
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


def _is_flat(pair: Pair, rows: Rows, positions: Positions) -> bool:
    """Tell whether two own photos were taken from one place, so far as their agreeing matches show it."""
    places = [positions[name] for name in pair]
    sizes = [(int(part[:, 0].max()) + 1, int(part[:, 1].max()) + 1) for part in places]  # of the photos, nearly
    return not has_parallax(places[0][rows[:, 0]], places[1][rows[:, 1]], sizes[0], sizes[1])


def _partners(
    claims: Mapping[Pair, Rows], photos: Mapping[str, ClaimedRows]
) -> dict[str, dict[str, NDArray[np.int64]]]:
    """Return for each photo and partner the row of the partner that each row (N,) is matched with, or -1."""
    found: dict[str, dict[str, NDArray[np.int64]]] = {}
    for (first, second), rows in claims.items():
        for one, other, sides in ((first, second, rows), (second, first, rows[:, ::-1])):
            row_of = np.full(photos[one].count, -1, np.int64)
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


def _track_rows(claims: Mapping[Pair, Rows], least: int, flat: Collection[Pair]) -> dict[str, Rows]:
    """Return the rows of each photo whose chain of matches reaches ``least`` photos, not all of them in one place.

    A map keeps chains of three. ``flat``: pairs of photos that were taken from one place.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    names = sorted({name for pair in claims for name in pair})
    if not names:
        return {}
    number = {name: place for place, name in enumerate(names)}
    ends = np.concatenate(
        [
            np.stack([np.full(len(rows), number[pair[side]]), rows[:, side]], axis=1)
            for side in (0, 1)
            for pair, rows in claims.items()
        ]
    )
    points, at = np.unique(ends, axis=0, return_inverse=True)
    links = at.reshape(2, -1)
    graph = coo_matrix((np.ones(links.shape[1], np.int8), (links[0], links[1])), (len(points), len(points)))
    count, track = connected_components(graph, directed=False)
    reached = np.unique(np.stack([track, points[:, 0]], axis=1), axis=0)
    shows_depth = np.repeat([pair not in flat for pair in claims], [len(rows) for rows in claims.values()])
    has_depth = np.bincount(track[links[0]], shows_depth, minlength=count) > 0
    is_long = ((np.bincount(reached[:, 0], minlength=count) >= least) & has_depth)[track]
    return {name: points[is_long & (points[:, 0] == place), 1] for name, place in number.items()}
