"""The contract between the broker and a store.

A store takes a batch of calls, carries them out durably and each of them whole, and returns one result for each. Where
it has transactions the batch is ONE. It never waits, never judges, and holds no state that a crash would lose.

    commit([Put(…), Complete(…), LeaseItems(…)])  →  Commit(results, arrivals, now)
    read(GetItem(…))                              →  Item

Rules for every store:

- **One place.** At every instant, and after a crash at any point, an item has exactly one status.
- **Durable.** When `commit` returns, its effects survive a crash and a power cut, unless the store was opened with
  relaxed durability.
- **A call is atomic.** All of it happens, or nothing: `Complete` with its puts, a `Put` of many, a `ManualChange` of
  one target. A store without rollback may carry out a batch in parts; then a part that breaks off is the result
  (`StoreError`, `OutcomeUnknown`) of its own calls.
- **One instant.** A batch has one `now`: the one given, else the store's own clock. Delays are durations; the
  store makes instants of them.
- **One bad call fails alone.** A refusal is a result: an instance of `RedriveError`, returned and not raised. It
  changed nothing and does not disturb its neighbours. `commit` raises only when the store itself cannot serve the
  batch (`StoreError`, or `Closed` after `close`: nothing was changed; `OutcomeUnknown`: all or nothing was).
- **Order.** Calls of one batch are concurrent. They take effect by kind in this order: queues, puts, registrations,
  imports, held items, settles, changes by hand, operations, upkeep, leases; within a kind in the order of the batch.
- **Fence.** A call that names a token is accepted while the item is active under that token, whatever the clock
  says. Otherwise it gets `LeaseLost` with the item's present status and changes nothing. So of two calls with one
  token exactly one is accepted.
- **Who decides.** Verdicts come with the call. A call that carries a verdict names the version of the queue's
  settings it was judged by; if that is no longer the newest, the result is `StaleSettings` and nothing was changed.

Every store passes the suite in `redrive.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from redrive.clock import Clock, Instant
from redrive.errors import InvalidInput, ItemMoving
from redrive.model.arrival import Move
from redrive.model.duration import DAY
from redrive.model.failure import Failure
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.filter import Filter, Order
from redrive.model.ids import ItemId, Token
from redrive.model.item import NO_OVERRIDES, Counters, Item, Lease, Overrides, Receipt, Result, Status
from redrive.model.judge import OutcomeKind, Verdict
from redrive.model.limits import DEFAULT_PRIORITY, MIB
from redrive.model.operation import Operation, OperationStatus
from redrive.model.queue import Queue, QueueSettings
from redrive.model.state_machine import Verb
from redrive.model.text import format_instant, join_lines, pluralize

MAINTENANCE_BATCH = 1000
"""Most items that one call of upkeep, or one change by hand, touches."""
SAME_CALL = "(of this call)"
"""Stands for the id of an item that conflicts with another one of the same call: neither was put."""
LEDGER_RETENTION = 7 * DAY
"""How long the source_id of an imported item is known at least; longer for as long as the item is in that queue."""
MOVE_BATCH_BYTES = 8 * MIB
"""Payloads that are taken to another store at once, but for one that is larger."""
FEED_RETENTION = 7 * DAY
"""How long entries of the feed are kept."""
OPERATION_RETENTION = 30 * DAY
"""How long an operation that has ended can be looked at, and undone."""
RETENTION_ACTOR = "retention"
"""Who archives and removes by the settings of a queue, in the audit and the feed."""
DROP_ACTOR = "on_dead"
"""Who drops the dead of a queue that asked for it, in the audit."""


class TaggedStruct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of calls, queries and their parts. `redrive.wire` writes each with the name of its type and without
    what is as it is by default, and refuses fields that it does not know."""


# Queues


class CreateQueue(TaggedStruct, frozen=True):
    """→ Queue. `QueueExists` if there is one with other settings; the same settings again are no error.

    Refused with `InvalidSetting` when dead_queue names the queue itself, a queue that does not exist, or one that has
    a dead_queue of its own; and when the new queue has a dead_queue while others use it as theirs. One in another
    store (`name@store`) is not looked at here: the broker asks that store, by SetSourceQueue, before.
    """

    name: str
    settings: QueueSettings


class UpdateQueue(TaggedStruct, frozen=True):
    """→ Queue with the new settings and the next version. `StaleSettings` unless `version` is the newest.

    The rules of CreateQueue hold. Nothing that is already dead moves.
    """

    name: str
    settings: QueueSettings
    version: int
    actor: str


