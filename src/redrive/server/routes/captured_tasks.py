"""Tasks that failed outside a queue: capture them, list them, retry, archive, restore and clear them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.auth.principal import Permission
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
from redrive.model.text import to_rfc3339
from redrive.server.field_types import (
    Actor,
    Count,
    InstantInput,
    Label,
    PageLimit,
    QueueName,
    Text,
    check_page,
    read_datetime,
)
from redrive.server.request import Request
from redrive.server.response_budget import STEP, size_of
from redrive.server.route import Route
from redrive.server.routes.settle import ErrorReport, failure_of_report
from redrive.wire.json_views import InstantText

NO_ALERTS = AlertThresholds(utilization_percent=None, exhausted=None, success_rate=None)
"""Programs watch their queues; a server has no hooks."""
TaskName = Annotated[Label, msgspec.Meta(description="The task id, or the id of its item.")]


class EnqueueTaskCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that failed, to be retried by policy. A task id that is known gets one more failure."""

    queue: QueueName = DEFAULT_QUEUE
    task_id: Label
    task: Annotated[Any, msgspec.Meta(description="What a retry is called with: any JSON value.")]
    error: Annotated[Text | ErrorReport, msgspec.Meta(description="What went wrong.")]
    extra: Annotated[dict[str, Any], msgspec.Meta(description="Further arguments of a retry, by name.")] = {}
    retry_policy: Annotated[
        Label | None, msgspec.Meta(description="never, linear, exponential or immediate; unset, that of the queue.")
    ] = None
    max_retries: int | None = None
    metadata: dict[str, Any] = {}
    error_category: Annotated[
        str | None,
        msgspec.Meta(description="Unset, by the error.", extra_json_schema={"enum": [*ErrorCategory, None]}),
    ] = None
    priority: Annotated[str | int | None, msgspec.Meta(description="high, medium, low, or 0 to 9.")] = None


class EnqueuedTask(msgspec.Struct, frozen=True):
    """The task is on disk. `duplicate`: its id was known, and its failure was recorded."""

    task_id: str
    item_id: str
    duplicate: bool


async def enqueue(request: Request, call: EnqueueTaskCall) -> EnqueuedTask:
    """Capture a task. The queue is created for a caller that may manage it."""
    core = request.broker.core
    queue = CaptureQueue(
        core,
        queue_name(call.queue),
        {},
        DLQIntegrationStrategy.AUTOMATIC,
        False,
        NO_ALERTS,
    )
    await request.broker.run_flow(queue.open())
    error: str | Failure
    if isinstance(call.error, str):
        error = call.error
    else:
        error = failure_of_report(call.error, (), final=False, now=core.clock.now())
    given = queue.describe_task(
        call.task_id,
        call.task,
        call.extra,
        error,
        policy=call.retry_policy,
        max_retries=call.max_retries,
        metadata=call.metadata,
        category=call.error_category,
        priority=call.priority,
    )
    receipt = await request.broker.run_flow(queue.capture(given))
    return EnqueuedTask(given.task_id, receipt.id, not receipt.is_new)


class ListTasksCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks that meet every condition given, newest first."""

    queue: QueueName = DEFAULT_QUEUE
    status: Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*DeadLetterStatus, None]})] = None
    category: Annotated[
        str | None,
        msgspec.Meta(description="Needs the right read_payloads.", extra_json_schema={"enum": [*ErrorCategory, None]}),
    ] = None
    policy: Annotated[Label | None, msgspec.Meta(description="Needs the right read_payloads.")] = None
    since: Annotated[InstantInput | None, msgspec.Meta(description="They failed since then.")] = None
    before: Annotated[InstantInput | None, msgspec.Meta(description="They failed before then.")] = None
    due_before: Annotated[InstantInput | None, msgspec.Meta(description="Their next retry is before then.")] = None
    cursor: Annotated[Label | None, msgspec.Meta(description="Continue after this: the cursor of a page.")] = None
    limit: PageLimit = 100


class Tasks(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of tasks; `cursor` is there if there are more."""

    tasks: list[TaskView]
    cursor: str | None = None


async def list_tasks(request: Request, call: ListTasksCall) -> Tasks:
    """Return a page. It is read in steps, and short if its payloads are as much as one answer may have."""
    check_page(request, call.limit)
    times = {
        name: None if (text := getattr(call, name)) is None else read_datetime(name, text)
        for name in ("since", "before", "due_before")
    }
    where = TaskFilter.parse(call.status, call.category, call.policy, **times)
    items: list[Item] = []
    cursor, size = call.cursor, 0
    while True:
        some = min(STEP, call.limit - len(items))
        flow = administration.list_items(request.broker.core, call.queue, where, some, cursor)
        found, cursor = await request.broker.run_flow(flow)
        items += found
        size += sum(map(size_of, found))
        if cursor is None or len(items) >= call.limit or size > request.limits.max_response_bytes:
            break
    return Tasks([task_view(item) for item in items], cursor)


class TaskCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names a task."""

    queue: QueueName = DEFAULT_QUEUE
    task_id: TaskName


class ChangeTaskCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that a person changes."""

    queue: QueueName = DEFAULT_QUEUE
    task_id: TaskName
    actor: Actor = None


class StatisticsCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names a capture queue."""

    queue: QueueName = DEFAULT_QUEUE


class ChangedTask(msgspec.Struct, frozen=True):
    """A task after a change."""

    task_id: str
    item_id: str
    status: DeadLetterStatus


class DueTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that is due now. A server runs no callbacks, so that `success` is false."""

    task_id: str
    item_id: str
    success: bool = False
    is_due: bool = True
    is_processor_running: Annotated[bool, msgspec.Meta(description="Whether any process retries tasks of the queue.")]
    message: str


async def _item(request: Request, call: TaskCall | ChangeTaskCall) -> Item:
    return await request.broker.run_flow(administration.get_item(request.broker.core, call.queue, call.task_id))


async def get(request: Request, call: TaskCall) -> TaskView:
    """Return a task."""
    return task_view(await _item(request, call))


async def retry(request: Request, call: ChangeTaskCall) -> DueTask:
    """Make a task due now."""
    item = await _item(request, call)
    run, core = request.broker.run_flow, request.broker.core
    await run(administration.change(core, item, Verb.RETRY, call.actor))
    is_running = await run(flows.has_processor(call.queue))
    return DueTask(
        task_id=call.task_id,
        item_id=item.id,
        is_processor_running=is_running,
        message=administration.due_message(call.queue, is_running),
    )


async def archive(request: Request, call: ChangeTaskCall) -> ChangedTask:
    """Put a task aside."""
    return await _changed(request, call, Verb.ARCHIVE)


async def restore(request: Request, call: ChangeTaskCall) -> ChangedTask:
    """Undo an archive."""
    return await _changed(request, call, Verb.RESTORE)


async def _changed(request: Request, call: ChangeTaskCall, verb: Verb) -> ChangedTask:
    item = await _item(request, call)
    flow = administration.change(request.broker.core, item, verb, call.actor)
    return ChangedTask(call.task_id, item.id, await request.broker.run_flow(flow))


class ClearTasksCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drop all tasks that wait or are exhausted, or remove them permanently."""

    queue: QueueName = DEFAULT_QUEUE
    confirm: Annotated[
        Count | None,
        msgspec.Meta(description="How many they are, to remove them permanently; unset, they can be restored."),
    ] = None
    actor: Actor = None


class ClearedTasks(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many tasks were cleared."""

    cleared: int
    undo_until: Annotated[InstantText | None, msgspec.Meta(description="Until when they can be restored.")] = None


async def clear(request: Request, call: ClearTasksCall) -> ClearedTasks:
    """Drop or remove tasks."""
    flow = administration.clear(request.broker.core, call.queue, call.confirm, call.actor)
    cleared = await request.broker.run_flow(flow)
    return ClearedTasks(cleared.cleared, None if cleared.undo_until is None else to_rfc3339(cleared.undo_until))


async def statistics(request: Request, call: StatisticsCall) -> Statistics:
    """Count tasks."""
    found = await request.broker.run_flow(administration.statistics(request.broker.core, call.queue))
    return msgspec.convert(found, Statistics)


_TASK = {"task_id": "wf_abc123"}
ROUTES = (
    Route(
        name="capture.enqueue",
        summary="Capture a task that failed, to be retried by policy",
        request_type=EnqueueTaskCall,
        response_type=EnqueuedTask,
        permission=Permission.CAPTURE,
        handler=enqueue,
        example={**_TASK, "task": {"type": "code_sweep"}, "error": "Connection timeout", "max_retries": 5},
    ),
    Route(
        name="capture.list",
        summary="Captured tasks, newest first",
        request_type=ListTasksCall,
        response_type=Tasks,
        permission=Permission.READ,
        handler=list_tasks,
        example={"status": "exhausted", "limit": 10},
    ),
    Route(
        name="capture.get",
        summary="A captured task",
        request_type=TaskCall,
        response_type=TaskView,
        permission=Permission.READ,
        handler=get,
        example=_TASK,
    ),
    Route(
        name="capture.retry",
        summary="Make a captured task due now",
        request_type=ChangeTaskCall,
        response_type=DueTask,
        permission=Permission.OPERATE,
        handler=retry,
        example=_TASK,
    ),
    Route(
        name="capture.archive",
        summary="Put a task aside",
        request_type=ChangeTaskCall,
        response_type=ChangedTask,
        permission=Permission.OPERATE,
        handler=archive,
        example=_TASK,
    ),
    Route(
        name="capture.restore",
        summary="Take a task out of the archive",
        request_type=ChangeTaskCall,
        response_type=ChangedTask,
        permission=Permission.OPERATE,
        handler=restore,
        example=_TASK,
    ),
    Route(
        name="capture.clear",
        summary="Drop all captured tasks that wait or are exhausted",
        request_type=ClearTasksCall,
        response_type=ClearedTasks,
        permission=Permission.MANAGE,
        handler=clear,
        example={"queue": "captured"},
    ),
    Route(
        name="capture.statistics",
        summary="How many tasks of a capture queue are in each status",
        request_type=StatisticsCall,
        response_type=Statistics,
        permission=Permission.READ,
        handler=statistics,
        example={"queue": DEFAULT_QUEUE},
    ),
)
