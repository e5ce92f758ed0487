"""The contract between the broker and a store.

A store takes a batch of calls, carries them out in ONE atomic, durable transaction, and returns one result for each.
It never waits, never judges, and holds no state that a crash would lose.

    commit([Put(…), Complete(…), LeaseItems(…)])  →  Commit(results, arrivals, now)
    read(GetItem(…))                              →  Item

Rules for every store:

- **One place.** At every instant, and after a crash at any point, an item has exactly one status.
- **Durable.** When `commit` returns, its effects survive a crash and a power cut, unless the store was opened with
  relaxed durability.
- **One instant.** A transaction has one `now`: the one given, else the store's own clock. Delays are durations; the
  store makes instants of them.
- **One bad call fails alone.** A refusal is a result: an instance of `RedriveError`, returned and not raised. It
  changed nothing and does not disturb its neighbours. `commit` raises only when the store itself cannot serve the
  batch (`StoreError`, or `Closed` after `close`: nothing was changed; `OutcomeUnknown`: all or nothing was).
- **Order.** Calls of one batch are concurrent. They take effect by kind in this order: queues, puts, held items,
  settles, changes by hand, upkeep, leases; within a kind in the order of the batch.
- **Fence.** A call that names a token is accepted while the item is active under that token, whatever the clock
  says. Otherwise it gets `LeaseLost` with the item's present status and changes nothing. So of two calls with one
  token exactly one is accepted.
- **Who decides.** Verdicts come with the call. A call that carries a verdict names the version of the queue's
  settings it was judged by; if that is no longer the newest, the result is `Stale` and nothing was changed.

Every store passes the suite in `redrive.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from redrive.clock import Clock, Instant
from redrive.model.duration import DAY
from redrive.model.failure import Failure
from redrive.model.ids import ItemId, Token
from redrive.model.item import NO_OVERRIDES, Counters, Lease, Overrides, Receipt, Result
from redrive.model.judge import Ending, Verdict
from redrive.model.limits import DEFAULT_PRIORITY
from redrive.model.queue import Queue, QueueSettings
from redrive.model.transitions import Verb

STEP_LIMIT = 1000
"""Most items that one call of upkeep, or one change by hand, touches."""
OF_THIS_CALL = "(of this call)"
"""Stands for the id of an item that conflicts with another one of the same call: neither was put."""
LEDGER_TIMEOUT = 7 * DAY
"""How long the source_id of an imported item is known at least; longer for as long as the item is in that queue."""


# Queues


class CreateQueue(msgspec.Struct, frozen=True):
    """→ Queue. `QueueExists` if there is one with other settings; the same settings again are no error.

    Refused with `InvalidSetting` when dead_queue names the queue itself, a queue that does not exist, or one that has
    a dead_queue of its own; and when the new queue has a dead_queue while others use it as theirs.
    """

    name: str
    settings: QueueSettings


class UpdateQueue(msgspec.Struct, frozen=True):
    """→ Queue with the new settings and the next version. `Stale` unless `version` is the newest.

    The rules of CreateQueue hold. Nothing that is already dead moves.
    """

    name: str
    settings: QueueSettings
    version: int
    actor: str


class SetPaused(msgspec.Struct, frozen=True):
    """→ Queue. A paused queue takes puts and gives no leases; everything else goes on. Twice is no error."""

    name: str
    paused: bool
    actor: str


class DeleteQueue(msgspec.Struct, frozen=True):
    """→ int, the number of items removed with the queue.

    `QueueInUse` while others name it as dead_queue. `ConfirmMismatch` unless `confirm` is the number of items it
    holds in any status (0 may be left out); `ItemActive` while any of them is active. Writes an audit row.
    """

    name: str
    confirm: int | None
    actor: str


# Puts


class NewItem(msgspec.Struct, frozen=True, gc=False):
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
    source_id: ItemId | None = None
    """The id it had elsewhere. An item whose (queue, source_id) is known is ignored: its receipt is a duplicate."""
    failure: Failure | None = None
    """It has failed once already, outside: it is born as `verdict` says, with failures = 1 and this in its history."""
    verdict: Verdict | None = None
    version: int = 0
    """The version of the settings the verdict was judged by."""
    plain: bool = False
    """The broker's word that nothing but payload, content type, priority and expire_timeout is set."""


class Put(msgspec.Struct, frozen=True, gc=False):
    """→ tuple[Receipt, …], one for each item, in order; or Stale. All of them are put, or none. At most MAX_PUT items.

    An idempotency key that is known and whose time is not over gives the receipt of the first item, with duplicate =
    True, and puts nothing; with another payload (or content type) the call is refused with `IdempotencyConflict`.
    A known key together with a failure adds that failure to the item that is there.
    `QueueFull` if pending + failed + active would exceed max_size. `QueueNotFound`. Each item is drawn a new id and
    goes to the tail of its priority.
    """

    queue: str
    items: tuple[NewItem, ...]


# Leases


