"""Moves between stores: each moving item is transferred to its destination, with retries until it has arrived.

Four transactions, two in each store. Each is idempotent, and any process that knows both stores may continue where
another one stopped. See `redrive.model.arrival`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import CommitCalls, Flow, OnStore, ReadQuery, commit_call, run, run_query
from redrive.broker.validation import check_integer
from redrive.clock import Instant
from redrive.contract.maintenance_calls import CloseMove, FinishMove, Receive
from redrive.contract.queries import GetItem, GetQueue, ListMoves, ListMoveTargets, ListOpenMoves, MoveTarget, OpenMove
from redrive.errors import Closed, InvalidInput, ItemNotFound, QueueNotFound, RedriveError, StoreError
from redrive.model.arrival import Move
from redrive.model.duration import MINUTE, SECOND, format_duration
from redrive.model.ids import ItemId
from redrive.model.item import Receipt, Status
from redrive.model.limits import MAX_BATCH, is_remote, make_address, split_address
from redrive.model.text import format_instant
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.core import Core

_log = events.logger("redrive.moves")

BATCH_SIZE = 100
"""Maximum number of items that another store receives in one transaction."""
FIRST_PAUSE = SECOND
LONGEST_PAUSE = MINUTE
"""The longest back-off: a queue that cannot be reached is retried after a pause that doubles each time, up to this."""
STUCK_AFTER = 5 * MINUTE
"""An item that has been moving for longer is reported to the operator."""


class PendingMove(msgspec.Struct, frozen=True):
    """An item that is moving to another store."""

    id: ItemId
    queue: str
    """The queue that it still is in."""
    to: str
    """`name@store`."""
    since: Instant
    problem: str | None = None
    """The problem of the last attempt of this program. None if it made none, or the last one succeeded."""
    stuck: bool = False
    """True if it has been moving for more than 5 minutes."""

    def __str__(self) -> str:
        told = "" if self.problem is None else f": {self.problem}"
        return f"{self.id} from {self.queue} to {self.to} since {format_instant(self.since)}{told}"


class _MoveAttempt(msgspec.Struct, frozen=True):
    """The failed attempts to reach a queue, and the time of the next one."""

    tries: int
    until: Instant
    problem: str


class MoveBackoff:
    """The back-off of this process for each destination queue. It is not stored."""

    def __init__(self) -> None:
        self._trials: dict[str, _MoveAttempt] = {}
        self.looked_up_to: dict[str, ItemId | None] = {}
        """By store: the source_id up to which its open moves were checked; None: from the start."""

    def is_due(self, to: str, now: Instant) -> bool:
        """Return whether the queue may be tried now. A clock that was set back does not delay it."""
        trial = self._trials.get(to)
        return trial is None or not now < trial.until <= now + LONGEST_PAUSE

    def problem(self, to: str) -> str | None:
        """Return the problem of the last attempt, or None."""
        trial = self._trials.get(to)
        return None if trial is None else trial.problem

    def went_well(self, to: str) -> None:
        """Reset the back-off: the queue received its items."""
        self._trials.pop(to, None)

    def left_to_others(self, to: str, store: str, now: Instant) -> None:
        """Leave the queue to a program that knows its store; this one checks again after LONGEST_PAUSE."""
        self._trials[to] = _MoveAttempt(1, Instant(now + LONGEST_PAUSE), f"this program knows no store '{store}'")

    def failed(self, to: str, error: RedriveError, now: Instant) -> None:
        """Record a failed attempt, and double the back-off."""
        before = self._trials.get(to)
        tries = 1 if before is None else before.tries + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE << min(tries - 1, 20))
        self._trials[to] = _MoveAttempt(tries, Instant(now + pause), str(error))
        if not isinstance(error, Closed):
            _log.warning("move_failed", to=to, retry_in_seconds=format_duration(pause), error=str(error))


def resume(core: Core, store: str | None = None) -> Flow[int]:
    """Transfer the next items of each destination, in one store or in all. Returns how many arrived."""
    arrived = 0
    for destination in (yield from due(core)):
        if store is None or split_address(destination.to)[1] == store:
            arrived += yield from _take(core, destination)
    return arrived


def due(core: Core) -> Flow[list[MoveTarget]]:
    """Return the destinations of moving items, except those whose back-off has not expired."""
    found: tuple[MoveTarget, ...] = yield from run_query(ListMoveTargets())
    return [each for each in found if core.trials.is_due(each.to, core.clock.now())]


def _take(core: Core, destination: MoveTarget) -> Flow[int]:
    to = destination.to
    queue, store = split_address(to)
    assert store is not None
    if not core.stores.is_known(store):
        core.trials.left_to_others(to, store, core.clock.now())
        return 0
    moves: tuple[Move, ...] = yield from run_query(ListMoves(to, BATCH_SIZE))
    if not moves:
        return 0
    try:
        results = yield OnStore(store, CommitCalls([Receive(queue, move, core.store.name) for move in moves]))
    except RedriveError as error:  # unknown store, unreachable, or outcome unknown: the items stay as they are
        core.trials.failed(to, error, core.clock.now())
        return 0
    refusal = next((result for result in results if isinstance(result, RedriveError)), None)
    if refusal is None:
        core.trials.went_well(to)
    else:
        core.trials.failed(to, refusal, core.clock.now())
    ids = tuple(move.item.id for move, result in zip(moves, results, strict=True) if isinstance(result, Receipt))
    if ids:
        yield from commit_call(FinishMove(ids))
        yield from _close(core, store, [OpenMove(queue, id) for id in ids], core.store.name)
    return len(ids)


def _close(core: Core, at: str, moves: list[OpenMove], came_from: str) -> Flow[None]:
    """Notify the store that received items that their source has deleted them. `close_left_open` finds the rest."""
    queues: dict[str, list[ItemId]] = {}
    for move in moves:
        queues.setdefault(move.queue, []).append(move.source_id)
    calls = [CloseMove(queue, came_from, tuple(ids)) for queue, ids in queues.items()]
    try:
        yield OnStore(at, CommitCalls(calls))
    except RedriveError as error:
        _log.info("move_not_closed", to=at, source=came_from, error=str(error))


def close_left_open(core: Core, store: str) -> Flow[int]:
    """Close moves from a store that has deleted its items, if the process that moved them stopped before that.

    Checks one page, from where the last one ended. Returns how many were closed.
    """
    looked_up_to = core.trials.looked_up_to
    found: tuple[OpenMove, ...] = yield from run_query(ListOpenMoves(store, BATCH_SIZE, looked_up_to.get(store)))
    looked_up_to[store] = found[-1].source_id if len(found) == BATCH_SIZE else None
    gone = []
    for move in found:
        try:
            item = yield OnStore(store, ReadQuery(GetItem(move.source_id)))
        except ItemNotFound:
            gone.append(move)
        except RedriveError as error:
            _log.info("move_not_closed", to=core.store.name, source=store, error=str(error))
            break
        else:
            if item.status is not Status.MOVING:
                gone.append(move)
    if gone:
        yield from _close(core, core.store.name, gone, store)
    return len(gone)


def list_pending_moves(core: Core, limit: int) -> Flow[tuple[PendingMove, ...]]:
    """List moving items, oldest move first."""
    check_integer("limit", limit, 1, MAX_BATCH)
    found: tuple[Move, ...] = yield from run_query(ListMoves(None, limit))
    now = core.clock.now()
    return tuple(
        PendingMove(
            move.item.id,
            move.item.queue,
            move.route.to,
            move.route.since,
            core.trials.problem(move.route.to),
            now - move.route.since > STUCK_AFTER,
        )
        for move in found
    )


def target_of(core: Core, to: str) -> Flow[str]:
    """Return the address of a target queue, here or in another store. Raises if that store is unknown, or has no such
    queue.

    A store that cannot be reached is accepted: it receives the items later.
    """
    address = core.address("queue", to)
    if not is_remote(address):
        return address
    queue, store = split_address(address)
    assert store is not None
    try:
        yield OnStore(store, ReadQuery(GetQueue(queue)))
    except QueueNotFound:
        raise QueueNotFound(address, core.store.namespace) from None
    except StoreError as error:
        _log.warning("move_failed", to=address, error=str(error))
    return address


def address_of(core: Core, queue: str, other: Core) -> Flow[str]:
    """Return the address of a queue of another broker, which may be on the same store. Raises if this program has no
    name for that store."""
    if other.place == core.place:
        return queue
    for name in core.stores.others(core):
        if core.stores.place_of(name) is None:
            with suppress(RedriveError):  # this opens it
                yield OnStore(name, ReadQuery(GetQueue(queue)))
        if core.stores.place_of(name) == other.place:
            return make_address(queue, name)
    place, namespace = other.place
    raise InvalidInput(
        f"queue '{queue}' is in another store, {place}, namespace '{namespace}'; use one broker for both, or name that "
        "store: connect(…, store_name='HERE', stores={'THERE': 'URL'})"
    )


class MoveThreads:
    """The threads that move items: one for each destination store, while items move there."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._running: dict[str, bool] = {}
        """By store: whether it was requested again since its thread last checked."""
        self._threads: dict[str, threading.Thread] = {}
        self._closed = False

    def ensure_running(self, store: str) -> None:
        """Start the thread of a store, or make it run once more: items move there, or moves from it are open."""
        with self._lock:
            if self._closed:
                return
            if store in self._running:
                self._running[store] = True
                return
            self._running[store] = False
            self._threads[store] = threading.Thread(
                target=self._run, args=(store,), name=f"redrive-moves-{store}", daemon=True
            )
            self._threads[store].start()

    def close(self) -> None:
        """Stop after the current step of each thread."""
        with self._lock:
            self._closed = True
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self, store: str) -> None:
        again = True
        while again and not self._closed:
            arrived = 0
            try:
                arrived = run(self._core, resume(self._core, store))
                if not arrived and self._core.stores.is_known(store):
                    run(self._core, close_left_open(self._core, store))
            except Closed:
                pass
            except RedriveError as error:
                _log.warning("move_thread_failed", to=store, error=str(error))
            except Exception:
                _log.exception("move_internal_error", to=store)
            again = arrived > 0 or self._is_asked_again(store)

    def _is_asked_again(self, store: str) -> bool:
        with self._lock:
            again = self._running[store]
            self._running[store] = False
            if not again:
                del self._running[store], self._threads[store]
            return again
