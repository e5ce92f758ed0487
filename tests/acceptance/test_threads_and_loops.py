"""One broker under many threads and event loops; closing and cancelling it in the middle of calls."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.places import places
from tests.until import until

from redrive import AsyncBroker, Broker, connect
from redrive.broker import committer
from redrive.broker.flow import WaitForQueue
from redrive.clock import Instant
from redrive.contract.item_calls import LeaseItems
from redrive.errors import Closed, OutcomeUnknown, Overloaded
from redrive.model.duration import HOUR
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS

THREADS = 8
LOOPS = 3
TASKS = 20
EACH = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "redrive.db"


@pytest.fixture
def broker(path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{path}", maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


class Door:
    """Stands before the store's commit: whoever comes waits there until it is opened."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._store = broker.core.store
        self._commit = self._store.commit
        self.reached = threading.Semaphore(0)
        self._open = threading.Event()
        monkeypatch.setattr(self._store, "commit", self._enter)

    def _enter(self, calls: Any, now: Any = None) -> Any:
        self.reached.release()
        assert self._open.wait(PATIENCE_SECONDS)
        return self._commit(calls, now)

    def until_reached(self) -> None:
        assert self.reached.acquire(timeout=PATIENCE_SECONDS)

    def open(self) -> None:
        self._open.set()


def test_threads_and_loops_share_one_broker(broker: Broker, path: Path) -> None:
    face = AsyncBroker(broker.core)

    def in_thread(number: int) -> list[str]:
        done = []
        for n in range(EACH):
            broker.put("jobs", f"{number}-{n}")
            for lease in broker.lease("jobs", 2):
                broker.complete(lease)
                done.append(lease.id)
        return done

    async def in_task(number: int) -> list[str]:
        done = []
        for n in range(EACH):
            await face.put("jobs", f"{number}-{n}")
            for lease in await face.lease("jobs", 2):
                await face.complete(lease)
                done.append(lease.id)
        return done

    async def in_loop(number: int) -> list[str]:
        return [id for done in await asyncio.gather(*(in_task(number + n) for n in range(TASKS))) for id in done]

    with ThreadPoolExecutor(THREADS + LOOPS) as pool:
        work: list[Future[list[str]]] = [pool.submit(in_thread, number) for number in range(THREADS)]
        work += [pool.submit(asyncio.run, in_loop(100 * number)) for number in range(1, LOOPS + 1)]
        done = [id for each in work for id in each.result(120)]
    while leases := broker.lease("jobs", 100):
        for lease in leases:
            broker.complete(lease)
            done.append(lease.id)
    assert len(done) == len(set(done)) == (THREADS + LOOPS * TASKS) * EACH
    assert places(path) == []


def test_close_commits_what_was_accepted_and_refuses_the_rest(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = AsyncBroker(broker.core)
    door = Door(broker, monkeypatch)

    async def put_many() -> list[Any]:
        return await asyncio.gather(*(face.put("jobs", n) for n in range(10)))

    calls = [Background(lambda: broker.put("jobs", "first"))]
    door.until_reached()
    calls += [Background(lambda: broker.put("jobs", "waits")) for _ in range(5)]
    loop = Background(lambda: asyncio.run(put_many()))
    until(lambda: len(broker.core.committer._waiting) == 6)
    closing = Background(broker.close)
    until(lambda: broker.core._closed)
    with pytest.raises(Closed):
        broker.stats("jobs")
    door.open()
    closing.result()
    ids = {call.result().id for call in calls} | {receipt.id for receipt in loop.result()}
    assert {standing.id for standing in places(path)} == ids
    assert len(ids) == 16
    with pytest.raises(Closed):
        broker.put("jobs", "late")
    with pytest.raises(Closed):
        asyncio.run(face.put("jobs", "late"))


def test_close_wakes_who_waits_for_an_item(broker: Broker) -> None:
    waiting = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: bool(broker.core.notify._waiters))
    broker.close()
    with pytest.raises(Closed):
        waiting.result()


def test_arrival_from_another_process_just_before_the_wait_is_not_missed(broker: Broker, path: Path) -> None:
    """The watcher looks for all queues at once: what it saw counts also for whoever is about to wait."""
    notify = broker.core.notify
    broker.create_queue("other")
    elsewhere = Background(lambda: broker.lease("other", wait="1h"))
    until(lambda: bool(notify._waiters) and not broker.core.store.poll_changes())
    ticket = notify.sequence("jobs")
    assert broker.lease("jobs") == []
    with connect(f"sqlite:///{path}", maintenance=False) as another:
        another.put("jobs", 1)
    until(lambda: notify.sequence("jobs") != ticket)
    assert notify.wait(WaitForQueue("jobs", ticket, Instant(broker.core.clock.now() + HOUR), None))
    broker.put("other", 1)
    elsewhere.result()


