"""Hooks and alerts of a dead-letter queue: called after the commit of what they report, without delaying it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from redrive import AsyncBroker, Broker
from redrive.capture import (
    Alert,
    AlertKind,
    AlertThresholds,
    AsyncDeadLetterQueue,
    Captured,
    CaptureFullError,
    DeadLetterQueue,
    DeadLetterStatus,
    FailedTask,
)
from redrive.errors import IdempotencyConflict, InvalidInput
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

FEW = AlertThresholds(utilization_percent=80, exhausted=3, success_rate=0.5, min_retries=4)


class CaptureHookConformance(Suite):
    """The guarantees of hooks and alerts."""

    def seen(self, dlq: DeadLetterQueue) -> list[tuple[str, str, DeadLetterStatus]]:
        """Add a hook for each event, and return the list that they write to."""
        calls: list[tuple[str, str, DeadLetterStatus]] = []
        for name in ("captured", "retried", "succeeded", "exhausted"):

            def hook(task: FailedTask, name: str = name) -> None:
                calls.append((name, task.task_id, task.status))

            getattr(dlq, f"on_{name}")(hook)
        return calls

    def alerts(self, dlq: DeadLetterQueue) -> list[tuple[AlertKind, float]]:
        """Add a hook for alerts, and return the list that it writes to."""
        fired: list[tuple[AlertKind, float]] = []

        @dlq.on_alert
        def note(alert: Alert) -> None:
            fired.append((alert.kind, round(alert.value, 2)))

        return fired

    def fill(self, dlq: DeadLetterQueue, first: int, count: int, **options: Any) -> None:
        """Capture tasks, and wait for the hooks."""
        for number in range(first, first + count):
            dlq.enqueue(f"t{number}", {}, "Connection timeout", **options)
        dlq.shutdown()

    def test_hooks_get_the_task_after_each_event(self, broker: Broker, clock: FakeClock) -> None:
        dlq = DeadLetterQueue(broker)
        calls = self.seen(dlq)
        failures = [1, 2, 3]

        @dlq.guard(name="work", max_retries=2, on_failure="handle", key=lambda number: f"work-{number}")
        def work(number: int) -> None:
            if failures:
                failures.pop()
                raise ConnectionError

        assert work(1) == Captured("work-1")
        dlq.shutdown()
        assert calls == [("captured", "work-1", "pending")]
        for _ in range(2):
            clock.advance("1h")
            dlq.run_due_tasks()
            dlq.shutdown()
        retried = [("retried", "work-1", "pending"), ("retried", "work-1", "exhausted")]
        assert calls[1:] == [*retried, ("exhausted", "work-1", "exhausted")]
        assert dlq.retry_task("work-1")["success"]
        dlq.shutdown()
        assert calls[4:] == [("retried", "work-1", "completed"), ("succeeded", "work-1", "completed")]

    def test_task_that_is_never_retried_is_captured_and_exhausted(self, broker: Broker, clock: FakeClock) -> None:
        dlq = DeadLetterQueue(broker)
        calls = self.seen(dlq)
        self.fill(dlq, 0, 1, max_retries=0)
        self.fill(dlq, 0, 1, max_retries=0)  # one more failure of the same task
        captured = ("captured", "t0", "exhausted")
        assert calls == [captured, ("exhausted", "t0", "exhausted"), captured]
        dlq.set_callback(lambda task: None)
        self.fill(dlq, 1, 1)
        clock.advance("1h")
        dlq.run_due_tasks()
        dlq.shutdown()
        assert [name for name, *_ in calls[3:]] == ["captured", "retried", "succeeded"]

    def test_hook_that_raises_breaks_nothing(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker)

        @dlq.on_captured
        def broken(task: FailedTask) -> None:
            raise SystemExit(1)

        calls = self.seen(dlq)
        self.fill(dlq, 0, 2)
        assert [task_id for _, task_id, _ in calls] == ["t0", "t1"]
        with pytest.raises(InvalidInput, match="a hook is a function of a task or an alert"):
            dlq.on_alert(7)  # type: ignore[type-var]

    def test_slow_hook_delays_no_capture(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker)
        end = threading.Event()
        was_set: list[bool] = []

        @dlq.on_captured
        def slow(task: FailedTask) -> None:
            was_set.append(end.wait(PATIENCE_SECONDS / 10))

        for name in ("a", "b"):
            dlq.enqueue(name, {}, "error")
        assert len(dlq.list_tasks()) == 2
        end.set()
        dlq.shutdown()
        assert was_set == [True, True]

    def test_failure_that_is_not_captured_is_not_reported(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker, max_size=1)
        calls = self.seen(dlq)
        self.fill(dlq, 0, 1)
        with pytest.raises(CaptureFullError):
            self.fill(dlq, 1, 1)
        with pytest.raises(IdempotencyConflict):
            dlq.enqueue("t0", {"another": "task"}, "error")
        dlq.shutdown()
        assert [task_id for _, task_id, _ in calls] == ["t0"]

    def test_coroutine_function_is_a_hook(self, broker: Broker) -> None:
        seen: list[tuple[str, bool]] = []
        outside = DeadLetterQueue(broker, "outside")

        @outside.on_captured
        async def alone(task: FailedTask) -> None:
            await asyncio.sleep(0)
            seen.append((task.task_id, False))

        self.fill(outside, 0, 1)

        async def program() -> None:
            dlq = AsyncDeadLetterQueue(AsyncBroker(broker.core), "inside")
            here = asyncio.get_running_loop()

            @dlq.on_captured
            async def on_the_loop(task: FailedTask) -> None:
                seen.append((task.task_id, asyncio.get_running_loop() is here))

            @dlq.guard(name="work", key=lambda: "w", on_failure="handle")
            async def work() -> None:
                raise TimeoutError

            assert await work() == Captured("w")
            await dlq.shutdown()

        asyncio.run(program())
        assert seen == [("t0", False), ("w", True)]

    def test_alert_fires_once_per_crossing(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker, max_size=10, alerts=AlertThresholds(exhausted=None))
        fired = self.alerts(dlq)
        self.fill(dlq, 0, 8, max_retries=0)
        assert fired == []
        self.fill(dlq, 8, 1, max_retries=0)
        assert fired == [(AlertKind.UTILIZATION, 90.0)]
        dlq.archive_task("t0")  # 80 %: above 0.9 × the threshold
        self.fill(dlq, 9, 1, max_retries=0)
        assert len(fired) == 1
        for number in (1, 2):
            dlq.archive_task(f"t{number}")
        dlq.shutdown()
        self.fill(dlq, 10, 2, max_retries=0)
        assert fired == [(AlertKind.UTILIZATION, 90.0)] * 2

    def test_of_many_programs_one_fires(self, broker: Broker, clock: FakeClock) -> None:
        programs = [DeadLetterQueue(broker, alerts=FEW) for _ in range(3)]
        fired = [self.alerts(dlq) for dlq in programs]
        silent = DeadLetterQueue(broker, alerts=FEW)  # a queue without a hook does not claim the alert
        self.fill(silent, 0, 4, max_retries=0)
        for number, dlq in enumerate(programs, 4):
            self.fill(dlq, number, 1, max_retries=0)
        assert fired == [[(AlertKind.EXHAUSTED, 5)], [], []]
        for number in range(5):
            silent.archive_task(f"t{number}")
        clock.advance("2m")
        programs[2].get_statistics()
        programs[2].shutdown()
        self.fill(programs[1], 10, 2, max_retries=0)
        assert fired == [[(AlertKind.EXHAUSTED, 5)], [(AlertKind.EXHAUSTED, 4)], []]

    def test_alert_on_the_success_rate(self, broker: Broker, clock: FakeClock) -> None:
        dlq = DeadLetterQueue(broker, alerts=FEW)
        fired = self.alerts(dlq)
        outcomes = [True, False, False]

        def callback(task: Any) -> None:
            if not outcomes.pop(0):
                raise ConnectionError

        dlq.set_callback(callback)
        self.fill(dlq, 0, 3)
        clock.advance("1m")
        dlq.run_due_tasks()
        dlq.shutdown()
        assert fired == []  # fewer than min_retries
        outcomes.append(False)
        assert not dlq.retry_task(dlq.list_tasks("pending")[0].task_id)["success"]
        dlq.shutdown()
        assert fired == [(AlertKind.SUCCESS_RATE, 0.25)]

    def test_alerts_that_are_off_do_not_fire(self, broker: Broker) -> None:
        off = AlertThresholds(utilization_percent=None, exhausted=None, success_rate=None)
        dlq = DeadLetterQueue(broker, max_size=5, alerts=off)
        fired = self.alerts(dlq)
        self.fill(dlq, 0, 5, max_retries=0)
        assert fired == []
