# SPDX-License-Identifier: Apache-2.0
"""The search finds what the reference defines, to the same bits however it is cut into tiles, threads and bounds."""

import importlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import sfumato
from sfumato.errors import EvaluationOnlyWarning, InputError
from sfumato.subspace import fast, plan, reference

pytestmark = pytest.mark.filterwarnings("ignore::sfumato.errors.VoidDistanceWarning")

RESOLUTION = 5e-7
"""How exactly float32 knows a distance, in units of the longer of two origins: below that it may count as 0."""


class Flat(NamedTuple):
    """Canonical subspaces (N, n) and (N, m, n) float32, read-only as they are everywhere."""

    origin: np.ndarray
    basis: np.ndarray

    def __getitem__(self, rows):
        return flat(self.origin[rows], self.basis[rows])


def flat(origin, basis) -> Flat:
    arrays = [np.array(array, np.float32, order="C") for array in (origin, basis)]
    for array in arrays:
        array.flags.writeable = False
    return Flat(*arrays)


def through(points: np.ndarray, directions: np.ndarray) -> Flat:
    return flat(*reference.canonicalise(points, directions))


def points_of(rows: np.ndarray) -> Flat:
    return flat(rows, np.zeros((len(rows), 0, rows.shape[1])))


def prepared(*sides: Flat):
    return [fast.prepare(*side) for side in sides]


def arrays_of(found: fast.Neighbours) -> tuple[np.ndarray, ...]:
    return found.squared0, found.rows0, found.squared1, found.rows1


def search(side0: Flat, side1: Flat, keep, **options) -> tuple[np.ndarray, ...]:
    return arrays_of(fast.search(*prepared(side0, side1), keep, **options))


def check(side0: Flat, side1: Flat, found, keep, limit: float = np.inf) -> None:
    """Hold every value and every rank against the reference, to 1e-9 of the data's scale and float32's resolution."""
    matrix = reference.squared_distances(side0, side1)
    lengths = [np.linalg.norm(side.origin.astype(float), axis=1) for side in (side0, side1)]
    unit = min(1.0, max(float(length.max(initial=0.0)) for length in lengths))
    allowed = 1e-9 * unit**2 + (RESOLUTION * np.maximum(lengths[0][:, None], lengths[1])) ** 2
    check_ranks(matrix, allowed, *found[:2], keep[0], limit)
    check_ranks(matrix.T, allowed.T, *found[2:], keep[1], limit)


def check_ranks(matrix, allowed, squared, rows, keep, limit) -> None:
    assert squared.dtype == np.float64
    assert rows.dtype == np.int64
    assert squared.shape == rows.shape == (len(matrix), min(keep, matrix.shape[1]))
    missing = rows < 0
    assert (np.isinf(squared) == missing).all()
    assert (np.diff(np.where(missing, 1e300, squared), axis=1) >= 0).all()
    order = np.argsort(matrix, axis=1, kind="stable")[:, : squared.shape[1]]
    true, slack = (np.take_along_axis(array, order, 1) for array in (matrix, allowed))
    here, own = (np.take_along_axis(array, np.maximum(rows, 0), 1) for array in (matrix, allowed))
    assert (missing | (np.abs(squared - here) <= own)).all(), "a value is wrong"
    assert (missing | (here <= true + slack + own)).all(), "a nearer one was missed"
    assert (missing >= (true > limit + slack)).all(), "beyond the limit"
    assert (missing <= (true >= limit - slack)).all(), "missed within the limit"
    assert all(len(set(line[line >= 0])) == (line >= 0).sum() for line in rows), "a row twice"


def assert_identical(found, others) -> None:
    for got, want in zip(found, others, strict=True):
        np.testing.assert_array_equal(got, want)


def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TILE_BYTES", 900), ("TILE_COLUMNS", 48), ("ROWS_AT_ONCE", 6), ("COLUMNS_AT_ONCE", 16)):
        monkeypatch.setattr(fast, name, value)


# What is searched. Each takes a generator and the two dimensions.

COUNTS = (103, 77)