def test_calls_beyond_the_bound_are_refused_and_the_others_are_not(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MAX_WAITING_CALLS", 3)
    door = Door(broker, monkeypatch)
    calls = [Background(lambda: broker.put("jobs", 1))]
    door.until_reached()
    calls += [Background(lambda: broker.put("jobs", 1)) for _ in range(3)]
    until(lambda: len(broker.core.committer._waiting) == 3)
    with pytest.raises(Overloaded):
        broker.put("jobs", "too many")
    door.open()
    ids = {call.result().id for call in calls}
    assert {standing.id for standing in places(path)} == ids
    broker.put("jobs", "again")


def test_cancelled_lease_gives_its_items_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it is being committed."""
    ids = [receipt.id for receipt in broker.put_many("jobs", [1, 2, 3])]

    def given_back() -> bool:
        items = [broker.get(id) for id in ids]
        return [(item.status, item.counters.deliveries) for item in items] == [("pending", n) for n in (1, 1, 0)]

    face = AsyncBroker(broker.core)
    door = Door(broker, monkeypatch)

    async def cancel() -> None:
        task = asyncio.create_task(face.lease("jobs", 2))
        await asyncio.to_thread(door.until_reached)
        task.cancel()
        door.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, given_back)
        assert [lease.attempts for lease in await face.lease("jobs", 3)] == [1, 1, 1]

    asyncio.run(cancel())


@pytest.mark.parametrize(
    "lease", [lambda face: face.lease("jobs"), lambda face: face.submit(LeaseItems("jobs", 1))], ids=["flow", "call"]
)
def test_lease_cancelled_in_the_moment_it_arrives_gives_its_items_back(
    broker: Broker, lease: Callable[[AsyncBroker], Coroutine[Any, Any, Any]]
) -> None:
    """The result is there and the task has not run yet: what it would have got must not be lost."""
    broker.put_many("jobs", [1, 2])
    face = AsyncBroker(broker.core)

    async def cancel() -> None:
        second: asyncio.Task[Any] | None = None

        async def first() -> None:
            await lease(face)
            assert second is not None
            second.cancel()

        one = asyncio.create_task(first())
        second = asyncio.create_task(lease(face))
        await one
        with pytest.raises(asyncio.CancelledError):
            await second
        again = await face.lease("jobs")
        assert [(each.value, each.attempts) for each in again] == [(2, 1)]

    asyncio.run(cancel())


def test_cancelled_wait_leaves_the_item_to_the_next(broker: Broker) -> None:
    face = AsyncBroker(broker.core)

    async def wait() -> None:
        tasks = [asyncio.create_task(face.lease("jobs", wait="1h")) for _ in range(3)]
        await asyncio.to_thread(until, lambda: sum(map(len, broker.core.notify._waiters.values())) == 3)
        tasks[0].cancel()
        await face.put_many("jobs", [1, 2])
        leases = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(leases[0], asyncio.CancelledError)
        assert sorted(lease.value for each in leases[1:] for lease in each) == [1, 2]

    asyncio.run(wait())


def test_interrupted_leader_leaves_nobody_waiting(broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt in the thread that commits for others is for that thread alone."""
    store = broker.core.store
    commit, entered = store.commit, threading.Semaphore(0)
    proceed, turns = threading.Semaphore(0), iter(["first", "interrupted", "rest"])

    def interrupted(calls: Any, now: Any = None) -> Any:
        turn = next(turns, "later")
        entered.release()
        if turn == "first":
            assert proceed.acquire(timeout=PATIENCE_SECONDS)
        if turn == "interrupted":
            raise KeyboardInterrupt
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", interrupted)
    first = Background(lambda: broker.put("jobs", "first"))
    assert entered.acquire(timeout=PATIENCE_SECONDS)
    leader = Background(lambda: broker.put("jobs", "leads"))
    until(lambda: len(broker.core.committer._waiting) == 1)
    follower = Background(lambda: broker.put("jobs", "follows"))
    until(lambda: len(broker.core.committer._waiting) == 2)
    proceed.release()
    first.result()
    with pytest.raises(KeyboardInterrupt):
        leader.result()
    with pytest.raises(OutcomeUnknown):
        follower.result()
    broker.put("jobs", "after it")
    assert len(places(path)) == 2


def test_interrupted_main_thread_leaves_its_place_in_line_to_its_call(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the main thread, while its put is first in line behind a commit that takes long."""
    door = Door(broker, monkeypatch)
    first = Background(lambda: broker.put("jobs", "first"))
    door.until_reached()
    line = broker.core.committer._waiting

    def interrupt() -> Any:
        until(lambda: len(line) == 1)
        last = Background(lambda: broker.put("jobs", "last"))
        until(lambda: len(line) == 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return last

    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        broker.put("jobs", "interrupted")
    door.open()
    ids = {first.result().id, interrupting.result().result().id}
    there = {standing.id for standing in places(path)}
    assert ids < there
    assert len(there) == 3, "what it had handed in is done once"