class LeaseItems(msgspec.Struct, frozen=True, gc=False):
    """→ Leased. Up to `limit` eligible items in order, each active under a fresh token until now + timeout.

    Eligible: pending, not held, ready_at ≤ now, not expired, queue not paused. Order: priority (larger first), then
    ready_at, then the order in which they were put or went to the tail. deliveries and attempts grow by one.

    First, items of the queue that have fallen due are brought in (at most STEP_LIMIT). If leases of the queue ran
    out, or items in it expired, and not `swept`, nothing is leased and `overdue` is True: settle those first and call
    again, the last time with swept = True. The cost does not grow with the number of items in any status.
    """

    queue: str
    limit: int
    worker: str | None = None
    timeout: int | None = None
    """None takes the queue's lease_timeout."""
    swept: bool = False


class Leased(msgspec.Struct, frozen=True, gc=False):
    """What LeaseItems gave. With no leases, `next_at` is the next instant at which something may become eligible."""

    leases: Sequence[Lease]
    overdue: bool = False
    next_at: Instant | None = None


class Extend(msgspec.Struct, frozen=True):
    """→ Instant, the new deadline: now + timeout. The token stays the same."""

    token: Token
    timeout: int | None = None
    """None takes the queue's lease_timeout."""


# Settles: a delivery ends


class Complete(msgspec.Struct, frozen=True, gc=False):
    """→ Settled. The item is completed: kept with its result for keep_completed, or removed.

    Completion, result and `puts` are one transaction: if any put is refused, so is the completion, with that error.
    `PayloadTooLarge` if the result exceeds the queue's max_payload_size.
    """

    token: Token
    result: Result | None = None
    puts: tuple[Put, ...] = ()


class Settle(msgspec.Struct, frozen=True):
    """→ Settled | Stale. The delivery ended otherwise: the verdict is carried out and a history row written.

    Counts one failure (FAILED) or one loss (LOST). Again(failed): failed until now + delay. Again(pending): pending at
    the tail from now + delay. Dead: a death record is written; the item moves to `to` as a fresh pending item with a
    new id, source_id = the id it had, counters 0 except deliveries and redrives, no expiry, and all its history; or
    stays, with status dead; or is removed with an audit row. Moves ignore max_size and pause of the target.
    A sweep (LOST) is accepted only while deadline ≤ now, so that an extension always wins over it.
    """

    token: Token
    ending: Ending
    verdict: Verdict
    version: int
    failure: Failure | None = None
    note: str | None = None


class Return(msgspec.Struct, frozen=True):
    """→ Settled. An uncounted release: attempts goes down by one, never below 0; pending in its old place.

    Writes a history row only if there is a note.
    """

    token: Token
    note: str | None = None


class Stale(msgspec.Struct, frozen=True):
    """The verdict was judged by settings that are no longer the newest. Nothing was changed; judge again by these."""

    queue: Queue


# Changes by hand, without a token


class Target(msgspec.Struct, frozen=True):
    """An item to change by hand. FAIL and BURY bring a verdict, and the version of the settings it was judged by."""

    id: ItemId
    verdict: Verdict | None = None
    version: int = 0
    failure: Failure | None = None
    """What FAIL writes down."""


class Change(msgspec.Struct, frozen=True):
    """→ tuple[Settled | Stale | RedriveError, …], one for each target, in order. Each stands for itself.

    Statuses a verb applies to: `redrive.model.transitions`. Otherwise `WrongStatus`; `ItemNotFound`; an active item
    gives `ItemActive`, unless `force`, which revokes its lease. An old id is followed to the item's present one.
    RETRY: pending in place, at the tail. REDRIVE: a dead item in place; a dead letter in a dead queue moves to the
    queue of its last death, under a new id; with `to`, to that queue; `QueueNotFound` where that is gone, and the
    item stays. Both set attempts, failures and losses to 0, add 1 to redrives, set the expire deadline anew, and
    write a history row with the actor.
    ARCHIVE remembers the status, RESTORE returns to it (`QueueFull` where the queue is full).
    One audit row for the call, naming the actor, the ids that were changed, and their number.
    """

    verb: Verb
    targets: tuple[Target, ...]
    actor: str
    force: bool = False
    to: str | None = None
    note: str | None = None


class Hold(msgspec.Struct, frozen=True):
    """→ int, how many. Pending and failed items of these ids leave the ready index; others are passed over."""

    ids: tuple[ItemId, ...]
    held_by: str


class Unhold(msgspec.Struct, frozen=True):
    """→ int, how many. Items held by that name, of these ids or all (at most STEP_LIMIT), are held no longer."""

    held_by: str
    ids: tuple[ItemId, ...] | None = None


# Upkeep: what runs by itself


class Promote(msgspec.Struct, frozen=True):
    """→ int, how many. Scheduled and failed items of all queues that have fallen due are ready now."""

    limit: int = STEP_LIMIT


class Expire(msgspec.Struct, frozen=True):
    """→ Settled | Stale. A pending or failed item whose expire_deadline ≤ now is settled as the verdict says.

    `WrongStatus` or `ItemNotFound` where that is no longer so.
    """

    id: ItemId
    verdict: Verdict
    version: int


