"""Results that are kept for a time of their own, whatever becomes of the items: one row for each id."""

from __future__ import annotations

from redrive.clock import Instant
from redrive.model.ids import MAX_NUMBER, ItemId, parse_id
from redrive.model.item import Result
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.places import Place, earlier_ids
from redrive.stores.relational.session import Executor

# By the tail too: a number may come twice, once the item that had it is gone and the clock was set back.
_KEEP = """
    INSERT INTO redrive_result (n, tail, namespace, result, result_type, until) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (n, tail) DO UPDATE
    SET result = excluded.result, result_type = excluded.result_type, until = excluded.until"""
_GET = """
    SELECT result, result_type FROM redrive_result
    WHERE n = ? AND tail = ? AND namespace = ? AND until > ?"""


def store_result(batch: Batch, place: Place, result: Result, time: int) -> None:
    """Keep the result of an item that is about to be completed, under every id that it had."""
    ids = [(place.n, place.tail)]
    if place.entries:  # what moved has a history that says so
        ids += map(parse_id, earlier_ids(batch, place.n))
    for n, tail in ids:
        values = (n, tail, batch.namespace_key, result.payload, result.content_type, batch.now + time)
        batch.write(_KEEP, values)


def read_result(executor: Executor, namespace_key: int | None, id: ItemId, now: Instant) -> Result | None:
    """What was kept, until its time is over."""
    n, tail = parse_id(id)
    if n > MAX_NUMBER or tail > MAX_NUMBER:  # nobody was ever given such an id
        return None
    row = executor.execute(_GET, (n, tail, namespace_key, now)).fetchone()
    return None if row is None else Result(*row)
