"""Maintenance: due items, retention, and the roll-up of counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from redrive.clock import Instant
from redrive.contract.base import (
    ENDED_KEY_RETENTION,
    FEED_RETENTION,
    LEDGER_RETENTION,
    MAINTENANCE_BATCH,
    OPERATION_RETENTION,
)
from redrive.contract.maintenance_calls import ApplyRetention, Promote
from redrive.model.item import Status
from redrive.model.queue import QueueSettings
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.bulk_changes import delete_finished
from redrive.stores.relational.deduplication import KEY_LIVES
from redrive.stores.relational.item_rows import DROPPED, find_all
from redrive.stores.relational.leases import promote
from redrive.stores.relational.low_water_marks import above, each_queue
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.state import SqlState
from redrive.stores.rules.maintenance import archive_items, purge_items
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State

_ENDED = (
    "SELECT item_no FROM redrive_finished WHERE queue = ? AND status = ? AND ended_at <= ? ORDER BY ended_at LIMIT ?"
)
_OLDEST_ENDED = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_finished)
        UNION ALL SELECT (SELECT min(queue) FROM redrive_finished WHERE queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue, (SELECT min(ended_at) FROM redrive_finished WHERE queue = each.queue AND status = ?1)
    FROM each WHERE queue IS NOT NULL"""
