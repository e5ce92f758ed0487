"""`DeadLetter`: what a dead-letter mailbox gives, a view of a dead item and of its death."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar
from uuid import UUID

from redrive.clock import Instant
from redrive.contract.replies import REPLY_TO, REQUEST_ID
from redrive.mailbox.mailbox_errors import SerializationError
from redrive.model.failure import Failure
from redrive.model.item import Item

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """A message that died, with its body and everything that is known of its failures."""

    message_id: str
    """The id that `send` returned."""
    body: T
    source_mailbox: str
    """The mailbox that it died in."""
    delivery_count: int
    """Deliveries before it died."""
    last_error: str
    last_error_type: str
    """The qualified name of the last error's type; empty if no consumer reported one."""
    dead_lettered_at: datetime
    first_received_at: datetime | None
    """None if it was never delivered."""
    request_id: UUID | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    reason: str = ""
    """Why it died, as in `retries_exhausted`, `worker_lost` or `expired`."""
    failures: tuple[Failure, ...] = ()
    """Every failure on record, oldest first, with tracebacks."""
    fingerprint: str = ""
    """Dead letters with the same fingerprint have the same cause."""
    error_class: str = ""
    worker: str | None = None
    """The consumer that had it last."""
    redrive_count: int = 0


def dead_letter_of(item: Item, body: T) -> DeadLetter[T]:
    """Return the view of a dead item. Raises SerializationError if it has never died."""
    death = item.death
    if death is None:
        raise SerializationError("$", "is not a dead letter: it was put there and never died")
    failures = tuple(entry.failure for entry in item.history if entry.failure is not None)
    last = failures[-1] if failures else None
    return DeadLetter(
        message_id=item.origin_id or item.id,
        body=body,
        source_mailbox=death.queue,
        delivery_count=death.counters.attempts,
        last_error=death.cause.title if last is None else last.text,
        last_error_type="" if last is None else qualified_name(last.type),
        dead_lettered_at=to_datetime(death.at),
        first_received_at=None if death.first_leased_at is None else to_datetime(death.first_leased_at),
        request_id=_request_id(item.headers),
        reply_to=item.headers.get(REPLY_TO),
        trace_id=_trace_id(item.headers, last),
        reason=death.reason.value,
        failures=failures,
        fingerprint=death.cause.fingerprint,
        error_class=death.cause.error_class.value,
        worker=None if last is None else last.worker,
        redrive_count=death.counters.redrives,
    )


def to_datetime(at: Instant) -> datetime:
    """Return an instant as a datetime in UTC, exact to the microsecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)


def qualified_name(type_name: str) -> str:
    """Return the name of an exception type with its module: failures name those of Python without it."""
    return f"builtins.{type_name}" if hasattr(builtins, type_name) else type_name


def _request_id(headers: Mapping[str, str]) -> UUID | None:
    try:
        return UUID(headers[REQUEST_ID])
    except (KeyError, ValueError):
        return None


def _trace_id(headers: Mapping[str, str], last: Failure | None) -> str | None:
    """Return the trace of the last failure, or of the sender: the second part of a `traceparent`."""
    if last is not None and last.trace_id is not None:
        return last.trace_id
    parts = headers.get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 else None
