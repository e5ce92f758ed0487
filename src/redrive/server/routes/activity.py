"""What happens and who does it: the feed, the audit, the workers, and items on their way to other stores."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.auth.principal import Permission
from redrive.broker.flows.moves import PendingMove
from redrive.contract.queries import AuditEntry, FeedPage
from redrive.model.duration import SECOND, parse_duration
from redrive.model.feed import FeedKind
from redrive.model.ids import MAX_NUMBER
from redrive.model.worker_info import WorkerInfo
from redrive.server.feed_followers import wait_for_feed
from redrive.server.field_types import DurationInput, ItemIdText, Label, PageLimit, QueueName, check_page
from redrive.server.request import Request
from redrive.server.route import Route
from redrive.wire.json_views import defined, view_of, view_type

Number = Annotated[
    str, msgspec.Meta(pattern="^[0-9]{1,19}$", description="A whole number, as a text: it may be too large for others.")
]
FeedView = view_type(FeedPage)
AuditView = defined("Audit", [("entries", list[view_type(AuditEntry)])], "Who changed what, newest first.")  # type: ignore[misc]
WorkersView = defined("Workers", [("workers", list[view_type(WorkerInfo)])], "The workers that are alive.")  # type: ignore[misc]
MovesView = defined("Moves", [("moves", list[view_type(PendingMove)])], "Items on their way to other stores.")  # type: ignore[misc]


class FeedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happened last, oldest first; or what comes after a number, and wait for it."""

    after: Annotated[Number | None, msgspec.Meta(description="Go on behind this: `last` of the answer before.")] = None
    before: Number | None = None
    queue: QueueName | None = None
    id: ItemIdText | None = None
    kinds: Annotated[list[FeedKind], msgspec.Meta(min_length=1, max_length=len(FeedKind))] | None = None
    operation: Label | None = None
    limit: PageLimit = 100
    wait: Annotated[DurationInput, msgspec.Meta(description="With `after`: how long to wait for an entry.")] = 0.0


async def feed(request: Request, call: FeedCall) -> dict[str, Any]:
    """A page of the feed."""
    check_page(request, call.limit)
    wanted: dict[str, Any] = {
        "queue": call.queue,
        "id": call.id,
        "kinds": call.kinds,
        "operation": call.operation,
        "limit": call.limit,
    }
    wait = min(parse_duration(call.wait, "wait") / SECOND, request.limits.wait_seconds)
    after, before = _read(call.after), _read(call.before)
    page = await request.broker.feed(after=after, before=before, **wanted)
    if not page.entries and not page.more and wait and after is not None and before is None:
        waited = wait_for_feed(request.broker, request.unbound or request.broker, page.last, wait, **wanted)
        page = await request.wait_for(waited) or page
        await request.check_admitted()
    return view_of(page)


def _read(number: str | None) -> int | None:
    return None if number is None else min(int(number), MAX_NUMBER)


class AuditCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who changed what by hand, or by a rule."""

    limit: PageLimit = 100
    before: Annotated[Number | None, msgspec.Meta(description="The number of the last entry before.")] = None


async def audit(request: Request, call: AuditCall) -> dict[str, Any]:
    """A page of the audit, newest first."""
    check_page(request, call.limit)
    return {"entries": [view_of(entry) for entry in await request.broker.audit(call.limit, before=_read(call.before))]}


class WorkersCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workers that are alive."""


async def workers(request: Request, call: WorkersCall) -> dict[str, Any]:
    """Who works."""
    return {"workers": [view_of(worker) for worker in await request.broker.workers()]}


class MovesCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that are on their way to another store."""

    limit: PageLimit = 100


async def moves(request: Request, call: MovesCall) -> dict[str, Any]:
    """What is on its way, and what keeps it."""
    check_page(request, call.limit)
    return {"moves": [view_of(move) for move in await request.broker.moves(call.limit)]}


ROUTES = (
    Route(
        name="feed.read",
        summary="What happened, in order, and what happens next",
        request_type=FeedCall,
        response_type=FeedView,
        permission=Permission.READ,
        handler=feed,
        example={"after": "0", "wait": "20s"},
    ),
    Route(
        name="audit.list",
        summary="Who changed what by hand",
        request_type=AuditCall,
        response_type=AuditView,
        permission=Permission.READ,
        handler=audit,
        example={"limit": 10},
    ),
    Route(
        name="workers.list",
        summary="The workers that are alive",
        request_type=WorkersCall,
        response_type=WorkersView,
        permission=Permission.READ,
        handler=workers,
    ),
    Route(
        name="moves.list",
        summary="Items on their way to other stores",
        request_type=MovesCall,
        response_type=MovesView,
        permission=Permission.READ,
        handler=moves,
    ),
)
