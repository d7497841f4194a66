# SPDX-License-Identifier: Apache-2.0
"""A server that lies about matches: what it gets when it knows all bits and tags, and no position.

Every liar here has the archive, as a server has, and may claim what it likes; and real tags, where a photo that it
shows is real. What it wants is positions of rows that one photo alone sees.
"""

import tracemalloc
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest

from sfumato.concealment import conceal, order_rows
from sfumato.concealment.rows import make_tags, to_grid
from sfumato.device import ReleaseParams
from sfumato.device.claims import choose_rows
from sfumato.store import ClaimedRows
from sfumato.store.evidence import LARGEST_ROW
from sfumato.types.concealed import Bits, RowTags

KEY = sha256(b"claims").digest()
NOBODY = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class World:
    """Photos as archives have them, where their rows lie, and which point of space each row shows, -1 for none."""

    photos: dict[str, ClaimedRows]
    positions: dict[str, np.ndarray]
    points: dict[str, np.ndarray]

    @classmethod
    def of(cls, scene, key=KEY):
        photos, positions, points = {}, {}, {}
        for name, one in scene.features.items():
            rows = order_rows(one, secret=key)
            photos[name] = ClaimedRows.of(conceal(one, secret=key))
            positions[name], points[name] = to_grid(one.keypoints)[rows], scene.points[name][rows]
        return cls(photos, positions, points)

    def __or__(self, other):
        parts = zip(
            (self.photos, self.positions, self.points), (other.photos, other.positions, other.points), strict=True
        )
        return World(*(one | two for one, two in parts))

    def honest(self, *names):
        """True matches of all pairs: rows that show the same point."""
        claims = {}
        for pair in combinations(names or self.photos, 2):
            ids = [self.points[name] for name in pair]
            _, first, second = np.intersect1d(ids[0][ids[0] >= 0], ids[1][ids[1] >= 0], return_indices=True)
            claims[pair] = np.stack([np.flatnonzero(ids[0] >= 0)[first], np.flatnonzero(ids[1] >= 0)[second]], axis=1)
        return claims

    def distances(self, pair):
        bits = [np.unpackbits(self.photos[name].code.packed, axis=1).astype(np.float32) for name in pair]
        return (bits[0].sum(axis=1)[:, None] + bits[1].sum(axis=1) - 2 * bits[0] @ bits[1].T).astype(int)

    def near(self, pair, limit=196):
        """Row pairs (M, 2) that are near in their bits, all of them."""
        return np.argwhere(self.distances(pair) <= limit)

    def choose(self, claims, *own, photos=None, before=None, **params):
        """What a device with some of the photos lets go; by default all of them are its own."""
        home = {name: self.positions[name] for name in own or self.positions}
        given = ReleaseParams(**{"least_rows": 0, **params})
        return choose_rows(claims, photos or self.photos, home, KEY, given, before)

    def clutter(self, chosen):
        """The share of rows that show nothing which another photo sees, and were chosen."""
        alone = {name: ids < 0 for name, ids in self.points.items() if name in chosen.rows}
        return sum(alone[name][rows].sum() for name, rows in chosen.rows.items()) / sum(map(np.sum, alone.values()))


def once_each(rows, rng):
    """Some of the row pairs, each row in one of them at most."""
    rows = rows[rng.permutation(len(rows))]
    for side in (0, 1):
        rows = rows[np.unique(rows[:, side], return_index=True)[1]]
    return rows


def count(chosen):
    return {name: len(rows) for name, rows in chosen.rows.items()}


@pytest.fixture(scope="module")
def world(make_scene):
    """Four photos of one place."""
    return World.of(make_scene(points=500, clutter=200))


@pytest.fixture(scope="module")
def elsewhere(make_scene):
    """Three photos of another place."""
    return World.of(make_scene(photos=3, points=400, clutter=50, seed=5, prefix="x"))


# ---------------------------------------------------------------- the truth


def test_true_claims_let_go_what_three_photos_see(world):
    chosen = world.choose(world.honest())
    assert (chosen.claimed, chosen.proven, dict(chosen.forged)) == (6, 6, {})
    assert min(count(chosen).values()) > 300
    assert world.clutter(chosen) == 0
    for rows in chosen.rows.values():
        assert (np.diff(rows) > 0).all()


