"""Frequent verdicts: retried, dead in place, or moved to a dead queue. All others follow the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from redrive.clock import Instant
from redrive.model.death import EXHAUSTED_REASONS, DeadReason, cause_of
from redrive.model.delivery_end import FEED_KIND_BY_EVENT
from redrive.model.feed import FeedKind
from redrive.model.holder import add_lasting
from redrive.model.ids import ItemId
from redrive.model.item import Death, HistoryEntry, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict, check_verdict
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST, is_remote
from redrive.stores.relational import dead_letters, feed
from redrive.stores.relational.batch import Batch, Stage
from redrive.stores.relational.item_rows import ItemRow, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.telemetry import events

_log = events.logger("redrive.store")

INSERT_HISTORY = "INSERT INTO redrive_history (key, item_no, entry, data) VALUES (?, ?, ?, ?)"
_FORGET_ENTRY = "DELETE FROM redrive_history WHERE item_no = ? AND entry = ?"
INSERT_DEATH = "INSERT INTO redrive_death (item_no, data) VALUES (?, ?)"
_MOVE_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout,
        idempotency_key, overrides, source_id, origin_id, origin_queue, payload, home_store)
    SELECT ?1, ?2, ?3, put_at, priority, ?4, content_type, headers, expire_timeout,
        idempotency_key, overrides, ?5, coalesce(origin_id, ?6), coalesce(origin_queue, ?7), payload,
        CASE WHEN ?9 = 1 THEN home_store END
    FROM redrive_item WHERE item_no = ?8"""
INSERT_FORMER_ID = """
    INSERT INTO redrive_former_id (old_item_no, old_id_suffix, item_no) VALUES (?, ?, ?)
    ON CONFLICT (old_item_no) DO UPDATE SET old_id_suffix = excluded.old_id_suffix, item_no = excluded.item_no"""
