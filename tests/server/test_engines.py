# SPDX-License-Identifier: Apache-2.0
"""Engines, with processes that do as they are told: queues, deadlines, deaths, and maps that are opened ahead."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from sfumato.server import engines as module
from sfumato.server.engines import Deadline, EngineLost, Engines, QueueFull
from sfumato.server.limits import Limits

ACTOR = """
import json, os, struct, sys, time
lengths, opened = struct.Struct("<IQ"), {}
while head := sys.stdin.buffer.read(12):
    text, rest = lengths.unpack(head)
    request, _ = json.loads(sys.stdin.buffer.read(text)), sys.stdin.buffer.read(rest)
    if request["kind"] in ("warm", "open", "localize"):
        if request["map"] == "deadly":
            os._exit(9)
        once = request.get("folder", "") + ".kills-once"
        if os.path.exists(once):
            os.unlink(once)
            os._exit(9)
        opened[request["place"]] = request["map"]
    if request["kind"] == "keep":
        opened = {place: name for place, name in opened.items() if place in request["places"]}
    time.sleep(request.get("seconds", 0))
    if request.get("dies"):
        os._exit(9)
    facts = {"kind": request["kind"], "process": os.getpid()}
    if os.path.exists(request.get("folder", "") + ".damaged") and request["kind"] in ("warm", "open", "localize"):
        opened.pop(request["place"], None)
        facts = {"kind": "DamagedMap", "error": "damaged"}
    answer = json.dumps({**facts, "open": opened}).encode()
    sys.stdout.buffer.write(lengths.pack(len(answer), 0) + answer)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Run a coroutine with engines that are actors, and stop them."""
    start = asyncio.create_subprocess_exec

    async def start_actor(*_: str, **words: Any) -> Any:
        return await start(sys.executable, "-S", "-c", ACTOR, **words)

    monkeypatch.setattr(module.asyncio, "create_subprocess_exec", start_actor)

    def run(
        play: Callable[[Engines], Awaitable[Any]], count: int = 1, maps: dict[str, str] | None = None, **limits: Any
    ) -> Any:
        async def whole_play() -> Any:
            engines = Engines(tmp_path, Limits(**limits), count)
            engines.start(maps or {})
            try:
                await ready(engines)
                return await play(engines)
            finally:
                await engines.stop()
                assert engines.ready == 0

        return asyncio.run(whole_play())

    return run


async def ready(engines: Engines, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not engines.is_warm:
            await asyncio.sleep(0.01)


def query(**words: Any) -> dict[str, Any]:
    return {"place": "place", "map": "map", **words}


def test_queries_wait_in_their_order_and_too_many_are_refused(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        done: list[int] = []

        async def ask(number: int) -> None:
            await engines.localize(query(seconds=0.02), b"", 10)
            done.append(number)

        tasks = [asyncio.create_task(ask(number)) for number in range(4)]
        await asyncio.sleep(0)
        started = time.monotonic()
        with pytest.raises(QueueFull):
            await engines.localize(query(), b"", 10)
        assert time.monotonic() - started < 0.1
        await asyncio.gather(*tasks)
        assert done == [0, 1, 2, 3]
        assert engines.waiting == 0

    act(play, query_queue=4)


def test_queries_that_would_wait_too_long_are_refused_at_once(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        for _ in range(8):
            await engines.localize(query(seconds=0.1), b"", 10)
        outcomes = await asyncio.gather(
            *(engines.localize(query(seconds=0.1), b"", 0.6) for _ in range(30)), return_exceptions=True
        )
        kinds = [type(outcome).__name__ for outcome in outcomes]
        assert 3 <= kinds.count("dict") <= 6
        assert kinds.count("QueueFull") >= 22
        assert kinds.count("Deadline") <= 3
        assert engines.expected_wait == 0
        await engines.localize(query(), b"", 0.5)

    act(play)


def test_a_deadline_ends_the_wait_and_not_the_engine(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        first = (await engines.localize(query(), b"", 10))["process"]
        with pytest.raises(Deadline):
            await engines.localize(query(seconds=0.3), b"", 0.05)
        with pytest.raises(Deadline):  # in the queue
            await engines.localize(query(), b"", 0.05)
        assert (await engines.localize(query(), b"", 10))["process"] == first
        assert engines.restarts == 0

    act(play)


def test_an_engine_that_is_stuck_or_dies_is_replaced(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        first = (await engines.localize(query(), b"", 10))["process"]
        with pytest.raises(EngineLost):
            await engines.localize(query(dies=True), b"", 10)
        assert not engines.is_warm
        second = (await engines.localize(query(), b"", 10))["process"]
        with pytest.raises(EngineLost):
            await engines.localize(query(seconds=60), b"", 10)
        third = (await engines.localize(query(), b"", 10))["process"]
        assert len({first, second, third}) == 3
        assert engines.restarts == 2

    act(play, query_seconds=0.1)


def test_a_client_that_goes_away_costs_nobody_an_engine(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        task = asyncio.create_task(engines.localize(query(seconds=0.2), b"", 10))
        waiting = asyncio.create_task(engines.localize(query(), b"", 10))
        await asyncio.sleep(0.05)
        task.cancel()
        waiting.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        await engines.localize(query(), b"", 10)
        assert (engines.restarts, engines.waiting) == (0, 0)

    act(play)


def test_maps_are_opened_ahead_in_every_engine_and_closed_when_they_go(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        assert all(engine.opened == {"one": "a"} for engine in engines._engines)
        await engines.follow({"one": "b", "two": "c"})
        assert [engine.opened for engine in engines._engines] == [{"one": "b", "two": "c"}] * 2
        await engines.follow({"two": "c"})
        assert [engine.opened for engine in engines._engines] == [{"two": "c"}] * 2
        many = {f"{number}": "map" for number in range(3 * module.MOST_MAPS)}
        await engines.follow(many)
        assert all(len(engine.opened) == module.MOST_MAPS for engine in engines._engines)
        facts = await engines.ask_all({"kind": "modules"})
        assert len({fact["process"] for fact in facts}) == 2

    act(play, 2, {"one": "a"})


def test_a_map_that_engines_die_of_does_not_keep_them_from_starting(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        assert engines.restarts == module.DEADLY
        assert engines.damaged == {"deadly"}
        await engines.localize(query(), b"", 10)

    act(play, 1, {"place": "map", "other": "deadly"})


def test_an_engine_that_is_killed_while_it_opens_a_map_does_not_condemn_the_map(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        mark = Path(engines.folder_of("other", "b") + ".kills-once")
        mark.parent.mkdir(parents=True)
        mark.touch()
        await engines.follow({"place": "map", "other": "b"})
        while not engines.is_warm:
            await asyncio.sleep(0.01)
        assert engines.restarts == 1
        assert engines.damaged == frozenset()

    act(play, 1, {"place": "map"})


def test_a_map_that_cannot_be_opened_is_known_until_it_can_or_another_is_current(act: Callable[..., Any]):
    async def play(engines: Engines) -> None:
        mark = Path(engines.folder_of("other", "b") + ".damaged")
        mark.parent.mkdir(parents=True)
        mark.touch()
        assert engines.damaged == frozenset()
        await engines.follow({"place": "map", "other": "b"})
        assert engines.damaged == {"b"}
        assert (await engines.localize(query(place="other", map="b"), b"", 10))["kind"] == "DamagedMap"
        await engines.follow({"place": "map", "other": "c"})
        assert engines.damaged == frozenset()
        await engines.follow({"place": "map", "other": "b"})
        assert engines.damaged == {"b"}
        mark.unlink()  # somebody put the files back
        assert (await engines.localize(query(place="other", map="b"), b"", 10))["kind"] == "localize"
        assert engines.damaged == frozenset()

    act(play, 1, {"place": "map", "other": "a"})


def test_of_a_large_sealed_map_votes_choose_the_candidates(monkeypatch: pytest.MonkeyPatch):
    from sfumato.server import localizer

    class Large:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def landmarks(self) -> dict[str, Any]:
            return {}

    for sealed, count, number, rule in (
        (True, 20, None, "exhaustive"), (True, 21, None, "votes:20"), (False, 21, None, "exhaustive"),
        (True, 5, 3, "votes:3"), (False, 5, 3, "votes:3"),
    ):  # fmt: skip
        monkeypatch.setattr(localizer, "is_sealed", lambda _, sealed=sealed: sealed)
        assert localizer.rule_for(Large(count), number) == rule  # type: ignore[arg-type]
