# SPDX-License-Identifier: Apache-2.0
"""Jobs: order, leases, fences, attempts, cancelling, request keys; and a process that lost its lease."""

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sfumato.errors import FileError
from sfumato.matching.match_file import load_matches
from sfumato.server import blobs, foreman, jobs, map_job, places
from sfumato.server.app import sweep
from sfumato.server.blobs import keep_frame, upload_path
from sfumato.server.database import Store
from sfumato.server.foreman import Foreman, end_orphans, is_map_job
from sfumato.server.limits import Limits
from sfumato.server.places import Conflict, Missing
from sfumato.store.frames import encode_frame, frame_digest
from sfumato.types.scene import Camera

PLACE = "0123456789abcdef"
LEASE, ATTEMPTS = 30.0, 3
CAMERA = Camera("PINHOLE", 640, 480, (500, 500, 320, 240))


@pytest.fixture
def queue(store: Store) -> Callable[..., jobs.Job]:
    places.make_place(store, PLACE, 10)

    def submit(key: str, most: int = 10, *, most_of_place: int = 10, place: str = PLACE, **request: Any) -> jobs.Job:
        places.make_place(store, place, 10)
        return jobs.submit(store, place, request or {"images": []}, key, most, most_of_place)[0]

    return submit


def claim(store: Store) -> jobs.Job | None:
    return jobs.claim(store, LEASE, ATTEMPTS)


def test_jobs_are_claimed_in_their_order_and_once(store: Store, queue: Callable[..., jobs.Job]):
    names = [queue(key).id for key in ("first", "second", "third")]
    taken = [claim(store) for _ in range(4)]
    assert [job.id for job in taken if job] == names
    assert taken[3] is None
    assert all(job.fence == 1 and job.attempt == 1 and job.state == jobs.RUNNING for job in taken if job)


def test_the_same_request_key_gives_the_same_job(store: Store, queue: Callable[..., jobs.Job]):
    first = queue("key", images=["a"], seed=1)
    again, is_new = jobs.submit(store, PLACE, {"images": ["a"], "seed": 1}, "key", 10, 10)
    assert (again.id, is_new) == (first.id, False)
    with pytest.raises(Conflict) as problem:
        queue("key", images=["a"], seed=2)
    assert problem.value.code == "other_request"


def test_a_request_for_all_images_is_the_same_with_more_of_them(queue: Callable[..., jobs.Job]):
    first = queue("key", images=["a"], every_image=True)
    assert queue("key", images=["a", "b"], every_image=True).id == first.id
    with pytest.raises(Conflict):
        queue("key", images=["a", "b"], every_image=False)


def test_a_full_queue_refuses(store: Store, queue: Callable[..., jobs.Job]):
    queue("first", 1)
    with pytest.raises(Conflict) as problem:
        queue("second", 1)
    assert problem.value.code == "queue_full"
    claim(store)
    queue("second", 1)


def test_one_place_cannot_fill_the_queue_and_places_take_turns(store: Store, queue: Callable[..., jobs.Job]):
    other = PLACE[::-1]
    mine = [queue(key, most_of_place=2) for key in ("first", "second")]
    with pytest.raises(Conflict) as problem:
        queue("third", most_of_place=2)
    assert problem.value.code == "queue_full"
    theirs = queue("first", most_of_place=2, place=other)
    order = []
    while (job := claim(store)) is not None:
        jobs.finish(store, job.id, job.fence, jobs.DONE, "")
        order.append(job.id)
    assert order == [mine[0].id, theirs.id, mine[1].id]


def test_a_place_that_is_not_there_has_no_jobs(store: Store):
    with pytest.raises(Missing):
        jobs.submit(store, "ffffffff", {}, "key", 10, 10)


