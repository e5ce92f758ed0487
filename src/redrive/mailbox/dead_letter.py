"""`DeadLetter`: the body of messages in a dead-letter mailbox, a view of a dead item and of its death."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from redrive.broker.validation import to_instant
from redrive.clock import Instant, to_datetime
from redrive.contract.replies import REPLY_TO, REQUEST_ID, RESERVED_PREFIX
from redrive.errors import InvalidPayload
from redrive.mailbox.body_types import BodyType
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason, cause_of
from redrive.model.failure import Failure, failure_from_fields
from redrive.model.ids import NUMBERS_PER_MICROSECOND, ItemId, make_id
from redrive.model.item import Counters, Death, HistoryEntry, HistoryEvent, Item, Result, Status
from redrive.model.limits import DEFAULT_PRIORITY

T = TypeVar("T")
MESSAGE_ID = f"{RESERVED_PREFIX}message-id"
"""The header with the id of a message from another system."""


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """A message that died, with its body and the records of its failures."""

    message_id: str
    """The id that `send` returned."""
    body: T
    """The body. If it is not of the type that its mailbox declares, as after the reason `undecodable`, its
    bytes."""
    source_mailbox: str
    """The mailbox that it died in."""
    delivery_count: int
    """The number of deliveries before it died."""
    last_error: str
    last_error_type: str
    """The qualified name of the type of the last error; empty if no consumer reported one."""
    dead_lettered_at: datetime
    first_received_at: datetime | None
    """The time of the first delivery; None if it was never delivered."""
    request_id: UUID | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    reason: str = ""
    """The reason of the death, such as `retries_exhausted`, `worker_lost` or `expired`. Empty if the message was put
    into its dead-letter mailbox, and never died."""
    failures: tuple[Failure, ...] = ()
    """All recorded failures, oldest first, with tracebacks."""
    fingerprint: str = ""
    """A hash of the cause: dead letters with the same fingerprint have the same cause."""
    error_class: str = ""
    worker: str | None = None
    """The consumer that reported the last failure."""
    redrive_count: int = 0


def dead_letter_of(item: Item, body: BodyType[T]) -> DeadLetter[T]:
    """Return the view of an item in a dead-letter mailbox: of any item, so that a consumer sees every letter.

    A body that cannot be decoded is its bytes. An item that never died has no reason and no errors.
    """
    death = item.death
    failures = tuple(entry.failure for entry in item.history if entry.failure is not None)
    last = failures[-1] if failures else None
    cause = None if death is None else death.cause
    first = item.first_leased_at if death is None else death.first_leased_at
    return DeadLetter(
        message_id=item.headers.get(MESSAGE_ID) or item.origin_id or item.id,
        body=_body_of(item, body),
        source_mailbox=item.queue if death is None else death.queue,
        delivery_count=0 if death is None else death.counters.attempts,
        last_error=last.text if last is not None else "" if cause is None else cause.title,
        last_error_type="" if last is None else qualified_name(last.type),
        dead_lettered_at=to_datetime(item.put_at if death is None else death.at),
        first_received_at=None if first is None else to_datetime(first),
        request_id=_request_id(item.headers),
        reply_to=item.headers.get(REPLY_TO),
        trace_id=_trace_id(item.headers, last),
        reason="" if death is None else death.reason.value,
        failures=failures,
        fingerprint="" if cause is None else cause.fingerprint,
        error_class="" if cause is None else cause.error_class.value,
        worker=None if last is None else last.worker,
        redrive_count=item.counters.redrives if death is None else death.counters.redrives,
    )


def _body_of(item: Item, body: BodyType[T]) -> T:
    try:
        return body.decode(item.payload, item.content_type)
    except InvalidPayload:
        return cast("T", item.payload)


def item_of_letter(letter: DeadLetter[Any], body: Result, queue: str, namespace: str, store: str) -> Item:
    """Return the item for Import of a dead letter that a program made: `dead_letter_of` returns the same letter again.

    The id depends on the message and the time of its death, so that the same letter is not imported twice, and the next
    death of the same message is a separate letter.
    """
    died_at = to_instant("dead_lettered_at", letter.dead_lettered_at)
    first = letter.first_received_at
    counters = Counters(letter.delivery_count, letter.delivery_count, len(letter.failures), 0, letter.redrive_count)
    failures = letter.failures or _stated_failure(letter)
    reason = _reason(letter)
    id = _import_id(letter, died_at)
    death = Death(
        at=died_at,
        reason=reason,
        queue=letter.source_mailbox,
        namespace=namespace,
        store=store,
        id=id,
        counters=counters,
        cause=cause_of(reason, failures[-1] if failures else None, letter.last_error),
        first_leased_at=None if first is None else to_instant("first_received_at", first),
    )
    request = None if letter.request_id is None else str(letter.request_id)
    named = {MESSAGE_ID: letter.message_id, REQUEST_ID: request, REPLY_TO: letter.reply_to}
    headers = {name: value for name, value in named.items() if value is not None}
    return Item(
        id=id,
        queue=queue,
        status=Status.PENDING,
        payload=body.payload,
        content_type=body.content_type,
        headers=headers,
        priority=DEFAULT_PRIORITY,
        put_at=died_at,
        counters=Counters(deliveries=letter.delivery_count, redrives=letter.redrive_count),
        first_leased_at=death.first_leased_at,
        origin_queue=letter.source_mailbox,
        origin_id=id,
        history=tuple(
            HistoryEntry(
                died_at,
                HistoryEvent.FAILED,
                letter.source_mailbox,
                letter.delivery_count,
                failure=failure,
                worker=failure.worker,
            )
            for failure in failures
        ),
        deaths=(death,),
    )


def _import_id(letter: DeadLetter[Any], died_at: Instant) -> ItemId:
    digest = blake2b(f"{letter.source_mailbox} {letter.message_id} {died_at}".encode(), digest_size=8).digest()
    return make_id(died_at * NUMBERS_PER_MICROSECOND, int.from_bytes(digest) >> 1)


def _reason(letter: DeadLetter[Any]) -> DeadReason:
    try:
        return DeadReason(letter.reason) if letter.reason else DeadReason.POLICY
    except ValueError:
        raise InvalidParameterError("reason", letter.reason, f"one of {', '.join(DeadReason)}") from None


def _stated_failure(letter: DeadLetter[Any]) -> tuple[Failure, ...]:
    """Return the failure that the fields of a letter describe; an empty tuple if they name no type of error."""
    if not letter.last_error_type:
        return ()
    known = letter.error_class in tuple(ErrorClass)
    failure = failure_from_fields(
        letter.last_error_type.removeprefix("builtins."),
        letter.last_error,
        error_class=ErrorClass(letter.error_class) if known else None,
        worker=letter.worker,
    )
    fingerprint = letter.fingerprint or failure.fingerprint
    return (msgspec.structs.replace(failure, fingerprint=fingerprint, trace_id=letter.trace_id),)


def qualified_name(type_name: str) -> str:
    """Return the name of an exception type with its module, which failures omit for builtins."""
    return f"builtins.{type_name}" if hasattr(builtins, type_name) else type_name


def _request_id(headers: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(headers[REQUEST_ID])
    except (KeyError, ValueError):
        return None


def _trace_id(headers: Mapping[str, str], last: Failure | None) -> str | None:
    """Return the trace id of the last failure, or of the sender: the second part of a `traceparent`."""
    if last is not None and last.trace_id is not None:
        return last.trace_id
    parts = headers.get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 else None