def gaussian(rng, m, n=128, counts=COUNTS, scale=1.0):
    return [
        through(scale * rng.normal(size=(count, n)) / np.sqrt(n), rng.normal(size=(count, k, n)))
        for count, k in zip(counts, m, strict=True)
    ]


def like_sift(rng, m):
    """Non-negative unit vectors, of which many are near one another."""
    clear = np.maximum(rng.normal(size=(max(COUNTS), 128)), 0) ** 2
    sides = []
    for count, k in zip(COUNTS, m, strict=True):
        rows = np.maximum(clear[:count] + 0.2 * rng.normal(size=(count, 128)), 0)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        sides.append(through(rows, rng.normal(size=(count, k, 128))))
    return sides


def duplicates(rng, m):
    few = gaussian(rng, m, 17, (7, 6))
    return few[0][rng.integers(7, size=COUNTS[0])], few[1][rng.integers(6, size=COUNTS[1])]


def all_equal(rng, m):
    side = gaussian(rng, (max(m), max(m)), 17, (1, 1))[0]
    return [flat(side.origin, side.basis[:, :k])[np.zeros(count, int)] for count, k in zip(COUNTS, m, strict=True)]


def shared_decoys(rng, m):
    """Half of the directions lead to a few common points: many pairs meet."""
    decoys = rng.normal(size=(5, 32))
    sides = []
    for count, k in zip(COUNTS, m, strict=True):
        clear, directions = rng.normal(size=(count, 32)), rng.normal(size=(count, k, 32))
        for row in range(count):
            drawn = rng.choice(5, size=(k + 1) // 2, replace=False)
            directions[row, : len(drawn)] = decoys[drawn] - clear[row]
        sides.append(through(clear, directions) if k else points_of(decoys[rng.integers(5, size=count)]))
    return sides


def shared_directions(rng, m, angle, how_many=None):
    """One direction, or all, are the same within an angle."""
    common = rng.normal(size=(max(m), 20))
    sides = []
    for count, k in zip(COUNTS, m, strict=True):
        directions = rng.normal(size=(count, k, 20))
        directions[:, :how_many] = common[:k][:how_many] + angle * directions[:, :how_many]
        sides.append(through(rng.normal(size=(count, 20)), directions))
    return sides


def far_from_0(rng, m):
    clear = 1e4 / np.sqrt(32) + rng.normal(size=(2, max(COUNTS), 32)) / 6
    return [
        through(rows[:count], rng.normal(size=(count, k, 32))) for rows, count, k in zip(clear, COUNTS, m, strict=True)
    ]


def one_outlier(rng, m):
    """One row far out; pairs of others lie near one another."""
    clear = rng.normal(size=(max(COUNTS), 32))
    clear /= np.linalg.norm(clear, axis=1, keepdims=True)
    sides = []
    for count, k in zip(COUNTS, m, strict=True):
        rows = clear[:count] + 1e-3 * rng.normal(size=(count, 32))
        rows[7] *= 1e5
        sides.append(through(rows, rng.normal(size=(count, k, 32))))
    return sides


def few_coordinates(rng, m, scale=1.0):
    """What varies lies in five coordinates, the directions mostly do not: a projection loses them."""
    sides = []
    for count, k in zip(COUNTS, m, strict=True):
        clear, directions = np.zeros((count, 24)), rng.normal(size=(count, k, 24))
        clear[:, :5] = rng.normal(size=(count, 5))
        directions[:, ::2, :8] = 1e-3 * directions[:, ::2, :8]
        sides.append(through(scale * clear, directions))
    return sides


def through_0(rng, m):
    return [through(np.zeros((count, 20)), rng.normal(size=(count, k, 20))) for count, k in zip(COUNTS, m, strict=True)]


def rounded_to_float16(rng, m):
    """As an archive of half precision gives them back: canonical to float32 again, but moved."""
    return [
        Flat(*(getattr(sfumato.Subspaces(*(p.astype(np.float16) for p in side)), part) for part in Flat._fields))
        for side in gaussian(rng, m)
    ]


def of_dimension(n: int) -> Callable:
    return lambda rng, m: gaussian(rng, tuple(min(k, n) for k in m), n)


def of_scale(scale: float) -> Callable:
    return lambda rng, m: gaussian(rng, m, 20, scale=scale)


CASES: dict[str, Callable] = {
    "gaussian": gaussian,
    "like sift": like_sift,
    "duplicates": duplicates,
    "all equal": all_equal,
    "shared decoys": shared_decoys,
    "one direction shared": lambda rng, m: shared_directions(rng, m, 0.0, 1),
    "one direction nearly shared": lambda rng, m: shared_directions(rng, m, 1e-7, 1),
    "one direction close": lambda rng, m: shared_directions(rng, m, 1e-3, 1),
    "all directions shared": lambda rng, m: shared_directions(rng, m, 0.0),
    "all directions nearly shared": lambda rng, m: shared_directions(rng, m, 1e-7),
    "all directions close": lambda rng, m: shared_directions(rng, m, 1e-2),
    "far from 0": far_from_0,
    "one outlier": one_outlier,
    "few coordinates": few_coordinates,
    "through 0": through_0,
    "float16": rounded_to_float16,
    "n = 3": of_dimension(3),
    "n = 5": of_dimension(5),
    "n = 17": of_dimension(17),
    "n = 130": of_dimension(130),
    "tiny": of_scale(1e-6),
    "tinier": of_scale(1e-20),
    "huge": of_scale(1e6),
    "huger": of_scale(1e18),
    "few coordinates, huger": lambda rng, m: few_coordinates(rng, m, 1e17),
}

COMPILED = [(0, 0), (0, 2), (2, 2), (4, 4), pytest.param((1, 3), marks=pytest.mark.slow)]
"""Each pair of dimensions takes seconds to compile, so every commit tests a fixed set."""


def heads_of(side: Flat) -> list[int | None]:
    n, m = side.origin.shape[1], side.basis.shape[1]
    return [None, *sorted({head for head in (m + 4, 8, 24, 48) if m < head < n}), n]


@pytest.mark.parametrize("m", COMPILED)
def test_the_result_is_what_the_reference_says(m):
    """With any bound, any number of threads, and in tiles of any size: the same bits."""
    for case, make in CASES.items():
        if case == "n = 3" and m not in ((0, 0), (2, 2)):  # would have to be compiled for this alone
            continue
        side0, side1 = make(np.random.default_rng(sum(map(ord, case))), m)
        one_tile = search(side0, side1, (2, 2))
        check(side0, side1, one_tile, (2, 2))
        with pytest.MonkeyPatch.context() as patch:
            small_tiles(patch)
            for head, threads in zip(heads_of(side0), itertools.cycle((1, 3))):
                assert_identical(search(side0, side1, (2, 2), head=head, threads=threads), one_tile)


@pytest.mark.parametrize("keep", [(1, 1), (2, 2), (5, 0), (0, 3), (1, 2), (0, 0), (200, 200)])
@pytest.mark.parametrize("m", [(2, 2), pytest.param((0, 2), marks=pytest.mark.slow)])
def test_any_number_of_neighbours(monkeypatch, keep, m):
    """With a plan from the data, and tile by tile, too."""
    side0, side1 = like_sift(np.random.default_rng(1), m)
    whole = search(side0, side1, keep)
    check(side0, side1, whole, keep)
    monkeypatch.setattr(plan, "SMALL", 0)
    assert_identical(search(side0, side1, keep), whole)
    small_tiles(monkeypatch)
    for head, threads in ((None, 2), (24, 1), (128, 3)):
        assert_identical(search(side0, side1, keep, head=head, threads=threads), whole)


def test_many_columns_without_a_bound():
    """Few pairs are searched without a bound, but may still need several tiles."""
    rng = np.random.default_rng(2)
    sides = [points_of(rng.normal(size=(count, 8))) for count in (5, fast.TILE_COLUMNS + 3000)]
    check(*sides, search(*sides, (1, 1)), (1, 1))
    check(*sides[::-1], search(*sides[::-1], (1, 1)), (1, 1))


@pytest.mark.parametrize("m", [126, pytest.param(112, marks=pytest.mark.slow)])
@pytest.mark.parametrize("swapped", [False, True])
def test_the_dual_form_of_large_subspaces(monkeypatch, m, swapped):
    rng = np.random.default_rng(m)
    sides = [points_of(rng.normal(size=(41, 128)) / 11), gaussian(rng, (m, m), counts=(53, 1))[0]][
        :: -1 if swapped else 1
    ]
    whole = search(*sides, (2, 2))
    check(*sides, whole, (2, 2))
    small_tiles(monkeypatch)
    for head in (24, 48, 120, 128):
        assert_identical(search(*sides, (2, 2), head=head), whole)


@pytest.mark.slow
def test_points_against_larger_subspaces():
    side0, side1 = gaussian(np.random.default_rng(3), (0, 16))
    found = search(side0, side1, (2, 2))
    check(side0, side1, found, (2, 2))
    for head in (24, 48, 128):
        assert_identical(search(side0, side1, (2, 2), head=head), found)


def test_few_or_no_rows():
    for counts, head in itertools.product([(0, 0), (0, 5), (5, 0), (1, 1), (1, 70), (70, 1)], [None, 8]):
        sides = gaussian(np.random.default_rng(4), (2, 2), 16, counts)
        check(*sides, search(*sides, (2, 3), head=head), (2, 3))


def test_a_side_with_itself():
    side = gaussian(np.random.default_rng(5), (2, 2), 32)[0]
    ready = fast.prepare(*side)
    found = arrays_of(fast.search(ready, ready, (2, 2), head=16))
    check(side, side, found, (2, 2))
    assert (found[1][:, 0] == np.arange(len(side.origin))).all()
    assert (found[0][:, 0] == 0).all()


def test_of_equals_the_lower_number_first(monkeypatch):
    sides = all_equal(np.random.default_rng(6), (2, 2))
    small_tiles(monkeypatch)
    for head in (None, 8, 17):
        found = search(*sides, (3, 3), head=head, threads=2)
        assert (found[1] == [0, 1, 2]).all()
        assert (found[3] == [0, 1, 2]).all()


@pytest.mark.parametrize("head", [None, 16])
def test_the_limit_itself_is_within(head):
    sides = gaussian(np.random.default_rng(7), (2, 2), 32)
    everything = search(*sides, (4, 4))
    for limit in np.sort(everything[0], axis=None)[[9, 200]]:
        found = search(*sides, (4, 4), limit=limit, head=head)
        for k in (0, 2):
            outside = everything[k] > limit
            np.testing.assert_array_equal(found[k], np.where(outside, np.inf, everything[k]))
            np.testing.assert_array_equal(found[k + 1], np.where(outside, -1, everything[k + 1]))
        assert (found[0] == limit).any()


@pytest.mark.parametrize("head", [None, 16])
def test_a_limit_of_0_leaves_what_meets(head):
    side = gaussian(np.random.default_rng(8), (2, 2), 32)[0]
    found = search(side, side, (2, 2), limit=0.0, head=head)
    for squared, rows in (found[:2], found[2:]):
        assert (squared == [0, np.inf]).all()
        assert (rows[:, 0] == np.arange(len(rows))).all()
        assert (rows[:, 1] == -1).all()


def test_one_side_against_many():
    """The frame and the panels of the first search serve the others, which lie elsewhere."""
    rng = np.random.default_rng(9)
    base, *others = (gaussian(rng, (2, 2), 24, scale=scale)[0] for scale in (1.0, 1.0, 30.0, 1e-3))
    others.append(flat(others[0].origin + 0, others[0].basis))
    ready, far = fast.prepare(*base), through(5 + rng.normal(size=(60, 24)), rng.normal(size=(60, 2, 24)))
    for other in (*others, far, base):
        for head in (None, 12):
            found = arrays_of(fast.search(ready, fast.prepare(*other), (2, 2), head=head))
            assert_identical(found, search(base, other, (2, 2)))
            check(base, other, found, (2, 2))


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_the_threads_of_the_caller_are_left_as_they_were(monkeypatch):
    """Also when two searches overlap: the first to begin is the first to end."""
    sides = gaussian(np.random.default_rng(11), (2, 2), 16)
    search(*sides, (1, 1))
    whole = fast.TiledSearch.run
    inside, second, done = threading.Event(), threading.Event(), threading.Event()

    def run(self, *args):
        if not inside.is_set():
            inside.set()
            second.wait(5)
        else:
            second.set()
            done.wait(5)
        return whole(self, *args)

    monkeypatch.setattr(fast.TiledSearch, "run", run)
    before = blas_threads()
    first, other = (threading.Thread(target=search, args=(*sides, (1, 1))) for _ in range(2))
    first.start()
    assert inside.wait(30)
    other.start()
    first.join(60)
    done.set()
    other.join(60)
    after = blas_threads()
    threadpool_limits(max(before, default=1), "blas")  # for the tests that follow
    assert after == before


def test_two_searches_at_once_share_what_is_prepared():
    rng = np.random.default_rng(10)
    sides = [gaussian(rng, (2, 2), 64)[0] for _ in range(3)]
    jobs = [(0, 1, None), (1, 2, 16), (2, 0, 32), (0, 2, 16)]
    want = [search(sides[i], sides[j], (2, 2)) for i, j, _ in jobs]
    for _ in range(5):
        ready, start, found = prepared(*sides), threading.Barrier(2 * len(jobs)), {}

        def work(key, i, j, head, ready=ready, start=start, found=found):
            start.wait(30)
            found[key] = arrays_of(fast.search(ready[i], ready[j], (2, 2), head=head, threads=2))

        threads = [
            threading.Thread(target=work, args=((copy, k), *job)) for copy in (0, 1) for k, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for (_, k), got in found.items():
            assert_identical(got, want[k])
        assert len(found) == len(threads)


def test_numbers_of_threads():
    assert fast.thread_count(3) == 3
    assert 1 <= fast.thread_count(None) <= (os.cpu_count() or 1)
    with pytest.raises(InputError, match="threads"):
        fast.thread_count(0)


def test_arrays_of_either_kind_share_one_compiled_form():
    """Read-only or not: compiling takes seconds."""
    from sfumato.subspace.kernels import bounds, exact, sweep

    sides = gaussian(np.random.default_rng(12), (2, 2), 32)
    compiled = (sweep._sweep_rows, sweep._sweep_columns, bounds.fill, exact._decide)
    search(*sides, (1, 1), head=16)
    before = [len(function.signatures) for function in compiled]
    writable = [Flat(*(part.copy() for part in side)) for side in sides]
    found = search(*writable, (1, 1), head=16)
    assert [len(function.signatures) for function in compiled] == before
    assert_identical(found, search(*sides, (1, 1)))


ONCE_MORE = """
import numpy as np
from sfumato.subspace import fast
from sfumato.subspace.kernels import bounds, exact, panels, sweep
rng = np.random.default_rng(0)
sides = []
for _ in range(2):
    basis = np.linalg.qr(rng.normal(size=(20, 32, 2))).Q.transpose(0, 2, 1)
    arrays = [np.zeros((20, 32), np.float32), np.ascontiguousarray(basis, np.float32)]
    for array in arrays:
        array.flags.writeable = False
    sides.append(fast.prepare(*arrays))
fast.search(*sides, (1, 1), head=16, threads=1)
for function in (bounds.fill, sweep._sweep_rows, sweep._sweep_columns, exact._decide, panels._round):
    stats = function.stats
    print(function.__name__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_a_new_process_need_not_compile_again():
    search(*gaussian(np.random.default_rng(13), (2, 2), 32), (1, 1), head=16, threads=1)
    out = subprocess.run([sys.executable, "-c", ONCE_MORE], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines] == ["fill", "_sweep_rows", "_sweep_columns", "_decide", "_round"]
    assert all(int(hits) > 0 and int(misses) == 0 for _, hits, misses in lines), out


LESS_OFTEN = [(8, "sub-hybrid-4"), (1, "sub-hybrid-2")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "recipe"),
    [(8, "sub-hybrid-2"), (1, "sub-hybrid-4"), *(pytest.param(*case, marks=pytest.mark.slow) for case in LESS_OFTEN)],
)
def test_real_pictures(shared_data, parts, recipe):
    """With ``parts`` 1, both are lifted from the same part of the decoys."""
    folder = shared_data / "posed" / "fountain-P11" / "images"
    clear = [
        sfumato.extract(folder / name, max_features=count) for name, count in (("0004.jpg", 211), ("0005.jpg", 190))
    ]
    known = sfumato.load_decoys()
    decoys = known if parts > 1 else type(known)(known.descriptors[:300], known.extractor, parts=1)
    with pytest.warns(EvaluationOnlyWarning):
        sides = [
            Flat(hidden.code.origin, hidden.code.basis)
            for seed, features in enumerate(clear)
            for hidden in [sfumato.conceal(features, recipe, decoys, evaluation_seed=seed)]
        ]
    found = search(*sides, (2, 2))
    check(*sides, found, (2, 2))
    for head in (24, 48, 128):
        assert_identical(search(*sides, (2, 2), head=head), found)
    if recipe == "sub-hybrid-2":
        raw = points_of(clear[0].descriptors)
        check(raw, sides[1], search(raw, sides[1], (2, 2), head=24), (2, 2))


def test_nothing_shows_the_values():
    side = points_of(np.full((3, 4), 0.123, np.float32))
    ready = fast.prepare(*side)
    assert "0.123" not in f"{ready!r} {fast.search(ready, ready, (1, 1))!r}"


def test_without_a_folder_for_compiled_code_it_is_compiled_again():
    program = """
from numba.core import caching
kept = [kind for kind in caching.CacheImpl._locator_classes if "UserProvided" in kind.__name__]
assert kept
caching.CacheImpl._locator_classes = kept  # as if package and home were read-only
from sfumato.subspace.fast import load_kernels
load_kernels()
from sfumato.subspace.kernels.exact import work_size
print(work_size(1, 2, 3), len(work_size.signatures))
"""
    settings = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"} | {"NUMBA_OPT": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=settings, check=False)
    assert done.stdout.strip() == "28 1", done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr


def test_code_that_the_disk_has_no_room_for_is_used_all_the_same(tmp_path, monkeypatch, caplog):
    from numba.core.caching import IndexDataCacheFile

    (tmp_path / "full_disk_kernel.py").write_text(
        "from numba import njit\n\n@njit(cache=True)\ndef more(x):\n    return x + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    kernel = fast.load_compiled(lambda: importlib.import_module("full_disk_kernel"))
    assert kernel.more(1) == 2
    assert "No space" in caplog.text


def test_one_of_several_workers_takes_its_share_of_the_cores():
    cores = fast.thread_count(None)
    fast.limit_threads(1)
    try:
        assert fast.thread_count(None) == 1
        assert fast.thread_count(3) == 3  # whoever asks for more gets it
    finally:
        fast.limit_threads(10**6)
    assert fast.thread_count(None) == cores


# --- one thread of BLAS


def own_blas_threads() -> set[int]:
    """The threads of numpy's BLAS; other libraries bring others, which nobody limits."""
    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    return {library["num_threads"] for library in libraries if "numpy" in library["filepath"] or len(libraries) == 1}


def test_the_last_one_restores():
    with threadpool_limits(2, "blas"):
        before = own_blas_threads()
        first, second = fast.one_blas_thread(), fast.one_blas_thread()
        first.__enter__()
        second.__enter__()
        assert own_blas_threads() == {1}
        first.__exit__(None, None, None)
        assert own_blas_threads() == {1}
        second.__exit__(None, None, None)
        assert own_blas_threads() == before


def test_an_error_restores_too():
    with threadpool_limits(2, "blas"):
        before = own_blas_threads()
        with pytest.raises(ZeroDivisionError), fast.one_blas_thread():
            raise ZeroDivisionError
        assert own_blas_threads() == before


def test_what_another_process_compiles_ahead_is_what_searches_use():
    program = """
import numpy as np
from sfumato.subspace.kernels import exact
from sfumato.subspace.fast import prepare, search
exact.compile_decide()
rows = np.eye(40, 16, dtype=np.float32)
sides = [prepare(rows, np.roll(np.eye(40, 16, dtype=np.float32), k, axis=1)[:, None]) for k in (1, 2)]
search(*sides, (1, 1))
print(len(exact._decide.signatures))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr
