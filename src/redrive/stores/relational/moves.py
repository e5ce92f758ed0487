"""Items that move between stores: their destinations, and received items that the other store may still have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from redrive.contract.queries import ListMoves, ListOpenMoves, MoveTarget, OpenMove
from redrive.model.arrival import ledger_key
from redrive.model.ids import ItemId
from redrive.stores.relational.session import Executor

_DESTINATIONS = """
    WITH RECURSIVE each(target) AS (
        SELECT (SELECT min(target) FROM redrive_moving WHERE namespace = ?1)
        UNION ALL
        SELECT (SELECT min(target) FROM redrive_moving WHERE namespace = ?1 AND target > each.target)
        FROM each WHERE each.target IS NOT NULL)
    SELECT target, (
        SELECT since FROM redrive_moving WHERE namespace = ?1 AND target = each.target ORDER BY key LIMIT 1)
    FROM each WHERE target IS NOT NULL"""
_MOVING = """
    SELECT m.item_no, length(i.payload)
    FROM redrive_moving AS m CROSS JOIN redrive_item AS i ON i.item_no = m.item_no
    WHERE m.namespace = ?1 {which} ORDER BY m.key LIMIT ?2"""
_OPEN_MOVES = """
    SELECT queue, source_id FROM redrive_ledger
    WHERE store = ? AND closed_at IS NULL AND source_id > ? ORDER BY source_id, queue"""


def destinations(executor: Executor, namespace_key: int | None) -> tuple[MoveTarget, ...]:
    """Return the targets of moving items: one step per target."""
    rows: Iterable[Any] = executor.execute(_DESTINATIONS, (namespace_key,))
    return tuple(MoveTarget(*row) for row in rows)


def moving(executor: Executor, namespace_key: int | None, query: ListMoves) -> list[tuple[int, int]]:
    """Return the items that left first, with item_no and size of the payload."""
    values: tuple[Any, ...] = (namespace_key, query.limit)
    if query.to is None:
        found = executor.execute(_MOVING.format(which=""), values)
    else:
        found = executor.execute(_MOVING.format(which="AND m.target = ?3"), (*values, query.to))
    rows: list[tuple[int, int]] = found.fetchall()
    return rows


def open_moves(executor: Executor, names: Mapping[int, str], query: ListOpenMoves) -> tuple[OpenMove, ...]:
    """Return open moves, ordered by the ids in the other store."""
    after = "" if query.after is None else ledger_key(query.after)
    found: list[OpenMove] = []
    rows = executor.stream(_OPEN_MOVES, (query.store, after))
    try:
        for queue, key in rows:
            if queue in names:
                found.append(OpenMove(names[queue], ItemId(key[1:])))
            if len(found) == query.limit:
                break
    finally:
        rows.close()
    return tuple(found)
