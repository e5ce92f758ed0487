"""Where an item stands: reading it, taking it from its place, laying it in another.

An item is in exactly one place; `take` and `lay` always come in pairs, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.feed import FeedKind
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import WORK, Counters, Death, Result, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.moves import Passage
from redrive.model.reason import DeadReason
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.marks import READY
from redrive.stores.relational.session import Executor

STATE = (
    "rank, ready_at, seq, expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, "
    "entries, deaths, letter"
)
_MARKS = ", ?" * len(STATE.split(","))


class Place(msgspec.Struct):
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
    passage: Passage | None = None
    """Where it goes and why (moving)."""

    @property
    def id(self) -> ItemId:
        return make_id(self.n, self.tail)

    @property
    def counters(self) -> Counters:
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)


_READY_FRESH = f"""SELECT {STATE} FROM redrive_ready
    WHERE queue = ?1 AND rank = ?2 AND ready_at = ?3 AND seq = ?4 AND n = ?4"""
_READY_REQUEUED = f"SELECT {STATE} FROM redrive_ready WHERE n = ? AND seq <> n"
_WAITING = f"SELECT status, held_by, {STATE} FROM redrive_waiting WHERE n = ?"
_LEASE = f"SELECT queue, token, deadline, leased_at, worker, {STATE} FROM redrive_lease WHERE n = ? /*+ FOR UPDATE */"
_LEASES = f"""
    SELECT n, queue, token, deadline, leased_at, worker, {STATE} FROM redrive_lease
    WHERE n IN carray(?) /*+ ORDER BY n FOR UPDATE */"""
_ENDED_HOW = "status, ended_at, dead_reason, archived_from, held_by, result, result_type"
_ENDED = f"SELECT {_ENDED_HOW}, {STATE} FROM redrive_ended WHERE n = ?"
_LAY_READY = f"INSERT INTO redrive_ready (queue, n, {STATE}) VALUES (?, ?{_MARKS})"
_LAY_WAITING = f"INSERT INTO redrive_waiting (n, queue, status, held_by, {STATE}) VALUES (?, ?, ?, ?{_MARKS})"
_LAY_ENDED = f"""
    INSERT INTO redrive_ended (n, queue, {_ENDED_HOW}, {STATE})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?{_MARKS})"""
_PASSAGE = "SELECT target, since, kind, status FROM redrive_moving WHERE n = ?"
_LAY_MOVING = "INSERT INTO redrive_moving (n, namespace, target, since, kind, status) VALUES (?, ?, ?, ?, ?, ?)"
_ITEM = f"SELECT tail, queue, {MAX_PRIORITY} - priority, coalesce(enqueue_at, put_at) FROM redrive_item WHERE n = ?"
_LINEAGE = "SELECT tail, n FROM redrive_lineage WHERE old = ?"
_EARLIER = "SELECT old, tail FROM redrive_lineage WHERE n = ? ORDER BY old"
_TAIL = "SELECT tail FROM redrive_item WHERE n = ?"
_LAST_DEATH = "SELECT data FROM redrive_death WHERE n = ? ORDER BY key DESC LIMIT 1"
_LOOKS = 10
"""How often an item is looked for: where several transactions write, it may change its place between two statements,
and is then in none of those that were looked at."""
_decode_death = msgspec.json.Decoder(Death).decode


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


def last_death(executor: Executor, n: int) -> Death:
    """The newest death of an item, of which there is one."""
    return _decode_death(executor.execute(_LAST_DEATH, (n,)).get)


def find(executor: Executor, n: int) -> Place | None:
    """Where an item stands. None where there is none."""
    for _ in range(_LOOKS):
        item = executor.execute(_ITEM, (n,)).fetchone()
        if item is None:
            return None
        if place := _find(executor, n, *item):
            return place
    raise AssertionError(f"item {n} is in no place")


def _find(executor: Executor, n: int, tail: int, queue: int, rank: int, ready_at: Instant) -> Place | None:
    """One look at each place."""
    if place := find_leased(executor, n, tail):
        return place
    fresh = executor.execute(_READY_FRESH, (queue, rank, ready_at, n)).fetchone()
    looks = iter(()) if fresh else executor.first_rows(((_READY_REQUEUED, (n,)), (_WAITING, (n,)), (_ENDED, (n,))))
    if row := fresh or next(looks):
        place = Place(n, tail, queue, Status.PENDING, *row)
        place.ready = True
        return place
    if row := next(looks):
        place = Place(n, tail, queue, Status(row[0]), *row[2:])
        place.held_by = row[1]
        return place
    row = next(looks)
    if row is None:
        return None
    status, ended_at, dead_reason, archived_from, held_by, result, result_type = row[:7]
    place = Place(n, tail, queue, Status(status), *row[7:])
    place.ended_at, place.held_by = ended_at, held_by
    place.result = None if result is None else Result(result, result_type)
    place.dead_reason = None if dead_reason is None else DeadReason(dead_reason)
    place.archived_from = None if archived_from is None else Status(archived_from)
    if place.status is Status.MOVING:
        moving = executor.execute(_PASSAGE, (n,)).fetchone()
        if moving is None:  # it left between the two looks
            return None
        to, since, kind, arrives_as = moving
        place.passage = Passage(to, since, FeedKind(kind), Status(arrives_as))
    return place


def find_leased(executor: Executor, n: int, tail: int) -> Place | None:
    """Where an item stands, if a worker holds it."""
    row = executor.execute(_LEASE, (n,)).fetchone()
    return None if row is None else _leased(n, tail, row)


def find_all_leased(batch: Batch, tails: Mapping[int, int]) -> dict[int, Place]:
    """Where those of these items stand that workers hold; the tail of each by its number."""
    rows = batch.execute(_LEASES, (batch.table(tails),))
    return {n: _leased(n, tails[n], row) for n, *row in rows}


def _leased(n: int, tail: int, row: Sequence[Any]) -> Place:
    place = Place(n, tail, row[0], Status.ACTIVE, *row[5:])
    place.token, place.deadline, place.leased_at, place.worker = row[1:5]
    return place


def take(batch: Batch, place: Place) -> None:
    """Take an item from where it stands."""
    batch.tally_status(place.queue, place.status, -1)
    if place.status is Status.ACTIVE:
        batch.write("DELETE FROM redrive_lease WHERE n = ?", (place.n,))
        place.token = place.deadline = place.leased_at = place.worker = None
    elif place.ready:
        key = (place.queue, place.rank, place.ready_at, place.seq)
        batch.execute("DELETE FROM redrive_ready WHERE queue = ? AND rank = ? AND ready_at = ? AND seq = ?", key)
        place.ready = False
    elif place.status in WORK:
        batch.execute("DELETE FROM redrive_waiting WHERE n = ?", (place.n,))
    else:
        batch.execute("DELETE FROM redrive_ended WHERE n = ?", (place.n,))
        if place.passage is not None:
            batch.execute("DELETE FROM redrive_moving WHERE n = ?", (place.n,))
            place.passage = None
        place.ended_at = place.dead_reason = place.archived_from = place.result = None


def lay(batch: Batch, place: Place) -> None:
    """Lay an item where its status, its hold and its time say."""
    batch.tally_status(place.queue, place.status, 1)
    if place.status is Status.PENDING or place.status is Status.FAILED:
        due = place.held_by is None and place.ready_at <= batch.now
        batch.arrivals[batch.by_key[place.queue].queue.name] += due
        if due and place.status is Status.PENDING:
            place.ready = True
            lay_ready(batch, place.queue, place.n, *_state(place))
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


def lay_ready(batch: Batch, queue: int, n: int, *state: Any) -> None:
    """Lay an item in the ready index, with its STATE."""
    rank, ready_at, _, expire_deadline, *_ = state
    batch.laid(queue, READY[rank], ready_at)
    if expire_deadline is not None:
        batch.laid(queue, "ready_expiry", expire_deadline)
    batch.write(_LAY_READY, (queue, n, *state))


def _state(place: Place) -> tuple[int | None, ...]:
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
