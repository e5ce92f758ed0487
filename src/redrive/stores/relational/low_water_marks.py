"""Start positions of scans for the first entry of an index, in a database that keeps entries of deleted rows.

SQLite does not need it: these conditions are comments there. See `redrive.stores.postgres.low_water_marks`.
"""

from __future__ import annotations

from functools import cache

from redrive.model.duration import MILLISECOND
from redrive.model.limits import MAX_PRIORITY

READY = tuple(f"ready_{rank}" for rank in range(MAX_PRIORITY + 1))
"""The marks of ready items by their ready_at, one for each rank."""
INSTANT_KINDS = (*READY, "lease", "early_lease", "scheduled", "ready_expiry", "scheduled_expiry")
"""The marks of a queue: leases by deadline, scheduled items by ready_at, ready and scheduled items by expire_deadline.

A lease is early if it expires before one that is taken now with the queue's lease_timeout. All others are inserted that
far ahead, and so is their mark: most leases end long before their deadline."""
KINDS = (*INSTANT_KINDS, "count_delta")
"""All marks. Count deltas, by key, have one mark for all queues."""
SLACK = 500 * MILLISECOND
"""A mark stays this far behind: entries inserted at or after the instant of their transaction are above it."""
_MARKS = "redrive_low_water_mark"


def above(column: str, kind: str, queue: str = "?1") -> str:
    """Return an SQL condition: at or above the mark of that kind."""
    return f"/*= AND {column} >= {_mark(kind, queue)} */"


def leases(columns: str, where: str = "true", end: str = "", queue: str = "?1") -> str:
    """Return an SQL query of the leases of a queue from their marks on, early ones separately."""
    both = f"SELECT {columns} FROM redrive_lease WHERE queue = {queue} AND {where}"
    on_time, early = (
        f"AND early = {number} AND deadline >= {_mark(kind, queue)}"
        for number, kind in enumerate(("lease", "early_lease"))
    )
    return f"""
        SELECT * FROM ({both} /*= {on_time} */ {end}) AS on_time
        /*= UNION ALL SELECT * FROM ({both} {early} {end}) AS early */"""


def _mark(kind: str, queue: str) -> str:
    return f"coalesce((SELECT {kind} FROM {_MARKS} WHERE queue = {queue} ORDER BY version DESC LIMIT 1), 0)"


@cache
def bounded(statement: str, parameter: int) -> str:
    """Return a statement whose scans start at a bound, the parameter of that number, where their mark is above it."""
    marks = ", ".join(f"least({kind}, ?{parameter}) AS {kind}" for kind in INSTANT_KINDS)
    bounded_marks = f"(SELECT queue, version, {marks} FROM {_MARKS}) AS bounded"
    return statement.replace(f"FROM {_MARKS}", f"FROM {bounded_marks}")


def each_queue(table: str, condition: str) -> str:
    """Return the start of a statement: queues with rows in an index whose first column is the queue, as each(queue).

    On other databases than SQLite all queues, as finding the next one with rows steps over entries of deleted rows.
    """
    return f"""WITH RECURSIVE each(queue) AS (
        /*-*/
        SELECT (SELECT min(queue) FROM {table} WHERE {condition})
        UNION ALL
        SELECT (SELECT min(queue) FROM {table} WHERE {condition} AND queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL
        /*-*/
        /*= SELECT key FROM redrive_queue */)"""
