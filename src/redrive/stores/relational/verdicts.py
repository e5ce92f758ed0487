"""Apply a verdict: retried, dead in place, moved to a dead queue, or dropped; with history, death record and audit."""

from __future__ import annotations

from typing import assert_never

import msgspec

from redrive.clock import Instant
from redrive.contract.base import DROP_ACTOR
from redrive.model import manual_change
from redrive.model.arrival import MoveRoute
from redrive.model.death import DeadReason, cause_of
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Death, HistoryEntry, HistoryEvent, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict, Verdict, check_verdict
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST, is_remote
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, feed
from redrive.stores.relational.batch import Batch, QueueRow, Stage
from redrive.stores.relational.item_rows import ItemRow, insert_row
from redrive.telemetry import events

_log = events.logger("redrive.store")

_HISTORY = "INSERT INTO redrive_history (key, n, entry, data) VALUES (?, ?, ?, ?)"
_FORGET_ENTRY = "DELETE FROM redrive_history WHERE n = ? AND entry = ?"
_DEATH = "INSERT INTO redrive_death (n, data) VALUES (?, ?)"
_MOVE_ITEM = """
    INSERT INTO redrive_item (n, tail, queue, put_at, priority, enqueue_at, content_type, headers, expire_timeout,
        idempotency_key, overrides, source_id, origin_id, origin_queue, payload, home)
    SELECT ?1, ?2, ?3, put_at, priority, ?4, content_type, headers, expire_timeout,
        idempotency_key, overrides, ?5, coalesce(origin_id, ?5), coalesce(origin_queue, ?6), payload,
        CASE WHEN ?8 = 1 THEN home END
    FROM redrive_item WHERE n = ?7"""
_LINEAGE = """
    INSERT INTO redrive_lineage (old, tail, n) VALUES (?, ?, ?)
    ON CONFLICT (old) DO UPDATE SET tail = excluded.tail, n = excluded.n"""
