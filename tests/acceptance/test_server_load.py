"""Many clients at once, and a server that is killed in the middle.

REDRIVE_THOROUGH=1: 1,000 clients for 60 seconds, and 10 kills under the same load.
"""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.http import Caller, HttpServer
from tests.sizes import THOROUGH

CLIENTS = 1000 if THOROUGH else 100
SECONDS = 60.0 if THOROUGH else 2.5
KILLS = 10 if THOROUGH else 2
SECONDS_BETWEEN_KILLS = 4.0 if THOROUGH else 1.0
MAX_TRIES = 50


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    yield server
    server.stop()


class Load:
    """What the clients did, and saw."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.took: list[float] = []
        self.first: Counter[int] = Counter()
        self.refused_for_good = 0
        self.acknowledged: set[str] = set()
        self.tried: set[str] = set()
        self.completed: Counter[str] = Counter()
        self.unsure: set[str] = set()

    async def call(self, caller: Caller, route: str, **arguments: Any) -> Any:
        """Call until it is accepted. How the first try ended is counted."""
        began = time.monotonic()
        for attempt in range(MAX_TRIES):
            try:
                status, answer = await caller.call(route, **arguments)
            except OSError:
                status, answer = 0, None
            if attempt == 0:
                self.first[status] += 1
                self.took.append(time.monotonic() - began)
            if status == 200:
                return answer
            if status not in (0, 429, 503):
                raise AssertionError(f"{route}: {status} {answer}")
            await asyncio.sleep(random.uniform(0.02, 0.1) * min(attempt + 1, 10))
        self.refused_for_good += 1
        return None

    async def live(self, number: int, is_over: Callable[[], bool]) -> None:
        """Put one, lease one, complete it, again and again."""
        count = 0
        with Caller(self.port) as caller:
            while not is_over():
                key = f"{number}-{count}"
                count += 1
                self.tried.add(key)
                if await self.call(caller, "queue.produce", queue="jobs", items=[_item(key)]):
                    self.acknowledged.add(key)
                leased = await self.call(caller, "queue.lease", queue="jobs", limit=1, worker=f"client-{number}")
                for item in leased["items"] if leased else ():
                    await self.complete(caller, item)

    async def complete(self, caller: Caller, item: Any) -> None:
        """Once: whether a completion that broke off happened nobody knows."""
        key = item["payload"]["key"]
        try:
            status, answer = await caller.call("queue.complete", queue="jobs", items=[{"token": item["token"]}])
        except OSError:
            self.unsure.add(key)
            return
        self.first[status] += 1
        if status == 200:
            self.completed[key] += 1
        elif status not in (409, 429, 503):
            raise AssertionError(f"queue.complete: {status} {answer}")

    def report(self, seconds: float) -> str:
        tail = statistics.quantiles(self.took, n=100)[98] * 1000
        middle = statistics.median(self.took) * 1000
        calls = sum(self.first.values())
        return (
            f"{calls:,} calls, {calls / seconds:,.0f}/s, median {middle:.1f} ms, p99 {tail:.1f} ms, "
            f"first answers {dict(self.first)}"
        )


def _item(key: str) -> dict[str, Any]:
    return {"payload": {"key": key, "text": "x" * 150}, "idempotency_key": key}


async def _create(port: int) -> None:
    settings = {"lease_timeout": "5s", "max_losses": 0, "max_attempts": 0}
    with Caller(port) as caller:
        status, answer = await caller.call("queues.create", name="jobs", settings=settings)
    assert status == 200, answer


async def _rest(load: Load) -> Counter[str]:
    """Everything that is still in the queue, by key, once what was leased and never settled has come back."""
    found: Counter[str] = Counter()
    with Caller(load.port) as caller:
        while True:
            leased = await load.call(caller, "queue.lease", queue="jobs", limit=100, wait="1s", worker="last")
            stats = await load.call(caller, "queue.stats", queue="jobs")
            if not leased["items"] and stats["pending"] + stats["failed"] + stats["active"] == 0:
                return found
            found.update(item["payload"]["key"] for item in leased["items"])
            done = [{"token": item["token"]} for item in leased["items"]]
            if done:
                await load.call(caller, "queue.complete", queue="jobs", items=done)


async def _check(load: Load) -> None:
    """Nothing acknowledged is lost, and nothing is there twice."""
    rest = await _rest(load)
    seen = load.completed + rest
    assert not (load.acknowledged - set(seen) - load.unsure), "acknowledged, and gone"
    assert set(seen) <= load.tried
    twice = [key for key, times in seen.items() if times > 1]
    assert not twice, f"completed twice, or there twice: {twice[:5]}"


@pytest.mark.timeout(600)
async def test_many_clients_are_served_at_once(server: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    await _create(server.port)
    load = Load(server.port)
    began = time.monotonic()
    await asyncio.gather(*(load.live(number, lambda: time.monotonic() > began + SECONDS) for number in range(CLIENTS)))
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"\n{CLIENTS:,} clients: {load.report(took)}")
    calls = sum(load.first.values())
    assert load.first[200] >= 0.99 * calls
    assert not load.refused_for_good
    await _check(load)


@pytest.mark.timeout(600)
async def test_server_that_is_killed_loses_nothing_acknowledged(
    server: HttpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await _create(server.port)
    load = Load(server.port)
    began = time.monotonic()
    over = asyncio.Event()
    clients = asyncio.gather(*(load.live(number, over.is_set) for number in range(CLIENTS)))
    for _ in range(KILLS):
        await asyncio.sleep(SECONDS_BETWEEN_KILLS)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await asyncio.sleep(SECONDS_BETWEEN_KILLS)
    over.set()
    await clients
    with capsys.disabled():
        print(f"\n{KILLS} kills: {load.report(time.monotonic() - began)}, {len(load.acknowledged):,} acknowledged")
    assert load.first[0], "no client ever noticed a kill"
    await _check(load)
