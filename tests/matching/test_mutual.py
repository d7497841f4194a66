# SPDX-License-Identifier: Apache-2.0
"""Matches and nearest are what the matrix of distances says, rule by rule."""

import warnings

import numpy as np
import pytest

import sfumato
from sfumato.errors import InputError, VoidDistanceWarning
from sfumato.matching.mutual import MatchParams, match_prepared
from sfumato.subspace.fast import prepare
from sfumato.subspace.subspace_set import Frame

COUNTS = (61, 47)


def sides(m=(2, 2), n: int = 24, counts=COUNTS, noise: float = 0.5, seed: int = 0) -> list[sfumato.Subspaces]:
    rng = np.random.default_rng(seed)
    clear = rng.normal(size=(max(*counts, 1), n)) / np.sqrt(n)
    return [
        sfumato.Subspaces(
            clear[:count] + noise * rng.normal(size=(count, n)) / np.sqrt(n), rng.normal(size=(count, k, n))
        )
        for count, k in zip(counts, m, strict=True)
    ]


def as_features(subspaces: sfumato.Subspaces, name: str = "sift") -> sfumato.ConcealedFeatures:
    recipe = f"random-{subspaces.dim}" if subspaces.dim else "raw"
    return sfumato.ConcealedFeatures(np.zeros((len(subspaces), 4)), subspaces, recipe, sfumato.Extractor(name))


def expected(a, b, mutual=True, ratio=None, max_distance=None) -> list[tuple[int, int]]:
    """By the definition: hloc's rules on the full matrix, a ratio asked of each side that has a second nearest."""
    distance = np.sqrt(sfumato.squared_distances(a, b))
    found = []
    for i, line in enumerate(distance):
        j = int(line.argmin())
        ways = [line, distance[:, j]] if mutual else [line]
        good = not mutual or distance[:, j].argmin() == i
        good &= max_distance is None or line[j] <= max_distance
        good &= ratio is None or all(len(way) < 2 or np.sort(way)[0] <= ratio * np.sort(way)[1] for way in ways)
        if good:
            found.append((i, j))
    return found


def check(a, b, **rules) -> sfumato.Matches:
    matches = sfumato.match(a, b, **rules)
    assert matches.indices.dtype == np.int32
    assert matches.distances.dtype == np.float32
    assert [tuple(pair) for pair in matches.indices.tolist()] == expected(a, b, **rules)
    if len(matches):
        squared = sfumato.squared_distances(a, b)[tuple(matches.indices.T)]
        np.testing.assert_allclose(matches.distances.astype(float) ** 2, squared, rtol=1e-6, atol=1e-9)
    return matches