class SetPaused(TaggedStruct, frozen=True):
    """→ Queue. A paused queue takes puts and gives no leases; everything else goes on. Twice is no error."""

    name: str
    paused: bool
    actor: str


class SetSourceQueue(TaggedStruct, frozen=True):
    """→ Queue. A queue of another store, `user` as `name@store`, has this one as dead queue, or has it no longer.

    Then this one is a dead queue. `InvalidSetting` where it has a dead_queue of its own; `QueueNotFound`. Twice is no
    error. The settings and their version stay as they are.
    """

    name: str
    user: str
    used: bool = True


class DeleteQueue(TaggedStruct, frozen=True):
    """→ int, the number of items removed with the queue.

    `QueueInUse` while others name it as dead_queue, in this store or another one (`source_queues`).
    `ConfirmationMismatch` unless `confirm` is the number of items it holds in any status (0 may be left out);
    `ItemActive` while any of them is active. Writes an audit row.
    """

    name: str
    confirm: int | None
    actor: str


# Puts


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
    """→ tuple[Receipt, …], one for each item, in order; or Stale. All of them are put, or none. At most MAX_PUT items.

    An idempotency key that is known and whose time is not over gives the receipt of the first item, with duplicate =
    True, and puts nothing; with another payload (or content type) the call is refused with `IdempotencyConflict`.
    A failure under a known key is never dropped. What becomes of it depends on the item that the key stands for,
    in whatever queue that is now:
    - pending, failed, active, dead or archived: the item gets one more row of its history and, unless a lease froze
      its counters, one more failure. Where it stands does not change: the verdict is for a new item only. The next
      delivery is judged by these counters and by the item's own limits;
    - completed, kept or not, or gone in any other way: the failure is a new item, as `verdict` says, and the key
      stands for that one from now on;
    - moving: the call is refused with `ItemMoving`, since the other store may have its copy already.
    `QueueFull` if pending + failed + active would exceed max_size. `QueueNotFound`. Each item is drawn a new id and
    goes to the tail of its priority.
    """

    queue: str
    items: tuple[NewItem, ...]


# Registrations: small named values of the namespace


class AuditNote(TaggedStruct, frozen=True, tag=False):
    """What the audit says of a registration that matters to people: who did what, and a note."""

    actor: str
    verb: str
    note: str | None = None


class Register(TaggedStruct, frozen=True):
    """→ Registration | Overtaken. A small value under a kind and a name: who works, when something was last done.

    It is written under the next version, 1 where there is none. With `version` it is written only if that is the one
    there is (0: there must be none); otherwise the result is Overtaken, and nothing was changed. So of many who want to
    do something once, one does it. `timeout`: from now until it is over; from then on it is as if it were not there.
    `puts` are part of it, all or nothing: if any put is refused, so is the call, with that error. They bring no
    failures. The broker has checked that the value is small. What is `noted` is in the audit if and only if it was
    written.
    """

    kind: str
    name: str
    value: bytes
    timeout: int | None = None
    version: int | None = None
    puts: tuple[Put, ...] = ()
    audit: AuditNote | None = None


class Unregister(TaggedStruct, frozen=True):
    """→ bool, whether there was one. Then what `audit` says is in the audit."""

    kind: str
    name: str
    audit: AuditNote | None = None


class Registration(msgspec.Struct, frozen=True):
    """What is registered under a kind and a name."""

    kind: str
    name: str
    value: bytes
    version: int
    at: Instant
    """When it was written."""
    expires_at: Instant | None = None
    """When it is over. None: never."""

    def is_alive(self, now: Instant) -> bool:
        """Whether its time is not over."""
        return self.expires_at is None or self.expires_at > now


class VersionConflict(msgspec.Struct, frozen=True):
    """Somebody else was first: the version that was named is not the one there is. Nothing was changed."""

    present: Registration | None


# Leases


