"""The worker where something goes wrong around it: the store, the handlers, the stop. Nothing is lost or charged."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.until import until

from redrive import App, Broker, Context, Dead, Status, connect
from redrive.broker.worker_session import Lost, WorkerSession, open_worker_session
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import LeaseItems
from redrive.errors import Closed, Forbidden, ItemNotFound, OutcomeUnknown, StoreUnavailable
from redrive.model.item import Item
from redrive.testing.fake_clock import PATIENCE_SECONDS
from redrive.worker import dispatcher, lease_extender, thread_runner
from redrive.worker.dispatcher import Dispatcher
from redrive.worker.prefetch import PrefetchController
from redrive.worker.thread_runner import ThreadRunner
from redrive.worker.worker import Worker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://", maintenance=False) as broker:
        yield broker


@pytest.fixture
def app(broker: Broker) -> Iterator[App]:
    app = App()
    with app.override_broker(broker):
        yield app


@pytest.fixture
def quick_to_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_extender, "CONFIRM_SECONDS", 0.01)
    monkeypatch.setattr(lease_extender, "POLL_SECONDS", 0.01)


def work(app: App, broker: Broker, **options: Any) -> None:
    """Run what there is to run. Fails where that never ends."""
    worker = Worker(app, broker=broker, **{"concurrency": 1, **options})
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run(until_idle=True)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "it never found that there is nothing to do"
    assert not errors


def item(broker: Broker, id: str, status: Status) -> Item:
    """The item, once it is that."""
    until(lambda: broker.get(id).status is status)
    return broker.get(id)


def charged(item: Item) -> tuple[int, int, int]:
    return item.counters.attempts, item.counters.failures, item.counters.losses


def lose(broker: Broker, count: int) -> None:
    """A worker leases items, and is gone."""
    lost = open_worker_session(broker, "gone")
    leases = lost.step([], {"jobs": count}).leases
    assert len(leases) == count
    lost.step([(lease, Lost()) for lease in leases], {})


# Several queues.


def test_worker_with_one_slot_sees_that_several_queues_are_empty(app: App, broker: Broker) -> None:
    for name in ("a", "b", "c"):
        app.queue(name).task(name=name)(lambda: None)
    work(app, broker)


def test_worker_with_one_slot_asks_all_queues_before_it_waits(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [app.queue(f"q{number}") for number in range(6)]
    ran = threading.Event()

    @queues[4].task
    def run() -> None:
        ran.set()

    waited: list[bool] = []
    worker = Worker(app, broker=broker, concurrency=1)
    run.put()
    with worker:
        until(lambda: hasattr(worker, "_dispatcher"))
        session = worker._dispatcher.session
        wait = session.wait

        def look_and_wait(queues: Sequence[str], end: Instant) -> None:
            waited.append(ran.is_set() or not queues)  # without queues it waits for the end of the run
            wait(queues, end)

        monkeypatch.setattr(session, "wait", look_and_wait)
        assert ran.wait(PATIENCE_SECONDS)
    assert all(waited)


def test_worker_that_a_queue_refuses_does_the_rest_and_raises_that_when_idle(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, closed = app.queue("jobs"), app.queue("closed")
    ran: list[int] = []

    @jobs.task
    def run(number: int) -> None:
        ran.append(number)

    closed.task(name="never")(lambda: None)
    for number in range(3):
        run.put(number)
    store = broker.core.store
    commit = store.commit

    def refusing(calls: list[Call], *rest: Any) -> Any:
        done = commit(calls, *rest)
        refused = [isinstance(call, LeaseItems) and call.queue == "closed" for call in calls]
        results = [
            Forbidden("work", "default", "closed") if no else result
            for no, result in zip(refused, done.results, strict=True)
        ]
        return msgspec.structs.replace(done, results=results)

    monkeypatch.setattr(store, "commit", refusing)
    worker = Worker(app, broker=broker, concurrency=1)
    with pytest.raises(Forbidden, match="closed"):
        worker.run(until_idle=True)
    assert sorted(ran) == [0, 1, 2]
    assert worker.has_settled_all


# Ends that the store does not take.


def test_item_that_is_buried_where_nothing_is_fails(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")

    @jobs.task
    def bury(to: str) -> Dead:
        return Dead(to=to)

    ids = [bury.put("nowhere").id, bury.put("not a name!").id]
    work(app, broker)
    for id in ids:
        assert charged(item(broker, id, Status.DEAD)) == (1, 1, 0)


def test_item_that_puts_to_a_queue_that_is_gone_fails(app: App, broker: Broker) -> None:
    jobs, other = app.queue("jobs", lease_timeout="1h"), app.queue("other")

    @other.task
    def follow() -> None: ...

    @jobs.task
    def lead(context: Context) -> None:
        broker.delete_queue("other")
        context.put(follow.item())

    id = lead.put().id
    work(app, broker, queues=["jobs"])
    assert charged(item(broker, id, Status.DEAD)) == (1, 1, 0)


def test_late_failure_whose_queue_is_gone_takes_no_other_end_along(app: App, broker: Broker) -> None:
    jobs, other = app.queue("jobs", keep_completed="1h"), app.queue("other")
    both = threading.Barrier(3)
    go = threading.Event()

    @other.task
    def fail() -> None:
        both.wait()
        go.wait()
        raise ValueError

    @jobs.task
    def succeed() -> None:
        both.wait()
        go.wait()

    gone, done = fail.put().id, succeed.put().id
    with Worker(app, broker=broker, concurrency=2):
        both.wait(PATIENCE_SECONDS)
        broker.drop(gone, force=True)
        broker.delete_queue("other", confirm=1)
        go.set()
        item(broker, done, Status.COMPLETED)


# The store in trouble.


def test_worker_that_stops_does_not_press_a_store_that_is_away(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = app.queue("jobs", keep_completed="1h")
    began, go, met = threading.Event(), threading.Event(), []

    @jobs.task
    def wait() -> None:
        began.set()
        go.wait()

    id = wait.put().id
    store = broker.core.store
    commit = store.commit

    def away(calls: list[Call], *rest: Any) -> Any:
        """For a second after the first call."""
        now = time.monotonic()
        if met and now >= met[0] + 1.0:
            return commit(calls, *rest)
        met.append(now)
        raise StoreUnavailable("memory", "away")

    worker = Worker(app, broker=broker, concurrency=1)
    with worker:
        assert began.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(store, "commit", away)
        worker.stop()
        go.set()
    assert 1 <= len(met) < 20
    assert broker.get(id).status is Status.COMPLETED
    assert worker.has_settled_all


def test_worker_knows_that_it_could_not_give_back_what_it_had(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = app.queue("jobs")
    began, go = threading.Event(), threading.Event()

    @jobs.task
    def wait() -> None:
        began.set()
        go.wait()

    def away(*given: Any) -> Any:
        raise StoreUnavailable("memory", "away")

    wait.put()
    worker = Worker(app, broker=broker, concurrency=1, shutdown_timeout="10ms")
    with worker:
        assert began.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(broker.core.store, "commit", away)
    go.set()
    assert not worker.has_settled_all


def _leases_answered_by(commit: Callable[..., Any], answer: Callable[[], Any]) -> Callable[..., Any]:
    """Commits, of which the first that leases anything is carried out, and its leases are not told."""
    met: list[Any] = []

    def cut_off(calls: list[Call], *rest: Any) -> Any:
        done = commit(calls, *rest)
        leased = [result for call, result in zip(calls, done.results, strict=True) if isinstance(call, LeaseItems)]
        if met or not any(each.leases for each in leased):
            return done
        met.append(calls)
        told = answer()
        results = [
            told if isinstance(call, LeaseItems) else each for call, each in zip(calls, done.results, strict=True)
        ]
        return msgspec.structs.replace(done, results=results)

    return cut_off


def test_leases_whose_answer_alone_was_cut_off_are_worked_on(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")

    @jobs.task
    def run() -> None: ...

    id = run.put().id
    store = broker.core.store
    monkeypatch.setattr(store, "commit", _leases_answered_by(store.commit, lambda: OutcomeUnknown("memory", "cut off")))
    work(app, broker)
    assert charged(item(broker, id, Status.COMPLETED)) == (1, 0, 0)


def test_leases_whose_answer_was_cut_off_are_given_back_by_a_worker_that_stops(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")

    @jobs.task
    def run() -> None: ...

    id = run.put().id
    worker = Worker(app, broker=broker, concurrency=1)

    def answer() -> Any:
        worker.stop()
        raise OutcomeUnknown("memory", "cut off")

    store = broker.core.store
    monkeypatch.setattr(store, "commit", _leases_answered_by(store.commit, answer))
    worker.run()
    assert charged(item(broker, id, Status.PENDING)) == (0, 0, 0)
    assert worker.has_settled_all


def test_log_names_an_unknown_outcome_only_if_there_is_one_and_the_return_of_the_store(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = app.queue("jobs")

    @jobs.task
    def run() -> None: ...

    run.put()
    store = broker.core.store
    errors = [
        OutcomeUnknown("memory", "cut off"),
        StoreUnavailable("memory", "away"),
        StoreUnavailable("memory", "away"),
    ]

    def answer() -> Any:
        raise errors[0]

    leased = _leases_answered_by(store.commit, answer)

    def commit(calls: list[Call], *rest: Any) -> Any:
        try:
            result = leased(calls, *rest)
        except OutcomeUnknown:
            errors.pop(0)
            raise
        if errors and len(errors) < 3:
            raise errors.pop(0)
        return result

    monkeypatch.setattr(store, "commit", commit)
    with caplog.at_level(logging.INFO, "redrive.worker"):
        work(app, broker)
    events = [record.event for record in caplog.records]  # type: ignore[attr-defined]
    assert "outcome_unknown" not in events
    assert events.count("store_unavailable") >= 2
    assert events.count("store_available") == 1
    assert events.index("store_available") > max(n for n, event in enumerate(events) if event == "store_unavailable")


class _Journal:
    """Counts heartbeats."""

    worker = "w"

    def __init__(self) -> None:
        self.beats = 0

    def beat(self) -> None:
        self.beats += 1

    def begin(self, *given: Any) -> None: ...

    def end(self, *given: Any) -> None: ...


def test_worker_shows_that_it_is_alive_while_the_store_hangs(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = app.queue("jobs", lease_timeout="200ms")
    began, go, answers = threading.Event(), threading.Event(), threading.Event()
    hanging = threading.Semaphore(0)

    @jobs.task
    def wait() -> None:
        began.set()
        go.wait()

    wait.put()
    in_flight_log: Any = _Journal()
    store = broker.core.store
    commit = store.commit

    def hangs(*given: Any) -> Any:
        hanging.release()
        answers.wait()
        return commit(*given)

    with Worker(app, broker=broker, concurrency=1, in_flight_log=in_flight_log):
        assert began.wait(PATIENCE_SECONDS)
        monkeypatch.setattr(store, "commit", hangs)
        assert hanging.acquire(timeout=PATIENCE_SECONDS)
        before = in_flight_log.beats
        until(lambda: in_flight_log.beats >= before + 3)
        answers.set()
        go.set()


def test_runner_ends_with_a_worker_whose_broker_is_closed(app: App) -> None:
    with connect("memory://", maintenance=False) as broker, app.override_broker(broker):
        jobs = app.queue("jobs")
        ran = threading.Event()

        @jobs.task
        def run() -> None:
            ran.set()

        worker = Worker(app, broker=broker, concurrency=2)
        run.put()
        raised: list[BaseException] = []

        def running() -> None:
            try:
                worker.run()
            except Closed as error:
                raised.append(error)

        thread = threading.Thread(target=running, daemon=True)
        thread.start()
        assert ran.wait(PATIENCE_SECONDS)
        handlers = [each for each in threading.enumerate() if each.name.startswith("redrive-handler")]
        broker.close()
        thread.join(PATIENCE_SECONDS)
        assert raised
        until(lambda: not any(each.is_alive() for each in handlers if each in worker._runner._threads.values()))  # type: ignore[attr-defined]


# Leases.


def test_short_lease_is_kept(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="2s", keep_completed="1h")
    runs: list[float] = []

    @jobs.task
    def run() -> None:
        runs.append(time.monotonic())
        until(lambda: time.monotonic() > runs[0] + 4)

    id = run.put().id
    work(app, broker, concurrency=2)
    assert charged(item(broker, id, Status.COMPLETED)) == (1, 0, 0)
    assert len(runs) == 1


def test_refusal_of_a_suspect_that_is_leased_by_its_id_does_not_end_the_worker(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def refuse(session: WorkerSession, id: str) -> None:
        asked.append(id)
        raise ItemNotFound(id)  # as a server answers if it has moved to a queue that the token is not for

    monkeypatch.setattr(WorkerSession, "lease_by_id", refuse)
    jobs = app.queue("jobs", max_losses=2)

    @jobs.task
    def run(number: int) -> None:
        pass

    ids = [run.put(number).id for number in range(2)]
    broker.report_lost(broker.lease("jobs")[0], "its worker was killed")
    work(app, broker, concurrency=2)
    assert asked == ids[:1]


def test_item_whose_lease_is_lost_before_it_began_does_not_run(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefetchController, "prefetch_count", lambda pace, timeout: 5)
    jobs = app.queue("jobs", lease_timeout="200ms")
    began, go, ran = threading.Event(), threading.Event(), threading.Event()

    @jobs.task
    def wait() -> None:
        began.set()
        go.wait()

    @jobs.task
    def run() -> None:
        ran.set()

    wait.put()
    id = run.put().id
    worker = Worker(app, broker=broker, concurrency=1)
    with worker:
        assert began.wait(PATIENCE_SECONDS)
        item(broker, id, Status.ACTIVE)
        broker.drop(id, force=True)
        until(lambda: any(job.lease_lost for job in worker._dispatcher.jobs()))
        go.set()
        until(lambda: not worker._dispatcher.jobs())
    assert not ran.is_set()


def test_function_in_a_thread_is_told_that_its_lease_is_lost_and_has_its_slot_until_it_ends(
    app: App, broker: Broker, quick_to_notice: None
) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")
    began, told, go, other = (threading.Event() for _ in range(4))

    @jobs.task
    def hold(context: Context) -> None:
        began.set()
        until(lambda: context.lease_lost)
        told.set()
        go.wait()

    @jobs.task
    def run() -> None:
        assert go.is_set()
        other.set()

    id = hold.put().id
    with Worker(app, broker=broker, concurrency=1):
        assert began.wait(PATIENCE_SECONDS)
        broker.drop(id, force=True)
        assert told.wait(PATIENCE_SECONDS)
        run.put()
        go.set()
        assert other.wait(PATIENCE_SECONDS)


def test_coroutine_whose_lease_is_lost_is_cancelled(app: App, broker: Broker, quick_to_notice: None) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")
    began, cancelled, other = (threading.Event() for _ in range(3))

    @jobs.task
    async def hold() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @jobs.task
    async def run() -> None:
        other.set()

    id = hold.put().id
    with Worker(app, broker=broker, concurrency=1):
        assert began.wait(PATIENCE_SECONDS)
        broker.drop(id, force=True)
        assert cancelled.wait(PATIENCE_SECONDS)
        run.put()
        assert other.wait(PATIENCE_SECONDS)


def test_item_does_not_run_beside_itself(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")
    began, go = threading.Event(), threading.Event()
    running: list[int] = []
    met: list[list[int]] = []

    @jobs.task
    def hold(context: Context) -> None:
        met.append(running.copy())
        running.append(context.deliveries)
        began.set()
        if context.deliveries == 1:
            until(lambda: context.lease_lost)
            go.wait()
        running.remove(context.deliveries)

    id = hold.put().id
    worker = Worker(app, broker=broker, concurrency=3)
    with worker:
        assert began.wait(PATIENCE_SECONDS)
        for deliveries in (2, 3):
            broker.retry(id, force=True)
            until(lambda deliveries=deliveries: broker.get(id).counters.deliveries == deliveries)
        go.set()
        item(broker, id, Status.COMPLETED)
    assert met == [[], []]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_item_runs_again_whenever_its_earlier_run_ends(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch, nth: int, when: str
) -> None:
    """It ends before or after the dispatcher asks for the n-th time whether that run goes on."""
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")
    began, go = threading.Event(), threading.Event()

    @jobs.task
    def hold(context: Context) -> None:
        if context.deliveries == 1:
            began.set()
            go.wait()

    app.create_queues(broker)
    runner = ThreadRunner(app, 2, lambda: False)
    dispatcher = Dispatcher(app, broker, ["jobs"], runner, "w", lambda *_: None)
    is_going_on, asked = dispatcher._is_going_on, itertools.count(1)

    def end() -> None:
        go.set()
        until(lambda: first.has_ended)

    def answer(job: Any) -> bool:
        is_now = next(asked) == nth
        if is_now and when == "before":
            end()
        goes_on = is_going_on(job)
        if is_now and when == "after":
            end()
        return goes_on

    def has_completed(id: str) -> bool:
        dispatcher.step()
        return broker.get(id).status is Status.COMPLETED

    id = hold.put().id
    dispatcher.step()
    assert began.wait(PATIENCE_SECONDS)
    (first,) = dispatcher.jobs()
    broker.retry(id, force=True)
    monkeypatch.setattr(dispatcher, "_is_going_on", answer)
    until(lambda: has_completed(id))
    assert next(asked) > nth
    runner.close(jobs_too=False)


def test_item_that_waits_for_its_earlier_run_goes_back_when_the_worker_stops(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")
    began, go = threading.Event(), threading.Event()

    @jobs.task
    def hold() -> None:
        began.set()
        go.wait()

    id = hold.put().id
    worker = Worker(app, broker=broker, concurrency=2, shutdown_timeout=PATIENCE_SECONDS)
    with worker:
        try:
            assert began.wait(PATIENCE_SECONDS)
            broker.retry(id, force=True)
            until(lambda: broker.get(id).counters.deliveries == 2)
            worker.stop()
            assert charged(item(broker, id, Status.PENDING)) == (0, 0, 0)
        finally:
            go.set()


def test_what_was_leased_ahead_of_tasks_that_turn_out_long_goes_back(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")
    go, began = threading.Event(), threading.Semaphore(0)

    @jobs.task
    def short() -> None: ...

    @jobs.task
    def long() -> None:
        began.release()
        go.wait()

    short.put_many(short.item() for _ in range(2000))
    ids = [handle.id for handle in long.put_many(long.item() for _ in range(100))]
    try:
        with Worker(app, broker=broker, concurrency=1):
            assert began.acquire(timeout=PATIENCE_SECONDS)
            until(lambda: broker.stats("jobs").pending == 99)
            with Worker(app, broker=broker, concurrency=1):
                assert began.acquire(timeout=PATIENCE_SECONDS)
                go.set()
    finally:
        go.set()
    assert all(charged(broker.get(id))[1:] == (0, 0) for id in ids)


def test_nothing_is_prefetched_again_while_no_item_ends(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "STALE_PREFETCH_SECONDS", 0.2)
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")
    go, began = threading.Event(), threading.Semaphore(0)

    @jobs.task
    def short() -> None: ...

    @jobs.task
    def long() -> None:
        began.release()
        go.wait()

    short.put_many(short.item() for _ in range(2000))
    ids = [handle.id for handle in long.put_many(long.item() for _ in range(100))]
    try:
        with Worker(app, broker=broker, concurrency=2):
            for _ in range(2):
                assert began.acquire(timeout=PATIENCE_SECONDS)
            until(lambda: broker.stats("jobs").pending == 98)
            delivered = [broker.get(id).counters.deliveries for id in ids]
            time.sleep(0.5)
            assert [broker.get(id).counters.deliveries for id in ids] == delivered
            go.set()
            until(lambda: broker.stats("jobs").completed == 2100)
    finally:
        go.set()


def test_suspect_that_takes_its_time_keeps_no_other_suspect_waiting(app: App, broker: Broker) -> None:
    jobs = app.queue("jobs", lease_timeout="1h")
    go, began = threading.Event(), threading.Semaphore(0)

    @jobs.task
    def long() -> None:
        began.release()
        go.wait()

    long.put_many(long.item() for _ in range(5))
    lose(broker, 5)
    lose(broker, 5)  # from the second loss on, none runs beside another in so few slots
    try:
        with Worker(app, broker=broker, concurrency=8):
            assert began.acquire(timeout=PATIENCE_SECONDS)
            until(lambda: broker.stats("jobs").pending == 4)
            with Worker(app, broker=broker, concurrency=8):
                assert began.acquire(timeout=PATIENCE_SECONDS)
                go.set()
    finally:
        go.set()


def test_long_job_keeps_neither_healthy_items_nor_suspects_of_other_workers_waiting(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.worker.suspects.DRAIN_TIME", 100_000)
    jobs = app.queue("jobs", lease_timeout="1h", keep_completed="1h")
    go, runs, ran = threading.Event(), threading.Event(), list[int]()

    @jobs.task
    def long() -> None:
        runs.set()
        go.wait()

    @jobs.task
    def short(number: int) -> None:
        ran.append(number)

    suspect = short.put(0).id
    lose(broker, 1)
    broker.hold([suspect], held_by="test")
    long.put()
    try:
        with Worker(app, broker=broker, concurrency=8):
            assert runs.wait(PATIENCE_SECONDS)
            broker.unhold(held_by="test")
            until(lambda: any(entry.event == "returned" for entry in broker.get(suspect).history))
            short.put_many(short.item(number) for number in range(1, 20))
            until(lambda: len(ran) == 19)
            with Worker(app, broker=broker, concurrency=8):
                item(broker, suspect, Status.COMPLETED)
            assert not go.is_set()
            go.set()
    finally:
        go.set()


# What handlers and hooks do.


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_hook_that_raises_anything_keeps_no_other_from_being_called(
    app: App, broker: Broker, error: type[BaseException]
) -> None:
    jobs = app.queue("jobs")
    called: list[str] = []

    @jobs.task
    def fail() -> None:
        raise ValueError

    @jobs.on_failure
    def hook(context: Context, failure: Any, settled: Any) -> None:
        called.append(context.id)
        raise error

    fail.put_many(fail.item() for _ in range(5))
    work(app, broker)
    assert len(called) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing can be forked here")
def test_copy_of_the_process_that_a_handler_made_runs_nothing(app: App, broker: Broker, tmp_path: Path) -> None:
    jobs = app.queue("jobs")
    path = tmp_path / "ran"
    copies: list[int] = []

    @jobs.task
    def copy() -> None:
        if pid := os.fork():
            copies.append(pid)

    @jobs.task
    def run(number: int) -> None:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")

    for number in range(30):
        run.put(number)
        if number == 15:
            copy.put()
    work(app, broker)
    until(lambda: os.waitpid(copies[0], os.WNOHANG)[0])
    assert path.read_text().splitlines() == [str(os.getpid())] * 30


# Time limits.


def test_time_limit_that_passes_before_the_handler_is_entered_costs_no_thread(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was suspended just then, say."""
    jobs = app.queue("jobs", lease_timeout="1h")
    told: list[bool] = []
    perform, interrupt = ThreadRunner.perform, thread_runner._Thread.interrupt

    @jobs.task(time_limit="10ms")
    def endless() -> None:
        while True:
            threading.Event().wait(0.005)

    def late(runner: ThreadRunner, job: Any) -> Any:
        until(lambda: told)
        return perform(runner, job)

    monkeypatch.setattr(ThreadRunner, "perform", late)
    monkeypatch.setattr(thread_runner._Thread, "interrupt", lambda *given: told.append(interrupt(*given)) or told[-1])
    id = endless.put().id
    with Worker(app, broker=broker, concurrency=1):
        failed = item(broker, id, Status.DEAD)
    assert failed.last_failure is not None
    assert failed.last_failure.type.endswith("TimeLimitExceeded")


