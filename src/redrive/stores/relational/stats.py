"""The number of items of a queue in each status, its totals, and the ready time of the oldest ready item."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.queue import QueueStats
from redrive.stores.relational.batch import COUNTED_COLUMNS
from redrive.stores.relational.low_water_marks import READY, above
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.session import Executor

_COLUMNS = ", ".join(COUNTED_COLUMNS)


def _counted(which: str) -> str:
    """Return an SQL query of all rows whose sum is the counts of these queues."""
    return f"""
        SELECT queue, {_COLUMNS} FROM redrive_count WHERE {which}
        UNION ALL SELECT queue, {_COLUMNS} FROM redrive_count_delta
        WHERE {which} {above("key", "count_delta", "0")}"""


def _oldest(queue: str, now: str) -> str:
    """Return an SQL query of the instant at which the oldest item of a queue that is ready or due became so."""
    of_ranks = " UNION ALL ".join(
        f"SELECT min(ready_at) AS at FROM redrive_ready WHERE queue = {queue} AND rank = {rank} "
        f"{above('ready_at', mark, queue)}"
        for rank, mark in enumerate(READY)
    )
    return f"""
    SELECT min(at) FROM (
        {of_ranks}
        UNION ALL SELECT min(ready_at) FROM redrive_scheduled
        WHERE queue = {queue} AND held_by IS NULL AND ready_at <= {now}
            {above("ready_at", "scheduled", queue)}) AS oldest"""


_COUNTS = f"""
    SELECT {", ".join(f"coalesce(sum({name}), 0)" for name in COUNTED_COLUMNS)}
    FROM ({_counted("queue = ?1")}) AS counted"""
_OLDEST = _oldest("?1", "?2")
_ALL = f"""
    SELECT q.name, ({_oldest("q.key", "?2")}), {", ".join(f"coalesce(c.{name}, 0)" for name in COUNTED_COLUMNS)}
    FROM redrive_queue AS q LEFT JOIN (
        SELECT queue, {", ".join(f"sum({name}) AS {name}" for name in COUNTED_COLUMNS)}
        FROM ({_counted("true")}) AS counted GROUP BY queue) AS c ON c.queue = q.key
    WHERE q.namespace = ?1 {{which}} ORDER BY q.name"""
_NAMED = _ALL.format(
    which="/*-*/ AND q.name IN (SELECT value FROM json_each(?3)) /*-*/"
    "/*= AND q.name = ANY (ARRAY(SELECT json_array_elements_text(?3::json))) */"
)
_EVERY = _ALL.format(which="")


def read_stats(executor: Executor, row: QueueRow, now: Instant) -> QueueStats:
    """Return the counts of one queue."""
    counts = dict(zip(COUNTED_COLUMNS, executor.execute(_COUNTS, (row.key,)).get, strict=True))
    oldest = executor.execute(_OLDEST, (row.key, now)).get
    return QueueStats(queue=row.queue.name, oldest_ready_at=oldest, at=now, **counts)


def list_stats(executor: Executor, namespace: str, names: Sequence[str] | None, now: Instant) -> tuple[QueueStats, ...]:
    """Return the counts of all queues, or of those with these names, with one statement."""
    if names is None:
        rows: Iterable[Any] = executor.execute(_EVERY, (namespace, now))
    else:
        rows = executor.execute(_NAMED, (namespace, now, msgspec.json.encode(names).decode()))
    return tuple(
        QueueStats(queue=name, oldest_ready_at=oldest, at=now, **dict(zip(COUNTED_COLUMNS, counts, strict=True)))
        for name, oldest, *counts in rows
    )