class LeaseItems(TaggedStruct, frozen=True, gc=False):
    """→ Leased. Up to `limit` eligible items in order, each active under a fresh token until now + timeout.

    Eligible: pending, not held, ready_at ≤ now, not expired, queue not paused. Order: priority (larger first), then
    ready_at, then the order in which they were put or went to the tail. deliveries and attempts grow by one.

    First, items of the queue that have fallen due are brought in (at most MAINTENANCE_BATCH). If leases of the queue
    ran out, or items in it expired, and not `swept`, nothing is leased and `overdue` is True: settle those first and
    call again, the last time with swept = True. The cost does not grow with the number of items in any status.
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


# Settles: a delivery ends


class Complete(TaggedStruct, frozen=True, gc=False):
    """→ Settled. The item is completed: kept with its result for keep_completed, or removed.

    Completion, result and `puts` are one transaction: if any put is refused, so is the completion, with that error.
    The puts bring no failures.
    `PayloadTooLarge` if the result exceeds the queue's max_payload_size.
    With `keep`, GetResult gives the result for that long from now, whatever becomes of the item and its queue. Where
    there is no result, there is none to keep.
    """

    token: Token
    result: Result | None = None
    puts: tuple[Put, ...] = ()
    keep_result: int | None = None
    queue: str | None = None
    """As in Extend."""


class Settle(TaggedStruct, frozen=True):
    """→ Settled | Stale. The delivery ended otherwise: the verdict is carried out and a history row written.

    Counts one failure (FAILED) or one loss (LOST). Again(failed): failed until now + delay. Again(pending): pending at
    the tail from now + delay. Dead: a death record is written; the item moves to `to` as a fresh pending item with a
    new id, source_id = the id it had, counters 0 except deliveries and redrives, no expiry, and all its history; or
    stays, with status dead; or is removed with an audit row. Moves ignore max_size and pause of the target.
    Where `to` is in another store (`name@store`) it keeps its id and its queue, and is moving until FinishMove: with
    those counters, no expiry and no hold; a dead letter of its queue, which nobody can lease or change.
    A sweep (LOST) is accepted only while deadline ≤ now, so that an extension always wins over it; with
    `worker_is_gone` whatever the deadline says, from somebody who knows that the worker is gone. A failure that comes
    with a loss is in the history, and what the item dies of.
    `InvalidInput` where the verdict cannot follow the ending (`judge.check_verdict`); `QueueNotFound` without `to`.
    """

    token: Token
    ending: OutcomeKind
    verdict: Verdict
    version: int
    failure: Failure | None = None
    note: str | None = None
    worker_is_gone: bool = False


class ReturnLease(TaggedStruct, frozen=True):
    """→ Settled. An uncounted release: attempts goes down by one, never below 0; pending in its old place.

    Writes a history row only if there is a note.
    """

    token: Token
    note: str | None = None
    queue: str | None = None
    """As in Extend."""


class StaleSettings(msgspec.Struct, frozen=True):
    """The verdict was judged by settings that are no longer the newest. Nothing was changed; judge again by these."""

    queue: Queue


# Changes by hand, without a token


class ManualTarget(TaggedStruct, frozen=True, tag=False):
    """An item to change by hand. FAIL and BURY bring a verdict, and the version of the settings it was judged by."""

    id: ItemId
    verdict: Verdict | None = None
    version: int = 0
    failure: Failure | None = None
    """What FAIL writes down."""
    payload: Result | None = None
    """What REDRIVE puts in place of the payload: bytes and content type."""
    headers: Mapping[str, str] | None = None
    """What REDRIVE puts in place of the headers."""


class ManualChange(TaggedStruct, frozen=True):
    """→ tuple[Settled | Stale | RedriveError, …], one for each target, in order. Each stands for itself.

    What a verb applies to: `redrive.model.manual_change`. Otherwise `WrongStatus`; `ItemNotFound`; an active item gives
    `ItemActive`, unless `force`, which revokes its lease. An old id is followed to the item's present one.
    RETRY: pending in place, at the tail. REDRIVE: a dead item in place; a dead letter in a dead queue moves to the
    queue of its last death, under a new id; with `to`, to that queue; `QueueNotFound` where that is gone, and the
    item stays. Both set attempts, failures and losses to 0, add 1 to redrives, set the expire deadline anew, and
    write a history row with the actor.
    Where an item becomes one more in its queue, a queue that is full gives `QueueFull`; `IdempotencyConflict` where
    another item that is pending, failed or active in the target queue has its idempotency key, whose time is not over.
    With a payload or headers, REDRIVE archives the item (ARCHIVED in the feed) and makes a new one of it, without the
    earlier ids, with source_id = its id and a copy of its history and deaths; `PayloadTooLarge`.
    UNDO: to the queue it was brought back from (a new id if that is another, and no limit of size): dead as at its
    last death, or pending in a dead queue; redrives goes down by one. MOVE: `redrive.model.manual_change.move_queue`;
    room and key are checked unless it is dead. Both write a history row. PURGE removes an archived item.
    ARCHIVE remembers the status, RESTORE returns to it (`QueueFull` where the queue is full).
    REDRIVE and MOVE to another store (`to` is `name@store`; or REDRIVE of what came from there as a dead letter, which
    goes back): moving, as with Settle; nothing is checked of the other queue. `InvalidInput` with a payload or headers.
    What is moving cannot be changed, but DROP with `force` removes it. UNDO is for redrives within the store.
    One audit row for the call, naming the actor, the ids that were changed, and their number.
    """

    verb: Verb
    targets: tuple[ManualTarget, ...]
    actor: str
    force: bool = False
    to: str | None = None
    note: str | None = None


class Hold(TaggedStruct, frozen=True):
    """→ int, how many. Pending and failed items of these ids leave the ready index; others are passed over."""

    ids: tuple[ItemId, ...]
    held_by: str


class Unhold(TaggedStruct, frozen=True):
    """→ int, how many. Items held by that name, of these ids or all (at most MAINTENANCE_BATCH), are held no longer."""

    held_by: str
    ids: tuple[ItemId, ...] | None = None


# Operations: changes of many items


class StartOperation(TaggedStruct, frozen=True, kw_only=True):
    """→ Operation, running, at its beginning: the store draws its id and its mark. Writes an audit row with the filter.

    `InvalidInput` unless the verb is one of BULK_VERBS. `QueueNotFound` where `to` or the filter's queue is gone.
    """

    verb: Verb
    where: Filter
    actor: str
    to: str | None = None
    note: str | None = None
    rate: float | None = None
    expected: int | None = None
    canary: int = 0
    canary_success_ratio: float = 1.0
    paused: bool = False


class StepOperation(TaggedStruct, frozen=True):
    """→ Operation as it is after the step. At most `limit` items, and at most MAX_EXAMINED looked at, oldest first.

    Does nothing, and gives the operation as it is, unless it is running and `steps` is how many steps it has made: so
    two processes that drive one operation do each step once. The items, what was counted, and the position are one
    transaction. Each item is changed as by Change with the operation's actor, note and `to`, without force and
    without an audit row of its own; the history and the feed name the operation. An active item is left out with the
    code of `ItemActive`. UNDO with a filter that names an operation takes back what that one brought back, and leaves
    out what was brought back again since. BURY takes the verdict of the item's queue from `verdicts`; where that queue
    is not in it, or its version is not the newest, the step is refused with `StaleSettings` and nothing was changed.
    The step that finds nothing more ends the operation: status finished, and an audit row with the count.
    With a canary, a step stops when that many were changed; the status is then watching.
    `next_at` becomes now + changed / rate.
    `OperationNotFound`.
    """

    id: str
    steps: int
    limit: int = MAINTENANCE_BATCH
    verdicts: Mapping[str, tuple[Verdict, int]] = {}


class SetOperation(TaggedStruct, frozen=True):
    """→ Operation. Pause, resume, cancel, stop with a problem, go on after the canaries, or set another rate.

    `OperationEnded` where it has ended. Writes an audit row.
    With `steps`, which whoever judges by what he read gives along, it does nothing where he was overtaken: unless that
    is how many steps it has made, it is running or watching, and not yet what `status` says.
    """

    id: str
    actor: str
    status: OperationStatus | None = None
    problem: str | None = None
    rate: float | None = None
    steps: int | None = None


class Import(TaggedStruct, frozen=True):
    """→ tuple[Receipt, …], one for each item, in order. All of them, or none. At most MAX_BATCH items.

    Each becomes an item of `queue` under a new id with source_id = the id it has, its earlier ids dropped, and
    everything else as it is: status (active and completed items become pending), payload, headers, priority, counters,
    history, deaths, origin (itself where it has none). What is dead, archived, or was a dead letter with a death
    record in a dead queue is a dead letter here if the status says so or the queue is one. No idempotency key is taken
    over, and no lease. An item whose (queue, source_id) is known is ignored, and so is one that lives in this
    namespace itself and would come to the queue that it is in, or was in: its receipt is a duplicate.
    `QueueFull`, `QueueNotFound`.
    """

    queue: str
    items: tuple[Item, ...]
    actor: str


class Receive(TaggedStruct, frozen=True):
    """→ Receipt. An item that is moving in another store, called `store`, arrives here: the second step of its move.

    It is drawn a new id, with source_id = the id it has there; its earlier ids and its idempotency key are dropped,
    everything else is as it is. By a death: pending at the tail, a dead letter, and the queue is a dead queue; max_size
    does not count. By a redrive: pending at the tail, the expire deadline set by this queue. By a move: as by MOVE.
    Under (queue, source_id) it is written down that it came, until CloseMove says that the other store has removed it:
    while that is known, it is not received again, and the receipt of the first time is given as a duplicate, whatever
    became of the item here. `QueueFull` but for the dead; `QueueNotFound`. ARRIVED in the feed.
    """

    queue: str
    move: Move
    store: str


# Upkeep: what runs by itself


class FinishMove(TaggedStruct, frozen=True):
    """→ int, how many. Items of these ids that are moving were received elsewhere, and are removed; others stay."""

    ids: tuple[ItemId, ...]


class CloseMove(TaggedStruct, frozen=True):
    """→ int, how many. The other store has removed what came from there under these ids: what was written down of it
    by Receive is forgotten LEDGER_RETENTION from now. Twice is no error. `QueueNotFound`.
    """

    queue: str
    store: str
    source_ids: tuple[ItemId, ...]


class Promote(TaggedStruct, frozen=True):
    """→ int, how many. Scheduled and failed items of all queues that have fallen due are ready now."""

    limit: int = MAINTENANCE_BATCH


class Expire(TaggedStruct, frozen=True):
    """→ Settled | Stale. A pending or failed item whose expire_deadline ≤ now is settled as the verdict says.

    `WrongStatus` or `ItemNotFound` where that is no longer so.
    """

    id: ItemId
    verdict: Verdict
    version: int


class ApplyRetention(TaggedStruct, frozen=True):
    """→ int, how many rows were changed or went. By each queue's settings: archives dead letters past archive_after,
    removes completed items past keep_completed, dead letters past keep_dead and archived items past keep_archived (all
    counted from the death, each with an audit row, all but the completed in the feed). Also removes idempotency keys
    past their time, registrations and results that are over, entries of the feed past FEED_RETENTION, operations that
    ended OPERATION_RETENTION ago, and words of items that are dead letters no longer; and rolls up counts.
    """

    limit: int = MAINTENANCE_BATCH


# Queries: `read` answers them from a state that includes every acknowledged commit


class GetQueue(TaggedStruct, frozen=True):
    """→ Queue. Raises QueueNotFound."""

    name: str


class ListQueues(TaggedStruct, frozen=True):
    """→ tuple[Queue, …] by name."""


class GetStats(TaggedStruct, frozen=True):
    """→ QueueStats. Raises QueueNotFound."""

    name: str


class GetItem(TaggedStruct, frozen=True):
    """→ Item with history and deaths. An older id is followed to the item's present one. Raises ItemNotFound."""

    id: ItemId


