"""Workers on the store under test: registration, plans, stops, leases, limits, suspects, several queues."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from redrive import App, AsyncBroker, Broker, Context, Status, WorkerInfo
from redrive.broker.flow import run
from redrive.broker.flows import registrations
from redrive.contract.queries import ListRegistrations
from redrive.errors import InvalidInput
from redrive.model.item import Item
from redrive.testing.conformance.actions import places, take
from redrive.testing.conformance.async_broker import Scenario
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock
from redrive.worker.worker import Worker


def announce(broker: Broker, name: str = "w1", **options: Any) -> WorkerInfo:
    """Register a worker."""
    given: dict[str, Any] = {
        "host": "here",
        "pid": 7,
        "queues": ("jobs",),
        "handlers": ("send",),
        "versions": {"redrive": "1", "python": "3"},
        "started_at": broker.core.clock.now(),
        "concurrency": 4,
        **options,
    }
    info = WorkerInfo(name, **given)
    run(broker.core, registrations.register_worker(info))
    return info


def dead_task(broker: Broker, *tasks: str | None) -> None:
    """Create a dead letter for each of these tasks; None: one without a task."""
    for task in tasks:
        broker.put("jobs", 1, headers={} if task is None else {"task": task})
        broker.fail(take(broker), "boom", final=True)


class WorkersConformance(Suite):
    """`workers`, and the warning of a plan."""

    def test_worker_is_seen_as_it_announced_itself(self, broker: Broker, clock: FakeClock) -> None:
        assert broker.workers() == ()
        info = announce(broker, running=3)
        assert broker.workers() == (msgspec.structs.replace(info, seen_at=clock.now()),)

    def test_workers_come_by_name(self, broker: Broker) -> None:
        for name in ("w2", "w10", "w1"):
            announce(broker, name)
        assert [worker.name for worker in broker.workers()] == ["w1", "w10", "w2"]

    def test_worker_that_says_nothing_any_more_is_gone(self, broker: Broker, clock: FakeClock) -> None:
        announce(broker, "silent")
        clock.advance("20s")
        announce(broker, "speaks")
        clock.advance("10s")
        assert [worker.name for worker in broker.workers()] == ["speaks"]

    def test_worker_that_leaves_is_gone_at_once(self, broker: Broker) -> None:
        announce(broker)
        assert run(broker.core, registrations.unregister_worker("w1")) is True
        assert broker.workers() == ()

    def test_other_processes_see_it(self, broker: Broker, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        announce(broker)
        assert [worker.name for worker in open_broker().workers()] == ["w1"]

    def test_more_handlers_than_can_be_named_are_left_out(self, broker: Broker) -> None:
        announce(broker, handlers=tuple(f"task_{n:050d}" for n in range(2_000)))
        assert broker.workers()[0].handlers is None

    def test_what_cannot_be_read_is_passed_over(self, broker: Broker) -> None:
        """Check that an unreadable registration is ignored, for example one of another release."""
        announce(broker)
        run(broker.core, registrations.register("worker", "odd", b"[1, 2]"))
        assert [worker.name for worker in broker.workers()] == ["w1"]

    @pytest.mark.parametrize(
        ("kind", "name", "value", "options"),
        [
            ("no good", "n", b"", {}),
            ("worker", "", b"", {}),
            ("worker", "a\0b", b"", {}),
            ("worker", "n", b"x" * (64 * 1024 + 1), {}),
            ("worker", "n", "text", {}),
            ("worker", "n", b"", {"timeout": 0}),
            ("worker", "n", b"", {"version": -1}),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_bad_registration_is_refused(
        self, broker: Broker, kind: str, name: str, value: Any, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidInput):
            run(broker.core, registrations.register(kind, name, value, **options))
        assert broker.core.read(ListRegistrations("worker")) == ()

    def test_plan_names_tasks_that_no_worker_knows(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "send", "gone", "gone", None)
        announce(broker)
        plan = broker.plan_operation("redrive")
        assert (plan.changed, dict(plan.unhandled)) == (4, {"gone": 2})
        assert "no worker knows: gone 2" in str(plan)
        announce(broker, "w2", handlers=("gone",))
        assert dict(broker.plan_operation("redrive").unhandled) == {}

    def test_plan_says_nothing_where_no_worker_is_alive(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "gone")
        assert dict(broker.plan_operation("redrive").unhandled) == {}
        announce(broker, queues=("other",))
        assert dict(broker.plan_operation("redrive").unhandled) == {}
        announce(broker, "w2", handlers=("send",))
        assert dict(broker.plan_operation("redrive").unhandled) == {"gone": 1}
        clock.advance("30s")
        assert dict(broker.plan_operation("redrive").unhandled) == {}

    def test_plan_goes_by_the_workers_of_the_queue_that_items_go_to(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("spare")
        dead_task(broker, "send")
        announce(broker)
        announce(broker, "w2", queues=("spare",), handlers=("other",))
        assert dict(broker.plan_operation("redrive").unhandled) == {}
        assert dict(broker.plan_operation("redrive", to="spare").unhandled) == {"send": 1}
        assert dict(broker.plan_operation("archive").unhandled) == {}

    def test_worker_that_names_no_handlers_may_know_all(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead_task(broker, "gone")
        announce(broker, handlers=None)
        assert dict(broker.plan_operation("redrive").unhandled) == {}


class AsyncWorkersConformance(Suite):
    """Workers through `AsyncBroker`; `play` is that of `AsyncConformance`."""

    def test_async_result_loss_and_workers(self, play: Callable[[Scenario], None]) -> None:
        async def scenario(broker: AsyncBroker) -> None:
            await broker.create_queue("jobs", max_losses=1)
            receipt, _ = await broker.put_many("jobs", [1, 2])
            done, killer = await broker.lease("jobs", 2, worker="w1")
            await broker.complete(done, result="r", keep_result="1m")
            result = await broker.result(receipt.id)
            assert result is not None
            assert result.value == "r"
            assert (await broker.report_lost(killer, "killed")).dead_reason == "worker_lost"
            assert await broker.workers() == ()

        play(scenario)


def work(app: App, broker: Broker, **options: Any) -> Worker:
    """Run a worker until no task is left, and return it."""
    worker = Worker(app, broker=broker, **{"concurrency": 4, **options})
    worker.run(until_idle=True)
    return worker


def only(broker: Broker, queue: str = "jobs") -> Item:
    """Return the only item of a queue, with all fields."""
    (found,) = broker.find(queue=queue, status="any").items
    return broker.get(found.id)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a thread of the worker has made this condition true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class WorkerSuite(Suite):
    """The fixtures of suites that run workers."""

    @pytest.fixture
    def app(self, broker: Broker) -> Iterator[App]:
        """Yield an app that puts to the broker of the test."""
        app = App()
        with app.override_broker(broker):
            yield app


class WorkerLifeConformance(WorkerSuite):
    """The outcomes of deliveries when a worker stops, is late, or reaches a limit, but is not killed."""

    def test_what_has_not_begun_is_given_back_uncounted(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        started, release = threading.Event(), threading.Event()

        @jobs.task
        def wait() -> None:
            started.set()
            assert release.wait(PATIENCE_SECONDS)

        wait.put_many(wait.item() for _ in range(5))
        worker = Worker(app, broker=broker, concurrency=1)
        with worker:
            assert started.wait(PATIENCE_SECONDS)
            worker.stop()
            release.set()
        left = broker.find(queue="jobs", status="any").items
        assert [(item.status, item.counters.attempts) for item in left] == [(Status.PENDING, 0)] * 4

    def test_what_runs_at_the_deadline_of_a_stop_is_given_back_uncounted(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        started, release = threading.Event(), threading.Event()

        @jobs.task
        def wait() -> None:
            started.set()
            release.wait(PATIENCE_SECONDS)

        wait.put()
        with Worker(app, broker=broker, concurrency=1) as worker:
            assert started.wait(PATIENCE_SECONDS)
            worker.stop(at_once=True)
        item = only(broker)
        release.set()
        assert (item.status, item.counters.attempts, item.counters.losses) == (Status.PENDING, 0, 0)

    def test_late_outcome_is_refused(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs", lease_timeout="10s")
        started, release = threading.Event(), threading.Event()

        @jobs.task
        def wait() -> None:
            started.set()
            assert release.wait(PATIENCE_SECONDS)

        wait.put()
        app.create_queues(broker)
        with Worker(app, broker=broker, concurrency=1):
            assert started.wait(PATIENCE_SECONDS)
            (lease,) = broker.find(queue="jobs", status="active").items
            broker.drop(lease.id, force=True)
            broker.put("jobs", {}, headers={"task": "other"}, held_by="test")
            release.set()
        assert places(broker.stats("jobs")) == {"archived": 1, "pending": 1}

    def test_lease_of_what_runs_is_extended(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs", lease_timeout="10s")
        started, release = threading.Event(), threading.Event()

        @jobs.task
        def wait() -> None:
            started.set()
            assert release.wait(PATIENCE_SECONDS)

        wait.put()
        with Worker(app, broker=broker, concurrency=1) as worker:
            assert started.wait(PATIENCE_SECONDS)
            for _ in range(3):
                clock.advance("6s")
                wait_for(lambda: only(broker).lease_deadline == clock.now() + 10_000_000)
                broker.run_maintenance()
            assert only(broker).worker == worker.name
            release.set()
        assert places(broker.stats("jobs")) == {}

    def test_time_limit_ends_a_handler(self, app: App, broker: Broker) -> None:
        jobs = app.queue("jobs")
        after: list[int] = []

        @jobs.task(time_limit="10ms")
        def busy() -> None:
            while True:
                pass

        @jobs.task(time_limit="10ms")
        async def sleepy() -> None:
            await asyncio.sleep(60)

        @jobs.task
        def good() -> None:
            after.append(1)

        busy.put()
        sleepy.put()
        good.put()
        work(app, broker, concurrency=1)
        found = broker.find(queue="jobs", status="dead").items
        types = [broker.get(item.id).last_failure for item in found]
        for failure in types:
            assert failure is not None
            assert failure.type.endswith("TimeLimitExceeded")
            assert "10ms" in failure.text
        assert len(types) == 2
        assert after == [1]

    def test_suspect_runs_alone(self, app: App, broker: Broker, clock: FakeClock) -> None:
        jobs = app.queue("jobs", lease_timeout="10s")
        at_work: set[str] = set()
        others = threading.Event()
        beside: list[set[str]] = []
        mutex = threading.Lock()

        @jobs.task
        def mark(context: Context, name: str) -> None:
            with mutex:
                at_work.add(name)
                if context.losses:
                    beside.append(at_work - {name})
                    others.clear()
                else:
                    others.set()
            if context.losses:  # enough time for a task that must not start now
                beside.append({"somebody began"} if others.wait(0.2) else set())
            with mutex:
                at_work.discard(name)

        mark.put("suspect")
        broker.lease("jobs")
        clock.advance("11s")
        broker.run_maintenance()
        mark.put_many(mark.item(f"n{number}") for number in range(30))
        work(app, broker)
        assert beside == [set(), set()]
        assert places(broker.stats("jobs")) == {}

    def test_item_that_the_next_loss_makes_dead_runs_when_its_worker_holds_nothing_else(
        self, app: App, broker: Broker, clock: FakeClock
    ) -> None:
        jobs = app.queue("jobs", lease_timeout="10s", max_losses=2)
        held: dict[str, int] = {}

        @jobs.task
        def mark(context: Context, name: str) -> None:
            if context.losses:
                held[name] = broker.stats("jobs").active

        for name in ("one", "two", "three"):
            mark.put(name)
        assert len(broker.lease("jobs", limit=3)) == 3
        clock.advance("11s")
        broker.run_maintenance()
        mark.put_many(mark.item(f"n{number}") for number in range(30))
        work(app, broker)
        assert held == {"one": 1, "two": 1, "three": 1}
        assert places(broker.stats("jobs")) == {}

    def test_queues_are_worked_on_together(self, app: App, broker: Broker) -> None:
        names = [f"q{number}" for number in range(5)]
        seen: list[str] = []
        tasks = []
        for name in names:

            def run(context: Context) -> None:
                seen.append(context.queue)

            tasks.append(app.queue(name).task(name=f"run-{name}")(run))
        for task in tasks:
            task.put_many(task.item() for _ in range(20))
        work(app, broker)
        assert sorted(seen) == sorted(names * 20)
