"""Items as they are kept: list, get, import, delete, and what a person does to single ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from redrive.broker.finding import one_of
from redrive.errors import InvalidInput, NoResult
from redrive.model.filter import Filter, Order, make_cursor
from redrive.model.ids import parse_id
from redrive.model.item import Item, Status
from redrive.server.access import lookups
from redrive.server.access.principal import Right
from redrive.server.fields import Actor, ItemIdText, Label, PageLimit, QueueName, Text, check_batch, check_page
from redrive.server.payloads import Encoding, value_told
from redrive.server.portions import STEP, size_of
from redrive.server.producing import KIND_HEADER, REFERENCE_HEADER
from redrive.server.requests import Request, Response
from redrive.server.results import EndedItems, settled_answer
from redrive.server.routes import one_queue, route
from redrive.server.views import defined, extended, told, told_type, without

Form = Annotated[str | None, msgspec.Meta(extra_json_schema={"enum": [*Encoding, None]})]
ResultTold = defined(
    "Result",
    [("payload", Any), ("encoding", Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(Encoding)})]),
     ("content_type", str)],
    "What the work on an item gave.",
)  # fmt: skip
ItemTold = extended(
    without(told_type(Item), "payload", "result", "content_type", "headers"),
    [
        ("payload", Any, None),
        ("encoding", Form, None),
        ("content_type", str | None, None),
        ("headers", dict[str, str] | None, None),
        ("result", ResultTold | None, None),
        ("kind", str | None, None),
        ("reference", str | None, None),
        ("hidden", bool | None, None),
        ("too_large", bool | None, None),
    ],
)
ItemsTold = defined("Items", [("items", list[ItemTold]), ("cursor", str | None, None)], "A page of items.")  # type: ignore[valid-type]


def item_told(item: Item, *, with_payload: bool, fits: bool = True) -> dict[str, Any]:
    """An item; without payload, headers, result and variables where the caller may not see them."""
    answer = told(item)
    payload, content_type = answer.pop("payload"), answer.pop("content_type")
    headers, _ = answer.pop("headers"), answer.pop("result", None)
    if not with_payload:
        answer.pop("idempotency_key", None)
        for entry in answer["history"]:
            entry.get("failure", {}).pop("locals", None)
        return {**answer, "hidden": True}
    answer["headers"] = headers
    answer |= {name: headers[name] for name in (KIND_HEADER, REFERENCE_HEADER) if name in headers}
    if not fits:
        return {**answer, "content_type": content_type, "too_large": True}
    if item.result is not None:
        answer["result"] = value_told(item.result.payload, item.result.content_type)
    return {**answer, **value_told(payload, content_type)}


def items_told(request: Request, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Items, with as many payloads as one answer may have. One of them is always shown."""
    answer: list[dict[str, Any]] = []
    size = 0
    for item in items:
        size += size_of(item)
        fits = size <= request.limits.answer or not answer
        answer.append(item_told(item, with_payload=request.sees_payloads(item.queue), fits=fits))
    return answer


async def check_items(request: Request, right: Right, ids: Iterable[str], *, brings_back: bool = False) -> None:
    """Raise unless the caller may do that where each of these items is, and where it goes back to.

    Whoever is let into some queues only learns nothing about ids that are not in them.
    """
    await lookups.check_items(request, (right,), tuple(ids), brings_back=brings_back)


class ListItemsCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The items of a queue, page by page."""

    queue: QueueName
    status: Annotated[
        str, msgspec.Meta(description="Only those in this status.", extra_json_schema={"enum": [*Status, "any"]})
    ] = "any"
    order: Order = Order.OLDEST
    pivot: (
        Annotated[
            str, msgspec.Meta(max_length=100, description="Go on behind this: the cursor of a page, or an item's id.")
        ]
        | None
    ) = None
    limit: PageLimit = 100
    redacted: Annotated[bool, msgspec.Meta(description="false: with what seems a secret; needs the right manage.")] = (
        True
    )


async def list_items(request: Request, call: ListItemsCall) -> dict[str, Any]:
    """A page of items."""
    check_page(request, call.limit)
    if not call.redacted:
        request.check(Right.MANAGE, call.queue)
    return await page_told(
        request,
        queue=call.queue,
        status=call.status,
        order=call.order,
        limit=call.limit,
        cursor=_cursor(call),
        redacted=call.redacted,
    )


async def page_told(request: Request, *, limit: int, cursor: str | None, **conditions: Any) -> dict[str, Any]:
    """A page as an answer; `cursor` is in it only where there is more.

    It is found bit by bit, and is short where its payloads are as much as one answer may have.
    """
    items: list[Item] = []
    size = 0
    while True:
        some = min(STEP, limit - len(items))
        page = await request.broker.find(limit=some, cursor=cursor, **conditions)
        items += page.items
        size += sum(map(size_of, page.items))
        cursor = page.cursor
        if cursor is None or len(items) >= limit or len(page.items) < some or size > request.limits.answer:
            break
    answer: dict[str, Any] = {"items": await asyncio.to_thread(items_told, request, items)}
    return answer if cursor is None else {**answer, "cursor": cursor}


def _cursor(call: ListItemsCall) -> str | None:
    """Items that are no letters stand in the order of their numbers, which their ids have."""
    if call.pivot is None or "-" in call.pivot:
        return call.pivot
    where = Filter(status=None if call.status == "any" else one_of("status", Status, call.status, "any"))
    if where.for_letters:
        raise InvalidInput("dead and archived items stand in the order of their deaths; give the cursor of the page")
    return make_cursor(where, call.order, parse_id(call.pivot)[0])


class GetItemCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an item."""

    id: ItemIdText
    redacted: Annotated[bool, msgspec.Meta(description="false: with what seems a secret; needs the right manage.")] = (
        True
    )


async def get(request: Request, call: GetItemCall) -> dict[str, Any]:
    """An item with its history and its deaths."""
    await check_items(request, Right.LOOK, (call.id,))
    item = await request.broker.get(call.id, redacted=call.redacted)
    if not call.redacted:
        request.check(Right.MANAGE, item.queue)
    return item_told(item, with_payload=request.sees_payloads(item.queue))


class ResultCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names an item by any id that it had."""

    id: ItemIdText


async def result(request: Request, call: ResultCall) -> dict[str, Any]:
    """What the work on an item gave."""
    await lookups.check_items(request, (Right.PAYLOADS,), (call.id,), outlived=True)
    found = await request.broker.result(call.id)
    if found is None:
        raise NoResult(f"item {call.id} has no result: it is not done, or nothing was kept, or no longer")
    return value_told(found.payload, found.content_type)


class ByHandCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items that a person changes. Each stands for itself."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    force: Annotated[bool, msgspec.Meta(description="Also where a worker has the item: its lease is revoked.")] = False
    actor: Actor = None


class FailCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to count a failure against."""

    error: Text


class BuryCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to bury."""

    note: Text | None = None


class MoveCall(ByHandCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items to take to another queue."""

    to: Annotated[Label, msgspec.Meta(description="The queue they go to.")]


class UndoCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items whose redrive is taken back."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    actor: Actor = None


async def by_hand(request: Request, right: Right, call: Any) -> str | None:
    """Let the caller in, and say who stands in the audit."""
    check_batch(request, len(call.ids))
    await check_items(request, right, call.ids)
    return request.actor(call.actor)


async def delete(request: Request, call: ByHandCall) -> EndedItems | Response:
    """Remove items for good."""
    actor = await by_hand(request, Right.MANAGE, call)
    return settled_answer(await request.broker.drop(call.ids, actor=actor, force=call.force))


async def retry(request: Request, call: ByHandCall) -> EndedItems | Response:
    """Try dead or failed items again, where they are."""
    actor = await by_hand(request, Right.CHANGE, call)
    return settled_answer(await request.broker.retry(call.ids, actor=actor, force=call.force))


async def done(request: Request, call: ByHandCall) -> EndedItems | Response:
    """Take items as completed."""
    actor = await by_hand(request, Right.CHANGE, call)
    return settled_answer(await request.broker.done(call.ids, actor=actor, force=call.force))


