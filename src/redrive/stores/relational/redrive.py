"""Back to work, back again, and to another queue: retry, redrive, undo, move."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import ManualTarget
from redrive.errors import IdempotencyConflict, PayloadTooLarge
from redrive.model.arrival import check_unedited
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId, make_id
from redrive.model.item import OPEN_STATUSES, HistoryEvent, Result, Settled, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST, is_remote
from redrive.model.manual_change import (
    ItemSnapshot,
    counters_after_undo,
    counts_for_max_size,
    death_text,
    move_queue,
    redrive_queue,
    status_without_lease,
    stays_dead_letter,
    undo_target,
)
from redrive.model.payload import JSON
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, verdicts
from redrive.stores.relational.batch import Batch, QueueRow
from redrive.stores.relational.item_details import history_of, item_details
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_row
from redrive.stores.relational.moves import leave
from redrive.stores.relational.puts import check_size
from redrive.stores.relational.session import Executor
from redrive.stores.relational.verdicts import Deed

_KEY = "SELECT n, tail FROM redrive_idempotency WHERE queue = ? AND key = ? AND until > ?"
_COPY_ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, enqueue_at, content_type, headers, expire_timeout,
        idempotency_key, overrides, source_id, origin_id, origin_queue, payload)
    SELECT ?1, ?2, ?3, put_at, priority, ?4, CASE WHEN ?11 = 0 THEN content_type ELSE ?8 END, coalesce(?9, headers),
        expire_timeout, idempotency_key, overrides, ?5, coalesce(origin_id, ?5), coalesce(origin_queue, ?6),
        coalesce(?7, payload)
    FROM redrive_item WHERE n = ?10"""
_COPY_HISTORY = """
    INSERT INTO redrive_history (key, n, entry, data)
    SELECT ?1 + row_number() OVER (ORDER BY entry), ?2, entry, data FROM redrive_history WHERE n = ?3"""
_COPY_DEATHS = "INSERT INTO redrive_death (n, data) SELECT ?, data FROM redrive_death WHERE n = ? ORDER BY key"


def redrive(batch: Batch, deed: Deed, target: ManualTarget, item: ItemSnapshot, place: ItemRow) -> Settled:
    """Back to the queue of its last death, or to the one that the deed names."""
    edited = target.payload is not None or target.headers is not None
    to = _redrive_queue(batch, deed, item, place)
    if is_remote(to):
        check_unedited(place.id, to, edited=edited)
        return leave(batch, deed, item, place, FeedKind.REDRIVEN, to)
    row = batch.queue(to)
    if edited:
        return _redrive_edited(batch, deed, target, item, place, row)
    return revive(batch, deed, item, place, row)


def _redrive_queue(batch: Batch, deed: Deed, item: ItemSnapshot, place: ItemRow) -> str:
    """Where a redrive takes it. What it died in, and came from, is looked up only where that decides."""
    if deed.to is not None or item.status is Status.DEAD:
        return redrive_queue(item, item.queue, deed.to)
    known = item_details(batch, place)
    return redrive_queue(item, known.death.queue, None, home=known.home_store, store=batch.store)


def revive(batch: Batch, deed: Deed, item: ItemSnapshot, place: ItemRow, row: QueueRow) -> Settled:
    """Back to work in a queue, with counters at 0, at the tail."""
    _check_target(batch, item, place, row)
    stays_letter = stays_dead_letter(deed.verb, item)
    delete_row(batch, place)
    if item.is_dead_letter and not stays_letter:
        dead_letters.remove_dead_letter(batch, place)
    source_id = None if row.key == place.queue else verdicts.move(batch, place, row)
    return _lay_as_work(batch, deed, item, place, row, source_id, expires=not stays_letter)


def undo(batch: Batch, deed: Deed, item: ItemSnapshot, place: ItemRow) -> Settled:
    """Take a redrive back: to where the item was, and what it was there."""
    assert item.last is not None
    name, back = undo_target(item.last)
    row = batch.queue(name)
    death = item_details(batch, place).death
    text = death_text(death, history_of(batch, place))
    delete_row(batch, place)
    source_id = None if row.key == place.queue else verdicts.move(batch, place, row)
    counters = counters_after_undo(place.counters, back, death)
    place.attempts, place.failures, place.losses = counters.attempts, counters.failures, counters.losses
    place.redrives, place.status, place.held_by = counters.redrives, back, None
    if back is Status.DEAD:
        place.ended_at, place.dead_reason = death.at, death.reason
    else:
        place.expire_deadline = None
    deed.record(batch, place, HistoryEvent.UNDONE, item.queue, status_without_lease(item.status))
    dead_letters.add_dead_letter(batch, place, death, text)
    insert_row(batch, place)
    deed.tell(batch, FeedKind.UNDONE, item.queue, place, source_id)
    ready_at = place.ready_at if back is Status.PENDING else None
    return Settled(place.id, name, back, place.counters, ready_at, place.dead_reason, source_id)


