"""The life of a worker: stops, leases, limits, suspects, and several queues, on the store under test."""

from __future__ import annotations

import asyncio
import threading

from redrive import App, Broker, Context, Status
from redrive.testing.clock import PATIENCE_SECONDS, FakeClock
from redrive.testing.conformance.deliveries import places
from redrive.testing.conformance.worker_suite import WorkerSuite, only, wait_for, work
from redrive.worker.worker import Worker


class WorkerLifeConformance(WorkerSuite):
    """Deliveries end as they should whatever becomes of the worker, but for its death."""

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
        app.declare(broker)
        with Worker(app, broker=broker, concurrency=1):
            assert started.wait(PATIENCE_SECONDS)
            (lease,) = broker.find(queue="jobs", status="active").items
            broker.drop(lease.id, force=True)
            broker.put("jobs", {}, headers={"task": "other"}, held_by="test")
            release.set()
        assert places(broker.stats("jobs")) == {"pending": 1}

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
                broker.step()
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
            if context.losses:  # time enough for somebody to begin who should not
                beside.append({"somebody began"} if others.wait(0.2) else set())
            with mutex:
                at_work.discard(name)

        mark.put("suspect")
        broker.lease("jobs")
        clock.advance("11s")
        broker.step()
        mark.put_many(mark.item(f"n{number}") for number in range(30))
        work(app, broker)
        assert beside == [set(), set()]
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
