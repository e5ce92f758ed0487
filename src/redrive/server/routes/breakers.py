"""Circuit breakers: list those that are not closed, open one, close one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from redrive.auth.principal import Permission
from redrive.model.breaker import QUEUE, BreakerStatus
from redrive.server.field_types import Actor, DurationInput, Label, QueueName, Text
from redrive.server.request import Request
from redrive.server.route import Route
from redrive.wire.json_views import defined, view_of, view_type

BreakerView = view_type(BreakerStatus)
BreakersView = defined("Breakers", [("breakers", list[BreakerView])], "Breakers that are not closed.")  # type: ignore[valid-type]
Kind = Annotated[
    Label,
    msgspec.Meta(
        description="`queue`, an error class, or `fingerprint:` and the fingerprint of a group.",
        examples=["network", "fingerprint:51c2ab0f9d3e7a64"],
    ),
]


class ListBreakersCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Breakers that are not closed, of one queue or of all that the caller may read."""

    queue: QueueName | None = None


async def list_all(request: Request, call: ListBreakersCall) -> dict[str, Any]:
    """Which breakers are open, why, and what waits."""
    return {"breakers": await breaker_views(request, call.queue)}


async def breaker_views(request: Request, queue: str | None) -> list[dict[str, Any]]:
    """Breakers that are not closed, of one queue or of all that the caller may read."""
    return [view_of(each) for each in await request.broker.list_breakers(queue)]


class OpenBreakerCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Open a breaker. One that is open is not changed."""

    queue: QueueName
    kind: Kind = QUEUE
    open_for: Annotated[
        DurationInput | None, msgspec.Meta(description="Until its first probe; else as its rule says.")
    ] = None
    note: Text | None = None
    actor: Actor = None


async def open_(request: Request, call: OpenBreakerCall) -> dict[str, Any]:
    """Let what would fail wait."""
    opened = await request.broker.open_breaker(
        call.queue, call.kind, open_for=call.open_for, note=call.note, actor=call.actor
    )
    return view_of(opened)


class CloseBreakerCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Close a breaker without waiting for its probe."""

    queue: QueueName
    kind: Kind = QUEUE
    note: Text | None = None
    actor: Actor = None


class BreakerClosed(msgspec.Struct, frozen=True):
    """How many items were released."""

    released: int


async def close(request: Request, call: CloseBreakerCall) -> BreakerClosed:
    """Release what waits."""
    released = await request.broker.close_breaker(call.queue, call.kind, note=call.note, actor=call.actor)
    return BreakerClosed(released)


ROUTES = (
    Route(
        name="breakers.list",
        summary="Circuit breakers that are not closed",
        request_type=ListBreakersCall,
        response_type=BreakersView,
        permission=Permission.READ,
        handler=list_all,
    ),
    Route(
        name="breakers.open",
        summary="Open a circuit breaker",
        request_type=OpenBreakerCall,
        response_type=BreakerView,
        permission=Permission.OPERATE,
        handler=open_,
        example={"queue": "emails", "kind": "network", "open_for": "10m"},
    ),
    Route(
        name="breakers.close",
        summary="Close a circuit breaker",
        request_type=CloseBreakerCall,
        response_type=BreakerClosed,
        permission=Permission.OPERATE,
        handler=close,
        example={"queue": "emails", "kind": "network"},
    ),
)
