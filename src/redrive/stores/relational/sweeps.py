"""A step of an operation over dead letters that are alike, without a look at each from here.

It is what most operations are: dead items of few queues, chosen by their cause, back to work where they are. Where an
item among them needs a look of its own, nothing is done, and the step goes the other way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.model.filter import MAX_EXAMINED, Filter
from redrive.model.item import Status
from redrive.model.transitions import Verb
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.bulk import Lot, change_lot, lot
from redrive.stores.relational.deeds import Deed

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
"""What a statement can ask of a letter by itself, beside what an index finds."""
_INDEXED = frozenset({"status", "queue", "fingerprint"})
_NEXT = "SELECT d, n, queue{columns} FROM redrive_letter WHERE {index} AND d > ? AND d <= ? ORDER BY d LIMIT ?"
_MEANT = "SELECT d, n, queue FROM ({next}) AS examined WHERE {conditions} /*+ ORDER BY d */ LIMIT ?"
_EXAMINED = "SELECT count(*), max(d) FROM ({next}) AS examined"
_QUEUES_OF = """
    SELECT (SELECT min(queue) FROM redrive_letter WHERE shelf = ?1 AND fingerprint = ?2),
        (SELECT max(queue) FROM redrive_letter WHERE shelf = ?1 AND fingerprint = ?2)"""
_STANDING = """
    SELECT count(*), max(e.entries), count(i.expire_timeout), count(*) FILTER (WHERE {plain})
    FROM carray(?) AS c CROSS JOIN redrive_ended AS e ON e.n = c.value CROSS JOIN redrive_item AS i ON i.n = e.n"""
_PLAIN = {
    Verb.RETRY: "e.status = 'dead' AND i.idempotency_key IS NULL",
    # One that was never moved died where it is; another one may have to go back to where it died.
    Verb.REDRIVE: "e.status = 'dead' AND i.idempotency_key IS NULL AND i.source_id IS NULL",
    Verb.ARCHIVE: "e.status = 'dead'",
    Verb.RESTORE: "e.archived_from = 'dead'",
    Verb.PURGE: "true",
}
"""Of which items nothing but their status decides what becomes of them."""


class Swept(msgspec.Struct, frozen=True):
    """What a step changed: everything that it met."""

    numbers: list[int]
    """The `n` of each item."""
    position: int | None
    exhausted: bool


def sweep(batch: Batch, deed: Deed, where: Filter, after: int | None, up_to: int, limit: int) -> Swept | None:
    """Change the next items that match, all of them. None where this is not the way, and nothing was changed."""
    index = _index(batch, deed, where)
    if index is None:
        return None
    found, position, exhausted = _find(batch, where, index, after or 0, up_to, limit)
    lots = _lots(batch, deed, found)
    if lots is None:
        return None
    for each in lots:
        change_lot(batch, deed, each)
    return Swept([n for _, n, _ in found], position, exhausted)


def _index(batch: Batch, deed: Deed, where: Filter) -> tuple[str, tuple[Any, ...]] | None:
    """How the letters are found; None where a statement alone cannot find them, or not in the order of the deaths."""
    given = {name for name in where.__struct_fields__ if getattr(where, name) is not None}
    if deed.verb not in _SHELF or where.status is not _SHELF[deed.verb] or not given <= _INDEXED | _CONDITIONS.keys():
        return None
    shelf = batch.namespace_key if where.status is Status.DEAD else -batch.namespace_key
    queue = None if where.queue is None else batch.by_name.get(where.queue)
    if where.queue is not None and queue is None:
        return None
    if where.fingerprint is None:
        return ("shelf = ?", (shelf,)) if queue is None else ("queue = ? AND shelf = ?", (queue.key, shelf))
    first, last = batch.execute(_QUEUES_OF, (shelf, where.fingerprint)).get
    key = queue.key if queue is not None else first
    if queue is None and first != last:
        return None
    return "shelf = ? AND fingerprint = ? AND queue = ?", (shelf, where.fingerprint, key)


def _find(
    batch: Batch, where: Filter, index: tuple[str, tuple[Any, ...]], after: int, up_to: int, limit: int
) -> tuple[list[tuple[int, int, int]], int | None, bool]:
    """The next letters that match (d, n, queue), how far it looked, and whether there is nothing more."""
    asked = {name: value for name in _CONDITIONS if (value := getattr(where, name)) is not None}
    conditions = " AND ".join(_CONDITIONS[name] for name in asked) or "true"
    columns = ", reason, error_class, died_at, attempts" if asked else ""
    following = _NEXT.format(columns=columns, index=index[0])
    bounds = (*index[1], after, up_to, MAX_EXAMINED)
    meant = _MEANT.format(next=following, conditions=conditions)
    found = batch.execute(meant, (*bounds, *asked.values(), limit + 1)).fetchall()
    if len(found) > limit:
        return found[:limit], found[limit - 1][0], False
    examined, last = batch.execute(_EXAMINED.format(next=following), bounds).get
    return found, last, examined < MAX_EXAMINED


def _lots(batch: Batch, deed: Deed, found: list[tuple[int, int, int]]) -> list[Lot] | None:
    """The items by queue; None where one of them needs a look of its own."""
    queues: dict[int, tuple[list[int], list[int]]] = {}
    for d, n, queue in found:
        numbers, dead = queues.setdefault(queue, ([], []))
        numbers.append(n)
        dead.append(d)
    lots = []
    statement = _STANDING.format(plain=_PLAIN[deed.verb])
    for queue, (numbers, dead) in queues.items():
        row = batch.by_key.get(queue)
        if row is None or deed.to not in (None, row.queue.name):
            return None
        if deed.verb in _REVIVES and row.settings.max_size is not None:
            return None
        count, entries, timeouts, plain = batch.execute(statement, (batch.table(numbers),)).get
        if count < len(numbers) or plain < count:
            return None
        lots.append(lot(batch, row, numbers, dead, timeouts=bool(timeouts), entries=entries))
    return lots
