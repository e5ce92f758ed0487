"""Whether the rows of a store belong together: items and their places, counts and what they count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redrive.model.feed import FeedKind
from redrive.model.text import pluralize
from redrive.stores.relational.session import Executor

_STATUSES = ("pending", "failed", "active", "completed", "dead", "archived", "moving")
_PLACES = """(
    SELECT item_no, queue, 'pending' AS status FROM redrive_ready
    UNION ALL SELECT item_no, queue, status FROM redrive_scheduled
    UNION ALL SELECT item_no, queue, 'active' FROM redrive_lease
    UNION ALL SELECT item_no, queue, CASE status WHEN 'dropped' THEN 'archived' ELSE status END
    FROM redrive_finished) AS places"""
_ITEMS = "(SELECT item_no, queue FROM redrive_item) AS items"
_UNPAIRED = f"""
    SELECT (SELECT count(*) FROM (SELECT * FROM {_ITEMS} EXCEPT SELECT item_no, queue FROM {_PLACES}) AS alone),
        (SELECT count(*) FROM (SELECT item_no, queue FROM {_PLACES} EXCEPT SELECT * FROM {_ITEMS}) AS alone)"""
_OF_NO_QUEUE = "SELECT count(*) FROM redrive_item WHERE queue NOT IN (SELECT key FROM redrive_queue)"
_OF_NO_KIND = f"SELECT count(*) FROM redrive_feed WHERE kind NOT IN {tuple(kind.value for kind in FeedKind)}"
_COUNTED = " UNION ALL ".join(
    f"SELECT queue, '{status}' AS status, {status} AS number FROM {table}"
    for table in ("redrive_count", "redrive_count_delta")
    for status in _STATUSES
)
_WRONG_COUNTS = f"""
    SELECT coalesce(max(q.name), 'number ' || c.queue), c.status, sum(c.number), sum(c.there)
    FROM (SELECT queue, status, number, 0 AS there FROM ({_COUNTED}) AS counted
        UNION ALL SELECT queue, status, 0, 1 FROM {_PLACES}) AS c LEFT JOIN redrive_queue AS q ON q.key = c.queue
    GROUP BY c.queue, c.status HAVING sum(c.number) <> sum(c.there)"""


def find_unrelated_rows(executor: Executor) -> Iterator[str]:
    """Return a sentence for each kind of rows that do not belong together."""
    unpaired: tuple[int, int] = executor.execute(_UNPAIRED).get
    without_place, without_item = unpaired
    if without_place:
        yield f"{pluralize(without_place, 'item')} in no place"
    if without_item:
        yield f"{pluralize(without_item, 'row')} of items that do not exist"
    without_queue: int = executor.execute(_OF_NO_QUEUE).get
    if without_queue:
        yield f"{pluralize(without_queue, 'item')} of queues that do not exist"
    without_kind: int = executor.execute(_OF_NO_KIND).get
    if without_kind:
        yield f"{pluralize(without_kind, 'row')} of the feed whose kind is damaged"
    wrong: list[Any] = executor.execute(_WRONG_COUNTS).fetchall()
    for queue, status, counted, number in wrong:
        yield f"queue {queue!r} counts {counted:,} {status} items, and has {number:,}"
