"""The committer: whoever is interrupted, closed or gone, nobody else waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import AsyncBroker, Broker, connect, new_item
from redrive.errors import OutcomeUnknown, StoreFailed
from redrive.store import Call, LeaseItems, Promote, Put
from redrive.testing.clock import PATIENCE_SECONDS
from redrive.testing.conformance.deliveries import Background


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{tmp_path}/redrive.db", lifecycle=False, durability="relaxed") as broker:
        broker.create_queue("jobs")
        yield broker


def test_loop_that_closed_with_a_put_under_way_does_not_stop_the_writer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    face, store = AsyncBroker(broker._core), broker._core.store
    commit, reached, closed = store.commit, threading.Event(), threading.Event()

    def slow(calls: Sequence[Call], now: Any = None) -> Any:
        reached.set()
        assert closed.wait(PATIENCE_SECONDS)
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", slow)

    async def leave() -> None:
        asyncio.create_task(face.put("jobs", 1))  # noqa: RUF006  # cancelled with the loop
        await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)

    asyncio.run(leave())
    closed.set()

    async def again() -> None:
        await asyncio.wait_for(face.put("jobs", 2), PATIENCE_SECONDS)

    asyncio.run(again())
    assert broker.stats("jobs").pending == 2


class _InterruptedOnce:
    """A lock whose holder is interrupted (Ctrl-C) the moment it lets go, once."""

    def __init__(self, lock: threading.Lock, entries: int) -> None:
        self._lock, self._left = lock, entries

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def test_thread_that_is_interrupted_as_it_joins_the_line_steps_out(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = broker._core.committer
    committer._busy = True  # as if another thread were committing
    monkeypatch.setattr(committer, "_mutex", _InterruptedOnce(committer._mutex, 1))
    with pytest.raises(KeyboardInterrupt):
        broker.put("jobs", 1)
    committer._hand_over()
    assert Background(lambda: broker.put("jobs", 2)).result()


def test_leader_that_is_interrupted_as_it_takes_the_line_lets_the_others_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = broker._core.committer
    committer._busy = True
    leader = Background(lambda: broker.put("jobs", 1))
    _until_waiting(broker, 1)
    follower = Background(lambda: broker.put("jobs", 2))
    _until_waiting(broker, 2)
    monkeypatch.setattr(committer, "_mutex", _InterruptedOnce(committer._mutex, 2))
    committer._hand_over()
    with pytest.raises(KeyboardInterrupt):
        leader.result()
    with pytest.raises(OutcomeUnknown):
        follower.result()
    broker.put("jobs", 3)
    assert broker.stats("jobs").pending == 1


def test_call_that_meets_a_bug_fails_alone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the store's own code is an error of that call, not an unknown outcome for its neighbours."""

    def broken(*_: object) -> None:
        raise AssertionError("item 7 is in no place")

    monkeypatch.setattr("redrive.stores.relational.upkeep.promote", broken)
    broker.put("jobs", 1, delay=0.001)
    threading.Event().wait(0.01)
    results = broker._core.committer.commit([Promote(), Put("jobs", ()), LeaseItems("nowhere", 1)])
    assert isinstance(results[0], StoreFailed)
    assert "in no place" in str(results[0])
    assert results[1] == ()


def test_closing_in_the_middle_of_handing_in_a_call_answers_it(broker: Broker) -> None:
    """`close` comes from another thread between the look at what is being gathered and the entry into it."""
    face = AsyncBroker(broker._core)

    async def put() -> None:
        loop = asyncio.get_running_loop()
        await face.put("jobs", 1)
        create_future = loop.create_future
        closing = threading.Thread(target=broker.close)

        def close_meanwhile() -> asyncio.Future[Any]:
            loop.create_future = create_future  # type: ignore[method-assign]
            closing.start()
            closing.join(0.1)
            return create_future()

        loop.create_future = close_meanwhile  # type: ignore[method-assign]
        handed_in = broker._core.committer.submit(Put("jobs", (new_item(2),)))
        assert await asyncio.wait_for(handed_in, PATIENCE_SECONDS)
        await asyncio.to_thread(closing.join)

    asyncio.run(put())


def _until_waiting(broker: Broker, count: int) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 1000)):
        if len(broker._core.committer._waiting) == count:
            return
        pause.wait(0.001)
    raise AssertionError("nobody came")
