"""An item: one unit of work, where it stands, and everything that happened to it."""

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
    """The place of an item. It is in exactly one at every instant and every crash point."""

    PENDING = "pending"
    """Waits for a worker: ready, scheduled for later, or held."""
    FAILED = "failed"
    """The last attempt failed and another one is scheduled at `ready_at`."""
    ACTIVE = "active"
    """A worker holds a lease on it."""
    COMPLETED = "completed"
    """Done, and kept for `keep_completed`."""
    DEAD = "dead"
    """Will not be tried again by itself. It is kept until a person or a rule says otherwise."""
    ARCHIVED = "archived"
    """Put aside, or dropped; it can be restored."""
    MOVING = "moving"
    """On its way to a queue in another store."""


WAITING_STATUSES = (Status.PENDING, Status.FAILED)
"""Statuses of items that will be tried by themselves and that nobody works on."""
OPEN_STATUSES = (*WAITING_STATUSES, Status.ACTIVE)
"""Statuses of items that `max_size` counts."""


class Counters(msgspec.Struct, frozen=True, gc=False):
    """What the judge counts.

    All but `deliveries` and `redrives` start anew when a person retries or redrives the item.
    """

    deliveries: int = 0
    """Leases so far. Never goes down."""
    attempts: int = 0
    """Leases that count: a delivery that never ran is taken back."""
    failures: int = 0
    """Failures reported."""
    losses: int = 0
    """Leases that ran out."""
    redrives: int = 0
    """Times it was brought back by a person."""


