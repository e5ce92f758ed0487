"""`queue.produce` and `items.import`: put new items, or items that existed elsewhere, once for each id."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from redrive.broker.flow import raise_if_refused
from redrive.broker.flows.deliveries import new_item, queue_name
from redrive.broker.flows.export_import import checked_item, decode_line
from redrive.clock import Instant
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.maintenance_calls import Import
from redrive.errors import InvalidInput
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Item, Receipt, Status
from redrive.model.limits import DEFAULT_PRIORITY
from redrive.model.options import Priority
from redrive.model.payload import JSON, check_json
from redrive.server.field_types import (
    ITEM,
    Actor,
    Count,
    DurationInput,
    InstantInput,
    ItemIdText,
    Label,
    QueueName,
    RetryFields,
    check_batch,
    each,
    read_datetime,
    read_instant,
)
from redrive.server.request import Request
from redrive.server.route import DirectCall
from redrive.wire.json_views import KIND_HEADER, REFERENCE_HEADER, Encoding, bytes_of


class ProducedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An item to be put."""

    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON value; a text where `encoding` is another.")]
    encoding: Encoding = Encoding.JSON
    content_type: Annotated[Label | None, ITEM["content_type"]] = None
    kind: Annotated[Label | None, msgspec.Meta(description="What it is; kept as the header `kind`.")] = None
    reference: Annotated[Label | None, msgspec.Meta(description="Of yours; kept as the header `reference`.")] = None
    headers: Annotated[dict[str, str] | None, ITEM["headers"]] = None
    priority: Annotated[Priority, ITEM["priority"]] = DEFAULT_PRIORITY
    delay: Annotated[DurationInput | None, ITEM["delay"]] = None
    enqueue_at: Annotated[InstantInput | None, ITEM["enqueue_at"]] = None
    expire_timeout: Annotated[DurationInput | None, ITEM["expire_timeout"]] = None
    expire_at: Annotated[InstantInput | None, ITEM["expire_at"]] = None
    idempotency_key: Annotated[Label | None, ITEM["idempotency_key"]] = None
    held_by: Annotated[Label | None, ITEM["held_by"]] = None
    max_attempts: Annotated[Count | None, ITEM["max_attempts"]] = None
    max_losses: Annotated[Count | None, ITEM["max_losses"]] = None
    retry: Annotated[RetryFields | None, ITEM["retry"]] = None


class ProduceCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Put items. All of them, or none."""

    queue: QueueName
    items: Annotated[list[ProducedItem], msgspec.Meta(min_length=1)]


class Produced(msgspec.Struct, frozen=True, gc=False):
    """A receipt for each item, in the order of the request. `duplicate`: the idempotency key was known."""

    items: tuple[Receipt, ...]


async def produce(request: Request, call: ProduceCall) -> Produced:
    """Put items, all of them or none."""
    check_batch(request, len(call.items))
    return Produced(await request.broker.submit(_put(call)))


def _put(call: ProduceCall) -> Put:
    return Put(queue_name(call.queue), tuple(each(call.items, new_item_of)))


def _put_of_one(call: ProduceCall) -> Put | None:
    return _put(call) if len(call.items) == 1 else None


def _is_plain(item: ProducedItem) -> bool:
    """Return whether an item has only payload and priority, as most items do."""
    return item == ProducedItem(payload=item.payload, priority=item.priority)


def new_item_of(item: ProducedItem) -> NewItem:
    """Return an item in the form that the broker takes."""
    if _is_plain(item):
        data = bytes(item.payload)
        check_json(data)
        return NewItem(data, JSON, None, item.priority, is_plain=True)
    payload, content_type = bytes_of(item.payload, item.encoding, item.content_type)
    return new_item(
        payload,
        delay=0 if item.delay is None else item.delay,
        enqueue_at=None if item.enqueue_at is None else read_datetime("enqueue_at", item.enqueue_at),
        priority=item.priority,
        expire_timeout=item.expire_timeout,
        expire_at=None if item.expire_at is None else read_datetime("expire_at", item.expire_at),
        headers=headers_of(item.headers, item.kind, item.reference),
        idempotency_key=item.idempotency_key,
        content_type=content_type,
        held_by=item.held_by,
        max_attempts=item.max_attempts,
        max_losses=item.max_losses,
        retry=item.retry,
    )


def headers_of(headers: dict[str, str] | None, kind: str | None, reference: str | None) -> dict[str, str] | None:
    """Return the headers of an item, including its kind and its reference."""
    named = {KIND_HEADER: kind, REFERENCE_HEADER: reference}
    given = {name: value for name, value in named.items() if value is not None}
    for name in given:
        if headers and name in headers:
            raise InvalidInput(f"{name} is given twice, as a field and as a header; omit one of them")
    return {**(headers or {}), **given} or None


PUT_OF_ONE = DirectCall(_put_of_one, lambda call, receipts: Produced(raise_if_refused(receipts)))


_encode = msgspec.json.Encoder().encode


class ImportedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An item with its state in another system."""

    source_id: Annotated[ItemIdText, msgspec.Meta(description="The id it had: 32 hexadecimal digits.")]
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON value; a text where `encoding` is another.")]
    encoding: Encoding = Encoding.JSON
    content_type: Label | None = None
    kind: Label | None = None
    reference: Label | None = None
    headers: dict[str, str] | None = None
    priority: Annotated[Priority, ITEM["priority"]] = DEFAULT_PRIORITY
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
    """Put items that existed elsewhere, all or none. One with a known source_id is ignored."""

    queue: QueueName
    items: list[ImportedItem] = []
    lines: Annotated[
        list[dict[str, Any]],
        msgspec.Meta(
            description="Lines of an export, instead: with history, deaths and status. docs/reference/export-format.md"
        ),
    ] = []
    actor: Actor = None


class Imported(msgspec.Struct, frozen=True):
    """A receipt for each item, in the order of the request. `duplicate`: it was known, and ignored."""

    items: tuple[Receipt, ...]


async def import_items(request: Request, call: ImportCall) -> Imported:
    """Put items that existed elsewhere, once. They get new ids; source_id is their former id."""
    if bool(call.items) == bool(call.lines):
        raise InvalidInput("give items, or the lines of an export, and not both")
    check_batch(request, len(call.items) + len(call.lines))
    if call.lines:
        read = [decode_line(number, _encode(line)) for number, line in enumerate(call.lines, 1)]
        items = tuple(item for item in read if item is not None)
    else:
        now = request.broker.core.clock.now()
        items = tuple(each(call.items, lambda item: _item(item, call.queue, now)))
    return Imported(await request.broker.submit(Import(call.queue, items, request.broker.core.actor(call.actor))))


def _item(given: ImportedItem, queue: str, now: Instant) -> Item:
    """Return the item after the checks for a line of an export."""
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