def test_the_order_and_direction_of_claims_change_nothing(world):
    claims = world.honest()
    turned = {pair[::-1]: rows[::-1, ::-1] for pair, rows in reversed(claims.items())}
    first, second = world.choose(claims), world.choose(turned)
    assert all(np.array_equal(first.rows[name], second.rows[name]) for name in first.rows)


def test_nothing_is_chosen_of_nothing(world):
    for claims in ({}, {("0.jpg", "1.jpg"): NOBODY}, {("0.jpg", "none.jpg"): np.zeros((1, 2), np.int64)}):
        assert not any(count(world.choose(claims)).values())
    assert not choose_rows({}, {}, {}, KEY).rows


# ---------------------------------------------------------------- rows that are not real


def forged(known, rng):
    """The rows of a photo under tags that somebody without the key made up."""
    return replace(known, tags=RowTags(known.tags.photo, rng.integers(0, 256, known.tags.rows.shape, np.uint8)))


def copied(known, photo=None, flips=0, key=KEY):
    """The rows of a photo, under another name of a photo and with some bits flipped; tagged with a key."""
    packed = known.code.packed.copy()
    packed[:, :flips] ^= 1
    code = Bits(packed)
    tags = known.tags if key is None else make_tags(key, photo or known.tags.photo, code)
    return replace(known, code=code, tags=tags)


@pytest.mark.parametrize("kind", ["made up", "flipped bit", "flipped bits", "other photo", "other key"])
def test_rows_with_tags_that_the_key_did_not_make_count_for_nothing(world, kind):
    """The third photo is one that a server made up of the others' bits: with it there would be three."""
    source, rng = world.photos["1.jpg"], np.random.default_rng(0)
    made = {
        "made up": forged(source, rng),
        "flipped bit": copied(source, flips=1, key=None),
        "flipped bits": copied(source, flips=30, key=None),
        "other photo": replace(source, tags=RowTags("0" * 32, source.tags.rows)),
        "other key": copied(source, "1" * 32, key=sha256(b"another").digest()),
    }[kind]
    photos = {"0.jpg": world.photos["0.jpg"], "1.jpg": source, "made.jpg": made}
    claims = world.honest("0.jpg", "1.jpg")
    claims |= {("0.jpg", "made.jpg"): claims["0.jpg", "1.jpg"]}
    claims |= {("1.jpg", "made.jpg"): np.stack([np.arange(source.count)] * 2, axis=1)}
    chosen = world.choose(claims, "0.jpg", "1.jpg", photos=photos)
    assert set(chosen.forged) == {"made.jpg"}
    assert not any(count(chosen).values())


def test_one_forged_row_spoils_its_photo_and_no_other(world):
    tags = world.photos["3.jpg"].tags.rows.copy()
    tags[7, 0] ^= 1
    photos = {
        **world.photos,
        "3.jpg": replace(world.photos["3.jpg"], tags=replace(world.photos["3.jpg"].tags, rows=tags)),
    }
    chosen = world.choose(world.honest(), photos=photos)
    assert set(chosen.forged) == {"3.jpg"}
    assert "3.jpg" not in chosen.rows
    assert min(count(chosen).values()) > 200


def test_rows_that_are_not_there_count_for_nothing(world):
    """Of another device a server shows some rows; numbers of others, and beyond the last, mean nothing."""
    known = world.photos["2.jpg"]
    some = np.arange(0, known.count, 2)
    shown = ClaimedRows(some, known.code[some], RowTags(known.tags.photo, known.tags.rows[some]), known.count)
    claims = world.honest("0.jpg", "1.jpg", "2.jpg")
    wild = np.array([[0, -1], [-1, 0], [known.count + 5, 3], [3, LARGEST_ROW], [2**62, 2**62]])
    wilder = {pair: np.concatenate([rows, wild]) for pair, rows in claims.items()}
    first = world.choose(claims, "0.jpg", "1.jpg", photos={**world.photos, "2.jpg": shown})
    second = world.choose(wilder, "0.jpg", "1.jpg", photos={**world.photos, "2.jpg": shown})
    assert count(first) == count(second)
    assert 0 < count(first)["0.jpg"] < count(world.choose(claims))["0.jpg"]


