"""The state row of an item: read it, delete it from one table, insert it into another.

An item has exactly one state row; `delete_row` and `insert_row` always come in pairs, in one transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.arrival import MoveRoute
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.holder import Holders, ItemHolder, decode_holders, holder_names
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id, parse_token
from redrive.model.item import WAITING_STATUSES, Counters, Result, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.stores.relational.batch import Batch, Stage
from redrive.stores.relational.holder_index import delete_holders, write_holders
from redrive.stores.relational.low_water_marks import READY
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value

STATE_COLUMNS = (
    "rank, ready_at, seq, expire_deadline, deliveries, attempts, failures, losses, redrives, first_leased_at, "
    "entries, deaths, death_no"
)
DROPPED = "dropped"
"""The status of archived items that were dropped, in redrive_finished."""
_UNREADABLE_HOLDERS = (ItemHolder("(damaged)", is_lasting=True),)
_T = TypeVar("_T")
_MARKS = ", ?" * len(STATE_COLUMNS.split(","))
_STATE = slice(4, 4 + len(STATE_COLUMNS.split(",")))
_ACTIVE = Status.ACTIVE


class ItemRow(msgspec.Struct, gc=False):
    """The state of an item, with its counters. Columns of the other state tables are None."""

    item_no: int
    id_suffix: int
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
    """Number of history entries so far, including those no longer stored."""
    deaths: int = 0
    death_no: int | None = None
    """The number of its last death, while it is a dead letter or archived."""
    token: int | None = None
    deadline: Instant | None = None
    leased_at: Instant | None = None
    worker: str | None = None
    ready: bool = False
    """True if it is in redrive_ready."""
    holders: Holders = ()
    was_dead: bool = False
    """True if it was leased although it is dead."""
    ended_at: Instant | None = None
    dead_reason: DeadReason | None = None
    archived_from: Status | None = None
    """The status of an archived item before it was archived."""
    dropped_at: Instant | None = None
    """Time of the drop, if that is why it is archived. Then `ended_at` is not known here."""
    result: Result | None = None
    route: MoveRoute | None = None
    """Target and reason of the move (moving)."""
    damage: str | None = None
    """The table with a value that cannot be read, for which this has a substitute."""

    def read(self, table: str, decode: Callable[[Any], _T], raw: Any, substitute: _T) -> _T:
        """Return a decoded value, or the substitute."""
        return read_value(decode, raw, substitute, partial(setattr, self, "damage", f"redrive_{table}"))

    @property
    def id(self) -> ItemId:
        return make_id(self.item_no, self.id_suffix)

    @property
    def is_dead_letter(self) -> bool:
        """As in Record."""
        return self.death_no is not None and self.status is not Status.ARCHIVED

    @property
    def lies_in_dead_queue(self) -> bool:
        """True if it is a dead letter whose own status is not dead."""
        return self.is_dead_letter and self.status is not Status.DEAD and not self.was_dead

    @property
    def held_by(self) -> tuple[str, ...]:
        return holder_names(self.holders)

    @property
    def counters(self) -> Counters:
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)


_LEASE = f"""
    SELECT queue, {STATE_COLUMNS}, token, deadline, leased_at, worker, dead_reason FROM redrive_lease
    WHERE item_no = ? /*+ FOR UPDATE */"""
_LEASES = f"""
    SELECT item_no, queue, {STATE_COLUMNS}, token, deadline, leased_at, worker, dead_reason FROM redrive_lease
    WHERE item_no IN carray(?) /*+ ORDER BY item_no FOR UPDATE */"""
_ITEMS = "SELECT item_no, id_suffix, queue FROM redrive_item WHERE item_no IN carray(?)"
_FRESH = f"""
    SELECT r.item_no, {STATE_COLUMNS} FROM carray(?) AS c CROSS JOIN redrive_item AS i ON i.item_no = c.value
    CROSS JOIN redrive_ready AS r ON r.queue = i.queue AND r.rank = {MAX_PRIORITY} - i.priority
        AND r.ready_at = coalesce(i.enqueue_at, i.put_at) AND r.seq = i.item_no AND r.item_no = i.item_no"""
_REQUEUED = f"SELECT item_no, {STATE_COLUMNS} FROM redrive_ready WHERE item_no IN carray(?) AND seq <> item_no"
_SCHEDULED = f"SELECT item_no, status, held_by, {STATE_COLUMNS} FROM redrive_scheduled WHERE item_no IN carray(?)"
_OUTCOME = "status, ended_at, dead_reason, archived_from, held_by, result, result_type"
_FINISHED = f"SELECT item_no, {_OUTCOME}, {STATE_COLUMNS} FROM redrive_finished WHERE item_no IN carray(?)"
INSERT_READY = f"INSERT INTO redrive_ready (queue, item_no, {STATE_COLUMNS}) VALUES (?, ?{_MARKS})"
INSERT_SCHEDULED = (
    f"INSERT INTO redrive_scheduled (item_no, queue, status, held_by, {STATE_COLUMNS}) VALUES (?, ?, ?, ?{_MARKS})"
)
_INSERT_LEASE, _INSERT_EARLY_LEASE = (
    f"""
    INSERT INTO redrive_lease (item_no, queue, token, deadline, leased_at, worker, dead_reason, {STATE_COLUMNS}
        /*= , early */)
    VALUES (?, ?, ?, ?, ?, ?, ?{_MARKS} /*= , {early} */)"""
    for early in range(2)
)
_EXTEND = "UPDATE redrive_lease SET deadline = ? /*= , early = 0 */ WHERE item_no = ?"
_EXTEND_EARLY = "UPDATE redrive_lease SET deadline = ? /*= , early = 1 */ WHERE item_no = ?"
_INSERT_FINISHED = f"""
    INSERT INTO redrive_finished (item_no, queue, {_OUTCOME}, {STATE_COLUMNS})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?{_MARKS})"""
_ROUTES = "SELECT item_no, target, since, kind, status FROM redrive_moving WHERE item_no IN carray(?)"
_INSERT_MOVING = (
    "INSERT INTO redrive_moving (item_no, namespace, target, since, kind, status) VALUES (?, ?, ?, ?, ?, ?)"
)
_FORMER_ID = "SELECT old_id_suffix, item_no FROM redrive_former_id WHERE old_item_no = ?"
_MOVED = "SELECT old_item_no, old_id_suffix, item_no FROM redrive_former_id WHERE old_item_no IN carray(?)"
_EARLIER = "SELECT old_item_no, old_id_suffix FROM redrive_former_id WHERE item_no = ? ORDER BY old_item_no"
ID_SUFFIX = "SELECT id_suffix FROM redrive_item WHERE item_no = ?"
BULK_THRESHOLD = 4
"""Up to this many items, one query per item costs no more than one query for all."""
_MAX_READS = 10
"""Maximum number of reads of one item. If several transactions write, its row may move to another table between two
statements, and then none of them finds it."""


def resolve(executor: Executor, id: ItemId) -> int | None:
    """Return the number of the item that has this id, or had it before a move."""
    number, id_suffix = parse_id(id)
    if number > MAX_NUMBER:  # no item ever had such an id
        return None
    if executor.execute(ID_SUFFIX, (number,)).get == id_suffix:
        return number
    moved: tuple[Any, ...] | None = executor.execute(_FORMER_ID, (number,)).fetchone()
    return moved[1] if moved is not None and moved[0] == id_suffix else None


def earlier_ids(executor: Executor, item_no: int) -> tuple[ItemId, ...]:
    """Return the ids that an item had before its moves, oldest first."""
    return tuple(make_id(old, id_suffix) for old, id_suffix in executor.execute(_EARLIER, (item_no,)))


def find(executor: Executor, item_no: int) -> ItemRow | None:
    """Return the state row of an item, or None."""
    for _ in range(_MAX_READS):
        item_row = find_all(executor, (item_no,)).get(item_no)
        if item_row is not None or executor.execute(ID_SUFFIX, (item_no,)).get is None:
            return item_row
    raise AssertionError(f"item {item_no} has no state row")


def find_by_id(executor: Executor, id: ItemId) -> ItemRow | None:
    """Return the state row of the item that has this id, or had it before a move; or None."""
    number, id_suffix = parse_id(id)
    if number > MAX_NUMBER:  # no item ever had such an id
        return None
    item_row = find_all(executor, (number,)).get(number)
    if item_row is not None and item_row.id_suffix == id_suffix:
        return item_row
    item_no = resolve(executor, id)
    return None if item_no is None else find(executor, item_no)


def find_all(executor: Executor, numbers: Iterable[int]) -> dict[int, ItemRow]:
    """Return the state rows of items by number, with one query per table, until all are found.

    Unless the transaction has the namespace locked, an item whose row moves concurrently may be missing.
    """
    listed = (executor.table(numbers),)
    items, *states = [executor.request(statement, listed) for statement in (_ITEMS, *_STATES)]
    where = {item_no: (id_suffix, queue) for item_no, id_suffix, queue in items()}
    found: dict[int, ItemRow] = {}
    # Items of manual changes have mostly ended: the last table is read first.
    for rows, item_row in zip(reversed(states), reversed(_STATES.values()), strict=True):
        if len(found) == len(where):
            break
        for item_no, *row in rows():
            if item_no in where:
                found.setdefault(item_no, item_row(item_no, *where[item_no], row))
    if moving := [item_no for item_no, item_row in found.items() if item_row.status is Status.MOVING]:
        stored = executor.execute(_ROUTES, (executor.table(moving),))
        routes = {item_no: found[item_no].read("moving", _route, row, None) for item_no, *row in stored}
        for item_no in moving:
            found[item_no].route = routes.get(item_no)
            if item_no not in routes:
                del found[item_no]
    return found


def find_by_ids(executor: Executor, ids: Collection[ItemId]) -> dict[ItemId, ItemRow]:
    """Return the state rows of the items that have these ids, or had them before a move."""
    numbers = dict(_parsed(ids))
    found = {item_row.id: item_row for item_row in find_all(executor, numbers.values()).values()}
    former = {id: number for id, number in numbers.items() if id not in found}
    if former:
        moved = executor.execute(_MOVED, (executor.table(former.values()),)).fetchall()
        now = {make_id(old, id_suffix): item_no for old, id_suffix, item_no in moved}
        item_rows = find_all(executor, {now[id] for id in former if id in now})
        found.update({id: item_rows[now[id]] for id in former if now.get(id) in item_rows})
    return {id: found[id.lower()] for id in ids if id.lower() in found}  # type: ignore[index]


def _parsed(ids: Iterable[ItemId]) -> Iterator[tuple[ItemId, int]]:
    for id in ids:
        with contextlib.suppress(RedriveError):  # an invalid id has no item
            number, _ = parse_id(id)
            if number <= MAX_NUMBER:
                yield ItemId(id.lower()), number


def _ready(item_no: int, id_suffix: int, queue: int, row: Sequence[Any]) -> ItemRow:
    item_row = ItemRow(item_no, id_suffix, queue, Status.PENDING, *row)
    item_row.ready = True
    return item_row


def _scheduled(item_no: int, id_suffix: int, queue: int, row: Sequence[Any]) -> ItemRow:
    item_row = ItemRow(item_no, id_suffix, queue, Status.PENDING, *row[2:])
    item_row.status = item_row.read("scheduled", Status, row[0], Status.PENDING)
    item_row.holders = item_row.read("scheduled", decode_holders, row[1], _UNREADABLE_HOLDERS)
    return item_row


def _finished(item_no: int, id_suffix: int, queue: int, row: Sequence[Any]) -> ItemRow:
    status, ended_at, dead_reason, archived_from, held_by, result, result_type = row[:7]
    dropped = status == DROPPED
    item_row = ItemRow(item_no, id_suffix, queue, Status.ARCHIVED, *row[7:])
    if not dropped:
        substitute = Status.COMPLETED if item_row.death_no is None else Status.DEAD
        item_row.status = item_row.read("finished", Status, status, substitute)
    item_row.ended_at, item_row.dropped_at = (None, ended_at) if dropped else (ended_at, None)
    item_row.holders = item_row.read("finished", decode_holders, held_by, _UNREADABLE_HOLDERS)
    item_row.result = None if result is None else Result(result, result_type)
    if dead_reason is not None:
        item_row.dead_reason = item_row.read("finished", DeadReason, dead_reason, DeadReason.UNDECODABLE)
    if archived_from is not None:
        item_row.archived_from = item_row.read("finished", Status, archived_from, None)
    return item_row


def _route(row: Sequence[Any]) -> MoveRoute:
    to, since, kind, arrives_as = row
    return MoveRoute(to, since, FeedKind(kind), Status(arrives_as))


def token_numbers(token: str) -> tuple[int, int, int]:
    """Return the numbers of a token; zeros, which no item has, if they are larger than a row can have."""
    numbers = parse_token(token)
    return numbers if max(numbers) <= MAX_NUMBER else (0, 0, 0)


def find_leased(executor: Executor, item_no: int, id_suffix: int) -> ItemRow | None:
    """Return the state row of an item if it is leased."""
    row = executor.execute(_LEASE, (item_no,)).fetchone()
    return None if row is None else _leased(item_no, id_suffix, row)


def find_all_leased(executor: Executor, id_suffixes: Mapping[int, int]) -> dict[int, ItemRow]:
    """Return the state rows of those items that are leased; `id_suffixes` has the suffix of each by number."""
    rows = executor.execute(_LEASES, (executor.table(id_suffixes),))
    return {item_no: _leased(item_no, id_suffixes[item_no], row) for item_no, *row in rows}


def _leased(item_no: int, id_suffix: int, row: Sequence[Any]) -> ItemRow:
    queue, *state, dead_reason = row
    item_row = ItemRow(item_no, id_suffix, queue, _ACTIVE, *state)
    if dead_reason is not None:
        item_row.was_dead = True
        item_row.dead_reason = item_row.read("lease", DeadReason, dead_reason, DeadReason.UNDECODABLE)
    return item_row


_STATES: dict[str, Callable[[int, int, int, Sequence[Any]], ItemRow]] = {
    _LEASES: lambda item_no, id_suffix, _, row: _leased(item_no, id_suffix, row),
    _FRESH: _ready,
    _REQUEUED: _ready,
    _SCHEDULED: _scheduled,
    _FINISHED: _finished,
}
"""The query of each table of state rows, and the function that makes a row of its columns."""


def delete_row(batch: Batch, item_row: ItemRow) -> None:
    """Delete the state row of an item."""
    batch.count_status(item_row.queue, item_row.status, -1)
    delete_holders(batch, item_row)
    if item_row.status is Status.ACTIVE:
        batch.write("DELETE FROM redrive_lease WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_STATE)
        item_row.token = item_row.deadline = item_row.leased_at = item_row.worker = item_row.dead_reason = None
    elif item_row.ready:
        key = (item_row.queue, item_row.rank, item_row.ready_at, item_row.seq)
        batch.write(
            "DELETE FROM redrive_ready WHERE queue = ? AND rank = ? AND ready_at = ? AND seq = ?",
            key,
            Stage.DELETE_STATE,
        )
        item_row.ready = False
    elif item_row.status in WAITING_STATUSES:
        batch.write("DELETE FROM redrive_scheduled WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_STATE)
    else:
        batch.write("DELETE FROM redrive_finished WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_STATE)
        if item_row.route is not None:
            batch.write("DELETE FROM redrive_moving WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_STATE)
            item_row.route = None
        item_row.ended_at = item_row.dead_reason = item_row.archived_from = item_row.result = None
        item_row.dropped_at = None


def insert_row(batch: Batch, item_row: ItemRow) -> None:
    """Insert the state row of an item into the table that its status, hold and time call for."""
    batch.count_status(item_row.queue, item_row.status, 1)
    held_by = write_holders(batch, item_row)
    if item_row.status is Status.PENDING or item_row.status is Status.FAILED:
        due = not item_row.holders and item_row.ready_at <= batch.now
        batch.arrivals[batch.by_key[item_row.queue].queue.name] += due
        if due and item_row.status is Status.PENDING:
            item_row.ready = True
            insert_ready_row(batch, item_row.queue, item_row.item_no, *state_values(item_row))
        else:
            if not item_row.holders:
                batch.lower_mark(item_row.queue, "scheduled", item_row.ready_at)
            if item_row.expire_deadline is not None:
                batch.lower_mark(item_row.queue, "scheduled_expiry", item_row.expire_deadline)
            batch.write(
                INSERT_SCHEDULED,
                (item_row.item_no, item_row.queue, item_row.status.value, held_by, *state_values(item_row)),
            )
        return
    dead_reason = None if item_row.dead_reason is None else item_row.dead_reason.value
    if item_row.status is Status.ACTIVE:
        assert item_row.deadline is not None
        early = item_row.deadline < batch.now + batch.by_key[item_row.queue].settings.lease_timeout
        lease = (item_row.token, item_row.deadline, item_row.leased_at, item_row.worker, dead_reason)
        statement = _INSERT_EARLY_LEASE if early else _INSERT_LEASE
        batch.write(statement, (item_row.item_no, item_row.queue, *lease, *state_values(item_row)))
        return
    dropped_at = item_row.dropped_at
    assert item_row.ended_at is not None or dropped_at is not None
    archived_from = None if item_row.archived_from is None else item_row.archived_from.value
    result = (None, None) if item_row.result is None else (item_row.result.payload, item_row.result.content_type)
    status, ended_at = (item_row.status.value, item_row.ended_at) if dropped_at is None else (DROPPED, dropped_at)
    ended = (item_row.item_no, item_row.queue, status, ended_at, dead_reason, archived_from, held_by, *result)
    batch.write(_INSERT_FINISHED, (*ended, *state_values(item_row)))
    if item_row.route is not None:
        to, since, kind, arrives_as = msgspec.structs.astuple(item_row.route)
        batch.write(_INSERT_MOVING, (item_row.item_no, batch.namespace_key, to, since, kind.value, arrives_as.value))


def extend_row(batch: Batch, item_row: ItemRow, deadline: Instant) -> None:
    """Set another deadline for the lease of an item."""
    early = deadline < batch.now + batch.by_key[item_row.queue].settings.lease_timeout
    batch.execute(_EXTEND_EARLY if early else _EXTEND, (deadline, item_row.item_no))


def insert_ready_row(batch: Batch, queue: int, item_no: int, *state: Any) -> None:
    """Insert a row with these STATE columns into redrive_ready."""
    rank, ready_at, _, expire_deadline, *_ = state
    batch.lower_mark(queue, READY[rank], ready_at)
    if expire_deadline is not None:
        batch.lower_mark(queue, "ready_expiry", expire_deadline)
    batch.write(INSERT_READY, (queue, item_no, *state))


def state_values(item_row: ItemRow) -> tuple[int | None, ...]:
    """Return the values of STATE_COLUMNS, which are fields in this order."""
    return msgspec.structs.astuple(item_row)[_STATE]
