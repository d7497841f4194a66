# SPDX-License-Identifier: Apache-2.0
"""Jobs: a queue in the database with leases, fence numbers, progress and events.

A job is worked on by one process at a time. The process renews its lease; when the lease runs out, another may claim
the job, and gets a higher fence number. Every write of a process names its fence: one that lost its lease can change
nothing any more, least of all publish a map.
"""

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from sfumato.server.database import Store, events, images, jobs, places
from sfumato.server.places import Conflict, Missing

QUEUED, RUNNING, DONE, FAILED, CANCELLED = "queued", "running", "done", "failed", "cancelled"
ENDED = (DONE, FAILED, CANCELLED)
MAP_JOB, EVIDENCE_JOB = "map", "evidence"
"""Kinds of jobs: one makes a map, the other matches and gathers evidence for a device."""
STAGES = ("collect", "match", "verify", "map", "landmarks", "publish")
"""Stages of a job that makes a map, in their order."""
EVIDENCE_STAGES = ("collect", "match", "publish")
NO_SPACE = "there is too little space on the disk of the server"
"""The reason of a job that waits for space, or broke off without it."""


class LostLease(Exception):
    """Another process has the job now, or it was cancelled."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job: its request, how far it is, and whose it is until when. ``fence`` rises with every claim."""

    id: str
    number: int
    place: str
    request: dict[str, Any]
    state: str
    stage: str
    done: int
    total: int
    reason: str
    attempt: int
    fence: int
    is_cancelled: bool
    process: int | None
    made: float
    ended: float | None
    lease_until: float

    @property
    def kind(self) -> str:
        """What the job makes."""
        return str(self.request.get("kind", MAP_JOB))

    @property
    def stages(self) -> tuple[str, ...]:
        """Its stages, in their order."""
        return EVIDENCE_STAGES if self.kind == EVIDENCE_JOB else STAGES

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a job, numbered from 1."""

    number: int
    kind: str
    facts: dict[str, Any]


def submit(
    store: Store, place: str, request: Mapping[str, Any], request_key: str, most: int, most_of_place: int
) -> tuple[Job, bool]:
    """Queue a job, and return it with whether it is new: the same request key again gives the same job.

    A request for all images of a place (``every_image``) is the same also if there are more by now. ``most`` jobs may
    wait in all, ``most_of_place`` of one place, so that nobody fills the queue of all.

    Raises Missing for a place that is not there; Conflict if the key came with another request, or the queue is full.
    """
    text = json.dumps(request, sort_keys=True)
    with store.write() as connection:
        if connection.execute(sql.select(places.c.id).where(places.c.id == place)).first() is None:
            raise Missing(f"no place {place:.64}")
        row = connection.execute(
            jobs.select().where(jobs.c.place == place, jobs.c.request_key == request_key)
        ).one_or_none()
        if row is not None and _sent(json.loads(row.request)) != _sent(request):
            raise Conflict("other_request", "this Idempotency-Key came with another request before: make a new one")
        if row is not None:
            return _job_of(row), False
        waiting = sql.select(sql.func.count()).select_from(jobs).where(jobs.c.state == QUEUED)
        for query, limit, where in ((waiting.where(jobs.c.place == place), most_of_place, " for this place"),
                                    (waiting, most, "")):  # fmt: skip
            if connection.execute(query).scalar_one() >= limit:
                sentence = f"{limit} jobs are waiting{where}, and that is the limit: try again when one has started"
                raise Conflict("queue_full", sentence)
        number = (connection.execute(sql.select(sql.func.max(jobs.c.number))).scalar() or 0) + 1
        name = secrets.token_hex(16)
        connection.execute(
            jobs.insert().values(
                id=name, number=number, place=place, request=text, request_key=request_key, state=QUEUED, stage="",
                done=0, total=0, reason="", attempt=0, fence=0, lease_until=0.0, is_cancelled=False, made=time.time(),
            )
        )  # fmt: skip
        _tell(connection, name, "queued", {})
        return _need(connection, name), True


def _sent(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as its sender wrote it."""
    return {name: value for name, value in request.items() if name != "images" or not request.get("every_image")}


