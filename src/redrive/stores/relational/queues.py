"""Queues: create, update, pause, breakers, delete."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from redrive.contract.admin_calls import (
    CreateQueue,
    DeleteQueue,
    QueueCall,
    SetBreakers,
    SetPaused,
    SetSourceQueue,
    UpdateQueue,
)
from redrive.contract.item_calls import StaleSettings
from redrive.errors import ConfirmationMismatch, ItemActive, QueueExists, QueueFull, QueueInUse, StoreUnavailable
from redrive.model.breaker import breaker_changes, change_record
from redrive.model.dead_queue import (
    check_dead_queues,
    check_source_queue,
    local_dead_queues,
    source_queues_after,
    source_queues_of,
)
from redrive.model.gate import BREAKER_GATE, gate_named, lease_limit, set_gate
from redrive.model.queue import Queue, QueueSettings
from redrive.stores.relational import feed, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import find
from redrive.stores.relational.low_water_marks import above
from redrive.stores.relational.queue_rows import QueueRow, encode_values

_CREATE = """
    INSERT INTO redrive_queue (namespace, name, settings, version, paused, is_dead_queue, created_at)
    VALUES (?, ?, ?, (SELECT epoch FROM redrive_meta), 0, 0, ?) RETURNING version"""
_UPDATE = """
    UPDATE redrive_queue SET settings = ?, version = (SELECT epoch FROM redrive_meta)
    WHERE namespace = ? AND name = ? RETURNING version"""
_SET_BREAKERS = """
    UPDATE redrive_queue SET breakers = ?, gates = ?, version = (SELECT epoch FROM redrive_meta) WHERE key = ?"""
_MARK = "UPDATE redrive_queue SET is_dead_queue = 1 WHERE namespace = ? AND name = ?"
_USED_BY = "UPDATE redrive_queue SET source_queues = ? WHERE key = ?"
_FREE = "SELECT 1 FROM redrive_queue WHERE key = ? /*+ FOR UPDATE SKIP LOCKED */"
_ACTIVE = "SELECT item_no FROM redrive_lease WHERE queue = ? ORDER BY deadline, seq LIMIT 1"
_ITEMS = """
    SELECT item_no FROM redrive_ready WHERE queue = ?1 UNION ALL SELECT item_no FROM redrive_scheduled WHERE queue = ?1
    UNION ALL SELECT item_no FROM redrive_lease WHERE queue = ?1 UNION ALL SELECT item_no FROM redrive_finished
    WHERE queue = ?1"""
_OF_QUEUE = (
    "ready", "scheduled", "finished", "dead_letter", "group", "group_hour", "idempotency", "ledger", "count_delta",
    "count",
)  # fmt: skip
"""Tables with rows that belong to a queue and go with it."""
_LEASABLE = "SELECT count(*) FROM (SELECT 1 FROM redrive_ready WHERE queue = ? LIMIT 1000) AS first"
_SIZE = f"""
    SELECT (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_count WHERE queue = ?1)
         + (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_count_delta
            WHERE queue = ?1 {above("key", "count_delta", "0")})"""


def change_queue(batch: Batch, call: QueueCall) -> Any:
    """Execute a call on a queue."""
    match call:
        case CreateQueue(name, settings):
            return _create(batch, name, settings)
        case UpdateQueue(name, settings, version, actor):
            row = batch.queue(name)
            if version != row.queue.version:
                return StaleSettings(row.queue)
            _check(batch, name, settings, row.queue.source_queues)
            verdicts.audit(batch, actor, "update_queue", name, [], 0)
            return _write(batch, name, row.queue, settings)
        case SetPaused(name, paused, actor):
            row = batch.queue(name)
            if row.queue.paused == paused:
                return row.queue
            batch.execute("UPDATE redrive_queue SET paused = ? WHERE key = ?", (int(paused), row.key))
            verdicts.audit(batch, actor, "pause_queue" if paused else "resume_queue", name, [], 0)
            if not paused:
                batch.arrivals[name] += batch.execute(_LEASABLE, (row.key,)).get
            batch.reread_queues((name,))
            return msgspec.structs.replace(row.queue, paused=paused)
        case SetBreakers():
            return _set_breakers(batch, call)
        case SetSourceQueue(name, user, used):
            return _set_source_queue(batch, name, user, used)
        case DeleteQueue(name, confirm, actor):
            return _delete(batch, name, confirm, actor)
        case _:
            assert_never(call)


def _create(batch: Batch, name: str, settings: QueueSettings) -> Queue:
    there = batch.by_name.get(name)
    if there is not None:
        if there.settings == settings:
            return there.queue
        raise QueueExists(name)
    _check(batch, name, settings)
    version = batch.execute(_CREATE, (batch.namespace, name, _encode(settings), batch.now)).get
    _changed(batch, name, settings)
    return Queue(name, settings, version, False, batch.now, False)


def _check(batch: Batch, name: str, settings: QueueSettings, source_queues: tuple[str, ...] = ()) -> None:
    if settings.dead_queue is None:
        return
    check_dead_queues(name, settings, {other: row.settings for other, row in batch.by_name.items()}, source_queues)


def _set_breakers(batch: Batch, call: SetBreakers) -> Queue | StaleSettings:
    """Every change makes a new version: verdicts depend on which breakers are open."""
    row = batch.queue(call.name)
    before = row.queue
    if call.version != before.version or call.former_gate != gate_named(before.gates, BREAKER_GATE):
        return StaleSettings(before)
    gates = set_gate(before.gates, BREAKER_GATE, call.gate)
    batch.execute(_SET_BREAKERS, (encode_values(call.breakers), encode_values(gates), row.key))
    for opened, breaker in breaker_changes(before.breakers, call.breakers):
        kind, verb, why = change_record(opened, breaker, call.note)
        feed.append_queue_event(batch, kind, call.name, title=why, actor=call.actor, breaker=breaker.kind)
        verdicts.audit(batch, call.actor, verb, call.name, [], 0, f"{breaker.kind}: {why}")
    if call.gate != call.former_gate:
        batch.arrivals[call.name] += lease_limit(gates, batch.now, batch.execute(_LEASABLE, (row.key,)).get)
    batch.reread_queues((call.name,))
    return batch.queue(call.name).queue


def _set_source_queue(batch: Batch, name: str, user: str, used: bool) -> Queue:
    """A queue of another store sends its dead here, or does so no longer."""
    row = batch.queue(name)
    if used:
        check_source_queue(name, row.settings)
        if not row.queue.is_dead_queue:
            batch.mark_dead_queue(row)
    source_queues = source_queues_after(row.queue.source_queues, user, used=used)
    if source_queues != row.queue.source_queues:
        batch.execute(_USED_BY, (msgspec.json.encode(source_queues).decode(), row.key))
        batch.reread_queues((name,))
    return batch.queue(name).queue


def _write(batch: Batch, name: str, queue: Queue, settings: QueueSettings) -> Queue:
    version = batch.execute(_UPDATE, (_encode(settings), batch.namespace, name)).get
    _changed(batch, name, settings)
    return msgspec.structs.replace(queue, settings=settings, version=version)


def _changed(batch: Batch, name: str, settings: QueueSettings) -> None:
    """A queue has these settings now: the queues that its dead go to are dead queues, and stay so."""
    targets = local_dead_queues(settings)
    for target in targets:
        batch.execute(_MARK, (batch.namespace, target))
    batch.reread_queues((name, *targets))


def _delete(batch: Batch, name: str, confirm: int | None, actor: str) -> int:
    row = batch.queue(name)
    users = source_queues_of(name, {other: each.settings for other, each in batch.by_name.items()})
    if users := (*users, *row.queue.source_queues):
        raise QueueInUse(name, users)
    if batch.execute(_FREE, (row.key,)).get is None:
        problem = f"a transaction of a program puts to queue '{name}'; delete it when that has ended"
        raise StoreUnavailable(batch.store, problem)
    numbers = [item_no for (item_no,) in batch.execute(_ITEMS, (row.key,)).fetchall()]
    count = len(numbers)
    if count != (confirm or 0):
        raise ConfirmationMismatch(f"deleting queue '{name}'", confirm, count)
    active = batch.execute(_ACTIVE, (row.key,)).get
    if active is not None:
        item_row = find(batch, active)
        assert item_row is not None
        raise ItemActive(item_row.id, item_row.worker)
    batch.execute(
        "INSERT INTO redrive_search_tombstone SELECT death_no FROM redrive_dead_letter WHERE queue = ?", (row.key,)
    )
    for table in ("history", "death", "former_id", "item", "moving", "holder") if numbers else ():
        batch.execute(f"DELETE FROM redrive_{table} WHERE item_no IN carray(?)", (batch.table(numbers),))
    for table in _OF_QUEUE:
        batch.execute(f"DELETE FROM redrive_{table} WHERE queue = ?", (row.key,))
    batch.execute("DELETE FROM redrive_queue WHERE key = ?", (row.key,))
    batch.count_deltas.pop(row.key, None)
    for key in [key for key in batch.groups if key[0] == row.key]:
        del batch.groups[key]
    batch.reread_queues((name,))
    verdicts.audit(batch, actor, "delete_queue", name, [], count)
    return count


def _encode(settings: QueueSettings) -> str:
    return msgspec.json.encode(settings).decode()


def check_max_size(batch: Batch, row: QueueRow, adding: int, leaving: int = 0) -> None:
    """Raise QueueFull if `adding` items would exceed max_size after `leaving` have left the queue."""
    max_size = row.settings.max_size
    if max_size is None or adding == 0:
        return
    size = size_of(batch, row) - leaving
    if size + adding > max_size:
        raise QueueFull(row.queue.name, size, max_size, adding)


def size_of(batch: Batch, row: QueueRow) -> int:
    """Return how many items of a queue count for max_size, with what this transaction has written."""
    if row.key not in batch.sizes:
        batch.sizes[row.key] = batch.execute(_SIZE, (row.key,)).get
    return batch.sizes[row.key] + sum(batch.counted_so_far(row.key, name) for name in ("pending", "failed", "active"))