def test_a_lease_that_ran_out_is_claimed_again_and_the_first_can_change_nothing(
    store: Store, queue: Callable[..., jobs.Job]
):
    queue("key")
    first = claim(store)
    assert first is not None
    assert claim(store) is None
    jobs.expire(store, first.id, first.fence)
    second = claim(store)
    assert second is not None
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)
    for change in (
        lambda: jobs.renew(store, first.id, first.fence, LEASE),
        lambda: jobs.report(store, first.id, first.fence, "match", 1, 2),
        lambda: jobs.finish(store, first.id, first.fence, jobs.DONE, ""),
        lambda: jobs.finish(store, first.id, first.fence, jobs.FAILED, "late"),
    ):
        with pytest.raises(jobs.LostLease):
            change()
    jobs.expire(store, first.id, first.fence)  # of no effect
    jobs.release(store, first.id, first.fence)
    assert claim(store) is None
    jobs.finish(store, second.id, second.fence, jobs.DONE, "")
    assert jobs.read_job(store, first.id).state == jobs.DONE


def test_a_process_that_dies_again_and_again_fails_its_job(store: Store, queue: Callable[..., jobs.Job]):
    queue("key")
    for attempt in range(ATTEMPTS):
        job = claim(store)
        assert job is not None
        assert job.attempt == attempt + 1
        jobs.expire(store, job.id, job.fence, foreman.reason_of(-9))
    assert claim(store) is None
    ended = jobs.list_jobs(store)[0]
    assert ended.state == jobs.FAILED
    assert "memory" in ended.reason


def test_a_server_that_stops_costs_no_attempt(store: Store, queue: Callable[..., jobs.Job]):
    queue("key")
    for _ in range(2 * ATTEMPTS):
        job = claim(store)
        assert job is not None
        assert job.attempt == 1
        jobs.release(store, job.id, job.fence)


def test_cancelling(store: Store, queue: Callable[..., jobs.Job]):
    waiting, running = queue("waiting"), queue("running")
    assert jobs.cancel(store, waiting.id).state == jobs.CANCELLED
    job = claim(store)
    assert job is not None
    assert job.id == running.id
    assert jobs.cancel(store, running.id).state == jobs.RUNNING  # until its process has ended
    with pytest.raises(jobs.LostLease):
        jobs.finish(store, job.id, job.fence, jobs.DONE, "")
    jobs.end_cancelled(store, job.id, job.fence)
    assert jobs.read_job(store, running.id).state == jobs.CANCELLED
    with pytest.raises(Conflict):
        jobs.cancel(store, running.id)
    assert claim(store) is None


def test_a_cancelled_job_whose_process_died_is_not_taken_up(store: Store, queue: Callable[..., jobs.Job]):
    queue("key")
    job = claim(store)
    assert job is not None
    jobs.cancel(store, job.id)
    jobs.expire(store, job.id, job.fence)
    assert claim(store) is None
    assert jobs.read_job(store, job.id).state == jobs.CANCELLED


def test_events_have_numbers_and_a_limit_but_the_last(store: Store, queue: Callable[..., jobs.Job]):
    queue("key")
    job = claim(store)
    assert job is not None
    for done in range(20):
        jobs.report(store, job.id, job.fence, "match", done, 20, most=10)
    jobs.finish(store, job.id, job.fence, jobs.DONE, "")
    events = jobs.events_after(store, job.id)
    assert [event.number for event in events] == list(range(1, 12))
    assert events[-1].kind == jobs.DONE
    assert jobs.events_after(store, job.id, 9) == events[9:]


def test_what_is_published_with_a_failed_end_is_not_there(store: Store, queue: Callable[..., jobs.Job]):
    queue("key")
    job = claim(store)
    assert job is not None

    def publish(connection: Any) -> dict[str, Any]:
        places.publish_map(connection, PLACE, "map", {}, "0" * 64, make_current=True)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        jobs.finish(store, job.id, job.fence, jobs.DONE, "", publish)
    assert not places.list_maps(store, PLACE)
    assert jobs.read_job(store, job.id).state == jobs.RUNNING