class FindItems(TaggedStruct, frozen=True):
    """→ Page. Items that match, in order, from `cursor` on. Looks at no more than MAX_EXAMINED.

    Dead letters and archived items come in the order of their deaths, others in the order in which they were put or
    moved. An item that matches from the first page to the last, and keeps its place in that order, appears exactly
    once; one that dies again in a dead queue, or among the others moves, is at the end from then on. Raises
    QueueNotFound where the filter names a queue that does not exist, InvalidInput for a cursor that is not one of this
    query.
    """

    where: Filter
    order: Order = Order.NEWEST
    limit: int = 50
    cursor: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Some of what was looked for."""

    items: tuple[Item, ...]
    cursor: str | None
    """Where to go on. None where there is nothing more. A short page with a cursor is not the last one."""

    def __str__(self) -> str:
        more = "" if self.cursor is None else "; there are more: pass on page.cursor"
        return join_lines(f"{pluralize(len(self.items), 'item')}{more}", *map(_in_short, self.items))


class CountItems(TaggedStruct, frozen=True):
    """→ Counted. How many items match, from `cursor` on. Looks at no more than MAX_EXAMINED, unless it need not look at
    each item because only `queue`, `fingerprint` or nothing is asked of dead letters."""

    where: Filter
    cursor: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """A count, or a part of one: the sum over all cursors is the count."""

    count: int
    cursor: str | None


class ListGroups(TaggedStruct, frozen=True):
    """→ tuple[Group, …]: the dead letters of a queue, or of all, by fingerprint; the largest first, then the newest,
    then by fingerprint. Raises QueueNotFound."""

    queue: str | None = None
    limit: int = 100


class ReadFeed(TaggedStruct, frozen=True):
    """→ FeedPage. Entries after a number, oldest first. Looks at no more than MAX_EXAMINED.

    `id` asks for one item, under whatever id it had; `before` and no `after` gives the newest entries before a number,
    still oldest first.
    """

    after: int | None = None
    limit: int = 100
    queue: str | None = None
    id: ItemId | None = None
    kinds: tuple[FeedKind, ...] | None = None
    operation: str | None = None
    before: int | None = None


class FeedPage(msgspec.Struct, frozen=True):
    """Some of the feed."""

    entries: tuple[FeedEntry, ...]
    last: int
    """The number to go on after: of the last entry that was looked at, whether it matched or not."""
    more: bool
    """Whether there are entries beyond."""

    def __str__(self) -> str:
        count = "1 entry" if len(self.entries) == 1 else f"{len(self.entries):,} entries"
        return join_lines(f"{count}{'; there are more' if self.more else ''}", *map(str, self.entries))


class GetIdempotencyOwners(TaggedStruct, frozen=True):
    """→ Mapping[str, ItemId]: for each idempotency key that an item of the queue holds which is pending, failed or
    active, and whose time is not over, that item. Raises QueueNotFound."""

    queue: str
    keys: tuple[str, ...]


class GetOperation(TaggedStruct, frozen=True):
    """→ Operation. Raises OperationNotFound."""

    id: str


class ListOperations(TaggedStruct, frozen=True):
    """→ tuple[Operation, …], newest first; with `unfinished` those that have not ended only, with `is_active` only
    those that are running or watching."""

    unfinished: bool = False
    limit: int = 100
    at_work: bool = False


class GetOverdue(TaggedStruct, frozen=True):
    """→ tuple[Overdue, …]: leases that ran out, and pending or failed items that expired; oldest first."""

    queue: str | None = None
    limit: int = MAINTENANCE_BATCH


class Overdue(msgspec.Struct, frozen=True):
    """A lease that ran out (token) or an item that expired (no token), with all that the judge needs."""

    id: ItemId
    queue: str
    counters: Counters
    overrides: Overrides
    token: Token | None
    expired: bool
    worker: str | None = None


class GetLease(TaggedStruct, frozen=True):
    """→ Lease, as the token's holder got it. Raises LeaseLost. What the judge needs when only a token is at hand."""

    token: Token


