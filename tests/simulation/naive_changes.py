"""The naive rules of what people do to many items: undo, move, purge, import, and operations.

From the docstrings of `ManualChange`, `Import` and `StepOperation`; nothing here is shared with `redrive.stores`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from tests.simulation.naive import NEVER, Naive, Twin

WORK = ("pending", "failed")
AT_WORK = ("pending", "failed", "active", "dead")
DEAD_QUEUE = "morgue"


@dataclass(frozen=True)
class Where:
    """Which items an operation is for."""

    status: str
    queue: str | None = None
    min_redrives: int = 0
    max_redrives: int | None = None

    def given(self) -> dict[str, str | int]:
        """As `find` and `start_operation` take it."""
        limits = {"queue": self.queue, "min_redrives": self.min_redrives or None, "max_redrives": self.max_redrives}
        return {"status": self.status, **{name: value for name, value in limits.items() if value is not None}}


@dataclass
class NaiveOperation:
    verb: str
    changed: list[Twin] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """By the code of the error."""


def matching(naive: Naive, where: Where) -> list[Twin]:
    def is_meant(twin: Twin) -> bool:
        if where.status == "dead":
            fits = twin.status in AT_WORK and naive.is_dead_letter(twin)
        else:
            fits = twin.status == where.status
        few = where.max_redrives is None or twin.redrives <= where.max_redrives
        return fits and where.queue in (None, twin.queue) and twin.redrives >= where.min_redrives and few

    return [twin for twin in naive.items if is_meant(twin)]


def refusal(naive: Naive, twin: Twin, verb: str, to: str | None, *, force: bool = False) -> str | None:
    """The code of the error by which a change of an item is refused; None if it is made."""
    if twin.status is None:
        return "item_not_found"
    if twin.status == "active" and not force:
        return "item_active"
    status = "dead" if twin.was_dead else "pending" if twin.status == "active" else twin.status
    if not _applies(naive, twin, verb, status):
        return "wrong_status"
    if verb == "move" and to == twin.queue:
        return "invalid_input"
    if verb == "restore" or (verb == "undo" and status == "archived"):
        obstacle = naive.restore_obstacle(twin)
    elif verb in ("retry", "redrive"):
        obstacle = naive.obstacle(twin, target(twin, verb, to))
    elif verb == "move" and status != "dead":
        obstacle = naive.obstacle(twin, to or "")
    else:
        obstacle = None
    return {"full": "queue_full", "conflict": "idempotency_conflict", None: None}[obstacle]


def _applies(naive: Naive, twin: Twin, verb: str, status: str) -> bool:
    match verb:
        case "retry":
            return status in ("dead", "failed") or twin.status == "active"
        case "redrive":
            return status in (*WORK, "dead") and naive.is_dead_letter(twin)
        case "undo":
            return (status == "archived" and twin.dropped) or can_undo(twin)
        case "restore" | "purge":
            return status == "archived"
        case "archive":
            return status in (*WORK, "dead", "completed")
        case "move":
            return status in (*WORK, "dead")
        case _:
            return status in WORK


def can_undo(twin: Twin, operation: str | None = None) -> bool:
    """Whether an item was brought back, by this operation if one is given, and nothing happened to it since."""
    last = twin.redrive
    if last is None or twin.status != "pending" or operation not in (None, last.operation):
        return False
    return (last.deliveries, last.rows) == (twin.deliveries, twin.rows)


def target(twin: Twin, verb: str, to: str | None = None) -> str:
    """Where a retry or a redrive takes an item."""
    if verb == "redrive" and to is not None:
        return to
    return twin.queue if verb == "retry" or twin.status == "dead" or twin.was_dead else twin.died_in[-1]


def carry_out(naive: Naive, twin: Twin, verb: str, to: str | None = None, *, operation: str | None = None) -> None:
    """Make a change that is not refused."""
    match verb:
        case "retry" | "redrive":
            naive.again(twin, target(twin, verb, to), redriven=verb == "redrive", operation=operation)
        case "undo" if twin.status == "archived":
            naive.restore(twin)
        case "undo":
            undo(naive, twin)
        case "restore":
            naive.restore(twin)
        case "archive":
            naive.archive(twin)
        case "purge":
            twin.status = None
        case "move":
            move(naive, twin, to or "")
        case "bury":
            naive.end(twin, "bury")


def undo(naive: Naive, twin: Twin) -> None:
    """Back to where a dead letter was, as it was at its death, or as it lay in the dead queue."""
    assert twin.redrive is not None
    moves, was_dead = twin.queue != twin.redrive.queue, twin.redrive.was_dead
    twin.queue = twin.redrive.queue
    twin.redrive, twin.brought_back = None, False
    twin.redrives -= 1
    twin.rows += 1
    twin.keep_lasting_holders()
    reason, *counters = twin.at_death
    twin.attempts, twin.failures, twin.losses = counters if was_dead else (0, 0, 0)
    if was_dead:
        twin.status, twin.reason, twin.ended_at = "dead", reason, twin.died_at
    else:
        twin.in_dead_queue, twin.expires_at = True, NEVER
    if moves:
        twin.ready_at, twin.place = naive.now, naive.tail()


def move(naive: Naive, twin: Twin, to: str) -> None:
    """To the end of another queue. What lay in a dead queue is work where it goes."""
    if twin.status == "active":
        twin.status = "dead" if twin.was_dead else "pending"
    twin.was_dead, twin.deadline = False, NEVER
    twin.queue, twin.place, twin.in_dead_queue = to, naive.tail(), False
    twin.ready_at = max(twin.ready_at, naive.now)
    twin.rows += 1


def imported(naive: Naive, copy: Twin, queue: str) -> Twin:
    """What an item that was exported becomes in a queue. Keys, leases and lasting holders stay behind."""
    status = "dead" if copy.was_dead else copy.status
    twin = replace(copy, queue=queue, place=naive.tail(), key=None, put_to=queue, own_expiry=None, was_dead=False)
    twin.deadline, twin.died_in, twin.key_aside = NEVER, list(copy.died_in), None
    if status not in WORK:
        twin.ready_at = naive.now
    twin.status = status if status in ("failed", "dead", "archived") else "pending"
    twin.holders = {} if status == "dead" else {name: False for name, lasts in copy.holders.items() if not lasts}
    waits = bool(copy.died_in) and not copy.brought_back and status in (*WORK, "active")
    twin.in_dead_queue = waits and queue == DEAD_QUEUE
    if status == "archived":
        letter = naive.was_letter(copy)
        twin.before_archive = "dead" if letter else "failed" if copy.before_archive == "failed" else "pending"
    return twin


def run(
    naive: Naive, operation: NaiveOperation, twins: list[Twin], most: int, to: str | None, id: str, undoes: str | None
) -> list[Twin]:
    """Change items in this order until `most` of them were changed. Returns those that are left."""
    changed = 0
    for place, twin in enumerate(twins):
        if changed == most:
            return twins[place:]
        code = refusal(naive, twin, operation.verb, to)
        if code is None and undoes is not None and operation.verb == "undo" and not can_undo(twin, undoes):
            code = "wrong_status"
        if code is not None:
            operation.skipped[code] += 1
            continue
        carry_out(naive, twin, operation.verb, to, operation=id)
        operation.changed.append(twin)
        changed += 1
    return []
