"""Write items that the rules have changed: each once, as the rows that its record calls for."""

from __future__ import annotations

import msgspec

from redrive.contract.replies import REPLY_TO
from redrive.model.ids import parse_id, parse_token
from redrive.model.item import NO_OVERRIDES, HistoryEntry, Status
from redrive.model.limits import HISTORY_FIRST, MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational import dead_letters, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import ItemRow, delete_row, extend_row, insert_row
from redrive.stores.relational.records import StoredHistory, StoredRecord
from redrive.stores.rules.record import Record

_INSERT_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout, idempotency_key, overrides, source_id, origin_id, origin_queue, payload, home_store)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_LONGER_HISTORY = "UPDATE redrive_lease SET entries = ? WHERE item_no = ?"


def write_record(batch: Batch, item: Record, text: str | None) -> None:
    """Write an item. `text` is indexed for a new dead letter, beside error type and payload."""
    stored = item.row if isinstance(item, StoredRecord) else None
    row = _row_of(batch, item, stored)
    if stored is not None and stored.token is not None and stored.token == row.token:
        _write_lease(batch, item, stored, row)
        return
    before = None if stored is None else stored.death_no
    if stored is None:
        _insert_content(batch, item, row)
    else:
        delete_row(batch, stored)
        if row.item_no != stored.item_no:
            _move_content(batch, item, stored, row)
    _write_history(batch, item, row)
    for death in item.deaths[row.deaths :]:
        verdicts.record_death(batch, row, death)
    _write_letter(batch, item, before, row, text)
    insert_row(batch, row)


def erase_record(batch: Batch, item: Record) -> None:
    """Delete an item, and everything about it. One that was never stored has nothing."""
    if isinstance(item, StoredRecord):
        death_no = item.row.death_no
        delete_row(batch, item.row)
        if death_no is not None:
            dead_letters.delete_letter(batch, death_no)
        verdicts.remove(batch, item.row)


def _write_lease(batch: Batch, item: Record, stored: ItemRow, row: ItemRow) -> None:
    """Update the lease row: the lease was extended, or the history got longer."""
    if row.deadline is not None and row.deadline != stored.deadline:
        extend_row(batch, row, row.deadline)
    _write_history(batch, item, row)
    if row.entries != stored.entries:
        batch.write(_LONGER_HISTORY, (row.entries, row.item_no))


def _row_of(batch: Batch, item: Record, stored: ItemRow | None) -> ItemRow:
    """Return the state row of an item. Its history and its deaths are those that are stored."""
    item_no, id_suffix = parse_id(item.id)
    counters, grant, death = item.counters, item.grant, item.death
    row = ItemRow(
        item_no,
        id_suffix,
        batch.by_name[item.queue].key,
        item.status,
        MAX_PRIORITY - item.priority,
        item.ready_at,
        item.seq,
        item.expire_deadline,
        counters.deliveries,
        counters.attempts,
        counters.failures,
        counters.losses,
        counters.redrives,
        item.first_leased_at,
        0 if stored is None else stored.entries,
        0 if stored is None else stored.deaths,
        item.death_number if item.is_dead_letter or item.status is Status.ARCHIVED else None,
        holders=item.holders,
        route=item.route,
    )
    match item.status:
        case Status.ACTIVE:
            assert grant is not None
            row.token = parse_token(grant.token)[2]
            row.deadline, row.leased_at, row.worker = grant.deadline, grant.leased_at, grant.worker
            row.dead_reason = grant.dead_reason
        case Status.COMPLETED:
            row.ended_at, row.result = item.completed_at, item.result
        case Status.DEAD:
            assert death is not None
            row.ended_at, row.dead_reason = death.at, death.reason
        case Status.MOVING:
            row.ended_at = None if item.route is None else item.route.since
        case Status.ARCHIVED:
            _fill_archived(row, item, stored)
    return row


def _fill_archived(row: ItemRow, item: Record, stored: ItemRow | None) -> None:
    """Set the columns of an archived item's past. An item that stays archived only got a longer history."""
    row.archived_from, row.result = item.archived_from, item.result
    row.dead_reason = None if item.death is None else item.death.reason
    in_place = stored is not None and stored.status is Status.ARCHIVED and stored.death_no == row.death_no
    if stored is not None and in_place and item.is_dropped == (stored.dropped_at is not None):
        row.ended_at, row.dropped_at = stored.ended_at, stored.dropped_at
    elif item.is_dropped:
        row.dropped_at = item.retained_from
    else:
        row.ended_at = item.ended_or_archived_at


def _insert_content(batch: Batch, item: Record, row: ItemRow) -> None:
    key = (row.item_no, row.id_suffix, row.queue, item.put_at, item.priority)
    content = (
        None if item.ready_at == item.put_at or item.seq != row.item_no else item.ready_at,  # its first place
        None if item.content_type == JSON else item.content_type,
        msgspec.json.encode(item.headers).decode() if item.headers else None,
        item.expire_timeout,
        item.idempotency_key,
        None if item.overrides == NO_OVERRIDES else msgspec.json.encode(item.overrides).decode(),
    )
    origin = (item.source_id, item.origin_id, item.origin_queue)
    batch.write(_INSERT_ITEM, (*key, *content, *origin, item.payload, item.home_store))
    for old in item.ids[:-1]:
        batch.write(verdicts.INSERT_FORMER_ID, (*parse_id(old), row.item_no))
    _mark_replies(batch, item)


def _move_content(batch: Batch, item: Record, stored: ItemRow, row: ItemRow) -> None:
    """Give the rows of an item that has another id the new number."""
    assert item.source_id is not None
    keeps_home = item.home_store is not None
    verdicts.renumber(
        batch, stored.item_no, row, item.source_id, item.origin_id, item.origin_queue, keeps_home=keeps_home
    )
    for old in item.ids[item.ids.index(stored.id) : -1]:
        batch.write(verdicts.INSERT_FORMER_ID, (*parse_id(old), row.item_no))
    _mark_replies(batch, item)


def _mark_replies(batch: Batch, item: Record) -> None:
    if REPLY_TO in item.headers:
        batch.mark_replies(batch.by_name[item.queue])


def _write_history(batch: Batch, item: Record, row: ItemRow) -> None:
    entries: tuple[HistoryEntry, ...] | list[HistoryEntry]
    if isinstance(item.history, StoredHistory):
        entries = item.history.added
    else:
        entries = item.history.entries()
        for entry in entries[:HISTORY_FIRST]:
            verdicts.record(batch, row, entry)
        row.entries += item.history.omitted
        entries = entries[HISTORY_FIRST:]
    for entry in entries:
        verdicts.record(batch, row, entry)


def _write_letter(batch: Batch, item: Record, before: int | None, row: ItemRow, text: str | None) -> None:
    """Write the index entry of an item that is a dead letter or archived."""
    archived = item.status is Status.ARCHIVED
    if before is not None and before != row.death_no:
        dead_letters.delete_letter(batch, before)
    if row.death_no is None:
        return
    if before == row.death_no:
        dead_letters.update_letter(batch, row, archived=archived)
    elif item.death is None:
        dead_letters.insert_archived(batch, row, item.ended_or_archived_at)
    else:
        dead_letters.insert_letter(batch, row, item.death, text, archived=archived)