def claim(
    store: Store, lease_seconds: float, attempts: int, space: int | None = None, needs: Mapping[str, int] | None = None
) -> Job | None:
    """Take the next job that nobody works on; None if there is none.

    Places take turns: the one whose last job ended longest ago is first, and its oldest job. A job whose lease ran out
    is taken again, until it was tried ``attempts`` times. One waits if its frames have more bytes than there is
    ``space``, or if ``needs`` says that it needs more, by its id.
    """
    now = time.time()
    with store.write() as connection:
        for row in _waiting(connection, now):
            if row.is_cancelled:
                _end(connection, row.id, CANCELLED, "cancelled")
                continue
            if row.attempt >= attempts:
                reason = row.reason or "its process died"
                _end(connection, row.id, FAILED, f"it was tried {row.attempt} times: {reason}")
                continue
            if space is not None and space < max(_frame_bytes(connection, _job_of(row)), (needs or {}).get(row.id, 0)):
                values = {"state": QUEUED, "reason": NO_SPACE, "lease_until": 0.0, "process": None}
                if (row.state, row.reason) != (QUEUED, NO_SPACE):
                    connection.execute(jobs.update().where(jobs.c.id == row.id).values(values))
                continue
            connection.execute(
                jobs.update()
                .where(jobs.c.id == row.id)
                .values(
                    state=RUNNING,
                    reason="",
                    attempt=row.attempt + 1,
                    fence=row.fence + 1,
                    lease_until=now + lease_seconds,
                    process=None,
                )
            )
            _tell(connection, row.id, "started", {"attempt": row.attempt + 1})
            return _need(connection, row.id)
    return None


def _waiting(connection: Connection, now: float) -> list[Any]:
    """Return the rows of jobs that nobody works on, in the order in which they are taken."""
    stale = sql.and_(jobs.c.state == RUNNING, jobs.c.lease_until < now)
    rows = connection.execute(jobs.select().where(sql.or_(jobs.c.state == QUEUED, stale))).all()
    names = {row.place for row in rows}
    query = sql.select(jobs.c.place, sql.func.max(jobs.c.ended)).where(jobs.c.place.in_(names)).group_by(jobs.c.place)
    ended: dict[str, float | None] = {row[0]: row[1] for row in connection.execute(query)} if names else {}
    return sorted(rows, key=lambda row: (ended[row.place] or 0.0, row.number))


def frame_bytes(store: Store, job: Job) -> int:
    """Return the bytes of the frames of a job: what it needs on the disk, at least."""
    with store.read() as connection:
        return _frame_bytes(connection, job)


def _frame_bytes(connection: Connection, job: Job) -> int:
    names = frozenset(job.request["images"])
    rows = connection.execute(sql.select(images.c.name, images.c.bytes).where(images.c.place == job.place))
    return sum(row.bytes for row in rows if row.name in names)


def renew(store: Store, name: str, fence: int, lease_seconds: float, process: int | None = None) -> None:
    """Renew a lease; raises LostLease if the job is cancelled, ended or another's."""
    values: dict[str, Any] = {"lease_until": time.time() + lease_seconds}
    if process is not None:
        values["process"] = process
    with store.write() as connection:
        _change(connection, name, fence, values)


def report(store: Store, name: str, fence: int, stage: str, done: int, total: int, *, most: int = 1000) -> None:
    """Say how far a job is; raises LostLease. Each report is an event, up to ``most`` of them."""
    with store.write() as connection:
        before = _need(connection, name)
        _change(connection, name, fence, {"stage": stage, "done": done, "total": total})
        if before.stage != stage:
            _tell(connection, name, "stage", {"stage": stage, "done": done, "total": total}, most)
        if done:
            _tell(connection, name, "progress", {"stage": stage, "done": done, "total": total}, most)


def finish(store: Store, name: str, fence: int, state: str, reason: str, publish: Any = None) -> None:
    """End a job, and publish what it made in the same transaction; raises LostLease.

    ``publish``: called with the connection, and returns facts for the last event.
    """
    with store.write() as connection:
        _change(connection, name, fence, {})
        facts = {} if publish is None else publish(connection)
        _end(connection, name, state, reason, facts)


def release(store: Store, name: str, fence: int, reason: str = "") -> None:
    """Give a job back to the queue, to be gone on with, and count no attempt: the server stops, or the disk is full.

    A lease that was lost is no matter.
    """
    with store.write() as connection:
        connection.execute(
            jobs.update()
            .where(jobs.c.id == name, jobs.c.fence == fence, jobs.c.state == RUNNING)
            .values(state=QUEUED, reason=reason, lease_until=0.0, process=None, attempt=jobs.c.attempt - 1)
        )


def expire(store: Store, name: str, fence: int, reason: str = "") -> None:
    """Let a lease run out now: the process that had it is dead. ``reason`` is told if it was the last attempt."""
    with store.write() as connection:
        connection.execute(
            jobs.update()
            .where(jobs.c.id == name, jobs.c.fence == fence, jobs.c.state == RUNNING)
            .values(lease_until=0.0, reason=reason, process=None)
        )


