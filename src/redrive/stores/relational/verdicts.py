"""Apply a verdict: retried, dead in place, moved to a dead queue, or dropped; with history, death record and audit."""

from __future__ import annotations

from typing import assert_never

import msgspec

from redrive.clock import Instant
from redrive.contract.base import DROP_ACTOR
from redrive.model.arrival import MoveRoute
from redrive.model.death import EXHAUSTED_REASONS, DeadReason, cause_of
from redrive.model.delivery_end import FEED_KIND_BY_EVENT
from redrive.model.feed import FeedKind
from redrive.model.holder import add_lasting, lasting_holders
from redrive.model.ids import ItemId
from redrive.model.item import Death, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict, check_verdict
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST, is_remote
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, feed
from redrive.stores.relational.batch import Batch, Stage
from redrive.stores.relational.item_details import item_details
from redrive.stores.relational.item_rows import ItemRow, insert_row
from redrive.stores.relational.queue_rows import QueueRow
from redrive.telemetry import events

_log = events.logger("redrive.store")

INSERT_HISTORY = "INSERT INTO redrive_history (key, item_no, entry, data) VALUES (?, ?, ?, ?)"
_FORGET_ENTRY = "DELETE FROM redrive_history WHERE item_no = ? AND entry = ?"
_DEATH = "INSERT INTO redrive_death (item_no, data) VALUES (?, ?)"
_MOVE_ITEM = """
    INSERT INTO redrive_item (item_no, id_suffix, queue, put_at, priority, enqueue_at, content_type, headers,
        expire_timeout,
        idempotency_key, overrides, source_id, origin_id, origin_queue, payload, home_store)
    SELECT ?1, ?2, ?3, put_at, priority, ?4, content_type, headers, expire_timeout,
        idempotency_key, overrides, ?5, coalesce(origin_id, ?5), coalesce(origin_queue, ?6), payload,
        CASE WHEN ?8 = 1 THEN home_store END
    FROM redrive_item WHERE item_no = ?7"""
_FORMER_ID = """
    INSERT INTO redrive_former_id (old_item_no, old_id_suffix, item_no) VALUES (?, ?, ?)
    ON CONFLICT (old_item_no) DO UPDATE SET old_id_suffix = excluded.old_id_suffix, item_no = excluded.item_no"""
