"""The examination of a whole file: its structure, its schema, and whether its rows belong together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import apsw

from redrive.clock import Instant
from redrive.model.text import pluralize
from redrive.stores.sqlite import schema

MOST_PROBLEMS = 10
"""Maximum number of damaged places of the structure that are named."""
_STATUSES = ("pending", "failed", "active", "completed", "dead", "archived", "moving")
_PLACES = """(
    SELECT item_no, queue, 'pending' AS status FROM redrive_ready
    UNION ALL SELECT item_no, queue, status FROM redrive_scheduled
    UNION ALL SELECT item_no, queue, 'active' FROM redrive_lease
    UNION ALL SELECT item_no, queue, iif(status = 'dropped', 'archived', status) FROM redrive_finished)"""
_ITEMS = "(SELECT item_no, queue FROM redrive_item)"
_UNPAIRED = f"""
    SELECT (SELECT count(*) FROM (SELECT * FROM {_ITEMS} EXCEPT SELECT item_no, queue FROM {_PLACES})),
        (SELECT count(*) FROM (SELECT item_no, queue FROM {_PLACES} EXCEPT SELECT * FROM {_ITEMS}))"""
_COUNTED = " UNION ALL ".join(
    f"SELECT queue, '{status}' AS status, {status} AS number FROM {table}"
    for table in ("redrive_count", "redrive_count_delta")
    for status in _STATUSES
)
_WRONG_COUNTS = f"""
    SELECT coalesce(q.name, 'number ' || c.queue), c.status, sum(c.number), sum(c.there)
    FROM (SELECT queue, status, number, 0 AS there FROM ({_COUNTED})
        UNION ALL SELECT queue, status, 0, 1 FROM {_PLACES}) AS c LEFT JOIN redrive_queue AS q ON q.key = c.queue
    GROUP BY c.queue, c.status HAVING sum(c.number) <> sum(c.there)"""
_SCHEMA = "SELECT name, sql FROM sqlite_schema WHERE name LIKE 'redrive_%' AND sql IS NOT NULL"


def find_problems(connection: apsw.Connection) -> Iterator[str]:
    """Return what is wrong with a file, in one snapshot."""
    for (found,) in connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})").fetchall():
        if found != "ok":
            yield from str(found).splitlines()
    wanted, there = _definitions_of_a_new_file(), _definitions(connection)
    for name in wanted:
        if there.get(name) != wanted[name]:
            yield f"the definition of {name} is not the one that Redrive wrote"
    unpaired: tuple[int, int] = connection.execute(_UNPAIRED).get
    without_place, without_item = unpaired
    if without_place:
        yield f"{pluralize(without_place, 'item')} in no place"
    if without_item:
        yield f"{pluralize(without_item, 'row')} of items that do not exist"
    wrong: list[Any] = connection.execute(_WRONG_COUNTS).fetchall()
    for queue, status, counted, number in wrong:
        yield f"queue {queue!r} counts {counted:,} {status} items, and has {number:,}"


def _definitions(connection: apsw.Connection) -> dict[str, str]:
    """Return how tables and indexes are defined, regardless of line breaks."""
    rows: list[Any] = connection.execute(_SCHEMA).fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows}


@cache
def _definitions_of_a_new_file() -> dict[str, str]:
    connection = apsw.Connection(":memory:")
    schema.migrate(connection, Instant(0))
    return _definitions(connection)
