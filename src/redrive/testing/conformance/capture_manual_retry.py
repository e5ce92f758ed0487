"""Capture: retries on request of an operator, and immediate ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Broker
from redrive.capture import DeadLetterQueue, DeadLetterStatus
from redrive.testing.conformance.capture import TASK, Callback
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class ManualRetryConformance(Suite):
    """The guarantees of `retry_task`, and of the policy `immediate`."""

    @pytest.fixture
    def dlq(self, broker: Broker) -> Iterator[DeadLetterQueue]:
        """Return a dead-letter queue."""
        with DeadLetterQueue(broker) as dlq:
            yield dlq

    def test_retry_here_and_now(self, dlq: DeadLetterQueue) -> None:
        callback = Callback(failures=1)
        dlq.set_callback(callback)
        before = dlq.enqueue("wf_1", TASK, "Connection timeout")
        answer = dlq.retry_task("wf_1")
        assert (answer["success"], answer["task_id"], answer["error"]) == (False, "wf_1", "run 1")
        after = dlq.get_task("wf_1")
        assert after is not None
        assert (after.status, after.next_retry_at) == (before.status, before.next_retry_at)
        assert (after.retry_count, after.total_attempts, after.last_error) == (0, 2, "run 1")
        answer = dlq.retry_task("wf_1")
        assert (answer["success"], answer["result"]["runs"]) == (True, 2)
        assert dlq.get_task("wf_1").status is DeadLetterStatus.COMPLETED  # type: ignore[union-attr]

    def test_retry_here_and_now_that_fails_uses_up_no_retry(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        callback = Callback(failures=6)
        dlq.set_callback(callback)
        dlq.enqueue("wf_1", TASK, "Connection timeout", max_retries=2)
        for _ in range(3):
            assert not dlq.retry_task("wf_1")["success"]
        for status in ("pending", "exhausted"):
            clock.advance("1h")
            dlq.run_due_tasks()
            (task,) = dlq.list_tasks()
            assert task.status == status
        assert not dlq.retry_task("wf_1")["success"]
        assert (dlq.list_tasks()[0].retry_count, len(callback.calls)) == (2, 6)
        assert dlq.get_statistics()["lifetime_stats"]["retry_failed"] == 6

    def test_exhausted_task_is_retried_and_stays_exhausted_if_that_fails(
        self, dlq: DeadLetterQueue, broker: Broker
    ) -> None:
        dlq.set_callback(Callback(failures=1))
        dlq.enqueue("wf_1", TASK, "Connection timeout", max_retries=0)
        assert not dlq.retry_task("wf_1")["success"]
        task = dlq.get_task("wf_1")
        assert task is not None
        assert (task.status, task.last_error) == (DeadLetterStatus.EXHAUSTED, "run 1")
        assert len(broker.get(task.item_id).deaths) == 1
        assert dlq.retry_task("wf_1")["success"]
        assert broker.find(queue="captured").items == ()

    @pytest.mark.parametrize("max_retries", [0, 3])
    def test_task_is_as_before_a_retry_that_was_interrupted(self, dlq: DeadLetterQueue, max_retries: int) -> None:
        def interrupted(task: Any, **extra: Any) -> None:
            raise KeyboardInterrupt

        dlq.set_callback(interrupted)
        before = dlq.enqueue("wf_1", TASK, "Connection timeout", max_retries=max_retries)
        with pytest.raises(KeyboardInterrupt):
            dlq.retry_task("wf_1")
        after = dlq.get_task("wf_1")
        assert after is not None
        assert (after.status, after.next_retry_at) == (before.status, before.next_retry_at)
        assert after.retry_count == before.retry_count

    def test_retry_without_a_callback_makes_the_task_due(self, dlq: DeadLetterQueue) -> None:
        dlq.enqueue("wf_1", TASK, "Connection timeout", max_retries=0)
        answer = dlq.retry_task("wf_1")
        assert not answer["success"]
        assert "due now" in answer["message"]
        callback = Callback()
        dlq.set_callback(callback)
        dlq.run_due_tasks()
        assert len(callback.calls) == 1
        assert not dlq.retry_task("nobody")["success"]

    def test_immediate_retries_are_a_second_apart_after_a_retry_by_hand_too(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        dlq, callback = DeadLetterQueue(broker, jitter=True), Callback(failures=100)
        dlq.enqueue("wf_1", TASK, "timeout", "immediate", 9)
        assert "due now" in dlq.retry_task("wf_1")["message"]
        dlq.set_callback(callback)
        for runs in range(1, 4):
            dlq.run_due_tasks()
            clock.advance("999ms")
            dlq.run_due_tasks()
            assert len(callback.calls) == runs
            clock.advance("1ms")
        (retry,) = [item.overrides.retry for item in broker.find(queue="captured", status="any").items]
        assert retry is not None
        assert not retry.delay.jitter

    def test_retries_of_tasks_are_left_when_a_breaker_opens(self, broker: Broker, clock: FakeClock) -> None:
        dlq, callback = DeadLetterQueue(broker), Callback(failures=100)
        dlq.set_callback(callback)
        dlq.get_statistics()
        broker.update_queue("captured", breakers={"queue": {"failures": 3, "window": "1m"}})
        for number in range(9):
            dlq.enqueue(f"task-{number}", TASK, "timeout", "immediate", 2)
        for _ in range(5):
            dlq.run_due_tasks()
            broker.run_maintenance()
            clock.advance("1s")
        assert dlq.get_statistics()["status_breakdown"]["exhausted"] == 0
        assert len(callback.calls) <= 9
