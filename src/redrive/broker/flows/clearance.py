"""Clear a queue: drop many items, or remove them permanently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import manual_changes
from redrive.contract.queries import FindItems, Page
from redrive.model.filter import Filter, Order
from redrive.model.ids import ItemId
from redrive.model.item import Settled, Status
from redrive.model.state_machine import Verb

if TYPE_CHECKING:
    from redrive.broker.core import Core

CLEARED_TOGETHER = 1000
"""Items that are dropped in one transaction."""


def clear(
    core: Core, where: Filter, actor: str | None, *, final: bool, limit: int | None = None
) -> Flow[list[Settled]]:
    """Drop items that match, from the oldest on; `final`: remove them permanently, dropped ones too.

    Items that are leased, or that another caller changes meanwhile, stay. Returns those that were cleared.
    """
    cleared: list[Settled] = []
    cursor: str | None = None
    while limit is None or len(cleared) < limit:
        size = CLEARED_TOGETHER if limit is None else min(CLEARED_TOGETHER, limit - len(cleared))
        page: Page = yield from run_query(FindItems(where, Order.OLDEST, size, cursor))
        ids = [item.id for item in page.items]
        cleared += yield from _clear_page(core, ids, actor, is_archived=where.status is Status.ARCHIVED, final=final)
        cursor = page.cursor
        if cursor is None:
            break
    return cleared


def _clear_page(
    core: Core, ids: Sequence[ItemId], actor: str | None, *, is_archived: bool, final: bool
) -> Flow[list[Settled]]:
    if final and is_archived:
        return (yield from _changed(core, Verb.PURGE, ids, actor))
    dropped = yield from _changed(core, Verb.DROP, ids, actor)
    if not final:
        return dropped
    gone = [each for each in dropped if each.status is None]  # where keep_dropped is 0
    kept = [each.id for each in dropped if each.status is not None]
    return gone + (yield from _changed(core, Verb.PURGE, kept, actor))


def _changed(core: Core, verb: Verb, ids: Sequence[ItemId], actor: str | None) -> Flow[list[Settled]]:
    results: list[Any] = (yield from manual_changes.change(core, verb, ids, actor)) if ids else []
    return [result for result in results if isinstance(result, Settled)]