_AUDIT = (
    "INSERT INTO redrive_audit (namespace, at, actor, verb, queue, ids, count, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)

FEED_KIND_BY_EVENT = {
    HistoryEvent.FAILED: FeedKind.FAILED,
    HistoryEvent.LOST: FeedKind.LOST,
    HistoryEvent.RELEASED: FeedKind.RELEASED,
    HistoryEvent.RETURNED: FeedKind.RETURNED,
}
"""What the feed says of an ending after which an item is tried again."""


def check(batch: Batch, row: QueueRow, ending: OutcomeKind, verdict: Verdict) -> None:
    """Raise unless the verdict can be carried out on an item of that queue whose delivery ended so."""
    check_verdict(row.queue.name, ending, verdict)
    if isinstance(verdict, Dead) and verdict.to is not None and not is_remote(verdict.to):
        batch.queue(verdict.to)


def apply_verdict(batch: Batch, place: ItemRow, verdict: Verdict, entry: HistoryEntry) -> Settled:
    """Lay an item that was taken from its place where the verdict, which was checked before, says; and tell it.

    `entry` is what was recorded of the ending: what an item dies of is in it.
    """
    row = batch.by_key[place.queue]
    match verdict:
        case RetryVerdict(delay, status):
            place.status = status
            place.ready_at = Instant(batch.now + delay)
            place.seq = batch.draw()
            insert_row(batch, place)
            if (kind := FEED_KIND_BY_EVENT.get(entry.event)) is not None:
                tell(batch, kind, place, entry, title=title(entry))
            return Settled(place.id, row.queue.name, place.status, place.counters, place.ready_at)
        case Dead():
            return _apply_death(batch, place, row, verdict, entry)
        case _:
            assert_never(verdict)


def tell(
    batch: Batch,
    kind: FeedKind,
    place: ItemRow,
    entry: HistoryEntry,
    *,
    source_id: ItemId | None = None,
    title: str | None = None,
    reason: DeadReason | None = None,
) -> None:
    """Tell the feed what the history tells."""
    feed.append_event(
        batch, kind, entry.queue, place.n, place.tail, source_id=source_id, title=title, reason=reason,
        actor=entry.actor, operation=entry.operation,
    )  # fmt: skip


def record(batch: Batch, place: ItemRow, entry: HistoryEntry) -> None:
    """Write a row of an item's history; of many, the first 5 and the last 45 are kept.

    Its key is drawn like the places at the tail, so that other processes can tell from it which numbers are taken.
    """
    place.entries += 1
    batch.write(_HISTORY, (batch.draw(), place.n, place.entries, msgspec.json.encode(entry)))
    faded = place.entries - HISTORY_LAST
    if faded > HISTORY_FIRST:
        for stage in (
            Stage.INSERT_STATE,
            Stage.DELETE_ITEM,
        ):  # an item that moves has its old number before, or its new one after
            batch.write(_FORGET_ENTRY, (place.n, faded), stage)


def record_death(batch: Batch, place: ItemRow, death: Death) -> None:
    """Write a death down."""
    place.deaths += 1
    batch.write(_DEATH, (place.n, msgspec.json.encode(death)))


def move(batch: Batch, place: ItemRow, target: QueueRow, *, died: bool = False) -> ItemId:
    """Give an item that was taken from its place a new id in another queue, at the tail. Gives the id it had.

    Where it `died` just now, it is at home here, wherever it came from.
    """
    source_id, old = place.id, place.n
    source_queue = batch.by_key[place.queue].queue.name
    number, tail, _ = batch.allocate_id()
    batch.write(_MOVE_ITEM, (number, tail, target.key, batch.now, source_id, source_queue, old, int(not died)))
    batch.write(_LINEAGE, (old, place.tail, number))
    batch.write("DELETE FROM redrive_item WHERE n = ?", (old,), Stage.DELETE_ITEM)
    for table in ("history", "death", "lineage"):
        batch.write(f"UPDATE redrive_{table} SET n = ? WHERE n = ?", (number, old), Stage.RENUMBER)
    place.n, place.tail, place.queue = number, tail, target.key
    place.ready_at, place.seq = batch.now, number
    return source_id


def remove(batch: Batch, place: ItemRow) -> None:
    """Remove an item that was taken from its place, and everything written about it."""
    dead_letters.remove_dead_letter(batch, place)
    tables = ["item"]
    if place.deaths:
        tables.append("death")
    if place.entries:  # what moved has a history that says so
        tables += ("history", "lineage")
    for table in tables:
        batch.write(f"DELETE FROM redrive_{table} WHERE n = ?", (place.n,), Stage.DELETE_ITEM)


def audit(
    batch: Batch, actor: str, verb: str, queue: str | None, ids: list[ItemId], count: int, note: str | None = None
) -> None:
    """Write down who changed what."""
    listed = msgspec.json.encode(ids).decode()
    batch.execute(_AUDIT, (batch.namespace, batch.now, actor, verb, queue, listed, count, note))


def _apply_death(batch: Batch, place: ItemRow, row: QueueRow, verdict: Dead, entry: HistoryEntry) -> Settled:
    queue, counters, reason, to = row.queue.name, place.counters, verdict.reason, verdict.to
    cause = cause_of(reason, entry.failure, entry.note)
    batch.count_delta(row.key, "dead_total")
    if verdict.drops:
        remove(batch, place)
        audit(batch, DROP_ACTOR, Verb.DROP.value, queue, [place.id], 1, reason.value)
        _log.warning("item_dropped", item=place.id, queue=queue, reason=reason)
        tell(batch, FeedKind.DEAD, place, entry, title=cause.title, reason=reason)
        return Settled(place.id, queue, None, counters, dead_reason=reason)
    death = Death(
        batch.now, reason, queue, batch.namespace, batch.store, place.id, counters, cause, place.first_leased_at
    )
    record_death(batch, place, death)
    dead_letters.remove_dead_letter(batch, place)
    source_id = None
    elsewhere = to is not None and is_remote(to)
    if to is None:
        place.status, place.ended_at, place.dead_reason, place.held_by = Status.DEAD, batch.now, reason, None
    elif elsewhere:
        place.status, place.expire_deadline, place.held_by = Status.MOVING, None, None
        place.attempts = place.failures = place.losses = 0
        place.ended_at, place.passage = batch.now, MoveRoute(to, batch.now, FeedKind.DEAD, Status.PENDING)
    else:
        target = batch.queue(to)
        if not target.queue.is_dead_queue:
            batch.mark_dead_queue(target)
        source_id = move(batch, place, target, died=True)
        place.status, place.expire_deadline, place.held_by = Status.PENDING, None, None
        place.attempts = place.failures = place.losses = 0
    dead_letters.add_dead_letter(batch, place, death, _text(entry) or cause.title)
    insert_row(batch, place)
    tell(batch, FeedKind.DEAD, place, entry, source_id=source_id, title=cause.title, reason=reason)
    if to is None:
        return Settled(place.id, queue, Status.DEAD, counters, dead_reason=reason)
    if elsewhere:
        return Settled(place.id, queue, Status.MOVING, place.counters, dead_reason=reason)
    return Settled(place.id, to, Status.PENDING, place.counters, place.ready_at, reason, source_id)


def _text(entry: HistoryEntry) -> str | None:
    return entry.note if entry.failure is None else entry.failure.text


def title(entry: HistoryEntry) -> str | None:
    """What the feed says of an ending, in one line."""
    return entry.note if entry.failure is None else entry.failure.title


class Deed(manual_change.ManualAction, frozen=True):
    """One verb, for one item or many."""

    def entry(self, batch: Batch, event: HistoryEvent, queue: str, delivery: int, before: Status) -> HistoryEntry:
        """A row of the history of an item that was in that queue, and what it was there."""
        return self.history_entry(batch.now, event, queue, delivery, before)

    def record(
        self, batch: Batch, place: ItemRow, event: HistoryEvent, queue: str, before: Status, *, to: str | None = None
    ) -> None:
        """Write it into an item's history. `to` is where it goes in another store."""
        record(batch, place, self.history_entry(batch.now, event, queue, place.deliveries, before, to=to))

    def tell(self, batch: Batch, kind: FeedKind, queue: str, place: ItemRow, source_id: ItemId | None = None) -> None:
        """Tell it in the feed of the queue where it happened."""
        feed.append_event(
            batch,
            kind,
            queue,
            place.n,
            place.tail,
            source_id=source_id,
            actor=self.actor,
            operation=self.operation,
            from_status=place.status if kind is FeedKind.REMOVED else None,
        )