_AUDIT = (
    "INSERT INTO redrive_audit (namespace, at, actor, verb, queue, ids, count, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def check(batch: Batch, row: QueueRow, outcome_kind: OutcomeKind, verdict: Verdict, *, was_dead: bool = False) -> None:
    """Raise unless the verdict can be applied to an item of that queue with this outcome."""
    check_verdict(row.queue.name, outcome_kind, verdict, was_dead=was_dead)
    if isinstance(verdict, Dead) and verdict.to is not None and not is_remote(verdict.to) and not was_dead:
        batch.queue(verdict.to)


def apply_verdict(batch: Batch, item_row: ItemRow, verdict: Verdict, entry: HistoryEntry) -> Settled:
    """Apply a checked verdict to an item whose state row is deleted, and record it in the feed.

    `entry` is the recorded outcome, with the cause of a death. An item that was leased although it is dead is dead
    again, regardless of the verdict.
    """
    row = batch.by_key[item_row.queue]
    if item_row.was_dead:
        _append_ending(batch, item_row, entry)
        return return_to_dead(batch, item_row)
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


def return_to_dead(batch: Batch, item_row: ItemRow) -> Settled:
    """Make an item that was leased although it is dead, and whose state row is deleted, dead as it was."""
    death = item_details(batch, item_row).death
    item_row.status, item_row.ended_at, item_row.dead_reason = Status.DEAD, death.at, death.reason
    insert_row(batch, item_row)
    batch.wake_awaiting(item_row.id, has_past=True)
    queue = batch.by_key[item_row.queue].queue.name
    return Settled(item_row.id, queue, Status.DEAD, item_row.counters, dead_reason=death.reason)


def _append_ending(batch: Batch, item_row: ItemRow, entry: HistoryEntry) -> None:
    """Record the end of a delivery, after which nothing died, in the feed."""
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
    """Write a history entry of an item; of many, the first 5 and the last 45 are kept.

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
    """Write a death down."""
    item_row.deaths += 1
    batch.write(_DEATH, (item_row.item_no, msgspec.json.encode(death)))


def move(batch: Batch, item_row: ItemRow, target: QueueRow, *, died: bool = False) -> ItemId:
    """Give an item whose state row is deleted a new id at the end of another queue. Returns its former id.

    If it `died` just now, this store becomes its home store.
    """
    source_id, old = item_row.id, item_row.item_no
    source = batch.by_key[item_row.queue]
    source_queue = source.queue.name
    if batch.has_replies(source):
        batch.mark_replies(target)
    number, id_suffix, _ = batch.allocate_id()
    batch.write(_MOVE_ITEM, (number, id_suffix, target.key, batch.now, source_id, source_queue, old, int(not died)))
    batch.write(_FORMER_ID, (old, item_row.id_suffix, number))
    batch.write("DELETE FROM redrive_item WHERE item_no = ?", (old,), Stage.DELETE_ITEM)
    for table in ("history", "death", "former_id"):
        batch.write(f"UPDATE redrive_{table} SET item_no = ? WHERE item_no = ?", (number, old), Stage.RENUMBER)
    item_row.item_no, item_row.id_suffix, item_row.queue = number, id_suffix, target.key
    item_row.ready_at, item_row.seq = batch.now, number
    return source_id


def remove(batch: Batch, item_row: ItemRow) -> None:
    """Delete an item whose state row is deleted, and everything about it."""
    dead_letters.remove_dead_letter(batch, item_row)
    tables = ["item"]
    if item_row.deaths:
        tables.append("death")
    if item_row.entries:  # what moved has a history that says so
        tables += ("history", "former_id")
    for table in tables:
        batch.write(f"DELETE FROM redrive_{table} WHERE item_no = ?", (item_row.item_no,), Stage.DELETE_ITEM)


def audit(
    batch: Batch, actor: str, verb: str, queue: str | None, ids: list[ItemId], count: int, note: str | None = None
) -> None:
    """Write an audit row."""
    listed = msgspec.json.encode(ids).decode()
    batch.execute(_AUDIT, (batch.namespace, batch.now, actor, verb, queue, listed, count, note))


def _apply_death(batch: Batch, item_row: ItemRow, row: QueueRow, verdict: Dead, entry: HistoryEntry) -> Settled:
    queue, counters, reason, to = row.queue.name, item_row.counters, verdict.reason, verdict.to
    cause = cause_of(reason, entry.failure, entry.note)
    batch.count_delta(row.key, "dead_total")
    batch.count_delta(row.key, "exhausted_total", reason in EXHAUSTED_REASONS)
    batch.wake_awaiting(item_row.id, has_past=item_row.entries > 1)  # what moved has a history that says so
    if verdict.drops:
        remove(batch, item_row)
        audit(batch, DROP_ACTOR, Verb.DROP.value, queue, [item_row.id], 1, reason.value)
        _log.warning("item_dropped", item=item_row.id, queue=queue, reason=reason)
        append_event(batch, FeedKind.DEAD, item_row, entry, title=cause.title, reason=reason)
        return Settled(item_row.id, queue, None, counters, dead_reason=reason)
    death = Death(
        batch.now, reason, queue, batch.namespace, batch.store, item_row.id, counters, cause, item_row.first_leased_at
    )
    record_death(batch, item_row, death)
    dead_letters.remove_dead_letter(batch, item_row)
    source_id, item_row.holders = None, lasting_holders(item_row.holders)
    elsewhere = to is not None and is_remote(to)
    if to is None:
        item_row.status, item_row.ended_at, item_row.dead_reason = Status.DEAD, batch.now, reason
    elif elsewhere:
        item_row.status, item_row.expire_deadline, item_row.holders = Status.MOVING, None, ()
        item_row.attempts = item_row.failures = item_row.losses = 0
        item_row.ended_at, item_row.route = batch.now, MoveRoute(to, batch.now, FeedKind.DEAD, Status.PENDING)
    else:
        target = batch.queue(to)
        if not target.queue.is_dead_queue:
            batch.mark_dead_queue(target)
        source_id = move(batch, item_row, target, died=True)
        item_row.status, item_row.expire_deadline = Status.PENDING, None
        item_row.attempts = item_row.failures = item_row.losses = 0
    dead_letters.add_dead_letter(batch, item_row, death, _text(entry) or cause.title)
    insert_row(batch, item_row)
    append_event(batch, FeedKind.DEAD, item_row, entry, source_id=source_id, title=cause.title, reason=reason)
    if to is None:
        return Settled(item_row.id, queue, Status.DEAD, counters, dead_reason=reason)
    if elsewhere:
        return Settled(item_row.id, queue, Status.MOVING, item_row.counters, dead_reason=reason)
    return Settled(item_row.id, to, Status.PENDING, item_row.counters, item_row.ready_at, reason, source_id)


def _text(entry: HistoryEntry) -> str | None:
    return entry.note if entry.failure is None else entry.failure.text


def title(entry: HistoryEntry) -> str | None:
    """What the feed says of an ending, in one line."""
    return entry.note if entry.failure is None else entry.failure.title


def record_action(
    batch: Batch,
    action: ManualAction,
    item_row: ItemRow,
    event: HistoryEvent,
    queue: str,
    before: Status,
    *,
    to: str | None = None,
) -> None:
    """Write a manual change into the item's history. `to` is its target in another store."""
    record(batch, item_row, action.history_entry(batch.now, event, queue, item_row.deliveries, before, to=to))


def append_action_event(
    batch: Batch, action: ManualAction, kind: FeedKind, queue: str, item_row: ItemRow, source_id: ItemId | None = None
) -> None:
    """Record a manual change in the feed of the queue in which it happened."""
    feed.append_event(
        batch,
        kind,
        queue,
        item_row.item_no,
        item_row.id_suffix,
        source_id=source_id,
        actor=action.actor,
        operation=action.operation,
        from_status={FeedKind.REMOVED: item_row.status, FeedKind.DROPPED: item_row.archived_from}.get(kind),
    )
