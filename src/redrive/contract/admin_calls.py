"""Calls that manage: queues, registrations, manual changes, operations, imports and moves, maintenance."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.contract.base import MAINTENANCE_BATCH, TaggedStruct
from redrive.contract.item_calls import Put
from redrive.model.arrival import Move
from redrive.model.failure import Failure
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.item import Item, Result
from redrive.model.judge import Verdict
from redrive.model.operation import Operation, OperationStatus
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb


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


class AuditNote(TaggedStruct, frozen=True, tag=False):
    """What the audit says of a registration that matters to people: who did what, and a note."""

    actor: str
    verb: str
    note: str | None = None


class Register(TaggedStruct, frozen=True):
    """→ Registration | VersionConflict. A small value under a kind and a name: who works, when something was last done.

    It is written under the next version, 1 if there is none. With `version` it is written only if that is the current
    version (0: there must be none); otherwise the result is VersionConflict, and nothing was changed. So of many
    processes that want to do something once, one does it. After `timeout` it no longer exists.
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
    """→ tuple[Settled | StaleSettings | RedriveError, …], one for each target, in order. Each stands for itself.

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
    transaction. Each item is changed as by ManualChange with the operation's actor, note and `to`, without force and
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
    """→ Settled | StaleSettings. A pending or failed item whose expire_deadline ≤ now is settled as the verdict says.

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


def new_operation(call: StartOperation, id: str, number: int, now: Instant) -> Operation:
    """The operation that a call starts: it takes what is there at the number that its id was drawn with."""
    given = msgspec.structs.asdict(call)
    status = OperationStatus.PAUSED if given.pop("paused") else OperationStatus.RUNNING
    return Operation(**given, id=id, mark=number, status=status, created_at=now, updated_at=now, next_at=now)
