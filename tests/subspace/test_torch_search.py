# SPDX-License-Identifier: Apache-2.0
"""The search by torch, row by row and tie by tie what the reference says, on the cpu and on a GPU if there is one."""

import itertools
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import InputError, MissingDependency
from sfumato.subspace import reference, torch_search

torch = pytest.importorskip("torch", reason="needs torch: pip install 'sfumato[learn]'")

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
MANY_TILES = 2000
"""A budget, in numbers for each pair of directions, that cuts even small sides into many ragged tiles."""


class Flat(NamedTuple):
    """Canonical subspaces (N, n) and (N, m, n) float32, read-only as they are everywhere."""

    origin: np.ndarray
    basis: np.ndarray

    def __getitem__(self, rows):  # rows of both, as the library's own types
        return flat(self.origin[rows], self.basis[rows])


def flat(origin: np.ndarray, basis: np.ndarray) -> Flat:
    arrays = [np.ascontiguousarray(array, np.float32) for array in (origin, basis)]
    for array in arrays:
        array.flags.writeable = False
    return Flat(*arrays)


def through(points: np.ndarray, directions: np.ndarray) -> Flat:
    return flat(*reference.canonicalise(points, directions))


def random_side(rng: np.random.Generator, count: int, m: int, n: int, scale: float = 1.0) -> Flat:
    return through(scale * rng.normal(size=(count, n)) / np.sqrt(n), rng.normal(size=(count, m, n)))


def random_pair(seed: int, counts=(70, 45), m=(2, 2), n: int = 128) -> tuple[Flat, Flat]:
    rng = np.random.default_rng(seed)
    return random_side(rng, counts[0], m[0], n), random_side(rng, counts[1], m[1], n)


def squared_scale(*sides: Flat) -> float:
    return max(float(np.square(side.origin, dtype=np.float64).sum(axis=1).max(initial=0)) for side in sides)


