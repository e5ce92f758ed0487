"""Calls on queues that need more than one broker call: pages, a queue with its counts, and clearing a queue."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.broker.flows import clearance
from redrive.errors import ConfirmationMismatch
from redrive.model.breaker import BreakerStatus
from redrive.model.queue import Queue, QueueStats
from redrive.server.field_types import QueueName, instant_text_or_none
from redrive.server.request import Request
from redrive.wire.json_views import InstantText, defined, extended, view_of, view_type

MAX_CLEARED = 100_000
"""Maximum number of items that one request drops; the response has the number of remaining ones."""

QueueView = view_type(Queue)
BreakerView = view_type(BreakerStatus)
StatsView = extended(view_type(QueueStats), [("breakers", list[BreakerView])])  # type: ignore[valid-type]
StatsPageView = defined(
    "QueuesStats",
    [("stats", list[StatsView]), ("cursor", str | None, None)],  # type: ignore[valid-type]
    "The counts of a page of queues.",
)
InfoView = extended(QueueView, [("stats", StatsView)], "QueueInfo")
QueuesView = defined("Queues", [("queues", list[QueueView]), ("cursor", str | None, None)], "A page of queues.")  # type: ignore[valid-type]
PageCursor = Annotated[QueueName | None, msgspec.Meta(description="The cursor of the page before.")]


async def list_queues(request: Request, limit: int = 100, cursor: PageCursor = None) -> dict[str, Any]:
    """List the queues by name. Returns one page of those that the caller may see."""
    page, more = await _page(request, limit, cursor)
    return {"queues": [view_of(queue) for queue in page], **more}


async def list_stats(request: Request, limit: int = 100, cursor: PageCursor = None) -> dict[str, Any]:
    """Count the items of each queue by status. Returns one page of the queues that the caller may see."""
    page, more = await _page(request, limit, cursor)
    found = await request.broker.list_stats([queue.name for queue in page])
    breakers: dict[str, list[dict[str, Any]]] = {}
    for queue in page:
        if queue.breakers:
            breakers[queue.name] = await _breakers(request, queue.name)
    return {"stats": [{**view_of(stats), "breakers": breakers.get(stats.queue, [])} for stats in found], **more}


async def _page(request: Request, limit: int, cursor: str | None) -> tuple[list[Queue], dict[str, str]]:
    """Return the queues of a page, and the cursor if there are more."""
    rest = [queue for queue in await request.broker.list_queues() if cursor is None or queue.name > cursor]
    page = rest[:limit]
    return page, {} if len(page) == len(rest) else {"cursor": page[-1].name}


async def queue_info(request: Request, name: str) -> dict[str, Any]:
    """Return a queue with its settings and counts."""
    queue = await request.broker.get_queue(name)
    return {**view_of(queue), "stats": await stats_view(request, await request.broker.stats(name))}


async def stats_view(request: Request, stats: QueueStats) -> dict[str, Any]:
    """Return the counts of a queue and its breakers that are not closed."""
    return {**view_of(stats), "breakers": await _breakers(request, stats.queue)}


async def _breakers(request: Request, queue: str) -> list[dict[str, Any]]:
    return [view_of(each) for each in await request.broker.list_breakers(queue)]


class Cleared(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of removed items, and of matching items that remain."""

    removed: int
    left: int
    undo_until: Annotated[
        InstantText | None, msgspec.Meta(description="Until when the last of them can be restored at least.")
    ] = None


async def clear_queue(
    request: Request,
    queue: str,
    statuses: Annotated[
        tuple[Literal["pending", "failed", "completed", "dead", "archived"], ...],
        msgspec.Meta(min_length=1, max_length=5, description="Which of them."),
    ] = ("pending",),
    confirm: int | None = None,
    dry_run: Annotated[bool, msgspec.Meta(description="Remove nothing, and say how many it would be.")] = False,
    destructive: Annotated[
        bool,
        msgspec.Meta(description="true: permanently, dropped ones too; false: they can be restored for keep_dropped."),
    ] = False,
    actor: str | None = None,
) -> Cleared:
    """Drop the items of a queue. Or remove them permanently. The queue and its leased items stay."""
    flow = clearance.clear_queue(
        request.broker.core,
        queue,
        statuses,
        final=destructive,
        confirm=confirm,
        dry_run=dry_run or confirm is None,
        limit=MAX_CLEARED,
        actor=actor,
    )
    result = await request.broker.run_flow(flow)
    if confirm is None and result.total and not dry_run:
        raise ConfirmationMismatch(f"clearing queue '{queue}'", None, result.total)
    left = max(0, result.total - result.cleared)
    return Cleared(result.cleared, left, instant_text_or_none(result.undo_until))
