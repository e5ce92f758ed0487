"""Calls of publishers and workers: put, lease, extend, complete, settle, return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from redrive.clock import Instant
from redrive.contract.base import Given, Rank, StoreCall, TaggedStruct
from redrive.errors import (
    InvalidInput,
    ItemActive,
    ItemHeld,
    ItemMoving,
    QueueGated,
    QueuePaused,
    RedriveError,
    WrongStatus,
)
from redrive.model.breaker import QUEUE
from redrive.model.failure import Failure
from redrive.model.gate import BREAKER_GATE, Gate, opens_at, shut_gate
from redrive.model.holder import Holders, holder_names
from redrive.model.ids import ItemId, Token, item_id_of
from redrive.model.item import NO_OVERRIDES, WAITING_STATUSES, Lease, Overrides, Receipt, Result, Settled, Status
from redrive.model.judge import OutcomeKind, RetryVerdict, Verdict
from redrive.model.limits import DEFAULT_PRIORITY, check_instant
from redrive.model.options import INSTANTS
from redrive.model.queue import Queue
from redrive.model.state_machine import Verb

_Timed = TypeVar("_Timed", bound=TaggedStruct)


class NewItem(TaggedStruct, frozen=True, gc=False, tag=False):
    """An item to be put. The broker has checked all values; a store adds only values that it alone knows."""

    payload: bytes
    content_type: str
    headers: Mapping[str, str] | None = None
    priority: int = DEFAULT_PRIORITY
    delay: int = 0
    """From now until it may be leased."""
    enqueue_at: Instant | None = None
    """The instant from which it may be leased, instead of a delay. One in the past means now."""
    expire_timeout: int | None = None
    """From now until it expires. None takes the queue's."""
    idempotency_key: str | None = None
    held_by: str | None = None
    """The holder that keeps it out of the ready index until Unhold."""
    overrides: Overrides = NO_OVERRIDES
    """Kept with the item unchanged: by redrives, moves to other queues and stores, and imports."""
    source_id: ItemId | None = None
    """The id it had elsewhere. An item whose (queue, source_id) is known is ignored: its receipt is a duplicate."""
    failure: Failure | None = None
    """The failure of an item that failed before its put: it starts as `verdict` says, with failures = 1 and history."""
    verdict: Verdict | None = None
    version: int = 0
    """The version of the settings the verdict was judged by."""
    note: str | None = None
    """The note of the history row of the failure."""
    is_plain: bool = False
    """True if the broker has set only payload, content type, priority and expire_timeout."""
    hold_is_lasting: bool = False
    """True if the hold by `held_by` lasts, as that of Hold(lasting)."""
    expire_at: Instant | None = None
    """The instant at which it expires, instead of expire_timeout; if past, the next sweep. A redrive resets it."""
    is_capture: bool = False
    """True if it failed outside a queue, which uses up no retry of an item that is known by its key."""

    def expire_deadline(self, now: Instant, timeout: int | None) -> Instant | None:
        """Return the instant at which it expires if it is put now into a queue with this expire_timeout."""
        timeout = timeout if self.expire_timeout is None else self.expire_timeout
        return self.expire_at if self.expire_at is not None or timeout is None else Instant(now + timeout)

    @property
    def is_known_again(self) -> bool:
        """True if a second put of it changes nothing. A known key with a failure adds that failure each time."""
        return (self.idempotency_key is not None or self.source_id is not None) and self.failure is None


class StaleSettings(msgspec.Struct, frozen=True):
    """The refusal of a verdict that was judged by stale settings. Nothing was changed; judge again by this queue."""

    queue: Queue