RULES = [
    {},
    {"mutual": False},
    {"ratio": 0.8},
    {"ratio": 1.0},
    {"ratio": 0.7, "mutual": False},
    {"max_distance": 0.6},
    {"max_distance": 0.6, "mutual": False},
    {"max_distance": 0.6, "ratio": 0.8},
    {"max_distance": 0.6, "ratio": 0.5, "mutual": False},
    {"max_distance": np.inf},
    {"max_distance": 1e-3},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_rules_on_subspaces(rules):
    a, b = sides()
    found = check(a, b, **rules)
    assert len(found) < len(expected(a, b, mutual=False)) or not rules.get("mutual", True)
    params = MatchParams(**rules)
    again = match_prepared(prepare(a.origin, a.basis), prepare(b.origin, b.basis), params)
    np.testing.assert_array_equal(again.indices, found.indices)


@pytest.mark.parametrize("rules", RULES[::2], ids=str)
@pytest.mark.parametrize("m", [(0, 2), (2, 0), (0, 0)])
def test_rules_with_points(rules, m):
    check(*(side.origin if side.dim == 0 else side for side in sides(m)), **rules)


def test_every_rule_removes_some():
    a, b = sides()
    counts = [
        len(sfumato.match(a, b, **rules)) for rules in ({"mutual": False}, {}, {"ratio": 0.8}, {"max_distance": 0.6})
    ]
    assert counts[0] > counts[1] > counts[2] > 0
    assert counts[1] > counts[3] > 0


def test_any_kind_on_either_side():
    a, b = sides()
    want = sfumato.match(a, b)
    for one in (a, as_features(a)):
        for other in (b, as_features(b)):
            found = sfumato.match(one, other, ratio=1)
            np.testing.assert_array_equal(found.indices, want.indices)
            np.testing.assert_array_equal(found.distances, want.distances)
    points = a.origin
    plain = sfumato.match(points, b)
    for same in (points.astype(float), points.tolist(), sfumato.Subspaces(points, np.zeros((len(points), 0, 24)))):
        np.testing.assert_array_equal(sfumato.match(same, b).indices, plain.indices)
    np.testing.assert_array_equal(sfumato.match(points, as_features(b), ratio=1).indices, plain.indices)


def test_what_is_the_same_is_at_0():
    a, _ = sides()
    found = sfumato.match(a, a, max_distance=0.0)
    assert (found.indices == np.arange(len(a))[:, None]).all()
    assert len(found) == len(a)
    assert (found.distances == 0).all()


def test_equals_go_to_the_lower_row():
    a, b = sides()
    twice = sfumato.Subspaces(np.repeat(b.origin, 2, axis=0), np.repeat(b.basis, 2, axis=0))
    found = sfumato.match(a, twice)
    assert (found.indices[:, 1] % 2 == 0).all()
    np.testing.assert_array_equal(found.indices // [1, 2], sfumato.match(a, b).indices)


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("rules", [{}, {"mutual": False, "ratio": 0.8}, {"max_distance": 1.0}], ids=str)
def test_nothing_to_match(counts, rules):
    found = sfumato.match(*sides(counts=counts), **rules)
    assert found.indices.shape == (0, 2)
    assert found.distances.shape == (0,)


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("counts", [(1, 1), (6, 1), (1, 6)])
def test_a_ratio_needs_a_second(mutual, counts):
    check(*sides(counts=counts), ratio=0.9, mutual=mutual)
    assert len(sfumato.match(*sides(counts=(1, 1)), ratio=0.01)) == 1


def test_threads_and_torch_change_nothing():
    a, b = sides()
    want = sfumato.match(a, b, ratio=0.9)
    for options in ({"threads": 1}, {"threads": 3}):
        found = sfumato.match(a, b, ratio=0.9, **options)
        np.testing.assert_array_equal(found.indices, want.indices)
        np.testing.assert_array_equal(found.distances, want.distances)
    pytest.importorskip("torch", reason="needs torch: pip install 'sfumato[learn]'")
    found = sfumato.match(a, b, ratio=0.9, device="cpu")
    np.testing.assert_array_equal(found.indices, want.indices)
    np.testing.assert_array_equal(found.distances, want.distances)


@pytest.mark.parametrize("m", [(0, 2), (2, 0), (2, 2), (0, 0)])
@pytest.mark.parametrize("k", [1, 2, np.int32(5), 100])
def test_nearest(m, k):
    a, b = (side.origin if side.dim == 0 else side for side in sides(m))
    distances, rows = sfumato.nearest(a, b, k=k)
    assert distances.shape == rows.shape == (COUNTS[0], k)
    assert distances.dtype == np.float32
    assert rows.dtype == np.int64
    matrix = np.sqrt(sfumato.squared_distances(a, b))
    there = min(k, COUNTS[1])
    np.testing.assert_array_equal(rows[:, :there], np.argsort(matrix, axis=1, kind="stable")[:, :there])
    np.testing.assert_allclose(distances[:, :there], np.sort(matrix, axis=1)[:, :there], rtol=1e-6)
    assert np.isinf(distances[:, there:]).all()
    assert (rows[:, there:] == -1).all()


def test_nearest_of_nothing():
    a, b = sides()
    for queries, references, count in ((a[:0], b, 0), (a, b[:0], COUNTS[0])):
        distances, rows = sfumato.nearest(queries, references, k=3)
        assert distances.shape == rows.shape == (count, 3)
        assert np.isinf(distances).all()
        assert (rows == -1).all()


def test_more_neighbours_than_memory_holds_are_refused():
    with pytest.raises(InputError, match="memory"):
        sfumato.nearest(*sides(), k=2**31 - 1)


@pytest.mark.parametrize("call", [sfumato.match, sfumato.nearest])
def test_subspaces_that_all_meet_are_matched_with_a_warning(call):
    a, b = sides(m=(2, 2), n=4, counts=(9, 7))
    with pytest.warns(VoidDistanceWarning, match="meet"):
        found = call(a, b)
    if call is sfumato.match:
        assert (found.distances == 0).all()
        assert ((found.indices >= 0) & (found.indices < [9, 7])).all()
    else:
        assert (found[0] == 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(a.origin, b)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"ratio": 0.0}, "ratio: expected"),
        ({"ratio": 1.1}, "ratio: expected"),
        ({"ratio": -1}, "ratio: expected"),
        ({"ratio": np.nan}, "ratio: expected"),
        ({"ratio": "0.8"}, "ratio: expected"),
        ({"max_distance": -0.1}, "max_distance: expected"),
        ({"max_distance": np.nan}, "max_distance: expected"),
        ({"max_distance": "1"}, "max_distance: expected"),
        ({"threads": 0}, "threads: expected"),
        ({"threads": -2}, "threads: expected"),
        ({"threads": 1.5}, "threads: expected"),
    ],
    ids=str,
)
@pytest.mark.parametrize("counts", [COUNTS, (0, 5)])
def test_rules_that_are_none(rules, words, counts):
    with pytest.raises(InputError, match=words):
        sfumato.match(*sides(counts=counts), **rules)


