"""The committer: whoever is interrupted, closed or gone, nobody else waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive import AsyncBroker, Broker, Status, connect, new_item
from redrive.broker import committer as committer_module
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import LeaseItems, Put
from redrive.contract.maintenance_calls import Promote
from redrive.errors import DiskFull, OutcomeUnknown, Overloaded, QueueNotFound, StoreFailed, StoreUnavailable
from redrive.store import Commit, commit_rest
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{tmp_path}/redrive.db", maintenance=False, durability="relaxed") as broker:
        broker.create_queue("jobs")
        yield broker


def test_loop_that_closed_with_a_put_under_way_does_not_stop_the_writer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    face, store = AsyncBroker(broker.core), broker.core.store
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


def test_closing_waits_for_the_transaction_under_way_and_no_longer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer, store = broker.core.committer, broker.core.store
    commit, reached, released = store.commit, threading.Event(), threading.Event()

    def slow(calls: Sequence[Call], now: Any = None) -> Any:
        reached.set()
        assert released.wait(PATIENCE_SECONDS)
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", slow)
    putting = threading.Thread(target=broker.put, args=("jobs", 1), daemon=True)
    putting.start()
    assert reached.wait(PATIENCE_SECONDS)
    closing = threading.Thread(target=committer.close, daemon=True)
    closing.start()
    while not committer._idle._waiters:  # type: ignore[attr-defined]
        assert closing.is_alive()
    released.set()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    putting.join(PATIENCE_SECONDS)
    assert broker.stats("jobs").pending == 1


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
    committer = broker.core.committer
    committer._busy = True  # as if another thread were committing
    monkeypatch.setattr(committer, "_mutex", _InterruptedOnce(committer._mutex, 1))
    with pytest.raises(KeyboardInterrupt):
        broker.put("jobs", 1)
    committer._hand_over()
    assert Background(lambda: broker.put("jobs", 2)).result()


def test_leader_that_is_interrupted_as_it_takes_the_line_lets_the_others_go(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = broker.core.committer
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


class _CallerLock(threading.Event):
    """The lock of a waiting caller that is interrupted: when `cause` is set, or as soon as it is woken."""

    def __init__(self, cause: threading.Event | None) -> None:
        super().__init__()
        self._cause = self if cause is None else cause

    def acquire(self) -> None:
        assert self._cause.wait(PATIENCE_SECONDS)
        raise KeyboardInterrupt

    release = threading.Event.set


class _SlowLock(threading.Event):
    """The lock of a caller that is woken and does not run before `runs` is set."""

    def __init__(self, runs: threading.Event) -> None:
        super().__init__()
        self._runs = runs

    def acquire(self) -> None:
        assert self.wait(PATIENCE_SECONDS)
        assert self._runs.wait(PATIENCE_SECONDS)

    release = threading.Event.set


@pytest.mark.parametrize(
    "when", ["while it waits", "while its calls are committed", "before it is woken", "as it is woken"]
)
def test_caller_that_is_interrupted_keeps_no_other_caller_of_its_transaction_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    committer, store = broker.core.committer, broker.core.store
    committer._busy = True  # as if another thread were committing
    interrupts, runs, reached, goes_on = (threading.Event() for _ in range(4))
    commit, make = store.commit, committer_module._Request
    locks: dict[int, Any] = {2: _CallerLock(None if when == "as it is woken" else interrupts)}
    if when == "before it is woken":
        locks[1] = _SlowLock(runs)

    def slow(calls: Sequence[Call], now: Any = None) -> Any:
        reached.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return commit(calls, now)

    def request_of(position: int, calls: Sequence[Call]) -> Any:
        request = make(calls)
        request.lock = locks.get(position, request.lock)
        return request

    monkeypatch.setattr(store, "commit", slow)
    callers = list[Background[Any]]()
    for position in range(4):
        with monkeypatch.context() as patched:
            patched.setattr(committer_module, "_Request", partial(request_of, position))
            callers.append(Background(partial(broker.put, "jobs", position)))
            _until_waiting(broker, position + 1)
    if when == "while it waits":
        interrupts.set()
        _until_waiting(broker, 3)
    committer._hand_over()
    assert reached.wait(PATIENCE_SECONDS)
    if when == "while its calls are committed":
        interrupts.set()
        with pytest.raises(KeyboardInterrupt):
            callers[2].result()
    goes_on.set()
    assert callers[0].result(), "it has committed, and woken the next"
    interrupts.set()
    with pytest.raises(KeyboardInterrupt):
        callers[2].result()
    assert callers[3].result()
    runs.set()
    assert callers[1].result()
    assert broker.stats("jobs").pending == (3 if when == "while it waits" else 4)
    assert broker.put("jobs", 5), "and the store is free"


def test_call_that_meets_a_bug_fails_alone(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the store's own code is an error of that call, not an unknown outcome for its neighbours."""

    def broken(*_: object) -> None:
        raise AssertionError("item 7 is in no place")

    monkeypatch.setattr("redrive.stores.relational.maintenance.promote", broken)
    broker.put("jobs", 1, delay=0.001)
    threading.Event().wait(0.01)
    results = broker.core.committer.commit([Promote(), Put("jobs", ()), LeaseItems("nowhere", 1)])
    assert isinstance(results[0], StoreFailed)
    assert "in no place" in str(results[0])
    assert results[1] == ()


