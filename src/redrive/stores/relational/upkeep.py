"""What runs by itself: items that fall due, items that expired, retention, and the roll-up of counts."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.errors import ItemNotFound, RedriveError, WrongStatus
from redrive.model.item import Event, HistoryEntry, Settled
from redrive.model.judge import Ending
from redrive.model.transitions import Verb, allowed_from
from redrive.store import FEED_TIMEOUT, LEDGER_TIMEOUT, OPERATION_TIMEOUT, Clean, Expire, Promote, Stale
from redrive.stores.relational import verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.leases import promote
from redrive.stores.relational.marks import above, each_queue
from redrive.stores.relational.places import Ahead, Place, take
from redrive.stores.relational.retention import Retention

_KEYS = """
    DELETE FROM redrive_idempotency
    WHERE (queue, key) IN (
        SELECT queue, key FROM redrive_idempotency WHERE until <= ? LIMIT ? /*+ FOR UPDATE SKIP LOCKED */)"""
_LEDGER = """
    DELETE FROM redrive_ledger
    WHERE (queue, source_id) IN (SELECT queue, source_id FROM redrive_ledger WHERE closed_at <= ? LIMIT ?)"""
_REGISTRATIONS = """
    DELETE FROM redrive_registration
    WHERE (namespace, kind, name) IN (
        SELECT namespace, kind, name FROM redrive_registration WHERE until <= ? LIMIT ?
        /*+ FOR UPDATE SKIP LOCKED */)"""
_RESULTS = """
    DELETE FROM redrive_result
    WHERE (n, tail) IN (SELECT n, tail FROM redrive_result WHERE until <= ? LIMIT ? /*+ FOR UPDATE SKIP LOCKED */)"""
_FEED = """
    DELETE FROM redrive_feed WHERE number IN (
        SELECT number FROM (SELECT number, at FROM redrive_feed ORDER BY number LIMIT ?2) AS oldest WHERE at <= ?1)"""
_ENDED_OPERATIONS = "SELECT number FROM redrive_operation WHERE ended_at <= ? LIMIT ?"
_OPERATION_ITEMS = """
    DELETE FROM redrive_operation_item
    WHERE operation = ?1 AND n IN (SELECT n FROM redrive_operation_item WHERE operation = ?1 LIMIT ?2)"""
_DUE_QUEUES = f"""
    {each_queue("redrive_waiting", "held_by IS NULL")}
    SELECT queue FROM each WHERE queue IS NOT NULL AND EXISTS (
        SELECT 1 FROM redrive_waiting WHERE queue = each.queue AND held_by IS NULL AND ready_at <= ?1
            {above("ready_at", "waiting", "each.queue")})"""
_TALLIES = f"SELECT 1 FROM redrive_tally WHERE true {above('key', 'tally', '0')} LIMIT 1"


def promote_all(batch: Batch, call: Promote) -> int:
    """Bring in what has fallen due, queue by queue."""
    promoted = 0
    for (queue,) in batch.execute(_DUE_QUEUES, (batch.now,)).fetchall():
        row = batch.by_key.get(queue)
        if row is not None and promoted < call.limit:
            promoted += promote(batch, row, call.limit - promoted)
    return promoted


def expire_all(batch: Batch, calls: Sequence[Expire]) -> list[Settled | Stale | RedriveError]:
    """Settle items whose time is over."""
    ahead = Ahead(batch, [call.id for call in calls])
    results: list[Settled | Stale | RedriveError] = []
    for call in calls:
        try:
            results.append(_expire(batch, call, ahead.take(call.id)))
        except RedriveError as refusal:
            results.append(refusal)
    return results


def _expire(batch: Batch, call: Expire, place: Place | None) -> Settled | Stale:
    if place is None or place.queue not in batch.by_key:
        raise ItemNotFound(call.id)
    row = batch.by_key[place.queue]
    allowed = allowed_from(Verb.EXPIRE)
    if place.status not in allowed or place.expire_deadline is None or place.expire_deadline > batch.now:
        raise WrongStatus(Verb.EXPIRE.value, place.id, place.status.value, ("past their expire deadline",))
    if call.version != row.queue.version:
        return Stale(row.queue)
    verdicts.check(batch, row, Ending.EXPIRED, call.verdict)
    take(batch, place)
    entry = HistoryEntry(batch.now, Event.EXPIRED, row.queue.name, place.deliveries)
    verdicts.record(batch, place, entry)
    return verdicts.carry_out(batch, place, call.verdict, entry)


def clean(batch: Batch, call: Clean) -> int:
    """Remove what has had its time, a bounded number of rows, and roll the counts up."""
    retention = Retention(batch, call.limit)
    retention.apply()
    left = retention.left
    left -= _count(batch, _KEYS, (batch.now, left))
    left -= _count(batch, _LEDGER, (batch.now - LEDGER_TIMEOUT, left))
    left -= _count(batch, _REGISTRATIONS, (batch.now, left))
    left -= _count(batch, _RESULTS, (batch.now, left))
    left -= _count(batch, _FEED, (batch.now - FEED_TIMEOUT, left))
    left -= _forget_operations(batch, left)
    _forget_words(batch, left)
    if batch.execute(_TALLIES).get:
        batch.session.roll_up(batch)
    return call.limit - left


def _forget_operations(batch: Batch, limit: int) -> int:
    """Operations that ended long ago, each with the items it changed: those first, because there may be many."""
    removed = 0
    for (number,) in batch.execute(_ENDED_OPERATIONS, (batch.now - OPERATION_TIMEOUT, limit)).fetchall():
        if removed < limit:
            removed += _count(batch, _OPERATION_ITEMS, (number, limit - removed))
        if removed < limit:
            removed += _count(batch, "DELETE FROM redrive_operation WHERE number = ?", (number,))
    return removed


def _forget_words(batch: Batch, limit: int) -> None:
    """Words of items that are dead letters no longer: dear to remove, so it waited until now. Nobody misses them."""
    numbers = [d for (d,) in batch.execute("SELECT d FROM redrive_wordless LIMIT ?", (limit,)).fetchall()]
    if numbers:
        letters = batch.table(numbers)
        batch.execute("DELETE FROM redrive_words WHERE rowid IN carray(?)", (letters,))
        batch.execute("DELETE FROM redrive_wordless WHERE d IN carray(?)", (letters,))


def _count(batch: Batch, statement: str, values: tuple[int, ...]) -> int:
    """How many rows a statement changes."""
    return len(batch.execute(f"{statement} RETURNING 1", values).fetchall())
