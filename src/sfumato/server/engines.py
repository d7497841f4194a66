# SPDX-License-Identifier: Apache-2.0
"""Engines: the processes that localize, as the server sees them. A bounded queue, deadlines, and a start anew.

An engine that dies, or does not answer for long, is ended, and another takes its place: a query costs its sender an
answer, never the server its queue. The deadline of a client ends its wait and not the engine: else a client that asks
for a millisecond could stop everybody.
"""

import asyncio
import contextlib
import json
import logging
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.server.blobs import MODEL, map_path
from sfumato.server.limits import Limits

WARM_SECONDS = 300.0
DEADLY = 2
"""Engines that died while they opened a map, before it is left alone."""
PATIENCE = 4.0
"""An engine is ended when a query takes so many times the limit of queries."""
LONGEST_PAUSE = 30.0
PACE_SHARE = 0.2
"""Weight of the last query in what the next ones are expected to take."""
MOST_MAPS = 16
"""Maps that an engine has open at once; the one that was not asked for longest is closed."""
DAMAGED = "DamagedMap"
"""The kind of an answer about a map that cannot be opened."""
LENGTHS = struct.Struct("<IQ")
"""What a message begins with: bytes of its JSON text, and of what follows that."""

log = logging.getLogger(__name__)


def message_bytes(facts: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return a message as it goes through a pipe."""
    text = json.dumps(facts).encode()
    return LENGTHS.pack(len(text), len(body)) + text + body


class QueueFull(Exception):
    """More queries wait than the limit allows."""


class Deadline(Exception):
    """A query was not answered in time."""


class EngineLost(Exception):
    """An engine died, or was ended."""


@dataclass(slots=True, eq=False)
class Engine:
    """One process, the maps that it has open by place, and those that it was asked to open ahead of queries."""

    process: asyncio.subprocess.Process
    opened: dict[str, str] = field(default_factory=dict)
    offered: dict[str, str] = field(default_factory=dict)
    is_lost: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs and answers."""
        return self.process.returncode is None and not self.is_lost

    async def ask(self, request: Mapping[str, Any], body: bytes, seconds: float) -> dict[str, Any]:
        """Send a request and return the answer; raises EngineLost, after which the engine is of no more use."""
        pipe, answers = self.process.stdin, self.process.stdout
        assert pipe is not None
        assert answers is not None
        try:
            async with asyncio.timeout(seconds):
                pipe.write(message_bytes(request, body))
                await pipe.drain()
                text, rest = LENGTHS.unpack(await answers.readexactly(LENGTHS.size))
                facts: dict[str, Any] = json.loads(await answers.readexactly(text))
                await answers.readexactly(rest)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as cause:
            self.kill()
            raise EngineLost(type(cause).__name__) from cause
        self.opened = facts.pop("open", self.opened)
        return facts

    def kill(self) -> None:
        """End the process."""
        self.is_lost = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Engines:
    """A number of engines, each with one query at a time, and the queries that wait for one.

    ``waiting`` counts queries that wait or are worked on, ``restarts`` the engines that were started anew.
    """

    def __init__(self, data: Path, limits: Limits, count: int = 1) -> None:
        self.data, self.limits, self.count = data, limits, count
        self.waiting = 0
        self.restarts = 0
        self._engines: set[Engine] = set()
        self._idle: deque[Engine] = deque()
        self._waiters: deque[tuple[asyncio.Future[Engine], Engine | None]] = deque()
        self._maps: dict[str, str] = {}
        self._deaths: Counter[str] = Counter()
        self._damaged: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pace = 0.0

    @property
    def ready(self) -> int:
        """How many engines are at work or could be."""
        return sum(engine.is_alive for engine in self._engines)

    @property
    def expected_wait(self) -> float:
        """Seconds after which a query that comes now will be answered, as the last ones went; 0 if nobody waits."""
        return self._pace * (1 + self.waiting / self.count) if self.waiting >= self.count else 0.0

    @property
    def is_warm(self) -> bool:
        """Whether all engines are there, with the current maps that they were started with."""
        return self.ready == self.count

    @property
    def damaged(self) -> frozenset[str]:
        """The current maps that an engine could not open, or died of; ids."""
        deadly = {name for name in self._deaths if self._is_deadly(name)}
        return frozenset((self._damaged | deadly) & set(self._maps.values()))

    def start(self, maps: Mapping[str, str]) -> None:
        """Start the engines; each opens the maps, newest first by place, before it takes queries."""
        self._maps = dict(maps)
        for _ in range(self.count):
            self._spawn(self._keep_one())

    async def stop(self) -> None:
        """End all engines; queries that are under way get no answer."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines:
            engine.kill()
            await engine.process.wait()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it was told, or nobody waits
        return task

    # --- life of an engine

    async def _keep_one(self) -> None:
        """Keep one engine alive: start it, wait for its end, and start the next; slowly if none gets far."""
        failures = 0
        while True:
            try:
                engine = await self._start_engine()
            except (OSError, EngineLost):
                log.exception("an engine did not start")
                failures += 1
            else:
                failures = 0
                self._engines.add(engine)
                self._give(engine)
                await engine.process.wait()
                self._forget(engine)
                log.warning("an engine ended", extra={"facts": {"code": engine.process.returncode}})
            self.restarts += 1
            await asyncio.sleep(min(LONGEST_PAUSE, 0.1 * 4**failures))

    async def _start_engine(self) -> Engine:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "sfumato.server.localizer",  # -P: nothing is loaded from the working folder
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        engine = Engine(process)
        try:
            facts = await engine.ask({"kind": "start"}, b"", WARM_SECONDS)
            if "error" in facts:
                raise EngineLost(facts["kind"])
            for place, name in reversed(list(self._maps.items())[:MOST_MAPS]):
                await self._warm(engine, place, name)
        except BaseException:
            engine.kill()
            await process.wait()
            raise
        return engine

    async def _warm(self, engine: Engine, place: str, name: str) -> None:
        """Open a map ahead of queries; one that an engine died of is left to them."""
        engine.offered[place] = name
        if self._is_deadly(name):
            return
        request = {"kind": "warm", "place": place, "map": name, "folder": self.folder_of(place, name)}
        try:
            facts = await engine.ask(request, b"", WARM_SECONDS)
        except EngineLost:
            self._deaths[name] += 1
            log.exception("an engine died of a map", extra={"facts": {"map": name}})
            raise
        self._note(name, facts)

    def _note(self, name: str, facts: Mapping[str, Any]) -> None:
        """Remember whether a map could be opened; the engine has logged why not."""
        if facts.get("kind") == DAMAGED:
            self._damaged.add(name)
        elif "error" not in facts:
            self._damaged.discard(name)
            del self._deaths[name]

    def _is_deadly(self, name: str) -> bool:
        """Tell whether engines died of a map; one alone may have been killed for another reason."""
        return self._deaths[name] >= DEADLY

    def folder_of(self, place: str, name: str) -> str:
        """Return the folder of a map."""
        return str(map_path(self.data, place, name, MODEL))

    async def follow(self, maps: Mapping[str, str]) -> None:
        """Open maps that became current in every engine, one engine at a time, and close those of places that went."""
        self._maps = dict(maps)
        for engine in tuple(self._engines):
            news = [item for item in list(maps.items())[:MOST_MAPS] if engine.offered.get(item[0]) != item[1]]
            is_gone = bool(engine.opened.keys() - maps.keys())
            if not news and not is_gone:
                continue
            with contextlib.suppress(EngineLost):
                await self._take(engine)
                try:
                    if is_gone:
                        await engine.ask({"kind": "keep", "places": list(maps)}, b"", WARM_SECONDS)
                    for place, name in reversed(news):
                        await self._warm(engine, place, name)
                finally:
                    self._give(engine)

    # --- who has which engine

    async def _take(self, engine: Engine | None = None, place: str = "", name: str = "") -> Engine:
        """Wait for an engine, or for this one, first come, first served; one that has a map open is preferred."""
        choice = [one for one in self._idle if engine in (None, one)]
        if choice:
            best = next((one for one in choice if one.opened.get(place) == name), choice[0])
            self._idle.remove(best)
            return best
        if engine is not None and engine not in self._engines:
            raise EngineLost
        future: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        waiter = future, engine
        self._waiters.append(waiter)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give(future.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _give(self, engine: Engine) -> None:
        """Pass an engine on to the first who waits for it."""
        if not engine.is_alive or engine not in self._engines:
            return
        for waiter in tuple(self._waiters):
            future, choice = waiter
            if choice in (None, engine):
                self._waiters.remove(waiter)
                if not future.done():
                    future.set_result(engine)
                    return
        self._idle.append(engine)

    def _forget(self, engine: Engine) -> None:
        self._engines.discard(engine)
        if engine in self._idle:
            self._idle.remove(engine)
        for future, choice in tuple(self._waiters):
            if choice is engine and not future.done():
                future.set_exception(EngineLost())

    # --- queries

    async def localize(self, request: Mapping[str, Any], frame: bytes, seconds: float) -> dict[str, Any]:
        """Answer a query.

        Raises QueueFull at once if too many wait, or so many that time would run out; Deadline if it does; EngineLost
        if the engine died.
        """
        if self.waiting >= self.limits.query_queue or self.expected_wait > seconds:
            raise QueueFull
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                engine = await self._take(None, request["place"], request["map"])
                task = self._spawn(self._use(engine, request, frame, time.monotonic() + seconds))
                return await asyncio.shield(task)
        except TimeoutError as cause:
            raise Deadline from cause
        finally:
            self.waiting -= 1

    async def _use(self, engine: Engine, request: Mapping[str, Any], frame: bytes, until: float) -> dict[str, Any]:
        """Ask an engine and pass it on, also when nobody waits for the answer any more."""
        place, name = request["place"], request["map"]
        try:
            if engine.opened.get(place) != name:  # which takes its time, and is no fault of the query
                facts = await engine.ask(
                    {"kind": "open", "place": place, "map": name, "folder": self.folder_of(place, name)},
                    b"", WARM_SECONDS,
                )  # fmt: skip
                self._note(name, facts)
                if "error" in facts:
                    return facts
            if time.monotonic() > until:
                raise Deadline
            full = {"kind": "localize", **request, "folder": self.folder_of(place, name)}
            started = time.monotonic()
            facts = await engine.ask(full, frame, PATIENCE * self.limits.query_seconds)
            self._pace += PACE_SHARE * (time.monotonic() - started - self._pace)
            return facts
        finally:
            self._give(engine)

    async def ask_all(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Ask every engine that is alive, each when it is idle."""
        answers = []
        for engine in tuple(self._engines):
            with contextlib.suppress(EngineLost):
                await self._take(engine)
                try:
                    answers.append(await engine.ask(request, b"", WARM_SECONDS))
                finally:
                    self._give(engine)
        return answers
