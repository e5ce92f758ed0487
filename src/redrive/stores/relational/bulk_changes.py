"""Bulk changes: many uniform dead letters in a handful of statements.

Uniform are dead items that return to work in their queue or are archived, and archived items that are restored or
purged, if only their status decides how they are changed: no other queue, no size limit, no idempotency key. Most
operations change such items only; a call that meets any other item changes nothing here and follows the rules.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from redrive.contract.admin_calls import ManualChange, ManualTarget, StepOperation
from redrive.errors import RedriveError
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.filter import MAX_EXAMINED
from redrive.model.ids import MAX_NUMBER, ItemId, make_id, parse_id
from redrive.model.item import Counters, HistoryEvent, Settled, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.manual_change import ManualAction
from redrive.model.operation import Operation, after_step
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, feed
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import STATE_COLUMNS
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.state import SqlState
from redrive.stores.rules.operations import save_step

_DELIVERY = '"delivery":'

BULK_THRESHOLD = 4
"""Maximum number of items for which changes one by one cost no more."""

_MAX_CHUNKS = 16
"""Items of several queues that alternate more often are changed one by one."""
_ENDED = """
    SELECT e.item_no, i.id_suffix, e.queue, e.death_no, e.dead_reason, e.deliveries, e.attempts, e.failures, e.losses,
        e.redrives
    FROM redrive_finished AS e CROSS JOIN redrive_item AS i ON i.item_no = e.item_no WHERE e.item_no IN carray(?)"""
_READY = f"""
    INSERT INTO redrive_ready (queue, item_no, {STATE_COLUMNS})
    SELECT e.queue, e.item_no, e.rank, ?1, ?2 + c.rowid, ?3, e.deliveries, 0, 0, 0, e.redrives + 1, e.first_leased_at,
        e.entries + 1, e.deaths, NULL
    FROM carray(?4) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value"""
_TIMEOUTS = """
    UPDATE redrive_ready SET expire_deadline = ?1 + i.expire_timeout FROM redrive_item AS i
    WHERE i.item_no = redrive_ready.item_no AND i.expire_timeout IS NOT NULL
        AND redrive_ready.item_no IN carray(?2) AND redrive_ready.seq <> redrive_ready.item_no"""
_HISTORY = """
    INSERT INTO redrive_history (key, item_no, entry, data)
    SELECT ?1 + c.rowid, e.item_no, e.entries + 1, CAST(?2 || e.deliveries || ?3 AS BLOB)
    FROM carray(?4) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value"""
_FADED = f"""
    DELETE FROM redrive_history WHERE (item_no, entry) IN (
        SELECT item_no, entries + 1 - {HISTORY_LAST} FROM redrive_finished
        WHERE item_no IN carray(?) AND entries + 1 > {HISTORY_FIRST + HISTORY_LAST})"""
_ARCHIVE = "UPDATE redrive_finished SET status = 'archived', archived_from = 'dead' WHERE item_no IN carray(?)"
_RESTORE = "UPDATE redrive_finished SET status = 'dead', archived_from = NULL WHERE item_no IN carray(?)"


class BulkChunk(msgspec.Struct, frozen=True):
    """Items of one queue that are changed together, in this order."""

    row: QueueRow
    count: int
    numbers: Any
    """The item_no of each, as a table."""
    death_nos: Any
    """The number of the death of each, as a table."""
    timeouts: bool
    """True if some items have their own expire_timeout."""
    long: bool
    """True if some histories have the maximum length."""


class UniformItem(msgspec.Struct, frozen=True, gc=False):
    """One of many items that a call lists."""

    item_no: int
    id_suffix: int
    queue: int
    death_no: int
    dead_reason: str
    """None only for a purge."""
    deliveries: int
    attempts: int
    failures: int
    losses: int
    redrives: int

    @property
    def counters(self) -> Counters:
        """The counters as one value."""
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)

    @property
    def id(self) -> ItemId:
        """The id."""
        return make_id(self.item_no, self.id_suffix)


def change_uniform(state: SqlState, call: ManualChange) -> tuple[Settled, ...] | None:
    """Change all targets together. None if there are few, or if they are not uniform."""
    if call.verb not in _CHANGES or len(call.targets) <= BULK_THRESHOLD:
        return None
    batch, action = state.batch, ManualAction(call.verb, call.actor, call.note, call.to, call.force)
    items = _listed(batch, call.targets)
    chunks = None if items is None else _chunks(batch, action, [(it.death_no, it.item_no, it.queue) for it in items])
    if items is None or chunks is None:
        return None
    change, settle = _CHANGES[call.verb]
    for chunk in chunks:
        change(batch, action, chunk)
    queue = chunks[0].row.queue.name if len({chunk.row.key for chunk in chunks}) == 1 else None
    state.write_audit(call.actor, str(call.verb), queue, tuple(item.id for item in items), len(items), call.note)
    return tuple(settle(batch, item) for item in items)


def _listed(batch: Batch, targets: Sequence[ManualTarget]) -> list[UniformItem] | None:
    """Return the items of all targets, in order; None if one of them has not ended, is listed twice, or is edited."""
    if any(target.payload is not None or target.headers is not None for target in targets):
        return None
    ids = [id for id in _parsed(targets) if id[0] <= MAX_NUMBER]
    rows = batch.execute(_ENDED, (batch.table([number for number, _ in ids]),)).fetchall()
    found = {(item.item_no, item.id_suffix): item for item in (UniformItem(*row) for row in rows)}
    if len(found) < len(targets) or len(set(ids)) < len(targets):
        return None
    return [found[id] for id in ids] if found.keys() == set(ids) else None


def step_over_uniform(state: SqlState, call: StepOperation) -> Operation | None:
    """Make a step of an operation over uniform dead letters. None if some are not. Canaries are changed one by
    one."""
    batch, operation = state.batch, state.operations.get(call.id)
    if operation is None or not operation.may_step(call.steps):
        return None
    if operation.canaries_left or (index := _index(batch, operation)) is None:
        return None
    limit, left = call.limit, operation.changes_left  # no item is refused here
    found, position, exhausted = _find(batch, operation, index, limit if left is None else min(limit, left))
    action = ManualAction.of(operation)
    chunks = _chunks(batch, action, found)
    if chunks is None:
        return None
    for chunk in chunks:
        _CHANGES[action.verb][0](batch, action, chunk)
    state.operations.remember_all(operation, [item_no for _, item_no, _ in found])
    return save_step(state, after_step(operation, batch.now, (), (), position, exhausted, unnamed=len(found)))


def _parsed(targets: Iterable[ManualTarget]) -> Iterator[tuple[int, int]]:
    for target in targets:
        with contextlib.suppress(RedriveError):  # the rules report it
            yield parse_id(target.id)


def _revive(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    """Make items pending at the tail of their queue."""
    name, timeout, numbers, count = chunk.row.queue.name, chunk.row.settings.expire_timeout, chunk.numbers, chunk.count
    deadline = None if timeout is None else batch.now + timeout
    batch.execute(_READY, (batch.now, batch.allocate(count) - 1, deadline, numbers))
    if chunk.timeouts:
        batch.execute(_TIMEOUTS, (batch.now, numbers))
    # All entries are equal except for the delivery, which the statement fills in.
    entry = msgspec.json.encode(action.history_entry(batch.now, HistoryEvent.REDRIVEN, name, 0, Status.DEAD)).decode()
    before, _, after = entry.partition(f"{_DELIVERY}0")
    batch.execute(_HISTORY, (batch.allocate(count) - 1, before + _DELIVERY, after, numbers))
    if chunk.long:
        batch.execute(_FADED, (numbers,))
    batch.execute("DELETE FROM redrive_finished WHERE item_no IN carray(?)", (numbers,))
    dead_letters.remove_dead_letters(batch, chunk.death_nos)
    feed.append_events(batch, FeedKind.REDRIVEN, name, numbers, count, action.actor, action.operation)
    batch.count_status(chunk.row.key, Status.DEAD, -count)
    batch.count_status(chunk.row.key, Status.PENDING, count)
    batch.count_delta(chunk.row.key, "redriven_total", count)
    batch.arrivals[name] += count


def _archive(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    batch.execute(_ARCHIVE, (chunk.numbers,))
    dead_letters.archive_dead_letters(batch, chunk.death_nos)
    feed.append_events(
        batch, FeedKind.ARCHIVED, chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation
    )
    batch.count_status(chunk.row.key, Status.DEAD, -chunk.count)
    batch.count_status(chunk.row.key, Status.ARCHIVED, chunk.count)
    batch.count_delta(chunk.row.key, "archived_total", chunk.count)


def _restore(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    batch.execute(_RESTORE, (chunk.numbers,))
    dead_letters.restore_dead_letters(batch, chunk.death_nos)
    feed.append_events(
        batch, FeedKind.RESTORED, chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation
    )
    batch.count_status(chunk.row.key, Status.ARCHIVED, -chunk.count)
    batch.count_status(chunk.row.key, Status.DEAD, chunk.count)


def _purge(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    told = (chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation, Status.ARCHIVED)
    feed.append_events(batch, FeedKind.REMOVED, *told)
    dead_letters.remove_dead_letters(batch, chunk.death_nos)
    delete_finished(batch, chunk.numbers)
    batch.count_status(chunk.row.key, Status.ARCHIVED, -chunk.count)


def delete_finished(batch: Batch, numbers: Any) -> None:
    """Delete items that are finished and have no holders, with all their rows except index entries."""
    for table in ("finished", "item", "history", "death", "former_id"):
        batch.execute(f"DELETE FROM redrive_{table} WHERE item_no IN carray(?)", (numbers,))


def _revived(batch: Batch, item: UniformItem) -> Settled:
    counters = Counters(item.deliveries, redrives=item.redrives + 1)
    return Settled(item.id, batch.by_key[item.queue].queue.name, Status.PENDING, counters, batch.now)


def _archived(batch: Batch, item: UniformItem) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.ARCHIVED, item.counters, dead_reason=reason)


def _restored(batch: Batch, item: UniformItem) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.DEAD, item.counters, dead_reason=reason)


def _purged(batch: Batch, item: UniformItem) -> Settled:
    return Settled(item.id, batch.by_key[item.queue].queue.name, None, item.counters)


_CHANGES: dict[
    Verb, tuple[Callable[[Batch, ManualAction, BulkChunk], None], Callable[[Batch, UniformItem], Settled]]
] = {
    Verb.RETRY: (_revive, _revived),
    Verb.REDRIVE: (_revive, _revived),
    Verb.ARCHIVE: (_archive, _archived),
    Verb.RESTORE: (_restore, _restored),
    Verb.PURGE: (_purge, _purged),
}
"""The change of the items of one queue, and the result of each item."""


_SHELF = {
    Verb.RETRY: Status.DEAD,
    Verb.REDRIVE: Status.DEAD,
    Verb.ARCHIVE: Status.DEAD,
    Verb.RESTORE: Status.ARCHIVED,
    Verb.PURGE: Status.ARCHIVED,
}
_REVIVES = (Verb.RETRY, Verb.REDRIVE)
_CONDITIONS = {
    "reason": "reason = ?",
    "error_class": "error_class = ?",
    "since": "died_at >= ?",
    "until": "died_at < ?",
    "min_attempts": "attempts >= ?",
}
"""Conditions on dead letters that a statement checks, beside those of the index."""
_INDEXED = frozenset({"status", "queue", "fingerprint"})
_NEXT = """
    SELECT death_no, item_no, queue{columns} FROM redrive_dead_letter
    WHERE {index} AND death_no > ? AND death_no <= ? ORDER BY death_no LIMIT ?"""
_MEANT = "SELECT death_no, item_no, queue FROM ({next}) AS examined WHERE {conditions} /*+ ORDER BY death_no */ LIMIT ?"
_EXAMINED = "SELECT count(*), max(death_no) FROM ({next}) AS examined"
_QUEUES_OF = """
    SELECT (SELECT min(queue) FROM redrive_dead_letter WHERE section = ?1 AND fingerprint = ?2),
        (SELECT max(queue) FROM redrive_dead_letter WHERE section = ?1 AND fingerprint = ?2)"""
_STANDING = """
    SELECT count(*), max(e.entries), count(i.expire_timeout), count(*) FILTER (WHERE {plain})
    FROM carray(?) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value
    CROSS JOIN redrive_item AS i ON i.item_no = e.item_no"""
_PLAIN = {
    Verb.RETRY: "e.status = 'dead' AND e.held_by IS NULL AND i.idempotency_key IS NULL",
    # An item that never moved died in its queue; another one may have to return to the queue of its death.
    Verb.REDRIVE: "e.status = 'dead' AND e.held_by IS NULL AND i.idempotency_key IS NULL AND i.source_id IS NULL",
    Verb.ARCHIVE: "e.status = 'dead'",
    Verb.RESTORE: "e.status = 'archived' AND e.archived_from = 'dead'",
    Verb.PURGE: "e.status IN ('archived', 'dropped') AND e.held_by IS NULL",
}
"""The condition that only the status of an item decides how a verb changes it."""


def _index(batch: Batch, operation: Operation) -> tuple[str, tuple[Any, ...]] | None:
    """Return the index condition; None if no statement finds the dead letters in the order of their deaths."""
    where = operation.where
    given = {name for name in where.__struct_fields__ if getattr(where, name) is not None}
    if (
        operation.verb not in _SHELF
        or where.status is not _SHELF[operation.verb]
        or not given <= _INDEXED | _CONDITIONS.keys()
    ):
        return None
    section = batch.namespace_key if where.status is Status.DEAD else -batch.namespace_key
    queue = None if where.queue is None else batch.by_name.get(where.queue)
    if where.queue is not None and queue is None:
        return None
    if where.fingerprint is None:
        return ("section = ?", (section,)) if queue is None else ("queue = ? AND section = ?", (queue.key, section))
    first, last = batch.execute(_QUEUES_OF, (section, where.fingerprint)).get
    key = queue.key if queue is not None else first
    if queue is None and first != last:
        return None
    return "section = ? AND fingerprint = ? AND queue = ?", (section, where.fingerprint, key)


def _find(
    batch: Batch, operation: Operation, index: tuple[str, tuple[Any, ...]], limit: int
) -> tuple[list[tuple[int, int, int]], int | None, bool]:
    """Return the next matching dead letters (death_no, item_no, queue), the position, and whether it is the end."""
    where = operation.where
    asked = {name: value for name in _CONDITIONS if (value := getattr(where, name)) is not None}
    conditions = " AND ".join(_CONDITIONS[name] for name in asked) or "true"
    columns = ", reason, error_class, died_at, attempts" if asked else ""
    following = _NEXT.format(columns=columns, index=index[0])
    bounds = (*index[1], operation.position or 0, operation.mark, MAX_EXAMINED)
    meant = _MEANT.format(next=following, conditions=conditions)
    found = batch.execute(meant, (*bounds, *asked.values(), limit + 1)).fetchall()
    if len(found) > limit:
        return found[:limit], found[limit - 1][0], False
    examined, last = batch.execute(_EXAMINED.format(next=following), bounds).get
    return found, last, examined < MAX_EXAMINED


def _chunks(batch: Batch, action: ManualAction, found: list[tuple[int, int, int]]) -> list[BulkChunk] | None:
    """Return the items by runs of one queue, so that they are changed in their order; None if one of them must be
    checked individually."""
    chunks: list[BulkChunk] = []
    statement = _STANDING.format(plain=_PLAIN[action.verb])
    for queue, members in itertools.groupby(found, key=lambda each: each[2]):
        row = batch.by_key.get(queue)
        if row is None or action.to not in (None, row.queue.name) or len(chunks) == _MAX_CHUNKS:
            return None
        if action.verb in _REVIVES and row.settings.max_size is not None:
            return None
        dead, numbers, _ = zip(*members, strict=True)
        table = batch.table(numbers)
        count, entries, timeouts, plain = batch.execute(statement, (table,)).get
        if count < len(numbers) or plain < count:
            return None
        long = entries >= HISTORY_FIRST + HISTORY_LAST
        chunks.append(BulkChunk(row, count, table, batch.table(dead), bool(timeouts), long))
    return chunks
