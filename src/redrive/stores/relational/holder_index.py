"""The index of items by holder: on state rows for an item with a single holder, else in redrive_holder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redrive.model.holder import SEVERAL, ItemHolder, encode_holders
from redrive.model.item import Status
from redrive.stores.relational.batch import Batch, Stage
from redrive.stores.relational.session import Executor

if TYPE_CHECKING:
    from redrive.stores.relational.item_rows import ItemRow

_BY_HOLDER = f"""
    SELECT item_no FROM redrive_{{table}}
    WHERE held_by IN (?1, ?2) AND substr(held_by, 1, 2) <> '{SEVERAL}' {{which}}
        AND queue IN (SELECT key FROM redrive_queue WHERE namespace = ?3)"""
HELD = f"""
    {_BY_HOLDER.format(table="scheduled", which="")}
    UNION ALL {_BY_HOLDER.format(table="finished", which="AND status <> 'moving'")}
    UNION ALL SELECT item_no FROM redrive_holder WHERE namespace = ?4 AND name = ?5 LIMIT ?6"""

_INSERT = "INSERT INTO redrive_holder (item_no, namespace, name) VALUES (?, ?, ?)"
_DELETE = "DELETE FROM redrive_holder WHERE item_no = ?"


def held_numbers(executor: Executor, namespace: str, namespace_key: int, name: str, limit: int) -> list[int]:
    """Return the numbers of some items that have this holder, in any status."""
    alone = (encode_holders((ItemHolder(name, lasting),)) for lasting in (False, True))
    rows = executor.execute(HELD, (*alone, namespace, namespace_key, name, limit)).fetchall()
    return [item_no for (item_no,) in rows]


def write_holders(batch: Batch, item_row: ItemRow) -> str | None:
    """Write the rows of an item's holders. Return the text of all of them, for its state row."""
    if _has_rows(item_row):
        for name, _ in item_row.holders:
            batch.write(_INSERT, (item_row.item_no, batch.namespace_key, name))
    return encode_holders(item_row.holders)


def delete_holders(batch: Batch, item_row: ItemRow) -> None:
    """Delete the rows of an item's holders."""
    if _has_rows(item_row):
        batch.write(_DELETE, (item_row.item_no,), Stage.DELETE_STATE)


def _has_rows(item_row: ItemRow) -> bool:
    return len(item_row.holders) > 1 and item_row.status is not Status.MOVING
