# SPDX-License-Identifier: Apache-2.0
"""Jobs of a server, as a device follows them: events as they come, reconnected where they stop, or asked for."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sfumato.client.answers import CANCELLED, ENDED, FAILED, JobState, read_state
from sfumato.client.names import NameTable
from sfumato.client.transport import STRANGE, UNREACHABLE, Transport
from sfumato.errors import ServerError

BEAT_SECONDS = 45.0
"""The server sends a sign of life every 15 seconds; a stream without one for so long is broken."""
POLL_SECONDS = 20
STREAM_FAILURES = 3
"""Streams that break one after the other without news; then the server is asked instead."""
PATIENCE_SECONDS = 120.0
"""How long a server may be out of reach, as when it is started anew, before waiting for a job ends."""


@dataclass(slots=True, eq=False)
class MapJob:
    """A job that makes a map, or gathers evidence, with what is known of it in ``state``; ``refresh`` asks again."""

    transport: Transport = field(repr=False)
    names: NameTable = field(repr=False)
    state: JobState
    _last: int = field(default=0, repr=False)

    @property
    def number(self) -> int:
        """The number by which people call it."""
        return self.state.number

    def refresh(self, *, wait_seconds: int = 0) -> JobState:
        """Ask how far the job is, at once, or when something happens within some seconds; raises ServerError."""
        words = {"wait": wait_seconds, "after": self._last} if wait_seconds else {}
        facts = self.transport.ask("GET", f"/v1/jobs/{self.state.id}", params=words)
        self.state = read_state(facts, self.names)
        self._last = max(self._last, _number(facts.get("events")))
        return self.state

    def cancel(self) -> JobState:
        """Cancel the job; its process is ended within seconds. Raises ServerError if it has ended already."""
        self.state = read_state(self.transport.ask("POST", f"/v1/jobs/{self.state.id}:cancel"), self.names)
        return self.state

    def wait(self, progress: Callable[[JobState], object] | None = None) -> JobState:
        """Wait until the job has ended and return its last state; ``progress`` is called with every state on the way.

        Events come as a stream, which is taken up again where it broke. Where none comes through, the server is asked.

        Raises ServerError if the job failed or was cancelled, or the server is out of reach for too long.
        """
        tell = progress or (lambda state: None)
        failures, reached, has_result = 0, time.monotonic(), False
        while not has_result:
            before = self._last
            try:
                if self.state.has_ended:
                    has_result = self.refresh().has_ended  # with the map and its figures
                elif failures < STREAM_FAILURES:
                    self._follow(tell)
                else:
                    tell(self.refresh(wait_seconds=POLL_SECONDS))
                reached = time.monotonic()
            except ServerError as problem:
                if problem.code not in (UNREACHABLE, STRANGE) and not problem.retry:
                    raise
                if time.monotonic() - reached > PATIENCE_SECONDS:
                    raise
                time.sleep(0.2 * (failures + 1) if failures < STREAM_FAILURES else 2.0)
            failures = 0 if self._last > before else failures + 1
        tell(self.state)
        return self._checked()

    def _checked(self) -> JobState:
        """Return the state of a job that has ended; raises ServerError if it failed or was cancelled."""
        state = self.state
        if state.state == FAILED:
            raise ServerError(f"job {state.number} failed: {state.reason}", code="job_failed")
        if state.state == CANCELLED:
            raise ServerError(f"job {state.number} was cancelled", code="job_cancelled")
        return state

    def _follow(self, tell: Callable[[JobState], object]) -> None:
        """Read the stream of events until it ends; raises ServerError if it breaks."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self._last)}
        path = f"/v1/jobs/{self.state.id}/events"
        with self.transport.lines(path, headers=headers, timeout_seconds=BEAT_SECONDS) as lines:
            for number, kind, facts in read_events(lines):
                self._last = max(self._last, number)
                if kind in ("stage", "progress"):
                    done, total = _number(facts.get("done")), _number(facts.get("total"))
                    stage = str(facts.get("stage", ""))[:40]
                    self.state = self._with(state="running", stage=stage, done=done, total=total, reason="")
                else:
                    self.state = self._with(state=kind if kind in ENDED else self.state.state, reason="")
                tell(self.state)

    def _with(self, **changes: Any) -> JobState:
        known = {name: getattr(self.state, name) for name in JobState.__slots__}
        return JobState(**{**known, **changes})


def read_events(lines: Iterator[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield number, kind and facts of the events in a stream; lines of other kinds are passed over.

    Raises ServerError for an event that cannot be read.
    """
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if line and name:
            fields[name] = value.removeprefix(" ")
        elif not line and "event" in fields:
            try:
                yield int(fields.get("id", "0")), fields["event"], dict(json.loads(fields.get("data", "{}")))
            except (ValueError, TypeError, RecursionError) as cause:
                raise ServerError("the server sends events that cannot be read", code=STRANGE) from cause
            fields = {}


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0