class Put(StoreCall[tuple[Receipt, ...] | StaleSettings], frozen=True, gc=False):
    """→ tuple[Receipt, …] | StaleSettings. One receipt for each item, in order. All are put, or none. At most MAX_PUT.

    A known idempotency key returns the receipt of the first item, with duplicate = True, and puts nothing; with another
    payload (or content type) the call is refused with `IdempotencyConflict`. A key is known for the idempotency_timeout
    that the queue had at the first put. If that was `item`, it is known while its item exists, in any queue, and is not
    completed; then a put makes a new item, and the key belongs to that one. For the puts of Complete, the item that the
    call completes is completed.
    A failure under a known key is never dropped. It depends on the item of the key, in any queue:
    - pending, failed, active, dead or archived: the item gets one more history row and, unless it is leased, one more
      failure. Its status does not change: the verdict is for a new item only. The next delivery is judged by these
      counters and its overrides. With `is_capture` no counter changes; one that waits is put off by the verdict;
    - completed, kept or not, or deleted: the failure is a new item, as `verdict` says, which takes over the key;
    - moving: the call is refused with `ItemMoving`, since the other store may have its copy already.
    `QueueFull` if pending + failed + active would exceed max_size. `QueueNotFound`. Each item gets a new id and goes to
    the end of its priority.
    """

    rank = Rank.PUTS
    takes_space = True

    queue: str
    items: tuple[NewItem, ...]

    @property
    def puts(self) -> tuple[Put, ...]:
        return (self,)

    @property
    def is_repeatable(self) -> bool:
        return all(item.is_known_again for item in self.items)

    @property
    def relies_on_keys(self) -> bool:
        """True if it is repeatable by idempotency keys. Those of a queue may end with its items: then a second put
        makes a new item if the first one was completed in between."""
        return any(item.idempotency_key is not None and item.source_id is None for item in self.items)

    @property
    def runs_beside_others(self) -> bool:
        return all(item.source_id is None and item.failure is None for item in self.items)


class Leased(msgspec.Struct, frozen=True, gc=False):
    """The result of LeaseItems. Without leases, `next_at` is the next instant at which an item may become eligible."""

    leases: Sequence[Lease]
    overdue: bool = False
    next_at: Instant | None = None


class LeaseItems(StoreCall[Leased], frozen=True, gc=False):
    """→ Leased. Up to `limit` eligible items in order, each active under a fresh token until now + timeout.

    Eligible: pending, not held, ready_at ≤ now, not expired, queue not paused. Order: priority (larger first), then
    ready_at, then the order in which they were put or requeued. deliveries and attempts are incremented.

    First, due items of the queue become ready (at most MAINTENANCE_BATCH). If leases or items of the queue have expired
    and `ignore_overdue` is not set, nothing is leased and `overdue` is True: settle those first and call again, the
    last time with ignore_overdue = True. The cost does not grow with the number of items in any status.

    The gates of the queue (`redrive.model.gate`) limit how many are leased, exactly and across all processes. While
    they let no lease through, the queue gives nothing, like a paused one, and `next_at` is when they open; None: not
    before they are changed.
    """

    rank = Rank.LEASES
    runs_beside_others = True

    queue: str
    limit: int
    worker: str | None = None
    timeout: int | None = None
    """None takes the queue's lease_timeout."""
    ignore_overdue: bool = False


class LeaseByIds(StoreCall[tuple[Lease | RedriveError, ...]], frozen=True):
    """→ tuple[Lease | RedriveError, …], one for each id, in order: these items, now. At most MAX_BATCH ids.

    An item that is pending or failed is leased, due or not, at any position of its queue; everything else is as with
    LeaseItems. Ids are independent. A former id is resolved to the item; an item that two of the ids mean is leased
    for the first, and active for the second. Otherwise `ItemNotFound`; `ItemActive`, even if the lease has expired:
    settle that first; `ItemHeld`, also for a dead item with lasting holders; `WrongStatus` for any other status, and
    for an item that has expired; `QueuePaused`; `QueueGated` while the gates of the queue let no lease through. Leases
    by id count like all others.
    A server may answer for the first ids only: ask again for the rest.

    With `include_dead` a dead item is leased too, regardless of its expire deadline and of max_size.
    `IdempotencyConflict` as with REDRIVE. Its lease has `dead_reason`. Until the delivery ends the item is active, and
    counted as active; it stays a dead letter, found as one, and a member of its group; retention and operations skip
    it. If the delivery completes, it is completed and no longer a dead letter: DONE in the feed. With any other
    outcome, the item is dead again: the outcome is counted and in the history, and nothing else has changed. Its last
    death stays the same, it does not move and is not answered.
    """

    rank = Rank.LEASES_BY_ID

    ids: tuple[ItemId, ...]
    worker: str | None = None
    timeout: int | None = None
    """None takes the lease_timeout of the item's queue."""
    include_dead: bool = False

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return self.ids