def test_a_place_goes_with_its_waiting_jobs_and_not_under_a_running_one(store: Store, queue: Callable[..., jobs.Job]):
    job = queue("key")
    claim(store)
    with pytest.raises(Conflict) as problem:
        places.delete_place(store, PLACE)
    assert problem.value.code == "job_running"
    jobs.release(store, job.id, 1)
    places.delete_place(store, PLACE)
    assert claim(store) is None
    with pytest.raises(Missing):
        jobs.read_job(store, job.id)


def test_orphans_are_told_from_other_processes(store: Store, queue: Callable[..., jobs.Job]):
    job = queue("key")
    claim(store)
    jobs.renew(store, job.id, 1, LEASE, os.getpid())
    assert not is_map_job(os.getpid(), job.id)
    end_orphans(store)  # and this process lives on
    assert claim(store) is not None


# --- the process of a job, in this process


@pytest.fixture
def leases(store: Store, scene: Any) -> Callable[[], map_job.Lease]:
    """Claim a job with three images, again and again: each lease ends the one before."""
    places.make_place(store, PLACE, 10)
    for name, photo in scene.photos(3).items():
        frame, upload = encode_frame(photo), upload_path(store.folder, PLACE)
        upload.write_bytes(frame)
        keep_frame(store.folder, PLACE, frame_digest(frame), upload)
        places.add_image(store, PLACE, name, frame_digest(frame), len(frame), photo, 10, CAMERA)
    request = {
        "images": sorted(scene.photos(3)), "pairs": "auto", "mapper": "incremental", "tries": 1, "seed": 0,
        "refine_intrinsics": False, "shared_camera": False, "make_current": True,
    }  # fmt: skip
    job = jobs.submit(store, PLACE, request, "key", 10, 10)[0]

    def take() -> map_job.Lease:
        now = jobs.read_job(store, job.id)
        jobs.expire(store, job.id, now.fence)
        claimed = claim(store)
        assert claimed is not None
        return map_job.Lease(store, claimed, Limits())

    return take


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_process_that_lost_its_lease_cannot_publish(
    store: Store, leases: Callable[[], map_job.Lease], monkeypatch: pytest.MonkeyPatch
):
    first = leases()
    outcome = map_job.make_map(first)
    second = leases()  # the first was stopped just here
    map_job.publish(second, map_job.make_map(second))
    maps = store.folder / "maps"
    before = files_of(maps)
    assert before
    with pytest.raises(jobs.LostLease):
        map_job.publish(first, outcome)
    monkeypatch.setattr(map_job.Lease, "report", lambda *_: None)  # or it was stopped a moment later
    with pytest.raises(jobs.LostLease):
        map_job.publish(first, outcome)
    assert files_of(maps) == before
    assert len(places.list_maps(store, PLACE)) == 1
    assert [event.kind for event in jobs.events_after(store, first.job.id)].count("done") == 1
    assert sweep(store, time.time() + 7200) == 1  # the folder of the job
    assert files_of(maps) == before


def test_a_job_without_its_images_fails_and_says_why(store: Store, leases: Callable[[], map_job.Lease]):
    lease = leases()
    with store.write() as connection:
        connection.execute(places.images.delete().where(places.images.c.name == lease.job.request["images"][0]))
    map_job.work(store, lease.job.id, lease.job.fence, Limits())
    job = jobs.read_job(store, lease.job.id)
    assert (job.state, lease.job.request["images"][0] in job.reason) == (jobs.FAILED, True)


def test_a_job_without_its_files_fails_without_naming_folders(store: Store, leases: Callable[[], map_job.Lease]):
    lease = leases()
    for path in (store.folder / "frames").rglob("*"):
        if path.is_file():
            path.unlink()
    map_job.work(store, lease.job.id, lease.job.fence, Limits())
    job = jobs.read_job(store, lease.job.id)
    assert job.state == jobs.FAILED
    assert str(store.folder) not in job.reason


def test_an_archive_that_a_kill_left_is_begun_anew(store: Store, leases: Callable[[], map_job.Lease]):
    lease = leases()
    lease.work.mkdir(parents=True)
    (lease.work / map_job.ARCHIVE).write_bytes(b"SQLite format 3\0 and no more")
    path, cameras, _ = map_job.collect(lease)
    assert path.stat().st_size > 1000
    assert cameras is not None
    assert len(cameras) == 3


