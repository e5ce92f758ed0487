"""Canaries: the first few items that an operation brings back. How they end decides over the rest."""

from __future__ import annotations

import math
from collections import Counter

from redrive.broker.flow import Flow, commit_call, run_query
from redrive.contract.admin_calls import SetOperation
from redrive.contract.queries import FeedPage, GetItem, ReadFeed
from redrive.errors import ItemNotFound
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import HistoryEvent, Item, Status
from redrive.model.operation import Operation, OperationStatus

ACTOR = "canary"
"""Who goes on, or stops, in the audit."""
_MAX_TITLES = 3
_DROPPED = "removed after it died"


def watch(operation: Operation) -> Flow[Operation]:
    """Look how the canaries stand, and go on or stop where that decides it."""
    total = len(operation.canary_ids)
    needed = math.ceil(operation.canary_success_ratio * total - 1e-9)
    good = 0
    deaths: Counter[str] = Counter()
    for id in operation.canary_ids:
        outcome = yield from _outcome(operation, id)
        if outcome is None:
            continue
        if outcome:
            deaths[outcome] += 1
        else:
            good += 1
        if deaths.total() > total - needed:
            return (yield from _set(operation, OperationStatus.STOPPED, _problem(deaths, total)))
    if good >= needed:
        return (yield from _set(operation, OperationStatus.RUNNING, None))
    return operation


def died_again(item: Item) -> bool:
    """Whether an item that was brought back is dead once more: it was brought back as often as at its last death."""
    if item.status in (Status.DEAD, Status.ARCHIVED):
        return True
    if item.history and item.history[-1].event is HistoryEvent.UNDONE:
        return True
    return item.death is not None and item.death.counters.redrives == item.counters.redrives


def _outcome(operation: Operation, id: ItemId) -> Flow[str | None]:
    """What a canary died of; an empty text where it completed; None while nobody knows."""
    try:
        item: Item = yield from run_query(GetItem(id))
    except ItemNotFound:
        return (yield from _last_words(operation, id))
    if item.status is Status.COMPLETED:
        return ""
    if not died_again(item):
        return None
    return item.death.cause.group_title if item.death else _DROPPED


def _last_words(operation: Operation, id: ItemId) -> Flow[str]:
    """An item that is gone was completed, unless the feed tells of its death: its queue drops the dead."""
    after = operation.mark
    while True:
        page: FeedPage = yield from run_query(ReadFeed(after=after, id=id, kinds=(FeedKind.DEAD,)))
        if page.entries:
            return page.entries[-1].title or _DROPPED
        if not page.more:
            return ""
        after = page.last


def _problem(deaths: Counter[str], total: int) -> str:
    titles = "; ".join(f"{count} × {title}" for title, count in deaths.most_common(_MAX_TITLES))
    more = "; …" if len(deaths) > _MAX_TITLES else ""
    return (
        f"{deaths.total()} of {total} canaries died again ({titles}{more}); the rest was not touched. "
        f"Mend the cause, then start another operation"
    )


def _set(operation: Operation, status: OperationStatus, problem: str | None) -> Flow[Operation]:
    call = SetOperation(operation.id, ACTOR, status, problem, steps=operation.steps)
    changed: Operation = yield from commit_call(call)
    return changed
