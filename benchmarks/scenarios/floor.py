"""The floor of concurrent callers: raw statements behind a loop and a writer thread, with a future for each call.

Nothing of the broker is in it, so no broker of this design can be faster: callers on an event loop, each of which
awaits its own durable result, and one thread that commits what has gathered.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import Bar, Case
from benchmarks.load import AsyncStep, Measurement, payload, rate, run_callers
from benchmarks.scenarios.bare import FULL
from benchmarks.scenarios.concurrent import BACKLOG, WORDS
from benchmarks.scenarios.raw import Raw
from benchmarks.subject import run_async

SIZE, CALLERS = 200, 256
Call = tuple[str, Any]
"""What is to be done, and with what."""


class Writer:
    """A thread that does the calls of a loop: all that gathered while it was busy, in one transaction."""

    def __init__(self, commit: Callable[[list[Call]], list[Any]]) -> None:
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Call, asyncio.Future[Any]]] = deque()
        self._awake = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, kind: str, argument: Any) -> "asyncio.Future[Any]":
        """A future of what the call gives, durable."""
        future = self._loop.create_future()
        self._waiting.append(((kind, argument), future))
        self._awake.set()
        return future

    def _work(self) -> None:
        while True:
            self._awake.wait()
            self._awake.clear()
            taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if taken:
                results = self._commit([call for call, _ in taken])
                self._loop.call_soon_threadsafe(_resolve, [future for _, future in taken], results)


def _resolve(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        future.set_result(result)


def put_all(raw: Raw, calls: list[Call]) -> list[Any]:
    return raw.put([body for _, body in calls])


def lease_and_complete_all(raw: Raw, calls: list[Call]) -> list[Any]:
    """Ends first, as the committer does; one lease for all who want one."""
    finished = [held for kind, held in calls if kind == "complete"]
    raw.connection.execute("BEGIN IMMEDIATE")
    if finished:
        raw.finish(finished)
    taken = iter(raw.take(len(calls) - len(finished)))
    raw.connection.execute("COMMIT")
    return [next(taken, None) if kind == "lease" else None for kind, _ in calls]


def put_step(writer: Writer) -> AsyncStep:
    """A value is encoded, and read back to see that it survives, as a put does."""
    value = payload(SIZE)

    async def step() -> int:
        body = msgspec.json.encode(value)
        assert msgspec.json.decode(body) == value
        await writer.call("put", body)
        return 1

    return step


def lease_complete_step(writer: Writer) -> AsyncStep:
    async def step() -> int:
        held = await writer.call("lease", None)
        if held is None:
            return 0
        await writer.call("complete", held)
        return 1

    return step


SCENARIOS = {"put": (put_all, put_step), "lease_complete": (lease_and_complete_all, lease_complete_step)}


def measure(scenario: str, directory: Path) -> Measurement:
    raw = Raw(directory)
    if scenario == "lease_complete":
        for _ in range(BACKLOG[SIZE] // 1000):
            raw.put([json.dumps(payload(SIZE)).encode()] * 1000)
    result: Measurement = run_async(_measure(scenario, raw))
    return result


async def _measure(scenario: str, raw: Raw) -> Measurement:
    commit, step = SCENARIOS[scenario]
    items, seconds = await run_callers(step(Writer(partial(commit, raw))), CALLERS)
    return rate(items, seconds, callers=CALLERS, synchronous=FULL)


CASES = [
    Case(
        f"floor.{scenario}.{SIZE}B.callers{CALLERS}",
        "The floor of concurrent callers: raw statements, a loop, a writer thread",
        f"{WORDS[scenario]}, {SIZE} B, {CALLERS} callers",
        partial(measure, scenario),
    )
    for scenario in SCENARIOS
]
BARS = [
    Bar(
        f"the floor, {WORDS[scenario]}: beside raw in batches of {batch:,}",
        f"floor.{scenario}.{SIZE}B.callers{CALLERS}",
        (f"raw.{scenario}.{SIZE}B.k{batch}",),
    )
    for scenario, batch in (("put", 1000), ("lease_complete", 100))
]
