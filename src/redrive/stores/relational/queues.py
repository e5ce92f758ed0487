"""Sizes of queues, and their deletion."""

from __future__ import annotations

from redrive.contract.admin_calls import DeleteQueue
from redrive.errors import ConfirmationMismatch, ItemActive, QueueFull, QueueInUse, StoreUnavailable
from redrive.model.dead_queue import source_queues_of
from redrive.stores.relational import verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import find
from redrive.stores.relational.low_water_marks import above
from redrive.stores.relational.queue_rows import QueueRow

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
_SIZE = f"""
    SELECT (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_count WHERE queue = ?1)
         + (SELECT coalesce(sum(pending + failed + active), 0) FROM redrive_count_delta
            WHERE queue = ?1 {above("key", "count_delta", "0")})"""


def delete_queue(batch: Batch, call: DeleteQueue) -> int:
    """Delete a queue with all its rows, which may be many. All other calls on queues follow the rules."""
    name = call.name
    row = batch.queue(name)
    users = source_queues_of(name, {other: each.settings for other, each in batch.by_name.items()})
    if users := (*users, *row.queue.source_queues):
        raise QueueInUse(name, users)
    if batch.execute(_FREE, (row.key,)).get is None:
        problem = f"a transaction of a program puts to queue '{name}'; delete it when that has ended"
        raise StoreUnavailable(batch.store, problem)
    numbers = [item_no for (item_no,) in batch.execute(_ITEMS, (row.key,)).fetchall()]
    count = len(numbers)
    if count != (call.confirm or 0):
        raise ConfirmationMismatch(f"deleting queue '{name}'", call.confirm, count)
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
    verdicts.audit(batch, call.actor, "delete_queue", name, [], count)
    return count


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