class Clean(msgspec.Struct, frozen=True):
    """→ int, how many rows went. Removes, by each queue's settings, completed items past keep_completed and dead items
    past keep_dead (counted from the death, with an audit row), idempotency keys past their time, and rolls up counts.
    """

    limit: int = STEP_LIMIT


# Queries: `read` answers them from a state that includes every acknowledged commit


class GetQueue(msgspec.Struct, frozen=True):
    """→ Queue. Raises QueueNotFound."""

    name: str


class ListQueues(msgspec.Struct, frozen=True):
    """→ tuple[Queue, …] by name."""


class GetStats(msgspec.Struct, frozen=True):
    """→ QueueStats. Raises QueueNotFound."""

    name: str


class GetItem(msgspec.Struct, frozen=True):
    """→ Item with history and deaths. An older id is followed to the item's present one. Raises ItemNotFound."""

    id: ItemId


class GetOverdue(msgspec.Struct, frozen=True):
    """→ tuple[Overdue, …]: leases that ran out, and pending or failed items that expired; oldest first."""

    queue: str | None = None
    limit: int = STEP_LIMIT


class Overdue(msgspec.Struct, frozen=True):
    """A lease that ran out (token) or an item that expired (no token), with all that the judge needs."""

    id: ItemId
    queue: str
    counters: Counters
    overrides: Overrides
    token: Token | None
    expired: bool
    worker: str | None = None


class GetActive(msgspec.Struct, frozen=True):
    """→ Lease, as the token's holder got it. Raises LeaseLost. What the judge needs when only a token is at hand."""

    token: Token


class ListAudit(msgspec.Struct, frozen=True):
    """→ tuple[AuditEntry, …], newest first, those before `before` (a `number`)."""

    limit: int = 100
    before: int | None = None


class AuditEntry(msgspec.Struct, frozen=True):
    """Who changed what by hand, or by a rule."""

    number: int
    at: Instant
    actor: str
    verb: str
    queue: str | None
    ids: tuple[ItemId, ...]
    count: int
    note: str | None = None


class NextDue(msgspec.Struct, frozen=True):
    """→ Instant | None: when upkeep next has something to do (an item falls due or expires, a lease runs out)."""


QueueCall = CreateQueue | UpdateQueue | SetPaused | DeleteQueue
SettleCall = Complete | Settle | Return | Extend
Call = QueueCall | Put | Hold | Unhold | SettleCall | Change | Promote | Expire | Clean | LeaseItems
Query = GetQueue | ListQueues | GetStats | GetItem | GetOverdue | GetActive | ListAudit | NextDue

KINDS: tuple[tuple[type[Any], ...], ...] = (
    (CreateQueue, UpdateQueue, SetPaused, DeleteQueue),
    (Put,),
    (Hold, Unhold),
    (Complete, Settle, Return, Extend),
    (Change,),
    (Promote, Expire, Clean),
    (LeaseItems,),
)
"""The kinds of calls, in the order in which those of one batch take effect."""


class Commit(msgspec.Struct, frozen=True):
    """One committed transaction."""

    results: list[Any]
    """One for each call, in the order of the calls: the type its docstring names, or a `RedriveError`."""
    arrivals: Mapping[str, int]
    """Queues in which more may be leased than before, and how many items; 0 where only a new time was set at which
    something falls due. Whom to wake: too many is harmless."""
    now: Instant


class Durability(msgspec.Struct, frozen=True):
    """What an acknowledged call survives, in words for a person."""

    level: str
    """`full`, `relaxed`, or `none` where nothing survives the process."""
    survives: str
    can_lose: str


class Store(Protocol):
    """A place where queues and items of one namespace live.

    `commit` is called by one thread at a time (the committer sees to that); `read`, `changed` and `close` from any.
    `clock` is the store's time as this process knows it: where a server keeps the time, it follows `Commit.now`.
    """

    name: str
    namespace: str
    clock: Clock

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        """Carry out all calls in one transaction and make it durable."""
        ...

    def read(self, query: Query) -> Any:
        """Answer one query. Raises the errors that its docstring names."""
        ...

    def put_within(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        """Put inside the caller's own transaction: the items exist if and only if that transaction commits.

        Raises refusals. `InvalidInput` where the connection is not one of this store, or has no transaction open.
        """
        ...

    def changed(self) -> Collection[str] | None:
        """Queues in which another process may have changed something since the last call; None: in any. Cheap."""
        ...

    def durability(self) -> Durability:
        """What an acknowledged call survives."""
        ...

    def reopen(self) -> None:
        """Open connections anew in a forked child. Those of the parent are neither used nor closed."""
        ...

    def close(self) -> None:
        """Release everything. Twice is no error. From then on `commit`, `read` and `changed` raise `Closed`."""
        ...


def stale(put: Put, queue: Queue) -> bool:
    """Whether a put carries a verdict that was judged by settings which are no longer the newest."""
    return any(item.verdict is not None and item.version != queue.version for item in put.items)
