"""`items.import`: items that were somewhere else before, each under the id it had there, once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.broker.item_checks import checked_item
from redrive.broker.transfer import read_line
from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Item, Receipt, Status
from redrive.model.limits import DEFAULT_PRIORITY, MAX_PRIORITY, MIN_PRIORITY
from redrive.server.access.principal import Right
from redrive.server.brokers import commit
from redrive.server.fields import Actor, Count, ItemIdText, Label, QueueName, check_batch, each
from redrive.server.payloads import Encoding, bytes_of
from redrive.server.producing import headers_of
from redrive.server.requests import Request
from redrive.server.route import Route, one_queue
from redrive.server.times import InstantInput, read_instant
from redrive.store import Import

_encode = msgspec.json.Encoder().encode


class ImportedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item as it was elsewhere."""

    source_id: Annotated[ItemIdText, msgspec.Meta(description="The id it had: 32 hexadecimal digits.")]
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON value; a text where `encoding` is another.")]
    encoding: Encoding = Encoding.JSON
    content_type: Label | None = None
    kind: Label | None = None
    reference: Label | None = None
    headers: dict[str, str] | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = DEFAULT_PRIORITY
    put_at: InstantInput | None = None
    ready_at: InstantInput | None = None
    expire_deadline: InstantInput | None = None
    status: Literal["pending", "failed"] = "pending"
    deliveries: Count = 0
    attempts: Count = 0
    failures: Count = 0
    losses: Count = 0
    redrives: Count = 0


class ImportCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Put items that were elsewhere before. All of them, or none. One that is known by its source_id is ignored."""

    queue: QueueName
    items: list[ImportedItem] = []
    lines: Annotated[
        list[dict[str, Any]],
        msgspec.Meta(
            description="Lines of an export, instead: with history, deaths and status. docs/reference/export.md"
        ),
    ] = []
    actor: Actor = None


class Imported(msgspec.Struct, frozen=True):
    """A receipt for each item, in the order of the request. `duplicate`: it was known, and ignored."""

    items: tuple[Receipt, ...]


async def import_items(request: Request, call: ImportCall) -> Imported:
    """Put items under new ids, with source_id = the id they had."""
    if bool(call.items) == bool(call.lines):
        raise InvalidInput("give items, or the lines of an export, and not both")
    check_batch(request, len(call.items) + len(call.lines))
    if call.lines:
        read = [read_line(number, _encode(line)) for number, line in enumerate(call.lines, 1)]
        items = tuple(item for item in read if item is not None)
    else:
        now = request.broker._core.clock.now()
        items = tuple(each(call.items, lambda item: _item(item, call.queue, now)))
    actor = request.broker._core.actor(request.actor(call.actor))
    (result,) = await commit(request.broker, (Import(call.queue, items, actor),))
    if isinstance(result, Exception):
        raise result
    return Imported(result)


def _item(given: ImportedItem, queue: str, now: Instant) -> Item:
    """The item, checked as any line of an export is."""
    payload, content_type = bytes_of(given.payload, given.encoding, given.content_type)
    return checked_item(
        Item(
            id=ItemId(given.source_id),
            queue=queue,
            status=Status(given.status),
            payload=payload,
            content_type=content_type,
            headers=headers_of(given.headers, given.kind, given.reference) or {},
            priority=given.priority,
            put_at=now if given.put_at is None else read_instant("put_at", given.put_at),
            counters=Counters(given.deliveries, given.attempts, given.failures, given.losses, given.redrives),
            ready_at=_instant("ready_at", given.ready_at),
            expire_deadline=_instant("expire_deadline", given.expire_deadline),
        )
    )


def _instant(what: str, text: str | None) -> Instant | None:
    return None if text is None else read_instant(what, text)


IMPORT_ROUTES = (
    Route(
        name="items.import",
        summary="Put items that were elsewhere before, once",
        takes=ImportCall,
        gives=Imported,
        right=Right.MANAGE,
        queues=one_queue,
        handle=import_items,
        example={
            "queue": "emails",
            "items": [{"source_id": "4f0c91a27b3d000000068f1c2a3b4800", "payload": {"to": "ann"}}],
        },
    ),
)