def test_a_count_that_is_a_lie_takes_no_memory(world):
    known = world.photos["2.jpg"]
    some = np.arange(100)
    liar = ClaimedRows(some, known.code[some], RowTags(known.tags.photo, known.tags.rows[some]), LARGEST_ROW)
    claims = world.honest("0.jpg", "1.jpg", "2.jpg")
    tracemalloc.start()
    world.choose(claims, "0.jpg", "1.jpg", photos={**world.photos, "2.jpg": liar}, rule="circles")
    world.choose(claims, "0.jpg", "1.jpg", photos={**world.photos, "2.jpg": liar}, least_rows=10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


# ---------------------------------------------------------------- one photo under two names


def test_copies_of_own_photos_prove_nothing(world):
    """A server has bits and real tags of every photo, and can show them again as those of somebody else."""
    own = ("0.jpg", "1.jpg")
    photos = {name: world.photos[name] for name in own}
    photos |= {f"copy-{name}": world.photos[name] for name in own}
    points = world.points | {f"copy-{name}": world.points[name] for name in own}
    everything = World(photos, {name: world.positions[name] for name in own}, points)
    for rule in ("tracks", "circles"):
        chosen = everything.choose(everything.honest(*photos), rule=rule, least_rows=5000)
        assert not any(count(chosen).values()), rule


def test_copies_make_a_burst_no_deeper(make_scene):
    """Photos taken from one place prove nothing: nor do they with copies of themselves."""
    burst = World.of(make_scene(photos=3, points=400, clutter=100, camera=0))
    photos = burst.photos | {f"copy-{name}": known for name, known in burst.photos.items()}
    points = burst.points | {f"copy-{name}": ids for name, ids in burst.points.items()}
    whole = World(photos, burst.positions, points)
    assert not any(count(burst.choose(burst.honest(), least_rows=5000)).values())
    for rule in ("tracks", "circles", "pairs"):
        assert not any(count(whole.choose(whole.honest(*photos), rule=rule, least_rows=5000)).values()), rule


def test_a_photo_of_another_device_under_two_names_is_one(world):
    photos = {name: world.photos[name] for name in ("0.jpg", "2.jpg")} | {"again.jpg": world.photos["2.jpg"]}
    points = world.points | {"again.jpg": world.points["2.jpg"]}
    whole = World(photos, {"0.jpg": world.positions["0.jpg"]}, points)
    for rule in ("tracks", "circles", "pairs"):
        chosen = whole.choose(whole.honest(*photos), "0.jpg", rule=rule, least_rows=5000)
        assert not any(count(chosen).values()), rule


def test_a_photo_that_its_owner_has_twice_is_one(world):
    """The same file under two names on one device."""
    twice = World(
        {"0.jpg": world.photos["0.jpg"], "same.jpg": world.photos["0.jpg"], "1.jpg": world.photos["1.jpg"]},
        {"0.jpg": world.positions["0.jpg"], "same.jpg": world.positions["0.jpg"], "1.jpg": world.positions["1.jpg"]},
        world.points | {"same.jpg": world.points["0.jpg"]},
    )
    assert not any(count(twice.choose(twice.honest("0.jpg", "same.jpg", "1.jpg"), least_rows=0)).values())


# ---------------------------------------------------------------- rows that do not match


def test_random_claims_get_nothing(world):
    rng = np.random.default_rng(0)
    for _ in range(5):
        claims = {
            pair: np.stack([rng.permutation(600), rng.permutation(600)], axis=1)
            for pair in combinations(world.photos, 2)
        }
        chosen = world.choose(claims, least_rows=5000)
        assert (chosen.proven, sum(count(chosen).values())) == (0, 0)


@pytest.fixture(scope="module")
def alike(make_scene):
    """Photos of a place where much looks alike, as in nature: thousands of rows are near that are not the same."""
    return World.of(make_scene(points=400, clutter=300, kinds=80))


@pytest.fixture(scope="module")
def alike_elsewhere(make_scene):
    """Photos of another place with the same kinds of things."""
    return World.of(make_scene(photos=4, points=400, clutter=100, seed=5, prefix="x", kinds=80))


def test_near_rows_that_do_not_match_get_nothing(alike):
    """A server that knows all bits, and claims what is near and false: no geometry agrees with it."""
    rng, false = np.random.default_rng(0), {}
    for pair in combinations(alike.photos, 2):
        rows = alike.near(pair)
        first, second = (alike.points[name][rows[:, side]] for side, name in enumerate(pair))
        false[pair] = rows[(first < 0) | (first != second)]
        assert len(false[pair]) > 2000
    for _ in range(10):
        claims = {pair: once_each(rows, rng) for pair, rows in false.items()}
        assert min(map(len, claims.values())) > 300
        for rule in ("tracks", "circles", "pairs"):
            chosen = alike.choose(claims, rule=rule, least_rows=5000)
            assert (chosen.proven, sum(count(chosen).values())) == (0, 0)


def test_false_claims_among_true_ones_get_little(alike):
    """What is near in bits and, by chance, near the epipolar line gets through: a share that stays small in all."""
    rng, honest = np.random.default_rng(0), alike.honest()
    near = {pair: alike.near(pair) for pair in honest}
    seen = {name: np.zeros(len(ids), bool) for name, ids in alike.points.items()}
    for _ in range(10):
        claims = {}
        for pair, rows in honest.items():
            free = [~np.isin(near[pair][:, side], rows[:, side]) for side in (0, 1)]
            claims[pair] = np.concatenate([rows, once_each(near[pair][free[0] & free[1]], rng)])
        chosen = alike.choose(claims)
        assert min(count(chosen).values()) > 150
        for name, rows in chosen.rows.items():
            seen[name][rows] = True
    alone = {name: ids < 0 for name, ids in alike.points.items()}
    gained = sum((seen[name] & alone[name]).sum() for name in seen) / sum(map(np.sum, alone.values()))
    assert gained < 0.1
    assert alike.clutter(alike.choose(honest)) == 0


def test_claims_that_are_withheld_get_no_more_than_pairs(alike):
    """Photos with few tracks give what pairs agree on, and a server can make any photo one of these."""
    pairs = alike.choose(alike.honest(), rule="pairs")
    honest, gained = alike.honest(), {name: np.zeros(len(ids), bool) for name, ids in alike.points.items()}
    for pair in honest:
        third = next(name for name in alike.photos if name not in pair)
        few = alike.honest(*pair, third)
        claims = {other: some if set(other) == set(pair) else some[:60] for other, some in few.items()}
        chosen = alike.choose(claims, least_rows=5000)
        for name, some in chosen.rows.items():
            gained[name][some] = True
    for name, rows in gained.items():
        assert set(np.flatnonzero(rows)) <= set(pairs.rows[name])


def test_a_photo_that_gave_enough_gives_no_more_to_who_withholds(alike):
    """What left before counts: a server that was honest once cannot make its photos poor again."""
    honest = alike.choose(alike.honest(), least_rows=200)
    assert min(count(honest).values()) >= 200
    for pair, rows in alike.honest().items():
        few = alike.honest(*pair, next(name for name in alike.photos if name not in pair))
        claims = {other: some if set(other) == set(pair) else some[:60] for other, some in few.items()}
        poor = alike.choose(claims, least_rows=200)
        later = alike.choose(claims, least_rows=200, before=honest.rows)
        assert max(count(poor).values()) > 0.9 * len(rows)
        assert max(count(later).values()) < 0.5 * len(rows)


def test_photos_of_another_place_prove_nothing(alike, alike_elsewhere):
    """Of photos of another place a server has real tags, and thousands of rows that look like those of a photo."""
    both = alike | alike_elsewhere
    for own in (("0.jpg",), ("0.jpg", "1.jpg"), tuple(alike.photos)):
        plain = both.choose(both.honest(*own), *own, most_unproven=0)
        chosen = both.choose(lie_with(both, own, tuple(alike_elsewhere.photos)), *own, most_unproven=0)
        for name in own:
            more = np.setdiff1d(chosen.rows[name], plain.rows[name])
            assert (both.points[name][more] >= 0).all(), "what one photo alone sees"
        assert len(own) > 1 or not any(count(chosen).values())


def test_what_only_others_speak_for_stays_little_however_often_a_server_asks(alike, alike_elsewhere):
    """A device with one photo of a place gives a few rows, for it to be in the map: also to a liar, and no more."""
    both, rng, seen = alike | alike_elsewhere, np.random.default_rng(0), np.zeros(0, np.int64)
    lies = lie_with(both, ("0.jpg",), tuple(alike_elsewhere.photos))
    wanted = both.choose(lies, "0.jpg", most_unproven=10_000).rows["0.jpg"]
    assert len(wanted) > 60
    for _ in range(12):
        some = rng.permutation(wanted)[: len(wanted) // 2]
        claims = {pair: rows[np.isin(rows[:, 0], some)] if "0.jpg" in pair else rows for pair, rows in lies.items()}
        chosen = both.choose(claims, "0.jpg", most_unproven=30, before={"0.jpg": seen})
        seen = np.union1d(seen, chosen.rows["0.jpg"])
    assert len(seen) == 30


def test_what_own_photos_prove_takes_no_room_from_the_rest(make_scene):
    """Rows that left are counted as unproven only where no two own photos agree on them."""
    world = World.of(make_scene(points=500, clutter=200, camera=1.2))
    claims, own = world.honest(), ("0.jpg", "3.jpg")
    everything = world.choose(claims, *own, most_unproven=10_000)
    again = world.choose(claims, *own, most_unproven=10_000, before=everything.rows)
    assert count(again) == count(everything)
    few = world.choose(claims, *own, most_unproven=5)
    assert all(count(few)[name] < count(everything)[name] for name in own)
    assert count(world.choose(claims, *own, most_unproven=5, before=few.rows)) == count(few)
    some = {name: rows[:100] for name, rows in few.rows.items()}
    assert count(world.choose(claims, *own, most_unproven=5, before=some)) == count(few)


def lie_with(world, own, others):
    """Claims that tie rows of own photos to whole tracks of others, so that circles close; and all that is true."""
    claims = world.honest(*own) | world.honest(*others)
    numbers = np.unique(np.concatenate([world.points[name] for name in others]))
    row_of = {name: dict(zip(world.points[name].tolist(), range(10**6), strict=False)) for name in others}
    for name in own:
        used, ties = set[int](), {other: list[tuple[int, int]]() for other in others}
        distances = {other: world.distances((name, other)) for other in others}
        for number in numbers[numbers >= 0].tolist():
            seen = {other: row_of[other][number] for other in others if number in row_of[other]}
            if len(seen) < 2:
                continue
            worst = np.max([distances[other][:, row] for other, row in seen.items()], axis=0)
            worst[list(used)] = 999
            row = int(np.argmin(worst))
            if worst[row] <= 196:
                used.add(row)
                for other, there in seen.items():
                    ties[other].append((row, there))
        claims |= {(name, other): np.array(rows) for other, rows in ties.items() if rows}
    return claims


def test_the_liar_above_closes_circles(alike, alike_elsewhere):
    """So the test above fails for the reason it names: the rule that believes bits lets those rows go."""
    both = alike | alike_elsewhere
    chosen = both.choose(lie_with(both, ("0.jpg",), tuple(alike_elsewhere.photos)), "0.jpg", rule="circles")
    assert chosen.proven > 6
    assert (both.points["0.jpg"][chosen.rows["0.jpg"]] < 0).sum() > 15


# ---------------------------------------------------------------- photos from one place, and people who walk


def test_a_burst_and_lies_among_its_matches_stay_at_home(make_scene):
    """Matches that agree by chance look like depth: a server that adds false ones to a few true ones gets nothing."""
    burst, rng = World.of(make_scene(points=400, clutter=300, kinds=80, camera=0)), np.random.default_rng(0)
    honest = burst.honest()
    near = {pair: burst.near(pair) for pair in honest}
    for some in (20, 40, 80, 150, 400):
        for _ in range(3):
            claims, points = {}, rng.permutation(400)[:some]
            for pair, rows in honest.items():
                true = rows[np.isin(burst.points[pair[0]][rows[:, 0]], points)]
                free = [~np.isin(near[pair][:, side], true[:, side]) for side in (0, 1)]
                claims[pair] = np.concatenate([true, once_each(near[pair][free[0] & free[1]], rng)])
            for rule in ("tracks", "circles", "pairs"):
                chosen = burst.choose(claims, rule=rule, least_rows=5000)
                assert not any(count(chosen).values()), (some, rule)


def test_what_walks_between_the_photos_stays_at_home(make_scene):
    """It may agree in each two photos, where it moves along the line of the cameras, and does not in three."""
    world = World.of(make_scene(points=600, clutter=100))
    walking, steps = np.arange(80), dict(zip(world.photos, (0, 28, -22, 31), strict=True))
    positions = {name: places.copy() for name, places in world.positions.items()}
    for name, ids in world.points.items():
        positions[name][np.isin(ids, walking), 0] += steps[name]
    moved = World(world.photos, positions, world.points)
    for rule in ("tracks", "circles", "pairs"):
        chosen = moved.choose(moved.honest(), rule=rule, least_rows=0)
        for name, rows in chosen.rows.items():
            ids = moved.points[name]
            assert np.isin(np.flatnonzero(np.isin(ids, walking)), rows).mean() < 0.2
            assert np.isin(np.flatnonzero(ids > 80), rows).mean() > 0.8
