"""Queries: answered from one snapshot, off the commit path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, assert_never

import msgspec

from redrive.clock import Instant
from redrive.contract import Query
from redrive.contract.base import MOVE_BATCH_BYTES
from redrive.contract.queries import (
    AuditEntry,
    Counted,
    CountItems,
    FindItems,
    FindPlanSubjects,
    GetIdempotencyOwners,
    GetItem,
    GetItems,
    GetItemsByKey,
    GetLease,
    GetLeasedItem,
    GetLeases,
    GetNextDue,
    GetOperation,
    GetOverdue,
    GetQueue,
    GetResult,
    GetStats,
    ListAudit,
    ListGroups,
    ListMoves,
    ListMoveTargets,
    ListOpenMoves,
    ListOperations,
    ListQueues,
    ListRegistrations,
    ListStats,
    ListWorkerLeases,
    Overdue,
    Page,
    PlanPage,
    ReadFeed,
)
from redrive.errors import ItemNotFound, LeaseLost, QueueNotFound
from redrive.model.arrival import Move
from redrive.model.death import DeadReason
from redrive.model.filter import MAX_EXAMINED, Filter, Order, make_cursor, parse_cursor
from redrive.model.ids import MAX_NUMBER, ItemId, Token, item_id_of, make_id, make_token
from redrive.model.item import NO_OVERRIDES, Counters, Item
from redrive.stores.relational import (
    dead_letters,
    deduplication,
    feed,
    find,
    kept_results,
    moves,
    operations,
    registrations,
    stats,
)
from redrive.stores.relational import leases as relational_leases
from redrive.stores.relational.item_rows import (
    ItemRow,
    find_all,
    find_all_leased,
    find_by_id,
    find_by_ids,
    token_numbers,
)
from redrive.stores.relational.low_water_marks import above, each_queue, leases
from redrive.stores.relational.plan_subjects import read_plan_subjects
from redrive.stores.relational.queue_rows import QueueRow, namespace_key, queue_names, queue_rows
from redrive.stores.relational.records import RecordReader, overrides_of, read_items
from redrive.stores.relational.search_scope import read_scope
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value
from redrive.stores.rules.record import Record

_decode_ids: Callable[[Any], tuple[ItemId, ...]] = msgspec.json.Decoder(tuple[ItemId, ...]).decode
_AUDIT = """
    SELECT number, at, actor, verb, queue, ids, count, note FROM redrive_audit
    WHERE namespace = ? AND number < ? ORDER BY number DESC LIMIT ?"""

_LOST = f"""
    SELECT l.deadline, l.seq, l.item_no, i.id_suffix, l.token, l.worker, l.dead_reason, l.expire_deadline, i.overrides,
        l.deliveries, l.attempts, l.failures, l.losses, l.redrives
    FROM ({leases("*", "deadline <= ?2", "ORDER BY deadline LIMIT ?3")}) AS l
    CROSS JOIN redrive_item AS i ON i.item_no = l.item_no ORDER BY l.deadline LIMIT ?3"""
_EXPIRED = """
    SELECT p.expire_deadline, p.seq, p.item_no, i.id_suffix, NULL, NULL, NULL, p.expire_deadline, i.overrides,
        p.deliveries, p.attempts, p.failures, p.losses, p.redrives
    FROM redrive_{table} AS p CROSS JOIN redrive_item AS i ON i.item_no = p.item_no
    WHERE p.queue = ?1 AND p.expire_deadline <= ?2 {above} ORDER BY p.expire_deadline LIMIT ?3"""
_OVERDUE = (
    _LOST,
    *(
        _EXPIRED.format(table=table, above=above("p.expire_deadline", f"{table}_expiry"))
        for table in ("ready", "scheduled")
    ),
)


def _earliest(table: str, column: str, condition: str, mark: str) -> str:
    """Return an SQL query of each queue with its earliest instant in an index whose first column is the queue."""
    first = f"SELECT min({column}) AS at FROM {table} WHERE {condition} AND queue = each.queue"
    return _for_each_queue(table, condition, f"{first} {above(column, mark, 'each.queue')}")


def _for_each_queue(table: str, condition: str, instants: str) -> str:
    return f"""
    {each_queue(table, condition)}
    SELECT queue, at FROM (
        SELECT each.queue, (SELECT min(at) FROM ({instants}) AS instants) AS at FROM each) AS found
    WHERE at IS NOT NULL"""


_NEXT_LOST = _for_each_queue("redrive_lease", "true", leases("min(deadline) AS at", queue="each.queue"))
_NEXT_EXPIRED = tuple(
    _earliest(f"redrive_{table}", "expire_deadline", "expire_deadline IS NOT NULL", f"{table}_expiry")
    for table in ("ready", "scheduled")
)
_NEXT_DUE = _earliest("redrive_scheduled", "ready_at", "held_by IS NULL", "scheduled")


def answer_query(executor: Executor, query: Query, namespace: str, now: Instant) -> Any:
    """Answer a query. Raises the errors its docstring names."""
    match query:
        case GetQueue(name):
            return _queue(executor, namespace, name).queue
        case ListQueues():
            rows = queue_rows(executor, namespace)
            return tuple(sorted((row.queue for row in rows), key=lambda queue: queue.name))
        case GetStats(name):
            return stats.read_stats(executor, _queue(executor, namespace, name), now)
        case ListStats(names):
            return stats.list_stats(executor, namespace, names, now)
        case GetItem(id):
            return _item(executor, namespace, id)
        case GetItems(ids):
            return _items(executor, namespace, ids)
        case FindItems():
            return _page(executor, namespace, query)
        case FindPlanSubjects():
            return _plan_page(executor, namespace, query)
        case CountItems(where, cursor):
            return _count(executor, namespace, where, cursor)
        case ListGroups(name, limit):
            scope = read_scope(executor, namespace)
            return dead_letters.largest_groups(executor, scope, None if name is None else scope.key_of(name), limit)
        case ReadFeed():
            return feed.read(executor, namespace_key(executor, namespace), query)
        case GetIdempotencyOwners(name, keys):
            return deduplication.find_owners(executor, _queue(executor, namespace, name).key, keys, now)
        case GetItemsByKey(name, keys):
            by_key = deduplication.find_by_keys(executor, _queue(executor, namespace, name).key, keys, now)
            found = dict(zip(by_key, _items(executor, namespace, tuple(by_key.values())), strict=True))
            return tuple(found.get(key) for key in keys)
        case GetOperation():
            return operations.get(executor, namespace_key(executor, namespace), query)
        case ListOperations():
            return operations.newest(executor, namespace_key(executor, namespace), query)
        case GetLease(token):
            return _leased(executor, namespace, token).to_lease()
        case GetLeases(tokens):
            leased = _all_leased(executor, namespace, tokens)
            return tuple([None if record is None else record.to_lease() for record in leased])
        case GetLeasedItem(token):
            return _leased(executor, namespace, token).to_item()
        case ListWorkerLeases():
            return relational_leases.worker_leases(executor, queue_names(executor, namespace), query)
        case GetResult(id):
            return kept_results.read_result(executor, namespace_key(executor, namespace), id, now)
        case ListRegistrations():
            return registrations.list_registrations(executor, namespace_key(executor, namespace), query, now)
        case GetOverdue(name, limit):
            return tuple(_overdue(executor, namespace, name, limit, now))
        case ListAudit(limit, before):
            newest = MAX_NUMBER if before is None else before
            entries: Iterable[Any] = executor.execute(_AUDIT, (namespace, newest, limit))
            return tuple(_audit(*entry) for entry in entries)
        case ListMoveTargets():
            return moves.destinations(executor, namespace_key(executor, namespace))
        case ListMoves():
            return _moves(executor, namespace, query)
        case ListOpenMoves():
            return moves.open_moves(executor, queue_names(executor, namespace), query)
        case GetNextDue():
            return _next_due(executor, namespace)
        case _:
            assert_never(query)


def _next_due(executor: Executor, namespace: str) -> Instant | None:
    names = queue_names(executor, namespace)
    instants = [
        at
        for statement in (_NEXT_LOST, *_NEXT_EXPIRED, _NEXT_DUE)
        for queue, at in executor.execute(statement)
        if queue in names
    ]
    next_step = operations.next_step(executor, namespace_key(executor, namespace))
    return min(instants if next_step is None else [*instants, next_step], default=None)


def _page(executor: Executor, namespace: str, query: FindItems) -> Page:
    where, order = query.where, query.order
    scope = read_scope(executor, namespace)
    after = parse_cursor(where, order, query.cursor)
    found = find.select(executor, scope, where, limit=query.limit, after=after, newest=order is Order.NEWEST)
    item_rows = find_all(executor, found.numbers)
    items = read_items(executor, [item_rows[item_no] for item_no in found.numbers], scope.names)
    return Page(tuple(items), None if found.exhausted else _cursor(where, order, found.position))


def _plan_page(executor: Executor, namespace: str, query: FindPlanSubjects) -> PlanPage:
    where = query.where
    scope = read_scope(executor, namespace)
    found = find.select(
        executor, scope, where, limit=query.limit, after=parse_cursor(where, Order.OLDEST, query.cursor)
    )
    items = read_plan_subjects(executor, found.numbers, scope.names, with_last=query.with_last)
    return PlanPage(items, None if found.exhausted else _cursor(where, Order.OLDEST, found.position))


def _count(executor: Executor, namespace: str, where: Filter, cursor: str | None) -> Counted:
    scope = read_scope(executor, namespace)
    after = parse_cursor(where, Order.NEWEST, cursor)
    if where.has_stored_count:
        queue = None if where.queue is None else scope.key_of(where.queue)
        return Counted(dead_letters.count_dead_letters(executor, namespace, queue, where.fingerprint), None)
    found = find.select(executor, scope, where, limit=MAX_EXAMINED, after=after, newest=True)
    return Counted(len(found.numbers), None if found.exhausted else _cursor(where, Order.NEWEST, found.position))


def _cursor(where: Filter, order: Order, position: int | None) -> str:
    assert position is not None  # there is more, so something was examined
    return make_cursor(where, order, position)


def _queue(executor: Executor, namespace: str, name: str) -> QueueRow:
    for row in queue_rows(executor, namespace, name):
        return row
    raise QueueNotFound(name, namespace)


def _names_of(executor: Executor, namespace: str, item_rows: Iterable[ItemRow]) -> dict[int, str]:
    """Return the names of the queues of items by key; without those of other namespaces."""
    return queue_names(executor, namespace, {item_row.queue for item_row in item_rows})


def _item(executor: Executor, namespace: str, id: ItemId) -> Item:
    item_row = find_by_id(executor, id)
    names = {} if item_row is None else _names_of(executor, namespace, [item_row])
    if item_row is None or not names:
        raise ItemNotFound(id)
    return read_items(executor, [item_row], names)[0]


def _items(executor: Executor, namespace: str, ids: Sequence[ItemId]) -> tuple[Item | None, ...]:
    by_id = find_by_ids(executor, ids)
    names = _names_of(executor, namespace, by_id.values())
    found = {id: item_row for id, item_row in by_id.items() if item_row.queue in names}
    item_rows = {item_row.item_no: item_row for item_row in found.values()}  # several ids may be those of one item
    items = dict(zip(item_rows, read_items(executor, item_rows.values(), names), strict=True))
    return tuple([items[found[id].item_no] if id in found else None for id in ids])


def _moves(executor: Executor, namespace: str, query: ListMoves) -> tuple[Move, ...]:
    numbers: list[int] = []
    size = 0
    for item_no, payload_size in moves.moving(executor, namespace_key(executor, namespace), query):
        size += payload_size
        if numbers and size > MOVE_BATCH_BYTES:
            break
        numbers.append(item_no)
    item_rows = find_all(executor, numbers)  # missing ones arrived in the other store in between
    found = RecordReader(executor, queue_names(executor, namespace)).read(item_rows.values(), whole=True)
    there = (found[item_no] for item_no in numbers if item_no in found)
    return tuple(item.to_move() for item in there if item.route is not None and item.damage is None)


def _leased(executor: Executor, namespace: str, token: Token) -> Record:
    """Return the item that a token holds. Raises LeaseLost."""
    (record,) = _all_leased(executor, namespace, (token,))
    if record is not None:
        return record
    id = item_id_of(token)
    item_row = find_by_id(executor, id)
    known = item_row is not None and item_row.queue in _names_of(executor, namespace, [item_row])
    raise LeaseLost(id, item_row.status.value if item_row is not None and known else None)


def _all_leased(executor: Executor, namespace: str, tokens: Sequence[Token]) -> list[Record | None]:
    """Return the item that each token holds."""
    rows = find_all_leased(executor, {item_no: id_suffix for item_no, id_suffix, _ in map(token_numbers, tokens)})
    records = RecordReader(executor, _names_of(executor, namespace, rows.values())).read(rows.values())
    held = {record.grant.token: record for record in records.values() if record.grant is not None}
    return [held.get(token) for token in tokens]


def _overdue(executor: Executor, namespace: str, name: str | None, limit: int, now: Instant) -> list[Overdue]:
    if name is None:
        names = queue_names(executor, namespace)
        due = {
            queue
            for statement in (_NEXT_LOST, *_NEXT_EXPIRED)
            for queue, at in executor.execute(statement)
            if at <= now and queue in names
        }
    else:
        row = _queue(executor, namespace, name)
        names, due = {row.key: name}, {row.key}
    found: list[tuple[int, int, Overdue]] = []
    for key in sorted(due):
        for statement in _OVERDUE:
            entries: Iterable[Any] = executor.execute(statement, (key, now, limit))
            for since, seq, item_no, id_suffix, token, worker, reason, expire_deadline, overrides, *counts in entries:
                overdue = Overdue(
                    make_id(item_no, id_suffix),
                    names[key],
                    Counters(*counts),
                    read_value(overrides_of, overrides, NO_OVERRIDES, tuple),
                    None if token is None else make_token(item_no, id_suffix, token),
                    expire_deadline is not None and expire_deadline <= now,
                    worker,
                    None if reason is None else read_value(DeadReason, reason, DeadReason.UNDECODABLE, tuple),
                )
                found.append((since, seq, overdue))
    found.sort(key=lambda entry: entry[:2])
    return [overdue for _, _, overdue in found[:limit]]


def _audit(
    number: int, at: Instant, actor: str, verb: str, queue: str | None, ids: str, count: int, note: str | None
) -> AuditEntry:
    listed = read_value(_decode_ids, ids, None, tuple) or ()
    return AuditEntry(number, at, actor, verb, queue, listed, count, note)