class ListWorkerLeases(TaggedStruct, frozen=True):
    """→ tuple[Lease, …]: what workers of that name hold now, as GetLease gives it; those leased first are first, then
    by their places in line. Looks at every lease there is."""

    worker: str
    limit: int = MAINTENANCE_BATCH


class GetResult(TaggedStruct, frozen=True):
    """→ Result | None: what Complete was told to keep, until its time is over.

    The id is any that the item had in this store: the one it was put under finds the result of what died and was
    brought back since.
    """

    id: ItemId


class ListRegistrations(TaggedStruct, frozen=True):
    """→ tuple[Registration, …] by name: those of a kind, or the one of a name, whose time is not over."""

    kind: str
    name: str | None = None


class ListAudit(TaggedStruct, frozen=True):
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

    def __str__(self) -> str:
        where = "" if self.queue is None else f" in {self.queue}"
        told = "" if self.note is None else f": {self.note}"
        return f"{format_instant(self.at)} {self.actor}: {self.verb}, {pluralize(self.count, 'item')}{where}{told}"


class ListMoveTargets(TaggedStruct, frozen=True):
    """→ tuple[MoveTarget, …] by address: the queues of other stores that items are on their way to."""


class MoveTarget(msgspec.Struct, frozen=True):
    """A queue of another store that items are on their way to."""

    to: str
    """`name@store`."""
    since: Instant
    """Since when the first of them is on its way."""


