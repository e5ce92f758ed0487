"""`queue.produce`, and items as requests bring them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from redrive.broker.items import new_item, queue_name
from redrive.errors import InvalidInput
from redrive.model.item import Receipt
from redrive.model.limits import DEFAULT_PRIORITY, MAX_PRIORITY, MIN_PRIORITY
from redrive.model.payload import JSON, check_json
from redrive.server.access.principal import Right
from redrive.server.brokers import commit_one
from redrive.server.fields import Count, Label, QueueName, check_batch, each
from redrive.server.payloads import Encoding, bytes_of
from redrive.server.requests import Request
from redrive.server.route import Route, one_queue
from redrive.server.times import DurationInput, InstantInput, read_datetime
from redrive.server.views import KIND_HEADER, REFERENCE_HEADER
from redrive.store import NewItem, Put


class ProducedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An item to be put."""

    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON value; a text where `encoding` is another.")]
    encoding: Encoding = Encoding.JSON
    content_type: Label | None = None
    kind: Annotated[Label | None, msgspec.Meta(description="What it is; kept as the header `kind`.")] = None
    reference: Annotated[Label | None, msgspec.Meta(description="Of yours; kept as the header `reference`.")] = None
    headers: dict[str, str] | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Larger goes first.")] = (
        DEFAULT_PRIORITY
    )
    delay: Annotated[DurationInput | None, msgspec.Meta(description="From now until it may be leased.")] = None
    enqueue_at: Annotated[InstantInput | None, msgspec.Meta(description="From when it may be leased.")] = None
    expire_timeout: Annotated[DurationInput | None, msgspec.Meta(description="How long it is worth doing.")] = None
    idempotency_key: Annotated[
        Label | None, msgspec.Meta(description="The same key again puts nothing, and gives the id of the first.")
    ] = None
    held_by: Annotated[Label | None, msgspec.Meta(description="Keeps it from being leased until it is unheld.")] = None
    max_attempts: Count | None = None
    max_losses: Count | None = None
    retry_attempts: Count | None = None


class ProduceCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Put items. All of them, or none."""

    queue: QueueName
    items: Annotated[list[ProducedItem], msgspec.Meta(min_length=1)]


class Produced(msgspec.Struct, frozen=True, gc=False):
    """A receipt for each item, in the order of the request. `duplicate`: the idempotency key was known."""

    items: tuple[Receipt, ...]


async def produce(request: Request, call: ProduceCall) -> Produced:
    """Put items, all or none."""
    check_batch(request, len(call.items))
    put = Put(queue_name(call.queue), tuple(each(call.items, new_item_of)))
    return Produced(await commit_one(request.broker, put))


def _is_plain(item: ProducedItem) -> bool:
    """Whether nothing is said but payload and priority: of most items it is so."""
    return item == ProducedItem(payload=item.payload, priority=item.priority)


def new_item_of(item: ProducedItem) -> NewItem:
    """An item as the broker takes it."""
    if _is_plain(item):
        data = bytes(item.payload)
        check_json(data)
        return NewItem(data, JSON, None, item.priority, plain=True)
    payload, content_type = bytes_of(item.payload, item.encoding, item.content_type)
    return new_item(
        payload,
        delay=0 if item.delay is None else item.delay,
        enqueue_at=None if item.enqueue_at is None else read_datetime("enqueue_at", item.enqueue_at),
        priority=item.priority,
        expire_timeout=item.expire_timeout,
        headers=headers_of(item.headers, item.kind, item.reference),
        idempotency_key=item.idempotency_key,
        content_type=content_type,
        held_by=item.held_by,
        max_attempts=item.max_attempts,
        max_losses=item.max_losses,
        retry_attempts=item.retry_attempts,
    )


def headers_of(headers: dict[str, str] | None, kind: str | None, reference: str | None) -> dict[str, str] | None:
    """The headers of an item, with its kind and its reference among them."""
    named = {KIND_HEADER: kind, REFERENCE_HEADER: reference}
    given = {name: value for name, value in named.items() if value is not None}
    for name in given:
        if headers and name in headers:
            raise InvalidInput(f"{name} is given twice, by itself and as a header; leave one of them out")
    return {**(headers or {}), **given} or None


ROUTES = (
    Route(
        name="queue.produce",
        summary="Put items, all of them or none",
        takes=ProduceCall,
        gives=Produced,
        right=Right.PUT,
        queues=one_queue,
        handle=produce,
        example={"queue": "emails", "items": [{"payload": {"to": "ann@example.com"}, "kind": "welcome"}]},
    ),
)