class TokenCall(StoreCall[Given], Generic[Given], frozen=True):
    """The base of calls on the item that is active under a token."""

    rank = Rank.SETTLES

    token: Token

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return (item_id_of(self.token),)


class Extend(TokenCall[Instant], frozen=True):
    """→ Instant, the new deadline: now + timeout. The token stays the same."""

    is_repeatable = True
    runs_beside_others = True

    timeout: int | None = None
    """None takes the queue's lease_timeout."""
    queue: str | None = None
    """`WrongQueue` if the item is in another one. None: any queue."""


class Complete(TokenCall[Settled], frozen=True, gc=False):
    """→ Settled. The item is completed: kept with its result for keep_completed, or removed.

    Completion, result and `puts` are one transaction: if any put is refused, so is the completion, with that error.
    The puts bring no failures.
    `PayloadTooLarge` if the result exceeds the queue's max_payload_size.
    With `keep_result`, GetResult returns the result for that long, regardless of the item and its queue. Without a
    result, nothing is kept.
    `reply` is put into the queue that the item names for replies (`redrive.contract.replies`), in the same transaction.
    `PayloadTooLarge` if it exceeds the max_payload_size of that queue. If the queue is gone or full, the rest is not
    refused: `Settled.reply_refused` says why. `InvalidInput` if the item names no such queue, or is a dead letter.
    """

    result: Result | None = None
    puts: tuple[Put, ...] = ()
    keep_result: int | None = None
    queue: str | None = None
    """As in Extend."""
    reply: Result | None = None

    @property
    def runs_beside_others(self) -> bool:
        return all(put.runs_beside_others for put in self.puts)


class Reply(TokenCall[Receipt], frozen=True):
    """→ Receipt. Puts a reply into the queue that the item names for them; the lease stays.

    If that queue is in another store (`name@store`), the reply is put here and moves there. The errors of Put for that
    queue; `InvalidInput` if the item names none, or is a dead letter.
    """

    runs_beside_others = True
    takes_space = True

    body: Result
    queue: str | None = None
    """As in Extend."""


class Settle(TokenCall[Settled | StaleSettings], frozen=True, gc=False):
    """→ Settled | StaleSettings. Any other outcome of a delivery: the verdict is applied and a history row written.

    Counts one failure (FAILED) or one loss (LOST). RETURNED is an uncounted release: attempts is decremented, never
    below 0, and no failure is counted, although history and feed record the given one; it never brings Dead.
    EXTRA_FAILED is a failure in the history, the feed and the totals of the queue, but failures of the item stays the
    same: a run beyond those of its retry policy.
    RetryVerdict(failed): failed until now + delay. RetryVerdict(pending): pending at the end of the queue from now +
    delay. Either is held by the names in `held_by` from then on, as by Hold(lasting). Dead: a death record is written;
    the item moves to `to` as a pending item with a new id, source_id = its former id, counters 0 except deliveries and
    redrives, no expiry, and all its history; or stays, with status dead; or is deleted with an audit row. Moves ignore
    max_size and pause of the target. If `to` is in another store (`name@store`), it keeps its id and its queue, and is
    moving until FinishMove: with those counters, no expiry and no hold; a dead letter of its queue that cannot be
    leased or changed. LOST is accepted only while deadline ≤ now, so that an extension always wins; with
    `worker_is_gone` regardless of the deadline, from a caller that knows that the worker is gone. A failure that comes
    with a loss is in the history, and is the cause of a death.
    A death of an item that names a queue for replies is answered there (`replies.death_reply`) in the same transaction,
    by whichever call it dies; not a second time if it dies as a dead letter. A refused reply does not refuse the death.
    An item that was leased although it is dead is dead again (LeaseByIds), regardless of the contents of Dead;
    `InvalidInput` for a RetryVerdict, unless it is returned.
    `InvalidInput` if the verdict cannot follow the outcome (`judge.check_verdict`); `QueueNotFound` without `to`.
    With `close_until`, the peer requested a pause until then: the gate "retry_after" of the item's queue is closed in
    the same transaction (`gate.close_for_retry_after`). The version stays: no verdict depends on it.
    """

    outcome_kind: OutcomeKind
    verdict: Verdict
    version: int
    failure: Failure | None = None
    note: str | None = None
    worker_is_gone: bool = False
    close_until: Instant | None = None

    @property
    def runs_beside_others(self) -> bool:
        return isinstance(self.verdict, RetryVerdict) and self.close_until is None


