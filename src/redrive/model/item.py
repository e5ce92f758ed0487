"""An item: one unit of work, its status, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.death import Cause, DeadReason
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.payload import decode_payload
from redrive.model.retry_policy import RetryPolicy
from redrive.model.text import format_elapsed, format_instant, pluralize


class Status(StrEnum):
    """The status of an item, exactly one at every instant, also after a crash."""

    PENDING = "pending"
    """It waits for a worker: ready, scheduled for later, or held."""
    FAILED = "failed"
    """The last attempt failed, and the next one is scheduled at `ready_at`."""
    ACTIVE = "active"
    """A worker holds a lease on it."""
    COMPLETED = "completed"
    """It is completed, and kept for `keep_completed`."""
    DEAD = "dead"
    """It is not retried automatically, and kept until an operator or a rule changes it."""
    ARCHIVED = "archived"
    """It is archived or dropped, and can be restored."""
    MOVING = "moving"
    """It is moving to a queue in another store."""


WAITING_STATUSES = (Status.PENDING, Status.FAILED)
"""Statuses of items that are not leased and are delivered automatically."""
OPEN_STATUSES = (*WAITING_STATUSES, Status.ACTIVE)
"""Statuses of items that `max_size` counts."""


class Counters(msgspec.Struct, frozen=True, gc=False):
    """The counters by which an item is judged.

    All except `deliveries` and `redrives` are reset when an operator retries or redrives the item.
    """

    deliveries: int = 0
    """The number of leases so far, which never decreases."""
    attempts: int = 0
    """The number of leases that count; one that the worker returned without running the item is subtracted."""
    failures: int = 0
    """The number of reported failures."""
    losses: int = 0
    """The number of expired leases."""
    redrives: int = 0
    """The number of retries and redrives by an operator."""


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of one item that override those of its queue, under the same names; None: the queue's setting."""

    # Stores and exports of development versions may also have `retry_attempts`: unknown keys are ignored.
    max_attempts: int | None = None
    max_losses: int | None = None
    retry: RetryPolicy | None = None
    """It replaces the queue's policy as a whole."""


NO_OVERRIDES = Overrides()


class HistoryEvent(StrEnum):
    """The kind of an entry in an item's history."""

    FAILED = "failed"
    """A worker reported a failure."""
    LOST = "lost"
    """The lease expired."""
    RELEASED = "released"
    """A worker released the item; the attempt counts."""
    RETURNED = "returned"
    """A worker returned the item with an error text; the attempt does not count."""
    EXPIRED = "expired"
    """The expire deadline passed."""
    BURIED = "buried"
    """A worker or an operator buried it."""
    REDRIVEN = "redriven"
    """An operator retried or redrove it."""
    UNDONE = "undone"
    """An operator undid the previous redrive."""
    MOVED = "moved"
    """An operator moved it to another queue."""
    RESCHEDULED = "rescheduled"
    """An operator changed the instant from which it may be leased."""
    ARCHIVED = "archived"
    """An operator archived it, and it was no dead letter."""
    DROPPED = "dropped"
    """An operator dropped it."""
    RESTORED = "restored"
    """An operator restored it after one of the previous two."""


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One event of an item: an attempt that did not complete, or a change by an operator."""

    at: Instant
    event: HistoryEvent
    queue: str
    delivery: int
    """The value of `deliveries` at that time, which identifies the delivery."""
    failure: Failure | None = None
    worker: str | None = None
    actor: str | None = None
    note: str | None = None
    operation: str | None = None
    """The operation that the change was part of."""
    from_status: Status | None = None
    """The status before a change by an operator, in `queue`. For a drop: the status after its undo."""
    from_dead_letter: bool = False
    """True if it was a dead letter until this redrive or retry."""
    to: str | None = None
    """The target queue of a change by an operator, if it is in another store: `name@store`."""

    def __str__(self) -> str:
        who = self.worker or self.actor
        told = self.failure.title if self.failure else self.note
        by, said = f" by {who}" if who else "", f": {told}" if told else ""
        ran = self.failure.duration if self.failure else None
        after = "" if ran is None else f" after {format_elapsed(ran)}"
        return f"{format_instant(self.at)} {self.event} in {self.queue}, delivery {self.delivery}{by}{after}{said}"


class Death(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One death. The record is kept across moves and redrives."""

    at: Instant
    reason: DeadReason
    queue: str
    namespace: str
    store: str
    id: ItemId
    """The id of the item at its death."""
    counters: Counters
    cause: Cause
    first_leased_at: Instant | None = None

    def __str__(self) -> str:
        after = pluralize(self.counters.attempts, "attempt")
        return f"{format_instant(self.at)} {self.reason} in {self.queue} after {after}: {self.cause.title}"


class Result(msgspec.Struct, frozen=True):
    """The result of a completed item."""

    payload: bytes
    content_type: str

    @property
    def value(self) -> Any:
        """The Python value that the worker returned."""
        return decode_payload(self.payload, self.content_type)


class KeptResult(Result, frozen=True):
    """A result that is kept after its item, with the queues by which read permission is checked."""

    queue: str
    """The queue in which the item was completed."""
    put_to: str | None = None
    """The queue to which it was first put, if it has moved since."""


