"""Results that outlive their items: one row for each id that the item had.

Callers that await a result have one of these ids. Maintenance deletes expired results.
"""

from __future__ import annotations

from collections.abc import Iterable

from redrive.clock import Instant
from redrive.model.ids import MAX_NUMBER, ItemId, parse_id
from redrive.model.item import KeptResult, Result
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.session import Executor

# By the suffix too: a number may recur, once its item is removed and the clock was set back.
_KEEP = """
    INSERT INTO redrive_result (item_no, id_suffix, namespace, result, result_type, expires_at, queue, put_to)
    VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT origin_queue FROM redrive_item WHERE item_no = ?))
    ON CONFLICT (item_no, id_suffix) DO UPDATE
    SET result = excluded.result, result_type = excluded.result_type, expires_at = excluded.expires_at,
        queue = excluded.queue, put_to = excluded.put_to"""
_GET = """
    SELECT result, result_type, queue, put_to FROM redrive_result
    WHERE item_no = ? AND id_suffix = ? AND namespace = ? AND expires_at > ?"""


def keep_result(batch: Batch, ids: Iterable[ItemId], item_no: int, queue: str, result: Result, until: Instant) -> None:
    """Keep the result of an item that is about to be completed in a queue, under every id that it had."""
    kept = (batch.namespace_key, result.payload, result.content_type, until, queue, item_no)
    for id in ids:
        batch.write(_KEEP, (*parse_id(id), *kept))


def read_result(executor: Executor, namespace_key: int | None, id: ItemId, now: Instant) -> KeptResult | None:
    """Return a kept result that has not expired."""
    item_no, id_suffix = parse_id(id)
    if item_no > MAX_NUMBER or id_suffix > MAX_NUMBER:  # no item ever had such an id
        return None
    row = executor.execute(_GET, (item_no, id_suffix, namespace_key, now)).fetchone()
    return None if row is None else KeptResult(*row)
