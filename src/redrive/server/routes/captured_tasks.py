"""Tasks that failed outside a queue: capture, list, retry, archive, restore and clear them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from redrive.broker.flows.deliveries import queue_name
from redrive.capture import administration, flows
from redrive.capture.capture_alerts import AlertThresholds
from redrive.capture.capture_queue import CaptureQueue, DLQIntegrationStrategy
from redrive.capture.capture_settings import DEFAULT_QUEUE
from redrive.capture.captured_task import DeadLetterStatus, ErrorCategory
from redrive.capture.flows import TaskFilter
from redrive.capture.task_view import Statistics, TaskView, task_view
from redrive.model.failure import Failure
from redrive.model.item import Item
from redrive.model.state_machine import Verb
from redrive.server.field_types import (
    Count,
    InstantInput,
    Label,
    Text,
    instant_text_or_none,
    read_datetime,
)
from redrive.server.request import Request
from redrive.server.response_budget import STEP, size_of
from redrive.server.routes.settle import ErrorReport, failure_of_report
from redrive.wire.json_views import InstantText

NO_ALERTS = AlertThresholds(utilization_percent=None, exhausted=None, success_rate=None)
"""Programs set alerts for their queues; a server has no hooks."""


class EnqueuedTask(msgspec.Struct, frozen=True):
    """The task is durable. `duplicate`: its id was known, and its failure was recorded."""

    task_id: str
    item_id: str
    duplicate: bool


async def enqueue_task(
    request: Request,
    *,
    queue: str = DEFAULT_QUEUE,
    task_id: Label,
    task: Annotated[Any, msgspec.Meta(description="What a retry is called with: any JSON value.")],
    error: Annotated[Text | ErrorReport, msgspec.Meta(description="What went wrong.")],
    extra: Annotated[Mapping[str, Any], msgspec.Meta(description="Further arguments of a retry, by name.")] = {},
    retry_policy: Annotated[
        Label | None, msgspec.Meta(description="never, linear, exponential or immediate; unset, that of the queue.")
    ] = None,
    max_retries: Annotated[int | None, msgspec.Meta(description="Unset, that of the queue.")] = None,
    metadata: Annotated[Mapping[str, Any], msgspec.Meta(description="What is kept with it.")] = {},
    error_category: Annotated[
        str | None,
        msgspec.Meta(description="Unset, by the error.", extra_json_schema={"enum": [*ErrorCategory, None]}),
    ] = None,
    priority: Annotated[str | int | None, msgspec.Meta(description="high, medium, low, or 0 to 9.")] = None,
) -> EnqueuedTask:
    """Capture a task that failed, to be retried by policy. A known task id gets one more failure. The queue is created
    if the caller may manage it."""
    core = request.broker.core
    captured = CaptureQueue(core, queue_name(queue), {}, DLQIntegrationStrategy.AUTOMATIC, False, NO_ALERTS)
    await request.broker.run_flow(captured.open())
    failure: str | Failure
    failure = error if isinstance(error, str) else failure_of_report(error, (), final=False, now=core.clock.now())
    given = captured.describe_task(
        task_id,
        task,
        extra,
        failure,
        policy=retry_policy,
        max_retries=max_retries,
        metadata=metadata,
        category=error_category,
        priority=priority,
    )
    receipt = await request.broker.run_flow(captured.capture(given))
    return EnqueuedTask(given.task_id, receipt.id, not receipt.is_new)


class Tasks(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of tasks; `cursor` is there if there are more."""

    tasks: list[TaskView]
    cursor: str | None = None