@pytest.mark.parametrize("k", [0, -1, 1.5, "2", None, True, 2**31, 2**70])
def test_k_that_is_none(k):
    with pytest.raises(InputError, match="whole number"):
        sfumato.nearest(*sides(), k=k)


def test_sides_that_do_not_go_together():
    a, b = sides()
    clear = sfumato.Features(np.zeros((3, 4)), np.eye(3, 24), sfumato.Extractor("sift"), None)
    for call in (sfumato.match, sfumato.nearest):
        with pytest.raises(InputError, match="24"):
            call(a, np.zeros((3, 8)))
        with pytest.raises(InputError, match="rootsift"):
            call(as_features(a), as_features(b, "rootsift"))
        with pytest.raises(InputError, match="finite"):
            call(a, np.array([np.zeros(24), np.full(24, np.nan)]))
        with pytest.raises(InputError, match="Features"):
            call(clear, a)
        with pytest.raises(InputError, match="Features"):
            call(a, clear)


def test_nothing_shows_the_values():
    a, b = sides()
    assert repr(sfumato.match(a, b)) == f"Matches({len(sfumato.match(a, b))})"


def sharing(decoys: int = 30, count: int = 200, n: int = 24, seed: int = 3) -> list[sfumato.Subspaces]:
    """Two sides whose subspaces all pass through a few common points."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(decoys, n))
    return [
        sfumato.Subspaces(common[rng.integers(decoys, size=count)], rng.normal(size=(count, 2, n))) for _ in range(2)
    ]


@pytest.mark.parametrize("rules", [{}, {"ratio": 0.8}, {"max_distance": 0.0}, {"max_distance": 1e-9, "mutual": False}])
def test_subspaces_that_meet_are_matched_alike_by_torch(rules):
    a, b = sharing()
    usual, by_torch = sfumato.match(a, b, **rules), sfumato.match(a, b, **rules, device="cpu")
    np.testing.assert_array_equal(usual.indices, by_torch.indices)
    np.testing.assert_array_equal(usual.distances, by_torch.distances)
    assert len(usual) == 0 if "ratio" in rules else (len(usual) > 0 and (usual.distances == 0).all())


def test_points_far_from_the_origin_are_told_apart():
    rng = np.random.default_rng(5)
    a = (1e5 + 2 * rng.random((700, 2))).astype(np.float32)
    b = np.concatenate([a[::-1], (1e5 + 2 * rng.random((500, 2))).astype(np.float32)])
    check(a, b)
    distances, rows = sfumato.nearest(a, b, k=1)
    squared = ((a[:, None].astype(float) - b[rows].astype(float)) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances.astype(float) ** 2, squared, atol=1e-9)
    assert (distances == 0).all()
    assert (a[:, None] == b[rows]).all()


def test_subspaces_far_from_the_origin_do_not_depend_on_the_frame():
    rng = np.random.default_rng(6)
    far = [sfumato.Subspaces(1e4 + rng.normal(size=(300, 6)), rng.normal(size=(300, 2, 6))) for _ in range(2)]
    usual, moved = ([prepare(side.origin, side.basis) for side in far] for _ in range(2))
    moved[0].frame = Frame.of(far[0].origin[:9] + 30)
    params = MatchParams(mutual=False)
    one, other = match_prepared(*usual, params), match_prepared(*moved, params)
    np.testing.assert_array_equal(one.indices, other.indices)


@pytest.mark.parametrize(
    "rules", [{"max_distance": 1e160}, {"max_distance": 10**400}, {"ratio": 1e-300, "max_distance": 1.0}]
)
def test_limits_beyond_all_numbers(rules):
    a, b = sides()
    expected_count = len(sfumato.match(a, b)) if "ratio" not in rules else 0
    assert len(sfumato.match(a, b, **rules)) == expected_count
