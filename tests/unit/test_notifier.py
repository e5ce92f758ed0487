"""Waiting for work: no wake-up is lost, whoever leaves and whatever fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from tests.until import until

from redrive import AsyncBroker, Broker, connect
from redrive.broker.flow import CommitCalls, WaitForQueue
from redrive.broker.flows import deliveries
from redrive.broker.notifier import ALL_QUEUES, Notifier, Waiter
from redrive.clock import Instant
from redrive.contract.item_calls import Leased
from redrive.model.duration import HOUR, SECOND
from redrive.stores.memory import MemoryStore
from redrive.stores.notifications import Publisher
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock


class _Watched(MemoryStore):
    """A store that another process changes, as the test says."""

    def __init__(self, clock: FakeClock, looks: Iterator[Callable[[], Collection[str] | None]]) -> None:
        super().__init__(clock)
        self._looks = looks

    def poll_changes(self) -> Collection[str] | None:
        return next(self._looks, lambda: ())()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


def _await(notify: Notifier, clock: FakeClock, until: int = HOUR) -> WaitForQueue:
    return WaitForQueue("jobs", notify.sequence("jobs"), Instant(clock.now() + until), None)


def _raise() -> None:
    raise ValueError("not foreseen")


def test_change_right_after_a_look_is_seen_with_the_next_one(clock: FakeClock) -> None:
    """The clock moves on between the look and what follows: the next look is due at once, not after another pause."""

    def nothing_yet() -> tuple[()]:
        clock.advance("1s")
        return ()

    notify = Notifier(_Watched(clock, iter([lambda: (), nothing_yet, lambda: None])))  # it looks twice as it begins
    waiter = Background(lambda: notify.wait(_await(notify, clock)))
    assert waiter.result() is True
    notify.close()


def test_look_that_fails_in_an_unforeseen_way_leaves_nobody_waiting(clock: FakeClock) -> None:
    notify = Notifier(_Watched(clock, iter([_raise, _raise])))  # type: ignore[list-item]
    for _ in range(2):
        assert Background(lambda: notify.wait(_await(notify, clock))).result() is True
    notify.close()


def test_wake_up_of_a_closed_loop_goes_to_the_next(broker: Broker, clock: FakeClock) -> None:
    notify = broker.core.notify
    loop = asyncio.new_event_loop()

    async def enter() -> None:
        assert notify.enter(Waiter(_await(notify, clock), loop))

    loop.run_until_complete(enter())
    loop.close()
    waiter = Background(lambda: broker.lease("jobs", wait="1h"))
    until(lambda: len(notify._waiters.get("jobs", ())) == 2)
    broker.put("jobs", 1)
    assert [lease.value for lease in waiter.result()] == [1]


def test_waiters_that_left_are_forgotten(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.broker.notifier._STALE_ENDS", 10)
    notify = Notifier(MemoryStore(clock))
    for _ in range(50):
        waiter = Waiter(_await(notify, clock))
        assert notify.enter(waiter)
        notify._leave(waiter)
    with notify._mutex:
        notify._expire(clock.now())
        assert len(notify._ends) <= 11
    notify.close()


def test_asking_for_a_queue_remembers_nothing_of_it(clock: FakeClock) -> None:
    notify = Notifier(MemoryStore(clock))
    assert notify.sequence("nowhere") == 0
    assert not notify._tickets


def _first_step(flow: Any, leased: Leased) -> Any:
    assert isinstance(next(flow), CommitCalls)
    return flow.send([leased])


def test_woken_waiter_whose_time_is_over_wakes_the_next(
    broker: Broker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone was told when the next item falls due."""
    passed: list[str] = []
    monkeypatch.setattr(broker.core.notify, "notify_next", passed.append)
    flow = deliveries.lease(broker.core, "jobs", 1, "10s", None, None)
    assert isinstance(_first_step(flow, Leased(())), WaitForQueue)
    clock.advance("10s")
    assert isinstance(flow.send(True), CommitCalls)
    with pytest.raises(StopIteration):
        flow.send([Leased((), next_at=Instant(clock.now() + SECOND))])
    assert passed == ["jobs"]