def test_closing_in_the_middle_of_handing_in_a_call_answers_it(broker: Broker) -> None:
    """`close` comes from another thread between the look at what is being gathered and the entry into it."""
    face = AsyncBroker(broker.core)

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
        handed_in = broker.core.committer.submit(Put("jobs", (new_item(2),)))
        assert await asyncio.wait_for(handed_in, PATIENCE_SECONDS)
        await asyncio.to_thread(closing.join)

    asyncio.run(put())


def test_calls_that_are_handed_in_together_share_a_transaction_with_those_of_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sizes = broker.core.store, []
    commit = store.commit

    def counted(calls: Sequence[Call], now: Any = None) -> Any:
        sizes.append(len(calls))
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", counted)
    committer = broker.core.committer

    async def hand_in() -> None:
        one = committer.submit_many([Put("jobs", (new_item(1),)), LeaseItems("nowhere", 1)])
        alone = committer.submit(Put("jobs", (new_item(2),)))
        two = committer.submit_many([Put("jobs", (new_item(3), new_item(4)))])
        none = committer.submit_many([])
        first, receipt, second, nothing = await asyncio.gather(one, alone, two, none)
        assert len(first.results[0]) == 1
        assert isinstance(first.results[1], QueueNotFound)
        assert len(receipt) == 1
        assert len(second.results[0]) == 2
        assert first.arrivals == second.arrivals == {"jobs": 4}
        assert first.now == second.now == nothing.now
        assert nothing.results == []

    asyncio.run(hand_in())
    assert sizes == [4]


def test_leases_of_a_group_whose_caller_is_gone_are_given_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    store = broker.core.store
    commit, reached, gone = store.commit, threading.Event(), threading.Event()
    broker.put("jobs", 1)

    def slow(calls: Sequence[Call], now: Any = None) -> Any:
        reached.set()
        assert gone.wait(PATIENCE_SECONDS)
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", slow)

    async def leave() -> None:
        future = broker.core.committer.submit_many([Promote(), LeaseItems("jobs", 1)])
        await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)
        future.cancel()
        gone.set()
        while not _is_back(broker):
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    (lease,) = broker.lease("jobs")
    assert lease.attempts == 1


def _is_back(broker: Broker) -> bool:
    """Whether the item was leased and given back. One read, as two could be before and after the lease."""
    (item,) = broker.find(queue="jobs", status="any").items
    return item.status is Status.PENDING and item.counters.deliveries == 1


def test_too_many_calls_at_once_are_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.broker.async_committer.MAX_WAITING_CALLS", 3)

    async def hand_in() -> None:
        committer = broker.core.committer
        accepted = committer.submit_many([Promote()] * 2)
        with pytest.raises(Overloaded):
            committer.submit_many([Promote()] * 2)
        assert (await accepted).results == [0, 0]

    asyncio.run(hand_in())


def test_group_is_told_of_a_store_that_fails(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(calls: Sequence[Call], now: Any = None) -> Any:
        raise DiskFull("jobs.db")

    monkeypatch.setattr(broker.core.store, "commit", broken)

    async def hand_in() -> None:
        with pytest.raises(DiskFull):
            await broker.core.committer.submit_many([Promote()])

    asyncio.run(hand_in())


def test_unexpected_error_of_the_store_is_an_unknown_outcome_for_threads_and_coroutines(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(calls: Sequence[Call], now: Any = None) -> Any:
        raise KeyError("item 7")

    monkeypatch.setattr(broker.core.store, "commit", broken)
    with pytest.raises(OutcomeUnknown, match="item 7"):
        broker.put("jobs", 1)
    with pytest.raises(OutcomeUnknown, match="item 7"):
        asyncio.run(AsyncBroker(broker.core).put("jobs", 1))


@pytest.mark.parametrize("error", [KeyError("a mistake"), OutcomeUnknown("s", "lost"), StoreUnavailable("s", "away")])
@pytest.mark.parametrize("is_first", [False, True])
def test_error_of_a_part_is_the_result_of_its_calls_alone(error: Exception, is_first: bool) -> None:
    def execute(positions: Sequence[int]) -> Commit:
        raise error

    done = Commit([None, "done", None], {"jobs": 0}, Instant(1))
    if is_first and isinstance(error, StoreUnavailable):
        with pytest.raises(StoreUnavailable):
            commit_rest(done, (0, 2), execute, "s", is_first=True)
        return
    first, middle, last = commit_rest(done, (0, 2), execute, "s", is_first=is_first).results
    assert first is last
    assert first is error or isinstance(first, OutcomeUnknown)
    assert middle == "done"


def test_part_of_which_one_call_fails_is_executed_call_by_call() -> None:
    def execute(positions: Sequence[int]) -> Commit:
        if 2 in positions:
            raise StoreFailed("s", "a mistake")
        return Commit([f"did {position}" for position in positions], {"jobs": 0}, Instant(2))

    done = commit_rest(Commit([None, "done", None], {}, Instant(1)), (0, 2), execute, "s")
    assert done.results[:2] == ["did 0", "done"]
    assert isinstance(done.results[2], StoreFailed)
    assert done.arrivals == {"jobs": 0}, "a new due time, without an item"
    assert done.now == 2


def _until_waiting(broker: Broker, count: int) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 1000)):
        if len(broker.core.committer._waiting) == count:
            return
        pause.wait(0.001)
    raise AssertionError("nobody came")
