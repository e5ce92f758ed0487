"""Retry, redrive, undo and move items."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import ManualTarget
from redrive.contract.replies import REPLY_TO
from redrive.errors import IdempotencyConflict, PayloadTooLarge
from redrive.model.arrival import check_unedited
from redrive.model.feed import FeedKind
from redrive.model.holder import lasting_holders
from redrive.model.ids import ItemId, make_id
from redrive.model.item import OPEN_STATUSES, HistoryEvent, Result, Settled, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST, is_remote
from redrive.model.manual_change import (
    ItemSnapshot,
    ManualAction,
    counters_after_undo,
    counts_for_max_size,
    death_text,
    move_queue,
    redrive_queue,
    stays_dead_letter,
    undo_target,
)
from redrive.model.payload import JSON
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, verdicts
from redrive.stores.relational.archive import archive, restore
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_details import history_of, item_details
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_row
from redrive.stores.relational.moves import start_move
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import check_max_size
from redrive.stores.relational.session import Executor

_KEY = """
    SELECT item_no, id_suffix FROM redrive_idempotency
    WHERE queue = ? AND key = ? AND (expires_at > ? OR expires_at < 0)"""
_COPY_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout,
        idempotency_key, overrides, source_id, origin_id, origin_queue, payload)
    SELECT ?1, ?2, ?3, put_at, priority, ?4, CASE WHEN ?11 = 0 THEN content_type ELSE ?8 END, coalesce(?9, headers),
        expire_timeout, idempotency_key, overrides, ?5, coalesce(origin_id, ?5), coalesce(origin_queue, ?6),
        coalesce(?7, payload)
    FROM redrive_item WHERE item_no = ?10"""
_COPY_HISTORY = """
    INSERT INTO redrive_history (key, item_no, entry, data)
    SELECT ?1 + row_number() OVER (ORDER BY entry), ?2, entry, data FROM redrive_history WHERE item_no = ?3"""
_COPY_DEATHS = (
    "INSERT INTO redrive_death (item_no, data) SELECT ?, data FROM redrive_death WHERE item_no = ? ORDER BY key"
)


def redrive(batch: Batch, action: ManualAction, target: ManualTarget, item: ItemSnapshot, item_row: ItemRow) -> Settled:
    """Back to the queue of its last death, or to the one that the action names."""
    edited = target.payload is not None or target.headers is not None
    to = _redrive_queue(batch, action, item, item_row)
    if is_remote(to):
        check_unedited(item_row.id, to, edited=edited)
        return start_move(batch, action, item, item_row, FeedKind.REDRIVEN, to)
    row = batch.queue(to)
    if edited:
        return _redrive_edited(batch, action, target, item, item_row, row)
    return revive(batch, action, item, item_row, row)


def _redrive_queue(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow) -> str:
    """Return the target queue of a redrive. Death and origin are read only if they decide it."""
    if action.to is not None or item.status_without_lease is Status.DEAD:
        return redrive_queue(item, item.queue, action.to)
    known = item_details(batch, item_row)
    return redrive_queue(item, known.death.queue, None, home=known.home_store, store=batch.store)


def revive(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow, row: QueueRow) -> Settled:
    """Back to work in a queue, with counters at 0, at the tail."""
    _check_target(batch, item, item_row, row)
    stays_letter = stays_dead_letter(action.verb, item)
    delete_row(batch, item_row)
    if item.is_dead_letter and not stays_letter:
        dead_letters.remove_dead_letter(batch, item_row)
    source_id = None if row.key == item_row.queue else verdicts.move(batch, item_row, row)
    return _lay_as_work(batch, action, item, item_row, row, source_id, expires=not stays_letter)


def undo(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow, row: QueueRow) -> Settled:
    """Take a redrive back: to where the item was, and what it was there. Or a drop."""
    if item.is_dropped:
        return restore(batch, action, item, item_row, row)
    assert item.last is not None
    name, back = undo_target(item.last)
    row = batch.queue(name)
    death = item_details(batch, item_row).death
    text = death_text(death, history_of(batch, item_row))
    batch.wake_awaiting(item_row.id, has_past=True)
    delete_row(batch, item_row)
    source_id = None if row.key == item_row.queue else verdicts.move(batch, item_row, row)
    counters = counters_after_undo(item_row.counters, back, death)
    item_row.attempts, item_row.failures, item_row.losses = counters.attempts, counters.failures, counters.losses
    item_row.redrives, item_row.status, item_row.holders = counters.redrives, back, lasting_holders(item_row.holders)
    if back is Status.DEAD:
        item_row.ended_at, item_row.dead_reason = death.at, death.reason
    else:
        item_row.expire_deadline = None
    verdicts.record_action(batch, action, item_row, HistoryEvent.UNDONE, item.queue, item.status_without_lease)
    dead_letters.add_dead_letter(batch, item_row, death, text)
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, FeedKind.UNDONE, item.queue, item_row, source_id)
    ready_at = item_row.ready_at if back is Status.PENDING else None
    return Settled(item_row.id, name, back, item_row.counters, ready_at, item_row.dead_reason, source_id)