async def fail(request: Request, call: FailCall) -> EndedItems | Response:
    """Count a failure against items."""
    actor = await by_hand(request, Right.CHANGE, call)
    return settled_answer(await request.broker.fail_by_hand(call.ids, call.error, actor=actor, force=call.force))


async def bury(request: Request, call: BuryCall) -> EndedItems | Response:
    """Make items dead."""
    actor = await by_hand(request, Right.CHANGE, call)
    return settled_answer(await request.broker.bury_by_hand(call.ids, note=call.note, actor=actor, force=call.force))


async def move(request: Request, call: MoveCall) -> EndedItems | Response:
    """Take items to another queue."""
    actor = await by_hand(request, Right.CHANGE, call)
    request.check(Right.CHANGE, call.to)
    return settled_answer(await request.broker.move(call.ids, call.to, actor=actor, force=call.force))


async def undo(request: Request, call: UndoCall) -> EndedItems | Response:
    """Take redrives back that nobody has worked on since."""
    actor = await by_hand(request, Right.CHANGE, call)
    return settled_answer(await request.broker.undo(call.ids, actor=actor))


class HoldCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items to hold back."""

    ids: Annotated[list[ItemIdText], msgspec.Meta(min_length=1)]
    held_by: Label


class UnholdCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that are held no longer: these, or all that are held under the name."""

    held_by: Label
    ids: Annotated[list[ItemIdText] | None, msgspec.Meta(description="None: all of them.")] = None


class Changed(msgspec.Struct, frozen=True):
    """How many items were changed."""

    changed: int


async def hold(request: Request, call: HoldCall) -> Changed:
    """Keep items from being leased."""
    check_batch(request, len(call.ids))
    await check_items(request, Right.CHANGE, call.ids)
    return Changed(await request.broker.hold(call.ids, call.held_by))


async def unhold(request: Request, call: UnholdCall) -> Changed:
    """Let items be leased again."""
    if call.ids is None:
        request.check(Right.CHANGE, None)
    else:
        check_batch(request, len(call.ids))
        await check_items(request, Right.CHANGE, call.ids)
    return Changed(await request.broker.unhold(call.held_by, call.ids))


_ID = "4f0c91a27b3d000000068f1c2a3b4800"


_IDS = {"ids": [_ID]}
ROUTES = (
    route("items.list", "The items of a queue", ListItemsCall, ItemsTold, Right.LOOK, list_items,
          {"queue": "emails", "limit": 10}, one_queue),
    route("items.get", "An item with its history", GetItemCall, ItemTold, Right.LOOK, get, {"id": _ID}),
    route("items.result", "What the work on an item gave", ResultCall, ResultTold, Right.PAYLOADS, result, {"id": _ID}),
    route("items.delete", "Remove items for good", ByHandCall, EndedItems, Right.MANAGE, delete, _IDS),
    route("items.retry", "Try dead or failed items again, where they are", ByHandCall, EndedItems, Right.CHANGE,
           retry, _IDS),
    route("items.done", "Take items as completed", ByHandCall, EndedItems, Right.CHANGE, done, _IDS),
    route("items.fail", "Count a failure against items that nobody works on", FailCall, EndedItems, Right.CHANGE,
           fail, {**_IDS, "error": "the customer left"}),
    route("items.bury", "Make items dead that nobody works on", BuryCall, EndedItems, Right.CHANGE, bury, _IDS),
    route("items.move", "Take items to another queue", MoveCall, EndedItems, Right.CHANGE, move,
           {**_IDS, "to": "emails"}),
    route("items.undo", "Take redrives back that nobody has worked on since", UndoCall, EndedItems, Right.CHANGE,
           undo, _IDS),
    route("items.hold", "Keep items from being leased", HoldCall, Changed, Right.CHANGE, hold,
           {**_IDS, "held_by": "ann"}),
    route("items.unhold", "Let items be leased again", UnholdCall, Changed, Right.CHANGE, unhold,
          {"held_by": "ann"}),
)  # fmt: skip
