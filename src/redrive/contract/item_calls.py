"""Calls of publishers and workers: put, lease, extend, complete, settle, return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from redrive.clock import Instant
from redrive.contract.base import TaggedStruct
from redrive.errors import InvalidInput, ItemMoving
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.item import NO_OVERRIDES, Lease, Overrides, Result, Status
from redrive.model.judge import OutcomeKind, Verdict
from redrive.model.limits import DEFAULT_PRIORITY
from redrive.model.queue import Queue


class NewItem(TaggedStruct, frozen=True, gc=False, tag=False):
    """An item to be put. Values were checked by the broker; a store only adds what it alone knows."""

    payload: bytes
    content_type: str
    headers: Mapping[str, str] | None = None
    priority: int = DEFAULT_PRIORITY
    delay: int = 0
    """From now until it may be leased."""
    enqueue_at: Instant | None = None
    """From when it may be leased, instead of a delay. One in the past means now."""
    expire_timeout: int | None = None
    """From now until it expires. None takes the queue's."""
    idempotency_key: str | None = None
    held_by: str | None = None
    """Keeps it out of the ready index until Unhold."""
    overrides: Overrides = NO_OVERRIDES
    """Kept with the item unchanged: by redrives, moves to other queues and stores, and imports."""
    source_id: ItemId | None = None
    """The id it had elsewhere. An item whose (queue, source_id) is known is ignored: its receipt is a duplicate."""
    failure: Failure | None = None
    """It has failed once already, outside: it is born as `verdict` says, with failures = 1 and this in its history."""
    verdict: Verdict | None = None
    version: int = 0
    """The version of the settings the verdict was judged by."""
    note: str | None = None
    """What the history says of the failure beside it."""
    is_plain: bool = False
    """The broker's word that nothing but payload, content type, priority and expire_timeout is set."""


class Put(TaggedStruct, frozen=True, gc=False):
    """→ tuple[Receipt, …], one for each item, in order; or StaleSettings. All are put, or none. At most MAX_PUT items.

    A known idempotency key, not expired, returns the receipt of the first item, with duplicate = True, and puts
    nothing; with another payload (or content type) the call is refused with `IdempotencyConflict`.
    A failure under a known key is never dropped. It depends on the item of the key, in any queue:
    - pending, failed, active, dead or archived: the item gets one more history row and, unless it is leased, one more
      failure. Its status does not change: the verdict is for a new item only. The next delivery is judged by these
      counters and by the overrides of that item;
    - completed, kept or not, or deleted: the failure is a new item, as `verdict` says, and the key belongs to that one
      from now on;
    - moving: the call is refused with `ItemMoving`, since the other store may have its copy already.
    `QueueFull` if pending + failed + active would exceed max_size. `QueueNotFound`. Each item gets a new id and goes to
    the end of its priority.
    """

    queue: str
    items: tuple[NewItem, ...]


class LeaseItems(TaggedStruct, frozen=True, gc=False):
    """→ Leased. Up to `limit` eligible items in order, each active under a fresh token until now + timeout.

    Eligible: pending, not held, ready_at ≤ now, not expired, queue not paused. Order: priority (larger first), then
    ready_at, then the order in which they were put or requeued. deliveries and attempts are incremented.

    First, due items of the queue become ready (at most MAINTENANCE_BATCH). If leases or items of the queue have expired
    and `ignore_overdue` is not set, nothing is leased and `overdue` is True: settle those first and call again, the
    last time with ignore_overdue = True. The cost does not grow with the number of items in any status.
    """

    queue: str
    limit: int
    worker: str | None = None
    timeout: int | None = None
    """None takes the queue's lease_timeout."""
    ignore_overdue: bool = False


class Leased(msgspec.Struct, frozen=True, gc=False):
    """What LeaseItems gave. With no leases, `next_at` is the next instant at which something may become eligible."""

    leases: Sequence[Lease]
    overdue: bool = False
    next_at: Instant | None = None


class Extend(TaggedStruct, frozen=True):
    """→ Instant, the new deadline: now + timeout. The token stays the same."""

    token: Token
    timeout: int | None = None
    """None takes the queue's lease_timeout."""
    queue: str | None = None
    """`WrongQueue` where the item is in another one. None: whichever it is in."""


