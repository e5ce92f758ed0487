"""Operations: changes of many items that live in the store, with progress, a rate, and an end that adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput, OperationEnded
from redrive.model.duration import SECOND
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.model.state_machine import Verb
from redrive.model.text import format_counts, format_instant, join_lines

BULK_VERBS = frozenset(
    {Verb.RETRY, Verb.REDRIVE, Verb.UNDO, Verb.MOVE, Verb.BURY, Verb.ARCHIVE, Verb.RESTORE, Verb.PURGE}
)
"""What operations can do."""
TRACKED_VERBS = frozenset({Verb.RETRY, Verb.REDRIVE, Verb.MOVE, Verb.BURY, Verb.ARCHIVE, Verb.RESTORE})
"""Verbs whose items are found by the operation afterwards."""
MAX_SAMPLES = 10
"""How many ids are kept of the items left out for one reason."""


class OperationStatus(StrEnum):
    """How an operation stands."""

    RUNNING = "running"
    WATCHING = "watching"
    """The first few are back at work, and it waits for how they end."""
    PAUSED = "paused"
    FINISHED = "finished"
    """Every item that was meant was looked at, or its limit is reached."""
    STOPPED = "stopped"
    """It stopped itself: `problem` says why."""
    CANCELLED = "cancelled"


FINAL_STATUSES = frozenset({OperationStatus.FINISHED, OperationStatus.STOPPED, OperationStatus.CANCELLED})


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of many items. It takes what matched when it started, each item at most once.

    changed + the sum of skipped is the number of items it met so far. Items that no longer matched when their turn
    came (somebody else was faster) are not met.
    """

    id: str
    verb: Verb
    where: Filter
    to: str | None = None
    """The queue that items go to (redrive, move)."""
    actor: str
    note: str | None = None
    rate: float | None = None
    """Most items per second."""
    expected: int | None = None
    """How many items matched when it started, or its limit if that is less, for its progress."""
    limit: int | None = None
    """Most items that it changes. None: all that match."""
    canary: int = 0
    """How many are tried first; the rest waits for how these end."""
    canary_success_ratio: float = 1.0
    """How many of the canaries must complete, as a share, for the rest to follow."""
    canary_ids: tuple[ItemId, ...] = ()
    """The canaries released so far."""
    status: OperationStatus = OperationStatus.RUNNING
    problem: str | None = None
    """Why it stopped itself."""
    created_at: Instant
    updated_at: Instant
    next_at: Instant
    """When its next step may run."""
    mark: int
    """Where the store stood when it started: what died or was put later is not touched."""
    position: int | None = None
    """How far it got. None before the first step."""
    steps: int = 0
    """Steps so far. A step names the one before it, so that two processes do each step once."""
    changed: int = 0
    skipped: Mapping[str, int] = {}
    """How many items it met and did not change, by the code of the error."""
    samples: Mapping[str, tuple[ItemId, ...]] = {}
    """Some of them, by the same code."""

    def __str__(self) -> str:
        of = "" if self.expected is None else f" of {self.expected:,}"
        limit = "" if self.limit is None else f", limit {self.limit:,}"
        rate = "" if self.rate is None else f", at most {self.rate:,g} per second"
        first = "" if not self.canary else f", canaries {len(self.canary_ids)} of {self.canary}"
        return join_lines(
            f"{self.verb} {self.id}: {self.status}, {self.changed:,}{of} changed{limit}{rate}{first}",
            f"left out: {format_counts(self.skipped)}" if self.skipped else None,
            f"problem: {self.problem}" if self.problem else None,
            f"by {self.actor} at {format_instant(self.created_at)}" + (f": {self.note}" if self.note else ""),
        )

    @property
    def examined(self) -> int:
        """How many items it met so far."""
        return self.changed + sum(self.skipped.values())

    @property
    def ended(self) -> bool:
        """Whether it will do nothing more."""
        return self.status in FINAL_STATUSES

    @property
    def is_running(self) -> bool:
        """Whether it has steps to make."""
        return self.status is OperationStatus.RUNNING

    @property
    def is_active(self) -> bool:
        """Whether somebody has to see to it."""
        return self.status in (OperationStatus.RUNNING, OperationStatus.WATCHING)

    def may_step(self, steps: int) -> bool:
        """Whether the step after that many is its next one."""
        return self.is_running and steps == self.steps

    @property
    def canaries_left(self) -> int:
        """How many canaries are still to be released."""
        return self.canary - len(self.canary_ids)

    @property
    def changes_left(self) -> int | None:
        """After how many more changes a step ends: the canaries are released, or its limit is reached."""
        if self.canaries_left > 0:
            return self.canaries_left
        return None if self.limit is None else self.limit - self.changed