PROFILED_AFTER_A_TIME_LIMIT = """
import sys, threading
from redrive import App, connect
from redrive.worker.worker import Worker
app = App()
jobs = app.queue("jobs", lease_timeout="1h")
@jobs.task(time_limit="10ms")
def endless():
    while True:
        threading.Event().wait(0.005)
def profiled():
    return "went on"
with connect("memory://", maintenance=False) as broker, app.override_broker(broker):
    app.create_queues(broker)
    endless.put()
    Worker(app, broker=broker, concurrency=1).run(until_idle=True)
    sys.setprofile(lambda *_: None)
    print(broker.stats("jobs").dead, profiled())
"""


def test_process_can_be_profiled_after_a_handler_was_interrupted() -> None:
    """CPython 3.11 hangs in the first function that is, if it looks for an exception that does not come."""
    command = [sys.executable, "-c", PROFILED_AFTER_A_TIME_LIMIT]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stdout
    assert said == "1 went on\n"


def test_thread_that_was_given_up_says_nothing_more_of_its_job(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_runner, "STOPPING_SECONDS", 0.05)
    jobs = app.queue("jobs", lease_timeout="1h", retry={"attempts": 2, "cooldown": "1h"})
    go, left = threading.Event(), threading.Event()

    @jobs.task(time_limit="10ms")
    def stubborn() -> None:
        while not go.is_set():
            try:
                go.wait()
            except Exception:
                continue
        left.set()

    id = stubborn.put().id
    worker = Worker(app, broker=broker, concurrency=1)
    with worker:
        until(lambda: broker.get(id).status is Status.FAILED)
        ends: list[Any] = []
        monkeypatch.setattr(worker._dispatcher, "on_outcome", lambda *given: ends.append(given))
        go.set()
        assert left.wait(PATIENCE_SECONDS)
    assert not ends
    assert charged(broker.get(id)) == (1, 1, 0)


