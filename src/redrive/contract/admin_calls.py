"""Calls that manage: queues, registrations, manual changes, operations."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.contract.base import MAINTENANCE_BATCH, Rank, StoreCall, TaggedStruct
from redrive.contract.item_calls import Put, StaleSettings
from redrive.errors import RedriveError
from redrive.model.breaker import Breaker
from redrive.model.failure import Failure
from redrive.model.filter import Filter
from redrive.model.gate import Gate
from redrive.model.ids import ItemId
from redrive.model.item import Result, Settled
from redrive.model.judge import Verdict
from redrive.model.operation import Operation, OperationStatus
from redrive.model.queue import Queue, QueueSettings
from redrive.model.state_machine import Verb


class CreateQueue(StoreCall[Queue], frozen=True):
    """→ Queue. `QueueExists` if it exists with other settings. Idempotent with the same settings.

    Refused with `InvalidSetting` if dead_queue names the queue itself, a queue that does not exist, or one that has a
    dead_queue; or if the new queue has a dead_queue and is the dead queue of others. A dead queue in another store
    (`name@store`) is not checked here: the broker checks it first, by SetSourceQueue in that store.
    """

    rank = Rank.QUEUES
    is_repeatable = True
    takes_space = True

    name: str
    settings: QueueSettings


class UpdateQueue(StoreCall[Queue], frozen=True):
    """→ Queue with the new settings and the next version. `StaleSettings` unless `version` is the newest.

    The rules of CreateQueue hold. Nothing that is already dead moves.
    """

    rank = Rank.QUEUES

    name: str
    settings: QueueSettings
    version: int
    actor: str


class SetPaused(StoreCall[Queue], frozen=True):
    """→ Queue. A paused queue accepts puts and gives no leases; everything else continues. Idempotent."""

    rank = Rank.QUEUES
    is_repeatable = True

    name: str
    paused: bool
    actor: str


class SetBreakers(StoreCall[Queue], frozen=True):
    """→ Queue with these breakers, this gate of theirs, and the next version.

    `StaleSettings` unless `version` is the newest and `former_gate` is the current gate named "breaker", with all that
    was leased under it. So of many processes one makes a change, and a `Settle` that was judged before is judged again,
    by these breakers. Other gates and `paused` do not change. If another gate is given, leasable items count as
    arrivals; otherwise waiters are woken for a new due time.
    Each breaker that opens or closes by this (`breaker.breaker_changes`) has an entry in the feed and an audit row,
    with the actor and the note.
    """

    rank = Rank.QUEUES

    name: str
    breakers: tuple[Breaker, ...]
    """All that are not closed: at most MAX_BREAKERS."""
    version: int
    actor: str
    note: str | None = None
    former_gate: Gate | None = None
    gate: Gate | None = None
    """None removes it."""


class SetSourceQueue(StoreCall[Queue], frozen=True):
    """→ Queue. A queue of another store, `user` as `name@store`, uses this one as its dead queue, or no longer does.

    Then this one is a dead queue. `InvalidSetting` if it has a dead_queue itself; `QueueNotFound`. Idempotent. The
    settings and their version do not change.
    """

    rank = Rank.QUEUES
    is_repeatable = True

    name: str
    user: str
    used: bool = True


class DeleteQueue(StoreCall[int], frozen=True):
    """→ int, the number of items removed with the queue.

    `QueueInUse` while others name it as dead_queue, in this store or another one (`source_queues`).
    `ConfirmationMismatch` unless `confirm` is the number of its items in any status (0 may be omitted); `ItemActive`
    while any of them is active. Writes an audit row.
    """

    rank = Rank.QUEUES

    name: str
    confirm: int | None
    actor: str


class AuditNote(TaggedStruct, frozen=True, tag=False):
    """The audit row of a registration: its actor, verb and note."""

    actor: str
    verb: str
    note: str | None = None


class Registration(msgspec.Struct, frozen=True):
    """A value that is registered under a kind and a name."""

    kind: str
    name: str
    value: bytes
    version: int
    at: Instant
    """The instant at which it was written."""
    expires_at: Instant | None = None
    """The instant at which it expires. None: never."""

    def is_alive(self, now: Instant) -> bool:
        """Return whether it has not expired."""
        return self.expires_at is None or self.expires_at > now


class VersionConflict(msgspec.Struct, frozen=True):
    """The named version is not the current one: another process was first. Nothing was changed."""

    present: Registration | None


class Register(StoreCall[Registration | VersionConflict], frozen=True):
    """→ Registration | VersionConflict. A small value by kind and name: a worker, the last run of a schedule.

    It is written under the next version, 1 if there is none. With `version` it is written only if that is the current
    version (0: there must be none); otherwise the result is VersionConflict, and nothing was changed. So of many
    processes that want to do something once, one does it. After `timeout` it no longer exists.
    `puts` are part of it, all or nothing: if any put is refused, so is the call, with that error. They bring no
    failures. The broker has checked that the value is small. The row `audit` is written if and only if the value is.
    """

    rank = Rank.REGISTRATIONS

    kind: str
    name: str
    value: bytes
    timeout: int | None = None
    version: int | None = None
    puts: tuple[Put, ...] = ()
    audit: AuditNote | None = None

    @property
    def is_repeatable(self) -> bool:
        return self.version is None and not self.puts and self.audit is None

    @property
    def runs_beside_others(self) -> bool:
        return self.version is None and not self.puts  # the second transaction sees the result of the first


class Unregister(StoreCall[bool], frozen=True):
    """→ bool, whether it existed. If so, `audit` is written."""

    rank = Rank.REGISTRATIONS
    runs_beside_others = True

    kind: str
    name: str
    audit: AuditNote | None = None


class ManualTarget(TaggedStruct, frozen=True, tag=False):
    """An item to change manually. FAIL and BURY bring a verdict, and the version of the settings it was judged by."""

    id: ItemId
    verdict: Verdict | None = None
    version: int = 0
    failure: Failure | None = None
    """The failure that FAIL records."""
    payload: Result | None = None
    """The payload and content type that REDRIVE sets."""
    headers: Mapping[str, str] | None = None
    """The headers that REDRIVE sets."""
    delay: int = 0
    """From now until it may be leased (RESCHEDULE)."""
    enqueue_at: Instant | None = None
    """The instant from which it may be leased, instead of a delay. One in the past means now."""


class ManualChange(StoreCall[tuple[Settled | StaleSettings | RedriveError, ...]], frozen=True):
    """→ tuple[Settled | StaleSettings | RedriveError, …], one for each target, in order. Targets are independent.

    `redrive.model.manual_change` defines the statuses that a verb applies to. Otherwise `WrongStatus`; `ItemNotFound`;
    `ItemActive` for an active item, unless `force`, which revokes its lease: then it is pending, or dead if it was
    leased although it is dead. A former id is resolved to the item.
    RETRY: pending in place, at the end of the queue. REDRIVE: a dead item in place; a dead letter in a dead queue moves
    to the queue of its last death, under a new id; with `to`, to that queue; `QueueNotFound` if that does not exist,
    and the item stays. Both set attempts, failures and losses to 0, add 1 to redrives, reset the expire deadline, and
    write a history row with the actor. RETRY, REDRIVE and UNDO end holds that do not last.
    If the item adds to a queue that is full: `QueueFull`. `IdempotencyConflict` if another pending, failed or active
    item of the target queue has its idempotency key, not expired.
    With a payload or headers, REDRIVE archives the item (ARCHIVED in the feed) and puts an edited copy, without former
    ids, with source_id = its id and a copy of its history and deaths; `PayloadTooLarge`.
    UNDO of a redrive: back to the queue it was redriven from (under a new id if that is another one; max_size is
    ignored): dead as at its last death, or pending in a dead queue; redrives is decremented. MOVE:
    `redrive.model.manual_change.move_queue`; size and key are checked unless it is dead. Both write a history row.
    ARCHIVE stores the status, and a history row unless it is a dead letter; RESTORE returns to it, with its time and
    hold (`QueueFull` if the queue is full). DROP archives too, with a history row, and frees the idempotency key unless
    the item is completed; it deletes the item if keep_dropped is 0. UNDO of a drop is RESTORE, and reclaims the key:
    `IdempotencyConflict` if that is known for another item that is not archived. PURGE deletes an archived item.
    RESCHEDULE of a pending or failed item: it may be leased from another instant on, after all others of that instant;
    "now" does not move an item that may already be leased. Counters, holds and the expire deadline stay. If it is now,
    a failed item is pending, unless it is held. It writes a history row; `InvalidInput` with a delay and an instant.
    REDRIVE and MOVE to another store (`to` is `name@store`; or REDRIVE of a dead letter that came from there, which
    goes back): moving, as with Settle; the other queue is not checked. `InvalidInput` with a payload or headers.
    An item that is moving cannot be changed, but DROP with `force` deletes it. UNDO is for redrives within the store.
    One audit row for the call, with the actor, the changed ids, and their number.
    """

    rank = Rank.MANUAL_CHANGES

    verb: Verb
    targets: tuple[ManualTarget, ...]
    actor: str
    force: bool = False
    to: str | None = None
    note: str | None = None

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return tuple(target.id for target in self.targets)


class Hold(StoreCall[int | StaleSettings], frozen=True):
    """→ int | StaleSettings. The number of changed items: pending and failed items of these ids have one more holder,
    and are not in the ready index while they have any.

    Skipped are items in other statuses, those that the name already holds, unless it becomes lasting, and those with
    MAX_HOLDERS holders. `redrive.model.holder` defines `lasting`.
    With `queue_version` nothing is held unless that queue has that version: otherwise StaleSettings, or
    `QueueNotFound`. So a hold that was decided by the state of a queue is never applied after a change of that state.
    """

    rank = Rank.HELD_ITEMS

    ids: tuple[ItemId, ...]
    held_by: str
    lasting: bool = False
    queue_version: tuple[str, int] | None = None

    @property
    def is_repeatable(self) -> bool:
        return self.queue_version is None  # the answer to the first may be from before the queue changed

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return self.ids


class Unhold(StoreCall[int], frozen=True):
    """→ int, how many. Items of these ids, or all (at most MAINTENANCE_BATCH), are no longer held by that name.

    They are ready without any holder, at their old position. Dead and archived items lose the holder too; those that
    are moving do not.
    """

    rank = Rank.HELD_ITEMS
    is_repeatable = True

    held_by: str
    ids: tuple[ItemId, ...] | None = None

    @property
    def item_ids(self) -> tuple[ItemId, ...]:
        return self.ids or ()


class StartOperation(StoreCall[Operation], frozen=True, kw_only=True):
    """→ Operation, running, before its first step: the store allocates its id and its upper bound. Writes an audit row.

    `InvalidInput` unless the verb is one of BULK_VERBS. `QueueNotFound` if `to` or the filter's queue does not exist.
    """

    rank = Rank.OPERATIONS

    verb: Verb
    where: Filter
    actor: str
    to: str | None = None
    note: str | None = None
    rate: float | None = None
    expected: int | None = None
    limit: int | None = None
    canary: int = 0
    canary_success_ratio: float = 1.0
    paused: bool = False


class StepOperation(StoreCall[Operation | StaleSettings], frozen=True):
    """→ Operation | StaleSettings. At most `limit` items are changed and at most MAX_EXAMINED examined, oldest first.

    Does nothing, and returns the current operation, unless it is running and `steps` is its number of steps: so two
    processes that run one operation do each step once. Items, counts and position are one transaction. Each item is
    changed as by ManualChange with the operation's actor, note and `to`, without force and without a separate audit
    row; the history and the feed name the operation. An active item is skipped with the code of `ItemActive`. UNDO with
    a filter that names an operation undoes its redrives, and skips items that were redriven again since. BURY takes the
    verdict for the item's queue from `verdicts`; if that queue is missing, or its version is not the newest, the step
    is refused with `StaleSettings` and nothing was changed. The step that finds no more items ends the operation:
    status finished, and an audit row with the count.
    With a canary, a step stops when that many were changed; the status is then watching. With a limit of the operation,
    the step in which that many were changed ends it.
    `next_at` becomes now + changed / rate.
    `OperationNotFound`.
    """

    rank = Rank.OPERATIONS
    is_repeatable = True  # it names how many steps were made before

    id: str
    steps: int
    limit: int = MAINTENANCE_BATCH
    verdicts: Mapping[str, tuple[Verdict, int]] = {}


class SetOperation(StoreCall[Operation], frozen=True):
    """→ Operation. Pause, resume, cancel, stop with a problem, continue after the canaries, or set another rate.

    `OperationEnded` if it has ended. Writes an audit row.
    `steps` is for a caller that decides by an operation it has read: the call does nothing unless that is its number of
    steps, it is running or watching, and its status is not yet `status`.
    """

    rank = Rank.OPERATIONS

    id: str
    actor: str
    status: OperationStatus | None = None
    problem: str | None = None
    rate: float | None = None
    steps: int | None = None


QueueCall = CreateQueue | UpdateQueue | SetPaused | SetBreakers | SetSourceQueue | DeleteQueue
AdminCall = (
    QueueCall | Register | Unregister | ManualChange | Hold | Unhold | StartOperation | StepOperation | SetOperation
)


def new_operation(call: StartOperation, id: str, number: int, now: Instant) -> Operation:
    """Return the operation that a call starts. It changes items that exist at the number allocated with its id."""
    given = msgspec.structs.asdict(call)
    status = OperationStatus.PAUSED if given.pop("paused") else OperationStatus.RUNNING
    return Operation(**given, id=id, mark=number, status=status, created_at=now, updated_at=now, next_at=now)