class Complete(TaggedStruct, frozen=True, gc=False):
    """→ Settled. The item is completed: kept with its result for keep_completed, or removed.

    Completion, result and `puts` are one transaction: if any put is refused, so is the completion, with that error.
    The puts bring no failures.
    `PayloadTooLarge` if the result exceeds the queue's max_payload_size.
    With `keep_result`, GetResult returns the result for that long, regardless of the item and its queue. Without a
    result, nothing is kept.
    `reply` is put into the queue that the item names for replies (`redrive.contract.replies`), in the same transaction.
    If that is refused (queue gone, full, payload too large), the rest is not: `Settled.reply_refused` says why.
    `InvalidInput` if the item names no such queue, or is a dead letter.
    """

    token: Token
    result: Result | None = None
    puts: tuple[Put, ...] = ()
    keep_result: int | None = None
    queue: str | None = None
    """As in Extend."""
    reply: Result | None = None


class Reply(TaggedStruct, frozen=True):
    """→ Receipt. Puts a reply into the queue that the item names for them; the lease stays.

    If that queue is in another store (`name@store`), the reply is put here and moves there. The errors of Put for that
    queue; `InvalidInput` if the item names none, or is a dead letter.
    """

    token: Token
    body: Result
    queue: str | None = None
    """As in Extend."""


class Settle(TaggedStruct, frozen=True):
    """→ Settled | StaleSettings. The delivery ended otherwise: the verdict is applied and a history row written.

    Counts one failure (FAILED) or one loss (LOST). RetryVerdict(failed): failed until now + delay.
    RetryVerdict(pending): pending at the end of the queue from now + delay. Dead: a death record is written; the item
    moves to `to` as a pending item with a new id, source_id = its former id, counters 0 except deliveries and redrives,
    no expiry, and all its history; or stays, with status dead; or is deleted with an audit row. Moves ignore max_size
    and pause of the target. If `to` is in another store (`name@store`), it keeps its id and its queue, and is moving
    until FinishMove: with those counters, no expiry and no hold; a dead letter of its queue that cannot be leased or
    changed. LOST is accepted only while deadline ≤ now, so that an extension always wins; with `worker_is_gone`
    regardless of the deadline, from a caller that knows that the worker is gone. A failure that comes with a loss is in
    the history, and is the cause of a death.
    A death of an item that names a queue for replies is answered there (`replies.death_reply`) in the same transaction,
    by whichever call it dies; not a second time if it dies as a dead letter. A refused reply does not refuse the death.
    `InvalidInput` if the verdict cannot follow the outcome (`judge.check_verdict`); `QueueNotFound` without `to`.
    """

    token: Token
    outcome_kind: OutcomeKind
    verdict: Verdict
    version: int
    failure: Failure | None = None
    note: str | None = None
    worker_is_gone: bool = False


class ReturnLease(TaggedStruct, frozen=True):
    """→ Settled. An uncounted release: attempts is decremented, never below 0; pending at its old position.

    Writes a history row only if there is a note.
    """

    token: Token
    note: str | None = None
    queue: str | None = None
    """As in Extend."""


class StaleSettings(msgspec.Struct, frozen=True):
    """The verdict was judged by settings that are no longer the newest. Nothing was changed; judge again by these."""

    queue: Queue


def lease_returns(results: Iterable[object]) -> list[ReturnLease]:
    """Return the calls that return the leases among results whose caller is gone: the items never ran."""
    return [ReturnLease(lease.token) for result in results if isinstance(result, Leased) for lease in result.leases]


def has_stale_verdict(put: Put, queue: Queue) -> bool:
    """Whether a put carries a verdict that was judged by settings which are no longer the newest."""
    return any(item.verdict is not None and item.version != queue.version for item in put.items)


def check_failure(item: NewItem, *, alone: bool) -> None:
    """Raise unless a failure comes with the verdict on it, in a put that is `alone` and no part of another call."""
    if (item.failure is None) is not (item.verdict is None):
        raise InvalidInput("an item that has failed already is put with the failure and a verdict on it")
    if item.note is not None and item.failure is None:
        raise InvalidInput("an item that has not failed yet has no history to note anything in")
    if item.failure is not None and not alone:
        raise InvalidInput("what is put with another call has not failed yet; put it alone")


def takes_failure(id: ItemId, status: Status | None, moving_to: str | None) -> bool:
    """Whether the item gets a failure that is put under its key; otherwise the failure is a new item. None: it is gone.

    Raises ItemMoving.
    """
    if moving_to is not None:
        raise ItemMoving(id, moving_to)
    return status is not None and status is not Status.COMPLETED
