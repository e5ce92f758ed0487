"""Clear a queue: drop many items, or remove them permanently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.broker.flow import Flow, run_query
from redrive.broker.flows import manual_changes
from redrive.contract.queries import FindItems, Page
from redrive.errors import RedriveError
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
        results = yield from clear_items(core, ids, actor, is_archived=where.status is Status.ARCHIVED, final=final)
        cleared += [result for result in results if isinstance(result, Settled)]
        cursor = page.cursor
        if cursor is None:
            break
    return cleared


def clear_items(
    core: Core, ids: Sequence[ItemId], actor: str | None, *, is_archived: bool, final: bool
) -> Flow[list[Settled | RedriveError]]:
    """Drop items; `final`: remove those that are kept then, too. Archived ones are only removed. Returns a result for
    each."""
    if not ids:
        return []
    results: list[Settled | RedriveError]
    if final and is_archived:
        results = yield from manual_changes.change(core, Verb.PURGE, ids, actor)
        return results
    results = yield from manual_changes.change(core, Verb.DROP, ids, actor)
    kept = [each.id for each in results if isinstance(each, Settled) and each.status is not None]
    if not final or not kept:
        return results
    others = [each for each in results if isinstance(each, RedriveError) or each.status is None]
    return [*others, *(yield from manual_changes.change(core, Verb.PURGE, kept, actor))]
