"""Into the archive and out of it: archive, drop, restore.

Every archived item has an index entry, as dead letters have: its place among the archived. That of an item which was no
dead letter has no cause. A dropped item has the status `dropped` in `redrive_finished`, and the instant of the drop.
"""

from __future__ import annotations

from redrive.clock import Instant
from redrive.errors import IdempotencyConflict
from redrive.model.feed import FeedKind
from redrive.model.item import WAITING_STATUSES, HistoryEvent, Settled, Status
from redrive.model.manual_change import ItemSnapshot, ManualAction
from redrive.stores.relational import dead_letters, deduplication, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_details import item_details
from redrive.stores.relational.item_rows import ItemRow, delete_row, find_by_id, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import check_max_size

_OF_ITEM = """queue = ?1 AND key = ?2 AND (
        item_no = ?3 OR item_no IN (SELECT old_item_no FROM redrive_former_id WHERE item_no = ?3))"""
_FREE_KEY = f"DELETE FROM redrive_idempotency WHERE {_OF_ITEM}"
_SET_KEY_ASIDE = f"UPDATE redrive_idempotency SET queue = -queue, key = ?4 WHERE {_OF_ITEM}"
"""No queue has a negative key."""
_KEY_ASIDE = """
    SELECT 1 FROM redrive_idempotency WHERE queue = -?1 AND key = ?2 AND (expires_at > ?3 OR expires_at < 0)"""
_TAKE_KEY_BACK = "UPDATE redrive_idempotency SET queue = -queue, key = ?3 WHERE queue = -?1 AND key = ?2"


def archive(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow) -> Settled:
    """Archive an item. Who archived one that is no dead letter is in its history."""
    if item.status is Status.COMPLETED:
        _keep_free(batch, item_row)
    _lay_aside(batch, item, item_row)
    batch.count_delta(item_row.queue, "archived_total")
    if not item.is_dead_letter:
        verdicts.record_action(batch, action, item_row, HistoryEvent.ARCHIVED, item.queue, item.status_without_lease)
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, FeedKind.ARCHIVED, item.queue, item_row)
    return Settled(item_row.id, item.queue, Status.ARCHIVED, item_row.counters, dead_reason=item_row.dead_reason)


def drop(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow, row: QueueRow) -> Settled:
    """Into the archive for a time, and its key is free unless it was completed. Removed if that time is 0, or the item
    is moving."""
    held, keep = None, row.settings.keep_dropped
    if Status.COMPLETED in (item.status, item_row.archived_from):
        _keep_free(batch, item_row)
    else:
        held = _key_of(batch, item_row)
    if not keep or item.status is Status.MOVING:
        if held is not None:
            batch.execute(_FREE_KEY, (*held, item_row.item_no))
        delete_row(batch, item_row)
        verdicts.remove(batch, item_row)
        verdicts.append_action_event(batch, action, FeedKind.REMOVED, item.queue, item_row)
        return Settled(item_row.id, item.queue, None, item_row.counters)
    if held is not None:
        batch.execute(_SET_KEY_ASIDE, (*held, item_row.item_no, item_row.id))
    if item.status is Status.ARCHIVED:
        _take_out(batch, item_row)
    else:
        _lay_aside(batch, item, item_row)
    back, item_row.dropped_at = item_row.archived_from, batch.now
    assert back is not None
    verdicts.record_action(batch, action, item_row, HistoryEvent.DROPPED, item.queue, back)
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, FeedKind.DROPPED, item.queue, item_row)
    until = Instant(batch.now + keep)
    return Settled(
        item_row.id, item.queue, Status.ARCHIVED, item_row.counters, dead_reason=item_row.dead_reason, undo_until=until
    )