class ListMoves(TaggedStruct, frozen=True):
    """→ tuple[Move, …]: items on their way to one queue, or to any; those that left first are first.

    At most `limit`, and no more once their payloads come to MOVE_BATCH_BYTES.
    """

    to: str | None = None
    limit: int = 100


class ListOpenMoves(TaggedStruct, frozen=True):
    """→ tuple[OpenMove, …] by source_id, those after `after`: what was received from a store and is not closed."""

    store: str
    limit: int = 100
    after: ItemId | None = None


class OpenMove(msgspec.Struct, frozen=True):
    """An item that was received, and that the other store may still have."""

    queue: str
    source_id: ItemId


class GetNextDue(TaggedStruct, frozen=True):
    """→ Instant | None: when upkeep next has something to do (an item falls due or expires, a lease runs out, an
    operation is running and its next step may run)."""


QueueCall = CreateQueue | UpdateQueue | SetPaused | SetSourceQueue | DeleteQueue
RegistrationCall = Register | Unregister
SettleCall = Complete | Settle | ReturnLease | Extend
OperationCall = StartOperation | StepOperation | SetOperation
Call = (
    QueueCall
    | Put
    | RegistrationCall
    | Import
    | Receive
    | Hold
    | Unhold
    | SettleCall
    | ManualChange
    | OperationCall
    | Promote
    | Expire
    | ApplyRetention
    | FinishMove
    | CloseMove
    | LeaseItems
)
Query = (
    GetQueue
    | ListQueues
    | GetStats
    | GetItem
    | FindItems
    | CountItems
    | ListGroups
    | ReadFeed
    | GetIdempotencyOwners
    | GetOperation
    | ListOperations
    | GetOverdue
    | GetLease
    | ListWorkerLeases
    | GetResult
    | ListRegistrations
    | ListAudit
    | ListMoveTargets
    | ListMoves
    | ListOpenMoves
    | GetNextDue
)

