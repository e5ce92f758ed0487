"""What runs by itself: items that fall due, items that expired, retention, and the roll-up of counts."""

from __future__ import annotations

from redrive.errors import ItemNotFound, WrongStatus
from redrive.model.item import Event, HistoryEntry, Settled, Status
from redrive.model.judge import Ending
from redrive.model.transitions import Verb, allowed_from
from redrive.store import LEDGER_TIMEOUT, Clean, Expire, Promote, Stale
from redrive.stores.sqlite import verdicts
from redrive.stores.sqlite.batch import TALLIED, Batch, QueueRow
from redrive.stores.sqlite.leases import promote
from redrive.stores.sqlite.places import find, resolve, take
from redrive.stores.sqlite.queries import earliest

_SUMS = ", ".join(f"sum({name})" for name in TALLIED)
_ROLL_UP = f"""
    INSERT INTO redrive_count (queue, {", ".join(TALLIED)})
    SELECT queue, {_SUMS} FROM redrive_tally WHERE true GROUP BY queue
    ON CONFLICT (queue) DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in TALLIED)}"""
_COMPLETED = "SELECT n FROM redrive_ended WHERE queue = ? AND status = 'completed' AND ended_at <= ? LIMIT ?"
_DEAD = "SELECT n FROM redrive_letter WHERE queue = ? AND died_at <= ? ORDER BY died_at, n LIMIT ?"
_KEYS = """
    DELETE FROM redrive_idempotency
    WHERE (queue, key) IN (SELECT queue, key FROM redrive_idempotency WHERE until <= ? LIMIT ?)"""
_LEDGER = """
    DELETE FROM redrive_ledger
    WHERE (queue, source_id) IN (SELECT queue, source_id FROM redrive_ledger WHERE closed_at <= ? LIMIT ?)"""

_OLDEST_COMPLETED = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_ended)
        UNION ALL SELECT (SELECT min(queue) FROM redrive_ended WHERE queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue, (SELECT min(ended_at) FROM redrive_ended WHERE queue = each.queue AND status = 'completed')
    FROM each WHERE queue IS NOT NULL"""
_OLDEST_DEAD = earliest("redrive_letter", "died_at", "true")
_DUE_QUEUES = """
    WITH RECURSIVE due(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_waiting WHERE held_by IS NULL)
        UNION ALL
        SELECT (SELECT min(queue) FROM redrive_waiting WHERE held_by IS NULL AND queue > due.queue)
        FROM due WHERE due.queue IS NOT NULL)
    SELECT queue FROM due WHERE queue IS NOT NULL
        AND EXISTS (SELECT 1 FROM redrive_waiting WHERE queue = due.queue AND held_by IS NULL AND ready_at <= ?)"""


def promote_all(batch: Batch, call: Promote) -> int:
    """Bring in what has fallen due, queue by queue."""
    promoted = 0
    for (queue,) in batch.execute(_DUE_QUEUES, (batch.now,)).fetchall():
        row = batch.by_key.get(queue)
        if row is not None and promoted < call.limit:
            promoted += promote(batch, row, call.limit - promoted)
    return promoted


def expire(batch: Batch, call: Expire) -> Settled | Stale:
    """Settle an item whose time is over."""
    n = resolve(batch, call.id)
    place = None if n is None else find(batch, n)
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
    verdicts.record(batch, place, HistoryEntry(batch.now, Event.EXPIRED, row.queue.name, place.deliveries))
    return verdicts.carry_out(batch, place, call.verdict)


def clean(batch: Batch, call: Clean) -> int:
    """Remove what retention says, a bounded number, and roll the counts up."""
    left = call.limit
    for queue, oldest in batch.execute(_OLDEST_COMPLETED).fetchall():
        row = batch.by_key.get(queue)
        if row and oldest is not None and oldest <= (before := batch.now - row.settings.keep_completed):
            left -= _remove(batch, row, batch.execute(_COMPLETED, (row.key, before, left)).fetchall(), None)
    for queue, oldest in batch.execute(_OLDEST_DEAD).fetchall():
        row = batch.by_key.get(queue)
        keep_dead = None if row is None else row.settings.keep_dead
        if row and keep_dead is not None and oldest <= (before := batch.now - keep_dead):
            left -= _remove(batch, row, batch.execute(_DEAD, (row.key, before, left)).fetchall(), "purge")
    left -= _count(batch, _KEYS, (batch.now, left))
    left -= _count(batch, _LEDGER, (batch.now - LEDGER_TIMEOUT, left))
    if batch.execute("SELECT 1 FROM redrive_tally LIMIT 1").get:
        batch.execute(_ROLL_UP)
        batch.execute("DELETE FROM redrive_tally")
    return call.limit - left


def _remove(batch: Batch, row: QueueRow, found: list[tuple[int]], audited: str | None) -> int:
    removed = []
    for (n,) in found:
        place = find(batch, n)
        if place is None or place.status is Status.ACTIVE:
            continue
        take(batch, place)
        verdicts.remove(batch, place)
        removed.append(place.id)
    if removed and audited:
        verdicts.audit(batch, "retention", audited, row.queue.name, removed, len(removed))
    return len(removed)


def _count(batch: Batch, statement: str, values: tuple[int, int]) -> int:
    batch.execute(statement, values)
    return batch.connection.changes()
