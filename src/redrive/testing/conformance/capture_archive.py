"""Captured tasks that are archived, cleared and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from redrive import Broker
from redrive.capture import DeadLetterQueue, DeadLetterStatus
from redrive.errors import ConfirmationMismatch, InvalidInput
from redrive.testing.conformance.capture import Callback
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


def capture(dlq: DeadLetterQueue, id: str = "wf_1", **options: Any) -> None:
    """Capture a task."""
    dlq.enqueue(id, {"type": "code_sweep"}, "Connection timeout", **options)


class CaptureArchiveConformance(Suite):
    """Any task that is not being retried can be archived, and is restored unchanged."""

    @pytest.fixture
    def dlq(self, broker: Broker) -> Iterator[DeadLetterQueue]:
        """Return a dead-letter queue."""
        with DeadLetterQueue(broker) as dlq:
            yield dlq

    def test_task_that_waits_is_archived_and_restored_with_its_next_retry(
        self, dlq: DeadLetterQueue, clock: FakeClock
    ) -> None:
        capture(dlq)
        before = dlq.get_task("wf_1")
        assert dlq.archive_task("wf_1")
        assert dlq.list_tasks() == []
        clock.advance("30s")
        assert dlq.restore_task("wf_1")
        after = dlq.get_task("wf_1")
        assert before is not None
        assert after is not None
        assert (after.status, after.next_retry_at, after.retry_count) == ("pending", before.next_retry_at, 0)

    def test_completed_task_is_archived_and_restored(self, dlq: DeadLetterQueue, clock: FakeClock) -> None:
        dlq.set_callback(Callback())
        capture(dlq, retry_policy="immediate")
        dlq.run_due_tasks()
        for change, status in ((dlq.archive_task, "archived"), (dlq.restore_task, "completed")):
            assert change("wf_1")
            assert dlq.get_task("wf_1").status == status  # type: ignore[union-attr]

    def test_cleared_tasks_can_be_restored_one_by_one(self, dlq: DeadLetterQueue) -> None:
        capture(dlq, "waits")
        capture(dlq, "exhausted", max_retries=0)
        assert dlq.clear_all() == 2
        assert (dlq.list_tasks(), dlq.get_statistics()["queue_size"]) == ([], 0)
        assert {task.task_id for task in dlq.list_tasks("archived")} == {"exhausted", "waits"}
        assert dlq.clear_all() == 0
        for name, status in (("waits", "pending"), ("exhausted", "exhausted")):
            assert dlq.restore_task(name)
            assert dlq.get_task(name).status == status  # type: ignore[union-attr]

    def test_id_of_a_cleared_task_is_free(self, dlq: DeadLetterQueue) -> None:
        capture(dlq, max_retries=0)
        dlq.clear_all()
        capture(dlq, max_retries=0)
        assert dlq.get_task("wf_1").status is DeadLetterStatus.EXHAUSTED  # type: ignore[union-attr]
        assert dlq.get_statistics()["status_breakdown"]["archived"] == 1

    def test_only_as_many_tasks_as_confirmed_are_removed(self, broker: Broker, dlq: DeadLetterQueue) -> None:
        capture(dlq, "waits")
        capture(dlq, "exhausted", max_retries=0)
        for wrong in (1, 3):
            with pytest.raises(ConfirmationMismatch):
                dlq.clear_all(confirm=wrong)
        bad: list[Any] = [-1, True, "2"]
        for value in bad:
            with pytest.raises(InvalidInput):
                dlq.clear_all(confirm=value)
        assert dlq.get_statistics()["queue_size"] == 2
        assert dlq.clear_all(confirm=2) == 2
        assert broker.count(queue="captured", status="any", archived=True) == 0

    def test_task_in_retry_is_not_cleared(self, broker: Broker, dlq: DeadLetterQueue) -> None:
        capture(dlq, "runs", max_retries=0)
        capture(dlq, "waits")
        broker.lease_by_id(dlq.get_task("runs").item_id, include_dead=True)  # type: ignore[union-attr]
        assert dlq.clear_all(confirm=1) == 1
        assert [task.task_id for task in dlq.list_tasks()] == ["runs"]