class Item(msgspec.Struct, frozen=True):
    """The current state of an item, with its history."""

    id: ItemId
    queue: str
    status: Status
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    priority: int
    put_at: Instant
    counters: Counters
    ready_at: Instant | None = None
    """The instant from which it may be leased (pending, failed)."""
    expire_deadline: Instant | None = None
    held_by: tuple[str, ...] = ()
    """The names that prevent it from being leased. Of a dead or archived item, those that apply once it is redriven
    or restored."""
    lasting_holders: tuple[str, ...] = ()
    """The names in `held_by` that stay until they are removed, also through a retry, a redrive or a death."""
    worker: str | None = None
    """The worker that holds the lease (active)."""
    lease_deadline: Instant | None = None
    """The instant from which a sweep may reclaim the lease (active)."""
    first_leased_at: Instant | None = None
    dead_reason: DeadReason | None = None
    """The reason of its death (dead, or archived as a dead letter; active, if it was leased although it is dead)."""
    ended_at: Instant | None = None
    """The instant of its completion or death (completed, dead, archived after that)."""
    result: Result | None = None
    """The result passed to `complete` (completed, archived after that)."""
    idempotency_key: str | None = None
    overrides: Overrides = NO_OVERRIDES
    source_id: ItemId | None = None
    """The id before the last move."""
    origin_id: ItemId | None = None
    """The first id, if the item has moved."""
    origin_queue: str | None = None
    earlier_ids: tuple[ItemId, ...] = ()
    """All ids from before its moves, oldest first. Each of them still finds it."""
    history: tuple[HistoryEntry, ...] = ()
    """The first 5 and the last 45 entries, oldest first."""
    history_omitted: int = 0
    """The number of entries between those, which are only counted."""
    deaths: tuple[Death, ...] = ()
    """All deaths, oldest first."""
    moving_to: str | None = None
    """The target queue (moving): `name@store`."""
    moving_since: Instant | None = None
    home_store: str | None = None
    """The store that it came from as a dead letter, and to which a redrive returns it."""
    archived_from: Status | None = None
    """Its status before it was archived or dropped (archived): dead for a dead letter."""
    damage: str | None = None
    """The place of a stored value of it that cannot be read. A substitute is shown, and manual changes are refused,
    except for a drop."""

    def __str__(self) -> str:
        # The repr is complete, with payload and tracebacks: too long for a log, and possibly confidential.
        died = "" if self.dead_reason is None else f", dead_reason={self.dead_reason.value!r}"
        return (
            f"Item(id={self.id!r}, queue={self.queue!r}, status={self.status.value!r}, "
            f"attempts={self.counters.attempts}{died})"
        )

    @property
    def value(self) -> Any:
        """The payload as the Python value that was put."""
        return decode_payload(self.payload, self.content_type)

    @property
    def death(self) -> Death | None:
        """Its last death, even if it is in a dead queue or was redriven since."""
        return self.deaths[-1] if self.deaths else None

    @property
    def dropped(self) -> HistoryEntry | None:
        """The entry of its drop, while it can be restored; else None."""
        last = self.history[-1] if self.history and self.status is Status.ARCHIVED else None
        return last if last is not None and last.event is HistoryEvent.DROPPED else None

    @property
    def last_failure(self) -> Failure | None:
        """The newest failure on record."""
        return next((entry.failure for entry in reversed(self.history) if entry.failure), None)


class Lease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The right of one worker to one item until a deadline. The token proves it.

    The counters include this delivery and do not change while the token is valid.
    """

    id: ItemId
    token: Token
    queue: str
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    priority: int
    put_at: Instant
    deliveries: int
    attempts: int
    failures: int
    losses: int
    redrives: int
    leased_at: Instant
    deadline: Instant
    first_leased_at: Instant
    expire_deadline: Instant | None
    overrides: Overrides
    worker: str | None
    dead_reason: DeadReason | None = None
    """The reason of its death, if it was leased although it is dead. It is dead again unless it is completed."""

    def __str__(self) -> str:
        # Without the token, which authorizes changes of the item and does not belong in a log.
        return f"Lease(id={self.id!r}, queue={self.queue!r}, attempts={self.attempts}, worker={self.worker!r})"

    @property
    def value(self) -> Any:
        """The payload as the Python value that was put."""
        return decode_payload(self.payload, self.content_type)

    @property
    def counters(self) -> Counters:
        """The counters as one value."""
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)

    @property
    def is_suspect(self) -> bool:
        """True after a loss: the item may have killed its worker, and runs apart from items that are no suspects."""
        return self.losses > 0


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The result of `put`, returned once the item is on disk."""

    id: ItemId
    duplicate: bool = False
    """True if the idempotency key was known: the id is that of the first item."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The state of an item after the outcome of a delivery or a change by an operator."""

    id: ItemId
    """Its current id: a new one if it moved to another queue."""
    queue: str
    status: Status | None
    """None if it was removed."""
    counters: Counters
    ready_at: Instant | None = None
    dead_reason: DeadReason | None = None
    source_id: ItemId | None = None
    """The id before the move."""
    reply_refused: str | None = None
    """The reason why the reply to it was not put."""
    undo_until: Instant | None = None
    """The instant until which it can at least be restored, if it was dropped."""
