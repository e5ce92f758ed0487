"""Operations: changes of many items that are kept in the store, with progress, a rate, and exact totals."""

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
"""The verbs of operations."""
TRACKED_VERBS = frozenset({Verb.RETRY, Verb.REDRIVE, Verb.MOVE, Verb.BURY, Verb.ARCHIVE, Verb.RESTORE})
"""The verbs whose items can be found by the operation afterwards."""
MAX_SAMPLES = 10
"""The maximum number of ids that are kept of the items skipped for one reason."""


class OperationStatus(StrEnum):
    """The status of an operation."""

    RUNNING = "running"
    WATCHING = "watching"
    """The canaries are released, and it waits for their outcomes."""
    PAUSED = "paused"
    FINISHED = "finished"
    """All matching items were examined, or its limit is reached."""
    STOPPED = "stopped"
    """It stopped automatically; `problem` is the reason."""
    CANCELLED = "cancelled"


FINAL_STATUSES = frozenset({OperationStatus.FINISHED, OperationStatus.STOPPED, OperationStatus.CANCELLED})


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A change of many items. It changes the items that matched at its start, each item at most once.

    changed + the sum of skipped is the number of items examined so far. Items that another caller has changed in
    between, so that they no longer match, are not examined.
    """

    id: str
    verb: Verb
    where: Filter
    to: str | None = None
    """The queue that items go to (redrive, move)."""
    actor: str
    note: str | None = None
    rate: float | None = None
    """The maximum number of items per second."""
    expected: int | None = None
    """The number of items that matched at its start, or its limit if that is smaller, to show progress."""
    limit: int | None = None
    """The maximum number of items that it changes. None: all that match."""
    canary: int = 0
    """The number of items that are released first; the rest waits for their outcomes."""
    canary_success_ratio: float = 1.0
    """The share of the canaries that must complete before the rest follows."""
    canary_ids: tuple[ItemId, ...] = ()
    """The canaries released so far."""
    status: OperationStatus = OperationStatus.RUNNING
    problem: str | None = None
    """The reason why it stopped automatically."""
    created_at: Instant
    updated_at: Instant
    next_at: Instant
    """The instant from which its next step may run."""
    mark: int
    """The position of the store at its start: items that died or were put later are not changed."""
    position: int | None = None
    """The position of the last examined item. None before the first step."""
    steps: int = 0
    """The number of steps so far. A step names the number before it, so that two processes do each step once."""
    changed: int = 0
    skipped: Mapping[str, int] = {}
    """The number of items that were examined and not changed, by the code of the error."""
    samples: Mapping[str, tuple[ItemId, ...]] = {}
    """The ids of some of them, by the same code."""

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
        """The number of items examined so far."""
        return self.changed + sum(self.skipped.values())

    @property
    def ended(self) -> bool:
        """True if it has ended and changes nothing more."""
        return self.status in FINAL_STATUSES

    @property
    def is_running(self) -> bool:
        """True if its next step may run."""
        return self.status is OperationStatus.RUNNING

    @property
    def is_active(self) -> bool:
        """True if a broker must process it: it is running or watching its canaries."""
        return self.status in (OperationStatus.RUNNING, OperationStatus.WATCHING)

    def may_step(self, steps: int) -> bool:
        """Return whether the step after that number of steps is its next one."""
        return self.is_running and steps == self.steps

    @property
    def canaries_left(self) -> int:
        """The number of canaries that are still to be released."""
        return self.canary - len(self.canary_ids)

    @property
    def changes_left(self) -> int | None:
        """The number of changes after which a step ends: the canaries are released, or the limit is reached."""
        if self.canaries_left > 0:
            return self.canaries_left
        return None if self.limit is None else self.limit - self.changed


def check_bulk(verb: Verb, to: str | None) -> None:
    """Raise InvalidInput unless a verb applies to many items and has the target queue it needs."""
    if verb not in BULK_VERBS:
        raise InvalidInput(f"{verb} is no bulk operation; there are {', '.join(sorted(BULK_VERBS))}")
    if verb is Verb.MOVE and to is None:
        raise InvalidInput("move needs the queue to move to; name it with to=")


class SkippedItem(msgspec.Struct, frozen=True, gc=False):
    """An item that an operation examined and did not change, and the code of the error."""

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
    """Return the operation after a step: `changed` are the new ids of items, `position` is the last one examined.

    `unnamed` is the number of further changed items, none of them a canary.
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
    """Return whether a change by a process that read the operation at that step is too late.

    Since then another step was made, the operation was paused or has ended, or another process set the same status.
    """
    return steps != operation.steps or not operation.is_active or status is operation.status


def with_status(
    operation: Operation, now: Instant, status: OperationStatus | None, problem: str | None, rate: float | None
) -> Operation:
    """Return the operation with the status, problem or rate that an operator or the broker sets; None changes nothing.

    Raise OperationEnded if it has ended. A new rate applies from now on; 0 is unlimited. After a resume the next step
    may run immediately. An operation that was paused before its canaries were judged continues to watch them.
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
    """The audit row of an operation."""

    verb: str
    count: int
    note: str


def audit_start(operation: Operation) -> AuditRow:
    """Return the audit row of its start: the filter, and the expected number of items."""
    where = msgspec.json.encode(operation.where).decode()
    return AuditRow(f"start {operation.verb}", operation.expected or 0, _noted(operation, f" where {where}"))


def audit_finish(operation: Operation) -> AuditRow:
    """Return the audit row of its end: the number of changed items."""
    return AuditRow(operation.verb.value, operation.changed, _noted(operation, ""))


def audit_change(operation: Operation, status: OperationStatus | None) -> AuditRow:
    """Return the audit row of a pause, resume, cancellation or stop, or of another rate."""
    how = "set rate" if status is None else f"set {status}"
    said = "" if operation.problem is None else f": {operation.problem}"
    return AuditRow(f"{how} {operation.verb}", operation.changed, f"operation {operation.id}{said}")


def _noted(operation: Operation, said: str) -> str:
    note = "" if operation.note is None else f": {operation.note}"
    return f"operation {operation.id}{said}{note}"
