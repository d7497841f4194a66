# SPDX-License-Identifier: Apache-2.0
import itertools
import logging
import os
import shutil
import signal
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context

import numpy as np
import pytest

import sfumato
from sfumato.errors import ArchiveError, InputError, VoidDistanceWarning, WorkerError
from sfumato.matching import batch
from sfumato.matching.mutual import MatchParams
from sfumato.matching.pairs import PairList, exhaustive

NAMES = [f"db/{i}.jpg" for i in range(6)]


class Directly(Executor):
    """Does the work at once, and remembers what it was given."""

    def __init__(self, before=lambda: None):
        self.calls, self.before = [], before

    def submit(self, function, /, *arguments):
        self.calls.append(arguments)
        future = Future()
        future.set_running_or_notify_cancel()
        try:
            self.before()
            future.set_result(function(*arguments))
        except Exception as problem:
            future.set_exception(problem)
        return future


class Never(Executor):
    """Takes work and does not begin it."""

    def __init__(self):
        self.futures = []

    def submit(self, function, /, *arguments):
        self.futures.append(Future())
        return self.futures[-1]


def by_hand(path, pairs, **settings):
    with sfumato.load(path) as archive:
        return {pair: sfumato.match(archive[pair[0]], archive[pair[1]], **settings) for pair in pairs}


def assert_same(stream, expected):
    """Every pair came exactly once, with the same matches."""
    found = list(stream)
    assert sorted(pair for pair, _ in found) == sorted(expected)
    for pair, matches in found:
        assert np.array_equal(matches.indices, expected[pair].indices)
        assert np.array_equal(matches.distances, expected[pair].distances)


def drain(stream, found, then=lambda: None):
    """Take everything from a stream, each pair once; do something after the first."""
    for pair, matches in stream:
        assert pair not in found
        found[pair] = matches
        if len(found) == 1:
            then()


@pytest.mark.parametrize("settings", [{}, {"mutual": False}, {"ratio": 0.9}, {"max_distance": 0.2}])
def test_in_this_process_as_by_hand(archive_path, settings):
    expected = by_hand(archive_path, itertools.combinations(NAMES, 2), **settings)
    assert sum(map(len, expected.values())) > 20
    assert_same(sfumato.match_pairs(archive_path, exhaustive(NAMES), **settings), expected)
    with sfumato.load(archive_path) as archive:
        assert_same(sfumato.match_pairs(archive, iter(expected), **settings), expected)
    assert_same(sfumato.match_pairs(archive_path, list(expected), Directly(), **settings), expected)


def test_threads_and_processes_do_the_same(archive_path):
    expected = by_hand(archive_path, itertools.combinations(NAMES, 2))
    with ThreadPoolExecutor(2) as pool:
        assert_same(sfumato.match_pairs(archive_path, exhaustive(NAMES), pool), expected)
    assert not batch._open_images  # nothing stays open in this process
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert_same(sfumato.match_pairs(archive_path, exhaustive(NAMES), pool, in_flight=3), expected)


def test_nothing_to_match_and_what_is_left_out(archive_path):
    assert list(sfumato.match_pairs(archive_path, [])) == []
    assert list(sfumato.match_pairs(archive_path, [("db/0.jpg", "db/0.jpg")])) == []
    twice = [("db/1.jpg", "db/0.jpg"), ("db/0.jpg", "db/1.jpg")]
    assert [pair for pair, _ in sfumato.match_pairs(archive_path, twice)] == twice[:1]
    pairs = list(itertools.combinations(NAMES, 2))
    for executor in (None, Directly()):
        left = [pair for pair, _ in sfumato.match_pairs(archive_path, pairs, executor, skip=set(pairs[:10]))]
        assert sorted(left) == pairs[10:]


def test_mistakes_are_told_before_any_work(archive_path, tmp_path):
    with pytest.raises(InputError, match=r"'db/0.jpg'"):
        sfumato.match_pairs(archive_path, [("db/0.jpg", "db/00.jpg"), ("db/1.jpg", "other")])
    with pytest.raises(InputError, match="ratio"):
        sfumato.match_pairs(archive_path, [], ratio=2.0)
    with pytest.raises(InputError, match="in_flight"):
        sfumato.match_pairs(archive_path, [], in_flight=0)
    with pytest.raises(ArchiveError, match="none"):
        sfumato.match_pairs(tmp_path / "none.sfm", [])