def move(batch: Batch, deed: Deed, item: ItemSnapshot, place: ItemRow) -> Settled:
    """To another queue, as it is. What is due goes to the tail; what is not falls due when it would have."""
    to = move_queue(item, deed.to)
    if is_remote(to):
        return leave(batch, deed, item, place, FeedKind.MOVED, to)
    row = batch.queue(to)
    if item.status is not Status.DEAD:
        _check_target(batch, item, place, row)
    before, came_from = status_without_lease(item.status), place.queue
    ready_at, ended = place.ready_at, (place.ended_at, place.dead_reason)
    stays_letter = stays_dead_letter(Verb.MOVE, item, to_dead_queue=row.queue.is_dead_queue)
    delete_row(batch, place)
    if item.is_dead_letter and not stays_letter:
        dead_letters.remove_dead_letter(batch, place)
    source_id = verdicts.move(batch, place, row)
    place.status = before
    if before is Status.DEAD:
        place.ended_at, place.dead_reason = ended
    elif ready_at > batch.now:
        place.ready_at, place.seq = ready_at, batch.draw()
    deed.record(batch, place, HistoryEvent.MOVED, item.queue, before)
    if stays_letter:
        dead_letters.move_dead_letter(batch, place, came_from)
    insert_row(batch, place)
    deed.tell(batch, FeedKind.MOVED, item.queue, place, source_id)
    shown = None if before is Status.DEAD else place.ready_at
    return Settled(place.id, row.queue.name, before, place.counters, shown, place.dead_reason, source_id)


def archive(batch: Batch, deed: Deed, item: ItemSnapshot, place: ItemRow) -> Settled:
    """Put a dead letter aside."""
    death = item_details(batch, place).death
    delete_row(batch, place)
    place.status, place.archived_from = Status.ARCHIVED, status_without_lease(item.status)
    place.ended_at, place.dead_reason = death.at, death.reason
    dead_letters.archive_dead_letter(batch, place)
    insert_row(batch, place)
    deed.tell(batch, FeedKind.ARCHIVED, item.queue, place)
    return Settled(place.id, item.queue, Status.ARCHIVED, place.counters, dead_reason=place.dead_reason)


def _redrive_edited(
    batch: Batch, deed: Deed, target: ManualTarget, item: ItemSnapshot, place: ItemRow, row: QueueRow
) -> Settled:
    """The item is archived as it is, and a new one that was made of it goes to work."""
    _check_target(batch, item, place, row)
    largest = row.settings.max_payload_size
    if target.payload is not None and len(target.payload.payload) > largest:
        raise PayloadTooLarge("payload", len(target.payload.payload), largest, "max_payload_size")
    copied = msgspec.structs.replace(place)
    archive(batch, deed, item, place)
    copied.n, copied.tail, _ = batch.allocate_id()
    copied.queue, copied.letter, copied.ready = row.key, None, False
    copied.token = copied.deadline = copied.leased_at = copied.worker = None
    copied.ended_at = copied.dead_reason = copied.archived_from = None
    key = (copied.n, copied.tail, row.key, batch.now, place.id, item.queue)
    edited = int(target.payload is not None)
    batch.execute(_COPY_ITEM, (*key, *_content(target.payload), _headers(target.headers), place.n, edited))
    first = batch.draw(HISTORY_FIRST + HISTORY_LAST)
    batch.execute(_COPY_HISTORY, (first - 1, copied.n, place.n))
    batch.execute(_COPY_DEATHS, (copied.n, place.n))
    return _lay_as_work(batch, deed, item, copied, row, place.id, expires=True)


def _lay_as_work(
    batch: Batch,
    deed: Deed,
    item: ItemSnapshot,
    place: ItemRow,
    row: QueueRow,
    source_id: ItemId | None,
    *,
    expires: bool,
) -> Settled:
    """Lay an item that was taken from its place at the tail of the queue that it is in now."""
    place.status, place.held_by = Status.PENDING, None
    place.attempts = place.failures = place.losses = 0
    place.redrives += 1
    place.ready_at, place.seq = batch.now, batch.draw() if source_id is None else place.n
    timeout = item_details(batch, place).expire_timeout
    timeout = row.settings.expire_timeout if timeout is None else timeout
    place.expire_deadline = None if timeout is None or not expires else Instant(batch.now + timeout)
    deed.record(batch, place, HistoryEvent.REDRIVEN, item.queue, status_without_lease(item.status))
    insert_row(batch, place)
    deed.tell(batch, FeedKind.REDRIVEN, item.queue, place, source_id)
    return Settled(place.id, row.queue.name, Status.PENDING, place.counters, place.ready_at, source_id=source_id)


def _check_target(batch: Batch, item: ItemSnapshot, place: ItemRow, row: QueueRow) -> None:
    """Raise where an item that would be one more in a queue finds no room there, or its key with another item."""
    if not counts_for_max_size(item, row.queue.name):
        return
    check_size(batch, row, 1)
    key = item_details(batch, place).idempotency_key
    if key is None:
        return
    other = idempotency_owner(batch, row.key, key, batch.now)
    if other is not None and other.n != place.n:
        raise IdempotencyConflict(row.queue.name, key, other.id)


def idempotency_owner(executor: Executor, queue: int, key: str, now: Instant) -> ItemRow | None:
    """Where the item stands that holds an idempotency key in a queue, if it is there and work."""
    known = executor.execute(_KEY, (queue, key, now)).fetchone()
    place = None if known is None else find_by_id(executor, make_id(*known))
    return place if place is not None and place.queue == queue and place.status in OPEN_STATUSES else None


def _content(payload: Result | None) -> tuple[bytes | None, str | None]:
    if payload is None:
        return None, None
    return payload.payload, None if payload.content_type == JSON else payload.content_type


def _headers(headers: Mapping[str, str] | None) -> str | None:
    return None if headers is None else msgspec.json.encode(headers).decode()
