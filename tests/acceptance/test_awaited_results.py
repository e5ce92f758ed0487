"""A result that is awaited while the process forks, the server restarts, or the caller is cancelled."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.children import Say, run
from tests.servers.http import HttpServer
from tests.until import until

from redrive import AsyncBroker, Broker, connect, connect_async
from redrive.broker.notifier import Notifier
from redrive.client import change_watcher
from redrive.errors import StoreUnavailable
from redrive.model.duration import HOUR
from redrive.model.ids import RESULTS, ItemId, result_topic
from redrive.task import result_handle
from redrive.testing.conformance.actions import take
from redrive.testing.conformance.awaited_ends import awaiting
from redrive.testing.fake_clock import PATIENCE_SECONDS

MANY = 50


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HttpServer]:
    server = HttpServer(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case "http":
            server: HttpServer = request.getfixturevalue("server")
            return server.url
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.parametrize("url", ["sqlite", "postgres", "redis", "http"], indirect=True)
def test_fork_while_a_thread_awaits_a_result(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller polls: each is woken, the one in the parent by what the child completes."""
    monkeypatch.setattr(result_handle, "POLL_INTERVAL", HOUR)
    monkeypatch.setattr(change_watcher, "AWAITED_SECONDS", 3600.0)
    with connect(url) as broker:
        broker.create_queue("jobs")
        first, second = (broker.put("jobs", value).id for value in (1, 2))
        caller = awaiting(broker, first)

        def work(say: Say) -> None:
            assert not broker.core.notify._waiters
            own = awaiting(broker, second)
            for lease in broker.lease("jobs", 2):
                broker.complete(lease, result=lease.value, keep_result="1h")
            say(b"%d" % own.result().value)
            broker.close()

        assert run(work).said == b"2"
        assert caller.result().value == 1
        third = broker.put("jobs", 3).id
        caller = awaiting(broker, third)
        broker.complete(take(broker), result=3, keep_result="1h")
        assert caller.result().value == 3


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_server_restarts_while_a_client_awaits_a_result(server: HttpServer, how: signal.Signals) -> None:
    with connect(server.url) as broker, connect(server.url) as worker:
        broker.create_queue("jobs")
        caller = awaiting(broker, broker.put("jobs", 1).id)
        unreached = outages(broker)
        server.stop(how)
        assert unreached.wait(PATIENCE_SECONDS)
        server.start()
        worker.complete(take(worker), result=42, keep_result="1h")
        assert caller.result().value == 42


def outages(broker: Broker) -> threading.Event:
    """Set once a query has found that the store cannot be reached."""
    store: Any = broker.core.store
    unreached, read = threading.Event(), store.read

    def reading(query: Any) -> Any:
        try:
            return read(query)
        except StoreUnavailable:
            unreached.set()
            raise

    store.read = reading
    return unreached


async def test_cancelled_coroutines_leave_no_waiter(url: str) -> None:
    async with connect_async(url) as broker:
        await broker.create_queue("jobs")
        ids = [receipt.id for receipt in await broker.put_many("jobs", range(MANY))]
        notify = broker.core.notify
        before = sizes(notify)
        for _ in range(3):
            await cancelled_awaits(broker, ids)
            assert sizes(notify) == before


@pytest.mark.parametrize("works", [False, True], ids=["idle", "with a waiting lease"])
async def test_client_ends_its_watch_for_results_when_none_is_awaited(
    server: HttpServer, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It watches nothing where no caller waits, and only queues where a worker does."""
    monkeypatch.setattr(change_watcher, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(change_watcher, "AWAITED_SECONDS", 1.5)  # callers poll every second
    asked: list[bool] = []
    ask = change_watcher.ChangeWatcher._ask

    def asking(watcher: Any, known: Any) -> Any:
        answer = ask(watcher, known)
        asked.append(RESULTS in watcher._wanted)
        return answer

    monkeypatch.setattr(change_watcher.ChangeWatcher, "_ask", asking)
    async with connect_async(server.url) as broker:
        for queue in ("jobs", "idle"):
            await broker.create_queue(queue)
        id = (await broker.put("jobs", 1)).id
        lease = asyncio.create_task(broker.lease("idle", wait="10m")) if works else None
        watcher = broker.core.store._watching  # type: ignore[attr-defined]
        for _ in range(2):
            await cancelled_awaits(broker, [id])
            await asyncio.to_thread(until, lambda: True in asked)
            if works:
                await asyncio.to_thread(until, lambda: not asked[-1])
            else:
                await asyncio.to_thread(until, lambda: not watcher._asked.is_set())
            asked.clear()
        if lease is not None:
            lease.cancel()


async def cancelled_awaits(broker: AsyncBroker, ids: list[ItemId]) -> None:
    """Await these results, each in a coroutine, and cancel all once they wait."""
    core = broker.core
    topics = set(map(result_topic, ids))
    waits = [asyncio.create_task(broker.run_flow(result_handle.await_result(core, "task", id, None))) for id in ids]
    await asyncio.to_thread(until, lambda: topics <= core.notify._waiters.keys())
    for wait in waits:
        wait.cancel()
    ended = await asyncio.gather(*waits, return_exceptions=True)
    assert {type(each) for each in ended} == {asyncio.CancelledError}


def sizes(notify: Notifier) -> tuple[int, ...]:
    """How much a notifier remembers."""
    topics = [name for name in notify._tickets if name.startswith(RESULTS)]
    return len(notify._waiters), len(notify._ends), len(notify._dues), len(topics)