_AUDIT = (
    "INSERT INTO redrive_audit (namespace, at, actor, verb, queue, ids, count, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def check(batch: Batch, row: QueueRow, outcome_kind: OutcomeKind, verdict: Verdict) -> None:
    """Raise unless the verdict can be applied to an item of that queue with this outcome."""
    check_verdict(row.queue.name, outcome_kind, verdict)
    if isinstance(verdict, Dead) and verdict.to is not None:
        batch.queue(verdict.to)


def apply_verdict(batch: Batch, item_row: ItemRow, verdict: Verdict, entry: HistoryEntry) -> Settled:
    """Apply a checked verdict to an item whose state row is deleted, and record it in the feed.

    `entry` is the recorded outcome, with the cause of a death. The item is no dead letter.
    """
    row = batch.by_key[item_row.queue]
    match verdict:
        case RetryVerdict(delay, status, held_by):
            item_row.status, item_row.holders = status, add_lasting(item_row.holders, held_by)
            item_row.ready_at = Instant(batch.now + delay)
            item_row.seq = batch.allocate()
            insert_row(batch, item_row)
            _append_ending(batch, item_row, entry)
            return Settled(item_row.id, row.queue.name, item_row.status, item_row.counters, item_row.ready_at)
        case Dead():
            return _apply_death(batch, item_row, row, verdict, entry)
        case _:
            assert_never(verdict)


def is_plain_death(batch: Batch, row: QueueRow, verdict: Dead) -> bool:
    """Return whether an item of that queue dies in place or goes to a dead queue of this store, and gets no reply."""
    return not (verdict.drops or batch.has_replies(row) or (verdict.to is not None and is_remote(verdict.to)))


def _append_ending(batch: Batch, item_row: ItemRow, entry: HistoryEntry) -> None:
    """Record the end of a delivery that caused no death in the feed."""
    if (kind := FEED_KIND_BY_EVENT.get(entry.event)) is not None:
        append_event(batch, kind, item_row, entry, title=title(entry))


def append_event(
    batch: Batch,
    kind: FeedKind,
    item_row: ItemRow,
    entry: HistoryEntry,
    *,
    source_id: ItemId | None = None,
    title: str | None = None,
    reason: DeadReason | None = None,
) -> None:
    """Record a history entry in the feed."""
    feed.append_event(
        batch, kind, entry.queue, item_row.item_no, item_row.id_suffix, source_id=source_id, title=title, reason=reason,
        actor=entry.actor, operation=entry.operation, failure=entry.failure,
    )  # fmt: skip


def record(batch: Batch, item_row: ItemRow, entry: HistoryEntry) -> None:
    """Write a history entry of an item. The first 5 and the last 45 entries are kept.

    Its key is allocated like queue positions, so that other processes see which numbers are taken.
    """
    item_row.entries += 1
    batch.write(INSERT_HISTORY, (batch.allocate(), item_row.item_no, item_row.entries, msgspec.json.encode(entry)))
    faded = item_row.entries - HISTORY_LAST
    if faded > HISTORY_FIRST:
        for stage in (
            Stage.INSERT_STATE,
            Stage.DELETE_ITEM,
        ):  # an item that moves has its old number before, or its new one after
            batch.write(_FORGET_ENTRY, (item_row.item_no, faded), stage)


def record_death(batch: Batch, item_row: ItemRow, death: Death) -> None:
    """Write a death record."""
    item_row.deaths += 1
    batch.write(INSERT_DEATH, (item_row.item_no, msgspec.json.encode(death)))


def move(batch: Batch, item_row: ItemRow, target: QueueRow) -> ItemId:
    """Give an item that died, and whose state row is deleted, a new id at the end of its dead queue. Returns its former
    id. From now on this store is its home."""
    source_id, old, source = item_row.id, item_row.item_no, batch.by_key[item_row.queue].queue.name
    number, id_suffix, _ = batch.allocate_id()
    batch.write(INSERT_FORMER_ID, (old, item_row.id_suffix, number))
    item_row.item_no, item_row.id_suffix, item_row.queue = number, id_suffix, target.key
    item_row.ready_at, item_row.seq = batch.now, number
    renumber(batch, old, item_row, source_id, source_id, source, keeps_home=False)
    return source_id


def renumber(
    batch: Batch,
    old: int,
    item_row: ItemRow,
    source_id: ItemId,
    origin_id: ItemId | None,
    origin_queue: str | None,
    *,
    keeps_home: bool,
) -> None:
    """Give the rows of an item, except its state row, the number, id and queue of this state row.

    An item without an origin gets the given one. It is ready from `item_row.ready_at` on, in the order of its number.
    """
    key = (item_row.item_no, item_row.id_suffix, item_row.queue, item_row.ready_at)
    batch.write(_MOVE_ITEM, (*key, source_id, origin_id, origin_queue, old, int(keeps_home)))
    batch.write("DELETE FROM redrive_item WHERE item_no = ?", (old,), Stage.DELETE_ITEM)
    for table in ("history", "death", "former_id"):
        batch.write(
            f"UPDATE redrive_{table} SET item_no = ? WHERE item_no = ?", (item_row.item_no, old), Stage.RENUMBER
        )


def remove(batch: Batch, item_row: ItemRow) -> None:
    """Delete an item that is in no index, and whose state row is deleted, with everything about it."""
    tables = ["item"]
    if item_row.deaths:
        tables.append("death")
    if item_row.entries:  # moved items have a history
        tables += ("history", "former_id")
    for table in tables:
        batch.write(f"DELETE FROM redrive_{table} WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_ITEM)


def audit(
    batch: Batch, actor: str, verb: str, queue: str | None, ids: Sequence[ItemId], count: int, note: str | None = None
) -> None:
    """Write an audit row."""
    listed = msgspec.json.encode(ids).decode()
    batch.write(_AUDIT, (batch.namespace, batch.now, actor, verb, queue, listed, count, note))


def _apply_death(batch: Batch, item_row: ItemRow, row: QueueRow, verdict: Dead, entry: HistoryEntry) -> Settled:
    queue, counters, reason, to = row.queue.name, item_row.counters, verdict.reason, verdict.to
    cause = cause_of(reason, entry.failure, entry.note)
    batch.count_delta(row.key, "dead_total")
    batch.count_delta(row.key, "exhausted_total", reason in EXHAUSTED_REASONS)
    batch.wake_awaiting(item_row.id, has_past=item_row.entries > 1)  # moved items have a history
    death = Death(
        batch.now, reason, queue, batch.namespace, batch.store, item_row.id, counters, cause, item_row.first_leased_at
    )
    record_death(batch, item_row, death)
    source_id = None
    if to is None:
        item_row.status, item_row.ended_at, item_row.dead_reason = Status.DEAD, batch.now, reason
    else:
        target = batch.queue(to)
        if not target.queue.is_dead_queue:
            batch.mark_dead_queue(target)
        source_id = move(batch, item_row, target)
        item_row.status, item_row.expire_deadline = Status.PENDING, None
        item_row.attempts = item_row.failures = item_row.losses = 0
    dead_letters.add_dead_letter(batch, item_row, death, _text(entry) or cause.title)
    insert_row(batch, item_row)
    append_event(batch, FeedKind.DEAD, item_row, entry, source_id=source_id, title=cause.title, reason=reason)
    if to is None:
        return Settled(item_row.id, queue, Status.DEAD, counters, dead_reason=reason)
    return Settled(item_row.id, to, Status.PENDING, item_row.counters, item_row.ready_at, reason, source_id)


def _text(entry: HistoryEntry) -> str | None:
    return entry.note if entry.failure is None else entry.failure.text


def title(entry: HistoryEntry) -> str | None:
    """Return the feed's one-line title of an outcome."""
    return entry.note if entry.failure is None else entry.failure.title