_QUEUES = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_dead_letter)
        UNION ALL SELECT (SELECT min(queue) FROM redrive_dead_letter WHERE queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue FROM each WHERE queue IS NOT NULL"""
_LETTERS = """
    SELECT item_no, died_at FROM redrive_dead_letter INDEXED BY redrive_dead_letter_queue
    WHERE queue = ? AND section = ? ORDER BY death_no"""


_BUSY = (Status.ACTIVE, Status.MOVING)
_Rule = Callable[[State, QueueState, Sequence[Record]], int]


class Retention:
    """One round of retention: a bounded number of items, over all queues."""

    def __init__(self, batch: Batch, limit: int) -> None:
        self._batch = batch
        self.left = limit
        self._ahead = MAINTENANCE_BATCH
        """Number of dead letters examined after one that is too young: an undone redrive or an import is among later
        deaths."""

    def apply(self) -> None:
        """Archive dead letters first, so that an item that matches several rules is deleted last."""
        self._remove_completed()
        section = self._batch.namespace_key
        for (queue,) in self._batch.execute(_QUEUES).fetchall():
            row = self._batch.by_key.get(queue)
            if row is None:
                continue
            settings = row.settings
            if settings.archive_after is not None:
                self._change(archive_items, row, self._due(row, section, settings.archive_after))
            if settings.keep_dead is not None:
                self._change(purge_items, row, self._due(row, section, settings.keep_dead))
        for row, due in self._ended(Status.ARCHIVED.value, lambda settings: settings.keep_archived):
            self._change(purge_items, row, due)
        for row, due in self._ended(DROPPED, lambda settings: settings.keep_dropped):
            self._change(purge_items, row, due)

    def _ended(self, status: str, age: Callable[[QueueSettings], int | None]) -> Iterator[tuple[QueueRow, list[int]]]:
        """Yield the items of each queue whose retention in that status of redrive_finished has ended."""
        batch = self._batch
        for queue, oldest in batch.execute(_OLDEST_ENDED, (status,)).fetchall():
            row = batch.by_key.get(queue)
            keep = None if row is None else age(row.settings)
            if row is None or keep is None or oldest is None or oldest > batch.now - keep:
                continue
            old = batch.execute(_ENDED, (row.key, status, batch.now - keep, self.left)).fetchall()
            yield row, [item_no for (item_no,) in old]

    def _remove_completed(self) -> None:
        """Delete completed items: they are in no index, and are not recorded in audit or feed."""
        for row, numbers in self._ended(Status.COMPLETED.value, lambda settings: settings.keep_completed):
            delete_finished(self._batch, self._batch.table(numbers))
            self._batch.count_status(row.key, Status.COMPLETED, -len(numbers))
            self.left -= len(numbers)

    def _due(self, row: QueueRow, section: int, age: int) -> list[int]:
        """Return dead letters of a queue whose retention has ended, except those that are leased or moving."""
        due: list[int] = []
        with contextlib.closing(self._batch.stream(_LETTERS, (row.key, section))) as letters:
            old = self._old(letters, self._batch.now - age)
            while some := list(islice(old, self.left - len(due))):
                item_rows = find_all(self._batch, some)
                at_rest = (item_no for item_no in some if item_rows[item_no].status not in _BUSY)
                due.extend(at_rest)
        return due

    def _old(self, letters: Iterable[tuple[int, Instant]], before: int) -> Iterator[int]:
        """Yield the numbers of letters that died by then, up to where only younger ones follow."""
        for item_no, died_at in letters:
            if died_at <= before:
                yield item_no
                continue
            self._ahead -= 1
            if self._ahead <= 0:
                return

    def _change(self, rule: _Rule, row: QueueRow, numbers: list[int]) -> None:
        """Archive or purge items by the rules, in the order of their deaths."""
        if numbers:
            state = SqlState(self._batch)
            items = sorted(state.load_numbers(numbers), key=lambda item: item.death_number)
            self.left -= rule(state, state.queues[row.queue.name], items)
            state.flush()


def _delete_some(table: str, key: str, due: str) -> str:
    """Return an SQL deletion of a bounded number of rows. The rows are selected once: PostgreSQL may execute a subquery
    with SKIP LOCKED again for each row, and would then delete more."""
    return f"""
    WITH due AS MATERIALIZED (SELECT {key} FROM {table} WHERE {due} LIMIT ? /*+ FOR UPDATE SKIP LOCKED */)
    DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM due)"""


_KEYS = _delete_some("redrive_idempotency", "queue, key", "expires_at BETWEEN 0 AND ?")
_ITEM_KEYS = f"""
    SELECT k.queue, k.key, {KEY_LIVES} FROM redrive_idempotency AS k
    WHERE k.expires_at < 0 AND k.expires_at >= ? LIMIT ? /*+ FOR UPDATE SKIP LOCKED */"""
_DELETE_KEY = "DELETE FROM redrive_idempotency WHERE queue = ? AND key = ?"
_KEEP_KEY = "UPDATE redrive_idempotency SET expires_at = ? WHERE queue = ? AND key = ?"
_LEDGER = _delete_some("redrive_ledger", "queue, source_id", "closed_at <= ?")
_REGISTRATIONS = _delete_some("redrive_registration", "namespace, kind, name", "expires_at <= ?")
_RESULTS = _delete_some("redrive_result", "item_no, id_suffix", "expires_at <= ?")
_FEED = """
    DELETE FROM redrive_feed WHERE number IN (
        SELECT number FROM (SELECT number, at FROM redrive_feed ORDER BY number LIMIT ?2) AS oldest WHERE at <= ?1)"""
_ENDED_OPERATIONS = "SELECT number FROM redrive_operation WHERE ended_at <= ? LIMIT ?"
_OPERATION_ITEMS = """
    DELETE FROM redrive_operation_item
    WHERE operation = ?1 AND item_no IN (SELECT item_no FROM redrive_operation_item WHERE operation = ?1 LIMIT ?2)"""
_DUE_QUEUES = f"""
    {each_queue("redrive_scheduled", "held_by IS NULL")}
    SELECT queue FROM each WHERE queue IS NOT NULL AND EXISTS (
        SELECT 1 FROM redrive_scheduled WHERE queue = each.queue AND held_by IS NULL AND ready_at <= ?1
            {above("ready_at", "scheduled", "each.queue")})"""
_COUNT_DELTAS = f"SELECT 1 FROM redrive_count_delta WHERE true {above('key', 'count_delta', '0')} LIMIT 1"


def promote_all(batch: Batch, call: Promote) -> int:
    """Move due items to redrive_ready, queue by queue."""
    promoted = 0
    for (queue,) in batch.session.scan(batch, _DUE_QUEUES, (batch.now,)).fetchall():
        row = batch.by_key.get(queue)
        if row is not None and promoted < call.limit:
            promoted += promote(batch, row, call.limit - promoted)
    return promoted


def apply_retention(batch: Batch, call: ApplyRetention) -> int:
    """Remove what is past its retention, a bounded number of rows, and roll the counts up."""
    retention = Retention(batch, call.limit)
    retention.apply()
    left = retention.left
    left -= _count(batch, _KEYS, (batch.now, left))
    left -= _clean_item_keys(batch, left)
    left -= _count(batch, _LEDGER, (batch.now - LEDGER_RETENTION, left))
    left -= _count(batch, _REGISTRATIONS, (batch.now, left))
    left -= _count(batch, _RESULTS, (batch.now, left))
    left -= _count(batch, _FEED, (batch.now - FEED_RETENTION, left))
    left -= _forget_operations(batch, left)
    _forget_words(batch, left)
    if batch.execute(_COUNT_DELTAS).get:
        batch.session.roll_up(batch)
    return call.limit - left


def _clean_item_keys(batch: Batch, limit: int) -> int:
    """Delete keys that ended with their items. Those of items that still exist are examined again later."""
    due = batch.execute(_ITEM_KEYS, (-batch.now, limit)).fetchall()
    for queue, key, lives in due:
        if lives:
            batch.write(_KEEP_KEY, (-(batch.now + ENDED_KEY_RETENTION), queue, key))
        else:
            batch.write(_DELETE_KEY, (queue, key))
    return len(due)


def _forget_operations(batch: Batch, limit: int) -> int:
    """Delete operations that ended long ago, each after the items that it changed, which may be many."""
    removed = 0
    for (number,) in batch.execute(_ENDED_OPERATIONS, (batch.now - OPERATION_RETENTION, limit)).fetchall():
        if removed < limit:
            removed += _count(batch, _OPERATION_ITEMS, (number, limit - removed))
        if removed < limit:
            removed += _count(batch, "DELETE FROM redrive_operation WHERE number = ?", (number,))
    return removed


def _forget_words(batch: Batch, limit: int) -> None:
    """Delete search terms of former dead letters: it is expensive, so it is not part of the change."""
    numbers = [
        death_no
        for (death_no,) in batch.execute("SELECT death_no FROM redrive_search_tombstone LIMIT ?", (limit,)).fetchall()
    ]
    if numbers:
        death_nos = batch.table(numbers)
        batch.execute("DELETE FROM redrive_search WHERE rowid IN carray(?)", (death_nos,))
        batch.execute("DELETE FROM redrive_search_tombstone WHERE death_no IN carray(?)", (death_nos,))


def _count(batch: Batch, statement: str, values: tuple[int, ...]) -> int:
    """Execute a statement and return the number of rows that it changed."""
    return len(batch.execute(f"{statement} RETURNING 1", values).fetchall())