def test_woken_waiter_that_is_cancelled_while_it_sweeps_wakes_the_next(broker: Broker) -> None:
    """Two wait; the first is woken, finds a lease that ran out, and is cancelled before it has settled it."""
    core, face = broker.core, AsyncBroker(broker.core)
    asked = threading.Event()

    def read(query: Any) -> Any:
        asked.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return ()

    go_on = threading.Event()
    passed: list[str] = []
    core.notify.notify_next = passed.append  # type: ignore[method-assign]

    async def cancel() -> None:
        first = asyncio.create_task(face.lease("jobs", wait="1h"))
        await asyncio.to_thread(until, lambda: len(core.notify._waiters.get("jobs", ())) == 1)
        core.read = read  # type: ignore[method-assign]
        core.committer.submit = overdue  # type: ignore[method-assign]
        core.notify.notify_arrivals({"jobs": 1})
        await asyncio.to_thread(asked.wait, PATIENCE_SECONDS)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go_on.set()

    def overdue(call: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result(Leased((), overdue=True))
        return future

    asyncio.run(cancel())
    assert passed == ["jobs"]


def test_every_commit_wakes_all_who_wait_for_everything(broker: Broker, clock: FakeClock) -> None:
    notify = broker.core.notify
    step = WaitForQueue(ALL_QUEUES, notify.sequence(ALL_QUEUES), Instant(clock.now() + HOUR), None)
    waiters = [Background(lambda: notify.wait(step)) for _ in range(3)]
    until(lambda: len(notify._waiters.get(ALL_QUEUES, ())) == 3)
    broker.run_maintenance()  # nothing arrives by it
    assert [waiter.result() for waiter in waiters] == [True] * 3
    assert notify.wait(step) is True  # the ticket is of before the commit


@pytest.mark.parametrize("changed", [None, ("other",)])
def test_change_by_another_process_wakes_all_who_wait_for_everything(
    clock: FakeClock, changed: Collection[str] | None
) -> None:
    looks: list[Callable[[], Collection[str] | None]] = []
    notify = Notifier(_Watched(clock, iter(lambda: looks.pop() if looks else (lambda: ()), None)))
    step = WaitForQueue(ALL_QUEUES, notify.sequence(ALL_QUEUES), Instant(clock.now() + HOUR), None)
    waiters = [Background(lambda: notify.wait(step)) for _ in range(3)]
    until(lambda: len(notify._waiters.get(ALL_QUEUES, ())) == 3)
    looks.append(lambda: changed)
    until(lambda: not looks or not clock.advance("20ms"))
    assert [waiter.result() for waiter in waiters] == [True] * 3
    notify.close()


def test_watch_rings_at_once_for_what_arrived_since_the_ticket(broker: Broker, clock: FakeClock) -> None:
    notify = broker.core.notify
    ticket = notify.sequence("jobs")
    rung = threading.Event()
    notify.notify_arrivals({"jobs": 1})
    watch = notify.watch({"others": (notify.sequence("others"), None), "jobs": (ticket, None)}, Instant(HOUR), rung.set)
    watch.begin()
    assert rung.is_set()
    assert watch.end() == set()


def test_watch_rings_for_one_of_its_queues_and_says_which(broker: Broker, clock: FakeClock) -> None:
    notify = broker.core.notify
    rung = threading.Event()
    asked = {queue: (notify.sequence(queue), None) for queue in ("jobs", "others")}
    watch = notify.watch(asked, Instant(clock.now() + HOUR), rung.set)
    watch.begin()
    assert not rung.is_set()
    notify.notify_arrivals({"others": 1})
    assert rung.is_set()
    assert watch.end() == {"others"}


def test_follower_is_told_of_every_commit_and_of_other_processes(clock: FakeClock) -> None:
    looks: list[Callable[[], Collection[str] | None]] = [lambda: (), lambda: ("mails",), lambda: None]
    told: list[Any] = []
    heard = threading.Event()
    notify = Notifier(_Watched(clock, iter(looks)))

    def follow(arrivals: Any) -> None:
        told.append(arrivals)
        if arrivals is None:
            heard.set()

    notify.subscribe(follow)
    notify.notify_arrivals({"jobs": 2})
    notify.notify_arrivals({})
    while not heard.is_set():
        clock.until_waiting()
        clock.advance("1s")
    notify.close()
    assert {"jobs": 2} in told
    assert {} in told
    assert {"mails": 1} in told
    assert told.count(None) == 1


def test_broker_closes_though_its_thread_was_kept_from_starting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in that moment: it is what the caller is told, and nothing else."""

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as now:
        now.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            broker.lease("jobs", wait="1h")
    broker.close()


def test_notices_close_though_their_thread_was_kept_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    teller = Publisher(lambda queues: None, lambda: None)
    with monkeypatch.context() as now:
        now.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            teller.publish(["jobs"])
    teller.close()