def restore(batch: Batch, action: ManualAction, item: ItemSnapshot, item_row: ItemRow, row: QueueRow) -> Settled:
    """Restore an archived item to its former status. Only a status that counts for max_size needs room, and a dropped
    item its key."""
    back, is_letter, result = item_row.archived_from, item_row.dead_reason is not None, item_row.result
    assert back is not None
    if back in WAITING_STATUSES:
        check_max_size(batch, row, 1)
    if item.is_dropped and back is not Status.COMPLETED:
        _take_key_back(batch, item_row)
    letter, dead_reason = item_details(batch, item_row).dead_letter, item_row.dead_reason
    assert letter is not None
    delete_row(batch, item_row)
    item_row.status = back
    if back not in WAITING_STATUSES:
        item_row.ended_at, item_row.dead_reason, item_row.result = letter.died_at, dead_reason, result
    if is_letter:
        dead_letters.restore_dead_letter(batch, item_row)
    else:
        dead_letters.remove_dead_letter(batch, item_row)
    if item.is_dropped or not is_letter:
        verdicts.record_action(batch, action, item_row, HistoryEvent.RESTORED, item.queue, Status.ARCHIVED)
    insert_row(batch, item_row)
    verdicts.append_action_event(batch, action, FeedKind.RESTORED, item.queue, item_row)
    ready_at = item_row.ready_at if back in WAITING_STATUSES else None
    return Settled(item_row.id, item.queue, back, item_row.counters, ready_at, item_row.dead_reason)


def _lay_aside(batch: Batch, item: ItemSnapshot, item_row: ItemRow) -> None:
    """Make an item archived. Its row is deleted, and not yet inserted."""
    death = item_details(batch, item_row).death if item.is_dead_letter else None
    ended_at, result = item_row.ended_at, item_row.result
    delete_row(batch, item_row)
    item_row.status, item_row.archived_from, item_row.result = Status.ARCHIVED, item.status_without_lease, result
    if death is not None:
        item_row.ended_at, item_row.dead_reason = death.at, death.reason
        dead_letters.archive_dead_letter(batch, item_row)
    else:
        item_row.ended_at = batch.now if ended_at is None else ended_at
        dead_letters.add_archived(batch, item_row, item_row.ended_at)


def _take_out(batch: Batch, item_row: ItemRow) -> None:
    """Delete the row of an archived item, and forget nothing that is in it."""
    kept = (item_row.archived_from, item_row.dead_reason, item_row.result)
    delete_row(batch, item_row)
    item_row.archived_from, item_row.dead_reason, item_row.result = kept
    if item_row.dead_reason is None and item_row.archived_from in WAITING_STATUSES:  # it had not ended: a new place
        dead_letters.remove_dead_letter(batch, item_row)
        dead_letters.add_archived(batch, item_row, batch.now)


def _key_of(batch: Batch, item_row: ItemRow) -> tuple[int, str] | None:
    """The key of the queue that an item was put to, and its idempotency key."""
    key = item_details(batch, item_row).idempotency_key
    if key is None:
        return None
    origin = batch.execute("SELECT origin_queue FROM redrive_item WHERE item_no = ?", (item_row.item_no,)).get
    if origin is None:
        return item_row.queue, key
    return (batch.by_name[origin].key, key) if origin in batch.by_name else None


def _keep_free(batch: Batch, item_row: ItemRow) -> None:
    """A key that ends with its item is free once that is completed, also when it is then archived."""
    if (held := _key_of(batch, item_row)) is not None:
        batch.execute(f"{_FREE_KEY} AND expires_at < 0", (*held, item_row.item_no))


def _take_key_back(batch: Batch, item_row: ItemRow) -> None:
    """Raise if it belongs to another item that is not archived."""
    held = _key_of(batch, item_row)
    if held is None:
        return
    queue, key = held
    batch.session.lock_idempotency_keys(batch, queue, [key])
    owner = deduplication.find_by_keys(batch, queue, [key], batch.now).get(key)
    if owner is not None:
        other = find_by_id(batch, owner)
        if other is None or other.status is not Status.ARCHIVED:
            raise IdempotencyConflict(batch.by_key[queue].queue.name, key, owner)
    elif batch.execute(_KEY_ASIDE, (queue, item_row.id, batch.now)).get is not None:
        batch.execute("DELETE FROM redrive_idempotency WHERE queue = ? AND key = ?", held)
        batch.execute(_TAKE_KEY_BACK, (queue, item_row.id, key))