@pytest.mark.parametrize("executor", [None, Directly()])
def test_a_damaged_image_is_named_and_the_others_go_on(archive_path, spoil, executor):
    pairs = list(itertools.combinations(NAMES, 2))
    expected = by_hand(archive_path, [pair for pair in pairs if "db/1.jpg" not in pair])
    spoil(archive_path, "db/1.jpg")
    with pytest.raises(ArchiveError, match=r"db/1\.jpg"):
        list(sfumato.match_pairs(archive_path, pairs, executor))
    lost = {}
    assert_same(sfumato.match_pairs(archive_path, pairs, executor, failed=lost.__setitem__), expected)
    assert sorted(lost) == [pair for pair in pairs if "db/1.jpg" in pair]
    assert all("db/1.jpg" in str(problem) for problem in lost.values())


def test_an_image_with_a_damaged_header_is_named_too(archive_path):
    with sfumato.load(archive_path) as archive:
        checksum = archive.header("db/1.jpg").checksum
    content = bytearray(archive_path.read_bytes())
    content[content.index(checksum.encode())] ^= 1
    archive_path.write_bytes(content)
    for executor in (None, Directly()):
        lost = {}
        pairs = [("db/0.jpg", "db/1.jpg"), ("db/0.jpg", "db/2.jpg")]
        found = sfumato.match_pairs(archive_path, pairs, executor, failed=lost.__setitem__)
        assert [pair for pair, _ in found] == pairs[1:]
        assert list(lost) == pairs[:1]


