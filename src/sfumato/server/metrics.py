# SPDX-License-Identifier: Apache-2.0
"""Figures of a server for Prometheus. No label holds a name, an id or a value."""

import sqlalchemy as sql
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sfumato import __version__
from sfumato.server import blobs
from sfumato.server.database import images, jobs
from sfumato.server.service import Service

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)

registry = CollectorRegistry()
REQUESTS = Counter(
    "sfumato_requests", "Requests by route and status.", ("method", "route", "status"), registry=registry
)
DURATIONS = Histogram("sfumato_request_seconds", "Time to answer.", ("route",), registry=registry, buckets=SECONDS)
OUTCOMES = Counter("sfumato_localize_outcomes", "Queries by outcome.", ("outcome",), registry=registry)
STAGES = Histogram("sfumato_localize_stage_seconds", "Time of a query by stage.", ("stage",), registry=registry,
                   buckets=SECONDS)  # fmt: skip
JOBS = Gauge("sfumato_jobs", "Jobs by state.", ("state",), registry=registry)
WAITING = Gauge("sfumato_queries_waiting", "Queries that wait or are worked on.", registry=registry)
RESTARTS = Gauge("sfumato_engine_restarts", "Engines that were started anew.", registry=registry)
STORED = Gauge("sfumato_stored_bytes", "Bytes of frames.", registry=registry)
FREE = Gauge("sfumato_disk_free_bytes", "Bytes left on the disk.", registry=registry)
BUILD = Gauge("sfumato_build", "The version.", ("version",), registry=registry)
BUILD.labels(__version__).set(1)


def metrics_text(service: Service) -> bytes:
    """Return all figures as text."""
    with service.store.read() as connection:
        states = connection.execute(sql.select(jobs.c.state, sql.func.count()).group_by(jobs.c.state)).all()
        stored = connection.execute(sql.select(sql.func.coalesce(sql.func.sum(images.c.bytes), 0))).scalar_one()
    JOBS.clear()
    for state, count in states:
        JOBS.labels(state).set(count)
    WAITING.set(service.engines.waiting)
    RESTARTS.set(service.engines.restarts)
    STORED.set(stored)
    FREE.set(blobs.free_bytes(service.data))
    return generate_latest(registry)
