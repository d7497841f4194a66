# SPDX-License-Identifier: Apache-2.0
"""The foreman: claims jobs one at a time, starts a process for each, and ends those that are cancelled or stuck.

Runs within the server. What it knows is in the database, so a server that was killed goes on with its jobs when it
starts again: processes that outlived it are ended first.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

import sqlalchemy as sql

from sfumato.server import blobs, jobs
from sfumato.server.database import Store
from sfumato.server.limits import Limits
from sfumato.server.places import Missing

POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0
NICENESS = 10
"""Queries come first."""
FULL_SECONDS = 5.0
"""Pause after the database could not be written."""
NEED_SECONDS = 600.0
"""A job for which the disk was too small waits so long, if no space becomes free before."""
LITTLE_BYTES = 2**20
"""With less than this on the disk, or less than the limits say, a process that died is taken to have died of it."""
DISK_FULL = 75
"""What the process of a job returns where the disk was full."""

log = logging.getLogger(__name__)


class Foreman:
    """Work on the jobs of a store, one after the other."""

    def __init__(self, store: Store, limits: Limits, config: Path | None = None) -> None:
        self.store, self.limits, self.config = store, limits, config
        self.process: asyncio.subprocess.Process | None = None
        self._needs: dict[str, tuple[int, float]] = {}

    async def work(self) -> None:
        """Claim jobs and see each to its end, until cancelled; then the job at work goes back to the queue."""
        await asyncio.to_thread(end_orphans, self.store)
        while True:
            job = None
            try:
                job = await asyncio.to_thread(self.claim)
                if job is not None:
                    await self._see_through(job)
                    continue
            except asyncio.CancelledError:
                await self._end_process()
                if job is not None:
                    jobs.release(self.store, job.id, job.fence)
                raise
            except Missing:  # its place was removed: nothing of the job stays behind
                await self._end_process()
                if job is not None:
                    await asyncio.to_thread(blobs.drop_work, self.store.folder, job.id)
            except Exception:  # a full disk, say: what was claimed is claimed again when its lease is over
                log.exception("jobs cannot be worked on")
                await self._end_process()
                await asyncio.sleep(FULL_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    def claim(self) -> jobs.Job | None:
        """Take the next job for which there is space, and remove what jobs that have ended left behind."""
        now = time.monotonic()
        self._needs = {name: need for name, need in self._needs.items() if need[1] > now}
        needs = {name: size for name, (size, _) in self._needs.items()}
        job = jobs.claim(self.store, self.limits.lease_seconds, self.limits.attempts, self.space(), needs)
        drop_ended(self.store)
        return job

    def space(self) -> int:
        """Return the bytes that a job may take on the disk."""
        return blobs.free_bytes(self.store.folder) - max(self.limits.least_free_bytes, LITTLE_BYTES)

    async def _see_through(self, job: jobs.Job) -> None:
        words = ["--data", str(self.store.folder), "--job", job.id, "--fence", str(job.fence)]
        words += [] if self.config is None else ["--config", str(self.config)]
        log.info("job started", extra={"facts": {"job": job.number, "kind": job.kind, "attempt": job.attempt}})
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "sfumato.server.map_job", *words,  # -P: not from the working folder
            stdin=asyncio.subprocess.DEVNULL, start_new_session=True, preexec_fn=_be_nice,
        )  # fmt: skip
        end = time.monotonic() + self.limits.job_seconds
        while not await self._has_ended():
            now = await asyncio.to_thread(jobs.read_job, self.store, job.id)
            if now.is_cancelled or now.fence != job.fence:
                await self._end_process()
                await asyncio.to_thread(jobs.end_cancelled, self.store, job.id, job.fence)
            elif now.state == jobs.RUNNING and now.lease_until < time.time():  # it is stuck, or was stopped
                await self._end_process()
            elif time.monotonic() > end:
                await self._end_process()
                reason = f"it took more than {self.limits.job_seconds:.0f} seconds, the limit of this server"
                with contextlib.suppress(jobs.LostLease):
                    jobs.finish(self.store, job.id, job.fence, jobs.FAILED, reason)
        await self._conclude(job)

    async def _has_ended(self) -> bool:
        assert self.process is not None
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.process.wait(), POLL_SECONDS)
        return self.process.returncode is not None

    async def _conclude(self, job: jobs.Job) -> None:
        ended = await self._give_back(job)
        if ended.has_ended:
            await asyncio.to_thread(blobs.drop_work, self.store.folder, job.id)
        log.info("job ended", extra={"facts": {"job": job.number, "state": ended.state}})
        self.process = None

    async def _give_back(self, job: jobs.Job) -> jobs.Job:
        """Call ``give_back`` until the database can be written."""
        assert self.process is not None
        code, space = self.process.returncode or 0, self.space()
        while True:
            try:
                return await asyncio.to_thread(self.give_back, job, code, space)
            except sql.exc.OperationalError:
                log.warning("a job cannot be given back to the queue", extra={"facts": {"job": job.number}})
                await asyncio.sleep(FULL_SECONDS)

    def give_back(self, job: jobs.Job, code: int, space: int) -> jobs.Job:
        """Let a job whose process broke off be claimed again; return what has become of it.

        ``code``: what the process returned; ``space``: what was left then. Where the disk is full, no attempt is
        counted, and the job waits for space. Where it only was too small for the job, the attempt counts, and the next
        one waits for more space.
        """
        ended = jobs.read_job(self.store, job.id)
        if ended.state != jobs.RUNNING or ended.fence != job.fence:
            return ended
        is_full, size = code == DISK_FULL or space < 0, jobs.frame_bytes(self.store, job)
        if is_full and space < size:
            jobs.release(self.store, job.id, job.fence, jobs.NO_SPACE)
        elif is_full:
            self._needs[job.id] = space + size, time.monotonic() + NEED_SECONDS
            jobs.expire(self.store, job.id, job.fence, jobs.NO_SPACE)
        else:
            jobs.expire(self.store, job.id, job.fence, reason_of(code))
        return jobs.read_job(self.store, job.id)

    async def _end_process(self) -> None:
        """End the process of a job and its children."""
        if self.process is None or self.process.returncode is not None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.process.wait(), GRACE_SECONDS)
                return


def reason_of(code: int) -> str:
    """Return in words why the process of a job broke off, by what it returned.

    >>> reason_of(-11)
    'its process was ended by signal 11'
    """
    if code == -signal.SIGKILL:
        return "its process was killed: memory may have run out, or it was stuck"
    if code < 0:
        return f"its process was ended by signal {-code}"
    return "its process broke off: the log of the server says where"


def drop_ended(store: Store) -> None:
    """Remove the folders of jobs that have ended."""
    folders = list((store.folder / blobs.WORK).glob("*"))
    active = jobs.open_jobs(store) if folders else set()
    for folder in folders:
        if folder.name not in active:
            blobs.drop_work(store.folder, folder.name)


def _be_nice() -> None:
    os.nice(NICENESS)


def end_orphans(store: Store) -> None:
    """End processes of jobs that outlived their server, and let their jobs be claimed at once."""
    for job in jobs.running_jobs(store):
        if job.process is not None and is_map_job(job.process, job.id):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.process, signal.SIGKILL)
        jobs.expire(store, job.id, job.fence)


def is_map_job(process: int, name: str) -> bool:
    """Tell whether a process works on a job; numbers of processes are used again."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"sfumato.server.map_job" in words and name.encode() in words