def plain(value):
    """Only texts and numbers, in tuples, lists and dicts."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry) for key, entry in value.items())
    return all(map(plain, value)) if isinstance(value, tuple | list) else isinstance(value, str | int | float | None)


def test_workers_get_paths_and_names_never_arrays(archive_path, monkeypatch):
    monkeypatch.chdir(archive_path.parent)
    executor = Directly()
    list(sfumato.match_pairs(archive_path.name, exhaustive(NAMES), executor))
    assert all(plain(arguments) for arguments in executor.calls)
    assert {arguments[0] for arguments in executor.calls} == {str(archive_path)}
    assert {arguments[3]["threads"] for arguments in executor.calls} == {1}
    executor = Directly()
    list(sfumato.match_pairs(archive_path, exhaustive(NAMES), executor, threads=3))
    assert executor.calls[0][3]["threads"] == 3


def test_parcels_share_images_and_have_a_bounded_size(archive_path, tmp_path, archive_at):
    executor = Directly()
    list(sfumato.match_pairs(archive_path, exhaustive(NAMES), executor, in_flight=3))
    parcels = [arguments[1] for arguments in executor.calls]
    assert sorted(itertools.chain(*parcels)) == list(itertools.combinations(NAMES, 2))
    assert max(map(len, parcels)) == 5  # 15 pairs for 3 parcels
    for parcel in parcels:
        for place in range(1, len(parcel)):
            assert set(parcel[place]) & set(itertools.chain(*parcel[:place]))
    assert [len(p) for p in batch._chunks([("a", "b"), ("b", "c"), ("d", "e")], 9)] == [2, 1]
    assert [len(p) for p in batch._chunks(exhaustive("abcdefghij"[i] for i in range(10)), 16)] == [16, 16, 13]


def test_only_so_much_is_under_way_and_taken_from_the_list(archive_path):
    taken = []

    def rows():
        for number in range(10_000):
            taken.append(number)
            yield 0, 1 + number % 4

    pairs = PairList(tuple(NAMES), 10_000, rows)
    executor = Never()
    stream = sfumato.match_pairs(archive_path, pairs, executor, in_flight=4)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, stream)
        while len(executor.futures) < 4:
            assert not first.done()
        executor.futures[0].set_result([(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))] * 16)
        assert first.result()[0] == ("db/0.jpg", "db/1.jpg")
    assert len(executor.futures) == 4
    assert len(taken) <= 5 * 16 + 1
    stream.close()
    assert all(future.cancelled() for future in executor.futures[1:])


def test_an_archive_that_was_replaced_is_refused_and_a_copy_is_not(archive_path, archive_at, tmp_path):
    expected = by_hand(archive_path, itertools.combinations(NAMES, 2))
    copy, other = tmp_path / "copy", archive_at(tmp_path / "other", seed=50)
    shutil.copy(archive_path, copy)
    assert_same(
        sfumato.match_pairs(archive_path, exhaustive(NAMES), Directly(lambda: shutil.copy(copy, archive_path))),
        expected,
    )
    swap = Directly(lambda: os.replace(other, archive_path) if other.exists() else None)
    with pytest.raises(ArchiveError, match="replaced"):
        list(sfumato.match_pairs(archive_path, exhaustive(NAMES), swap))


def test_a_worker_that_can_not_see_the_archive(archive_path):
    vanish = Directly(lambda: archive_path.unlink(missing_ok=True))
    with pytest.raises(ArchiveError, match="worker"):
        list(sfumato.match_pairs(archive_path, exhaustive(NAMES), vanish))


def test_a_worker_with_another_version_is_refused(archive_path):
    settings = {**asdict(MatchParams()), "version": "0.0.1"}
    with pytest.raises(WorkerError, match="install"):
        batch.match_chunk(str(archive_path), (), {}, settings)


def test_what_finished_comes_before_the_trouble(archive_path):
    class Breaks(Directly):
        def submit(self, function, /, *arguments):
            if len(self.calls) == 3:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(function, *arguments)

    found = {}
    with pytest.raises(WorkerError, match="schedule"):
        drain(sfumato.match_pairs(archive_path, exhaustive(NAMES), Breaks(), in_flight=15), found)
    assert len(found) == 3


def test_all_work_cancelled_at_once_by_somebody_else(archive_path):
    """A dask client does so when its scheduler is gone."""
    executor = Never()
    stream = sfumato.match_pairs(archive_path, exhaustive(NAMES), executor, in_flight=15)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, stream)
        while len(executor.futures) < 15:
            assert not first.done()
        for future in executor.futures:
            future.cancel()
        for future in executor.futures:
            future.set_running_or_notify_cancel()
        with pytest.raises(WorkerError, match=r"CancelledError.*run again"):
            first.result()


def test_a_process_killed_in_the_middle(tmp_path, archive_at):
    path = archive_at(tmp_path / "many.sfm", count=24)
    with sfumato.load(path) as archive:
        pairs = exhaustive(archive)
    expected = by_hand(path, pairs)
    found = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        victim = pool.submit(os.getpid).result()
        with pytest.raises(WorkerError, match="run again"):
            drain(sfumato.match_pairs(path, pairs, pool, in_flight=2), found, lambda: os.kill(victim, signal.SIGKILL))
    assert 1 <= len(found) < len(pairs)
    rest = list(sfumato.match_pairs(path, pairs, skip=found))
    assert len(rest) == len(pairs) - len(found)
    assert_same([*found.items(), *rest], expected)


def test_distances_that_say_nothing_are_warned_about_once(tmp_path, archive_at):
    path = archive_at(tmp_path / "v.sfm", ambient_dim=4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(sfumato.match_pairs(path, exhaustive(NAMES), Directly()))
    ours = [entry for entry in caught if "meaningless" in str(entry.message)]
    assert len(ours) == 1
    assert ours[0].category is VoidDistanceWarning


@pytest.fixture
def cluster():
    """Two real dask workers, each a process of its own, on loopback."""
    distributed = pytest.importorskip("distributed", reason="needs the extra 'cluster'")
    import dask

    quiet = {"distributed.worker.daemon": False, "distributed.admin.system-monitor.gil.enabled": False}
    with warnings.catch_warnings(), dask.config.set(quiet):
        warnings.simplefilter("ignore")
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        local = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )  # fmt: skip
        with local, distributed.Client(local) as client:
            yield client


def test_two_dask_workers_one_of_them_killed(cluster, tmp_path, archive_at):
    path = archive_at(tmp_path / "a.sfm", count=16)
    with sfumato.load(path) as archive:
        pairs = exhaustive(archive)
    expected = by_hand(path, pairs)
    (where, victim), (_, other) = cluster.run(os.getpid).items()
    assert victim != other
    os.kill(victim, signal.SIGSTOP)  # what it is given stays undone until it is killed
    found = {}

    def kill():
        assert cluster.processing()[where]
        os.kill(victim, signal.SIGKILL)

    drain(sfumato.match_pairs(path, pairs, cluster.get_executor(retries=3, pure=False), in_flight=8), found, kill)
    assert_same(found.items(), expected)
    assert victim not in cluster.run(os.getpid).values()


def test_images_of_different_encoders_are_refused(tmp_path):
    rng, images = np.random.default_rng(0), {}
    for name, recipe in (("a", "ninja:x@0123456789ab"), ("b", "ninja:x@0123456789ab"), ("c", "ninja:x@ba9876543210")):
        points = sfumato.Subspaces(rng.normal(size=(5, 16)), np.zeros((5, 0, 16)))
        images[name] = sfumato.ConcealedFeatures(np.zeros((5, 4)), points, recipe, sfumato.Extractor("sift"))
    sfumato.save(tmp_path / "a.sfm", images)
    failed = {}
    found = dict(
        sfumato.match_pairs(tmp_path / "a.sfm", [("a", "b"), ("a", "c")], failed=failed.__setitem__, threads=1)
    )
    assert list(found) == [("a", "b")]
    assert "different spaces: ninja:x@0123456789ab and ninja:x@ba9876543210" in str(failed["a", "c"])
