"""Templates: a captured failure has the category, the policy and the advice of the template that it matches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Broker
from redrive.capture import (
    Captured,
    DeadLetterQueue,
    DeadLetterStatus,
    ErrorCategory,
    FailedTask,
    FailureTemplate,
    RetryPolicy,
    UnknownPolicyError,
)
from redrive.errors import InvalidInput
from redrive.model.classify import ErrorClass
from redrive.model.group import ADVICE
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


class HttpAnswer:
    """A response of a server."""

    def __init__(self, status_code: int, **headers: str) -> None:
        self.status_code = status_code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HTTPStatusError(Exception):
    """An error of a client library."""

    def __init__(self, status_code: int, **headers: str) -> None:
        super().__init__(f"the server answered {status_code}")
        self.response = HttpAnswer(status_code, **headers)


class TemplateConformance(Suite):
    """The guarantees of templates."""

    @pytest.fixture
    def templated(self, broker: Broker) -> Iterator[DeadLetterQueue]:
        """Return a dead-letter queue for guards with templates."""
        with DeadLetterQueue(broker, "templated") as dlq:
            yield dlq

    def capture(self, dlq: DeadLetterQueue, error: Exception, **options: Any) -> FailedTask:
        """Let a guarded call fail, and return its task."""

        def fail(call: int) -> None:
            raise error

        number = len(dlq.list_tasks())
        guarded = dlq.guard(on_failure="handle", name=f"fail-{number}", **options)(fail)
        captured = guarded(number)
        assert isinstance(captured, Captured)
        task = dlq.get_task(captured.task_id)
        assert task is not None
        return task

    def test_guarded_call_has_category_policy_and_advice_of_its_template(
        self, templated: DeadLetterQueue, broker: Broker
    ) -> None:
        task = self.capture(templated, OSError(28, "write failed"))
        assert (task.template, task.error_category) == ("disk-full", "resource")
        assert (task.retry_policy, task.max_retries) == ("linear", 2)
        assert task.advice == "Free space on the disk, or add some; then retry."
        assert FailedTask.from_dict(task.to_dict()) == task
        (failure,) = (entry.failure for entry in broker.get(task.item_id).history if entry.failure is not None)
        assert failure.error_class is ErrorClass.RESOURCE

    def test_executed_call_has_them_too_and_enqueue_takes_the_policy_of_the_queue(
        self, templated: DeadLetterQueue
    ) -> None:
        def work(task: Any) -> None:
            raise ConnectionResetError("gone")

        result = templated.execute_with_dlq(work, {})
        executed = templated.get_task(result["dlq_task_id"])
        assert executed is not None
        assert (executed.template, executed.retry_policy) == ("connection-lost", "exponential")
        task = templated.enqueue("a", {}, "deadlock detected")
        assert (task.template, task.retry_policy, task.max_retries) == ("deadlock", "exponential", 3)
        assert task.advice.startswith("Another transaction")

    def test_explicit_arguments_take_precedence(self, templated: DeadLetterQueue) -> None:
        task = self.capture(templated, OSError(28, "full"), policy="immediate", max_retries=7)
        assert (task.template, task.retry_policy, task.max_retries) == ("disk-full", "immediate", 7)
        task = self.capture(templated, PermissionError("no"), policy="linear")
        assert (task.retry_policy, task.max_retries, task.status) == ("linear", 3, DeadLetterStatus.PENDING)
        named = templated.enqueue("a", {}, "connection refused", error_category="permission")
        assert (named.error_category, named.template) == ("permission", None)
        assert named.advice == ADVICE[ErrorClass.PERMISSION]

    def test_error_without_a_template_has_the_advice_of_its_category(self, templated: DeadLetterQueue) -> None:
        task = self.capture(templated, ZeroDivisionError("no"))
        assert (task.template, task.error_category, task.advice) == (None, "permanent", ADVICE[ErrorClass.PERMANENT])

    @pytest.mark.parametrize(
        ("retry_after", "wait"),
        [
            ("300", timedelta(minutes=5)),
            ("5", timedelta(minutes=1)),
            ("86400", timedelta(hours=1)),
            ("soon", timedelta(minutes=1)),
        ],
    )
    def test_first_retry_waits_as_long_as_the_server_asks_up_to_an_hour(
        self, templated: DeadLetterQueue, clock: FakeClock, retry_after: str, wait: timedelta
    ) -> None:
        task = self.capture(templated, HTTPStatusError(429, retry_after=retry_after))
        assert (task.template, task.status) == ("rate-limited", DeadLetterStatus.PENDING)
        assert task.next_retry_at == datetime.fromtimestamp(clock.now() / 1_000_000, UTC) + wait

    def test_retry_after_revives_nothing_and_delays_later_retries_no_more(
        self, templated: DeadLetterQueue, clock: FakeClock
    ) -> None:
        error = HTTPStatusError(429, retry_after="600")
        assert self.capture(templated, error, policy="never").status is DeadLetterStatus.EXHAUSTED
        task = templated.enqueue("a", {}, error)
        templated.set_callback(lambda task: 1 // 0)
        clock.advance("10m")
        templated.run_due_tasks()
        found = templated.get_task(task.task_id)
        assert found is not None
        assert found.next_retry_at == datetime.fromtimestamp(clock.now() / 1_000_000, UTC) + timedelta(minutes=2)

    def test_retry_that_is_refused_waits_as_long_as_the_server_asks_then(
        self, templated: DeadLetterQueue, clock: FakeClock
    ) -> None:
        def refuse(task: Any) -> None:
            raise HTTPStatusError(429, retry_after="600")

        task = templated.enqueue("a", {}, ConnectionError("gone"))
        templated.set_callback(refuse)
        clock.advance("1m")
        templated.run_due_tasks()
        found = templated.get_task(task.task_id)
        assert found is not None
        assert found.next_retry_at == datetime.fromtimestamp(clock.now() / 1_000_000, UTC) + timedelta(minutes=10)

    def test_program_adds_a_template(self, templated: DeadLetterQueue) -> None:
        mine = FailureTemplate(
            name="billing-closed",
            category=ErrorCategory.TRANSIENT,
            policy="office-hours",
            max_retries=4,
            advice="Billing opens at 8.",
            types=("ConnectionRefusedError",),
        )
        with pytest.raises(UnknownPolicyError, match="there is no retry policy 'office-hours'"):
            templated.add_template(mine)
        templated.add_policy("office-hours", lambda failures: 3600)
        templated.add_template(mine)
        assert templated.templates[0] == mine
        task = self.capture(templated, ConnectionRefusedError("closed"))
        assert (task.template, task.advice) == ("billing-closed", "Billing opens at 8.")
        assert (task.error_category, task.retry_policy, task.max_retries) == ("transient", "office-hours", 4)
        assert templated.classify_error(ConnectionRefusedError()) is ErrorCategory.TRANSIENT
        with pytest.raises(InvalidInput, match="there is a template 'billing-closed' already"):
            templated.add_template(mine)

    def test_selective_strategy_captures_what_a_template_retries(self, templated: DeadLetterQueue) -> None:
        templated.set_strategy("selective")
        templated.add_template(
            FailureTemplate(
                name="never-mind",
                category=ErrorCategory.NETWORK,
                policy=RetryPolicy.NEVER,
                max_retries=0,
                advice="Leave it.",
                phrases=("connection refused",),
            )
        )
        assert self.capture(templated, TimeoutError("slow")).template == "timeout"

        @templated.guard(name="refused")
        def refused() -> None:
            raise ConnectionError("connection refused")

        with pytest.raises(ConnectionError):
            refused()
        assert len(templated.list_tasks()) == 1
