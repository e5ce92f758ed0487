"""Moves between stores: an item leaves, is received elsewhere, and is removed; what was written down is closed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from redrive.model.by_hand import Standing, status_at_rest
from redrive.model.feed import FeedKind
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import Event, Receipt, Settled, Status
from redrive.model.moves import Passage, arrival, ledger_key
from redrive.store import (
    LEDGER_TIMEOUT,
    CloseMove,
    Destination,
    FinishMove,
    ListMoves,
    ListOpenMoves,
    OpenMove,
    Receive,
)
from redrive.stores.relational import feed, letters
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.deeds import Deed
from redrive.stores.relational.imports import write
from redrive.stores.relational.places import Place, lay, take
from redrive.stores.relational.puts import check_size
from redrive.stores.relational.session import Executor

_RECEIVED = """
    SELECT n, tail FROM redrive_ledger WHERE queue = ? AND source_id = ? AND (closed_at IS NULL OR closed_at > ?)"""
_OPEN = """
    INSERT INTO redrive_ledger (queue, source_id, n, tail, closed_at, store) VALUES (?, ?, ?, ?, NULL, ?)
    ON CONFLICT (queue, source_id) DO UPDATE SET n = excluded.n, tail = excluded.tail, closed_at = NULL"""
_CLOSE = "UPDATE redrive_ledger SET closed_at = ? WHERE queue = ? AND source_id = ? AND closed_at IS NULL RETURNING 1"
_ARRIVED = """
    SELECT m.n, i.tail, e.queue, e.letter
    FROM redrive_moving AS m CROSS JOIN redrive_ended AS e ON e.n = m.n CROSS JOIN redrive_item AS i ON i.n = m.n
    WHERE m.n IN carray(?)"""
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
    SELECT m.n, i.expire_timeout, length(i.payload)
    FROM redrive_moving AS m CROSS JOIN redrive_item AS i ON i.n = m.n
    WHERE m.namespace = ?1 {which} ORDER BY m.key LIMIT ?2"""
_OPEN_MOVES = """
    SELECT queue, source_id FROM redrive_ledger
    WHERE store = ? AND closed_at IS NULL AND source_id > ? ORDER BY source_id, queue"""


def leave(batch: Batch, deed: Deed, item: Standing, place: Place, kind: FeedKind, to: str) -> Settled:
    """A person takes an item to another store: it is on its way, and still here."""
    redriven, status = kind is FeedKind.REDRIVEN, status_at_rest(item.status)
    take(batch, place)
    if redriven:
        letters.unmark(batch, place)
        place.attempts = place.failures = place.losses = 0
        place.redrives += 1
        place.held_by = place.expire_deadline = None
    place.status, place.ended_at = Status.MOVING, batch.now
    place.passage = Passage(to, batch.now, kind, Status.PENDING if redriven else status)
    deed.record(batch, place, Event.REDRIVEN if redriven else Event.MOVED, item.queue, status, to=to)
    lay(batch, place)
    deed.tell(batch, kind, item.queue, place)
    return Settled(place.id, item.queue, Status.MOVING, place.counters)


def receive(batch: Batch, call: Receive) -> Receipt:
    """What came before stays known, whatever became of it here."""
    row, item = batch.queue(call.queue), call.move.item
    key = ledger_key(item.id)
    known = batch.execute(_RECEIVED, (row.key, key, batch.now - LEDGER_TIMEOUT)).fetchone()
    if known is not None:
        return Receipt(make_id(*known), duplicate=True)
    landing = arrival(call.move, row.queue, call.store, batch.store, batch.now)
    check_size(batch, row, int(landing.needs_room))
    if call.move.passage.kind is FeedKind.DEAD and not row.queue.is_dead_queue:
        batch.mark_dead_queue(row)
    place = write(batch, row, item, landing)
    batch.execute(_OPEN, (row.key, key, place.n, place.tail, call.store))
    feed.tell(batch, FeedKind.ARRIVED, row.queue.name, place.n, place.tail, source_id=item.id)
    return Receipt(place.id)


def finish_move(batch: Batch, call: FinishMove) -> int:
    """They are in the other store now: with a handful of statements for all of them."""
    tails = {number: tail for number, tail in map(parse_id, call.ids) if number <= MAX_NUMBER}
    rows = batch.execute(_ARRIVED, (batch.table(tails),)).fetchall()
    gone = [row for row in rows if row[1] == tails[row[0]] and row[2] in batch.by_key]
    if not gone:
        return 0
    if dead := [letter for *_, letter in gone if letter is not None]:
        letters.unmark_all(batch, batch.table(dead))
    numbers = batch.table([n for n, *_ in gone])
    for table in ("moving", "ended", "item", "history", "death", "lineage"):
        batch.execute(f"DELETE FROM redrive_{table} WHERE n IN carray(?)", (numbers,))
    for queue, count in Counter(queue for _, _, queue, _ in gone).items():
        batch.tally_status(queue, Status.MOVING, -count)
    return len(gone)


def close_move(batch: Batch, call: CloseMove) -> int:
    """Nobody will bring these items again; but who was held up on the way may come late."""
    row = batch.queue(call.queue)
    keys = map(ledger_key, call.source_ids)
    return sum(batch.execute(_CLOSE, (batch.now, row.key, key)).get is not None for key in keys)


def destinations(executor: Executor, namespace_key: int | None) -> tuple[Destination, ...]:
    """Where items are on their way to: one step for each queue."""
    rows: Iterable[Any] = executor.execute(_DESTINATIONS, (namespace_key,))
    return tuple(Destination(*row) for row in rows)


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
    rows = executor.walk(_OPEN_MOVES, (query.store, after))
    try:
        for queue, key in rows:
            if queue in names:
                found.append(OpenMove(names[queue], ItemId(key[1:])))
            if len(found) == query.limit:
                break
    finally:
        rows.close()
    return tuple(found)