def _swallows(go: threading.Event) -> Any:
    async def run() -> None:
        while not go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    return run


def _hangs(go: threading.Event) -> Any:
    async def run() -> None:
        while not go.is_set():
            try:
                go.wait()
            except Exception:
                continue

    return run


def _computes(go: threading.Event) -> Any:
    async def run() -> None:
        while not go.is_set():
            pass

    return run


def _threads_of_loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "redrive-loop"}


@pytest.mark.parametrize("make", [_swallows, _hangs, _computes])
def test_coroutine_beyond_its_time_limit_fails_and_others_go_on(
    app: App, broker: Broker, monkeypatch: pytest.MonkeyPatch, make: Callable[[threading.Event], Any]
) -> None:
    monkeypatch.setattr(thread_runner, "STOPPING_SECONDS", 0.2)
    jobs = app.queue("jobs", lease_timeout="1h")
    go = threading.Event()
    endless = jobs.task(name="endless", time_limit="10ms")(make(go))

    @jobs.task(keep_result="1m")
    async def other() -> int:
        return 1

    id, after = endless.put().id, other.put()
    others = _threads_of_loops()
    try:
        with Worker(app, broker=broker, concurrency=2):
            assert charged(item(broker, id, Status.DEAD)) == (1, 1, 0)
            assert after.result("30s") == 1
            assert other.put().result("30s") == 1
            go.set()
    finally:
        go.set()
        until(lambda: _threads_of_loops() <= others)
        gc.collect()  # the task that was given up: while one is destroyed, CPython 3.11 cannot parse a file