class Overrides(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of this item that differ from those of its queue, under the same names. None takes the queue's."""

    # Stores and exports of development versions may have `retry_attempts` too: a key that is not here is ignored.
    max_attempts: int | None = None
    max_losses: int | None = None
    retry: RetryPolicy | None = None
    """Replaces the queue's as a whole."""


NO_OVERRIDES = Overrides()


class HistoryEvent(StrEnum):
    """What a row of an item's history tells."""

    FAILED = "failed"
    """A worker reported a failure."""
    LOST = "lost"
    """The lease ran out."""
    RELEASED = "released"
    """A worker gave the item back, counted."""
    RETURNED = "returned"
    """A worker gave the item back, not counted, with an error text."""
    EXPIRED = "expired"
    """The expire deadline passed."""
    BURIED = "buried"
    """A worker or a person made it dead."""
    REDRIVEN = "redriven"
    """A person retried or redrove it."""
    UNDONE = "undone"
    """A person took the redrive before it back."""
    MOVED = "moved"
    """A person moved it to another queue."""
    RESCHEDULED = "rescheduled"
    """A person changed from when it may be leased."""
    ARCHIVED = "archived"
    """A person put it aside, and it was no dead letter."""
    DROPPED = "dropped"
    """A person dropped it."""
    RESTORED = "restored"
    """A person took it out of the archive, after one of these two."""


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thing that happened: an attempt that did not complete, or what a person did."""

    at: Instant
    event: HistoryEvent
    queue: str
    delivery: int
    """`deliveries` at that time: which delivery this was."""
    failure: Failure | None = None
    worker: str | None = None
    actor: str | None = None
    note: str | None = None
    operation: str | None = None
    """The operation it was part of."""
    from_status: Status | None = None
    """What the item was before a person changed it, in `queue`. Of a drop: what it will be if that is undone."""
    from_dead_letter: bool = False
    """It was a dead letter until this brought it back."""
    to: str | None = None
    """Where a person took it, if that was in another store: `name@store`."""

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
    """The id the item had when it died."""
    counters: Counters
    cause: Cause
    first_leased_at: Instant | None = None

    def __str__(self) -> str:
        after = pluralize(self.counters.attempts, "attempt")
        return f"{format_instant(self.at)} {self.reason} in {self.queue} after {after}: {self.cause.title}"


class Result(msgspec.Struct, frozen=True):
    """What a completion carried."""

    payload: bytes
    content_type: str

    @property
    def value(self) -> Any:
        """The Python value that the worker gave."""
        return decode_payload(self.payload, self.content_type)


class KeptResult(Result, frozen=True):
    """A result that outlives its item, with the queues that decide who may read it."""

    queue: str
    """Where the item was completed."""
    put_to: str | None = None
    """Where it was put first, if it has moved since."""


class Item(msgspec.Struct, frozen=True):
    """An item as it is now, with its history."""

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
    """From when it may be leased (pending, failed)."""
    expire_deadline: Instant | None = None
    held_by: tuple[str, ...] = ()
    """The names that keep it from being leased. Of a dead or archived item, those that will once it is redriven
    or restored."""
    lasting_holders: tuple[str, ...] = ()
    """Those of them that last until they are removed, also through a retry, a redrive or a death."""
    worker: str | None = None
    """Who holds the lease (active)."""
    lease_deadline: Instant | None = None
    """From when a sweep may take the lease (active)."""
    first_leased_at: Instant | None = None
    dead_reason: DeadReason | None = None
    """Why it died (dead, or archived as a dead letter; active, if it was leased although it is dead)."""
    ended_at: Instant | None = None
    """When it was completed or died (completed, dead, archived after that)."""
    result: Result | None = None
    """What `complete` carried (completed, archived after that)."""
    idempotency_key: str | None = None
    overrides: Overrides = NO_OVERRIDES
    source_id: ItemId | None = None
    """The id before the last move."""
    origin_id: ItemId | None = None
    """The first id, where the item has moved."""
    origin_queue: str | None = None
    earlier_ids: tuple[ItemId, ...] = ()
    """Every id it had before its moves, oldest first. Each of them still finds it."""
    history: tuple[HistoryEntry, ...] = ()
    """The first 5 and the last 45 entries, oldest first."""
    history_omitted: int = 0
    """How many entries between those are only counted."""
    deaths: tuple[Death, ...] = ()
    """Every death, oldest first."""
    moving_to: str | None = None
    """Where it goes (moving): `name@store`."""
    moving_since: Instant | None = None
    home_store: str | None = None
    """The store that it came from as a dead letter, and that a redrive takes it back to."""

    def __str__(self) -> str:
        # The repr is complete, with payload and tracebacks: too long for a log, and not for everybody's eyes.
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
        """Its last death, whether it still is dead, lies in a dead queue, or was brought back."""
        return self.deaths[-1] if self.deaths else None

    @property
    def dropped(self) -> HistoryEntry | None:
        """Who dropped it and when, while it can be restored."""
        last = self.history[-1] if self.history and self.status is Status.ARCHIVED else None
        return last if last is not None and last.event is HistoryEvent.DROPPED else None

    @property
    def last_failure(self) -> Failure | None:
        """The newest failure on record."""
        return next((entry.failure for entry in reversed(self.history) if entry.failure), None)


class Lease(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The right of one worker to one item until a deadline. The token proves it.

    The counters include this delivery and stay as they are for as long as the token is valid.
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
    """Why it died, if it was leased although it is dead. It is dead again unless this delivery completes it."""

    def __str__(self) -> str:
        # Without the token, which is the right to the item and does not belong in a log.
        return f"Lease(id={self.id!r}, queue={self.queue!r}, attempts={self.attempts}, worker={self.worker!r})"

    @property
    def value(self) -> Any:
        """The payload as the Python value that was put."""
        return decode_payload(self.payload, self.content_type)

    @property
    def counters(self) -> Counters:
        """The counters as one value."""
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What `put` returns once the item is on disk."""

    id: ItemId
    duplicate: bool = False
    """The idempotency key was known: this is the item that was put first."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """How an item stands after a delivery ended or a person changed it."""

    id: ItemId
    """Its id now: a new one where it moved to another queue."""
    queue: str
    status: Status | None
    """None where it was removed."""
    counters: Counters
    ready_at: Instant | None = None
    dead_reason: DeadReason | None = None
    source_id: ItemId | None = None
    """The id before the move."""
    reply_refused: str | None = None
    """Why the reply that belongs to it was not put."""
    undo_until: Instant | None = None
    """Until when it can be restored at least, where it was dropped."""