def best(matrix: np.ndarray, keep: int, limit: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """The definition: the least of each row, of equals the lower column, inf and -1 where there are fewer."""
    full = np.concatenate([np.where(matrix <= limit, matrix, np.inf), np.full((len(matrix), keep), np.inf)], axis=1)
    rows = np.argsort(full, axis=1, kind="stable")[:, :keep]
    values = np.take_along_axis(full, rows, axis=1)
    return values, np.where(np.isfinite(values), rows, -1)


def bounds_of(side0: Flat, side1: Flat) -> np.ndarray:
    """The lower bounds of all squared distances by which candidates are chosen."""
    with torch.inference_mode():
        tiles = torch_search._Tiles(torch, torch.device("cpu"), 1 << 25, np.add, (side0, side1))
        bounds = tiles.bounds(torch.arange(len(side0.origin)), torch.arange(len(side1.origin)))
    return bounds.double().numpy() * tiles.scale**2


class Checked(NamedTuple):
    result: tuple
    evaluated: int


def check(side0: Flat, side1: Flat, keep=(2, 2), *, device="cpu", limit=np.inf, budget=MANY_TILES) -> Checked:
    """Search, and hold every value and every row against the reference."""
    matrix = reference.squared_distances(side0, side1)
    if budget == MANY_TILES:
        budget *= (side0.basis.shape[1] + 2) * (side1.basis.shape[1] + 2)
    counts = []

    def exact(i, j):
        assert i.dtype == j.dtype == np.int64
        assert i.flags.c_contiguous
        assert j.flags.c_contiguous
        counts.append(len(i))
        return matrix[i, j]

    result = torch_search.search(*side0, *side1, keep, device=device, exact=exact, limit=limit, budget=budget)
    expected = (*best(matrix, keep[0], limit), *best(matrix.T, keep[1], limit))
    for got, want in zip(result, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return Checked(result, sum(counts))


DIMENSIONS = [(0, 0), (0, 2), (2, 2), (3, 0), (4, 4), (8, 2)]
LARGER = [(1, 1), (3, 5), (7, 8)]
MORE_DIMENSIONS = [(0, 1), (0, 16), (1, 1), (3, 3), (8, 8), (16, 16), (1, 4), (3, 16)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dimensions", [DIMENSIONS, pytest.param(MORE_DIMENSIONS, marks=pytest.mark.slow)])
def test_random_sides_of_any_dimensions(device, dimensions):
    for m, n in itertools.product(dimensions, [5, 128]):
        check_random(device, n, m)


def check_random(device, n, m):
    side0, side1 = random_pair(sum(m), counts=(37, 53), m=tuple(min(k, n) for k in m), n=n)
    checked = check(side0, side1, (2, 3), device=device)
    if n == 128:  # only what float32 leaves open, not every pair, is evaluated
        assert checked.evaluated < 0.16 * 37 * 53


def test_any_number_of_neighbours():
    for keep in [(1, 0), (0, 1), (0, 0), (2, 1), (5, 5), (60, 100)]:
        result = check(*random_pair(1, counts=(23, 31), n=32), keep).result
        assert [array.shape for array in result] == [(23, keep[0])] * 2 + [(31, keep[1])] * 2


def test_few_or_no_rows():
    for counts in [(0, 0), (0, 5), (5, 0), (1, 1), (1, 40), (40, 1)]:
        for m in [(0, 0), (2, 0), (1, 3)]:
            check(*random_pair(2, counts=counts, m=m, n=16), (2, 3))


def test_all_rows_within_one_tile_and_each_pair_a_tile():
    sides = random_pair(3, counts=(19, 26), m=(1, 2), n=24)
    check(*sides, budget=None)
    check(*sides, budget=1)


@pytest.mark.parametrize("m", [0, 1, 2, 4])
def test_duplicates_go_to_the_lower_row(m):
    rng = np.random.default_rng(4)
    distinct = random_side(rng, 6, m, 32)
    sides = distinct[rng.integers(6, size=50)], distinct[rng.integers(6, size=41)]
    result = check(*sides, (3, 3)).result
    assert result[0][:, 0].max() < 1e-10


@pytest.mark.parametrize("m", [0, 1, 3, 5])
def test_all_equal(m):
    side = random_side(np.random.default_rng(5), 1, m, 12)
    check(side[np.zeros(30, int)], side[np.zeros(33, int)], (2, 1))


def test_equal_without_any_rounding():
    """Pivots of exactly 0, and 0 / 0 in the solution."""
    axes = np.broadcast_to(np.eye(9)[None, :4], (25, 4, 9))
    check(flat(np.zeros((25, 9)), axes[:, :3]), flat(np.zeros((25, 9)), axes))
    origin = np.broadcast_to(np.eye(9)[5] / 4, (25, 9))
    check(flat(origin, axes[:, :2]), flat(2 * origin, axes[:, ::-1]))


@pytest.mark.parametrize("m", [(2, 2), (4, 4), (2, 4), (0, 2)])
def test_lifted_through_the_same_decoys(m):
    """Half of the directions lead to a few common points: many pairs meet, or share a direction."""
    rng = np.random.default_rng(6)
    decoys = rng.normal(size=(5, 64)) / 8

    def lifted(count: int, m: int) -> Flat:
        clear = rng.normal(size=(count, 64)) / 8
        directions = rng.normal(size=(count, m, 64))
        for row in range(count):
            drawn = rng.choice(5, size=max(1, m // 2), replace=False)
            directions[row, : len(drawn)] = decoys[drawn][:m] - clear[row]
        return through(clear, directions)

    sides = [lifted(48, m[0]) if m[0] else flat(decoys, np.zeros((5, 0, 64))), lifted(39, m[1])]
    result = check(*sides, (2, 2)).result
    assert np.median(result[2][:, 0]) < 1e-10


def test_directions_shared_or_nearly():
    for angle in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 0.0):
        for m in [(1, 1), (2, 3), (4, 4)]:
            check_shared(angle, m)


def check_shared(angle, m):
    rng = np.random.default_rng(7)
    common = rng.normal(size=20)
    sides = []
    for count, k in zip((24, 29), m, strict=True):
        directions = rng.normal(size=(count, k, 20))
        directions[:, 0] = common + angle * directions[:, 0]
        sides.append(through(rng.normal(size=(count, 20)), directions))
    check(*sides)


def test_subspaces_so_large_that_all_meet():
    for m, n in [((2, 2), 4), ((2, 3), 5), ((3, 3), 5), ((4, 5), 5), ((5, 5), 5), ((7, 8), 16)]:
        check(*random_pair(8, counts=(20, 25), m=m, n=n))


def test_any_scale():
    for m, scale in itertools.product([(0, 0), (0, 2), (2, 2)], [512.0, 1e-12, 1e18, 3e37]):
        rng = np.random.default_rng(9)
        sides = [random_side(rng, 40, k, 32, scale) for k in m]
        assert check(*sides).evaluated < 600


def test_what_all_rows_have_in_common_costs_no_digits():
    rng = np.random.default_rng(10)
    points = [flat(1000 + rng.normal(size=(50, 16)), np.zeros((50, 0, 16))) for _ in range(2)]
    assert check(*points).evaluated < 600
    assert check(points[0], through(points[1].origin, rng.normal(size=(50, 2, 16)))).evaluated < 600


def test_one_row_far_from_all_others():
    rng = np.random.default_rng(11)
    clear = rng.normal(size=(60, 24))
    clear[7] *= 1e5
    check(through(clear, rng.normal(size=(60, 2, 24))), random_side(rng, 40, 1, 24))


def test_subspaces_through_0():
    rng = np.random.default_rng(12)
    sides = [through(np.zeros((20, 16)), rng.normal(size=(20, m, 16))) for m in (2, 3)]
    check(*sides)
    check(sides[0], random_side(rng, 20, 2, 16))


def test_bases_canonical_only_as_far_as_float32_asks():
    rng = np.random.default_rng(13)
    common, bend = rng.normal(size=(6, 48)), np.eye(6) - 1e-6
    sides = []
    for _ in range(2):
        good = through(rng.normal(size=(90, 48)), common + 0.5 * rng.normal(size=(90, 6, 48)))
        bent = bend @ good.basis
        sides.append(flat(good.origin + 2e-6 * bent[:, 0], bent))
    check(*sides)
    matrix = reference.squared_distances(*sides)
    assert (bounds_of(*sides) <= matrix * (1 + 1e-6)).all()


@pytest.mark.parametrize("limit", [-1.0, 0.0, 0.9, 1.2, 100.0])
def test_nothing_beyond_the_limit(limit):
    side0, side1 = random_pair(14, counts=(40, 30), m=(2, 1), n=32)
    side0 = flat(np.concatenate([side0.origin, side1.origin[:3]]), np.concatenate([side0.basis, side0.basis[:3]]))
    result, evaluated = check(side0, side1, (4, 4), limit=limit)
    assert evaluated < (250 if limit < 1 else 1000)
    assert (result[0][np.isfinite(result[0])] <= limit).all()
    assert (result[1] == -1).any() == (limit < 100)


@pytest.mark.parametrize("inclusive", [True, False])
def test_the_limit_itself_is_within(inclusive):
    side0, side1 = random_pair(24, counts=(30, 30), n=32)
    value = np.sort(reference.squared_distances(side0, side1), axis=None)[7]
    result = check(side0, side1, limit=value if inclusive else np.nextafter(value, 0)).result
    assert (result[0] == value).any() == inclusive


@pytest.mark.parametrize("m", [(0, 0), (0, 3), (2, 2), *(pytest.param(m, marks=pytest.mark.slow) for m in LARGER)])
def test_bounds_lie_under_the_distances_and_near_them(m):
    """Also where all directions are within a cone, narrower and narrower."""
    for n, spread in itertools.product([16, 128], [3.0, 0.3, 0.1]):
        check_bounds(m, n, spread)


def check_bounds(m, n, spread):
    rng = np.random.default_rng(15)
    common = rng.normal(size=(8, n))
    side0, side1 = (through(rng.normal(size=(90, n)), common[:k] + spread * rng.normal(size=(90, k, n))) for k in m)
    matrix, bounds = reference.squared_distances(side0, side1), bounds_of(side0, side1)
    assert (bounds <= matrix * (1 + 1e-6)).all()
    if n == 128 and spread > 1:
        assert (matrix - bounds).max() < 2e-5 * squared_scale(side0, side1)


@given(st.data())
def test_any_sides_agree_with_the_reference(data):
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, counts = draw(st.integers(1, 12)), (draw(st.integers(0, 14)), draw(st.integers(0, 14)))
    scale, shared = draw(st.sampled_from([1e-3, 1.0, 512.0])), draw(st.sampled_from([0.0, 1e-6, 1e-3, 1.0]))
    directions = rng.normal(size=(n, n))
    sides = []
    for count in counts:
        m = draw(st.integers(0, n))
        distinct = max(1, draw(st.integers(1, 14)))
        mixed = directions[:m] + shared * rng.normal(size=(distinct, m, n))
        whole = through(scale * rng.normal(size=(distinct, n)), mixed)
        sides.append(whole[rng.integers(distinct, size=count)])
    keep = draw(st.tuples(*[st.sampled_from([0, 1, 2, 5])] * 2))
    limit = draw(st.sampled_from([np.inf, scale * scale]))
    check(*sides, keep, limit=limit, budget=draw(st.sampled_from([1, 1 << 11, None])))


def test_tiles_are_many_and_within_the_budget(monkeypatch):
    sizes, whole = [], torch_search._Tiles.bounds

    def bounds(tiles, i, j):
        sizes.append((len(i) * len(j), tiles.at_once()))
        return whole(tiles, i, j)

    monkeypatch.setattr(torch_search._Tiles, "bounds", bounds)
    check(*random_pair(16, counts=(61, 47)))
    assert len(sizes) > 12
    assert all(size <= most < 61 * 47 for size, most in sizes)


FULL = [
    lambda: torch.cuda.OutOfMemoryError("CUDA out of memory"),
    lambda: MemoryError(),
    lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
]


@pytest.mark.parametrize("problem", FULL)
def test_out_of_memory_goes_on_with_smaller_tiles(monkeypatch, problem):
    """Also in the middle of a merge: no pair is lost or counted twice."""
    whole, merged, calls = torch_search._Tiles.bounds, torch_search._merge, []

    def bounds(tiles, i, j):
        if len(i) * len(j) > 90:
            raise problem()
        return whole(tiles, i, j)

    def sometimes_merged(*args):
        calls.append(args)
        if len(calls) in (2, 9, 30):
            raise problem()
        return merged(*args)

    monkeypatch.setattr(torch_search._Tiles, "bounds", bounds)
    monkeypatch.setattr(torch_search, "_merge", sometimes_merged)
    check(*random_pair(17, counts=(40, 35), n=16), budget=None)
    assert len(calls) > 40


@pytest.mark.parametrize("problem", FULL)
@pytest.mark.parametrize(("where", "words"), [("_bounds", "pair"), ("_make_canonical", "40")])
def test_out_of_memory_in_the_end(monkeypatch, problem, where, words):
    def fail(*args):
        raise problem()

    monkeypatch.setattr(torch_search, where, fail)
    with pytest.raises(InputError, match=f"device: cpu .*{words}"):
        check(*random_pair(18, counts=(40, 35)))


def test_other_failures_are_not_taken_for_a_lack_of_memory():
    sides = random_pair(19, counts=(4, 4))

    def exact(i, j):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        torch_search.search(*sides[0], *sides[1], (1, 1), device="cpu", exact=exact)


def matmul_precision() -> list[str]:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before torch 2.9
        return [torch.get_float32_matmul_precision()]
    return [switch.fp32_precision for switch in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)]


def state() -> tuple:
    return (
        *matmul_precision(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().tolist(),
    )


@pytest.fixture
def reduced_precision():
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("fails", [False, True])
def test_torch_is_left_as_it_was(reduced_precision, fails):
    """The caller's own choices, here the worst for us, neither reach the search nor are lost by it."""
    sides, inside = random_pair(20, counts=(60, 50)), []
    matrix = reference.squared_distances(*sides)

    def exact(i, j):
        inside.extend([*matmul_precision(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")])
        if fails:
            raise KeyboardInterrupt
        return matrix[i, j]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = state()
        try:
            result = torch_search.search(*sides[0], *sides[1], (1, 1), device="cpu", exact=exact)
        except KeyboardInterrupt:
            assert fails
        else:
            np.testing.assert_array_equal(result[1], best(matrix, 1)[1])
        assert state() == before
    assert set(inside) <= {"ieee", "highest", True, False}
    assert inside[-2:] == [True, False]


@pytest.mark.parametrize("device", ["cdua", "gpu", "", "cpu:7", "cuda:99", "meta", "mps"])
@pytest.mark.parametrize("count", [0, 3])
def test_a_device_that_is_not_available(device, count):
    sides = random_pair(21, counts=(count, 3))
    with pytest.raises(InputError, match="device"):
        torch_search.search(*sides[0], *sides[1], (1, 1), device=device, exact=np.add)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_no_gpu():
    sides = random_pair(22, counts=(3, 3))
    with pytest.raises(InputError, match="'cuda'"):
        torch_search.search(*sides[0], *sides[1], (1, 1), device="cuda", exact=np.add)


def test_without_torch(monkeypatch):
    sides = random_pair(23, counts=(3, 3))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"sfumato\[learn\]"):
        torch_search.search(*sides[0], *sides[1], (1, 1), device="cpu", exact=np.add)