class ReturnLease(TokenCall[Settled], frozen=True):
    """→ Settled. An uncounted release: attempts is decremented, never below 0; pending at its old position, scheduled
    until its time if that is to come; dead again if it was leased although it is dead.

    Writes a history row only if there is a note.
    """

    runs_beside_others = True

    note: str | None = None
    queue: str | None = None
    """As in Extend."""


SettleCall = Complete | Settle | ReturnLease | Extend | Reply
ItemCall = Put | SettleCall | LeaseByIds | LeaseItems


def leases_of(result: object) -> Sequence[Lease]:
    """Return the leases in the result of a call, in order."""
    if isinstance(result, Leased):
        return result.leases
    return [each for each in result if isinstance(each, Lease)] if isinstance(result, tuple) else ()


def lease_returns(results: Iterable[object]) -> list[ReturnLease]:
    """Return the calls that release the leases among results whose caller is gone: the items never ran."""
    return [ReturnLease(lease.token) for result in results for lease in leases_of(result)]


def check_lease_by_id(
    call: LeaseByIds,
    queue: Queue,
    id: ItemId,
    status: Status,
    worker: str | None,
    holders: Holders,
    expired: bool,
    now: Instant,
) -> None:
    """Raise unless the call may lease an item of that queue in this state. `worker` is its current holder."""
    allowed = (*WAITING_STATUSES, Status.DEAD) if call.include_dead else WAITING_STATUSES
    if status is Status.ACTIVE:
        raise ItemActive(id, worker)
    if status not in allowed:
        raise WrongStatus(Verb.LEASE.value, id, status.value, allowed)
    if holders:
        raise ItemHeld(id, holder_names(holders))
    if expired and status is not Status.DEAD:
        raise WrongStatus(Verb.LEASE.value, id, status.value, ("not past their expire deadline",))
    if queue.paused:
        raise QueuePaused(queue.name)
    if (gate := shut_gate(queue.gates, now)) is not None:
        raise QueueGated(queue.name, opens_at(queue.gates, now), _reason(queue, gate))


def _reason(queue: Queue, gate: Gate) -> str:
    """Return the reason why a gate of the queue is shut."""
    if gate.name != BREAKER_GATE:
        return "its peer asked for it by a Retry-After"
    return next((each.reason for each in queue.breakers if each.kind == QUEUE), "its circuit breaker is open")


def has_stale_verdict(put: Put, queue: Queue) -> bool:
    """Return whether a put carries a verdict that was judged by stale settings."""
    return any(item.verdict is not None and item.version != queue.version for item in put.items)


def check_times(given: _Timed) -> _Timed:
    """Return the struct, or raise if one of its times is given as duration and instant, or is out of range."""
    for name, duration in INSTANTS.items():
        if (at := getattr(given, name, None)) is not None:
            if getattr(given, duration):
                raise InvalidInput(f"an item has {duration} or {name}, not both; leave one out")
            check_instant(name, at)
    return given


def ready_instant(now: Instant, delay: int, enqueue_at: Instant | None) -> Instant:
    """Return the instant from which an item may be leased that is put or rescheduled now."""
    return Instant(now + delay if enqueue_at is None else max(now, enqueue_at))


def check_failure(item: NewItem, *, alone: bool) -> None:
    """Raise unless failure and verdict come together, in a put that is `alone` and not part of another call."""
    if (item.failure is None) is not (item.verdict is None):
        raise InvalidInput("an item that has failed already is put with the failure and a verdict on it")
    if item.note is not None and item.failure is None:
        raise InvalidInput("an item that has not failed yet has no history to note anything in")
    if item.failure is not None and not alone:
        raise InvalidInput("what is put with another call has not failed yet; put it alone")


def takes_failure(id: ItemId, status: Status | None, moving_to: str | None) -> bool:
    """Return whether the item gets a failure that is put under its key; otherwise the failure is a new item. Its status
    is None if it was deleted. Raises ItemMoving."""
    if moving_to is not None:
        raise ItemMoving(id, moving_to)
    return status is not None and status is not Status.COMPLETED