COMMIT_ORDER: tuple[tuple[type[Any], ...], ...] = (
    (CreateQueue, UpdateQueue, SetPaused, SetSourceQueue, DeleteQueue),
    (Put,),
    (Register, Unregister),
    (Import, Receive),
    (Hold, Unhold),
    (Complete, Settle, ReturnLease, Extend),
    (ManualChange,),
    (StartOperation, StepOperation, SetOperation),
    (Promote, Expire, ApplyRetention, FinishMove, CloseMove),
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

    `commit` is called by one thread at a time (the committer sees to that); the rest from any.
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

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        """Put inside the caller's own transaction: the items exist if and only if that transaction commits.

        Raises refusals. `InvalidInput` where the connection is not one of this store, or has no transaction open.
        """
        ...

    def poll_changes(self) -> Collection[str] | None:
        """Queues in which another process may have changed something since the last call; None: in any. Cheap."""
        ...

    def subscribe(self, wake: Callable[[], None]) -> None:
        """From now on call `wake`, from any thread, as soon as `changed` may have something to tell.

        It rings once, and again only after `changed` was called. For whoever asks now and then anyway: a store that
        cannot know does nothing, and one that can begins with the first `changed`. A forked child goes on ringing it.
        """
        ...

    def durability(self) -> Durability:
        """What an acknowledged call survives."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """What a person should know about the place where everything is kept, a sentence each."""
        ...

    def reopen(self) -> None:
        """Open connections anew in a forked child. Those of the parent are neither used nor closed."""
        ...

    def close(self) -> None:
        """Release everything. Twice is no error. From then on `commit`, `read` and `changed` raise `Closed`."""
        ...


def matches_feed_query(query: ReadFeed, ids: Collection[ItemId] | None, entry: FeedEntry) -> bool:
    """Whether a reading of the feed is for this entry. `ids` are all those of the item that it asks for."""
    return (
        (query.queue is None or entry.queue == query.queue)
        and (query.kinds is None or entry.kind in query.kinds)
        and (query.operation is None or entry.operation == query.operation)
        and (ids is None or entry.id in ids or entry.source_id in ids)
    )


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


def _in_short(item: Item) -> str:
    told = "" if item.death is None else f" {item.death.cause.title}"
    return f"{item.id} {item.queue} {item.status}{told}"


def new_operation(call: StartOperation, id: str, number: int, now: Instant) -> Operation:
    """The operation that a call starts: it takes what is there at the number that its id was drawn with."""
    given = msgspec.structs.asdict(call)
    status = OperationStatus.PAUSED if given.pop("paused") else OperationStatus.RUNNING
    return Operation(**given, id=id, mark=number, status=status, created_at=now, updated_at=now, next_at=now)