def cancel(store: Store, name: str) -> Job:
    """Cancel a job: at once if it waits, else its process is ended soon. Raises Missing, Conflict if it has ended."""
    with store.write() as connection:
        job = _need(connection, name)
        if job.has_ended:
            raise Conflict("ended", f"this job is {job.state} already")
        connection.execute(jobs.update().where(jobs.c.id == name).values(is_cancelled=True))
        if job.state == QUEUED:
            _end(connection, name, CANCELLED, "cancelled")
        return _need(connection, name)


def end_cancelled(store: Store, name: str, fence: int) -> None:
    """Mark a cancelled job as ended, once its process has."""
    with store.write() as connection:
        job = _need(connection, name)
        if not job.has_ended and job.fence == fence:
            _end(connection, name, CANCELLED, "cancelled")


def read_job(store: Store, name: str) -> Job:
    """Return a job; raises Missing."""
    with store.read() as connection:
        return _need(connection, name)


def list_jobs(
    store: Store,
    place: str | None = None,
    state: str | None = None,
    limit: int = 100,
    visible: frozenset[str] | None = None,
    before: int | None = None,
) -> list[Job]:
    """Return jobs, the newest first; with ``visible`` those at these places alone, with ``before`` earlier ones."""
    query = jobs.select().order_by(jobs.c.number.desc()).limit(limit)
    if place is not None:
        query = query.where(jobs.c.place == place)
    if state is not None:
        query = query.where(jobs.c.state == state)
    if visible is not None:
        query = query.where(jobs.c.place.in_(sorted(visible)))
    if before is not None:
        query = query.where(jobs.c.number < before)
    with store.read() as connection:
        return [_job_of(row) for row in connection.execute(query)]


def running_jobs(store: Store) -> list[Job]:
    """Return the jobs that a process works on, or did when it died."""
    return list_jobs(store, state=RUNNING)


def open_jobs(store: Store) -> set[str]:
    """Return the ids of all jobs that have not ended."""
    with store.read() as connection:
        return set(connection.execute(sql.select(jobs.c.id).where(jobs.c.state.in_((QUEUED, RUNNING)))).scalars())


def events_after(store: Store, name: str, number: int = 0) -> list[Event]:
    """Return the events of a job that follow a number."""
    with store.read() as connection:
        rows = connection.execute(
            events.select().where(events.c.job == name, events.c.number > number).order_by(events.c.number)
        ).all()
    return [Event(row.number, row.kind, json.loads(row.facts)) for row in rows]


def last_events(store: Store, names: Iterable[str]) -> dict[str, Event]:
    """Return the last event of each of several jobs, by the id of the job."""
    last = sql.select(events.c.job, sql.func.max(events.c.number).label("number")).where(events.c.job.in_(list(names)))
    of_job = last.group_by(events.c.job).subquery()
    is_last = sql.and_(events.c.job == of_job.c.job, events.c.number == of_job.c.number)
    with store.read() as connection:
        rows = connection.execute(sql.select(events).join(of_job, is_last)).all()
    return {row.job: Event(row.number, row.kind, json.loads(row.facts)) for row in rows}


# --- within a transaction


def _need(connection: Connection, name: str) -> Job:
    row = connection.execute(jobs.select().where(jobs.c.id == name)).one_or_none()
    if row is None:
        raise Missing(f"no job {name:.64}")
    return _job_of(row)


def _change(connection: Connection, name: str, fence: int, values: dict[str, Any]) -> None:
    """Write to the row of a job under a fence; raises LostLease."""
    row = sql.and_(
        jobs.c.id == name, jobs.c.fence == fence, jobs.c.state == RUNNING, jobs.c.is_cancelled == sql.false()
    )
    if connection.execute(jobs.update().where(row).values(fence=fence, **values)).rowcount != 1:
        raise LostLease(f"job {name} is not this process's any more")


def _end(connection: Connection, name: str, state: str, reason: str, facts: Mapping[str, Any] | None = None) -> None:
    connection.execute(
        jobs.update().where(jobs.c.id == name).values(state=state, reason=reason, ended=time.time(), process=None)
    )
    _tell(connection, name, state, {"reason": reason, **(facts or {})})


def _tell(connection: Connection, name: str, kind: str, facts: Mapping[str, Any], most: int | None = None) -> None:
    last = connection.execute(sql.select(sql.func.max(events.c.number)).where(events.c.job == name)).scalar() or 0
    if most is not None and last >= most:
        return
    connection.execute(
        events.insert().values(job=name, number=last + 1, kind=kind, facts=json.dumps(facts), made=time.time())
    )


def _job_of(row: sql.Row[Any]) -> Job:
    return Job(
        row.id, row.number, row.place, json.loads(row.request), row.state, row.stage, row.done, row.total, row.reason,
        row.attempt, row.fence, bool(row.is_cancelled), row.process, row.made, row.ended,
        row.lease_until,
    )  # fmt: skip
