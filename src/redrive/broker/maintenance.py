"""Maintenance, which runs automatically: due items, expired leases and items, retention, operations, moves, breakers.

Safe in many processes concurrently: the store fences every change, so two sweeps settle each item once.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import CommitCalls, Flow, commit_call, run, run_query
from redrive.broker.flows import breakers, moves, operations
from redrive.broker.flows.canaries import watch
from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import SetOperation
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import Settle, StaleSettings
from redrive.contract.maintenance_calls import ApplyRetention, Expire, Promote
from redrive.contract.queries import GetNextDue, GetOverdue, ListOpenMoves, ListOperations, Overdue
from redrive.errors import Closed, NotFound, OutcomeUnknown, Overloaded, RedriveError, Refused, StoreDamaged, StoreError
from redrive.model.duration import MILLISECOND, MINUTE, SECOND
from redrive.model.item import Settled
from redrive.model.judge import OutcomeKind
from redrive.model.limits import split_address
from redrive.model.operation import Operation, OperationStatus
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

_log = events.logger("redrive.maintenance")

ACTOR = "maintenance"
"""The actor in the audit when an operation that cannot continue is stopped."""
MAX_OPERATIONS = 1000
"""Maximum number of operations that a step of the maintenance runs."""
LONGEST_PAUSE = SECOND
"""Maximum time between two steps of the maintenance, regardless of what the store says is due."""
CLOSING_PAUSE = MINUTE
"""Time between two searches for moves that were not closed."""
SHORTEST_PAUSE = 10 * MILLISECOND
"""Minimum time between two steps. It doubles while the same stays due and nothing changes: what is damaged, for
example, cannot be settled."""


class MaintenanceResult(msgspec.Struct, frozen=True):
    """The result of one step of the maintenance."""

    promoted: int = 0
    """Scheduled and failed items that became ready."""
    lost: int = 0
    """Leases that expired and were settled."""
    expired: int = 0
    """Items that expired and were settled."""
    removed: int = 0
    """Rows that retention changed or deleted."""
    operated: int = 0
    """Items that operations changed."""
    moved: int = 0
    """Items that arrived in another store."""
    guarded: int = 0
    """Items that circuit breakers held or released."""

    @property
    def full(self) -> bool:
        """True if a bound was reached, so that there is probably more to do."""
        return (
            max(self.promoted, self.lost + self.expired, self.removed, self.operated, self.guarded) >= MAINTENANCE_BATCH
        )


_NOTHING = MaintenanceResult()


def run_maintenance(core: Core, *, clean: bool = True, move: bool = True) -> Flow[MaintenanceResult]:
    """Run one bounded step; `clean` includes retention, `move` the moves to other stores."""
    promoted = yield from commit_call(Promote())
    lost, expired = yield from settle_overdue(core)
    removed = (yield from commit_call(ApplyRetention())) if clean else 0
    operated = yield from step_operations(core)
    guarded = yield from breakers.step(core)
    moved = 0
    if move:
        moved = yield from moves.resume(core)
        for store in core.stores.others(core):
            yield from moves.close_left_open(core, store)
    return MaintenanceResult(promoted, lost, expired, removed, operated, moved, guarded)


def settle_overdue(core: Core, queue: str | None = None) -> Flow[tuple[int, int]]:
    """Settle expired leases and expired items, of one queue or all. Returns how many of each."""
    overdue = yield from run_query(GetOverdue(queue))
    if not overdue:
        return 0, 0
    calls: list[Call] = []
    for found in overdue:
        calls.append((yield from _verdict_on(core, found)))
    lost = expired = 0
    results = yield CommitCalls(calls)
    for found, result in zip(overdue, results, strict=True):
        if isinstance(result, StaleSettings):
            core.cache_queue(result.queue)
        elif isinstance(result, Settled):
            lost += found.token is not None
            expired += found.token is None
            if core.meter is not None:
                kind = OutcomeKind.EXPIRED if found.token is None else OutcomeKind.LOST
                core.meter.settled(found.queue, kind, result, was_dead=found.dead_reason is not None)
    return lost, expired


def step_operations(core: Core) -> Flow[int]:
    """Make one step of each operation that is running and due, and read the canaries of those that wait for them.

    Returns how many items changed.
    """
    changed = 0
    for operation in (yield from run_query(ListOperations(limit=MAX_OPERATIONS, active_only=True))):
        try:
            changed += yield from _operate(core, operation)
        except StoreDamaged as damage:
            _log.warning("maintenance_failed", error=str(damage))
        except (Closed, StoreError, OutcomeUnknown, Overloaded):
            raise  # a failure of the store, not of the operation
        except RedriveError as error:
            yield from _stop(operation, error)
    return changed


def _operate(core: Core, operation: Operation) -> Flow[int]:
    """Make the next step of an operation, and return how many items it changed."""
    if operation.status is OperationStatus.WATCHING:
        operation = yield from watch(operation)
    if operation.status is not OperationStatus.RUNNING or operation.next_at > core.clock.now():
        return 0
    after = yield from operations.step(core, operation)
    # If another process made the step concurrently, the difference is its work.
    return after.changed - operation.changed if after.steps == operation.steps + 1 else 0


def _stop(operation: Operation, error: RedriveError) -> Flow[None]:
    """Stop an operation whose step was refused, and record the reason: a retry would be refused too."""
    _log.warning("operation_stopped", operation=operation.id, verb=operation.verb, error=str(error))
    with suppress(NotFound, Refused):  # it ended concurrently
        yield from commit_call(
            SetOperation(operation.id, ACTOR, OperationStatus.STOPPED, str(error), steps=operation.steps)
        )


def _verdict_on(core: Core, found: Overdue) -> Flow[Call]:
    queue = yield from core.queue(found.queue)
    if found.token is None:
        verdict = core.judge(queue, OutcomeKind.EXPIRED, found.counters, overrides=found.overrides)
        return Expire(found.id, verdict, queue.version)
    verdict = core.judge(
        queue,
        OutcomeKind.LOST,
        found.counters,
        overrides=found.overrides,
        expired=found.expired,
        dead_reason=found.dead_reason,
    )
    return Settle(found.token, OutcomeKind.LOST, verdict, queue.version)


class MaintenanceThread:
    """The thread that runs the maintenance of an open broker. An error is logged, and the next step runs as planned."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wake = threading.Event()
        self._asked = self._departed = False
        self._closed = False
        self._movers = moves.MoveThreads(core)
        self._looked_at = Instant(0)
        self._thread = threading.Thread(target=self._loop, name="redrive-maintenance", daemon=True)

    def start(self) -> None:
        """Start with the first step."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next step immediately."""
        self._asked = True
        self._wake.set()

    def departed(self) -> None:
        """Handle items that started to move to other stores; no full step runs before its time."""
        self._departed = True
        self._wake.set()

    def close(self) -> None:
        """Stop after the current step."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._movers.close()

    def _move(self, now: Instant) -> None:
        """Start a thread for each other store with something to move: one that does not answer delays nothing here."""
        core = self._core
        stores = {split_address(each.to)[1] for each in run(core, moves.due(core))}
        if abs(now - self._looked_at) >= CLOSING_PAUSE:
            self._looked_at = now
            stores |= {name for name in core.stores.others(core) if run(core, run_query(ListOpenMoves(name, 1)))}
        for store in stores:
            if store is not None:
                self._movers.ensure_running(store)

    def _loop(self) -> None:
        clock = self._core.clock
        cleaned_at = Instant(0)
        overdue, pause = None, SHORTEST_PAUSE
        while not self._closed:
            now = clock.now()
            next_at = Instant(now + LONGEST_PAUSE)
            # No caller waits for retention. It would slow down operations while they make one step after the other.
            clean = abs(now - cleaned_at) >= LONGEST_PAUSE
            try:
                upkeep = run(self._core, run_maintenance(self._core, clean=clean, move=False))
                self._move(now)
                if clean and upkeep.removed < MAINTENANCE_BATCH:
                    cleaned_at = now
                if upkeep.full:
                    continue
                due = run(self._core, run_query(GetNextDue()))
                if due is not None:
                    is_stuck = due == overdue and upkeep == _NOTHING
                    pause = min(2 * pause, LONGEST_PAUSE) if is_stuck else SHORTEST_PAUSE
                    next_at = max(min(next_at, due), Instant(now + pause))
                overdue = due if due is not None and due <= now else None
            except Closed:
                return
            except RedriveError as error:
                _log.warning("maintenance_failed", error=str(error))
            except Exception:
                _log.exception("maintenance_internal_error")
            self._wait(next_at)

    def _wait(self, next_at: Instant) -> None:
        """Wait until the next step is due or requested. Items that start to move are handled immediately."""
        core = self._core
        while not self._closed:
            core.clock.wait(self._wake, next_at)  # may return early, or long after: the clock may have been set back
            self._wake.clear()
            departed, self._departed = self._departed, False
            asked, self._asked = self._asked, False
            now = core.clock.now()
            if asked or not departed or not next_at - LONGEST_PAUSE <= now < next_at:
                return
            try:
                self._move(now)
            except Closed:
                return
            except RedriveError as error:
                _log.warning("maintenance_failed", error=str(error))
                return
