"""Capture: tasks that failed outside a queue are kept, and retried by policy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Broker
from redrive.capture import (
    CaptureFullError,
    DeadLetterQueue,
    DeadLetterStatus,
    ErrorCategory,
    FailedTask,
    RetryPolicy,
    UnknownPolicyError,
)
from redrive.errors import IdempotencyConflict, InvalidInput, InvalidPayload
from redrive.model.queue_options import QueueOptions
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

TASK = {"type": "code_sweep"}
REPOS = ["/path/to/repo"]
MINUTE = timedelta(minutes=1)


class Callback:
    """A callback that fails a number of times, and records its arguments."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, task: Any, **extra: Any) -> Any:
        """Record the call; fail while failures are left."""
        self.calls.append((task, extra))
        if len(self.calls) <= self.failures:
            raise ConnectionError(f"run {len(self.calls)}")
        return {"status": "completed", "runs": len(self.calls)}


class DeadLetterQueueConformance(Suite):
    """The guarantees of a dead-letter queue."""

    @pytest.fixture
    def dlq(self, broker: Broker) -> Iterator[DeadLetterQueue]:
        """Return a dead-letter queue."""
        with DeadLetterQueue(broker) as dlq:
            yield dlq

    def enqueue(self, dlq: DeadLetterQueue, id: str = "wf_1", error: Any = "Connection timeout", **options: Any) -> Any:
        """Capture a task."""
        return dlq.enqueue(id, TASK, error, repos=REPOS, **options)

    def test_captured_task_is_kept_with_its_error_and_due_by_its_policy(
        self, dlq: DeadLetterQueue, clock: FakeClock
    ) -> None:
        task = self.enqueue(dlq, max_retries=5, metadata={"team": "payments"})
        now = datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
        assert (task.task_id, task.task, task.repos, task.error) == ("wf_1", TASK, REPOS, "Connection timeout")
        assert (task.status, task.retry_count, task.max_retries) == (DeadLetterStatus.PENDING, 0, 5)
        assert (task.retry_policy, task.error_category) == ("exponential", "network")
        assert (task.failed_at, task.next_retry_at) == (now, now + MINUTE)
        assert task.metadata == {"team": "payments"}
        assert dlq.get_task("wf_1") == task
        assert FailedTask.from_dict(task.to_dict()) == task

    @pytest.mark.parametrize(
        ("error", "options"),
        [
            ("Connection timeout", {"metadata": {"at": [1, None]}, "priority": "high"}),
            (ConnectionRefusedError("no answer"), {"retry_policy": "linear"}),
            (PermissionError("no"), {"retry_policy": "never"}),
            ("printer on fire", {"max_retries": 0, "error_category": "resource"}),
        ],
    )
    def test_task_that_enqueue_returns_is_the_one_that_is_stored(
        self, dlq: DeadLetterQueue, error: Any, options: dict[str, Any]
    ) -> None:
        new = dlq.enqueue("wf_1", {"steps": (1, 2)}, error, depth=(3,), **options)
        assert dlq.get_task("wf_1") == new
        again = dlq.enqueue("wf_1", {"steps": (1, 2)}, "and again", depth=(3,), **options)
        assert dlq.get_task("wf_1") == again
        assert again.last_error == "and again"

    @pytest.mark.parametrize("dead", [{"dead_queue": "burnt"}, {"on_dead": "drop"}])
    def test_exhausted_task_that_does_not_stay_in_the_queue_is_returned_as_it_is_then(
        self, dlq: DeadLetterQueue, broker: Broker, dead: QueueOptions
    ) -> None:
        dlq.list_tasks()
        broker.create_queue("burnt")
        broker.update_queue("captured", **dead)
        task = self.enqueue(dlq, max_retries=0)
        stored = dlq.get_task("wf_1")
        assert task == stored if stored is not None else task.status is DeadLetterStatus.EXHAUSTED

    @pytest.mark.parametrize(
        ("policy", "minutes"),
        [
            (RetryPolicy.EXPONENTIAL, [1, 2, 4, 8, 16, 32, 60, 60]),
            (RetryPolicy.LINEAR, [5, 10, 15, 20]),
            (RetryPolicy.IMMEDIATE, [0, 1 / 60, 1 / 60]),
        ],
    )
    def test_delays_of_each_policy(
        self, dlq: DeadLetterQueue, clock: FakeClock, policy: RetryPolicy, minutes: list[float]
    ) -> None:
        dlq.set_callback(Callback(len(minutes)))
        self.enqueue(dlq, retry_policy=policy, max_retries=len(minutes) + 1)
        seen: list[float] = []
        for _ in minutes:
            task = dlq.get_task("wf_1")
            assert task is not None
            assert task.next_retry_at is not None
            wait = task.next_retry_at - datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
            seen.append(wait / MINUTE)
            if wait:
                clock.advance(wait - timedelta(seconds=1))
                dlq.run_due_tasks()
                assert dlq.get_task("wf_1").retry_count == task.retry_count  # type: ignore[union-attr]
                clock.advance("1s")
            dlq.run_due_tasks()
        assert seen == minutes

    def test_task_is_retried_until_it_succeeds(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        callback = Callback(failures=2)
        dlq.set_callback(callback)
        self.enqueue(dlq)
        for _ in range(3):
            clock.advance("1h")
            dlq.run_due_tasks()
        assert callback.calls == [(TASK, {"repos": REPOS})] * 3
        task = dlq.get_task("wf_1")
        assert task is not None
        assert (task.status, task.result) == (DeadLetterStatus.COMPLETED, {"status": "completed", "runs": 3})
        assert (task.total_attempts, task.last_error) == (4, "run 2")

    def test_task_is_exhausted_after_its_retries_and_kept_as_a_dead_letter(
        self, dlq: DeadLetterQueue, broker: Broker, clock: FakeClock
    ) -> None:
        callback = Callback(failures=100)
        dlq.set_callback(callback)
        self.enqueue(dlq, max_retries=2)
        for _ in range(5):
            clock.advance("1h")
            dlq.run_due_tasks()
        task = dlq.get_task("wf_1")
        assert task is not None
        assert len(callback.calls) == 2
        assert (task.status, task.retry_count, task.next_retry_at) == (DeadLetterStatus.EXHAUSTED, 2, None)
        (letter,) = broker.find(queue="captured").items
        assert letter.id == task.item_id

    @pytest.mark.parametrize("options", [{"retry_policy": "never"}, {"max_retries": 0}])
    def test_task_that_is_never_retried_is_exhausted_immediately(
        self, dlq: DeadLetterQueue, options: dict[str, Any]
    ) -> None:
        assert self.enqueue(dlq, **options).status is DeadLetterStatus.EXHAUSTED

    def test_failed_result_is_a_failure(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        dlq.set_callback(lambda task, **extra: {"status": "failed", "error": "still down"})
        self.enqueue(dlq)
        clock.advance("1h")
        dlq.run_due_tasks()
        task = dlq.get_task("wf_1")
        assert task is not None
        assert (task.status, task.last_error) == (DeadLetterStatus.PENDING, "still down")

    def test_run_that_returned_is_not_repeated_for_its_result(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        cyclic: list[Any] = []
        cyclic.append(cyclic)
        runs: list[str] = []

        def callback(task: Any, **extra: Any) -> Any:
            runs.append(extra["kind"])
            return {"cyclic": cyclic, "odd": {"status": ["ok"]}}[extra["kind"]]

        dlq.set_callback(callback)
        for kind in ("cyclic", "odd"):
            dlq.enqueue(f"{kind} here", TASK, "timeout", kind=kind)
            assert dlq.retry_task(f"{kind} here")["success"]
            dlq.enqueue(f"{kind} later", TASK, "timeout", kind=kind)
        clock.advance("1h")
        dlq.run_due_tasks()
        assert sorted(runs) == ["cyclic", "cyclic", "odd", "odd"]
        assert {task.status for task in dlq.list_tasks()} == {DeadLetterStatus.COMPLETED}
        assert not dlq.execute_with_dlq(callback, TASK, kind="odd").get("dlq_enqueued")

    def test_known_task_gets_one_more_failure_and_is_there_once(self, dlq: DeadLetterQueue) -> None:
        first = self.enqueue(dlq)
        again = self.enqueue(dlq, error="and again")
        assert again.item_id == first.item_id
        assert (again.error, again.last_error) == ("Connection timeout", "and again")
        with pytest.raises(IdempotencyConflict):
            dlq.enqueue("wf_1", {"type": "another"}, "error")
        assert len(dlq.list_tasks()) == 1

    def test_call_that_fails_again_uses_up_no_retry_and_puts_the_next_one_off(
        self, dlq: DeadLetterQueue, clock: FakeClock
    ) -> None:
        dlq.set_callback(Callback(failures=100))
        for runs in range(1, 5):
            task = self.enqueue(dlq, max_retries=2)
            assert (task.retry_count, task.total_attempts) == (0, runs)
            assert self.wait(task, clock) == MINUTE
            clock.advance("50s")
        clock.advance("10s")
        dlq.run_due_tasks()
        task = self.enqueue(dlq, max_retries=2)
        assert (task.status, task.retry_count, task.total_attempts) == (DeadLetterStatus.PENDING, 1, 6)
        assert self.wait(task, clock) == 2 * MINUTE, "no earlier than after the retry"
        clock.advance("2m")
        dlq.run_due_tasks()
        task = self.enqueue(dlq, max_retries=2)
        assert (task.status, task.retry_count, task.total_attempts) == (DeadLetterStatus.EXHAUSTED, 2, 8)
        assert task.next_retry_at is None

    def test_runs_of_a_call_that_fails_very_often_are_counted(self, dlq: DeadLetterQueue) -> None:
        for _ in range(70):
            task = self.enqueue(dlq)
        assert (task.retry_count, task.total_attempts) == (0, 70)

    def wait(self, task: FailedTask, clock: FakeClock) -> timedelta:
        """Return the time until the next retry of a task."""
        assert task.next_retry_at is not None
        return task.next_retry_at - datetime.fromtimestamp(clock.now() / 1_000_000, UTC)

    def test_id_of_a_completed_task_is_free(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        dlq.set_callback(Callback())
        first = self.enqueue(dlq)
        clock.advance("1h")
        dlq.run_due_tasks()
        second = dlq.enqueue("wf_1", {"type": "another"}, "error")
        assert second.item_id != first.item_id
        assert second.status is DeadLetterStatus.PENDING

    def test_full_queue_refuses_new_tasks_loudly_and_takes_failures_of_known_ones(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker, max_size=2)
        self.enqueue(dlq, "a")
        self.enqueue(dlq, "b", max_retries=0)
        with pytest.raises(CaptureFullError, match="has 2 tasks, and max_size is 2"):
            self.enqueue(dlq, "c")
        assert self.enqueue(dlq, "a", error="again").last_error == "again"
        assert dlq.archive_task("b")
        assert self.enqueue(dlq, "c").status is DeadLetterStatus.PENDING

    def test_tasks_are_listed_by_status_category_policy_and_time(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        self.enqueue(dlq, "a")
        clock.advance("1h")
        middle = datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
        self.enqueue(dlq, "b", error=PermissionError("no"), retry_policy="linear")
        self.enqueue(dlq, "c", max_retries=0)

        def listed(*args: Any, **options: Any) -> list[str]:
            return sorted(task.task_id for task in dlq.list_tasks(*args, **options))

        assert listed() == ["a", "b", "c"]
        assert listed(DeadLetterStatus.PENDING) == ["a", "b"]
        assert listed("exhausted") == ["c"]
        assert listed(category="permission") == ["b"]
        assert listed(policy="linear") == ["b"]
        assert listed(since=middle) == ["b", "c"]
        assert listed(before=middle) == ["a"]
        assert listed(due_before=middle) == ["a"]
        page = dlq.list_tasks(limit=2)
        rest = dlq.list_tasks(limit=2, cursor=page.cursor)
        assert sorted(task.task_id for task in [*page, *rest]) == ["a", "b", "c"]

    @pytest.mark.parametrize("problem", [ValueError, SystemExit, GeneratorExit])
    def test_policy_that_raises_is_replaced_by_the_default(
        self, dlq: DeadLetterQueue, problem: type[BaseException]
    ) -> None:
        def broken(failures: int) -> float:
            raise problem

        dlq.add_policy("broken", broken)
        task = self.enqueue(dlq, retry_policy="broken")
        assert (task.status, task.retry_policy) == (DeadLetterStatus.PENDING, "broken")
        assert task.next_retry_at > task.failed_at

    def test_archived_task_is_put_aside_and_restored(self, dlq: DeadLetterQueue) -> None:
        self.enqueue(dlq, max_retries=0)
        assert dlq.archive_task("wf_1")
        assert dlq.get_task("wf_1").status is DeadLetterStatus.ARCHIVED  # type: ignore[union-attr]
        assert dlq.list_tasks("exhausted") == []
        assert dlq.restore_task("wf_1")
        assert dlq.get_task("wf_1").status is DeadLetterStatus.EXHAUSTED  # type: ignore[union-attr]
        assert not dlq.archive_task("unknown")

    def test_statistics_have_every_key_and_count_what_happened(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        dlq.set_callback(Callback(failures=1))
        self.enqueue(dlq, "a")
        self.enqueue(dlq, "b", error=PermissionError("no"), max_retries=0)
        self.enqueue(dlq, "c", retry_policy="linear")
        clock.advance("1m")
        dlq.run_due_tasks()  # the run of a fails
        dlq.archive_task("b")
        assert dlq.get_statistics() == {
            "queue_size": 2,
            "max_size": 10_000,
            "utilization_percent": 0.02,
            "status_breakdown": {"pending": 2, "retrying": 0, "exhausted": 0, "completed": 0, "archived": 1},
            "error_categories": {str(category): 2 * (category == "network") for category in ErrorCategory},
            "retry_policies": {"never": 0, "linear": 1, "exponential": 1, "immediate": 0},
            "lifetime_stats": {
                "enqueued_total": 3,
                "retry_success": 0,
                "retry_failed": 1,
                "exhausted": 1,
                "manually_retried": 0,
                "archived": 1,
            },
            "is_processor_running": False,
            "retry_interval_seconds": 60,
        }

    def test_processor_runs_due_tasks_until_it_is_stopped(self, dlq: DeadLetterQueue) -> None:
        with pytest.raises(InvalidInput, match="check_interval_seconds is a number above 0"):
            dlq.start_retry_processor(Callback(), check_interval_seconds=0)
        ran = threading.Event()
        dlq.start_retry_processor(lambda task, **extra: ran.set(), check_interval_seconds=30)
        with pytest.raises(InvalidInput, match="runs in this object already"):
            dlq.start_retry_processor()
        self.enqueue(dlq, retry_policy="immediate")
        assert ran.wait(PATIENCE_SECONDS)
        assert dlq.stop_retry_processor()
        statistics = dlq.get_statistics()
        assert (statistics["retry_interval_seconds"], statistics["lifetime_stats"]["retry_success"]) == (30, 1)

    def test_retry_that_takes_too_long_fails(self, broker: Broker) -> None:
        dlq = DeadLetterQueue(broker, time_limit="10ms")
        calls: list[str] = []

        @dlq.guard(name="slow", on_failure="handle", policy="immediate", max_retries=1)
        async def slow() -> None:
            calls.append("slow")
            if len(calls) == 1:
                raise ConnectionError
            await asyncio.sleep(3600)

        async def slow_callback(task: Any) -> None:
            await asyncio.sleep(3600)

        asyncio.run(slow())
        dlq.set_callback(slow_callback)
        dlq.enqueue("wf_1", TASK, "error", "immediate", 1)
        dlq.run_due_tasks()
        assert [task.error_type.rpartition(".")[2] for task in dlq.list_tasks("exhausted")] == ["TimeLimitExceeded"] * 2

    def test_custom_policy_by_name(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        dlq.add_policy("slow", lambda n: 7200 * n)
        task = self.enqueue(dlq, retry_policy="slow")
        assert task.next_retry_at == datetime.fromtimestamp(clock.now() / 1_000_000, UTC) + 120 * MINUTE
        assert task.retry_policy == "slow"

    def test_wrong_input_is_refused_and_nothing_is_there(self, dlq: DeadLetterQueue) -> None:
        with pytest.raises(UnknownPolicyError, match="there is no retry policy 'sometimes'; there are never, linear"):
            self.enqueue(dlq, retry_policy="sometimes")
        with pytest.raises(InvalidInput, match="error_category must be one of transient, network"):
            self.enqueue(dlq, error_category="odd")
        with pytest.raises(InvalidInput, match="max_retries must be 0 to 1,000"):
            self.enqueue(dlq, max_retries=-1)
        with pytest.raises(InvalidInput, match="priority is high, medium, low"):
            self.enqueue(dlq, priority="urgent")
        with pytest.raises(InvalidPayload, match="a task is captured as JSON"):
            dlq.enqueue("wf_1", {"callback": print}, "error")
        assert dlq.list_tasks() == []