def move(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow) -> Settled:
    """Move an item to another queue, unchanged. A due item goes to the end; another keeps its time."""
    to = move_queue(item, action.to)
    if is_remote(to):
        return start_move(batch, action, item, item_row, FeedKind.MOVED, to)
    row = batch.queue(to)
    before, came_from, ready_at = item.status_without_lease, item_row.queue, item_row.ready_at
    if before is not Status.DEAD:
        _check_target(batch, item, item_row, row)
    died = item_details(batch, item_row).death if before is Status.DEAD else None
    stays_letter = stays_dead_letter(Verb.MOVE, item, to_dead_queue=row.queue.is_dead_queue)
    delete_row(batch, item_row)
    if item.is_dead_letter and not stays_letter:
        dead_letters.remove_dead_letter(batch, item_row)
    source_id = verdicts.move(batch, item_row, row)
    item_row.status = before
    if died is not None:
        item_row.ended_at, item_row.dead_reason = died.at, died.reason
    elif ready_at > batch.now:
        item_row.ready_at, item_row.seq = ready_at, batch.allocate()
    verdicts.record_action(batch, action, item_row, HistoryEvent.MOVED, item.queue, before)
    if stays_letter:
        dead_letters.move_dead_letter(batch, item_row, came_from)
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, FeedKind.MOVED, item.queue, item_row, source_id)
    shown = None if before is Status.DEAD else item_row.ready_at
    return Settled(item_row.id, row.queue.name, before, item_row.counters, shown, item_row.dead_reason, source_id)


def _redrive_edited(
    batch: Batch, action: ManualAction, target: ManualTarget, item: ItemSnapshot, item_row: ItemRow, row: QueueRow
) -> Settled:
    """Archive the item unchanged, and put an edited copy."""
    _check_target(batch, item, item_row, row)
    largest = row.settings.max_payload_size
    if target.payload is not None and len(target.payload.payload) > largest:
        raise PayloadTooLarge("payload", len(target.payload.payload), largest, "max_payload_size")
    if batch.has_replies(batch.by_key[item_row.queue]) or (target.headers is not None and REPLY_TO in target.headers):
        batch.mark_replies(row)
    copied = msgspec.structs.replace(item_row)
    archive(batch, action, item, item_row)
    copied.item_no, copied.id_suffix, _ = batch.allocate_id()
    copied.queue, copied.death_no, copied.ready = row.key, None, False
    copied.token = copied.deadline = copied.leased_at = copied.worker = None
    copied.ended_at = copied.dead_reason = copied.archived_from = None
    key = (copied.item_no, copied.id_suffix, row.key, batch.now, item_row.id, item.queue)
    edited = int(target.payload is not None)
    batch.execute(_COPY_ITEM, (*key, *_content(target.payload), _headers(target.headers), item_row.item_no, edited))
    first = batch.allocate(HISTORY_FIRST + HISTORY_LAST)
    batch.execute(_COPY_HISTORY, (first - 1, copied.item_no, item_row.item_no))
    batch.execute(_COPY_DEATHS, (copied.item_no, item_row.item_no))
    return _lay_as_work(batch, action, item, copied, row, item_row.id, expires=True)


def _lay_as_work(
    batch: Batch,
    action: ManualAction,
    item: ItemSnapshot,
    item_row: ItemRow,
    row: QueueRow,
    source_id: ItemId | None,
    *,
    expires: bool,
) -> Settled:
    """Insert an item at the end of its current queue; its old row is deleted."""
    item_row.status, item_row.holders = Status.PENDING, lasting_holders(item_row.holders)
    item_row.attempts = item_row.failures = item_row.losses = 0
    item_row.redrives += 1
    item_row.ready_at, item_row.seq = batch.now, batch.allocate() if source_id is None else item_row.item_no
    timeout = item_details(batch, item_row).expire_timeout
    timeout = row.settings.expire_timeout if timeout is None else timeout
    item_row.expire_deadline = None if timeout is None or not expires else Instant(batch.now + timeout)
    verdicts.record_action(batch, action, item_row, HistoryEvent.REDRIVEN, item.queue, item.status_without_lease)
    insert_row(batch, item_row)
    batch.count_delta(row.key, "redriven_total")
    verdicts.append_action_event(batch, action, FeedKind.REDRIVEN, item.queue, item_row, source_id)
    return Settled(
        item_row.id, row.queue.name, Status.PENDING, item_row.counters, item_row.ready_at, source_id=source_id
    )


def _check_target(batch: Batch, item: ItemSnapshot, item_row: ItemRow, row: QueueRow) -> None:
    """Raise where an item that would be one more in a queue finds no room there, or its key with another item."""
    if not counts_for_max_size(item, row.queue.name):
        return
    check_max_size(batch, row, 1)
    check_idempotency_owner(batch, item_row, row)


def check_idempotency_owner(batch: Batch, item_row: ItemRow, row: QueueRow) -> None:
    """Raise where another unfinished item of a queue has the idempotency key of this one."""
    key = item_details(batch, item_row).idempotency_key
    if key is None:
        return
    other = idempotency_owner(batch, row.key, key, batch.now)
    if other is not None and other.item_no != item_row.item_no:
        raise IdempotencyConflict(row.queue.name, key, other.id)


def idempotency_owner(executor: Executor, queue: int, key: str, now: Instant) -> ItemRow | None:
    """Return the row of the unfinished item with an idempotency key in a queue, if any."""
    known = executor.execute(_KEY, (queue, key, now)).fetchone()
    item_row = None if known is None else find_by_id(executor, make_id(*known))
    return item_row if item_row is not None and item_row.queue == queue and item_row.status in OPEN_STATUSES else None


def _content(payload: Result | None) -> tuple[bytes | None, str | None]:
    if payload is None:
        return None, None
    return payload.payload, None if payload.content_type == JSON else payload.content_type


def _headers(headers: Mapping[str, str] | None) -> str | None:
    return None if headers is None else msgspec.json.encode(headers).decode()
