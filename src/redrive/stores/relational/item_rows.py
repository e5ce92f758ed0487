"""Where an item stands: reading it, taking it from its place, laying it in another.

An item is in exactly one place; `take` and `lay` always come in pairs, in one transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.arrival import MoveRoute
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import WAITING_STATUSES, Counters, Result, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.stores.relational.batch import Batch, Stage
from redrive.stores.relational.item_details import ItemDetails
from redrive.stores.relational.low_water_marks import READY
from redrive.stores.relational.session import Executor

STATE = (
    "rank, ready_at, seq, expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, "
    "entries, deaths, letter"
)
_MARKS = ", ?" * len(STATE.split(","))


class ItemRow(msgspec.Struct):
    """Where an item stands, with its counters. The fields that other places have are None."""

    n: int
    tail: int
    queue: int
    status: Status
    rank: int
    ready_at: Instant
    seq: int
    expire_deadline: Instant | None = None
    deliveries: int = 0
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    redrives: int = 0
    first_leased_at: Instant | None = None
    entries: int = 0
    """History entries so far, those that are only counted included."""
    deaths: int = 0
    letter: int | None = None
    """The number of its last death, while it is a dead letter or archived."""
    ready: bool = False
    """It lies in the ready index."""
    held_by: str | None = None
    token: int | None = None
    deadline: Instant | None = None
    leased_at: Instant | None = None
    worker: str | None = None
    ended_at: Instant | None = None
    dead_reason: DeadReason | None = None
    archived_from: Status | None = None
    """What an archived item was."""
    result: Result | None = None
    passage: MoveRoute | None = None
    """Where it goes and why (moving)."""
    particulars: ItemDetails | None = None
    """What else is written about it, once somebody looked: see `item_details`."""

    @property
    def id(self) -> ItemId:
        return make_id(self.n, self.tail)

    @property
    def counters(self) -> Counters:
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)


_LEASE = f"SELECT queue, token, deadline, leased_at, worker, {STATE} FROM redrive_lease WHERE n = ? /*+ FOR UPDATE */"
_LEASES = f"""
    SELECT n, queue, token, deadline, leased_at, worker, {STATE} FROM redrive_lease
    WHERE n IN carray(?) /*+ ORDER BY n FOR UPDATE */"""
_ITEMS = "SELECT n, tail, queue FROM redrive_item WHERE n IN carray(?)"
_FRESH = f"""
    SELECT r.n, {STATE} FROM carray(?) AS c CROSS JOIN redrive_item AS i ON i.n = c.value
    CROSS JOIN redrive_ready AS r ON r.queue = i.queue AND r.rank = {MAX_PRIORITY} - i.priority
        AND r.ready_at = coalesce(i.enqueue_at, i.put_at) AND r.seq = i.n AND r.n = i.n"""
_REQUEUED = f"SELECT n, {STATE} FROM redrive_ready WHERE n IN carray(?) AND seq <> n"
_WAITING = f"SELECT n, status, held_by, {STATE} FROM redrive_waiting WHERE n IN carray(?)"
_ENDED_HOW = "status, ended_at, dead_reason, archived_from, held_by, result, result_type"
_ENDED = f"SELECT n, {_ENDED_HOW}, {STATE} FROM redrive_ended WHERE n IN carray(?)"
_LAY_READY = f"INSERT INTO redrive_ready (queue, n, {STATE}) VALUES (?, ?{_MARKS})"
_LAY_WAITING = f"INSERT INTO redrive_waiting (n, queue, status, held_by, {STATE}) VALUES (?, ?, ?, ?{_MARKS})"
_LAY_ENDED = f"""
    INSERT INTO redrive_ended (n, queue, {_ENDED_HOW}, {STATE})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?{_MARKS})"""
_PASSAGES = "SELECT n, target, since, kind, status FROM redrive_moving WHERE n IN carray(?)"
_LAY_MOVING = "INSERT INTO redrive_moving (n, namespace, target, since, kind, status) VALUES (?, ?, ?, ?, ?, ?)"
_LINEAGE = "SELECT tail, n FROM redrive_lineage WHERE old = ?"
_MOVED = "SELECT n FROM redrive_lineage WHERE old IN carray(?)"
_EARLIER = "SELECT old, tail FROM redrive_lineage WHERE n = ? ORDER BY old"
_TAIL = "SELECT tail FROM redrive_item WHERE n = ?"
_PLACES = (_ITEMS, _LEASES, _FRESH, _REQUEUED, _WAITING, _ENDED, _PASSAGES)
FEW = 4
"""Up to here a look at each item is no dearer than one look at all."""
_LOOKS = 10
"""How often an item is looked for: where several transactions write, it may change its place between two statements,
and is then in none of those that were looked at."""


def resolve(executor: Executor, id: ItemId) -> int | None:
    """The number of the item that has this id, or had it before it moved."""
    number, tail = parse_id(id)
    if number > MAX_NUMBER:  # nobody was ever given such an id
        return None
    if executor.execute(_TAIL, (number,)).get == tail:
        return number
    moved: tuple[Any, ...] | None = executor.execute(_LINEAGE, (number,)).fetchone()
    return moved[1] if moved is not None and moved[0] == tail else None


def earlier_ids(executor: Executor, n: int) -> tuple[ItemId, ...]:
    """Every id that an item had before its moves, oldest first."""
    return tuple(make_id(old, tail) for old, tail in executor.execute(_EARLIER, (n,)))


def known_ids(executor: Executor, id: ItemId) -> frozenset[ItemId]:
    """Every id of the item that has this one, or had it; only this one where the item is gone."""
    n = resolve(executor, id)
    if n is None:
        return frozenset({id})
    return frozenset({make_id(n, executor.execute(_TAIL, (n,)).get), *earlier_ids(executor, n)})


def find(executor: Executor, n: int) -> ItemRow | None:
    """Where an item stands. None where there is none."""
    for _ in range(_LOOKS):
        place = find_all(executor, (n,)).get(n)
        if place is not None or executor.execute(_TAIL, (n,)).get is None:
            return place
    raise AssertionError(f"item {n} is in no place")


def find_by_id(executor: Executor, id: ItemId) -> ItemRow | None:
    """Where the item stands that has this id, or had it before it moved. None where there is none."""
    number, tail = parse_id(id)
    if number > MAX_NUMBER:  # nobody was ever given such an id
        return None
    place = find_all(executor, (number,)).get(number)
    if place is not None and place.tail == tail:
        return place
    n = resolve(executor, id)
    return None if n is None else find(executor, n)


def find_all(executor: Executor, numbers: Iterable[int]) -> dict[int, ItemRow]:
    """Where items stand, by their numbers: one look at each place for all of them.

    Of a namespace that the transaction does not have for itself, one may be missing that changed its place meanwhile.
    """
    listed = (executor.table(numbers),)
    # All are sent before the first is waited for.
    items, *looks = [executor.execute(statement, listed) for statement in _PLACES]
    where = {n: (tail, queue) for n, tail, queue in items.fetchall()}
    leased, fresh, requeued, waiting, ended, moving = (look.fetchall() for look in looks)
    passages = {n: _passage(row) for n, *row in moving}
    found = {n: _leased(n, where[n][0], row) for n, *row in leased if n in where}
    for rows, place in ((fresh, _ready), (requeued, _ready), (waiting, _waiting), (ended, _ended)):
        found.update({n: place(n, *where[n], row) for n, *row in rows if n in where})
    for n in [n for n, place in found.items() if place.status is Status.MOVING]:
        found[n].passage = passages.get(n)
        if n not in passages:
            del found[n]
    return found


class ReadAhead:
    """Where many items stand that are to be changed one after the other: looked up together, before the first."""

    __slots__ = ("_batch", "_places")

    def __init__(self, batch: Batch, ids: Sequence[ItemId]) -> None:
        self._batch = batch
        self._places: dict[ItemId, ItemRow] = {}
        if len(ids) > FEW:
            tails = dict(_parsed(ids))
            # An item that is listed under an old id too is changed twice, and nobody can tell here when first.
            moved = {n for (n,) in batch.execute(_MOVED, (batch.table(tails),)).fetchall()}
            places = find_all(batch, [n for n in tails if n not in moved])
            self._places = {place.id: place for n, place in places.items() if place.tail == tails[n]}

    @property
    def places(self) -> Collection[ItemRow]:
        """Those that were found, and not changed yet."""
        return self._places.values()

    def take(self, id: ItemId) -> ItemRow | None:
        """Where an item stands now: as it was found, or with a look of its own, as whenever it is asked for again."""
        return self._places.pop(id, None) or find_by_id(self._batch, id)


def _parsed(ids: Iterable[ItemId]) -> Iterator[tuple[int, int]]:
    for id in ids:
        with contextlib.suppress(RedriveError):  # whoever changes it will be told
            number, tail = parse_id(id)
            if number <= MAX_NUMBER:
                yield number, tail


def _ready(n: int, tail: int, queue: int, row: Sequence[Any]) -> ItemRow:
    place = ItemRow(n, tail, queue, Status.PENDING, *row)
    place.ready = True
    return place


def _waiting(n: int, tail: int, queue: int, row: Sequence[Any]) -> ItemRow:
    place = ItemRow(n, tail, queue, Status(row[0]), *row[2:])
    place.held_by = row[1]
    return place


def _ended(n: int, tail: int, queue: int, row: Sequence[Any]) -> ItemRow:
    status, ended_at, dead_reason, archived_from, held_by, result, result_type = row[:7]
    place = ItemRow(n, tail, queue, Status(status), *row[7:])
    place.ended_at, place.held_by = ended_at, held_by
    place.result = None if result is None else Result(result, result_type)
    place.dead_reason = None if dead_reason is None else DeadReason(dead_reason)
    place.archived_from = None if archived_from is None else Status(archived_from)
    return place


def _passage(row: Sequence[Any]) -> MoveRoute:
    to, since, kind, arrives_as = row
    return MoveRoute(to, since, FeedKind(kind), Status(arrives_as))


def find_leased(executor: Executor, n: int, tail: int) -> ItemRow | None:
    """Where an item stands, if a worker holds it."""
    row = executor.execute(_LEASE, (n,)).fetchone()
    return None if row is None else _leased(n, tail, row)


def find_all_leased(batch: Batch, tails: Mapping[int, int]) -> dict[int, ItemRow]:
    """Where those of these items stand that workers hold; the tail of each by its number."""
    rows = batch.execute(_LEASES, (batch.table(tails),))
    return {n: _leased(n, tails[n], row) for n, *row in rows}


def _leased(n: int, tail: int, row: Sequence[Any]) -> ItemRow:
    place = ItemRow(n, tail, row[0], Status.ACTIVE, *row[5:])
    place.token, place.deadline, place.leased_at, place.worker = row[1:5]
    return place


def delete_row(batch: Batch, place: ItemRow) -> None:
    """Take an item from where it stands."""
    batch.tally_status(place.queue, place.status, -1)
    if place.status is Status.ACTIVE:
        batch.write("DELETE FROM redrive_lease WHERE n = ?", (place.n,), Stage.DELETE_STATE)
        place.token = place.deadline = place.leased_at = place.worker = None
    elif place.ready:
        key = (place.queue, place.rank, place.ready_at, place.seq)
        batch.write(
            "DELETE FROM redrive_ready WHERE queue = ? AND rank = ? AND ready_at = ? AND seq = ?",
            key,
            Stage.DELETE_STATE,
        )
        place.ready = False
    elif place.status in WAITING_STATUSES:
        batch.write("DELETE FROM redrive_waiting WHERE n = ?", (place.n,), Stage.DELETE_STATE)
    else:
        batch.write("DELETE FROM redrive_ended WHERE n = ?", (place.n,), Stage.DELETE_STATE)
        if place.passage is not None:
            batch.write("DELETE FROM redrive_moving WHERE n = ?", (place.n,), Stage.DELETE_STATE)
            place.passage = None
        place.ended_at = place.dead_reason = place.archived_from = place.result = None


def insert_row(batch: Batch, place: ItemRow) -> None:
    """Lay an item where its status, its hold and its time say."""
    batch.tally_status(place.queue, place.status, 1)
    if place.status is Status.PENDING or place.status is Status.FAILED:
        due = place.held_by is None and place.ready_at <= batch.now
        batch.arrivals[batch.by_key[place.queue].queue.name] += due
        if due and place.status is Status.PENDING:
            place.ready = True
            insert_ready_row(batch, place.queue, place.n, *_state(place))
        else:
            if place.held_by is None:
                batch.laid(place.queue, "waiting", place.ready_at)
            if place.expire_deadline is not None:
                batch.laid(place.queue, "waiting_expiry", place.expire_deadline)
            batch.write(_LAY_WAITING, (place.n, place.queue, place.status.value, place.held_by, *_state(place)))
        return
    assert place.ended_at is not None
    dead_reason = None if place.dead_reason is None else place.dead_reason.value
    archived_from = None if place.archived_from is None else place.archived_from.value
    result = (None, None) if place.result is None else (place.result.payload, place.result.content_type)
    ended = (
        place.n,
        place.queue,
        place.status.value,
        place.ended_at,
        dead_reason,
        archived_from,
        place.held_by,
        *result,
    )
    batch.write(_LAY_ENDED, (*ended, *_state(place)))
    if place.passage is not None:
        to, since, kind, arrives_as = msgspec.structs.astuple(place.passage)
        batch.write(_LAY_MOVING, (place.n, batch.namespace_key, to, since, kind.value, arrives_as.value))


def insert_ready_row(batch: Batch, queue: int, n: int, *state: Any) -> None:
    """Lay an item in the ready index, with its STATE."""
    rank, ready_at, _, expire_deadline, *_ = state
    batch.laid(queue, READY[rank], ready_at)
    if expire_deadline is not None:
        batch.laid(queue, "ready_expiry", expire_deadline)
    batch.write(_LAY_READY, (queue, n, *state))


def _state(place: ItemRow) -> tuple[int | None, ...]:
    return (
        place.rank,
        place.ready_at,
        place.seq,
        place.expire_deadline,
        place.deliveries,
        place.attempts,
        place.failures,
        place.losses,
        place.redrives,
        place.first_leased_at,
        place.entries,
        place.deaths,
        place.letter,
    )
