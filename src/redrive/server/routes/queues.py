"""Queues: create, update, list, stats, info, delete, pause, resume; and of one queue its stats, and to clear it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.auth.principal import Permission
from redrive.broker.flows import clearance
from redrive.errors import ConfirmationMismatch, InvalidInput
from redrive.model.queue import Queue, QueueStats
from redrive.model.text import to_rfc3339
from redrive.server.field_types import Actor, Count, PageLimit, QueueName, Settings, check_page
from redrive.server.request import Request
from redrive.server.route import Route
from redrive.server.routes.breakers import BreakerView, breaker_views
from redrive.wire.json_views import InstantText, defined, extended, view_of, view_type

MAX_CLEARED = 100_000
"""Items that one request drops at most; the answer says how many are left."""

QueueView = view_type(Queue)
StatsView = extended(view_type(QueueStats), [("breakers", list[BreakerView])])  # type: ignore[valid-type]
StatsPageView = defined(
    "QueuesStats",
    [("stats", list[StatsView]), ("cursor", str | None, None)],  # type: ignore[valid-type]
    "The counts of a page of queues.",
)
InfoView = extended(QueueView, [("stats", StatsView)], "QueueInfo")
QueuesView = defined("Queues", [("queues", list[QueueView]), ("cursor", str | None, None)], "A page of queues.")  # type: ignore[valid-type]


class CreateQueueCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Create a queue. The same settings again are no error."""

    name: QueueName
    settings: Settings = {}


async def create(request: Request, call: CreateQueueCall) -> dict[str, Any]:
    """Create a queue."""
    return view_of(await request.broker.create_queue(call.name, **_checked(call.settings)))


class UpdateQueueCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Change some settings. They hold from the next failure on."""

    name: QueueName
    settings: Settings
    actor: Actor = None


async def update(request: Request, call: UpdateQueueCall) -> dict[str, Any]:
    """Change some settings."""
    settings = _checked(call.settings)
    return view_of(await request.broker.update_queue(call.name, actor=call.actor, **settings))


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, which are passed on by name: none may be taken for an argument."""
    for name in ("name", "actor", "self"):
        if name in settings:
            raise InvalidInput(f"{name} is not a setting of a queue; it stands beside the settings")
    return settings


class ListQueuesCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All queues that the caller may look at, by name."""

    limit: PageLimit = 100
    cursor: Annotated[QueueName | None, msgspec.Meta(description="The cursor of the page before.")] = None


async def list_all(request: Request, call: ListQueuesCall) -> dict[str, Any]:
    """A page of queues."""
    page, more = await _page(request, call)
    return {"queues": [view_of(queue) for queue in page], **more}


async def list_stats(request: Request, call: ListQueuesCall) -> dict[str, Any]:
    """The counts of a page of queues."""
    page, more = await _page(request, call)
    found = await request.broker.list_stats([queue.name for queue in page])
    breakers: dict[str, list[dict[str, Any]]] = {}
    for queue in page:
        if queue.breakers:
            breakers[queue.name] = await breaker_views(request, queue.name)
    return {"stats": [{**view_of(stats), "breakers": breakers.get(stats.queue, [])} for stats in found], **more}


async def _page(request: Request, call: ListQueuesCall) -> tuple[list[Queue], dict[str, str]]:
    """The queues of a page, and the cursor where there are more."""
    check_page(request, call.limit)
    rest = [queue for queue in await request.broker.list_queues() if call.cursor is None or queue.name > call.cursor]
    page = rest[: call.limit]
    return page, {} if len(page) == len(rest) else {"cursor": page[-1].name}


class NameCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a queue."""

    name: QueueName


class QueueStatsCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a queue."""

    queue: QueueName


async def info(request: Request, call: NameCall) -> dict[str, Any]:
    """A queue with its settings and its counts."""
    queue = await request.broker.get_queue(call.name)
    return {**view_of(queue), "stats": await _stats(request, call.name)}


async def stats(request: Request, call: QueueStatsCall) -> dict[str, Any]:
    """The counts of a queue, and its breakers that are not closed."""
    return await _stats(request, call.queue)


async def _stats(request: Request, queue: str) -> dict[str, Any]:
    stats = await request.broker.stats(queue)
    return {**view_of(stats), "breakers": await breaker_views(request, queue)}


class PauseQueueCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a queue, and who does it."""

    name: QueueName
    actor: Actor = None


async def pause(request: Request, call: PauseQueueCall) -> dict[str, Any]:
    """Give no more leases."""
    return view_of(await request.broker.pause_queue(call.name, actor=call.actor))


async def resume(request: Request, call: PauseQueueCall) -> dict[str, Any]:
    """Give leases again."""
    return view_of(await request.broker.resume_queue(call.name, actor=call.actor))


class DeleteQueueCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Remove a queue and the items in it."""

    name: QueueName
    confirm: Annotated[Count | None, msgspec.Meta(description="How many items go with it.")] = None
    actor: Actor = None


class Deleted(msgspec.Struct, frozen=True):
    """How many items went with the queue."""

    removed: int


async def delete(request: Request, call: DeleteQueueCall) -> Deleted:
    """Remove a queue."""
    removed = await request.broker.delete_queue(call.name, confirm=call.confirm, actor=call.actor)
    return Deleted(removed)


class ClearQueueCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drop the items of a queue, or remove them for good, and keep the queue. What a worker holds stays."""

    queue: QueueName
    statuses: Annotated[
        list[Literal["pending", "failed", "completed", "dead", "archived"]],
        msgspec.Meta(min_length=1, max_length=5, description="Which of them."),
    ] = msgspec.field(default_factory=lambda: ["pending"])
    confirm: Annotated[Count | None, msgspec.Meta(description="How many you mean; see dry_run.")] = None
    dry_run: Annotated[bool, msgspec.Meta(description="Remove nothing, and say how many it would be.")] = False
    destructive: Annotated[
        bool,
        msgspec.Meta(description="true: for good, dropped ones too; false: they can be restored for keep_dropped."),
    ] = False
    actor: Actor = None


class Cleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many items went, and how many of those that were meant are still there."""

    removed: int
    left: int
    undo_until: Annotated[
        InstantText | None, msgspec.Meta(description="Until when the last of them can be restored at least.")
    ] = None


async def clear(request: Request, call: ClearQueueCall) -> Cleared:
    """Remove items, many at a time."""
    flow = clearance.clear_queue(
        request.broker.core,
        call.queue,
        call.statuses,
        final=call.destructive,
        confirm=call.confirm,
        dry_run=call.dry_run or call.confirm is None,
        limit=MAX_CLEARED,
        actor=call.actor,
    )
    result = await request.broker.run_flow(flow)
    if call.confirm is None and result.total and not call.dry_run:
        raise ConfirmationMismatch(f"clearing queue '{call.queue}'", None, result.total)
    until = None if result.undo_until is None else to_rfc3339(result.undo_until)
    return Cleared(result.cleared, max(0, result.total - result.cleared), until)


_NAME = {"name": "emails"}
ROUTES = (
    Route(
        name="queues.create",
        summary="Create a queue",
        request_type=CreateQueueCall,
        response_type=QueueView,
        permission=Permission.MANAGE,
        handler=create,
        example={"name": "emails", "settings": {"max_attempts": 3, "lease_timeout": "1m"}},
    ),
    Route(
        name="queues.update",
        summary="Change settings of a queue",
        request_type=UpdateQueueCall,
        response_type=QueueView,
        permission=Permission.MANAGE,
        handler=update,
        example={"name": "emails", "settings": {"max_attempts": 5}},
    ),
    Route(
        name="queues.list",
        summary="The queues, by name",
        request_type=ListQueuesCall,
        response_type=QueuesView,
        permission=Permission.READ,
        handler=list_all,
    ),
    Route(
        name="queues.stats",
        summary="How many items of each queue are in each status",
        request_type=ListQueuesCall,
        response_type=StatsPageView,
        permission=Permission.READ,
        handler=list_stats,
    ),
    Route(
        name="queues.info",
        summary="A queue with its settings and counts",
        request_type=NameCall,
        response_type=InfoView,
        permission=Permission.READ,
        handler=info,
        example=_NAME,
    ),
    Route(
        name="queues.pause",
        summary="Give no more leases from a queue",
        request_type=PauseQueueCall,
        response_type=QueueView,
        permission=Permission.OPERATE,
        handler=pause,
        example=_NAME,
    ),
    Route(
        name="queues.resume",
        summary="Give leases from a queue again",
        request_type=PauseQueueCall,
        response_type=QueueView,
        permission=Permission.OPERATE,
        handler=resume,
        example=_NAME,
    ),
    Route(
        name="queues.delete",
        summary="Remove a queue and what is in it",
        request_type=DeleteQueueCall,
        response_type=Deleted,
        permission=Permission.MANAGE,
        handler=delete,
        example={"name": "emails", "confirm": 0},
    ),
    Route(
        name="queue.stats",
        summary="How many items of a queue are in each status",
        request_type=QueueStatsCall,
        response_type=StatsView,
        permission=Permission.READ,
        handler=stats,
        example={"queue": "emails"},
    ),
    Route(
        name="queue.clear",
        summary="Drop the items of a queue",
        request_type=ClearQueueCall,
        response_type=Cleared,
        permission=Permission.MANAGE,
        handler=clear,
        example={"queue": "emails", "statuses": ["pending"], "dry_run": True},
    ),
)
