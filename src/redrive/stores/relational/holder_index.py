"""Which items a holder has: by the index on state rows if it is their only one, else by redrive_holder."""

from __future__ import annotations

from redrive.model.holder import SEVERAL, ItemHolder, encode_holders
from redrive.stores.relational.session import Executor

_BY_HOLDER = f"""
    SELECT item_no FROM redrive_{{table}}
    WHERE held_by IN (?1, ?2) AND substr(held_by, 1, 2) <> '{SEVERAL}' {{which}}
        AND queue IN (SELECT key FROM redrive_queue WHERE namespace = ?3)"""
HELD = f"""
    {_BY_HOLDER.format(table="scheduled", which="")}
    UNION ALL {_BY_HOLDER.format(table="finished", which="AND status <> 'moving'")}
    UNION ALL SELECT item_no FROM redrive_holder WHERE namespace = ?4 AND name = ?5 LIMIT ?6"""


def held_numbers(executor: Executor, namespace: str, namespace_key: int, name: str, limit: int) -> list[int]:
    """Return the numbers of some items that have this holder, in any status."""
    alone = (encode_holders((ItemHolder(name, lasting),)) for lasting in (False, True))
    rows = executor.execute(HELD, (*alone, namespace, namespace_key, name, limit)).fetchall()
    return [item_no for (item_no,) in rows]
