"""Captured tasks and statistics as JSON, for the server and the command line: instants as text, without None."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.capture.captured_task import DeadLetterStatus, next_retry_at, task_of_item, updated_at
from redrive.capture.retry_policies import policy_of_item
from redrive.model.item import Item
from redrive.model.masked_item import is_masked, mask_item
from redrive.model.text import to_rfc3339
from redrive.wire.json_views import InstantText


class TaskView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that failed outside a queue, and its retries since."""

    task_id: Annotated[str, msgspec.Meta(description="The id of its item if `hidden` is true.")]
    item_id: Annotated[str, msgspec.Meta(description="For all calls that name items.")]
    status: DeadLetterStatus
    error: Annotated[str, msgspec.Meta(description="The error that it was captured with.")]
    error_type: str | None = None
    error_category: str | None = None
    template: Annotated[str | None, msgspec.Meta(description="The common failure that the error is.")] = None
    advice: Annotated[str | None, msgspec.Meta(description="What an operator can do about it.")] = None
    last_error: str | None = None
    fingerprint: Annotated[str | None, msgspec.Meta(description="Equal for tasks that failed for one reason.")] = None
    traceback: str | None = None
    retry_policy: str | None = None
    max_retries: int
    retry_count: Annotated[int, msgspec.Meta(description="Retries since the capture, or since a manual retry.")]
    total_attempts: Annotated[int, msgspec.Meta(description="Runs, including those that failed outside.")]
    failed_at: InstantText
    next_retry_at: InstantText | None = None
    updated_at: InstantText | None = None
    task: Any = None
    extra: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    result: Annotated[Any, msgspec.Meta(description="What the retry that succeeded returned.")] = None
    hidden: Annotated[bool, msgspec.Meta(description="The caller may not see what is in the task.")] = False


class LifetimeTotals(msgspec.Struct, frozen=True):
    """Totals since the queue was created."""

    enqueued_total: int
    retry_success: int
    retry_failed: int
    exhausted: int
    manually_retried: int
    archived: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tasks, and totals since the queue was created."""

    queue_size: Annotated[int, msgspec.Meta(description="Pending, in retry and exhausted.")]
    max_size: int
    utilization_percent: float
    status_breakdown: dict[str, int]
    error_categories: dict[str, int]
    retry_policies: dict[str, int]
    lifetime_stats: LifetimeTotals
    is_processor_running: Annotated[bool, msgspec.Meta(description="In any process.")]
    retry_interval_seconds: float


def task_view(item: Item) -> TaskView:
    """Return the view of the item of a task; without task id, task, metadata and result if the item is masked."""
    hidden = is_masked(item)
    item = mask_item(item) if hidden else item
    task, due = task_of_item(item), next_retry_at(item)
    return TaskView(
        task_id=task.task_id,
        item_id=item.id,
        status=task.status,
        error=task.error,
        error_type=task.error_type or None,
        error_category=task.error_category,
        template=task.template,
        advice=task.advice or None,
        last_error=task.last_error or None,
        fingerprint=task.fingerprint or None,
        traceback=task.traceback,
        retry_policy=policy_of_item(item),
        max_retries=task.max_retries,
        retry_count=task.retry_count,
        total_attempts=task.total_attempts,
        failed_at=to_rfc3339(item.put_at),
        next_retry_at=None if due is None else to_rfc3339(due),
        updated_at=to_rfc3339(updated_at(item)),
        task=None if hidden else task.task,
        extra=None if hidden else task.extra or None,
        metadata=None if hidden else task.metadata or None,
        result=None if hidden else task.result,
        hidden=hidden,
    )
