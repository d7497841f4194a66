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

from sfumato.server import jobs
from sfumato.server.blobs import drop_work
from sfumato.server.database import Store
from sfumato.server.limits import Limits

POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0
NICENESS = 10
"""Queries come first."""

log = logging.getLogger(__name__)


class Foreman:
    """Work on the jobs of a store, one after the other."""

    def __init__(self, store: Store, limits: Limits, config: Path | None = None) -> None:
        self.store, self.limits, self.config = store, limits, config
        self.process: asyncio.subprocess.Process | None = None

    async def work(self) -> None:
        """Claim jobs and see each to its end, until cancelled; then the job at work goes back to the queue."""
        await asyncio.to_thread(end_orphans, self.store)
        while True:
            job = None
            try:
                job = await asyncio.to_thread(jobs.claim, self.store, self.limits.lease_seconds, self.limits.attempts)
                if job is not None:
                    await self._see_through(job)
                    continue
            except asyncio.CancelledError:
                await self._end_process()
                if job is not None:
                    jobs.release(self.store, job.id, job.fence)
                raise
            except Exception:  # a full disk, say: what was claimed is claimed again when its lease is over
                log.exception("jobs cannot be worked on")
                await self._end_process()
            await asyncio.sleep(POLL_SECONDS)

    async def _see_through(self, job: jobs.Job) -> None:
        words = ["--data", str(self.store.folder), "--job", job.id, "--fence", str(job.fence)]
        words += [] if self.config is None else ["--config", str(self.config)]
        log.info("job started", extra={"facts": {"job": job.number, "attempt": job.attempt}})
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sfumato.server.map_job", *words,
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
        ended = await asyncio.to_thread(jobs.read_job, self.store, job.id)
        if ended.state == jobs.RUNNING and ended.fence == job.fence:  # killed, or out of memory: again, at once
            await asyncio.to_thread(jobs.expire, self.store, job.id, job.fence)
        if ended.has_ended:
            await asyncio.to_thread(drop_work, self.store.folder, job.id)
        log.info("job ended", extra={"facts": {"job": job.number, "state": ended.state}})
        self.process = None

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