def test_a_process_that_takes_over_counts_the_pairs_of_the_first(
    store: Store, leases: Callable[[], map_job.Lease], monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(map_job, "build_map", stop)
        with pytest.raises(RuntimeError):
            map_job.make_map(leases())
    second = leases()
    map_job.make_map(second)
    steps = [event.facts for event in jobs.events_after(store, second.job.id) if event.kind == "stage"]
    assert [(step["done"], step["total"]) for step in steps if step["stage"] == "match"] == [(0, 3), (3, 3)]


# --- matches that are kept for the next job of a place


@pytest.fixture
def kept(leases: Callable[[], map_job.Lease]) -> Callable[..., list[int]]:
    """Match all images of the place with what is kept; return how many pairs that were not matched before."""

    lease = leases()
    lease.job.request["every_image"] = True

    def match(content: bytes | None = None) -> list[int]:
        totals = list[int]()
        shutil.rmtree(lease.work, ignore_errors=True)
        if content is not None:
            blobs.matches_path(lease.store.folder, PLACE).write_bytes(content)
        archive, _, _ = map_job.collect(lease)

        def count(_: str, items: Iterable[Any], total: int) -> Iterable[Any]:
            totals.append(total)
            return items

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(map_job.Lease, "stages", lambda _, *words: count(*words))
            path = map_job.match_images(lease, archive)
        assert blobs.matches_path(lease.store.folder, PLACE).read_bytes() == path.read_bytes()
        with load_matches(path) as matches:
            assert [len(matches[pair]) for pair in matches] == [120, 120, 120]
        return totals

    return match


def test_no_pair_is_matched_twice_at_a_place(kept: Callable[..., list[int]]):
    assert (kept(), kept()) == ([3], [0])


def test_damaged_matches_are_made_again(store: Store, kept: Callable[..., list[int]]):
    kept()
    good = blobs.matches_path(store.folder, PLACE).read_bytes()
    flipped = bytearray(good)
    for byte in range(len(good) // 4, len(good), 61):
        flipped[byte] ^= 255
    for content in (b"", b"no matches", good[:9], good[: len(good) // 2], good[:-20], bytes(flipped), 2 * good):
        assert kept(content)[-1] == 3 or content == 2 * good, content[:20]
        assert kept() == [0]


def test_matches_of_images_with_other_focal_lengths_are_made_again(store: Store, kept: Callable[..., list[int]]):
    kept()
    name = places.list_images(store, PLACE)[0].name
    places.change_camera(store, PLACE, name, None, 505.0)
    assert kept()[-1] == 3
    assert kept() == [0]


def test_a_job_for_some_images_keeps_no_matches(store: Store, leases: Callable[[], map_job.Lease]):
    lease = leases()
    archive, _, _ = map_job.collect(lease)
    map_job.match_images(lease, archive)
    assert not blobs.matches_path(store.folder, PLACE).exists()


# --- a full disk


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk with as many free bytes as a test says."""
    disk = SimpleNamespace(free=2**40)
    monkeypatch.setattr(blobs, "free_bytes", lambda _: disk.free)
    return disk


def run_job(lease: map_job.Lease, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> int:
    """Run the program of a job that meets an error, in this process; return its code."""

    def meet(*_: Any) -> None:
        lease.work.mkdir(parents=True, exist_ok=True)
        raise problem

    words = ["--data", str(lease.store.folder), "--job", lease.job.id, "--fence", str(lease.job.fence)]
    with monkeypatch.context() as patch:
        patch.setattr(map_job, "make_map", meet)
        patch.setattr(map_job, "log_quietly", lambda: None)
        patch.setattr(sys, "argv", ["map_job", *words])
        return map_job.main()


@pytest.mark.parametrize("problem", [FULL, FileError("the model was not written whole: is the disk full?")])
def test_a_job_on_a_full_disk_waits_for_space_and_costs_no_attempt(
    store: Store, leases: Callable[[], map_job.Lease], disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
):  # fmt: skip
    lease, master = leases(), Foreman(store, Limits(least_free_bytes=1000, attempts=1))
    code = run_job(lease, monkeypatch, problem)
    assert code == foreman.DISK_FULL
    disk.free = 0
    for _ in range(3):  # a process that died, too
        ended = master.give_back(lease.job, code, master.space())
        assert (ended.state, ended.attempt, ended.reason) == (jobs.QUEUED, 0, jobs.NO_SPACE)
        assert master.claim() is None
    assert lease.work.is_dir(), "it goes on from there"
    disk.free = jobs.frame_bytes(store, lease.job) + foreman.LITTLE_BYTES - 1
    assert master.claim() is None
    disk.free += 1
    again = master.claim()
    assert again is not None
    assert (again.attempt, again.reason) == (1, "")
    assert (
        master.give_back(again, -9, master.space()).state == jobs.RUNNING
    )  # no fault of the disk: this attempt counts
    assert master.claim() is None
    assert "memory" in jobs.read_job(store, again.id).reason


def test_evidence_on_a_full_disk_waits_for_space_and_is_gathered_then(
    store: Store, leases: Callable[[], map_job.Lease], disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    jobs.cancel(store, leases().job.id)
    jobs.end_cancelled(store, jobs.list_jobs(store)[0].id, 1)
    names = [row.name for row in places.list_images(store, PLACE)]
    request = {"kind": jobs.EVIDENCE_JOB, "images": names, "own": names[:1], "pairs": "auto", "every_image": True}
    job, _ = jobs.submit(store, PLACE, request, "evidence", 10, 10)
    master = Foreman(store, Limits(least_free_bytes=1000))
    words = ["map_job", "--data", str(store.folder), "--job", job.id, "--fence", "1"]
    monkeypatch.setattr(map_job, "log_quietly", lambda: None)
    monkeypatch.setattr(sys, "argv", words)
    claimed = master.claim()
    assert claimed is not None

    def fail(*_: Any) -> None:
        raise FileError("evidence cannot be written") from FULL

    with monkeypatch.context() as patch:
        patch.setattr(map_job, "save_evidence", fail)
        assert map_job.main() == foreman.DISK_FULL
    disk.free = 0
    waiting = master.give_back(claimed, foreman.DISK_FULL, master.space())
    assert (waiting.state, waiting.attempt, waiting.reason) == (jobs.QUEUED, 0, jobs.NO_SPACE)
    assert not blobs.evidence_path(store.folder, PLACE, job.id).exists()
    disk.free = 2**40
    assert master.claim() is not None
    words[-1] = "2"
    assert map_job.main() == 0
    assert jobs.read_job(store, job.id).state == jobs.DONE
    assert blobs.evidence_path(store.folder, PLACE, job.id).stat().st_size > 1000


def test_a_job_for_which_a_disk_is_never_large_enough_fails_for_that_reason(
    store: Store, leases: Callable[[], map_job.Lease], disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    lease, master = leases(), Foreman(store, Limits(attempts=2))
    assert run_job(lease, monkeypatch, RuntimeError("?")) == 1
    assert master.give_back(lease.job, run_job(lease, monkeypatch, FULL), master.space()).attempt == 1
    assert master.claim() is None, "it waits"
    assert jobs.read_job(store, lease.job.id).state == jobs.QUEUED
    disk.free += jobs.frame_bytes(store, lease.job)
    job = master.claim()
    assert job is not None
    assert job.attempt == 2
    master.give_back(job, run_job(map_job.Lease(store, job, Limits()), monkeypatch, FULL), master.space())
    assert lease.work.is_dir()
    assert master.claim() is None
    ended = jobs.read_job(store, lease.job.id)
    assert ended.state == jobs.FAILED
    assert "disk" in ended.reason
    assert not lease.work.exists()
