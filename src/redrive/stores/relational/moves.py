"""Items from elsewhere: import with full history, and moves between stores (leave, receive, remove, close)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from redrive.contract.base import LEDGER_RETENTION
from redrive.contract.maintenance_calls import CloseMove, FinishMove, Import, Receive
from redrive.contract.queries import ListMoves, ListOpenMoves, MoveTarget, OpenMove
from redrive.contract.replies import REPLY_TO, headers_on_arrival
from redrive.model.arrival import ArrivalState, MoveRoute, import_state, ledger_key, move_arrival_state
from redrive.model.feed import FeedKind
from redrive.model.holder import passing_holders
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import NO_OVERRIDES, HistoryEvent, Item, Receipt, Settled, Status
from redrive.model.limits import MAX_PRIORITY
from redrive.model.manual_change import ItemSnapshot, ManualAction, death_text
from redrive.model.payload import JSON
from redrive.stores.relational import dead_letters, feed, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.deduplication import known_source, remember_source
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import check_max_size
from redrive.stores.relational.session import Executor

_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout,
        overrides, source_id, origin_id, origin_queue, payload, home_store)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def import_items(batch: Batch, call: Import) -> tuple[Receipt, ...]:
    """Import all items, or none; known items are not changed."""
    row = batch.queue(call.queue)
    known = {item.id: known_source(batch, row, item.id) or _present(batch, row, item) for item in call.items}
    # Of several with one id the first is taken; the others are known by then.
    new = {item.id: item for item in reversed(call.items) if known[item.id] is None}
    landings = {id: import_state(item, row.queue, batch.now) for id, item in new.items()}
    check_max_size(batch, row, sum(arrival.needs_room for arrival in landings.values()))
    receipts: list[Receipt] = []
    written: list[ItemId] = []
    for item in call.items:
        there = known[item.id]
        if there is None:
            item_row = write(batch, row, item, landings[item.id])
            remember_source(batch, row, item.id, item_row.item_no, item_row.id_suffix)
            feed.append_event(
                batch,
                FeedKind.IMPORTED,
                row.queue.name,
                item_row.item_no,
                item_row.id_suffix,
                source_id=item.id,
                actor=call.actor,
            )
            there = known[item.id] = item_row.id
            written.append(there)
            receipts.append(Receipt(there))
        else:
            receipts.append(Receipt(there, duplicate=True))
    if written:
        verdicts.audit(batch, call.actor, "import", row.queue.name, written, len(written))
    return tuple(receipts)


def _present(batch: Batch, row: QueueRow, item: Item) -> ItemId | None:
    """The id of the very item, where it lives in this namespace and would come to the queue that it is in or was in."""
    item_row = find_by_id(batch, item.id)
    if item_row is None or item_row.queue not in batch.by_key:
        return None
    return item_row.id if row.key == item_row.queue or row.queue.name == item.queue else None


def write(batch: Batch, row: QueueRow, item: Item, arrival: ArrivalState) -> ItemRow:
    """Make an item of one that lived elsewhere, under a new id."""
    number, id_suffix, _ = batch.allocate_id()
    enqueue_at = None if arrival.ready_at == item.put_at else arrival.ready_at
    content_type = None if item.content_type == JSON else item.content_type
    overrides = None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode()
    stored = (number, id_suffix, row.key, item.put_at, item.priority, enqueue_at, content_type, _headers(item.headers))
    origin = (item.id, item.origin_id or item.id, item.origin_queue or item.queue)
    batch.execute(_ITEM, (*stored, arrival.expire_timeout, overrides, *origin, item.payload, arrival.home_store))
    if REPLY_TO in item.headers:
        batch.mark_replies(row)
    counters = item.counters
    item_row = ItemRow(
        number,
        id_suffix,
        row.key,
        arrival.status,
        MAX_PRIORITY - item.priority,
        arrival.ready_at,
        number,
        arrival.expire_deadline,
        counters.deliveries,
        counters.attempts,
        counters.failures,
        counters.losses,
        counters.redrives,
        item.first_leased_at,
        holders=arrival.holders,
    )
    _write_records(batch, item_row, item, arrival)
    insert_row(batch, item_row)
    return item_row


def _write_records(batch: Batch, item_row: ItemRow, item: Item, arrival: ArrivalState) -> None:
    """Write history, deaths, and the index entry of an item that is dead or archived."""
    for entry in arrival.first:
        verdicts.record(batch, item_row, entry)
    item_row.entries += arrival.omitted
    for entry in arrival.last:
        verdicts.record(batch, item_row, entry)
    for death in item.deaths:
        verdicts.record_death(batch, item_row, death)
    archived = arrival.status is Status.ARCHIVED
    item_row.archived_from = arrival.archived_from
    if arrival.is_dropped:
        item_row.dropped_at = item.history[-1].at
    if arrival.is_dead_letter or arrival.archived_from is Status.DEAD:
        death = item.deaths[-1]
        dead_letters.add_dead_letter(batch, item_row, death, death_text(death, item.history), archived=archived)
        if arrival.status is Status.DEAD or archived:
            item_row.ended_at, item_row.dead_reason = death.at, death.reason
    elif archived:  # its history has when that was
        item_row.ended_at = item.history[-1].at
        dead_letters.add_archived(batch, item_row, item_row.ended_at)


def _headers(headers: Mapping[str, str]) -> str | None:
    return msgspec.json.encode(headers).decode() if headers else None


_RECEIVED = """
    SELECT item_no, id_suffix FROM redrive_ledger
    WHERE queue = ? AND source_id = ? AND (closed_at IS NULL OR closed_at > ?)"""
_OPEN = """
    INSERT INTO redrive_ledger (queue, source_id, item_no, id_suffix, closed_at, store) VALUES (?, ?, ?, ?, NULL, ?)
    ON CONFLICT (queue, source_id) DO UPDATE SET item_no = excluded.item_no, id_suffix = excluded.id_suffix,
        closed_at = NULL"""
_CLOSE = "UPDATE redrive_ledger SET closed_at = ? WHERE queue = ? AND source_id = ? AND closed_at IS NULL RETURNING 1"
_ARRIVED = """
    SELECT m.item_no, i.id_suffix, e.queue, e.death_no
    FROM redrive_moving AS m CROSS JOIN redrive_finished AS e ON e.item_no = m.item_no
    CROSS JOIN redrive_item AS i ON i.item_no = m.item_no
    WHERE m.item_no IN carray(?)"""
_DESTINATIONS = """
    WITH RECURSIVE each(target) AS (
        SELECT (SELECT min(target) FROM redrive_moving WHERE namespace = ?1)
        UNION ALL
        SELECT (SELECT min(target) FROM redrive_moving WHERE namespace = ?1 AND target > each.target)
        FROM each WHERE each.target IS NOT NULL)
    SELECT target, (
        SELECT since FROM redrive_moving WHERE namespace = ?1 AND target = each.target ORDER BY key LIMIT 1)
    FROM each WHERE target IS NOT NULL"""
_MOVING = """
    SELECT m.item_no, i.expire_timeout, length(i.payload)
    FROM redrive_moving AS m CROSS JOIN redrive_item AS i ON i.item_no = m.item_no
    WHERE m.namespace = ?1 {which} ORDER BY m.key LIMIT ?2"""
_OPEN_MOVES = """
    SELECT queue, source_id FROM redrive_ledger
    WHERE store = ? AND closed_at IS NULL AND source_id > ? ORDER BY source_id, queue"""


def start_move(
    batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow, kind: FeedKind, to: str
) -> Settled:
    """Start a manual move to another store: the item is moving, and still stored here."""
    redriven, status = kind is FeedKind.REDRIVEN, item.status_without_lease
    delete_row(batch, item_row)
    if redriven:
        dead_letters.remove_dead_letter(batch, item_row)
        item_row.attempts = item_row.failures = item_row.losses = 0
        item_row.redrives += 1
        item_row.holders, item_row.expire_deadline = (), None
    item_row.status, item_row.ended_at = Status.MOVING, batch.now
    item_row.holders = passing_holders(item_row.holders)
    item_row.route = MoveRoute(to, batch.now, kind, Status.PENDING if redriven else status)
    verdicts.record_action(
        batch, action, item_row, HistoryEvent.REDRIVEN if redriven else HistoryEvent.MOVED, item.queue, status, to=to
    )
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, kind, item.queue, item_row)
    return Settled(item_row.id, item.queue, Status.MOVING, item_row.counters)


def receive(batch: Batch, call: Receive) -> Receipt:
    """An item received before stays known, regardless of its outcome here."""
    row = batch.queue(call.queue)
    headers = headers_on_arrival(call.move.item.headers, call.store, batch.store)
    item = msgspec.structs.replace(call.move.item, headers=headers)
    key = ledger_key(item.id)
    known = batch.execute(_RECEIVED, (row.key, key, batch.now - LEDGER_RETENTION)).fetchone()
    if known is not None:
        return Receipt(make_id(*known), duplicate=True)
    arrival = move_arrival_state(call.move, row.queue, call.store, batch.store, batch.now)
    check_max_size(batch, row, int(arrival.needs_room))
    if call.move.route.kind is FeedKind.DEAD and not row.queue.is_dead_queue:
        batch.mark_dead_queue(row)
    item_row = write(batch, row, item, arrival)
    batch.execute(_OPEN, (row.key, key, item_row.item_no, item_row.id_suffix, call.store))
    batch.count_delta(row.key, "redriven_total", call.move.route.kind is FeedKind.REDRIVEN)
    feed.append_event(batch, FeedKind.ARRIVED, row.queue.name, item_row.item_no, item_row.id_suffix, source_id=item.id)
    return Receipt(item_row.id)


def finish_move(batch: Batch, call: FinishMove) -> int:
    """They are in the other store now: with a handful of statements for all of them."""
    id_suffixes = {number: id_suffix for number, id_suffix in map(parse_id, call.ids) if number <= MAX_NUMBER}
    rows = batch.execute(_ARRIVED, (batch.table(id_suffixes),)).fetchall()
    gone = [row for row in rows if row[1] == id_suffixes[row[0]] and row[2] in batch.by_key]
    if not gone:
        return 0
    if dead := [death_no for *_, death_no in gone if death_no is not None]:
        dead_letters.remove_dead_letters(batch, batch.table(dead))
    numbers = batch.table([item_no for item_no, *_ in gone])
    for table in ("moving", "finished", "item", "history", "death", "former_id"):
        batch.execute(f"DELETE FROM redrive_{table} WHERE item_no IN carray(?)", (numbers,))
    for queue, count in Counter(queue for _, _, queue, _ in gone).items():
        batch.count_status(queue, Status.MOVING, -count)
    return len(gone)


def close_move(batch: Batch, call: CloseMove) -> int:
    """The sender will not send these items again; a delayed request may still arrive."""
    row = batch.queue(call.queue)
    keys = map(ledger_key, call.source_ids)
    return sum(batch.execute(_CLOSE, (batch.now, row.key, key)).get is not None for key in keys)


def destinations(executor: Executor, namespace_key: int | None) -> tuple[MoveTarget, ...]:
    """Return the targets of moving items: one step per target."""
    rows: Iterable[Any] = executor.execute(_DESTINATIONS, (namespace_key,))
    return tuple(MoveTarget(*row) for row in rows)


def moving(executor: Executor, namespace_key: int | None, query: ListMoves) -> list[tuple[int, int | None, int]]:
    """The items that left first: number, the expire_timeout it was put with, and the size of the payload."""
    values: tuple[Any, ...] = (namespace_key, query.limit)
    if query.to is None:
        found = executor.execute(_MOVING.format(which=""), values)
    else:
        found = executor.execute(_MOVING.format(which="AND m.target = ?3"), (*values, query.to))
    rows: list[tuple[int, int | None, int]] = found.fetchall()
    return rows


def open_moves(executor: Executor, names: Mapping[int, str], query: ListOpenMoves) -> tuple[OpenMove, ...]:
    """In the order of the ids that they had."""
    after = "" if query.after is None else ledger_key(query.after)
    found: list[OpenMove] = []
    rows = executor.stream(_OPEN_MOVES, (query.store, after))
    try:
        for queue, key in rows:
            if queue in names:
                found.append(OpenMove(names[queue], ItemId(key[1:])))
            if len(found) == query.limit:
                break
    finally:
        rows.close()
    return tuple(found)