def check_bulk(verb: Verb, to: str | None) -> None:
    """Raise unless a verb can be done to many items at once, and has what it needs."""
    if verb not in BULK_VERBS:
        raise InvalidInput(f"{verb} cannot be done to many items at once; there are {', '.join(sorted(BULK_VERBS))}")
    if verb is Verb.MOVE and to is None:
        raise InvalidInput("move needs the queue to move to; name it with to=")


class SkippedItem(msgspec.Struct, frozen=True, gc=False):
    """An item that an operation met and did not change, and the code of the error that says why."""

    id: ItemId
    code: str


def after_step(
    operation: Operation,
    now: Instant,
    changed: Sequence[ItemId],
    skipped: Sequence[SkippedItem],
    position: int | None,
    exhausted: bool,
    *,
    unnamed: int = 0,
) -> Operation:
    """The operation after a step: `changed` are the ids that items have now, `position` is how far it looked.

    `unnamed` is how many more were changed, none of them a canary.
    """
    count = len(changed) + unnamed
    canaries = (*operation.canary_ids, *changed[: operation.canaries_left]) if operation.canary else ()
    watching = bool(operation.canaries_left) and len(canaries) == operation.canary
    status = OperationStatus.RUNNING
    if watching:
        status = OperationStatus.WATCHING
    elif exhausted or operation.changed + count == operation.limit:
        status = OperationStatus.FINISHED
    samples = {code: list(ids) for code, ids in operation.samples.items()}
    for each in skipped:
        known = samples.setdefault(each.code, [])
        if len(known) < MAX_SAMPLES:
            known.append(each.id)
    wait = round(count / operation.rate * SECOND) if operation.rate else 0
    return msgspec.structs.replace(
        operation,
        status=status,
        updated_at=now,
        next_at=Instant(now + wait),
        position=operation.position if position is None else position,
        steps=operation.steps + 1,
        changed=operation.changed + count,
        canary_ids=canaries,
        skipped=dict(Counter(operation.skipped) + Counter(each.code for each in skipped)),
        samples={code: tuple(ids) for code, ids in samples.items()},
    )


def is_outdated(operation: Operation, steps: int, status: OperationStatus | None) -> bool:
    """Whether what somebody sets, who read the operation at that step, comes too late.

    A step was made since, somebody paused or ended it, or another process has set the same.
    """
    return steps != operation.steps or not operation.is_active or status is operation.status


def with_status(
    operation: Operation, now: Instant, status: OperationStatus | None, problem: str | None, rate: float | None
) -> Operation:
    """The operation as a person, or the broker, sets it. Raises OperationEnded. What is None stays as it is.

    A new rate counts from now; one that is 0 means as fast as it goes. The next step of one that goes on may run now.
    One that was paused before its canaries were judged goes on watching them.
    """
    if operation.ended:
        raise OperationEnded(operation.id, operation.status.value)
    resumed = status is OperationStatus.RUNNING and operation.status is not OperationStatus.RUNNING
    only_canaries = operation.canary > 0 and operation.canaries_left <= 0 and operation.changed <= operation.canary
    if resumed and operation.status is OperationStatus.PAUSED and only_canaries:
        status = OperationStatus.WATCHING
    return msgspec.structs.replace(
        operation,
        status=operation.status if status is None else status,
        problem=operation.problem if problem is None else problem,
        rate=operation.rate if rate is None else rate or None,
        updated_at=now,
        next_at=now if resumed or rate is not None else operation.next_at,
    )


class AuditRow(msgspec.Struct, frozen=True):
    """What the audit says of an operation."""

    verb: str
    count: int
    note: str


def audit_start(operation: Operation) -> AuditRow:
    """It was started: the filter, and how many items it is expected to meet."""
    where = msgspec.json.encode(operation.where).decode()
    return AuditRow(f"start {operation.verb}", operation.expected or 0, _noted(operation, f" where {where}"))


def audit_finish(operation: Operation) -> AuditRow:
    """It has met every item: how many it changed."""
    return AuditRow(operation.verb.value, operation.changed, _noted(operation, ""))


def audit_change(operation: Operation, status: OperationStatus | None) -> AuditRow:
    """It was paused, resumed, cancelled, stopped, or given another rate."""
    how = "set rate" if status is None else f"set {status}"
    said = "" if operation.problem is None else f": {operation.problem}"
    return AuditRow(f"{how} {operation.verb}", operation.changed, f"operation {operation.id}{said}")


def _noted(operation: Operation, said: str) -> str:
    note = "" if operation.note is None else f": {operation.note}"
    return f"operation {operation.id}{said}{note}"
