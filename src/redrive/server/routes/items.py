"""Stored items: their views, pages of them, and results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from redrive.broker.flows.inspection import parse_choice
from redrive.errors import InvalidInput, ResultUnavailable
from redrive.model.filter import Filter, Order, make_cursor
from redrive.model.ids import parse_id
from redrive.model.item import Item, Status
from redrive.server.field_types import PageLimit, QueueName, check_page
from redrive.server.request import Request
from redrive.server.response_budget import STEP, size_of
from redrive.wire.json_views import Encoding, defined, extended, item_view, payload_view, view_type, without

Form = Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*Encoding, None]})]
ResultView = defined(
    "Result",
    [("payload", Any), ("encoding", Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(Encoding)})]),
     ("content_type", str)],
    "The result of an item.",
)  # fmt: skip
ItemView = extended(
    without(view_type(Item), "payload", "result", "content_type", "headers"),
    [
        ("payload", Any, None),
        ("encoding", Form, None),
        ("content_type", str | None, None),
        ("headers", dict[str, str] | None, None),
        ("result", ResultView | None, None),
        ("kind", str | None, None),
        ("reference", str | None, None),
        ("hidden", bool | None, None),
        ("too_large", bool | None, None),
    ],
)
ItemsView = defined("Items", [("items", list[ItemView]), ("cursor", str | None, None)], "A page of items.")  # type: ignore[valid-type]

ItemsByKeyView = defined("ItemsByKey", [("items", list[ItemView | None])], "An item for each key, or null.")  # type: ignore[valid-type]

FoundItemsView = defined("FoundItems", [("items", list[ItemView | None])], "An item for each id, or null.")  # type: ignore[valid-type]


def item_views(request: Request, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the views of items, with as many payloads as one response may have; the first one always has its own."""
    answer: list[dict[str, Any]] = []
    size = 0
    for item in items:
        size += size_of(item)
        fits = size <= request.limits.max_response_bytes or not answer
        answer.append(item_view(item, fits=fits))
    return answer


class ListItemsCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The items of a queue, page by page."""

    queue: QueueName
    status: Annotated[
        str,
        msgspec.Meta(
            description="Only those in this status; any: in every status but archived.",
            extra_json_schema={"enum": [*Status, "any"]},
        ),
    ] = "any"
    archived: Annotated[bool, msgspec.Meta(description="With any: archived ones too.")] = False
    dropped: Annotated[
        bool | None, msgspec.Meta(description="true: archived ones that were dropped; false: none of them.")
    ] = None
    order: Order = Order.OLDEST
    cursor: (
        Annotated[
            str, msgspec.Meta(max_length=100, description="Continue after this: the cursor of a page, or an item's id.")
        ]
        | None
    ) = None
    limit: PageLimit = 100
    redacted: Annotated[bool, msgspec.Meta(description="false: with what seems a secret; needs the right manage.")] = (
        True
    )


async def list_items(request: Request, call: ListItemsCall) -> dict[str, Any]:
    """List the items of a queue. Returns one page."""
    check_page(request, call.limit)
    return await page_view(
        request,
        queue=call.queue,
        status=call.status,
        archived=call.archived or None,
        dropped=call.dropped,
        order=call.order,
        limit=call.limit,
        cursor=_cursor(call),
        redacted=call.redacted,
    )


async def page_view(request: Request, *, limit: int, cursor: str | None, **conditions: Any) -> dict[str, Any]:
    """Return a page of items; it has a `cursor` only if there are more.

    It reads in steps, and returns a short page if the payloads reach the limit of one response.
    """
    items: list[Item] = []
    size = 0
    while True:
        some = min(STEP, limit - len(items))
        page = await request.broker.find(limit=some, cursor=cursor, **conditions)
        items += page.items
        size += sum(map(size_of, page.items))
        cursor = page.cursor
        if cursor is None or len(items) >= limit or len(page.items) < some or size > request.limits.max_response_bytes:
            break
    answer: dict[str, Any] = {"items": await asyncio.to_thread(item_views, request, items)}
    return answer if cursor is None else {**answer, "cursor": cursor}


def _cursor(call: ListItemsCall) -> str | None:
    """Return the cursor; made from the id if it is one. Items other than dead letters are in the order of their ids."""
    if call.cursor is None or "-" in call.cursor:
        return call.cursor
    where = Filter(status=None if call.status == "any" else parse_choice("status", Status, call.status, "any"))
    if where.is_for_dead_letters:
        raise InvalidInput("dead and archived items are in the order of their deaths; give the cursor of the page")
    return make_cursor(where, call.order, parse_id(call.cursor)[0])


async def found_view(request: Request, found: Sequence[Item | None]) -> dict[str, Any]:
    """Return items in the order of the request; null for one that does not exist or that the caller may not read."""
    there = [item for item in found if item is not None]
    views = {view["id"]: view for view in await asyncio.to_thread(item_views, request, there)}
    return {"items": [None if item is None else views[item.id] for item in found]}


async def get_result(request: Request, id: str) -> dict[str, Any]:
    """Return the result of an item. The id is any that the item has had."""
    found = await request.broker.result(id)
    if found is None:
        raise ResultUnavailable(f"item {id} has no result: it is not done, or nothing was kept, or no longer")
    return payload_view(found.payload, found.content_type)