async def list_tasks(
    request: Request,
    *,
    queue: str = DEFAULT_QUEUE,
    status: Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*DeadLetterStatus, None]})] = None,
    category: Annotated[
        str | None,
        msgspec.Meta(description="Needs the right read_payloads.", extra_json_schema={"enum": [*ErrorCategory, None]}),
    ] = None,
    policy: Annotated[Label | None, msgspec.Meta(description="Needs the right read_payloads.")] = None,
    since: Annotated[InstantInput | None, msgspec.Meta(description="They failed since then.")] = None,
    before: Annotated[InstantInput | None, msgspec.Meta(description="They failed before then.")] = None,
    due_before: Annotated[InstantInput | None, msgspec.Meta(description="Their next retry is before then.")] = None,
    cursor: Annotated[Label | None, msgspec.Meta(description="Continue after this: the cursor of a page.")] = None,
    limit: int = 100,
) -> Tasks:
    """List captured tasks, newest first. Only those that meet every condition given.

    Reads a page in steps; it is short if its payloads reach the limit of one response.
    """
    times = {
        name: None if text is None else read_datetime(name, text)
        for name, text in (("since", since), ("before", before), ("due_before", due_before))
    }
    where = TaskFilter.parse(status, category, policy, **times)
    items: list[Item] = []
    size = 0
    while True:
        some = min(STEP, limit - len(items))
        flow = administration.list_items(request.broker.core, queue, where, some, cursor)
        found, cursor = await request.broker.run_flow(flow)
        items += found
        size += sum(map(size_of, found))
        if cursor is None or len(items) >= limit or size > request.limits.max_response_bytes:
            break
    return Tasks([task_view(item) for item in items], cursor)


class ChangedTask(msgspec.Struct, frozen=True):
    """A task after a change."""

    task_id: str
    item_id: str
    status: DeadLetterStatus


class DueTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is due now. A server runs no callbacks, so `success` is false."""

    task_id: str
    item_id: str
    success: bool = False
    is_due: bool = True
    is_processor_running: Annotated[bool, msgspec.Meta(description="Whether any process retries tasks of the queue.")]
    message: str


async def _item(request: Request, queue: str, task_id: str) -> Item:
    return await request.broker.run_flow(administration.get_item(request.broker.core, queue, task_id))


async def get_task(request: Request, *, queue: str = DEFAULT_QUEUE, task_id: str) -> TaskView:
    """Return a captured task."""
    return task_view(await _item(request, queue, task_id))


async def retry_task(
    request: Request, *, queue: str = DEFAULT_QUEUE, task_id: str, actor: str | None = None
) -> DueTask:
    """Make a captured task due now."""
    item = await _item(request, queue, task_id)
    run, core = request.broker.run_flow, request.broker.core
    await run(administration.change(core, item, Verb.RETRY, actor))
    is_running = await run(flows.has_processor(queue))
    return DueTask(
        task_id=task_id,
        item_id=item.id,
        is_processor_running=is_running,
        message=administration.due_message(queue, is_running),
    )


async def archive_task(
    request: Request, *, queue: str = DEFAULT_QUEUE, task_id: str, actor: str | None = None
) -> ChangedTask:
    """Archive a task."""
    return await _changed(request, queue, task_id, Verb.ARCHIVE, actor)


async def restore_task(
    request: Request, *, queue: str = DEFAULT_QUEUE, task_id: str, actor: str | None = None
) -> ChangedTask:
    """Restore a task from the archive."""
    return await _changed(request, queue, task_id, Verb.RESTORE, actor)


async def _changed(request: Request, queue: str, task_id: str, verb: Verb, actor: str | None) -> ChangedTask:
    item = await _item(request, queue, task_id)
    flow = administration.change(request.broker.core, item, verb, actor)
    return ChangedTask(task_id, item.id, await request.broker.run_flow(flow))


class ClearedTasks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of cleared tasks."""

    cleared: int
    undo_until: Annotated[InstantText | None, msgspec.Meta(description="Until when they can be restored.")] = None


async def clear_tasks(
    request: Request,
    *,
    queue: str = DEFAULT_QUEUE,
    confirm: Annotated[
        Count | None,
        msgspec.Meta(description="How many they are, to remove them permanently; unset, they can be restored."),
    ] = None,
    actor: str | None = None,
) -> ClearedTasks:
    """Drop all captured tasks that are waiting or exhausted. Or remove them permanently."""
    flow = administration.clear(request.broker.core, queue, confirm, actor)
    cleared = await request.broker.run_flow(flow)
    return ClearedTasks(cleared.cleared, instant_text_or_none(cleared.undo_until))


async def task_statistics(request: Request, *, queue: str = DEFAULT_QUEUE) -> Statistics:
    """Return the number of tasks of a capture queue in each status."""
    found = await request.broker.run_flow(administration.statistics(request.broker.core, queue))
    return msgspec.convert(found, Statistics)
