"""Where looks for the first entry of an index begin, in a database whose indexes keep entries of rows that are gone.

SQLite has none of it: what is said here stands in comments there. See `redrive.stores.postgres.low_water_marks`.
"""

from __future__ import annotations

from redrive.model.duration import MILLISECOND
from redrive.model.limits import MAX_PRIORITY

READY = tuple(f"ready_{rank}" for rank in range(MAX_PRIORITY + 1))
"""The marks of ready items by their ready_at, one for each rank."""
INSTANT_KINDS = (*READY, "lease", "early_lease", "scheduled", "ready_expiry", "scheduled_expiry")
"""The marks of a queue: leases by deadline, waiting items by ready_at, ready and waiting ones by expire_deadline.

A lease is early that runs out before one would that is taken now for the queue's lease_timeout. Others are all laid
that far ahead, and so is their mark: most leases are over long before their deadline."""
KINDS = (*INSTANT_KINDS, "count_delta")
"""All marks. Tallies, by their keys, have one for all queues."""
SLACK = 500 * MILLISECOND
"""A mark stays this far behind. What is laid no earlier, seen from the instant of its transaction, is above it."""


def above(column: str, kind: str, queue: str = "?1") -> str:
    """A condition for a statement: at or above the mark of that kind."""
    return f"/*= AND {column} >= {_mark(kind, queue)} */"


def leases(columns: str, where: str = "true", end: str = "", queue: str = "?1") -> str:
    """A statement about the leases of a queue, read from their marks on: those that are early apart from others."""
    both = f"SELECT {columns} FROM redrive_lease WHERE queue = {queue} AND {where}"
    on_time, early = (
        f"AND early = {number} AND deadline >= {_mark(kind, queue)}"
        for number, kind in enumerate(("lease", "early_lease"))
    )
    return f"""
        SELECT * FROM ({both} /*= {on_time} */ {end}) AS on_time
        /*= UNION ALL SELECT * FROM ({both} {early} {end}) AS early */"""


def _mark(kind: str, queue: str) -> str:
    return (
        f"coalesce((SELECT {kind} FROM redrive_low_water_mark WHERE queue = {queue} ORDER BY version DESC LIMIT 1), 0)"
    )


def each_queue(table: str, condition: str) -> str:
    """The beginning of a statement: the queues with rows in an index that begins with the queue, as each(queue).

    Elsewhere than on SQLite all queues: to find the next one that has rows passes over the entries of those gone.
    """
    return f"""WITH RECURSIVE each(queue) AS (
        /*-*/
        SELECT (SELECT min(queue) FROM {table} WHERE {condition})
        UNION ALL
        SELECT (SELECT min(queue) FROM {table} WHERE {condition} AND queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL
        /*-*/
        /*= SELECT key FROM redrive_queue */)"""
